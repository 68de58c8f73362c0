package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// opener opens calls over one connection of HTTP/2, whose bodies never come.
type opener struct {
	conn   net.Conn
	framer *http2.Framer
	next   uint32

	mu       sync.Mutex
	statuses map[string]int  // of answers
	answered map[uint32]bool // streams
	late     int             // refusals that could not be sent within refusalTimeout: the stream is reset instead
}

// connections numbers those of open.
var connections atomic.Uint64

// open serves a service over HTTP/2 and connects to it.
func open(t *testing.T, s *service) *opener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := s.api.Server()
	server.IdleTimeout = 0 // the server of HTTP/2 would keep what has ended until then
	gone := make(chan struct{})
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(gone)
		}
	}
	server.Protocols = new(http.Protocols)
	server.Protocols.SetUnencryptedHTTP2(true)
	server.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return core.WithConnection(ctx, core.Connection{Number: connections.Add(1)})
	}
	server.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100_000}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	o := &opener{conn: conn, framer: http2.NewFramer(conn, conn), next: 1, statuses: map[string]int{}, answered: map[uint32]bool{}}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	_ = o.framer.WriteSettings()
	running.Go(o.read)
	t.Cleanup(func() {
		_ = conn.Close()
		<-gone
		_ = server.Close()
		running.Wait()
	})
	return o
}

// read takes note of the answers.
func (o *opener) read() {
	status := hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			o.mu.Lock()
			o.statuses[f.Value]++
			o.mu.Unlock()
		}
	})
	for began := time.Now(); ; {
		frame, err := o.framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.HeadersFrame:
			_, _ = status.Write(frame.HeaderBlockFragment())
			o.mu.Lock()
			o.answered[frame.StreamID] = true
			o.mu.Unlock()
		case *http2.RSTStreamFrame:
			o.mu.Lock()
			if !o.answered[frame.StreamID] && frame.ErrCode == http2.ErrCodeInternal && time.Since(began) >= refusalTimeout {
				o.late++
			}
			o.mu.Unlock()
		}
	}
}

func (o *opener) answers(status string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.statuses[status]
}

// refused is how many calls were refused: on a machine that is busy the refusals of some, but no more than half of
// them, take too long.
func (o *opener) refused() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.statuses["429"] + min(o.late, o.statuses["429"])
}

// post opens so many calls, with headers of their own.
func (o *opener) post(t *testing.T, calls int, headers func(i int) []hpack.HeaderField) {
	t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range calls {
		block.Reset()
		for _, f := range append([]hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/v1/query"},
			{Name: ":authority", Value: "localhost"},
			{Name: "content-type", Value: core.MediaJSON},
		}, headers(i)...) {
			_ = encoder.WriteField(f)
		}
		for first := true; first || block.Len() > 0; first = false {
			piece := bytes.Clone(block.Next(16 << 10))
			var err error
			if first {
				err = o.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: o.next, BlockFragment: piece, EndHeaders: block.Len() == 0})
			} else {
				err = o.framer.WriteContinuation(o.next, block.Len() == 0, piece)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		o.next += 2
	}
}

// Calls over HTTP/2 whose bodies do not come count what they take.
func TestOpenCallsTakeWhatIsCounted(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	for name, headers := range map[string]func(i int) []hpack.HeaderField{
		"short": func(int) []hpack.HeaderField { return nil },
		"long": func(i int) []hpack.HeaderField {
			return []hpack.HeaderField{{Name: "x-long", Value: fmt.Sprint(i, strings.Repeat("x", 15<<10))}}
		},
		"many": func(i int) (all []hpack.HeaderField) {
			for k := range 700 {
				all = append(all, hpack.HeaderField{Name: fmt.Sprint("x-", k), Value: fmt.Sprint(i)})
			}
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			const calls = 300
			budget := memguard.OfBytes(1 << 30)
			b := start(t, core.DefaultAPI(), &facadetest.Driver{}, func(d *core.Deps) { d.Requests = budget })
			facadetest.IsCounted(t, facadetest.Nearly, func() (takes, counted int64) {
				o := open(t, b)
				before := facadetest.InUse()
				o.post(t, calls, headers)
				await.True(t, "all are open and counted", func() bool {
					return b.Core.State().OpenCalls == calls && budget.State().Held >= calls*openCall
				})
				counted = budget.State().Held
				takes = facadetest.InUse() - before
				_ = o.conn.Close() // before the next ones are measured
				await.True(t, "all are over", func() bool { return b.Core.State().OpenCalls == 0 })
				return takes, counted
			})
		})
	}
}

