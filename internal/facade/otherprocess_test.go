package facade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// door is where the other process of a bench calls. Close is the end of its process.
type door struct {
	grpc *grpc.Server
	http *http.Server
}

func (d door) Close() {
	d.grpc.Stop()
	_ = d.http.Close()
}

// join makes the benches each other's other process.
func join(t *testing.T, a, b *bench) (ofA, ofB door) {
	t.Helper()
	return otherOf(t, a, b), otherOf(t, b, a)
}

// otherOf makes b the other process of a, whose door it returns.
func otherOf(t *testing.T, a, b *bench) door {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	d := door{grpc: grpc.NewServer(a.s.OtherOptions()...), http: &http.Server{Handler: a.s.OtherHandler(), Protocols: &protocols}}
	a.s.Register(d.grpc)
	calls, web := bufconn.Listen(1<<20), bufconn.Listen(1<<20)
	var serving sync.WaitGroup
	serving.Go(func() { _ = d.grpc.Serve(calls) })
	serving.Go(func() { _ = d.http.Serve(web) })
	conn, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return calls.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{Protocols: &protocols, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return web.DialContext(ctx) }}
	b.s.SetOther(&core.OtherProcess{Instance: a.s.Instance(), GRPC: conn, HTTP: transport})
	t.Cleanup(func() {
		_ = conn.Close()
		transport.CloseIdleConnections()
		d.Close()
		serving.Wait()
	})
	return d
}

// split calls the owner of transactions, but goes on with them over the other process.
type split struct {
	contract.Client
	other contract.Client
}

func (s split) at(st contract.Statement) contract.Client {
	if st.Tx != nil && st.Tx.ID != "" {
		return s.other
	}
	return s.Client
}

func (s split) Execute(ctx context.Context, st contract.Statement) (*contract.Reply, error) {
	return s.at(st).Execute(ctx, st)
}

func (s split) Stream(ctx context.Context, st contract.Statement) (*contract.Reply, error) {
	return s.at(st).Stream(ctx, st)
}

func (s split) Commit(ctx context.Context, id string) error { return s.other.Commit(ctx, id) }

func (s split) Rollback(ctx context.Context, id string) error { return s.other.Rollback(ctx, id) }

func (s split) GetTransaction(ctx context.Context, id string) (*contract.Open, error) {
	return s.other.GetTransaction(ctx, id)
}

