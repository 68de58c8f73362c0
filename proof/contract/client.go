// Package contract is the meaning of the plain API as a table of cases that runs
// as both APIs, against any sidecar that is given by its addresses. For
// the tests of facade, and for checks against running programs.
//
// A case is written once, in terms of Client; a face that answers otherwise than
// the other one fails it. The cases make tables of their own names and need
// nothing but the right to create tables.
package contract

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Typed is a parameter with its type.
type Typed struct {
	Type  string
	Value any
}

// Statement is one statement. Parameters are nil, bool, integers, float64, string,
// []byte, []any, map[string]any (a Struct), and Typed.
type Statement struct {
	SQL    string
	Params map[string]any
	Types  map[string]string

	Mode       string
	Tx         *TxSelector
	Idempotent bool
	Timeout    string
	Rows       uint64 // limit
	Bytes      uint64 // limit
	Stats      string
	Priority   string
	Expect     *uint64 // rows, in a Transaction
}

// TxSelector says to which transaction a statement belongs.
type TxSelector struct {
	Begin  bool
	Mode   string // of Begin
	ID     string
	Seq    uint64
	Commit bool
}

// Set is one result set. Values are nil, bool, string (every number, text and
// date), []any, and map[string]any (a Struct): the same over both APIs.
type Set struct {
	Columns   []Column
	Rows      [][]any
	Truncated bool
}

// Column is a column of a result.
type Column struct{ Name, Type string }

// Tx is an open transaction.
type Tx struct {
	ID      string
	Expires time.Duration
}

// Info says where the time of a call went, and what it cost.
type Info struct {
	Node     uint32
	Attempts uint32
	TraceID  string
	Timing   string  // Server-Timing
	Units    *uint64 // request units; nil: no node reported any
}

// Reply is the reply to a statement.
type Reply struct {
	Set               // the first one
	Sets     []Set    // all, when there is more than one
	Tx       *Tx      // nil: none is open
	Info     Info     //
	Stats    bool     // there were statistics
	Affected *uint64  // rows written or deleted; nil: not told
	ReadRows uint64   // by the statistics
	EndRows  uint64   // of a stream, by its end
	Lines    []string // kinds of parts of a stream, in order
	Error    *Error   // of one statement of a Batch
}

// Open is what GetTransaction says.
type Open struct {
	Tx   Tx
	Seq  uint64
	Mode string
	Node uint32
}

// Table is what Describe says.
type Table struct {
	Path       string
	Columns    []TableColumn
	PrimaryKey []string
	Indexes    []string
}

// TableColumn is a column of a table.
type TableColumn struct {
	Name, Type string
	NotNull    bool
}

// Status is what Status says.
type Status struct {
	State    string
	Database string
	Open     uint32 // transactions
}

// Transaction is a Transact.
type Transaction struct {
	Statements []Statement
	Mode       string
	Tx         *TxSelector // its Tx, if it stays open, is that of every reply
	Idempotent bool
	Timeout    string
	Rows       uint64
}

// Bulk is a BulkUpsert.
type Bulk struct {
	Table string
	Rows  []map[string]any
	Types map[string]string
}

// IngestOpen opens a stream of rows.
type IngestOpen struct {
	Table  string
	Offset uint64
	Stream string
}

// IngestStream is an open stream of rows. One goroutine sends, another may read.
type IngestStream interface {
	Send(columns []string, rows ...[]any) error
	CloseSend() error
	// Next reads what became of rows; io.EOF comes after IngestEnd.
	Next() (IngestPart, error)
	// Close leaves without a word.
	Close()
}

// IngestPart is an acknowledgement, a refused row or the end.
type IngestPart struct {
	Next    uint64 // of an acknowledgement
	Offset  uint64 // of Refused
	Refused *Error
	End     *IngestEnd
}

// IngestEnd is the end of a stream that ended well.
type IngestEnd struct{ Next, Rows, Refused uint64 }

// Error is a refusal, as either API sends it.
type Error struct {
	Code       string
	Status     int // of HTTP, which gRPC tells too
	Message    string
	YDB        string
	Issues     int
	Safe       bool
	Unknown    bool
	RetryAfter time.Duration
	Hint       string
	Operator   string // the hint for whoever runs the sidecar
	TraceID    string
	Transport  string // the gRPC code, or the HTTP status
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s (%s, ydb %q, safe %v, unknown %v): %s", e.Code, e.Transport, e.YDB, e.Safe, e.Unknown, e.Message)
}

// ErrCut is the error of a stream that stops without its end, and without an error.
var ErrCut = errors.New("the stream stopped without its end")

// Client is one face of the API.
type Client interface {
	Name() string
	Execute(ctx context.Context, s Statement) (*Reply, error)
	// Stream gathers a streamed reply; with an error, what came before it as well.
	Stream(ctx context.Context, s Statement) (*Reply, error)
	// Each streams a reply and hands on the number of rows of each part as it comes.
	Each(ctx context.Context, s Statement, part func(rows int)) error
	Transact(ctx context.Context, t Transaction) ([]*Reply, error)
	Begin(ctx context.Context, mode string) (*Tx, error)
	Commit(ctx context.Context, id string) error
	Rollback(ctx context.Context, id string) error
	GetTransaction(ctx context.Context, id string) (*Open, error)
	Batch(ctx context.Context, list []Statement) ([]*Reply, error)
	BulkUpsert(ctx context.Context, b Bulk) (uint64, error)
	Ingest(ctx context.Context, o IngestOpen) (IngestStream, error)
	Explain(ctx context.Context, sql string, types map[string]string) (plan string, err error)
	Describe(ctx context.Context, path string) (*Table, error)
	Status(ctx context.Context) (*Status, error)
	// Version returns the version of the API and the names of the features.
	Version(ctx context.Context) (api string, features []string, err error)
	kvClient
	Close()
}
