package facade

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/proof/contract"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// guarded has the driver catch panics, as the driver of the product does.
func guarded(f *facadetest.Driver) *facadetest.Driver {
	f.Safe = true
	return f
}

// A panic ends its call with INTERNAL and an unknown outcome, and nothing else: every place
// that the call held is free again, so that a stop ends at once.
func TestPanicsEndTheirCallsAlone(t *testing.T) {
	logged := logOfPanics()
	before := panics.Stats().Count
	w := facadetest.NewWriter(t)
	w.Answer = func(
		ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		if strings.Contains(req.GetQueryContent().GetText(), "PANIC") {
			panic("broken")
		}
		return facadetest.Echo(ctx, s, req)
	}
	write := w.Bulk
	w.Bulk = func(req *Ydb_Table.BulkUpsertRequest) error {
		for _, row := range req.GetRows().GetValue().GetItems() {
			if row.GetItems()[1].GetTextValue() == "panic" {
				panic("broken")
			}
		}
		return write(req)
	}
	b := start(t, small(), guarded(w.Driver))
	broken := func(t *testing.T, err error) {
		t.Helper()
		refused(t, err, "INTERNAL", false, true)
	}
	b.each(t, func(t *testing.T, c contract.Client) {
		_, err := c.Execute(t.Context(), contract.Statement{SQL: "PANIC"})
		broken(t, err)
		_, err = c.Stream(t.Context(), contract.Statement{SQL: "PANIC"})
		broken(t, err)
		tx, err := c.Begin(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Execute(t.Context(), contract.Statement{SQL: "PANIC", Tx: &contract.TxSelector{ID: tx.ID}})
		refused(t, err, "INTERNAL", false, false) // it is rolled back
		if n := b.s.State().Transactions; n != 0 {
			t.Errorf("%d transactions are open", n)
		}
	})
	t.Run("outside_of_a_session", b.bulkThatPanics)
	t.Run("batch", b.batchThatPanics)
	t.Run("ingest", b.ingestThatPanics)
	if n := panics.Stats().Count - before; n < 8 {
		t.Errorf("%d panics were counted; want one for each at least", n)
	}
	if text := logged(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "TestPanicsEndTheirCallsAlone") {
		t.Errorf("the log has no stack:\n%.2000s", text)
	}
	nothingIsHeld(t, b.s)
}

// A panic outside of a session leaves the outcome unknown in both APIs.
func (b *bench) bulkThatPanics(t *testing.T) {
	value := func(s string) *sidecarv1.Value {
		return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: s}}
	}
	_, err := b.api.BulkUpsert(
		t.Context(),
		&sidecarv1.BulkUpsertRequest{Table: "dir/items",
			Rows: []*sidecarv1.BulkRow{
				{
					Columns: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Int64Value{Int64Value: 1}},
						"name": value("panic")},
				},
			}},
	)
	if status.Code(err) != codes.Internal {
		t.Errorf("gRPC: %v; want Internal", err)
	}
	code, _, body := facadetest.Send(t, "POST", b.base+"/v1/bulk", `{"table":"dir/items","rows":[{"id":1,"name":"panic"}]}`, nil)
	if code != 500 || !strings.Contains(body, `"outcome_unknown":true`) {
		t.Errorf("HTTP: %d %s; want 500 and an unknown outcome", code, body)
	}
}

// A panic of a statement of a list fails that statement alone.
func (b *bench) batchThatPanics(t *testing.T) {
	res, err := b.api.Batch(
		t.Context(),
		&sidecarv1.BatchRequest{Statements: []*sidecarv1.BatchStatement{{Sql: "S"}, {Sql: "PANIC"}, {Sql: "S"}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "INTERNAL", ""} {
		if got := res.Results[i].GetError(); got.GetCode() != want || got.GetOutcomeUnknown() != (want != "") {
			t.Errorf("statement %d: %v; want %q", i, got, want)
		}
	}
}

// A panic while rows are written ends their stream with INTERNAL.
func (b *bench) ingestThatPanics(t *testing.T) {
	s, err := b.grpc.Ingest(t.Context(), contract.IngestOpen{Table: "dir/items"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Send([]string{"id", "name"}, []any{1, "panic"}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Next()
	}
	if e, ok := errors.AsType[*contract.Error](err); !ok || e.Code != "INTERNAL" {
		t.Errorf("the stream ended with %v; want INTERNAL", err)
	}
}

// logOfPanics has panics logged, and returns what reads the log.
func logOfPanics() func() string {
	var logged bytes.Buffer
	var mu sync.Mutex
	panics.LogTo(slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return logged.Write(p)
	}), nil)))
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return logged.String()
	}
}