func TestAnswersOfTheOtherProcessComeUnchanged(t *testing.T) {
	a, b := start(t, small(), facadetest.Numbered(t)), start(t, small(), facadetest.Numbered(t))
	join(t, a, b)
	for _, through := range []struct {
		name      string
		at, owner *bench
	}{{"its owner", a, a}, {"the other process", b, a}, {"the other process, the other way round", a, b}} {
		t.Run(through.name, func(t *testing.T) {
			tx, err := through.owner.http.Begin(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			before := through.at.s.State().HandedOver
			body := `{"sql":"A","tx":{"id":"` + tx.ID + `"}}`
			status, h, text := facadetest.Send(t, http.MethodPost, through.at.base+"/v1/query", body, nil)
			if status != 200 || h.Get("Content-Type") != core.MediaJSON || h.Get("Server-Timing") == "" || !strings.Contains(text, tx.ID) {
				t.Errorf("got %d %v %s", status, h, text)
			}
			status, h, text = facadetest.Send(
				t, http.MethodPost, through.at.base+"/v1/query", body, facadetest.Header("Accept", mediaNDJSON),
			)
			if status != 200 || h.Get("Content-Type") != mediaNDJSON || strings.Count(text, "\n") != 3 ||
				!strings.Contains(text, `{"end":{"rows":1`) {
				t.Errorf("got %d %v %s", status, h, text)
			}
			status, h, text = facadetest.Send(
				t, http.MethodPost, through.at.base+"/v1/query", `{"sql":"A","tx":{"id":"`+tx.ID+`","seq":9}}`, nil,
			)
			if status != 409 || h.Get("Content-Type") != mediaProblem || !strings.Contains(text, "SEQ_OUT_OF_ORDER") {
				t.Errorf("got %d %v %s", status, h, text)
			}
			var trailer metadata.MD
			_, err = through.at.api.Execute(
				t.Context(), &sidecarv1.ExecuteRequest{Sql: "BIG", Tx: &sidecarv1.TxSelector{Id: tx.ID}},
				grpc.Trailer(&trailer),
			)
			if err != nil || len(trailer.Get("server-timing")) != 1 {
				t.Errorf("got %v with %v", err, trailer)
			}
			reply, err := through.at.grpc.Stream(t.Context(), contract.Statement{SQL: "BIG", Tx: &contract.TxSelector{ID: tx.ID}})
			if err != nil || len(reply.Rows) != 300 {
				t.Errorf("got %v, %v; want 300 rows", reply, err)
			}
			if err := through.at.http.Rollback(t.Context(), tx.ID); err != nil {
				t.Error(err)
			}
			want := uint64(6)
			if through.at == through.owner {
				want = 0
			}
			if n := through.at.s.State().HandedOver - before; n != want {
				t.Errorf("%d calls were handed over; want %d", n, want)
			}
		})
	}
}

// TestHandedOverCallsKeepTheirApp: the process that has the transaction believes the one that looked at the caller, over both
// APIs, and nothing that the caller says beside it: here the owner does not know the token, as after a change of tokens.
func TestHandedOverCallsKeepTheirApp(t *testing.T) {
	const old, now = "fedcba9876543210fedcba9876543210", "0123456789abcdef0123456789abcdef"
	registry := func(secret string) *apps.Registry {
		all, err := apps.New(apps.Config{Max: 5, Token: []string{"shop=" + secret}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	a := start(t, small(), facadetest.Numbered(t), func(d *core.Deps) { d.Apps = registry(old) })
	b := start(t, small(), facadetest.Numbered(t), func(d *core.Deps) { d.Apps = registry(now) })
	join(t, a, b)
	const bearer = "Bearer " + now
	status, _, text := facadetest.Send(t, http.MethodPost, a.base+"/v1/tx/begin", "{}", facadetest.Header("Authorization", "Bearer "+old))
	var begun struct{ Tx struct{ ID string } }
	if err := json.Unmarshal([]byte(text), &begun); err != nil || status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	last := func() string {
		a.Mu.Lock()
		defer a.Mu.Unlock()
		return a.Calls[len(a.Calls)-1].App.Name()
	}
	if status, _, text := facadetest.Send(
		t, http.MethodPost, b.base+"/v1/query", `{"sql":"A","tx":{"id":"`+begun.Tx.ID+`"}}`,
		facadetest.Header("Authorization", bearer),
	); status != 200 || last() != "shop" {
		t.Errorf("over HTTP: %d %s, app %s; want shop", status, text, last())
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", bearer)
	in := &sidecarv1.ExecuteRequest{Sql: "A", Tx: &sidecarv1.TxSelector{Id: begun.Tx.ID}}
	if _, err := b.api.Execute(ctx, in); err != nil || last() != "shop" {
		t.Errorf("over gRPC: %v, app %s; want shop", err, last())
	}
	stream, err := b.api.ExecuteStream(ctx, in)
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) || last() != "shop" {
		t.Errorf("as a stream: %v, app %s; want shop", err, last())
	}
	if n := b.s.State().HandedOver; n != 3 {
		t.Errorf("%d calls were handed over; want 3", n)
	}
}

// TestHandedOverCallsWithOddHeaders: the sidecar takes headers that clients of Go refuse to send. A call that has one reaches the
// process that has its transaction all the same.
func TestHandedOverCallsWithOddHeaders(t *testing.T) {
	a, b := start(t, small(), facadetest.Numbered(t)), start(t, small(), facadetest.Numbered(t))
	join(t, a, b)
	tx, err := a.http.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{"x!y": {"1"}, "x-city": {"K\xf6ln", "Bonn"}, "x-raw-bin": {"\x00\xff"}})
	in := &sidecarv1.ExecuteRequest{Sql: "A", Tx: &sidecarv1.TxSelector{Id: tx.ID}}
	if _, err := b.s.grpc.Execute(ctx, in); err != nil {
		t.Errorf("over gRPC: %v", err)
	}
	for _, call := range []struct{ path, body string }{
		{"/v1/query", `{"sql":"A","tx":{"id":"` + tx.ID + `"}}`}, {"/v1/tx/" + tx.ID + "/commit", "{}"},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"+
			"Transfer-Encoding: chunked\r\nTrailer: a b\r\nX-City: K\xf6ln\r\n\r\n%x\r\n%s\r\n0\r\n\r\n",
			call.path, len(call.body), call.body)
		if text, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200 ") {
			t.Errorf("%s: %s, %v", call.path, text, err)
		}
	}
	if n := b.s.State().HandedOver; n != 3 {
		t.Errorf("%d calls were handed over; want 3", n)
	}
}

// A call that came from the other process is never handed over again, whatever the id says.
func TestHandedOverCallsDoNotCircle(t *testing.T) {
	a, b := start(t, small(), facadetest.Numbered(t)), start(t, small(), facadetest.Numbered(t))
	third := start(t, small(), facadetest.Numbered(t))
	join(t, a, b)
	tx, err := third.http.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	// Each believes that the other one has it.
	for _, s := range []*Service{a.s, b.s} {
		p := *s.core.Other.Get()
		p.Instance = third.s.Instance()
		s.SetOther(&p)
	}
	for _, face := range a.faces() {
		_, err := face.Execute(t.Context(), contract.Statement{SQL: "A", Tx: &contract.TxSelector{ID: tx.ID}})
		refused(t, err, "TX_LOST", true, false)
	}
	if n, m := a.s.State().HandedOver, b.s.State().HandedOver; n != 2 || m != 0 {
		t.Errorf("handed over %d and %d times; want 2 and 0", n, m)
	}
}

// When the process that has the transaction dies in a call, nothing was kept,
// unless the call may have committed.
func TestOtherProcessDiesInACall(t *testing.T) {
	for _, tc := range []struct {
		name    string
		call    func(ctx context.Context, c contract.Client, id string) error
		code    string
		unknown bool
	}{
		{"statement", func(ctx context.Context, c contract.Client, id string) error {
			_, err := c.Execute(ctx, contract.Statement{SQL: "A", Tx: &contract.TxSelector{ID: id}})
			return err
		}, "TX_LOST", false},
		{"stream", func(ctx context.Context, c contract.Client, id string) error {
			_, err := c.Stream(ctx, contract.Statement{SQL: "A", Tx: &contract.TxSelector{ID: id}})
			return err
		}, "TX_LOST", false},
		{"last statement", func(ctx context.Context, c contract.Client, id string) error {
			_, err := c.Execute(ctx, contract.Statement{SQL: "A", Tx: &contract.TxSelector{ID: id, Commit: true}})
			return err
		}, "OUTCOME_UNKNOWN", true},
		{"commit", func(ctx context.Context, c contract.Client, id string) error {
			return c.Commit(ctx, id)
		}, "OUTCOME_UNKNOWN", true},
	} {
		for _, i := range []int{0, 1} {
			t.Run(tc.name+" over "+[]string{"gRPC", "HTTP"}[i], func(t *testing.T) {
				running := make(chan struct{}, 1)
				hang := &facadetest.Driver{ // every statement and commit
					Answer: func(
						ctx context.Context, _ *facadetest.Session, _ *Ydb_Query.ExecuteQueryRequest,
					) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
						running <- struct{}{}
						<-ctx.Done()
						return nil, context.Cause(ctx)
					},
				}
				ended := make(chan struct{})
				hang.Commit = func(*facadetest.Session) error {
					running <- struct{}{}
					<-ended
					return nil
				}
				b := start(t, small(), facadetest.Numbered(t))
				a := start(t, small(), hang)
				t.Cleanup(func() { close(ended) }) // before a ends
				d, _ := join(t, a, b)
				tx, err := a.http.Begin(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				died := make(chan struct{})
				go func() {
					defer close(died)
					select {
					case <-running:
					case <-t.Context().Done():
					}
					_ = d.http.Close()
					d.grpc.Stop()
				}()
				err = tc.call(t.Context(), b.faces()[i], tx.ID)
				e, ok := errors.AsType[*contract.Error](err)
				if !ok || e.Code != tc.code || e.Unknown != tc.unknown || e.Safe == tc.unknown {
					t.Errorf("got %v; want %s, unknown %v", err, tc.code, tc.unknown)
				}
				<-died
			})
		}
	}
}

// Another process that hangs holds a call no longer than the call may last.
func TestOtherProcessThatHangs(t *testing.T) {
	t.Parallel() // it waits more than it works
	a, b := start(t, small(), facadetest.Numbered(t)), start(t, small(), facadetest.Numbered(t))
	tx, err := a.http.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	deaf := deafProcess{}
	b.s.SetOther(&core.OtherProcess{Instance: a.s.Instance(), GRPC: deaf, HTTP: deaf})
	for _, face := range b.faces() {
		began := time.Now()
		_, err := face.Execute(t.Context(), contract.Statement{SQL: "A", Timeout: "20ms", Tx: &contract.TxSelector{ID: tx.ID}})
		refused(t, err, "DEADLINE_EXCEEDED", true, false)
		if took := time.Since(began); took < time.Second {
			t.Errorf("gave up after %v; the other process's own answer may take a second more than the call", took)
		}
	}
}

type deafProcess struct{}

func (deafProcess) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func (deafProcess) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (deafProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// refusing serves a connection of a process that refuses the first call, and answers the others.
func refusing(conn net.Conn, first *atomic.Bool) {
	defer conn.Close()
	framer := http2.NewFramer(conn, conn)
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil || framer.WriteSettings() != nil {
		return
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch data, ok := frame.(*http2.DataFrame); {
		case !ok || !data.StreamEnded():
		case first.CompareAndSwap(true, false):
			_ = framer.WriteRSTStream(data.StreamID, http2.ErrCodeRefusedStream)
		default:
			ok := []byte{0x88} // :status 200
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: data.StreamID, BlockFragment: ok, EndHeaders: true})
			_ = framer.WriteData(data.StreamID, true, []byte("answered"))
		}
	}
}

