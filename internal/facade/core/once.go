package core

// OnceHeaders are the headers, of HTTP and of gRPC metadata, that a call may have once: of two values it would be unclear
// which counts.
var OnceHeaders = [...]string{HeaderApp, headerPriority}

// Repeated is the fault of a call that has a header so many times which it may have once.
func Repeated(name string, times int) *Fault {
	return BadRequest("the header %s is there %d times; send it once", name, times)
}
