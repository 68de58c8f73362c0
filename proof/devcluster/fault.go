package devcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Delay makes calls slow.
type Delay struct {
	Delay   time.Duration
	Share   float64  // of the calls, 0 to 1
	Methods []string // names like ExecuteQuery, or full ones; none means all
	From    Callers
}

// Callers says whose calls a fault concerns.
type Callers string

// The callers.
const (
	Anybody Callers = ""
	Clients Callers = "clients" // not the other nodes: the network between clients and the node is far
)

// Hop is what the network between this node and others takes.
type Hop struct {
	Delay time.Duration // of each call that it forwards to a node of another data centre
	Near  time.Duration // of one to a node of its own
}

// Errors makes calls fail.
type Errors struct {
	Status  string   // name of a YDB status; "grpc:" and a name of a gRPC code fails the transport
	Share   float64  // of the calls, 0 to 1
	Methods []string // names like ExecuteQuery, or full ones; none means all
	After   bool     // run the call and replace its answer: the outcome is unknown to the client
}

// faults are what a node does wrong on purpose. A set is immutable.
type faults struct {
	delay  Delay
	errors Errors
	answer error // of errors, parsed
	cut    float64
	hop    *Hop // nil: Config.HopDelay
}

func hit(share float64) bool { return share > 0 && (share >= 1 || rand.Float64() < share) }

func matches(methods []string, m *method) bool {
	return len(methods) == 0 || slices.Contains(methods, m.short) ||
		slices.ContainsFunc(methods, func(name string) bool { return "/"+strings.TrimPrefix(name, "/") == m.name })
}

// parse turns the status into the error that a call ends with.
func (e Errors) parse() (error, error) {
	if name, ok := strings.CutPrefix(e.Status, "grpc:"); ok {
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(`"` + strings.ToUpper(name) + `"`)); err != nil || code == codes.OK {
			return nil, fmt.Errorf("status = %q; no such gRPC code", e.Status)
		}
		return &transportError{status.Error(code, "asked for by the control API")}, nil
	}
	code, ok := Ydb.StatusIds_StatusCode_value[strings.ToUpper(e.Status)]
	if !ok || code == int32(Ydb.StatusIds_SUCCESS) {
		return nil, fmt.Errorf("status = %q; no such YDB status", e.Status)
	}
	return fail(Ydb.StatusIds_StatusCode(code), "asked for by the control API"), nil
}

// script is what faults do to the answers of one call.
type script struct {
	answer error // instead of the answers of a call that went well
	cut    bool  // reset the connection instead of (the rest of) the answers
	sent   int
}

// play does what the node's faults say about this call before it runs, and
// writes the script of its answers.
func (c *call) play(request proto.Message) error {
	f := c.faults.Load()
	if f == nil {
		return nil
	}
	if hit(f.delay.Share) && matches(f.delay.Methods, c.method) && !(c.from && f.delay.From == Clients) {
		if err := c.pause(f.delay.Delay); err != nil {
			return err
		}
	}
	if f.answer != nil && hit(f.errors.Share) && matches(f.errors.Methods, c.method) {
		if !f.errors.After {
			c.spoil(request, f.answer)
			return f.answer
		}
		c.script.answer = f.answer
	}
	c.script.cut = hit(f.cut)
	return nil
}

// next says whether the next message of the answer is sent. The first part of a
// stream passes before the connection is cut.
func (s *script) next(c *call) (bool, error) {
	s.sent++
	switch {
	case s.cut && (s.sent > 1 || !c.method.serverStream):
		return false, c.cutConnection()
	case s.answer != nil:
		return false, nil
	}
	return true, nil
}

// last is the last word after a call that went well.
func (s *script) last(c *call) error {
	if s.cut {
		return c.cutConnection()
	}
	return s.answer
}

// cutConnection resets the connection that the call came on.
func (c *call) cutConnection() error {
	c.publicListener().cut(c.remote())
	return &transportError{status.Error(codes.Unavailable, "connection cut")}
}

// spoil ends the transaction of a request that gets an error instead of being run.
func (c *call) spoil(request proto.Message, answer error) {
	id := sessionOf(request)
	if id == "" {
		return
	}
	s, err := c.sessions.find(id)
	if err != nil {
		return // not ours, or nothing to end
	}
	if _, err := s.enter(c.ctx); err != nil {
		return // the call would have been answered SESSION_BUSY
	}
	defer func() {
		if e, ok := errors.AsType[*statusError](answer); ok && e.status == Ydb.StatusIds_TIMEOUT {
			s.leaveAfter(c.config.Cleanup) // the server answers before the session is ready for another call
			return
		}
		s.leave()
	}()
	if tx := s.forget(transactionOf(request)); tx != nil {
		tx.Rollback()
	}
	switch request.(type) {
	// these calls run beside the one inside
	case *Ydb_Query.AttachSessionRequest, *Ydb_Query.DeleteSessionRequest, *Ydb_Table.DeleteSessionRequest, *Ydb_Table.KeepAliveRequest:
	default:
		c.inside = s
	}
}
