package h2

import (
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A node is asked after 2 s of silence, every 10 s while it only answers that, again
// after data, and given up 1 s after it does not.
func TestSilence(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.ClientSilence = time.Hour })
	pass(f, time.Minute)
	n.want() // no calls, no questions
	n.framer.WriteWindowUpdate(0, 1)
	c.headers(1, false, request...).headers(3, true, request...)
	n.send()
	c.send()
	n.frames()
	answer := func() {
		n.want("PING 0 " + pingOfKeepalive)
		pass(f, 900*time.Millisecond)
		n.framer.WritePing(true, [8]byte([]byte(pingOfKeepalive)))
		n.send()
	}
	pass(f, 1900*time.Millisecond)
	n.want()
	pass(f, 100*time.Millisecond)
	answer()
	for range 3 {
		pass(f, 9*time.Second)
		n.want()
		pass(f, 100*time.Millisecond)
		answer()
	}
	n.headers(1, false, ":status", "200")
	n.send()
	pass(f, 2*time.Second)
	answer()
	pass(f, time.Second)
	n.data(1, false, message("m"))
	n.send()
	pass(f, 2*time.Second)
	n.want("PING 0 " + pingOfKeepalive)
	c.headers(5, true, request...)
	c.send() // does not leave
	pass(f, 900*time.Millisecond)
	if n.conn.Finished() {
		t.Error("the node has no second to answer")
	}
	f.Advance(f.Now() + 2*time.Second) // this process stood still
	if n.conn.Finished() {
		t.Error("an answer that may wait to be read is taken for silence")
	}
	c.frames()
	pass(f, time.Second)
	if !n.conn.Finished() || n.conn.Err() != ErrSilent {
		t.Errorf("a silent node stays: %v", n.conn.Err())
	}
	if len(r.done) != 3 || f.Stats().Nodes != 0 {
		t.Fatalf("outcomes %+v", r.done)
	}
	for _, o := range r.done {
		if o.NotRun() != (o.End == Refused) || !o.NotRun() && o.End != Lost || o.Node != n.conn {
			t.Errorf("outcome %+v", o)
		}
	}
	n.want("GOAWAY 0 last=0 NO_ERROR") // and not the call that was refused
	idle(t, f, c)
}

func TestWhyConnectionsEnd(t *testing.T) {
	f, r, c, n := start(t)
	c.headers(1, true, request...)
	c.send()
	n.collect()
	n.conn.Close()
	if n.conn.Err() != ErrLost || r.done[0].End != Lost {
		t.Errorf("closed: %v, %+v", n.conn.Err(), r.done[0])
	}
	never := f.Connect()
	r.route = func(call *Call) (*Conn, error) {
		if never.Usable() {
			return never, nil
		}
		return nil, &Status{Code: unavailable, Message: never.Err().Error()}
	}
	c.headers(3, true, request...)
	c.send()
	never.Close()
	if never.Err() != ErrUnreachable || r.done[1].End != AnsweredBy || !r.done[1].NotRun() || r.done[1].Status != unavailable {
		t.Errorf("never connected: %v, %+v", never.Err(), r.done[1])
	}
	bad := node(t, f)
	bad.framer.WriteRawFrame(http2.FrameData, 0, 0, nil)
	bad.send()
	if err, ok := bad.conn.Err().(*ConnError); !ok || err.Code != ProtocolError {
		t.Errorf("a fault: %v", bad.conn.Err())
	}
	good := node(t, f)
	if good.conn.Drain(); !good.conn.Finished() || good.conn.Err() != nil {
		t.Errorf("drained: %v", good.conn.Err())
	}
	unmade := f.Connect()
	if unmade.Drain(); !unmade.Finished() || unmade.Take() != nil {
		t.Error("a connection that does not stand yet and is drained says something")
	}
	c.frames()
	idle(t, f, c)
}

// A call ends with its deadline at the latest, whatever the node and the client do.
func TestDeadlines(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.ClientSilence = time.Hour })
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
	for i, timeout := range []string{"1S", "200m", "70S", "1S", "1S", "1S", "0n"} {
		c.headers(uint32(2*i+1), i != 5, append(request, "grpc-timeout", timeout)...)
	}
	c.send()
	n.frames()
	c.want("SETTINGS 0", "HEADERS 13 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up")
	n.headers(7, false, ":status", "200").data(7, false, message("the client does not read this"))
	n.headers(9, false, ":status", "200").data(9, false, message("and not this")).headers(9, true, "grpc-status", "0")
	n.headers(11, true, ":status", "200", "grpc-status", "0") // the client does not end its side, nor does the node
	n.send()
	c.frames()
	pass(f, 200*time.Millisecond)
	c.want("HEADERS 3 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up")
	n.want("RST_STREAM 3 CANCEL")
	pass(f, 700*time.Millisecond)
	c.want()
	pass(f, 200*time.Millisecond)
	c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up",
		"RST_STREAM 7 CANCEL", "RST_STREAM 9 CANCEL", "RST_STREAM 11 CANCEL")
	n.want("RST_STREAM 1 CANCEL", "RST_STREAM 7 CANCEL", "RST_STREAM 11 CANCEL")
	for i, want := range []struct {
		end    End
		status int
		notRun bool
	}{{Expired, 4, true}, {Expired, 4, false}, {Expired, 4, false}, {Expired, -1, false}, {Answered, 0, false}, {Answered, 0, false}} {
		if o := r.done[i]; o.End != want.end || o.Status != want.status || o.NotRun() != want.notRun {
			t.Errorf("outcome %d: %+v; want %+v", i, o, want)
		}
	}
	n.framer.WriteWindowUpdate(0, 1) // not silent
	n.send()
	for range 80 {
		n.framer.WriteWindowUpdate(0, 1)
		n.send()
		pass(f, time.Second)
	}
	if len(r.done) != 7 || r.done[6].Ended-r.done[6].Began > 70*time.Second+2*tick || r.done[6].Ended-r.done[6].Began < 70*time.Second {
		t.Errorf("after more than a turn of the wheel: %+v", r.done)
	}
	c.frames()
	idle(t, f, c, n)
	for i := range f.wheel.slots {
		if head := &f.wheel.slots[i]; head.next != head {
			t.Fatal("timers are left")
		}
	}
}

