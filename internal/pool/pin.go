package pool

import _ "unsafe" // for linkname

// The runtime keeps these two open to packages outside it. They are used for
// nothing but a number: the slot of the P that runs the caller. If the goroutine
// moves to another P afterwards, it shares a slot with somebody, no more.

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// processor returns the number of the P that runs the caller, from 0.
func processor() uint {
	i := procPin()
	procUnpin()
	return uint(i)
}