// nothingIsHeld stops a service, and fails if a call, a transaction or a place of an app is still held.
func nothingIsHeld(t *testing.T, s *Service) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		t.Errorf("Drain = %v; want that nothing is open", err)
	}
	if state := s.State(); state.OpenCalls != 0 || state.Transactions != 0 {
		t.Errorf("%+v after all", state)
	}
	for _, app := range s.core.Deps.Apps.State([4]string{"a", "b", "c", "d"}) {
		if app.Open != 0 {
			t.Errorf("app %s has %d calls open", app.App, app.Open)
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A handler of gRPC outside of the calls of the API has the same protection.
func TestPanicOfAnotherHandler(t *testing.T) {
	s, err := New(small(), core.Deps{Driver: &facadetest.Driver{}, Database: "/local"})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		append(s.ServerOptions(), grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { panic("broken") }))...,
	)
	conn, hangUp := facadetest.OverPipe(t, server)
	defer hangUp()
	for range 2 {
		if err := conn.Invoke(t.Context(), "/some.Service/Method", &sidecarv1.StatusRequest{},
			&sidecarv1.StatusResponse{}); status.Code(err) != codes.Internal {
			t.Errorf("%v; want Internal", err)
		}
	}
}

// brokenCodec panics while it decodes.
type brokenCodec struct{ encoding.CodecV2 }

func (brokenCodec) Unmarshal(mem.BufferSlice, any) error { panic("broken") }

// grpc-go decodes a request before it calls an interceptor.
func TestPanicWhileARequestIsDecoded(t *testing.T) {
	s, err := New(small(), core.Deps{Driver: &facadetest.Driver{}, Database: "/local"})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(s.ServerOptions(), grpc.ForceServerCodecV2(brokenCodec{encoding.GetCodecV2("proto")}))...)
	s.Register(server)
	conn, hangUp := facadetest.OverPipe(t, server)
	defer hangUp()
	api := sidecarv1.NewSidecarClient(conn)
	for name, call := range map[string]func() error{
		"unary": func() error {
			_, err := api.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "S"})
			return err
		},
		"stream": func() error {
			stream, err := api.ExecuteStream(t.Context(), &sidecarv1.ExecuteRequest{Sql: "S"})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	} {
		err := call()
		if status.Code(err) != codes.Internal {
			t.Errorf("%s: %v; want Internal", name, err)
		}
		for _, detail := range status.Convert(err).Details() {
			if e, ok := detail.(*sidecarv1.Error); ok && e.OutcomeUnknown {
				t.Errorf("%s: the outcome is unknown, though nothing began", name)
			}
		}
	}
}

// An answer that has begun breaks off, so that half of it is not taken for the whole.
func TestPanicInTheMiddleOfAnAnswer(t *testing.T) {
	f := guarded(&facadetest.Driver{})
	f.Answer = func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		return facadetest.RowsOf(t, 3), nil
	}
	b := start(t, small(), f)
	n := 0
	f.OnNext = func() {
		if n++; n == 2 {
			panic("broken")
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", b.base+"/v1/query", strings.NewReader(`{"sql":"S"}`))
	if err != nil {
		t.Fatal(err)
	}
	facadetest.Header("Content-Type", core.MediaJSON, "Accept", mediaNDJSON)(req)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	// Either its last line says so, or it has no end.
	if !strings.Contains(string(text), `"code":"INTERNAL"`) && err == nil {
		t.Errorf("%q ends well; want an error", text)
	}
}
