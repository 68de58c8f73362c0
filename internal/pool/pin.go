package pool

import _ "unsafe" // for linkname

// The runtime keeps these two open to packages outside it. They are used for the
// number that procPin returns, that of the P that runs the caller, and always
// in pairs without anything in between.

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
