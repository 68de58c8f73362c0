// Package core runs the calls of the plain API, whatever API they came over.
//
// It owns what a call means: types of parameters, limits, interactive
// transactions and their tokens, bulk upserts, the one map from what went wrong
// to what a caller is told, and what is measured, traced and logged of a call.
// How requests and answers look belongs to the HTTP API and the gRPC API, which
// core does not know, and neither does it know rows by key and streams of rows.
//
// What always holds:
//
//   - Every call that has come whole counts against api.max_open, and its cancel goes down with its context.
//   - A numbered statement of a transaction runs at most once. A transaction that
//     no call finishes is rolled back, and its session freed.
//   - Nothing of a streamed result is held beyond one part of the answer.
//   - Every fault says whether nothing was kept or the outcome is unknown.
package core
