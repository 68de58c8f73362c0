package h2

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// Headers of calls that wait count as long as they are kept: HPACK makes kilobytes of a few bytes, again and again.
func TestHeadersOfHeldCallsAreBounded(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Buffered, c.Control = 1<<20, 100_000 })
	r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
	fields := append([]string{}, request...)
	for range 15 {
		fields = append(fields, "x-long", strings.Repeat("x", 3000))
	}
	most := 0
	id := uint32(1)
	for range 200 {
		c.headers(id, true, fields...)
		c.send()
		id += 2
		most = max(most, f.Stats().Buffered)
	}
	if most < 1<<19 || most > 1<<20 {
		t.Errorf("at most %d bytes counted; want what %d allow", most, 1<<20)
	}
	if held := f.Stats().Held; held == 0 || held > 1<<20/40_000 {
		t.Errorf("%d calls are held", held)
	}
	for i := uint32(1); i < id; i += 2 {
		c.framer.WriteRSTStream(i, http2.ErrCodeCancel)
	}
	c.send()
	idle(t, f, c, n)
}

// So they are within one read, before there is time to end the calls of those who hold most.
func TestHeadersOfHeldCallsAreBoundedWithinARead(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Buffered, c.Control = 1<<20, 100_000 })
	most := 0
	r.route = func(*Call) (*Conn, error) {
		most = max(most, f.Stats().Buffered)
		return nil, ErrPark
	}
	fields := append([]string{}, request...)
	for range 15 {
		fields = append(fields, "x-long", strings.Repeat("x", 3000))
	}
	for id := range uint32(200) {
		c.headers(2*id+1, true, fields...)
	}
	c.send()
	if most < 1<<20 || most > 2<<20 {
		t.Errorf("at most %d bytes counted; want no more than %d", most, 2<<20)
	}
	if got := strings.Join(c.frames(), "\n"); !strings.Contains(
		got,
		"HEADERS 399 end :status=200 content-type=application/grpc grpc-status=8 grpc-message=there is no memory "+
			"for one more call that waits; try again",
	) {
		t.Errorf("the last call gets %.1000s", got)
	}
	for id := range uint32(200) {
		c.framer.WriteRSTStream(2*id+1, http2.ErrCodeCancel)
	}
	c.send()
	idle(t, f, c, n)
}

// Calls that go on together do so in parts, with turns of others in between.
func TestCallsGoOnInParts(t *testing.T) {
	f, r, c, n := start(t)
	var tickets []Ticket
	r.route = func(c *Call) (*Conn, error) {
		tickets = append(tickets, c.Ticket())
		return nil, ErrPark
	}
	for id := range uint32(1000) {
		c.headers(2*id+1, true, request...)
	}
	c.send()
	for _, k := range tickets {
		f.Later(k, nil)
	}
	asked := 0
	r.route = func(c *Call) (*Conn, error) {
		asked++
		return nil, &Status{Code: 5}
	}
	f.CatchUp()
	if asked != perTurn || !f.Behind() {
		t.Errorf("%d calls go on in one turn, and more to do: %v", asked, f.Behind())
	}
	turns := 0
	for ; f.Behind() && turns < 100; turns++ {
		f.Advance(f.Now())
	}
	if asked != 1000 || f.Stats().Held != 0 {
		t.Errorf("%d calls have gone on after %d turns more, %d are held", asked, turns, f.Stats().Held)
	}
	idle(t, f, c, n)
}

// So do those that hold much, of which the router may read all again: by their bytes, whatever they have waited for.
func TestCallsThatHoldMuchGoOnInParts(t *testing.T) {
	const calls, body = 40, 128 << 10
	for name, full := range map[string]bool{"for the router": false, "for the node's connection": true} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			if full {
				n.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
				n.send()
			}
			var tickets []Ticket
			r.route = func(c *Call) (*Conn, error) {
				if _, whole := c.Message(); !whole {
					return nil, ErrNeedWhole
				}
				if tickets = append(tickets, c.Ticket()); full {
					return n.conn, nil
				}
				return nil, ErrPark
			}
			text := message(strings.Repeat("x", body))
			for id := range uint32(calls) {
				c.headers(2*id+1, false, request...)
				for at := 0; at < len(text); at += minFrameSize {
					c.data(2*id+1, at+minFrameSize >= len(text), text[at:min(at+minFrameSize, len(text))])
				}
				c.send()
			}
			asked := 0
			r.route = func(*Call) (*Conn, error) {
				asked++
				return nil, &Status{Code: 5}
			}
			if full {
				n.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 100})
				n.send()
			} else {
				for _, k := range tickets {
					f.Later(k, nil)
				}
				f.CatchUp()
			}
			had := 0
			for turn := 0; had < calls; turn++ {
				if got := asked - had; got < 1 || got > perResume/body || asked < calls && !f.Behind() {
					t.Fatalf("%d calls of %d bytes go on in turn %d, and more to do: %v", got, body, turn, f.Behind())
				}
				had = asked
				f.Advance(f.Now())
			}
			if f.Behind() {
				t.Error("there is more to do when all have gone on")
			}
			idle(t, f, c, n)
		})
	}
}

