package wire

import "github.com/ydb-sidecar/sidecar/internal/cluster"

//go:generate go run ./gen

// Method is one RPC of YDB.
type Method struct {
	Path    string           // "/service/method"
	Kind    cluster.CallKind // what its failure says of a node
	session []int            // numbers of the fields that lead to the session's id in the first message; none: it is bound to no session
	style   style            // of its answers
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
		m[methodTable[i].Path] = &methodTable[i]
	}
	return m
}()

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
