// Package hostile is callers that mean harm: each attack has a sidecar spend or keep more than its bytes are worth, on whichever
// port it likes, until it is told to stop.
//
// It owns the attacks, and a peer of HTTP/2 that obeys as much of the protocol as an attack needs. What always holds: the process of an
// attacker uses no more of a core than its share; it gives up when its context ends; what it is answered does not matter, but for what it
// needs to go on.
package hostile
