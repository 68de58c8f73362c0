package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Face is one caller of a sidecar, over a connection of its own. Each of the
// three kinds does the same on the same tables.
type Face interface {
	// Query runs a statement and returns its rows as texts. Parameters are uint64 and string.
	Query(ctx context.Context, sql string, params map[string]any) ([][]string, error)
	// Stream runs a statement and hands on the number of rows of each part as it comes.
	Stream(ctx context.Context, sql string, part func(rows int)) error
	Close()
}

// The kinds of faces.
const (
	FaceGRPC = "gRPC"
	FaceHTTP = "HTTP"
	FaceWire = "wire" // YDB's own protocol
)

// FaceKinds is all kinds of faces.
var FaceKinds = []string{FaceGRPC, FaceHTTP, FaceWire}

// DialFace makes a caller of a sidecar. One over wire keeps up to the given
// number of sessions; with 0 it makes one for every call.
func DialFace(kind string, s *lab.Sidecar, sessions int) (Face, error) {
	if kind == FaceHTTP {
		return plainFace{contract.OverHTTP("http://" + s.HTTP)}, nil
	}
	// Small buffers: there may be thousands of clients in this process.
	conn, err := grpc.NewClient(
		"passthrough:///"+s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
	)
	if err != nil {
		return nil, fmt.Errorf("dial the sidecar: %w", err)
	}
	if kind == FaceGRPC {
		return plainFace{contract.OverGRPC(conn)}, nil
	}
	return &WireFace{conn, Ydb_Query_V1.NewQueryServiceClient(conn), make(chan *WireSession, sessions)}, nil
}

// Refusal is a call that failed, in words that a report can count.
type Refusal struct {
	Code string // stable
	Fair bool   // a caller may meet it while something is broken: nothing was kept, or it says that the outcome is unknown
	Open bool   // it may have been kept
	Text string
}

// Error returns the code and the text.
func (r *Refusal) Error() string { return r.Code + ": " + r.Text }

// AsRefusal reads an error of any face, or of a call of the plain API over gRPC.
func AsRefusal(err error) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	if e, ok := errors.AsType[*contract.Error](err); ok && e.Code != "" {
		return told(e.Code, e.Message, e.Safe, e.Unknown)
	}
	if errors.Is(err, contract.ErrCut) {
		return &Refusal{Code: "CUT", Text: err.Error()}
	}
	for _, detail := range status.Convert(err).Details() {
		if e, ok := detail.(*sidecarv1.Error); ok {
			return told(e.Code, e.Message, e.SafeToRetry, e.OutcomeUnknown)
		}
	}
	return &Refusal{Code: "NO_ANSWER", Open: true, Text: err.Error()}
}

// told is a refusal in the words of the plain API.
func told(code, text string, safe, unknown bool) *Refusal {
	return &Refusal{code, safe || unknown || code == "DEADLINE_EXCEEDED", unknown || !safe, text}
}

// Within is the time that a call of the plain API gets: less than its caller
// waits, so that the sidecar's own words about a timeout are heard.
func Within(ctx context.Context) string {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ""
	}
	return max(time.Millisecond, time.Until(deadline)*8/10).Round(time.Millisecond).String()
}

// plainFace is the plain API.
type plainFace struct{ contract.Client }

// Query sends a statement and returns the rows of its answer as texts.
func (f plainFace) Query(ctx context.Context, sql string, params map[string]any) ([][]string, error) {
	answer, err := f.Execute(ctx, contract.Statement{SQL: sql, Params: params, Timeout: Within(ctx)})
	if err != nil {
		return nil, err
	}
	out := make([][]string, len(answer.Rows))
	for i, row := range answer.Rows {
		for _, v := range row {
			out[i] = append(out[i], fmt.Sprint(v))
		}
	}
	return out, nil
}

// Stream sends a statement and calls part for each part of its answer.
func (f plainFace) Stream(ctx context.Context, sql string, part func(rows int)) error {
	return f.Each(ctx, contract.Statement{SQL: sql, Timeout: Within(ctx)}, part)
}

// WireFace speaks YDB's own protocol, as an SDK does: a session is made, kept
// attached by a stream, and deleted.
type WireFace struct {
	Conn     *grpc.ClientConn
	Client   Ydb_Query_V1.QueryServiceClient
	Sessions chan *WireSession // sessions that are not in use
}

// WireSession is a session as an SDK has it.
type WireSession struct {
	id     string
	detach context.CancelFunc
}

// Close ends the sessions and closes the connection.
func (f *WireFace) Close() {
	for {
		select {
		case s := <-f.Sessions:
			s.detach() // which ends it
		default:
			_ = f.Conn.Close() // nothing is in flight
			return
		}
	}
}

// transient are the statuses that a client of YDB repeats a call for; whether the call was kept then, open says.
var transient = map[Ydb.StatusIds_StatusCode]struct{ open bool }{
	Ydb.StatusIds_ABORTED: {}, Ydb.StatusIds_UNAVAILABLE: {}, Ydb.StatusIds_OVERLOADED: {},
	Ydb.StatusIds_BAD_SESSION: {}, Ydb.StatusIds_SESSION_EXPIRED: {}, Ydb.StatusIds_SESSION_BUSY: {},
	Ydb.StatusIds_UNDETERMINED: {true}, Ydb.StatusIds_TIMEOUT: {true}, Ydb.StatusIds_CANCELLED: {true},
}

