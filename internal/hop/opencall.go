package hop

import "github.com/ydb-sidecar/sidecar/internal/cluster"

// OpenCall is one call under way, as operators see it.
type OpenCall struct {
	ID      string         `json:"call"` // names the call in this process
	API     string         `json:"api"`  // http, grpc, or ydb: YDB's own protocol
	Name    string         `json:"name"`
	App     string         `json:"app,omitempty"`
	Class   string         `json:"class,omitempty"`
	Mode    string         `json:"mode,omitempty"` // of all transactions of a call of the plain API
	Phase   string         `json:"phase"`          // see Phase
	Age     int64          `json:"age_ms"`
	Node    cluster.NodeID `json:"node_id,omitempty"` // of the current attempt, or the last one
	Attempt int            `json:"attempt,omitempty"`
	Digest  string         `json:"digest,omitempty"`   // of the statement, without its literals; never its text
	Trace   string         `json:"trace_id,omitempty"` // with which errors and spans of the call come
	From    string         `json:"from,omitempty"`     // address of the client, or the number of its connection
}

// Phase is how far a call has come.
type Phase uint8

// The phases.
const (
	InSidecar Phase = iota // its request is coming or is read, or it waits for something in the sidecar
	InQueue                // it waits for a session of a pool
	Paused                 // it waits because an operator has paused calls
	AtNode                 // a node has it, and nothing of the answer is here
	Answering              // the answer is coming, or goes to the caller
	InBackoff              // it waits before the next attempt
)

// String returns the phase in the words of GET /state/calls.
func (p Phase) String() string {
	return [...]string{"sidecar", "queue", "paused", "node", "answer", "backoff"}[p]
}
