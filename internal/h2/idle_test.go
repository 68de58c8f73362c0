package h2

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A client that has vanished does not hold its calls for ever.
func TestVanishedClient(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Silence, c.Keepalive = time.Hour, time.Hour })
	c.headers(1, true, request...)
	c.send()
	n.frames()
	pass(f, 29900*time.Millisecond)
	c.want()
	pass(f, 100*time.Millisecond)
	c.want("PING 0 " + pingOfKeepalive)
	c.framer.WritePing(true, [8]byte([]byte(pingOfKeepalive)))
	c.send()
	pass(f, 30*time.Second)
	c.want("PING 0 " + pingOfKeepalive)
	pass(f, 9900*time.Millisecond)
	if c.conn.Finished() {
		t.Error("the client has no ten seconds to answer")
	}
	pass(f, 100*time.Millisecond)
	if !c.conn.Finished() || c.conn.Err() != ErrSilent || len(r.done) != 1 || r.done[0].End != Cancelled {
		t.Errorf("finished %v: %v, %+v", c.conn.Finished(), c.conn.Err(), r.done)
	}
	n.want("RST_STREAM 1 CANCEL")
	idle(t, f, n)
}

// Calls in the background do not hold up a drain once they are released.
func TestRelease(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep=%v", keep), func(t *testing.T) { testRelease(t, keep) })
	}
}

func testRelease(t *testing.T, keep bool) {
	f, r, c, n := start(t)
	first := true
	r.route = func(call *Call) (*Conn, error) {
		if first {
			call.Background()
			call.Background()
		}
		first = false
		return n.conn, nil
	}
	c.headers(1, true, request...).headers(3, true, request...).headers(5, true, request...)
	c.send()
	first = true
	c.headers(7, true, request...)
	c.send()
	c.framer.WriteRSTStream(7, http2.ErrCodeCancel)
	c.send()
	n.frames()
	c.conn.Drain()
	c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
	c.send()
	answer := func(stream uint32) {
		n.headers(stream, true, ":status", "200", "grpc-status", "0")
		n.send()
	}
	n.headers(1, false, ":status", "200")
	n.data(1, false, message("attached"))
	answer(3)
	if f.Release(keep); c.conn.Finished() {
		t.Error("a call was cut off")
	}
	c.frames()
	answer(5)
	// It ends well, as if the node had ended it.
	c.want("HEADERS 5 end :status=200 grpc-status=0", "HEADERS 1 end grpc-status=0")
	if !c.conn.Finished() {
		t.Error("a call in the background holds up the drain")
	}
	if !keep {
		n.want("RST_STREAM 1 CANCEL")
	} else { // to the node it is open, and what comes of it is ignored
		n.want()
		n.data(1, false, message("late"))
		n.headers(1, true, "grpc-status", "0")
		n.send()
		n.want()
		if kept := f.Stats().Kept; kept != 1 || n.conn.Finished() {
			t.Errorf("kept %d, finished %v", kept, n.conn.Finished())
		}
	}
	if len(r.done) != 4 || r.done[2].End != AnsweredBy || r.done[3].End != Answered {
		t.Errorf("outcomes %+v", r.done)
	}
	idle(t, f, n)
}

// An endless call holds up no drain, and its client is told that it did not end well, also when its node is lost.
func TestEndless(t *testing.T) {
	for name, end := range map[string]func(f *Forwarder, c, n *peer){
		"a drain": func(_ *Forwarder, c, _ *peer) {
			c.conn.Drain()
			c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
			c.send()
		},
		"a drain that keeps sessions": func(f *Forwarder, c, _ *peer) {
			f.Release(true)
			c.conn.Drain()
			c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
			c.send()
		},
		"an old connection": func(f *Forwarder, c, n *peer) {
			for range 2 {
				c.conn.Retire()
				c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
				c.send()
				if all := append(c.frames(), n.frames()...); c.conn.Finished() ||
					slices.ContainsFunc(all, func(f string) bool { return strings.HasPrefix(f, "HEADERS") }) {
					c.t.Errorf("ends before its time: %q", all)
				}
			}
			c.conn.Drain()
		},
		"the node is lost": func(_ *Forwarder, _, n *peer) { n.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			r.route = func(call *Call) (*Conn, error) {
				call.Endless()
				return n.conn, nil
			}
			c.headers(1, false, request...)
			c.send()
			n.frames()
			n.headers(1, false, ":status", "200").data(1, false, message("a part"))
			n.send()
			c.frames()
			end(f, c, n)
			message := stopped.Message
			if name == "the node is lost" {
				message = lost.Message
			} else if n.want("RST_STREAM 1 CANCEL"); !c.conn.Finished() || f.Stats().Kept != 0 {
				t.Errorf("finished %v, kept %d", c.conn.Finished(), f.Stats().Kept)
			}
			got := slices.DeleteFunc(c.frames(), func(frame string) bool { return !strings.HasPrefix(frame, "HEADERS") })
			if want := []string{"HEADERS 1 end grpc-status=14 grpc-message=" + message}; !slices.Equal(got, want) {
				t.Errorf("the client was told %q; want %q", got, want)
			}
			idle(t, f, n)
		})
	}
}