// TestHandedOverCallsThatAreRefusedGoAgain: net/http repeats a call that the other end surely has not looked at, if it can. One may be
// refused so while the first connection between two processes is being made.
func TestHandedOverCallsThatAreRefusedGoAgain(t *testing.T) {
	a, b := start(t, small(), facadetest.Numbered(t)), start(t, small(), facadetest.Numbered(t))
	tx, err := a.http.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	web := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	var first atomic.Bool
	first.Store(true)
	serving.Go(func() {
		for conn, err := web.Accept(); err == nil; conn, err = web.Accept() {
			serving.Go(func() { refusing(conn, &first) })
		}
	})
	transport := &http.Transport{Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return web.DialContext(ctx) }}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = web.Close()
		serving.Wait()
	})
	transport.Protocols.SetUnencryptedHTTP2(true)
	b.s.SetOther(&core.OtherProcess{Instance: a.s.Instance(), HTTP: transport})
	status, _, text := facadetest.Send(t, http.MethodPost, b.base+"/v1/query", `{"sql":"A","tx":{"id":"`+tx.ID+`"}}`, nil)
	if status != http.StatusOK || text != "answered" {
		t.Errorf("got %d %s", status, text)
	}
}

// broken answers with a stream that ends with an error after these bytes.
type broken string

