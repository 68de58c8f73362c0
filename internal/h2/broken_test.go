package h2

import (
	"log/slog"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

func silencePanics(t *testing.T) {
	panics.LogTo(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { panics.LogTo(slog.Default()) })
}

// The router hears once of the end of each call of a Forwarder that is given up, also if one of them cannot be
// ended. No node is to blame, and the router is asked about none of them again.
func TestGivingUpEndsEveryCall(t *testing.T) {
	for _, place := range []string{"the client", "the node", "a node that ends"} {
		t.Run(place, func(t *testing.T) {
			silencePanics(t)
			f, r, c, n := start(t)
			other := client(t, f)
			for id := uint32(1); id < 12; id += 2 {
				c.headers(id, false, request...)
				other.headers(id, false, request...)
			}
			c.send()
			other.send()
			r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
			c.headers(13, true, request...)
			c.send()
			var parked Ticket
			for _, s := range c.conn.streams.slots {
				if s != nil && s.id == 13 {
					parked = s.call.Ticket()
				}
			}
			r.route = func(*Call) (*Conn, error) { t.Error("asked again"); return nil, ErrPark }
			f.Later(parked, nil)
			broken := c.conn.streams.get(5).call
			switch place {
			case "the client":
				broken.client.conn = &Conn{}
			case "the node":
				broken.node.conn = &Conn{}
			default: // this is where the turn panics
				broken.client.conn = &Conn{}
				if panics.Call("a turn", func() error { n.conn.Close(); return nil }) == nil {
					t.Fatal("the turn did not panic")
				}
			}
			next := f.Renew()
			f.GiveUp(next)
			if len(r.done) != 13 {
				t.Errorf("the router heard of the end of %d calls; want 13", len(r.done))
			}
			for _, o := range r.done {
				if place != "a node that ends" && o.End != Cancelled {
					t.Errorf("a call ended as %v; want cancelled", o.End)
				}
			}
			for _, conn := range []*Conn{c.conn, other.conn, n.conn} {
				if conn.Usable() || !conn.Finished() || conn.IsOpen() || conn.Receive([]byte("x")) != ErrClosed || conn.Take() != nil {
					t.Error("a connection is still of use")
				}
				conn.Drain()
				conn.Sent(0)
				conn.Close()
			}
			f.CatchUp()
			if len(r.done) != 13 || next.Resume(parked) || next.End(parked, &Status{}) || next.Hold(parked, 1) {
				t.Errorf("a call that is over goes on; %d ends", len(r.done))
			}
		})
	}
}

// What a Forwarder that was given up had counted for its calls is not taken from what the next one counts.
func TestHeldBytesAreOfTheirForwarder(t *testing.T) {
	silencePanics(t)
	f, r, c, _ := start(t)
	var before, after Ticket
	park := func(ticket *Ticket) {
		r.route = func(call *Call) (*Conn, error) { *ticket = call.Ticket(); return nil, ErrPark }
	}
	park(&before)
	c.headers(1, true, request...)
	c.send()
	if !f.Hold(before, 1000) {
		t.Fatal("not held")
	}
	next := f.Renew()
	f.GiveUp(next)
	d := client(t, next)
	park(&after)
	d.headers(1, true, request...)
	d.send()
	headers := next.Stats().Buffered // of the call that is parked
	if !next.Hold(after, 1500) {
		t.Fatal("not held")
	}
	next.Unhold(before, 1000)
	if n := next.Stats().Buffered - headers; n != 1500 {
		t.Errorf("%d bytes count; want 1500", n)
	}
	next.Unhold(after, 1500)
	if n := next.Stats().Buffered - headers; n != 0 {
		t.Errorf("%d bytes count; want 0", n)
	}
}

// A panic in Conn.Ended loses neither other connections nor calls.
func TestAPanicInEnded(t *testing.T) {
	silencePanics(t)
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) {
		call.Client().Ended = func() { panic("broken router") }
		return n.conn, nil
	}
	c.headers(1, false, request...)
	c.send()
	before := panics.Stats().Count
	c.conn.Close()
	if got := panics.Stats().Count - before; got != 1 || len(r.done) != 1 {
		t.Errorf("%d panics, %d ends; want 1 and 1", got, len(r.done))
	}
	n.frames()
	idle(t, f, n)
}
