// Package rows serves streams of rows: a caller sends rows into one table for as long as it likes, and is told which of them are written.
//
// It owns the call Ingest except the form of its messages, which belongs to the
// HTTP API and the gRPC API: what a stream is opened with, the memory that it
// holds, what is written for it, and what its caller is told when it ends.
// The engine that gathers and orders rows is package ingest.
//
// What always holds:
//
//   - A stream has no deadline but its caller's; ingest.idle and the time of each batch bound it.
//   - What a stream holds counts against memory.requests until it is written.
package rows