// Connections that hold all places for calls that wait give way to one that has few, whatever the calls wait for.
func TestConnectionsWithMostCallsThatWaitGiveWay(t *testing.T) {
	for name, full := range map[string]bool{"for a message": false, "for the node's connection": true} {
		t.Run(name, func(t *testing.T) {
			f, r, honest, n := start(t, func(c *Config) { c.Held = 1000 })
			if full {
				n.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
				n.send()
			} else {
				r.route = func(*Call) (*Conn, error) { return nil, ErrNeedMessage }
			}
			var others []*peer
			for i := range 4 {
				p := client(t, f)
				others = append(others, p)
				for id := range uint32(250 + 50*i) { // some have more than others
					p.headers(2*id+1, false, request...)
				}
				p.send()
			}
			honest.headers(1, false, request...)
			honest.send()
			balance(t, f)
			if got := f.Stats().Held; honest.conn.parked != 1 || got > 1000 || got < 980 {
				t.Errorf("%d calls wait, %d of them of the connection that came last", got, honest.conn.parked)
			}
			sum := honest.conn.parked
			for _, p := range others {
				if sum += p.conn.parked; p.conn.parked < 230 || p.conn.parked > 250 || p.conn.streams.get(1) == nil {
					t.Errorf("a connection keeps %d calls, its oldest one: %v", p.conn.parked, p.conn.streams.get(1) != nil)
				}
			}
			if sum != f.Stats().Held {
				t.Errorf("connections count %d calls that wait, all together %d", sum, f.Stats().Held)
			}
			if got := strings.Join(others[3].frames(), "\n"); !strings.Contains(
				got,
				"HEADERS 799 end :status=200 content-type=application/grpc grpc-status=8 grpc-message=too many calls wait in the sidecar",
			) {
				t.Errorf("the newest call of the connection with most of them gets %.1000s", got)
			}
			for i, p := range others {
				if i%2 == 0 {
					for id := range uint32(400) {
						p.framer.WriteRSTStream(2*id+1, http2.ErrCodeCancel)
					}
					pass(f, rapid)
					p.send()
					balance(t, f)
					if p.conn.parked != 0 {
						t.Errorf("%d calls count as waiting", p.conn.parked)
					}
				}
				p.conn.Close()
			}
			honest.conn.Close()
			idle(t, f, n)
		})
	}
}

// A call that went on to its node keeps none of its headers here.
func TestHeadersOfCallsThatWentOnAreNotKept(t *testing.T) {
	f, r, c, n := start(t)
	var parked Ticket
	r.route = func(call *Call) (*Conn, error) {
		if parked.call == nil {
			parked = call.Ticket()
			return nil, ErrPark
		}
		return n.conn, nil
	}
	c.headers(1, true, append(append([]string{}, request...), "x-long", strings.Repeat("x", 3900))...)
	c.send()
	if f.Stats().Buffered == 0 {
		t.Error("headers that wait do not count")
	}
	f.Resume(parked)
	if got, kept := f.Stats().Buffered, cap(parked.call.block); got != 0 || kept != 0 || parked.call.node.conn != n.conn {
		t.Errorf("%d bytes count, and room for %d is kept by a call that is on its way: %v", got, kept, parked.call.node.conn == n.conn)
	}
	c.framer.WriteRSTStream(1, http2.ErrCodeNo)
	c.send()
	idle(t, f, c, n)
}

