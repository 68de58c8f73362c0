// Package engine is the database behind the nodes of the development cluster: a
// subset of YQL, typed values in their exact wire form, and transactions as YDB
// has them (optimistic, by key).
//
// It owns the text of statements (parsing, types, compiled plans), the schema
// and the rows. It knows no sessions, no nodes and no gRPC services: a node
// opens one DB (or shares it with the other nodes of its process) and asks.
//
// What always holds:
//   - An open transaction holds no lock and no SQLite transaction: it is a
//     version number, the keys and ranges it read, and its own writes.
//   - A transaction reads one snapshot plus its own writes. Commit checks in one
//     short write section that nothing it read has changed since, and applies all
//     of it or answers ABORTED. Conflicts live in the database, so they work as
//     well between processes that share a file.
//   - Every error that leaves the package is an *Error with a YDB status and
//     issues; nothing panics on input.
//   - Texts, nesting, materialised rows and parts of results are bounded.
package engine

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
)

// Mode says what a transaction sees and may do.
type Mode uint8

// The modes of transactions.
const (
	Serializable Mode = iota // one snapshot; what was read is checked at commit
	SnapshotRO               // one snapshot, no writes
	SnapshotRW               // one snapshot; only what was written is checked at commit
	StaleRO                  // as SnapshotRO: there is one replica
	OnlineRO                 // a fresh snapshot for every Execute, no writes
)

// ReadOnly says whether a transaction of this mode refuses writes.
func (m Mode) ReadOnly() bool { return m == SnapshotRO || m == StaleRO || m == OnlineRO }

func (m Mode) String() string {
	return [...]string{"serializable_rw", "snapshot_ro", "snapshot_rw", "stale_ro", "online_ro"}[m%5]
}

// Request is one text to execute, with its parameters.
type Request struct {
	Text     string
	Params   map[string]*Ydb.TypedValue // by name with the leading '$'
	Inferred bool                       // query service: a parameter need not be DECLAREd
	Database string                     // relative names are resolved against it, "/local"
	Explain  bool                       // compile only; Stats carry plan and AST
	Plan     bool                       // execute, and let Stats carry plan and AST as well

	Warn func([]*Ydb_Issue.IssueMessage) // gets what is to be said of the text, before its first part; nil for nothing

	// Touch hears, before the first step of a text with tables, which ones it names and
	// which of them it puts rows into; its error ends the execution. nil for nothing.
	Touch func(named, filled []string) error

	Cache *PlanCache // compiled texts; nil uses the DB's own

	PartRows  int // rows of one part; 0 means 1000
	PartBytes int // about the bytes of one part; 0 means 1 MiB
	MaxRows   int // rows of one result set, then it ends with truncated = true; 0 means all
}

// Emit takes one part of result set number set (from 0, never decreasing). The
// part belongs to the callee. The first part of a set comes also when the set has
// no rows. Every part carries the columns. An error of Emit ends the execution.
type Emit func(set int, rs *Ydb.ResultSet) error
