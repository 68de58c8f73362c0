package h2

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

// A held message that is longer than all windows arrives; while the node takes nothing
// the client may send that message and no more than the window behind it.
func TestHeldMessagesMayExceedTheWindow(t *testing.T) {
	for name, whole := range map[string]bool{"in the stream": false, "before the call goes on": true} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			r.route = func(call *Call) (*Conn, error) {
				if _, is := call.Raw(); whole && !is {
					return nil, ErrNeedWhole
				}
				if !whole {
					call.Rewrite(&doubler{})
				}
				return n.conn, nil
			}
			long := strings.Repeat("0123456789abcdef", 3<<20/16) + "!"
			sent, want := message(long), doubled(long)
			if whole {
				want = sent
			}
			c.headers(1, false, request...)
			client, node := newFlow(c), newFlow(n)
			if rest := client.write(1, sent, minFrameSize, false); len(rest) > 0 {
				t.Fatalf("the client waits for room with %d bytes left", len(rest))
			}
			client.read()
			more := body(strings.Repeat("more", short.Of(8, 2)<<20/4))
			rest := client.write(1, more, minFrameSize, false)
			if took := len(more) - len(rest); took > f.config.Window {
				t.Errorf("%d bytes behind the message are taken from a client whose node takes none", took)
			}
			for len(node.got) < len(want)+len(more) {
				before := len(node.got)
				node.read()
				n.framer.WriteWindowUpdate(0, 1<<20)
				n.framer.WriteWindowUpdate(1, 1<<20)
				n.send()
				node.read()
				if rest = client.write(1, rest, minFrameSize, true); len(node.got) == before {
					t.Fatalf("it stops after %d bytes of %d", before, len(want)+len(more))
				}
				// What the client may send, what waits and what it has still to be given make its window.
				for _, s := range c.conn.streams.slots {
					if s != nil && !s.gotEnd && s.room+s.credit+s.twin().waits() != s.target {
						t.Fatalf("room %d, credit %d, %d wait; in all not %d", s.room, s.credit, s.twin().waits(), s.target)
					}
				}
			}
			if !bytes.Equal(node.got, append(want, more...)) || !node.ended {
				t.Error("the node got something else")
			}
			n.headers(1, true, ":status", "200", "grpc-status", "0")
			n.send()
			c.frames()
			idle(t, f, c, n)
		})
	}
}

// holdingRoutes are the ways in which a router has a message held.
var holdingRoutes = []func(n *peer) func(*Call) (*Conn, error){
	func(n *peer) func(*Call) (*Conn, error) {
		return func(call *Call) (*Conn, error) {
			if _, whole := call.Raw(); !whole {
				return nil, ErrNeedWhole
			}
			return n.conn, nil
		}
	},
	func(n *peer) func(*Call) (*Conn, error) {
		return func(call *Call) (*Conn, error) { call.Rewrite(&doubler{}); return n.conn, nil }
	},
}

func TestHeldMessagesAreBounded(t *testing.T) {
	t.Run("in length", heldInLength)
	t.Run("in all", heldInAll)
	t.Run("in time", heldInTime)
}

func heldInTime(t *testing.T) {
	for _, route := range holdingRoutes {
		for _, size := range []int{7, 20_000, 800_000} {
			f, r, c, n := start(t, func(c *Config) {
				c.HoldTimeout, c.ClientSilence, c.Silence = time.Hour, time.Hour, time.Hour
			})
			r.route = route(n)
			c.headers(1, false, request...)
			newFlow(c).write(1, message(strings.Repeat("x", 900001))[:size], minFrameSize, false)
			for range 60 { // a client that is slow, and sends
				pass(f, f.config.GrowTimeout-tick)
				c.data(1, false, []byte("x"))
				c.send()
				c.collect()
				n.collect()
			}
			pass(f, f.config.GrowTimeout/2)
			f.Advance(f.Now() + time.Minute/2) // the process stood still
			c.data(1, false, nil)              // nothing comes with that
			c.send()
			pass(f, f.config.GrowTimeout-2*tick)
			if len(r.done) != 0 {
				t.Fatalf("%d bytes: ended early: %q", size, c.frames())
			}
			pass(f, 3*tick)
			if got := strings.Join(c.frames(), "\n"); !strings.Contains(
				got,
				"grpc-status=8 grpc-message=a message of the request stopped before its end: nothing of it came for 5s",
			) {
				t.Errorf("%d bytes of a message that does not become whole are kept: %s", size, got)
			}
			if got := f.Stats().Abuses[SlowSender]; got != 1 {
				t.Errorf("%d calls are ended; want 1", got)
			}
			idle(t, f, c, n)
		}
	}
}

