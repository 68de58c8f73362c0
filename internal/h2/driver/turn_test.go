package driver

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// long is a router that answers each call with a body of its own.
type long struct{ body []byte }

func (r *long) Route(*h2.Call) (*h2.Conn, error) { return nil, &h2.Status{Body: r.body} }
func (r *long) Answer(*h2.Call)                  {}
func (r *long) Done(*h2.Call, *h2.Outcome)       {}

// greedy is a connection that takes what there is at once, and counts the writes of turns.
type greedy struct {
	net.Conn
	turns *atomic.Int64
}

func (g *greedy) TryWrite(p []byte) int {
	if !bytes.Contains(debug.Stack(), []byte(".writeLater(")) && !bytes.Contains(debug.Stack(), []byte(".writeOn(")) {
		g.turns.Add(1)
	}
	n, _ := g.Write(p)
	return n
}

// Whoever reads as fast as there is something to write does not keep a turn for as long as that lasts.
func TestAFastReaderDoesNotKeepTheTurn(t *testing.T) {
	const size = 8 << 20
	s := runShard(t, &long{make([]byte, size)})
	client, server := socketPair(t)
	var turns atomic.Int64
	s.Accept(&greedy{server, &turns}, nil)
	c := newCaller(client)
	c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	c.WriteWindowUpdate(0, 1<<30)
	c.call(true)
	for got := 0; got < size; {
		fr, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := fr.(*http2.DataFrame); ok {
			got += len(data.Data())
		}
	}
	// Each piece that is written is a buffer; the answers to the client's SETTINGS are some.
	if n, pieces := turns.Load(), int64(h2.Default().Output/(32<<10)+1); n > (mostRounds+2)*pieces {
		t.Errorf("turns wrote %d pieces of %d MiB; want at most what %d rounds do, of %d each", n, size>>20, mostRounds, pieces)
	}
}

// What TLS writes on its own, because its peer has it do so, is bounded while nothing else is written; what it is given is not.
func TestWhatTLSWritesOnItsOwnIsBounded(t *testing.T) {
	s := &sealer{kept: true}
	answer := make([]byte, 40)
	for round := range 2 {
		n := 0
		for ; n < 1000; n++ {
			if _, err := s.Write(answer); err != nil {
				if !errors.Is(err, errSealed) {
					t.Fatal(err)
				}
				break
			}
		}
		if n != maxOwn/len(answer) {
			t.Errorf("round %d: %d answers are kept; want %d", round, n, maxOwn/len(answer))
		}
		s.seal()
		for range 1000 {
			if _, err := s.Write(make([]byte, 16<<10)); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(s.take(nil)); got != n*len(answer)+1000*16<<10 {
			t.Errorf("round %d: %d bytes are to be written", round, got)
		}
	}
}

// watched is a connection that calls wrote in each write of a turn.
type watched struct {
	*pipe
	wrote func()
}

func (w *watched) TryWrite(p []byte) int {
	w.wrote()
	return w.pipe.TryWrite(p)
}

// A drain tells its clients in parts: each takes a buffer for that, until it is written.
func TestADrainTellsClientsInParts(t *testing.T) {
	for _, kept := range []func() map[*h2.Conn]bool{nil, func() map[*h2.Conn]bool { return nil }} {
		synctest.Test(t, func(t *testing.T) {
			const clients = 3*toldOnce + 1
			s := runShard(t, nil)
			most := 0 // connections that are being written to, guarded by s.mu
			wrote := func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				n := 0
				for l := range s.links {
					if l.writing {
						n++
					}
				}
				most = max(most, n)
			}
			var told atomic.Int64
			for range clients {
				client, server := newPipe()
				s.Accept(&watched{server, wrote}, nil)
				c := newCaller(client)
				go func() {
					defer client.Close()
					for {
						fr, err := c.ReadFrame()
						if err != nil {
							return
						}
						if away, ok := fr.(*http2.GoAwayFrame); ok && away.LastStreamID == 1<<31-1 {
							told.Add(1)
						}
					}
				}()
			}
			synctest.Wait()
			s.Do(func(*h2.Forwarder) { most = 0 })
			drained := make(chan error)
			go func() { drained <- s.Drain(t.Context(), kept) }()
			time.Sleep(2 * timeouts)
			synctest.Wait()
			s.Do(func(*h2.Forwarder) {
				if told.Load() != clients || most > toldOnce || most == 0 {
					t.Errorf("%d of %d clients are told to go, %d at a time; want all, %d at a time at most",
						told.Load(), clients, most, toldOnce)
				}
			})
			if err := <-drained; err != nil {
				t.Error(err)
			}
		})
	}
}

// ending is a router that counts the ends of turns, and panics in them if it is told to.
type ending struct {
	long
	ends   int
	panics bool
}

func (e *ending) TurnEnds(*h2.Forwarder) {
	if e.ends++; e.panics {
		panic("at the end of a turn")
	}
}

// A router hears of the end of each turn, also after a panic.
func TestTheEndOfATurn(t *testing.T) {
	panics.LogTo(slog.New(slog.DiscardHandler))
	defer panics.LogTo(slog.Default())
	r := new(ending)
	s := New(h2.Default(), r) // without Run, which has turns of its own
	for i, turn := range []func(*h2.Forwarder){
		func(*h2.Forwarder) {}, func(*h2.Forwarder) { panic("in a turn") }, func(*h2.Forwarder) { r.panics = true },
		func(*h2.Forwarder) { r.panics = false },
	} {
		before := s.Forwarder()
		if s.Do(turn); r.ends != i+1 {
			t.Errorf("%d turns have ended; want %d", r.ends, i+1)
		}
		if renewed := s.Forwarder() != before; renewed != (i == 1 || i == 2) {
			t.Errorf("after turn %d there is another forwarder: %t", i, renewed)
		}
	}
}