// A call in the background that has no answer yet when it is let go did not end well: what
// was not sent is not executed, what was sent may have been.
func TestReleaseBeforeAnAnswer(t *testing.T) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) {
		call.Background()
		if _, whole := call.Message(); !whole {
			return nil, ErrNeedWhole
		}
		return n.conn, nil
	}
	c.headers(1, false, request...)
	c.headers(3, false, request...).data(3, true, message("attach"))
	c.send()
	n.frames()
	c.conn.Drain()
	c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
	c.send()
	c.frames()
	f.Release(false)
	want := []string{
		"HEADERS 3 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=the sidecar lets its " +
			"clients go; the call may have been executed",
		"RST_STREAM 1 REFUSED_STREAM",
	}
	got := c.frames()
	slices.Sort(got)
	if !slices.Equal(got, want) || !c.conn.Finished() {
		t.Errorf("finished %v, got %q; want %q", c.conn.Finished(), got, want)
	}
	n.want("RST_STREAM 1 CANCEL")
	idle(t, f, n)
}

// Before connections are closed with what is on them, clients learn what was surely not executed.
func TestCut(t *testing.T) {
	f, r, c, n := start(t)
	unheard := f.Accept()
	r.route = func(call *Call) (*Conn, error) {
		switch len(call.Path()) {
		case len("/a/parked"):
			return nil, ErrPark
		case len("/a/answered"):
			return nil, ErrMine
		}
		return n.conn, nil
	}
	to := func(path string) []string {
		pairs := slices.Clone(request)
		pairs[5] = path
		return pairs
	}
	c.headers(1, true, to("/a/sent")...).headers(3, true, to("/a/parked")...).headers(5, false, to("/a/parked")...).headers(7,
		true, to("/a/answered")...)
	c.send()
	n.frames()
	f.Cut()
	got := c.frames()
	slices.Sort(got)
	if want := []string{
		"GOAWAY 0 last=7 NO_ERROR", "RST_STREAM 3 REFUSED_STREAM", "RST_STREAM 5 REFUSED_STREAM",
	}; !slices.Equal(got, want) || c.conn.Finished() {
		t.Errorf("finished %v, got %q; want %q", c.conn.Finished(), got, want)
	}
	c.headers(9, true, to("/a/sent")...)
	c.send()
	n.want()
	c.want()
	if unheard.Take() != nil || unheard.Finished() {
		t.Error("a client that has said nothing is told something")
	}
	c.conn.Close()
	if f.Stats().Ends != [numEnds]uint64{Refused: 2, Cancelled: 2} || len(r.done) != 4 {
		t.Errorf("outcomes %+v", r.done)
	}
	idle(t, f)
}

