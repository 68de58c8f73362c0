package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// failure is a call that did not succeed, in the sidecar's words.
type failure struct {
	code    string
	safe    bool // safe_to_retry
	unknown bool // outcome_unknown
	text    string
}

func (f *failure) Error() string { return f.code + ": " + f.text }

// The codes of calls that the sidecar did not answer.
const (
	absent   = "ABSENT"    // nobody listens: surely not sent
	unread   = "UNREAD"    // a connection at rest was closed before anything of the request was read; the ledger shows whether that is true
	noAnswer = "NO_ANSWER" // cut off in the middle
	hung     = "HUNG"      // no answer long after the deadline
)

// class says in one word what a caller may conclude.
func (f *failure) class() string {
	switch {
	case f.unknown:
		return "unknown"
	case f.safe:
		return "safe"
	default:
		return "final"
	}
}

// statement is one call.
type statement struct {
	sql        string
	params     map[string]any // uint64, int64 and string
	idempotent bool
	timeout    time.Duration
	tx         *step // nil: autocommit
}

// step is a statement of an interactive transaction; the first one begins it.
type step struct {
	id     string
	seq    uint64
	commit bool
}

// rows are texts, whatever their type.
type answer struct {
	rows [][]string
	tx   string
	node uint32 // that ran it
}

// face makes calls over gRPC or HTTP. Errors are *failure.
type face interface {
	execute(ctx context.Context, s statement) (answer, error)
	transact(ctx context.Context, timeout time.Duration, list []statement) error
	// stream reads all rows and returns their number. After each thousand it pauses,
	// but not beyond the deadline, which is then the sidecar's to keep.
	stream(ctx context.Context, s statement, pause time.Duration) (rows int, err error)
	close()
}

// overGRPC is the face of protobuf.
type overGRPC struct {
	conn   *grpc.ClientConn
	client sidecarv1.SidecarClient
}

func (g *overGRPC) close() { _ = g.conn.Close() } // nothing is in flight

func (g *overGRPC) request(s statement) *sidecarv1.ExecuteRequest {
	r := &sidecarv1.ExecuteRequest{Sql: s.sql, Params: protoParams(s.params), Idempotent: s.idempotent, Timeout: s.timeout.String()}
	if s.tx != nil {
		r.Tx = &sidecarv1.TxSelector{Id: s.tx.id, Seq: s.tx.seq, Commit: s.tx.commit}
		if s.tx.id == "" {
			r.Tx.Begin = &sidecarv1.BeginTx{}
		}
	}
	return r
}

func protoParams(params map[string]any) map[string]*sidecarv1.Value {
	out := make(map[string]*sidecarv1.Value, len(params))
	for name, v := range params {
		switch v := v.(type) {
		case uint64:
			out[name] = &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: v}}
		case int64:
			out[name] = &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: v}}
		case string:
			out[name] = &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: v}}
		}
	}
	return out
}

func (g *overGRPC) execute(ctx context.Context, s statement) (answer, error) {
	r, err := g.client.Execute(ctx, g.request(s))
	if err != nil {
		return answer{}, grpcFailure(ctx, err)
	}
	return answer{rows: texts(r.Rows), tx: r.GetTx().GetId(), node: r.GetInfo().GetNodeId()}, nil
}

func texts(rows []*sidecarv1.Row) [][]string {
	out := make([][]string, len(rows))
	for i, row := range rows {
		for _, v := range row.Values {
			switch k := v.Kind.(type) {
			case *sidecarv1.Value_Uint64Value:
				out[i] = append(out[i], fmt.Sprint(k.Uint64Value))
			case *sidecarv1.Value_Int64Value:
				out[i] = append(out[i], fmt.Sprint(k.Int64Value))
			case *sidecarv1.Value_TextValue:
				out[i] = append(out[i], k.TextValue)
			default:
				out[i] = append(out[i], "")
			}
		}
	}
	return out
}

func (g *overGRPC) transact(ctx context.Context, timeout time.Duration, list []statement) error {
	r := &sidecarv1.TransactRequest{Timeout: timeout.String()}
	for _, s := range list {
		r.Statements = append(r.Statements, &sidecarv1.Statement{Sql: s.sql, Params: protoParams(s.params)})
	}
	if _, err := g.client.Transact(ctx, r); err != nil {
		return grpcFailure(ctx, err)
	}
	return nil
}

func (g *overGRPC) stream(ctx context.Context, s statement, pause time.Duration) (int, error) {
	rows, ended, deadline := 0, false, time.Now().Add(s.timeout)
	err := g.parts(ctx, s, func(part *sidecarv1.ExecuteStreamResponse) {
		before := rows / 1000
		rows += len(part.GetRows().GetRows())
		ended = ended || part.GetEnd() != nil
		time.Sleep(min(pause*time.Duration(rows/1000-before), time.Until(deadline)))
	})
	if err == nil && !ended {
		err = &failure{code: noAnswer, text: "the stream stopped without its end"}
	}
	return rows, err
}

// parts hands on every part of a stream.
func (g *overGRPC) parts(ctx context.Context, s statement, each func(*sidecarv1.ExecuteStreamResponse)) error {
	stream, err := g.client.ExecuteStream(ctx, g.request(s))
	if err != nil {
		return grpcFailure(ctx, err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return grpcFailure(ctx, err)
		}
		each(part)
	}
}

