// Package snapshot shows what the process does: the documents of state, the page, the
// progress of a stop, the points of the history, the answer of the status call, and the
// picture that findings look at.
//
// It owns the look at the parts (Source.Look) and the forms of these documents. What always
// holds: a look reads each part once, and a Snapshot never changes; nothing here acts on the
// process; what is long is bounded, or asked only by the view that shows it; it starts no
// goroutine. The page holds a lock over its look, and nothing that a look reads takes that lock.
package snapshot
