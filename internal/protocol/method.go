package protocol

import "github.com/ydb-sidecar/sidecar/internal/cluster"

//go:generate go run ./gen

// Method is one RPC of YDB. A row of the table, which nothing changes.
type Method struct {
	Path      string           // "/service/method"
	Row       int              // its number in the table, from 0
	Kind      cluster.CallKind // what its failure says of a node
	Session   []int            // numbers of the fields that lead to the session's id in the first message; none: it is bound to no session
	Style     Style            // of its answers
	Role      Role             // with sessions
	Many      bool             // the request is any number of messages, else one
	Endless   bool             // a call lasts for as long as its client likes: its time says nothing
	Rows      bool             // the answer is rows in as many messages as it takes, of which any may carry a status
	Waits     bool             // see cluster.Outcome
	Work      uint64           // a number for its kind of work, the same in every process
	Request   *Fields          // what a scan of a request looks for
	Answer    *Fields          // of an answer
	Locations *Locations       // where its answers name nodes; nil: they name none
}

// Role is what a method does with sessions.
type Role uint8

// The roles.
const (
	RoleNone     Role = iota // it is bound to no session
	RoleCreate               // makes one
	RoleAttach               // its stream lasts as long as the session
	RoleDelete               // ends one
	RoleKeep                 // KeepAlive
	RoleUse                  // works on one
	RoleBegin                // works on one, and begins a transaction
	RoleEnd                  // works on one, and ends a transaction
	RoleImplicit             // works on one; it may name none
	RoleFree                 // names one that servers ignore: it is bound to none
)

// Services, for paths.
const (
	QueryService = "/Ydb.Query.V1.QueryService/"
	TableService = "/Ydb.Table.V1.TableService/"
	TopicService = "/Ydb.Topic.V1.TopicService/"
)

// Style tells where an answer holds YDB's status.
type Style uint8

// The styles.
const (
	StyleNone      Style = iota // it has none
	StylePlain                  // status = 1, issues = 2
	StyleOperation              // operation = 1 {ready = 2, status = 3, issues = 4}
	StyleBare                   // the answer is such an operation
)

var byPath = func() map[string]*Method {
	all := make(map[string]*Method, len(table))
	for i := range table {
		all[table[i].Path] = &table[i]
	}
	return all
}()

// Find returns YDB's RPC of that path, or nil.
func Find(path []byte) *Method { return byPath[string(path)] }

// Named is Find for a path that there is.
func Named(path string) *Method {
	m := byPath[path]
	if m == nil {
		panic("protocol: no method " + path)
	}
	return m
}

// Methods is how many there are.
const Methods = len(table)

// All returns the methods by row.
func All() []*Method {
	all := make([]*Method, len(table))
	for i := range table {
		all[i] = &table[i]
	}
	return all
}

// Name returns the method's name without its service.
func (m *Method) Name() string {
	for i := len(m.Path) - 1; ; i-- {
		if m.Path[i] == '/' {
			return m.Path[i+1:]
		}
	}
}

// NeedsOpen reports whether a call is about something that is open already, and ends it or keeps it.
func (m *Method) NeedsOpen() bool {
	return m.Role == RoleEnd || m.Role == RoleDelete || m.Role == RoleKeep
}

// MayNameTx reports whether requests of the method can name a transaction.
func (m *Method) MayNameTx() bool {
	for _, w := range m.Request.all {
		if w.what == wantTx || w.what == wantMessage && w.in.all[0].what == wantTx {
			return true
		}
	}
	return false
}

// NamesTx reports whether a request names a transaction, as far as it is here.
func (m *Method) NamesTx(message []byte) bool {
	for _, w := range m.Request.all {
		switch {
		case w.what == wantTx:
			_, _, to := Field(message, int(w.number))
			return to > 0
		case w.what == wantMessage && w.in.all[0].what == wantTx:
			inner, _, _ := Field(message, int(w.number))
			_, _, to := Field(inner, 1)
			return to > 0
		}
	}
	return false
}
