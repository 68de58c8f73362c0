// Package httpapi is the HTTP API: the plain API over HTTP with JSON.
//
// It owns the forms of requests and answers over HTTP: paths, headers, JSON, lines of JSON and problems,
// and the OpenAPI document that describes them. Packages core, kv and rows run the calls.
//
// What always holds:
//
//   - A body is read at a pace, counted against the memory for requests, and checked before it is decoded: its
//     depth, its members and its lists have bounds.
//   - JSON is decoded into the messages of sidecar.proto, by their descriptors: a field of a message is a member of the JSON.
//     What differs stands in one table (members.go).
//   - A refusal does not wait for a body that is still to come.
//   - No caller that stalls holds up a stop: reading and sending have deadlines.
//   - The document openapi.yaml describes exactly the routes and the fields that are decoded. A test makes it of them, of the comments of
//     the .proto files, of testdata/openapi.part.yaml, and of answers to the requests that it shows.
package httpapi
