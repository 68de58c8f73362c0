package h2

import (
	"errors"
	"fmt"
)

// Router decides about calls. If Route or Answer panics the call fails with INTERNAL, and Done is
// called; if Done panics the client has its answer. Its methods are called from within the Forwarder's
// and must not block; they may use the call until they return, and remember it
// (Call.Ticket) only to resume it.
type Router interface {
	// Route says on which connection, made by Connect, a call goes on. ErrNeedMessage: it
	// is asked again when more of the first message is here, ErrNeedWhole: when all of it
	// is, whatever its length. ErrPark: it is asked again after Resume. ErrMine: the router
	// answers the call itself, by Forwarder.End, however long that takes. Any other error ends the call: a *Status as it is. It is
	// also asked again when the connection it named had no room or went away before
	// the call was sent on it. Changes made to the call count for this answer only.
	Route(*Call) (*Conn, error)
	// Answer is called for each block of headers and trailers of an answer that holds
	// one of Config.Names.
	Answer(*Call)
	// Done is called when a call that Route has seen is over.
	Done(*Call, *Outcome)
}

// Latecomer is what a Router may be besides: Late says what a call is told that has
// waited for Config.HoldTimeout, in place of DEADLINE_EXCEEDED.
type Latecomer interface{ Late(*Call) error }

// Observer is shown the bodies of a call, in order and once: what comes from the client as
// it came, before any splice (but see Call.Replace), and what comes from the node. What Call.Check judges it is
// shown first. An error ends the call like one of Route.
type Observer interface {
	Observe(client bool, p []byte) error
}

// What Route may answer besides a connection.
var (
	ErrNeedMessage = errors.New("h2: the first message is needed")
	ErrNeedWhole   = errors.New("h2: the whole first message is needed")
	ErrPark        = errors.New("h2: the call is to wait")
	ErrMine        = errors.New("h2: the router answers the call")
)

// Status is an answer that the client gets as it is, normally an error.
type Status struct {
	Code    int // of gRPC
	Message string
	// a message that goes before the code, then normally 0. If part of the node's answer has gone
	// out there is no place for it, and code 0 becomes UNAVAILABLE
	Body   []byte
	Stream bool // the answer is a stream of messages: Body has a place behind any of them
	Open   bool // the call stays open after Body, until the client, its deadline or Forwarder.End ends it

	// Names, in lower case, and values in turn, of what HTTP/2 lets be said before the
	// body, unless something was said already, and behind the code.
	Header, Trailer []string
}

func (s *Status) Error() string { return fmt.Sprintf("code %d: %s", s.Code, s.Message) }

// Codes of gRPC that are made here, or looked for.
const (
	canceled          = 1
	deadlineExceeded  = 4
	permissionDenied  = 7
	resourceExhausted = 8
	internal          = 13
	unavailable       = 14
)

// Abuse is something that peers do only by fault or ill will.
type Abuse uint8

// Each has a counter in Stats.Abuses.
const (
	RapidReset        Abuse = iota // streams opened and reset: the connection ends; or many at nodes: the call is refused
	ControlFlood                   // PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA without end: the connection ends
	ContinuationFlood              // a header block that does not end: the connection ends
	HeaderBytes                    // a header block that is too large, decoded: the call ends
	StreamLimit                    // more streams than allowed: the stream is refused
	WindowOverrun                  // more bytes than the window allows: the stream or connection ends
	SlowHandshake                  // no preface, SETTINGS or end of a header block in time: the connection ends
	Stalled                        // takes no bytes: the connection ends
	SlowReader                     // leaves more bytes waiting than there is memory for: the call ends
	// stops in the middle of a message that is held until it is whole: the call ends; or of a
	// frame or header block, while much of these is here: the connection ends
	SlowSender
	numAbuses
)

// String returns the name used as a metric's label.
func (a Abuse) String() string {
	return [...]string{"rapid_reset", "control_flood", "continuation_flood", "header_bytes", "stream_limit", "window_overrun",
		"slow_handshake", "stalled", "slow_reader", "slow_sender"}[a]
}

// Stats counts since the start, except Buffered, Answers, Held, Clients and Nodes, which are gauges.
//
// Wide: it is a flat list of counts.
type Stats struct {
	Calls, Forwarded uint64
	Ends             [numEnds]uint64 // of calls, by End
	Resets, GoAways  uint64          // frames received
	ClientIn, NodeIn uint64          // bytes received, and
	ClientOut        uint64          // bytes written, of whole frames
	NodeOut          uint64
	Accepted         uint64 // connections of clients
	Crowded          uint64 // refused because of Config.Connections, which the driver sees to
	Abuses           [numAbuses]uint64
	Buffered         int // bytes waiting in calls
	Answers          int // buffered bytes that wait for clients to read
	Held             int // calls waiting here
	Kept             int // calls that are over for their clients and open at nodes, see Release
	Clients, Nodes   int // connections
}