// A node is told that a call is cancelled, whatever its client says of it.
func TestCodesOfResetsDoNotPassToNodes(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, false, request...)
	c.send()
	n.frames()
	c.framer.WriteRSTStream(1, http2.ErrCodeEnhanceYourCalm)
	c.send()
	if got := strings.Join(n.frames(), "\n"); !strings.Contains(got, "RST_STREAM 1") || !strings.Contains(got, "CANCEL") {
		t.Errorf("got %s", got)
	}
	idle(t, f, c, n)
}

// As many calls end as are to, also where all connections have the same.
func TestConnectionsWithAsManyCallsThatWait(t *testing.T) {
	f, r, _, _ := start(t, func(c *Config) { c.Held = 640 })
	r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
	for range 641 {
		client(t, f).headers(1, true, request...).send()
	}
	if balance(t, f); f.stats.Held != 630 {
		t.Errorf("%d calls wait", f.stats.Held)
	}
}

// Calls that were cancelled while they waited for a connection keep no place there.
func TestCancelledCallsThatWaitKeepNoPlace(t *testing.T) {
	for name, cancelled := range map[string]bool{"cancelled": true, "waiting": false} {
		t.Run(name, func(t *testing.T) {
			const most = 100
			f, _, c, n := start(t, func(c *Config) { c.Held = most })
			n.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
			n.send()
			n.frames()
			for id := range uint32(2 * most) { // within one read, after which those beyond Config.Held end
				c.headers(2*id+1, true, request...)
			}
			if cancelled {
				for id := range uint32(2 * most) {
					c.framer.WriteRSTStream(2*id+1, http2.ErrCodeCancel)
				}
			}
			const last = 4*most + 1
			c.headers(last, true, request...)
			c.send()
			refused := strings.Contains(strings.Join(c.frames(), "\n"), fmt.Sprintf("HEADERS %d end :status=200", last))
			if held := f.Stats().Held; refused == cancelled || cancelled && (held != 1 || len(n.conn.waiting) != 1) {
				t.Fatalf("refused: %v; %d calls are held, %d have a place", refused, held, len(n.conn.waiting))
			}
			if got := len(n.conn.waiting); !cancelled && got != 2*most {
				t.Errorf("%d places are taken; want %d", got, 2*most)
			}
			n.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000})
			n.send()
			if st := f.Stats(); st.Held != 0 || cancelled && st.Forwarded != 1 {
				t.Errorf("%d calls are held when there is room, %d have gone on", st.Held, st.Forwarded)
			}
			c.conn.Close()
			idle(t, f, n)
		})
	}
}

// Calls that are held one after the other need no memory for their headers.
func TestHeadersOfHeldCallsAreUsedAgain(t *testing.T) {
	f, r, c, n := start(t)
	var parked Ticket
	r.route = func(call *Call) (*Conn, error) {
		if parked.call != call {
			parked = call.Ticket()
			return nil, ErrPark
		}
		return n.conn, nil
	}
	var before []byte
	for id := uint32(1); id < 7; id += 2 {
		c.headers(id, true, request...)
		c.send()
		block := parked.call.block
		if before != nil && &block[0] != &before[0] {
			t.Error("another buffer is used")
		}
		before = block
		f.Resume(parked)
		n.headers(id, true, ":status", "200", "grpc-status", "0")
		n.send()
		parked = Ticket{}
	}
	idle(t, f, c, n)
}

// What has held a large message is not kept for small ones.
func TestLargeBuffersAreNotKept(t *testing.T) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) {
		if _, whole := call.Raw(); !whole {
			return nil, ErrNeedWhole
		}
		return n.conn, call.Replace(func(b, _ []byte) ([]byte, error) { return b, nil })
	}
	body := message(strings.Repeat("x", 1<<20))
	c.headers(1, false, request...)
	c.send()
	for len(body) > 0 {
		piece := body[:min(len(body), 16<<10)]
		body = body[len(piece):]
		c.data(1, len(body) == 0, piece)
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		c.frames()
	}
	n.framer.WriteWindowUpdate(0, 1<<21)
	n.framer.WriteWindowUpdate(1, 1<<21)
	n.send()
	n.frames()
	n.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	n.send()
	c.frames()
	for _, b := range f.buffers {
		if cap(b) > 2*bufferSize {
			t.Errorf("a buffer of %d bytes is kept", cap(b))
		}
	}
	if len(f.buffers) == 0 || f.stats.Calls != 1 {
		t.Errorf("%d buffers are kept; %+v", len(f.buffers), f.stats)
	}
}