// A connection that drains ends although the router keeps calls in the background open on it, whatever
// comes of Release: no call for which they are there can come over it any more.
func TestDrainEndsWhatTheRouterKeepsOpen(t *testing.T) {
	f, r, c, n := start(t)
	var calls []Ticket
	r.route = func(call *Call) (*Conn, error) {
		switch len(calls) {
		case 0:
			call.Background()
			calls = append(calls, call.Ticket())
			return nil, &Status{Body: []byte("attached"), Open: true}
		case 1:
			call.Background()
		}
		calls = append(calls, call.Ticket())
		return n.conn, nil
	}
	c.headers(1, true, request...).headers(3, true, request...).headers(5, true, request...)
	c.send()
	n.frames()
	n.headers(1, false, ":status", "200").data(1, false, message("attached")) // stream 3 of the client
	n.send()
	c.conn.Drain()
	c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
	c.send()
	c.frames()
	n.headers(3, true, ":status", "200", "grpc-status", "0")
	n.send()
	c.want("HEADERS 5 end :status=200 grpc-status=0")
	if c.conn.Finished() {
		t.Error("a call in the background is cut off, which a node keeps open")
	}
	n.headers(1, true, "grpc-status", "0")
	n.send()
	c.want("HEADERS 3 end grpc-status=0", "HEADERS 1 end grpc-status=0")
	if !c.conn.Finished() {
		t.Error("a call that the router keeps open holds up the drain")
	}
	if f.End(calls[0], &Status{}) || f.Stats().Ends != [numEnds]uint64{Answered: 2, AnsweredBy: 1} {
		t.Errorf("outcomes %+v", r.done)
	}
	idle(t, f, n)
}

// A call in the background whose answer is whole, and waits for its client to read, was executed: it
// is not told as one that was not.
func TestReleaseBehindAnAnswer(t *testing.T) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) {
		call.Background()
		return n.conn, nil
	}
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.headers(1, true, request...)
	c.send()
	n.frames()
	n.headers(1, false, ":status", "200").data(1, false, message("attached")).headers(1, true, "grpc-status", "0")
	n.send()
	c.conn.Drain()
	c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
	c.send()
	c.frames()
	f.Release(false)
	c.want("RST_STREAM 1 CANCEL")
	n.want()
	if len(r.done) != 1 || r.done[0].End != Answered || !c.conn.Finished() {
		t.Errorf("finished %v, outcomes %+v", c.conn.Finished(), r.done)
	}
	idle(t, f, n)
}

// The last call of a client that drains ends because its node is lost, and with it the
// client's connection, whose calls in the background are on the same node.
func TestReleaseWhileANodeIsLost(t *testing.T) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) {
		if len(call.Path()) == len("/a/Background") {
			call.Background()
		}
		return n.conn, nil
	}
	background := append([]string(nil), request...)
	for i := range background {
		if background[i] == ":path" {
			background[i+1] = "/a/Background"
		}
	}
	c.headers(1, false, background...).headers(3, true, request...).headers(5, true, background...).headers(7, true, background...)
	c.send()
	n.frames()
	c.conn.Drain()
	c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
	c.send()
	f.Release(false)
	n.conn.Close()
	if !c.conn.Finished() || len(r.done) != 4 || f.Stats().Nodes != 0 || f.Stats().Clients != 0 {
		t.Errorf("finished %v, outcomes %+v, %+v", c.conn.Finished(), r.done, f.Stats())
	}
	idle(t, f)
}

func TestHeadOfTheAnswer(t *testing.T) {
	f, r, c, n := start(t)
	compressed := false
	r.route = func(call *Call) (*Conn, error) {
		compressed = call.Compressed()
		return n.conn, nil
	}
	long := message(strings.Repeat("0123456789", 40))
	for i, chunks := range [][][]byte{{message("short")}, {long}, {long[:3], long[3:20], long[20:]}} {
		id := uint32(2*i + 1)
		body := message("request")
		body[0] = byte(i % 2)
		c.headers(id, false, request...).data(id, true, body)
		c.send()
		if compressed != (i == 1) {
			t.Errorf("call %d: compressed %v", i, compressed)
		}
		n.headers(id, false, ":status", "200")
		for _, p := range chunks {
			n.data(id, false, p)
		}
		n.headers(id, true, "grpc-status", "0")
		n.send()
		want := long[:headSize]
		if i == 0 {
			want = message("short")
		}
		if got := string(r.done[i].Head()); got != string(want) {
			t.Errorf("call %d: %q; want %q", i, got, want)
		}
	}
	c.frames()
	idle(t, f, c, n)
}

