package driver

import (
	"bytes"
	"errors"
	"net"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/internal/h2"
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
