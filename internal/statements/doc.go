// Package statements counts the calls of statements by digest: by the hash of a text without its literals.
//
// It owns the digests and their figures. Whoever ends calls has a Stripe, or several, and a Recorder gathers what
// the stripes counted once a second: figures since the start and of the last whole minute, what is usual for a digest,
// and how many texts it has. What always holds:
//
//   - A call of a text that its stripe has seen takes no lock but the stripe's and allocates nothing. A new text is
//     read once, up to 16 KiB of it.
//   - Memory is bounded, whatever is called: see the constants. A digest for which there is no room counts as the rest
//     of all, so totals stay true.
//   - No text is kept, except the normal forms of texts if the operator asks for them. The kind of a statement is a
//     keyword.
//
// It starts no goroutine: Run is its caller's.
package statements
