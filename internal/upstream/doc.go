// Package upstream is the driver of YDB: the connections to its nodes, the life
// of a session, calls on sessions, retries, credentials.
//
// Driver owns one connection per node of the current view, by package h2/client or
// grpc-go (Config.Client), one more per bootstrap address, the attach stream of every session it opened, and the
// ticket that goes with every call. Client sits above the pool: it takes a
// session, lets the caller's function use it, and acts on what came of it.
//
// What always holds:
//
//   - A session is driven by one call at a time, and its calls go where
//     routing.Target says: to the node that owns it (I1, I2).
//   - Every call to a node is judged exactly once, by internal/hop, where it ends;
//     the judge of nodes is told there and then, and nowhere else. What the
//     caller did (a cancel, a deadline, bad SQL) is never a node's fault.
//   - Nothing is sent twice unless the verdict allows it, the caller's deadline
//     has room and the budget of the process has a token (I6).
//   - The caller's deadline and cancellation go along with every call (I7). A
//     session whose call ended in the dark is not used again: the pool has it
//     deleted, on a bounded context of its own.
//   - A connection with calls under way that brings no byte is asked (docs/dev/decisions/0006-silence.md), and given
//     up if it stays silent: its calls end at once, as cut off. Nothing else
//     ends there: the session of an open transaction outlives the loss of the
//     link to its owner, and its calls may go around it.
//   - A call around the owner of its session ends when the owner has left the cluster, or
//     after ForwardSilence without a part of its answer: no node tells when it is lost.
//   - A node out of reach is sent no DeleteSession.
//   - Every goroutine belongs to Run or to a session, and Close waits for all.
//   - Tickets, keys and passwords appear in no log, span, error or String (I10).
package upstream
