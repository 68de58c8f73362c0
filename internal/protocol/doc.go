// Package protocol is what YDB's protocol says of itself, in the octets of its messages: which methods
// there are and what is to be known of each, where messages name a session, a transaction, a status or a
// place, and how an answer is made.
//
// It owns no socket, no goroutine and no state but what a scan of one message needs. What always holds: the table
// of methods is written by gen from the descriptors of the official protos, and no code changes it; scans take
// time in proportion to the octets, allocate nothing, and say what a decoder would say, or refuse; nothing panics
// whatever the octets are.
package protocol
