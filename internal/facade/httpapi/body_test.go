package httpapi

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// arriving is a body that comes, of an API with nothing but a budget.
func arriving(budget *memguard.Budget, length int) (*API, *exchange) {
	x := &exchange{r: &http.Request{ContentLength: int64(length)}, call: &core.Call{}, ctx: context.Background()}
	x.call.Reserved.Begin(budget, new(memguard.Group), 0)
	return &API{bodies: core.Pace{Rate: bodyRate, Burst: 1 << 30}}, x
}

// Bodies come whole, and what they take is counted.
func TestBodiesAreGathered(t *testing.T) {
	text := make([]byte, 3*pieceSize+1)
	for i := range text {
		text[i] = byte(i * 7 >> 3)
	}
	for _, size := range []int{0, 1, 511, 512, 513, pieceSize - 1, pieceSize, pieceSize + 1, 2 * pieceSize, len(text)} {
		for _, length := range []int{size, -1} {
			budget := memguard.OfBytes(2 << 20)
			s, x := arriving(budget, length)
			got, err := s.readAll(x, bytes.NewReader(text[:size]), func() {}, nil)
			if err != nil || !bytes.Equal(got, text[:size]) {
				t.Errorf("%d of %d bytes: %d came, %v", size, length, len(got), err)
			}
			if held := int(budget.State().Held); held < len(got) || held > len(got)+pieceSize {
				t.Errorf("%d of %d bytes: %d are counted", size, length, held)
			}
			x.call.Reserved.Release()
		}
	}
	s, x := arriving(memguard.OfBytes(6*pieceSize), len(text)) // an app has half of it, and while the pieces are joined both count
	if _, err := s.readAll(x, bytes.NewReader(text), func() {}, nil); err == nil || !strings.Contains(err.Error(), "memory.requests") {
		t.Error(err)
	}
}

// Bodies that break off leave next to no garbage, which the collector would have to take away while honest callers wait.
func TestBrokenBodiesLeaveNoGarbage(t *testing.T) {
	for _, tc := range []struct{ bodies, length, come int }{
		{20, 8<<20 + 1, 8 << 20},
		{500, 1_000_000, 150}, // within the first piece
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range tc.bodies {
			s, x := arriving(nil, tc.length)
			if _, err := s.readAll(x, &broken{tc.come}, func() {}, nil); err != io.ErrUnexpectedEOF {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		// Under the race detector a sync.Pool drops a quarter of what it gets.
		if got, most := int(after.TotalAlloc-before.TotalAlloc), tc.bodies*max(tc.come, pieceSize)/2; got > most {
			t.Errorf("%d bodies that break off after %d bytes took %d KB; want at most %d KB", tc.bodies, tc.come, got>>10, most>>10)
		}
	}
}

// counted is a text without an end that comes at once.
type counted struct{ n *atomic.Int64 }

func (c counted) Read(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// What is read of bodies whose calls have ended is bounded for all of them together, and one alone comes whole.
func TestDiscardsHaveAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := compose(t, core.DefaultAPI(), core.Deps{Driver: &facadetest.Driver{}})
		var n atomic.Int64
		s.api.discard(counted{&n}, time.Now().Add(linger))
		if want := int64(2 * s.Core.Cfg.API.MaxBody); n.Load() != want {
			t.Errorf("%d bytes of one body are read; want %d", n.Load(), want)
		}
		time.Sleep(time.Minute)
		n.Store(0)
		began := time.Now()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { s.api.discard(counted{&n}, time.Now().Add(linger)) })
		}
		all.Wait()
		if most := int64(s.Core.Cfg.API.MaxBody + discardRate); n.Load() > most || n.Load() < most*9/10 {
			t.Errorf("%d bytes of 50 bodies are read; want about %d", n.Load(), most)
		}
		if took := time.Since(began); took > linger {
			t.Errorf("they took %v", took)
		}
	})
}

// Bodies are read at a bounded pace, together, except for the first piece of each; one at a time is not held up.
func TestBodiesHaveAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bodies, size := 20, short.Of(8, 2)<<20
		burst := 2 * size
		s, _ := arriving(nil, size)
		s.bodies = core.Pace{Rate: bodyRate, Burst: burst}
		read := func() {
			_, x := arriving(nil, size)
			if b, err := s.readAll(x, bytes.NewReader(make([]byte, size)), func() {}, nil); err != nil || len(b) != size {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		}
		time.Sleep(time.Minute)
		began := time.Now()
		read()
		if took := time.Since(began); took > 0 {
			t.Errorf("one took %v", took)
		}
		time.Sleep(time.Minute)
		began = time.Now()
		var all sync.WaitGroup
		for range bodies {
			all.Go(read)
		}
		all.Wait()
		if took, want := time.Since(began), time.Second*time.Duration(bodies*size-burst)/bodyRate; took < want-10*time.Millisecond ||
			took > want+10*time.Millisecond {
			t.Errorf("%d took %v; want %v", bodies, took, want)
		}
		_, x := arriving(nil, size)
		ctx, cancel := context.WithCancelCause(t.Context())
		x.ctx = ctx
		time.AfterFunc(time.Millisecond, func() { cancel(core.ErrCut) })
		all.Go(read) // the pace is used up
		if _, err := s.readAll(x, bytes.NewReader(make([]byte, size)), func() {}, nil); err != core.ErrCut {
			t.Errorf("a call that is cut off: %v", err)
		}
		all.Wait()
	})
}

// trickle is a body that comes a byte at a time.
type trickle struct{}

func (trickle) Read([]byte) (int, error) {
	time.Sleep(16 * time.Millisecond)
	return 1, nil
}

// silent is a body of which nothing comes.
type silent struct{ until time.Time }

func (s silent) Read([]byte) (int, error) {
	time.Sleep(time.Until(s.until))
	return 0, io.ErrUnexpectedEOF
}

// Bodies that trickle, or do not come, leave the pace to others.
func TestDiscardsCountWhatCame(t *testing.T) {
	for name, slow := range map[string]func(until time.Time) io.Reader{
		"trickle": func(time.Time) io.Reader { return trickle{} },
		"silent":  func(until time.Time) io.Reader { return silent{until} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := compose(t, core.DefaultAPI(), core.Deps{Driver: &facadetest.Driver{}})
				const others, size, clients = 50, 512 << 10, 400
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						for range 5 {
							until := time.Now().Add(linger)
							s.api.discard(slow(until), until)
							time.Sleep(time.Until(until)) // and comes again
						}
					})
				}
				time.Sleep(4500 * time.Millisecond)
				var n atomic.Int64
				for range others {
					all.Go(func() {
						s.api.discard(io.LimitReader(counted{&n}, size), time.Now().Add(linger))
					})
				}
				all.Wait()
				if n.Load() != others*size {
					t.Errorf("%d bytes of %d are read of the bodies of others", n.Load(), others*size)
				}
			})
		})
	}
}

// broken is a text that breaks off.
type broken struct{ left int }

func (b *broken) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), b.left)
	b.left -= n
	return n, nil
}
