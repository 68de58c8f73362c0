// Package devcluster runs a small YDB-wire-compatible cluster for development
// and tests. It is no database server: sessions, transactions, errors, hints
// and discovery behave as YDB's do, while the YQL it knows is the subset of
// proof/devcluster/engine. docs/dev/devcluster.md says what it does and what not.
//
// It owns the nodes: each is a gRPC server on a port of its own, with its own
// table of sessions. What always holds:
//
//   - A session lives on exactly one node and dies with it. It runs one
//     request at a time; another one is answered SESSION_BUSY.
//   - A session call that reaches another node is forwarded to the owner over
//     a real connection between the nodes, after Config.HopDelay. Each node
//     counts, for the calls of clients, which it owned and which it forwarded.
//   - Any status but SUCCESS ends the transaction of the call.
//   - An answer is a YDB status inside a normal response. A gRPC error is given
//     only where a real cluster cannot answer at all: the node is gone, or a
//     fault that was asked for plays one.
//   - A killed node leaves nothing: its connections are reset, its sessions and
//     open transactions are gone, and nothing of it is committed after Kill returned.
//
// A Cluster has its nodes in this process. Under a Supervisor each node is a
// process of its own with a Cluster of one node. Both serve the same control API.
package devcluster
