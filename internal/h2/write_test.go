package h2

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// writing is a call that is the router's own.
func writing(f *Forwarder, r *router, c *peer, id uint32) (ticket Ticket) {
	r.route = func(call *Call) (*Conn, error) {
		ticket = call.Ticket()
		return nil, ErrMine
	}
	c.headers(id, false, request...).data(id, true, message("request"))
	c.send()
	return ticket
}

// An answer goes on in pieces, of which each is written once.
func TestAnswersInPieces(t *testing.T) {
	const head = " :status=200 content-type=application/grpc"
	f, r, c, n := start(t)
	write, _ := writes(t, f)
	ticket := writing(f, r, c, 1)
	whole := string(message("hello"))
	write(ticket, whole[:7], 7, true)
	write(ticket, whole[7:], 3, true)
	c.want("HEADERS 1"+head+" x-head=h", "DATA 1 "+whole[:7], "DATA 1 "+whole[7:])
	f.End(ticket, &Status{Header: []string{"x-late", "l"}, Trailer: []string{"x-tail", "t"}})
	c.want("HEADERS 1 end grpc-status=0 x-tail=t")
	write(ticket, whole, 0, false)
	idle(t, f, c, n)
}

// writes returns what writes to calls, and what tells of room for more.
func writes(t *testing.T, f *Forwarder) (write func(ticket Ticket, p string, n int, ok bool), room chan struct{}) {
	room = make(chan struct{}, 1)
	return func(ticket Ticket, p string, n int, ok bool) {
		t.Helper()
		if got, alive := f.Write(ticket, []string{"x-head", "h"}, []byte(p), room); got != n || alive != ok {
			t.Errorf("of %d bytes %d were taken, %v; want %d, %v", len(p), got, alive, n, ok)
		}
	}, room
}

// What a reader that does not take it has no window for waits, and the writer learns when little of that is left.
func TestAnswersToASlowReader(t *testing.T) {
	f, r, c, n := start(t)
	write, room := writes(t, f)
	all := f.config.Window
	ticket := writing(f, r, c, 1)
	write(ticket, strings.Repeat("x", 2*all), all, true)
	got := received(c)
	if n := f.Stats().Answers; n != all-got {
		t.Errorf("%d bytes wait; want %d", n, all-got)
	}
	write(ticket, "y", 0, true)
	give := func(n int) {
		c.framer.WriteWindowUpdate(0, uint32(n))
		c.framer.WriteWindowUpdate(1, uint32(n))
		c.send()
		got += received(c)
	}
	if give(all - lowWater - got - 1); got != all-lowWater-1 || len(room) != 0 {
		t.Errorf("%d bytes came, and there is room: %v; want %d and none", got, len(room) != 0, all-lowWater-1)
	}
	if give(1); len(room) != 1 {
		t.Error("no room is told of")
	}
	<-room
	write(ticket, "y", 1, true)
	f.End(ticket, &Status{Code: 5, Message: "none"})
	if f.End(ticket, &Status{}) {
		t.Error("ended twice")
	}
	write(ticket, "z", 0, false)
	give(lowWater)
	c.framer.WriteWindowUpdate(0, 1)
	c.framer.WriteWindowUpdate(1, 1)
	c.send()
	c.want("DATA 1 y", "HEADERS 1 end grpc-status=5 grpc-message=none")
	idle(t, f, c, n)
}

// While memory is short less of an answer waits, and nothing is asked for before all of that has left, or when its reader leaves.
func TestAnswersWhileMemoryIsShort(t *testing.T) {
	f, r, c, n := start(t)
	write, room := writes(t, f)
	all := f.config.Window
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) // nothing leaves
	f.Tight(true)
	ticket := writing(f, r, c, 1)
	write(ticket, strings.Repeat("x", all), tightWindow, true)
	f.Tight(false)
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	write(ticket, "y", 0, false)
	if len(room) != 0 {
		t.Error("there is room in a call that is over")
	}
	idle(t, f, c, n)
}

// A connection may be lost with more calls than end at once.
func TestAnswersToAConnectionThatIsLost(t *testing.T) {
	f, r, c, _ := start(t)
	write, _ := writes(t, f)
	all := f.config.Window
	var ticket Ticket
	for id := uint32(1); id < 1+4*perTurn; id += 2 {
		ticket = writing(f, r, c, id)
	}
	c.frames()
	c.conn.Close()
	write(ticket, strings.Repeat("x", all), 0, false)
	if n := f.Stats().Answers; n != 0 {
		t.Errorf("%d bytes wait for a client that is gone", n)
	}
}

// received is how many bytes of bodies have come.
func received(c *peer) (n int) {
	for _, line := range c.frames() {
		if body, ok := strings.CutPrefix(line, "DATA "); ok {
			_, body, _ = strings.Cut(body, " ")
			n += len(body)
		}
	}
	return n
}
