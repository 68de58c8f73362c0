// Package grpcapi is the gRPC API: the plain API over gRPC, as proto/sidecar/v1 describes it.
//
// It owns the forms of requests and answers over gRPC: messages, metadata and statuses. It reads the requests
// that are called most, and appends their answers, without messages in between. Packages core, kv and rows run
// the calls.
//
// What always holds:
//
//   - A request is counted against the memory for requests before it is decoded, and its lists have bounds.
//   - A request that is read without a message says what its message says; tests compare the two.
//   - Every fault goes out with the code, the reason and the problem that the HTTP API sends too.
package grpcapi
