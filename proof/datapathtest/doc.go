// Package datapathtest tests the data path of the whole product: the built sidecar
// forwards calls from clients of several stacks to nodes that are in the hands of the
// tests, and what a client sees through it must equal what it sees without it.
//
// It owns the faults that come from the network and from nodes at the level of HTTP/2:
// killed, half-open, silent, garbled, going away in mid call. What YDB's SDKs make of
// the sidecar is tested in systemtest. Every case runs with each driver of the data
// path; after each, the sidecar's descriptors and goroutines are back where they were.
package datapathtest
