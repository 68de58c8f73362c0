// Package restart owns hot restart: how one process of the sidecar takes the
// place of another on the same machine (docs/dev/decisions/0005-takeover.md).
//
// A Restart is the place of this process in a row of processes. It asks the
// running process for its listeners (Ask, Inherited), answers processes that
// ask this one, hands clients over, and joins the two processes by a pair for
// as long as both live: calls for transactions of the other process go there.
//
// What always holds: at most one process takes over at a time; a process
// serves on until the next one has said that it is ready, and a next one that
// hangs or fails changes nothing; listeners stay open all the time; a
// connection moves only between two requests; calls that were handed over have
// their answers before the process that gives them ends.
//
// Goroutines: one that accepts processes that ask, one for each of these, up
// to 8, and those of the pair's servers. All end before Succeed returns.
package restart
