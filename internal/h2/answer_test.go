package h2

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func TestAnsweredHereAndKeptOpen(t *testing.T) {
	const head = " :status=200 content-type=application/grpc"
	f, r, c, n := start(t, func(c *Config) { c.ClientSilence = 1 << 60 })
	var ticket Ticket
	r.route = func(call *Call) (*Conn, error) {
		ticket = call.Ticket()
		return nil, &Status{Body: []byte("first"), Open: true}
	}
	c.headers(1, false, request...).data(1, true, message("attach"))
	c.send()
	c.want("HEADERS 1"+head, "DATA 1 "+string(message("first")))
	f.Advance(time.Hour)
	if !f.End(ticket, &Status{Body: []byte("second"), Open: true}) {
		t.Error("no second message")
	}
	c.want("DATA 1 " + string(message("second")))
	f.Later(ticket, &Status{Body: []byte("last")})
	c.want()
	f.Advance(2 * time.Hour)
	c.want("DATA 1 "+string(message("last")), "HEADERS 1 end grpc-status=0")
	if f.End(ticket, &Status{}) {
		t.Error("ended twice")
	}
	// The client ends it, or its time does.
	c.headers(3, false, request...).data(3, true, message("attach"))
	c.send()
	c.want("HEADERS 3"+head, "DATA 3 "+string(message("first")))
	c.framer.WriteRSTStream(3, http2.ErrCodeCancel)
	c.send()
	c.want()
	c.headers(5, false, append(request, "grpc-timeout", "5S")...).data(5, true, message("attach"))
	c.send()
	c.want("HEADERS 5"+head, "DATA 5 "+string(message("first")))
	f.Advance(2*time.Hour + 6*time.Second)
	c.want("HEADERS 5 end grpc-status=4 grpc-message=the call's time is up")
	idle(t, f, c, n)
	if len(r.done) != 3 || r.done[0].End != AnsweredBy || r.done[1].End != Cancelled || r.done[2].End != AnsweredBy {
		t.Errorf("outcomes %+v", r.done)
	}
}

// A call that is the router's own waits for nothing else: neither for its message, nor for
// longer than its caller does.
func TestTheRouterAnswers(t *testing.T) {
	const head = " :status=200 content-type=application/grpc"
	f, r, c, n := start(t, func(c *Config) { c.ClientSilence = 1 << 60 })
	var tickets []Ticket
	r.route = func(call *Call) (*Conn, error) {
		if _, whole := call.Message(); !whole {
			return nil, ErrNeedWhole
		}
		all := map[string]string{}
		call.Headers(func(name, value []byte) { all[string(name)] = string(value) })
		if all[":method"] != "POST" || all["te"] != "trailers" || all["x-own"] != "1" {
			t.Errorf("got the headers %v", all)
		}
		tickets = append(tickets, call.Ticket())
		return nil, ErrMine
	}
	own := append(slices.Clone(request), "x-own", "1")
	for id := uint32(1); id <= 9; id += 2 {
		fields := own
		if id == 9 {
			fields = append(slices.Clone(own), "grpc-timeout", "5S")
		}
		body := message("request")
		c.headers(id, false, fields...).data(id, false, body[:7])
		c.send()
		c.want()
		c.data(id, id != 7, body[7:])
		c.send()
		c.want()
	}
	if f.Stats().Held != 0 || f.Stats().Buffered != 0 {
		t.Errorf("%d calls and %d bytes are held", f.Stats().Held, f.Stats().Buffered)
	}
	f.Advance(6 * time.Second)
	c.want("HEADERS 9 end" + head + " grpc-status=4 grpc-message=the call's time is up")
	f.Advance(2 * f.config.HoldTimeout)
	c.want()
	for i, st := range []Status{
		{Body: []byte("answer"), Header: []string{"x-head", "h"}, Trailer: []string{"x-tail", "t"}},
		{Code: 5, Message: "none", Header: []string{"x-head", "h"}, Trailer: []string{"x-tail", "t"}},
		{Body: []byte{}},
		{Body: []byte("early")},
	} {
		if !f.End(tickets[i], &st) || f.End(tickets[i], &st) {
			t.Errorf("call %d: want it to end once", i)
		}
	}
	c.want("HEADERS 1"+head+" x-head=h", "DATA 1 "+string(message("answer")), "HEADERS 1 end grpc-status=0 x-tail=t",
		"HEADERS 3 end"+head+" x-head=h grpc-status=5 grpc-message=none x-tail=t",
		"HEADERS 5"+head, "DATA 5 "+string(message("")), "HEADERS 5 end grpc-status=0",
		"HEADERS 7"+head, "DATA 7 "+string(message("early")), "HEADERS 7 end grpc-status=0", "RST_STREAM 7 NO_ERROR")
	idle(t, f, c, n)
	if len(r.done) != 5 {
		t.Errorf("outcomes %+v", r.done)
	}
}