// However many such calls come, those of one app take no more than half of the memory for requests: further ones are refused, or
// those that have been silent for long end.
func TestOpenCallsAreBounded(t *testing.T) {
	const most = 16 << 20
	calls := short.Of(10_000, 1500)
	budget := memguard.OfBytes(most)
	b := start(t, core.DefaultAPI(), &facadetest.Driver{}, func(d *core.Deps) { d.Requests = budget })
	o := open(t, b)
	o.post(t, calls, func(int) []hpack.HeaderField { return nil })
	bound := most / 2 / openCall
	await.True(t, "all that there is no room for are refused", func() bool { return o.refused() >= calls-bound })
	if held, open := budget.State().Held, b.Core.State().OpenCalls; held > most/2 || open > bound {
		t.Errorf("%d calls are open and hold %d bytes; want %d at most", open, held, bound)
	}
	if n := o.answers("200"); n > 0 {
		t.Errorf("%d calls without a body are answered", n)
	}
}

// Those of others make room at once: of the connection that has most, one for each.
func TestOpenCallsMakeRoom(t *testing.T) {
	const most, calls = 4 << 20, 300
	budget := memguard.OfBytes(most)
	b := start(t, core.DefaultAPI(), &facadetest.Driver{}, func(d *core.Deps) { d.Requests = budget })
	crowd, other := open(t, b), open(t, b)
	none := func(int) []hpack.HeaderField { return nil }
	crowd.post(t, calls, none)
	bound := most / 2 / openCall
	await.True(t, "its memory is full", func() bool { return crowd.refused() >= calls-bound })
	other.post(t, bound/4, none)
	await.True(t, "the crowd has made room", func() bool { return crowd.refused() >= calls-bound+bound/4 })
	if n := other.refused(); n > 0 {
		t.Errorf("%d calls are refused where others have more open", n)
	}
}

// Calls that are coming take no place of others, also where their headers say that their bodies are empty.
func TestOpenCallsTakeNoPlace(t *testing.T) {
	for name, headers := range map[string][]hpack.HeaderField{"no length": nil, "a length of 0": {{Name: "content-length", Value: "0"}}} {
		t.Run(name, func(t *testing.T) {
			const calls = 20
			config := core.DefaultAPI()
			config.MaxOpen = 5
			b := start(t, config, &facadetest.Driver{Answer: facadetest.Echo})
			open(t, b).post(t, calls, func(int) []hpack.HeaderField { return headers })
			await.True(t, "all are open", func() bool { return b.Core.State().OpenCalls == calls })
			if _, err := b.client.Execute(t.Context(), contract.Statement{SQL: "SELECT 1"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// What ends a transaction is let in although others hold the memory: calls may wait for the session that it gives back.
func TestEndsOfTransactionsAreLetIn(t *testing.T) {
	budget := memguard.OfBytes(1 << 20)
	b := start(t, core.DefaultAPI(), &facadetest.Driver{}, func(d *core.Deps) { d.Requests = budget })
	for left := 1<<20 - 4<<10; left > 0; left -= 64 << 10 { // none has so much that it would leave the last eighth
		others := new(memguard.Reservation)
		others.Begin(budget, nil, 0)
		if why := others.Take(min(left, 64<<10)); why != "" {
			t.Fatal(why)
		}
		defer others.Release()
	}
	for path, want := range map[string]int{"/v1/tx/tx_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/rollback": http.StatusGone,
		"/v1/tx/begin": http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		b.api.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost"+path, nil))
		if w.Code != want {
			t.Errorf("%s: %d %s; want %d", path, w.Code, w.Body, want)
		}
	}
}

// A body of which nothing has come makes room for others as one that comes slowly does.
func TestSilentBodiesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := memguard.OfBytes(64 << 10)
		s, x := arriving(budget, 1000)
		x.call.Reserved.Take(20 << 10)
		ended, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			_, _ = s.readAll(x, silent{time.Now().Add(bodyTimeout)}, func() { close(ended) }, nil)
		}()
		time.Sleep(10 * time.Second)
		for range 2 { // each of an app of its own
			_, other := arriving(budget, 0)
			if why := other.call.Reserved.Take(30 << 10); why != "" {
				t.Error(why)
			}
		}
		select {
		case <-ended:
		default:
			t.Error("the silent body goes on")
		}
		<-over
	})
}