// Answered makes an error of what a call over wire said.
func Answered(err error, status Ydb.StatusIds_StatusCode, issues any) error {
	if err != nil {
		return wireRefusal(err)
	}
	if status == Ydb.StatusIds_SUCCESS {
		return nil
	}
	kind, fair := transient[status]
	return &Refusal{"YDB_" + status.String(), fair, kind.open || !fair, fmt.Sprint(issues)}
}

// wireRefusal reads an error of transport, which is all that this protocol has for a lost node.
func wireRefusal(err error) error {
	code := status.Code(err)
	return &Refusal{"GRPC_" + strings.ToUpper(code.String()),
		code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.ResourceExhausted, true,
		err.Error()}
}

// take returns a session that is not in use, or a new one.
func (f *WireFace) take(ctx context.Context) (*WireSession, error) {
	select {
	case s := <-f.Sessions:
		return s, nil
	default:
	}
	made, err := f.Client.CreateSession(WithDatabase(ctx), &Ydb_Query.CreateSessionRequest{})
	if err := Answered(err, made.GetStatus(), made.GetIssues()); err != nil {
		return nil, err
	}
	attach, detach := context.WithCancel(WithDatabase(context.WithoutCancel(ctx)))
	// The stream outlives the call, but what the call may take also bounds the wait for the first word.
	stop := context.AfterFunc(ctx, detach)
	states, err := f.Client.AttachSession(attach, &Ydb_Query.AttachSessionRequest{SessionId: made.SessionId})
	var state *Ydb_Query.SessionState
	if err == nil {
		state, err = states.Recv()
	}
	if err := Answered(err, state.GetStatus(), state.GetIssues()); err != nil || !stop() {
		detach()
		if ctx.Err() != nil { // the stream was ended for that
			err = wireRefusal(status.FromContextError(ctx.Err()).Err())
		}
		return nil, err
	}
	return &WireSession{made.SessionId, detach}, nil
}

// give takes a session back that served a call with the given end. One that
// failed is not used again.
func (f *WireFace) give(ctx context.Context, s *WireSession, end error) error {
	if end == nil {
		select {
		case f.Sessions <- s:
			return nil
		default:
		}
		deleted, err := f.Client.DeleteSession(WithDatabase(ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id})
		end = Answered(err, deleted.GetStatus(), deleted.GetIssues())
	}
	s.detach() // which ends it
	return end
}

// Query sends a statement and returns the rows of its answer as texts.
func (f *WireFace) Query(ctx context.Context, sql string, params map[string]any) (out [][]string, err error) {
	err = f.execute(ctx, sql, params, func(set *Ydb.ResultSet) {
		for _, row := range set.GetRows() {
			var texts []string
			for _, v := range row.GetItems() {
				for v.GetNestedValue() != nil {
					v = v.GetNestedValue()
				}
				switch k := v.GetValue().(type) {
				case *Ydb.Value_Uint64Value:
					texts = append(texts, fmt.Sprint(k.Uint64Value))
				case *Ydb.Value_TextValue:
					texts = append(texts, k.TextValue)
				default:
					texts = append(texts, "")
				}
			}
			out = append(out, texts)
		}
	})
	return out, err
}

// Stream sends a statement and calls part for each part of its answer.
func (f *WireFace) Stream(ctx context.Context, sql string, part func(rows int)) error {
	return f.execute(ctx, sql, nil, func(set *Ydb.ResultSet) {
		if n := len(set.GetRows()); n > 0 {
			part(n)
		}
	})
}

func (f *WireFace) execute(ctx context.Context, sql string, params map[string]any, each func(*Ydb.ResultSet)) error {
	s, err := f.take(ctx)
	if err != nil {
		return err
	}
	return f.give(ctx, s, f.run(ctx, s, sql, params, each))
}

func (f *WireFace) run(ctx context.Context, s *WireSession, sql string, params map[string]any, each func(*Ydb.ResultSet)) error {
	request := &Ydb_Query.ExecuteQueryRequest{SessionId: s.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Parameters: map[string]*Ydb.TypedValue{},
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: sql},
		}}
	for name, v := range params {
		switch v := v.(type) {
		case uint64:
			request.Parameters["$"+name] = &Ydb.TypedValue{
				Type:  &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}},
				Value: &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: v}},
			}
		case string:
			request.Parameters["$"+name] = &Ydb.TypedValue{
				Type:  &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}},
				Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: v}},
			}
		}
	}
	// Whatever ends this, the call ends as well.
	ctx, cancel := context.WithCancel(WithDatabase(ctx))
	defer cancel()
	parts, err := f.Client.ExecuteQuery(ctx, request)
	if err != nil {
		return wireRefusal(err)
	}
	for {
		part, err := parts.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err := Answered(err, part.GetStatus(), part.GetIssues()); err != nil {
			return err
		}
		each(part.GetResultSet())
	}
}

// VerifiedRead reads a row of the table bench and looks at all of it.
func VerifiedRead(ctx context.Context, f Face) error {
	id := RandomID()
	got, err := f.Query(ctx, Read, map[string]any{"id": id})
	if err != nil {
		return err
	}
	if want := [][]string{{fmt.Sprint(id), strings.Repeat("x", 100)}}; !slices.EqualFunc(got, want, slices.Equal) {
		return &Refusal{Code: "WRONG", Text: fmt.Sprintf("read %.200v; want %.200v", got, want)}
	}
	return nil
}
