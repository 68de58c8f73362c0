// Package wire serves YDB's own protocol to unmodified SDKs, on top of internal/h2. Calls of
// the plain API, which come to the same port, it leaves to internal/h2/unary, or to the server in this process.
//
// It owns the question which node a call goes to: the owner of the session that its
// first message names, or one that routing picks; ListEndpoints, which names the
// sidecar alone; and what a client is told when there is no node. What always holds:
// no message is decoded, and none but the first is looked at, except those that write to topics in transactions; each call that enters
// a node at the router leaves it, and its outcome is told to whoever judges nodes,
// classified by ydbstatus alone; a call that the sidecar cannot send gets YDB's own
// status in a message of its own type, because SDKs take gRPC errors for a broken
// endpoint; a caller's credentials go to the node as they came and nowhere else; with wire.auth=own they stay here.
package wire
