// Package pool is the bounded pool of sessions that live on nodes. It knows
// nothing of YDB: an Opener opens a session on a node, and a Resource is what
// there is to delete there.
//
// It owns every session from the call of Opener.Open until Resource.Close has
// returned, the queue of callers that wait for one, and every goroutine that
// opens or deletes. What always holds:
//
//   - A session is opening, idle, in use or closing, and in use by one caller.
//   - Opening, live and closing sessions together never exceed Config.Max, and
//     no session is opened on a node that has its cap of them already. When a
//     cap falls, because another node became eligible, the surplus moves there
//     at the pace of Config.MoveRate.
//   - No more than Config.CreateBurst openings are under way on a node, four
//     times as many in all, nor more than 16 deletions on a node.
//   - An idle session of an eligible node is never left alone while a caller
//     waits. A caller that lays a session down looks for waiters afterwards, and
//     one that wants to wait looks everywhere after saying so.
//   - Callers that wait are in the queue (package queue), which decides which one goes first
//     and which one is rejected. A caller whose context ends leaves it at once.
//   - Nodes that are not cluster.UseNew get no session opened and none checked out,
//     and have no idle ones: those are closed at once, sessions in use when they
//     come back. On a node that is ejected for its own load both are parked instead,
//     for a minute at most. No caller waits for room that a parked session has.
//   - Sessions move to other nodes when idle; one in use is let go at its
//     release at the earliest. What moves is opened first, if there is room.
//     With nothing new from outside, moving comes to an end.
//   - Pools within one Budget never have more sessions together than it allows. A
//     permit that comes free goes to a pool that wants one. While one is wanted, pools that
//     have more than others, or use them less, give some (package budget). With even demand
//     nothing moves.
//   - No more sessions are in use than SetLimit allows, except those that were when it
//     was lowered. The others are set aside: idle in all figures, and not
//     where Acquire looks, so that it pays nothing for the limit. So are parked ones.
//   - A session whose last call was given up is used again when its node says that it is
//     idle, and not before; until then it counts as in use. A caller in the queue waits for
//     it no longer than recoverWithin.
//   - After Close nothing is left: no session, no goroutine, no waiter, no permit.
//
// # How
//
// Idle sessions are on a lock-free stack for each node, last in, first out, so
// that a surplus goes unused and expires. In front of the stacks each P has a
// slot for one session. A warm Acquire and Release touch that slot and nothing
// else that another P writes to. A slot is passed over when its node is not
// eligible, carries more than its fair part of the work, or after a number of
// uses; then, and when the slot is empty, the node is the less loaded of two
// random ones that have an idle session. Load is sessions out, times the cost of
// a call, for the node's weight. Nodes of weight 0 are for when no other has any. Which of
// many nodes have an idle session is in an index.
// Before all that a caller that says where its last session was (Ask.Near) gets one
// there again, under the same conditions as one from a slot.
//
// A session is opened where there are the fewest for the weight. After a failure
// a node is left alone for a moment, up to a second; then, as on a node that is
// back, one try goes first, and each success allows one more at a time.
//
// Everything rare is guarded by Pool.mu and done by the methods of state: the queue,
// opening, closing, expiry and changes of the view. The slots and stacks of idle
// sessions are the shelf. A sweep that looks for a session in the middle of a stack
// takes the stack away and puts it back, all under mu; a caller that finds the
// stack empty meanwhile has to come to mu too, and finds everything there. The
// lock is never held over a call of an Opener, a Resource or a Waiter.
//
// A budget has a lock of its own, which may be taken under Pool.mu. The lock of a pool
// is taken by no goroutine that holds the lock of a budget or of another pool. A pool is
// told of its permit through a channel and takes it on the goroutine of its Run.
package pool
