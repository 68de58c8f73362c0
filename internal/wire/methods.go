package wire

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
)

//go:generate go run ./gen

// Method is one RPC of YDB.
type Method struct {
	Path    string           // "/service/method"
	Kind    cluster.CallKind // what its failure says of a node
	session []int            // numbers of the fields that lead to the session's id in the first message; none: it is bound to no session
	style   style            // of its answers
	many    bool             // the request is any number of messages, else one
	lost    h2.Status        // what the client is told when the node is lost in mid call; without a body: UNAVAILABLE of gRPC

	endless bool // see lasts
	waits   bool // see cluster.Outcome

	// For virtual sessions.
	role            role
	locating        *locating // its answer may have places; nil: it has none
	kind            uint64    // of its work; see kindOfPath
	request, answer *wanted   // what scans look for
}

// role is what a method does with virtual sessions.
type role uint8

const (
	roleNone     role = iota // it is bound to no session
	roleCreate               // answered here
	roleAttach               // answered here
	roleDelete               // answered here
	roleKeep                 // KeepAlive, answered here
	roleUse                  // goes to the node, on a session of the pool
	roleBegin                // the same, and begins a transaction
	roleEnd                  // the same, and ends one
	roleImplicit             // the same; it may name no session
	roleFree                 // goes to any node, on no session: servers ignore the id in it
)

const (
	queryService = "/Ydb.Query.V1.QueryService/"
	tableService = "/Ydb.Table.V1.TableService/"
)

// roleOf finds a method's role by its name.
func (m *Method) roleOf() role {
	switch m.Path {
	case queryService + "CreateSession", tableService + "CreateSession":
		return roleCreate
	case queryService + "AttachSession":
		return roleAttach
	case queryService + "DeleteSession", tableService + "DeleteSession":
		return roleDelete
	case tableService + "KeepAlive":
		return roleKeep
	case queryService + "BeginTransaction", tableService + "BeginTransaction":
		return roleBegin
	case queryService + "CommitTransaction", queryService + "RollbackTransaction",
		tableService + "CommitTransaction", tableService + "RollbackTransaction":
		return roleEnd
	case queryService + "ExecuteQuery":
		return roleImplicit
	case tableService + "DescribeTable", tableService + "CreateTable", tableService + "AlterTable", tableService + "DropTable",
		tableService + "CopyTable", tableService + "CopyTables", tableService + "RenameTables",
		tableService + "StreamReadTable", tableService + "ReadRows":
		return roleFree
	}
	if m.session != nil {
		return roleUse
	}
	return roleNone
}

// style tells where an answer holds YDB's status.
type style uint8

const (
	styleNone      style = iota // it has none
	stylePlain                  // status = 1, issues = 2
	styleOperation              // operation = 1 {ready = 2, status = 3, issues = 4}
	styleBare                   // the answer is such an operation
)

// methods is methodTable by path.
var methods = func() map[string]*Method {
	m := make(map[string]*Method, len(methodTable))
	for i := range methodTable {
		one := &methodTable[i]
		m[one.Path] = one
		one.lost.Body, one.lost.Stream = one.lostBody(), one.streams()
		one.kind, one.endless = kindOfPath(one.Path), one.lasts()
		one.waits = one.Path == tableService+"BulkUpsert" // retries for minutes on an overloaded shard
		one.locating = locatings[one.Path]
		one.role, one.request, one.answer = one.roleOf(), one.requestFields(), one.answerFields()
	}
	return m
}()

// streams reports whether the answer is rows in as many messages as it takes, of which any may carry
// a status. Those of Topic and Coordination streams are another thing: their clients connect anew.
func (m *Method) streams() bool {
	switch m.Path {
	case queryService + "ExecuteQuery", tableService + "StreamExecuteScanQuery", tableService + "StreamReadTable":
		return true
	}
	return false
}

// lostBody is YDB's status for a call whose node was lost: a gRPC error would have SDKs
// drop the endpoint, which is the sidecar, and all that they have under way there.
func (m *Method) lostBody() []byte {
	if m.Kind == cluster.CallOpen { // a session that nobody knows of ends by itself
		return m.refusal(Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: the connection to the node was lost; no session was opened")
	}
	if m.roleOf() == roleDelete { // so does this one
		return m.refusal(Ydb.StatusIds_SUCCESS, "ydb-sidecar: the connection to the node was lost")
	}
	return m.refusal(Ydb.StatusIds_UNDETERMINED, "ydb-sidecar: the connection to the node was lost; the call may have been executed")
}

// methodOf returns YDB's RPC of that path, or nil.
func methodOf(path []byte) *Method { return methods[string(path)] }

const listEndpoints = "/Ydb.Discovery.V1.DiscoveryService/ListEndpoints"

// Name returns the method's name without its service.
func (m *Method) Name() string {
	for i := len(m.Path) - 1; ; i-- {
		if m.Path[i] == '/' {
			return m.Path[i+1:]
		}
	}
}