// grpcFailure reads what the sidecar said; without its words the connection to it failed.
func grpcFailure(ctx context.Context, err error) error {
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if e, ok := detail.(*sidecarv1.Error); ok {
			return &failure{code: e.Code, safe: e.SafeToRetry, unknown: e.OutcomeUnknown, text: e.Message}
		}
	}
	switch {
	case ctx.Err() != nil:
		return &failure{code: hung, unknown: true, text: s.Message()}
	case strings.Contains(s.Message(), "connection refused"), strings.Contains(s.Message(), "while dialing"),
		// The listener closed before the connection was accepted: gRPC sends no call before the preface.
		strings.Contains(s.Message(), "error reading server preface"), strings.Contains(s.Message(), "failed to write client preface"):
		return &failure{code: absent, safe: true, text: s.Message()}
	default:
		return &failure{code: noAnswer, unknown: true, text: err.Error()}
	}
}

// overHTTP is the face of JSON.
type overHTTP struct {
	base   string
	client *http.Client
}

func dialHTTP(address string) *overHTTP {
	return &overHTTP{"http://" + address, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}}}
}

func (h *overHTTP) close() { h.client.CloseIdleConnections() }

func body(s statement) map[string]any {
	b := map[string]any{"sql": s.sql}
	if len(s.params) > 0 {
		b["params"] = s.params
	}
	return b
}

func request(s statement) map[string]any {
	b := body(s)
	b["timeout"], b["rows"], b["idempotent"] = s.timeout.String(), "arrays", s.idempotent
	if s.tx != nil {
		tx := map[string]any{"seq": s.tx.seq, "commit": s.tx.commit}
		if s.tx.id == "" {
			tx["begin"] = map[string]any{}
		} else {
			tx["id"] = s.tx.id
		}
		b["tx"] = tx
	}
	return b
}

// problem is an error over HTTP.
type problem struct {
	Code           string
	Message        string
	SafeToRetry    bool `json:"safe_to_retry"`
	OutcomeUnknown bool `json:"outcome_unknown"`
}

func (p problem) failure() *failure {
	return &failure{code: p.Code, safe: p.SafeToRetry, unknown: p.OutcomeUnknown, text: p.Message}
}

// post sends a request and returns the answer, which is the caller's to close.
func (h *overHTTP) post(ctx context.Context, path, accept string, what any) (*http.Response, error) {
	data, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.base+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", accept)
	response, err := h.client.Do(r)
	switch {
	case err == nil && response.StatusCode == http.StatusOK:
		return response, nil
	case err == nil:
		defer response.Body.Close()
		var p problem
		if err := json.NewDecoder(response.Body).Decode(&p); err != nil {
			return nil, cutOff(ctx, err)
		}
		return nil, p.failure()
	case errors.Is(err, syscall.ECONNREFUSED), strings.Contains(err.Error(), "connect: connection reset"):
		return nil, &failure{code: absent, safe: true, text: err.Error()}
	case ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || strings.Contains(err.Error(), "server closed idle connection")):
		return nil, &failure{code: unread, safe: true, text: err.Error()}
	default:
		return nil, cutOff(ctx, err)
	}
}

func cutOff(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &failure{code: hung, unknown: true, text: err.Error()}
	}
	return &failure{code: noAnswer, unknown: true, text: err.Error()}
}

func (h *overHTTP) call(ctx context.Context, path string, what, into any) error {
	response, err := h.post(ctx, path, "application/json", what)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		return cutOff(ctx, err)
	}
	_, _ = io.Copy(io.Discard, response.Body) // so that the connection can serve again
	return nil
}

func (h *overHTTP) execute(ctx context.Context, s statement) (answer, error) {
	var r struct {
		Rows [][]any
		Tx   struct{ ID string }
		Info struct {
			Node uint32 `json:"node_id"`
		}
	}
	if err := h.call(ctx, "/v1/query", request(s), &r); err != nil {
		return answer{}, err
	}
	a := answer{tx: r.Tx.ID, node: r.Info.Node}
	for _, row := range r.Rows {
		var out []string
		for _, v := range row {
			out = append(out, fmt.Sprint(v))
		}
		a.rows = append(a.rows, out)
	}
	return a, nil
}

func (h *overHTTP) transact(ctx context.Context, timeout time.Duration, list []statement) error {
	what := map[string]any{"timeout": timeout.String()}
	var statements []any
	for _, s := range list {
		statements = append(statements, body(s))
	}
	what["statements"] = statements
	var r struct{}
	return h.call(ctx, "/v1/tx", what, &r)
}

func (h *overHTTP) stream(ctx context.Context, s statement, pause time.Duration) (int, error) {
	deadline := time.Now().Add(s.timeout)
	response, err := h.post(ctx, "/v1/query", "application/x-ndjson", request(s))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	lines, rows := bufio.NewScanner(response.Body), 0
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Row   json.RawMessage
			End   json.RawMessage
			Error *problem
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return rows, cutOff(ctx, err)
		}
		switch {
		case line.Error != nil:
			return rows, line.Error.failure()
		case line.End != nil:
			return rows, nil
		case line.Row != nil:
			if rows++; rows%1000 == 0 {
				time.Sleep(min(pause, time.Until(deadline)))
			}
		}
	}
	return rows, cutOff(ctx, errors.Join(lines.Err(), errors.New("the lines stopped without an end")))
}
