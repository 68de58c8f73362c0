// Package protocol holds facts of YDB's protocol: which methods there are, what is to be known of each, and where
// messages name a session, a transaction, a status or the location of a partition. It reads them from bytes of messages, without
// decoding the rest, and makes answers.
//
// It owns no socket, no goroutine, and no state except that of a scan. What always holds: the table of methods is
// written by gen from the descriptors of the official protos, and no code changes it; a scan takes time in
// proportion to the bytes, allocates nothing, and finds what a decoder would find, or refuses; no message makes it
// panic.
package protocol
