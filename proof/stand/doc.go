// Package stand is what a proof stands on: it builds the project's own programs, starts them on
// free ports, waits for their ready line, drives and measures them, and stops them. A Cluster is a
// development cluster, and a Sidecar is what is proven.
//
// Programs are driven over the wire. A Process started here never outlives its Stop, nor the
// process that started it. What it printed is kept, bounded, so that a failure can show it. Two
// goroutines read its output until it ends. Every method may be called from any goroutine, except
// Ready, which one calls once.
package stand