// The sidecar's own answer may be a message; it goes out in order, within the windows.
func TestAnswerWithBody(t *testing.T) {
	f, r, c, n := start(t)
	to := r.route
	answer := &Status{Body: []byte("a status of YDB")}
	r.route = func(*Call) (*Conn, error) { return nil, answer }
	head, body := " :status=200 content-type=application/grpc", string(message("a status of YDB"))
	c.headers(1, true, request...)
	c.send()
	c.want("HEADERS 1"+head, "DATA 1 "+body, "HEADERS 1 end grpc-status=0")
	c.headers(3, false, request...)
	c.send()
	c.want("HEADERS 3"+head, "DATA 3 "+body, "HEADERS 3 end grpc-status=0", "RST_STREAM 3 NO_ERROR")

	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 8})
	c.headers(5, true, request...)
	c.send()
	c.want("SETTINGS 0", "HEADERS 5"+head, "DATA 5 "+body[:8])
	c.framer.WriteWindowUpdate(5, 8)
	c.send()
	c.want("DATA 5 " + body[8:16])
	c.framer.WriteWindowUpdate(5, 8)
	c.send()
	c.want("DATA 5 "+body[16:], "HEADERS 5 end grpc-status=0")

	// The node's headers are out: the message still has its place. After part of a
	// message it has none, and the call must not look as if it had gone well.
	r.route = to
	c.headers(7, true, request...).headers(9, true, request...)
	c.send()
	n.frames()
	n.headers(1, false, ":status", "200").headers(3, false, ":status", "200").data(3, false, []byte("part of it"))
	n.send()
	c.want("HEADERS 7 :status=200", "HEADERS 9 :status=200", "DATA 9 part of ")
	c.conn.streams.get(7).call.fail(answer)
	c.conn.streams.get(9).call.fail(answer)
	n.want("RST_STREAM 1 CANCEL", "RST_STREAM 3 CANCEL")
	c.framer.WriteWindowUpdate(7, 100)
	c.framer.WriteWindowUpdate(9, 100)
	c.send()
	c.want("DATA 7 "+body[:8], "DATA 7 "+body[8:], "HEADERS 7 end grpc-status=0", "DATA 9 it", "HEADERS 9 end grpc-status=14")
	if len(r.done) != 5 || r.done[0].Status != 0 || r.done[0].End != AnsweredBy || r.done[4].Status != 14 {
		t.Errorf("outcomes %+v", r.done)
	}
	c.headers(11, true, request...).headers(13, true, request...)
	r.route = func(*Call) (*Conn, error) { return nil, answer }
	c.send()
	c.framer.WriteRSTStream(11, http2.ErrCodeCancel)
	c.send()
	c.conn.Close() // while some of it waits
	idle(t, f, n)
}

// A client that does not react does not hold up a drain, and one that has said nothing
// is told nothing.
func TestDrainOfASilentClient(t *testing.T) {
	f, _, c, _ := start(t, func(c *Config) { c.Silence = time.Minute })
	unheard, late := f.Accept(), newPeer(t, f, f.Accept())
	c.conn.Drain()
	unheard.Drain()
	late.conn.Drain()
	late.out.WriteString(preface)
	late.greet()
	c.headers(1, true, request...)
	c.send()
	c.want("GOAWAY 0 last=2147483647 NO_ERROR", "PING 0 "+pingOfDrain)
	if pass(f, 4900*time.Millisecond); c.conn.Finished() || unheard.Finished() || unheard.Take() != nil {
		t.Error("no time to react")
	}
	pass(f, 100*time.Millisecond)
	c.want("GOAWAY 0 last=1 NO_ERROR")
	if c.conn.Finished() || !late.conn.Finished() || !unheard.Finished() || unheard.Take() != nil {
		t.Errorf("finished: one with a call %v, one that greeted late %v, one that said nothing %v", c.conn.Finished(),
			late.conn.Finished(), unheard.Finished())
	}
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	if !c.conn.Finished() {
		t.Error("the connection stays after its last call")
	}
	if f.Stats().Clients != 0 {
		t.Errorf("%d clients", f.Stats().Clients)
	}
}

// Nothing is sent to a client before its first byte.
func TestClientIsGreetedLate(t *testing.T) {
	f, _, _, _ := start(t)
	p := newPeer(t, f, f.Accept())
	if p.conn.Take() != nil || len(f.Dirty(nil)) > 0 {
		t.Error("something is to be written")
	}
	p.out.WriteString(preface[:1])
	p.send()
	p.want("SETTINGS 0", "WINDOW_UPDATE 0 "+strconv.Itoa(f.config.ConnWindow-defaultWindow))
	silent := f.Accept()
	pass(f, 11*time.Second)
	if !silent.Finished() || silent.Take() != nil || !p.conn.Finished() || f.Stats().Abuses[SlowHandshake] != 2 {
		t.Errorf("one that says nothing: finished %v; one that goes on saying nothing: %v; %v", silent.Finished(),
			p.conn.Finished(), f.Stats().Abuses)
	}
}