// An answer made here waits for the end of the request if that is in hand: no reset.
func TestAnsweredHereWithoutReset(t *testing.T) {
	const answer = " :status=200 content-type=application/grpc"
	f, r, c, n := start(t)
	r.route = func(*Call) (*Conn, error) { return nil, &Status{Body: []byte("made here")} }
	c.headers(1, false, request...).data(1, true, message("create"))
	c.send()
	c.want("HEADERS 1"+answer, "DATA 1 "+string(message("made here")), "HEADERS 1 end grpc-status=0")
	c.headers(3, false, request...)
	c.send()
	c.want("HEADERS 3"+answer, "DATA 3 "+string(message("made here")), "HEADERS 3 end grpc-status=0", "RST_STREAM 3 NO_ERROR")
	idle(t, f, c, n)
}

// seen is an Observer.
type seen struct {
	client, node bytes.Buffer
	refuse       string
}

func (s *seen) Observe(client bool, p []byte) error {
	if s.refuse != "" && bytes.Contains(p, []byte(s.refuse)) {
		return &Status{Body: []byte("refused")}
	}
	if client {
		s.client.Write(p)
	} else {
		s.node.Write(p)
	}
	return nil
}

func TestBodiesAreObserved(t *testing.T) {
	for name, held := range map[string]bool{"at once": false, "held": true} {
		t.Run(name, func(t *testing.T) {
			bodiesAreObserved(t, held)
		})
	}
}

func bodiesAreObserved(t *testing.T, held bool) {
	f, r, c, n := start(t)
	var o *seen
	var ticket Ticket
	parked := false
	r.route = func(call *Call) (*Conn, error) {
		ticket = call.Ticket()
		if held && !parked {
			parked = true
			return nil, ErrPark
		}
		call.Observe(o)
		call.Splice(0, 3, []byte("instead"))
		return n.conn, nil
	}
	call := func(id uint32, refuse string) {
		o, parked = &seen{refuse: refuse}, false
		c.headers(id, false, request...).data(id, false, message("old question"))
		c.send()
		c.data(id, false, message("two"))
		if c.send(); held {
			f.Resume(ticket)
		}
		c.data(id, true, message("three"))
		c.send()
	}
	asked := string(message("old question")) + string(message("two")) + string(message("three"))
	call(1, "")
	n.frames()
	n.headers(1, false, ":status", "200", "content-type", "application/grpc").data(1, false, message("answer")).data(1,
		false, message("more"))
	n.headers(1, true, "grpc-status", "0")
	n.send()
	if got := o.client.String(); got != asked {
		t.Errorf("of the client %q; want %q", got, asked)
	}
	if got, want := o.node.String(), string(message("answer"))+string(message("more")); got != want {
		t.Errorf("of the node %q; want %q", got, want)
	}
	c.frames()
	for i, refuse := range []string{"question", "three", "answer"} {
		id, to := uint32(3+2*i), n.conn.nextID
		call(id, refuse)
		if refuse == "answer" {
			n.frames()
			n.headers(to, false, ":status", "200", "content-type", "application/grpc").data(to, false, message("answer"))
			n.send()
		}
		got := c.frames()
		if all := fmt.Sprint(got); !bytes.Contains([]byte(all), []byte("end grpc-status=")) {
			t.Errorf("refused for %q: %v", refuse, got)
		}
		n.frames()
	}
	if len(r.done) != 4 {
		t.Errorf("outcomes %+v", r.done)
	}
	idle(t, f, c, n)
}

// lateRouter is a Latecomer.
type lateRouter struct{ *router }

func (lateRouter) Late(*Call) error { return &Status{Body: []byte("overloaded")} }

func TestLateIsForTheRouterToSay(t *testing.T) {
	r := &router{route: func(*Call) (*Conn, error) { return nil, ErrPark }}
	config := Default()
	config.ClientSilence = 1 << 60
	f := New(config, lateRouter{r})
	f.Advance(time.Second)
	c := client(t, f)
	c.headers(1, false, request...).data(1, true, message("q"))
	c.headers(3, false, append(request, "grpc-timeout", "1S")...).data(3, true, message("q"))
	c.send()
	f.Advance(3 * time.Second)
	c.want("HEADERS 3 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up")
	f.Advance(time.Second + config.HoldTimeout + time.Second)
	c.want("HEADERS 1 :status=200 content-type=application/grpc", "DATA 1 "+string(message("overloaded")), "HEADERS 1 end grpc-status=0")
	idle(t, f, c)
}