func (b broken) RoundTrip(*http.Request) (*http.Response, error) {
	body := io.MultiReader(strings.NewReader(string(b)), iotest.ErrReader(errors.New("the owner ended")))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {mediaNDJSON}}, Body: io.NopCloser(body)}, nil
}

// TestStreamsOfTheOtherProcessThatBreak: the last line says how a stream ended, unless half a line is there: then the reply breaks off,
// too, because no line after that half could be read.
func TestStreamsOfTheOtherProcessThatBreak(t *testing.T) {
	a, b := start(t, small(), facadetest.Numbered(t)), start(t, small(), facadetest.Numbered(t))
	tx, err := a.http.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for sent, whole := range map[string]bool{"{\"row\":[1]}\n": true, "{\"row\":[1]}\n{\"row\":[": false} {
		b.s.SetOther(&core.OtherProcess{Instance: a.s.Instance(), HTTP: broken(sent)})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.base+"/v1/query",
			strings.NewReader(`{"sql":"A","tx":{"id":"`+tx.ID+`"}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Content-Type": {core.MediaJSON}, "Accept": {mediaNDJSON}}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if got := string(text); (err == nil) != whole || strings.Contains(got, "\n{\"error\":{") != whole || !strings.HasPrefix(got, sent) {
			t.Errorf("%q became %q, %v; want a whole reply: %v", sent, got, err, whole)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