func heldInAll(t *testing.T) {
	for _, route := range holdingRoutes {
		f, r, c, n := start(t, func(c *Config) { c.Buffered = 1 << 20 })
		r.route = route(n)
		for i, held := range []int{300_000, 400_000, 200_000, 100_000, 290_000, 280_000} {
			id := uint32(2*i + 1)
			c.headers(id, false, request...)
			if rest := newFlow(c).write(id, message(strings.Repeat("x", held+1))[:held], minFrameSize, false); len(rest) > 0 {
				t.Errorf("stream %d could not write %d bytes", id, len(rest))
			}
			if got := f.Stats().Buffered; got > 1<<20 {
				t.Fatalf("%d bytes are held", got)
			}
			balance(t, f)
		}
		// calls that held most are ended, whoever asked
		for id, want := range map[uint32]bool{1: false, 3: false, 5: true, 7: true, 9: true, 11: true} {
			if got := c.conn.streams.get(id) != nil; got != want {
				t.Errorf("stream %d is open: %t", id, got)
			}
			if c.framer.WriteRSTStream(id, http2.ErrCodeCancel); want {
				c.send()
			}
			c.out.Reset()
		}
		if got := f.Stats().Abuses[SlowReader]; got != 2 {
			t.Errorf("%d calls are ended; want 2", got)
		}
		idle(t, f, c, n)
	}
}

func heldInLength(t *testing.T) {
	for _, route := range holdingRoutes {
		f, r, c, n := start(t, func(c *Config) { c.Message, c.Buffered = 1000, 1<<20 })
		r.route = route(n)
		c.headers(1, false, request...).data(1, false, message(strings.Repeat("x", 999)))
		c.headers(3, false, request...).data(3, true, message(strings.Repeat("x", 1001))[:20])
		c.send()
		got := strings.Join(c.frames(), "\n")
		if !strings.Contains(got,
			"HEADERS 3 end :status=200 content-type=application/grpc grpc-status=8 grpc-message=a message that must "+
				"be rewritten is longer than 1000 bytes") {
			t.Errorf("got %s", got)
		}
		c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
		c.send()
		idle(t, f, c, n)
	}
}

func TestHeldMessagesLeaveNothing(t *testing.T) {
	held := message(strings.Repeat("x", 99999))[:20000]
	for name, end := range map[string]func(f *Forwarder, c, n *peer){
		"the client resets":     func(_ *Forwarder, c, _ *peer) { c.framer.WriteRSTStream(1, http2.ErrCodeCancel); c.send() },
		"the client is lost":    func(_ *Forwarder, c, _ *peer) { c.conn.Close() },
		"the node resets":       func(_ *Forwarder, _, n *peer) { n.framer.WriteRSTStream(1, http2.ErrCodeCancel); n.send() },
		"the node is lost":      func(_ *Forwarder, _, n *peer) { n.conn.Close() },
		"the node answers":      func(_ *Forwarder, _, n *peer) { n.headers(1, true, ":status", "200", "grpc-status", "3"); n.send() },
		"the deadline":          func(f *Forwarder, _, _ *peer) { pass(f, 3*time.Second) },
		"the node is gone away": func(_ *Forwarder, _, n *peer) { n.framer.WriteGoAway(0, http2.ErrCodeNo, nil); n.send() },
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			r.route = func(call *Call) (*Conn, error) { call.Rewrite(&doubler{}); return n.conn, nil }
			c.headers(1, false, append(request, "grpc-timeout", "2S")...).data(1, false, held[:16000]).data(1, false, held[16000:])
			c.send()
			n.frames()
			end(f, c, n)
			c.frames()
			if name == "the node answers" {
				c.data(1, true, held[:10])
				c.send()
				n.headers(1, true, ":status", "200", "grpc-status", "0")
				n.send()
			}
			if s := f.Stats(); s.Buffered != 0 || len(r.done) == 0 {
				t.Errorf("%d bytes are kept, outcomes %+v", s.Buffered, r.done)
			}
		})
	}
}

// Bytes that are held for a call that is parked count, within the bound.
func TestHold(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Buffered = 1 << 20 })
	var ticket Ticket
	r.route = func(call *Call) (*Conn, error) {
		ticket = call.Ticket()
		return nil, ErrPark
	}
	c.headers(1, true, request...)
	c.send()
	headers := f.Stats().Buffered // of the call that is parked
	const held = 1<<20 - 1000
	if !f.Hold(ticket, held) || headers == 0 || f.Stats().Buffered != headers+held {
		t.Errorf("%d bytes count, %d of them headers", f.Stats().Buffered, headers)
	}
	if f.Hold(ticket, 100_000) {
		t.Error("more is held than there may be")
	}
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	f.Unhold(ticket, held)
	if f.Hold(ticket, 1) {
		t.Error("bytes are held for a call that is over")
	}
	idle(t, f, c, n)
}