func TestEndOfAConnectionIsTold(t *testing.T) {
	f, r, c, n := start(t)
	ended := 0
	r.route = func(call *Call) (*Conn, error) {
		call.Client().Ended = func() {
			if ended++; len(r.done) != 1 {
				t.Error("told before its calls have ended")
			}
		}
		return n.conn, nil
	}
	c.headers(1, false, request...)
	c.send()
	c.conn.Close()
	c.conn.Close()
	if ended != 1 {
		t.Errorf("told %d times", ended)
	}
	if err := c.conn.Receive([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	idle(t, f, n)
}

// Headers that are more than a peer takes fail their call, and not the connection.
func TestHeadersThatAPeerDoesNotTake(t *testing.T) {
	limit := http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 550}
	long := strings.Repeat("x", 500)
	t.Run("a node", func(t *testing.T) {
		f, r, c, _ := start(t)
		n := node(t, f, limit)
		r.route = func(call *Call) (*Conn, error) {
			if string(call.Header(FirstName)) == "short" { // what is replaced does not count
				call.Remove(FirstName + 1)
			}
			return n.conn, nil
		}
		c.headers(1, true, append(slices.Clone(request), "x-ydb-database", "long", "x-ydb-trace-id", long)...)
		c.headers(3, true, append(slices.Clone(request), "x-ydb-database", "short", "x-ydb-trace-id", long)...)
		c.send()
		c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=8 " +
			"grpc-message=the headers have 913 bytes, with 32 for each field, and the node takes 550; the call was not sent")
		n.want("HEADERS 1 end " + requestLine + " x-ydb-database=short")
		n.headers(1, true, ":status", "200", "grpc-status", "0")
		n.send()
		c.frames()
		if len(r.done) != 2 || !r.done[0].NotRun() || n.conn.Finished() {
			t.Errorf("outcomes %+v", r.done)
		}
		idle(t, f, c, n)
	})
	for name, tc := range map[string]struct {
		head, trailer []string
		want          string
	}{
		"a client, headers": {[]string{"x-long", long}, nil,
			"HEADERS 1 end :status=200 content-type=application/grpc grpc-status=13 grpc-message=the headers have"},
		"a client, a trailer": {nil, []string{"grpc-status", "5", "x-long", long},
			"HEADERS 1 :status=200\nHEADERS 1 end grpc-status=5 grpc-message=the headers have"},
		"a client, a trailer of none": {nil, []string{"grpc-status", "0", "x-long", long},
			"HEADERS 1 :status=200\nHEADERS 1 end grpc-status=13 grpc-message=the headers have"},
		"a client, informational": {[]string{"x-long", long}, nil, "HEADERS 1 :status=200"},
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			c.framer.WriteSettings(limit)
			c.headers(1, true, request...)
			c.send()
			c.frames()
			n.frames()
			status := "200"
			if strings.HasSuffix(name, "informational") {
				n.headers(1, false, append([]string{":status", "103"}, tc.head...)...)
				tc.head = nil
			}
			n.headers(1, false, append([]string{":status", status}, tc.head...)...)
			if tc.trailer != nil {
				n.headers(1, true, append(slices.Clone(tc.trailer), "x-more", long)...)
			}
			n.send()
			if got := strings.Join(c.frames(), "\n"); !strings.HasPrefix(got, tc.want) || c.conn.Finished() || n.conn.Finished() {
				t.Errorf("got %s", got)
			}
			if tc.trailer != nil { // its call has ended at the node as the node says
				if len(r.done) != 1 || r.done[0].End != Answered || fmt.Sprint(r.done[0].Status) != tc.trailer[1] {
					t.Errorf("outcomes %+v", r.done)
				}
				n.want()
			}
			c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
			c.send()
			idle(t, f, c, n)
		})
	}
}

// A call that is expelled ends wherever it is: here, at a node, or in the middle of its answer.
func TestExpelledCalls(t *testing.T) {
	f, r, c, n := start(t, func(*Config) {})
	var tickets []Ticket
	r.route = func(call *Call) (*Conn, error) {
		tickets = append(tickets, call.Ticket())
		if len(tickets) == 1 {
			return nil, ErrPark
		}
		return n.conn, nil
	}
	c.headers(1, true, request...).headers(3, true, request...).headers(5, true, request...)
	c.send()
	n.collect()
	n.headers(3, false, ":status", "200", "content-type", "application/grpc").data(3, false, message("part"))
	n.send()
	c.frames()
	n.frames()
	for _, ticket := range append(tickets, Ticket{tickets[0].call, tickets[0].generation + 7}) {
		f.Expel(ticket, &Status{Code: 8, Message: "no room"})
	}
	f.CatchUp()
	const head = " :status=200 content-type=application/grpc"
	c.want("HEADERS 1 end"+head+" grpc-status=8 grpc-message=no room",
		"HEADERS 3 end"+head+" grpc-status=8 grpc-message=no room", "HEADERS 5 end grpc-status=8 grpc-message=no room")
	n.want("RST_STREAM 1 CANCEL", "RST_STREAM 3 CANCEL")
	idle(t, f, c, n)
	if len(r.done) != 3 {
		t.Errorf("outcomes %+v", r.done)
	}
}