// No turn looks at the timeouts of more than perTurn connections, and each tick looks at all of them, also if some end meanwhile.
func TestTimeoutsAreLookedAtInParts(t *testing.T) {
	f, _, _, _ := start(t, func(c *Config) { c.ClientSilence = 5 * time.Second })
	var all []*peer
	for range 1000 {
		all = append(all, client(t, f))
	}
	for f.Advance(f.Now() + 900*time.Millisecond); f.Behind(); {
		f.Advance(f.Now())
	}
	at := f.Now()
	pinged := func() (n int) {
		for _, p := range all {
			if p.conn.looked > at {
				n++
			}
		}
		return n
	}
	for turn := 1; turn == 1 || f.Behind(); turn++ {
		before := pinged()
		f.Advance(at + tick)
		if n := pinged() - before; n > 256 || turn > 5 {
			t.Fatalf("turn %d looks at %d connections", turn, n)
		}
		for range 10 {
			i := (turn * 377) % len(all)
			all[i].conn.Close()
			all = append(all[:i], all[i+1:]...)
		}
	}
	if got := pinged(); got != len(all) {
		t.Errorf("%d of %d connections were looked at", got, len(all))
	}
	for end := f.Now() + 10*time.Second; f.Now() < end; {
		f.Advance(f.Now() + 10*time.Millisecond) // a tick takes fewer turns than there are
	}
	for _, p := range all {
		if p.conn.pinged == 0 {
			t.Fatal("a silent client was not pinged")
		}
	}
}

// A turn ends no more than perTurn calls whose time is up, and none is forgotten.
func TestCallsExpireInParts(t *testing.T) {
	f, r, c, n := start(t)
	const calls = 1000
	for i := range calls {
		c.headers(uint32(2*i+1), true, append(request, "grpc-timeout", "50m")...)
	}
	c.send()
	n.collect()
	for turn := 1; turn == 1 || f.Behind(); turn++ {
		before := len(r.done)
		f.Advance(time.Second + tick)
		if got := len(r.done) - before; got > 256 {
			t.Fatalf("turn %d ends %d calls", turn, got)
		}
		if turn == 1 { // its time is up at once, while others are under way
			c.headers(2*calls+1, true, append(request, "grpc-timeout", "1u")...)
			c.send()
		}
	}
	f.Advance(f.Now() + tick)
	if len(r.done) != calls+1 {
		t.Errorf("%d of %d calls have ended", len(r.done), calls+1)
	}
	idle(t, f, c, n)
}

// What a crowd used is kept for the next one for a while, and what is in use for longer.
func TestSparesAreDropped(t *testing.T) {
	const crowd = 50
	f, _, c, n := start(t, func(c *Config) { c.Silence, c.Keepalive = time.Hour, time.Hour })
	id := uint32(1)
	gone := func(calls int) {
		t.Helper()
		for range calls {
			c.headers(id, true, request...)
			id += 2
		}
		c.send()
		for at := id - uint32(2*calls); at < id; at += 2 {
			c.framer.WriteRSTStream(at, http2.ErrCodeCancel)
		}
		c.send()
		n.frames()
	}
	gone(crowd)
	buffers := [][]byte{f.buffer(), f.buffer(), f.buffer()}
	for _, b := range buffers {
		f.Recycle(b)
	}
	calls, kept := f.freeCount, f.kept
	if calls < crowd || kept < len(buffers)*bufferSize {
		t.Fatalf("%d calls and %d bytes are kept for use again", calls, kept)
	}
	for range 4 { // quarters of the time, and some are used in each
		gone(2)
		f.Recycle(f.buffer())
		if f.freeCount != calls || f.kept != kept {
			t.Fatalf("%d calls and %d bytes are kept; want %d and %d", f.freeCount, f.kept, calls, kept)
		}
		pass(f, spareTime/4-tick)
	}
	for range 8 {
		gone(2)
		f.Recycle(f.buffer())
		pass(f, spareTime/4)
	}
	if f.freeCount != 2 || f.kept != bufferSize {
		t.Errorf("%d calls and %d bytes are kept; want 2 and %d", f.freeCount, f.kept, bufferSize)
	}
	pass(f, 2*spareTime+tick)
	if f.freeCount != 0 || f.kept != 0 || f.freeCalls != nil {
		t.Errorf("%d calls and %d bytes are kept of nobody", f.freeCount, f.kept)
	}
	idle(t, f, c, n)
}
