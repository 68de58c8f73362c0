package listen

import (
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Of connections of HTTP/2 there are as many as may be. What makes room has no request under way, for a second at least.
// Long: connections come and go in one order.
func TestConnectionsOfHTTP2MakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused atomic.Int64
		s := NewConns(0)
		s.most, s.refused = 3, &refused
		come := func() *Conn { return comes(t, s) }
		in := func(g *Conn, want bool) {
			t.Helper()
			if got := s.hasRoom(g); got != want {
				t.Errorf("taken in: %v; want %v", got, want)
			}
		}
		gone := func(g *Conn) bool {
			select {
			case <-g.closed:
				return true
			default:
				return false
			}
		}
		busy, idle, coming := come(), come(), come()
		busy.UnderWay(1)
		busy.UnderWay(1)
		busy.UnderWay(-1)
		idle.idle.Store(true)
		time.Sleep(time.Millisecond)
		idle.UnderWay(1)
		idle.UnderWay(-1)
		for _, g := range []*Conn{busy, idle, coming} {
			in(g, true)
		}
		time.Sleep(spareAfter - 2*time.Millisecond)
		in(come(), false)
		time.Sleep(2 * time.Millisecond)
		next := come()
		in(next, true)
		if !gone(coming) || gone(idle) || gone(busy) {
			t.Error("not the one of which no request has come whole has made room")
		}
		in(come(), true)
		if !gone(idle) || gone(busy) || gone(next) {
			t.Error("not the idle one has made room")
		}
		next.UnderWay(1)
		time.Sleep(time.Hour)
		in(come(), true) // for the one before
		time.Sleep(spareAfter / 2)
		in(come(), false)
		busy.UnderWay(-1)
		time.Sleep(spareAfter / 4)
		in(come(), false)
		_ = next.Close()
		in(come(), true)
		if late := come(); true {
			_ = late.Close()
			in(late, false)
		}
		if n := refused.Load(); n != 3 || len(s.seconds) != 3 {
			t.Errorf("%d refused, %d here", n, len(s.seconds))
		}
		s.cut()
	})
}

// Of connections that made room few have a while to end; the others close at once, and no longer serve.
func TestConnectionsThatMadeRoomAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewConns(0)
		s.most, s.resting = 16, time.Hour
		come := func() *Conn {
			g := comes(t, s)
			go func() { _, _ = io.Copy(io.Discard, g) }() // as its server does
			g.idle.Store(true)
			g.restsNow(true, g.Stream)
			return g
		}
		const rounds = 5
		for range rounds {
			for range s.most {
				if !s.hasRoom(come()) {
					t.Fatal("there is no room")
				}
			}
			synctest.Wait()
			if n := s.Size(); n > s.most+s.most/8 {
				t.Errorf("%d connections are open; want %d, and %d more that are about to end", n, s.most, s.most/8)
			}
			time.Sleep(spareAfter)
		}
		time.Sleep(awayAfter)
		if n, aways := s.Size(), s.leaving.Load(); n != s.most || aways != 0 {
			t.Errorf("%d connections are open, %d are about to end", n, aways)
		}
		s.cut()
	})
}

// A connection that finds no room waits for it, and those whose requests are coming make room one after the other.
func TestConnectionsOfHTTP2WaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused atomic.Int64
		s := NewConns(0)
		s.most, s.refused = 2, &refused
		come := func() *Conn { return comes(t, s) }
		begun := time.Now()
		for range 2 {
			if !s.isSecond(come()) {
				t.Fatal("there was room")
			}
		}
		late := make(chan time.Duration, 3)
		for range 2 {
			go func() {
				if !s.isSecond(come()) {
					t.Error("a second later there was room for one, and soon for the other")
				}
				late <- time.Since(begun)
			}()
		}
		first, second := <-late, <-late
		if first != spareAfter || second < first+endsEach || second > first+endsEach+2*roomEach {
			t.Errorf("taken in after %v and %v", first, second)
		}
		begun = time.Now()
		// Else the second would have had to go at once, which waited long before it was taken in.
		if !s.isSecond(come()) || time.Since(begun) < spareAfter-endsEach-roomEach {
			t.Errorf("taken in after %v", time.Since(begun))
		}
		for g := range s.seconds {
			g.UnderWay(1)
		}
		if s.isSecond(come()) || refused.Load() != 4 {
			t.Errorf("taken in, or %d refused", refused.Load())
		}
		begun = time.Now()
		gone := come()
		time.AfterFunc(roomEach/2, gone.leave)
		if s.isSecond(gone) || time.Since(begun) != roomEach/2 {
			t.Errorf("a connection that was closed waited for %v", time.Since(begun))
		}
		s.cut()
	})
}
