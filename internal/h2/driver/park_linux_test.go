package driver

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// lodger is a ParkedHandler that does what its fields say.
type lodger struct {
	parked *Parked
	conn   net.Conn
	came   func(b []byte) Next // nil: what comes is kept, and the connection returns
	rests  func() Next         // nil: it stays
	left   chan struct{}
	back   chan bool
	read   []byte
}

func (o *lodger) Came(b []byte) Next {
	if o.came != nil {
		return o.came(b)
	}
	o.read = append(o.read, b...)
	return Returns
}

func (o *lodger) Left() { o.left <- struct{}{} }

func (o *lodger) Rests() Next {
	if o.rests != nil {
		return o.rests()
	}
	return Stays
}

func (o *lodger) Back(came bool) { o.back <- came }

// parkOne parks the server's side of a new connection.
func parkOne(t *testing.T, s *Shard, until time.Time, o *lodger) (client net.Conn, server *movable) {
	t.Helper()
	near, far := socketPair(t)
	_, _ = near.(*net.TCPConn).SetReadBuffer(64<<10), far.SetWriteBuffer(64<<10) // so that a large answer waits
	o.left, o.back = make(chan struct{}, 2), make(chan bool, 2)
	o.conn, o.parked = far, s.Prepare(far, o)
	if !o.parked.Park(until) {
		t.Fatal("it is not parked")
	}
	return near, far
}

// A parked connection is given back once: when its owner wants that of what comes, when its peer goes,
// when it is time, when the shard ends, or when it is wanted.
func TestParked(t *testing.T) {
	noLeaks(t)
	s := New(h2.Default(), &parking{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	one := func(want bool, until time.Time, do func(client net.Conn)) (*movable, *lodger) {
		t.Helper()
		o := &lodger{}
		client, server := parkOne(t, s, until, o)
		do(client)
		if came := <-o.back; came != want {
			t.Errorf("something came: %v; want %v", came, want)
		}
		if o.parked.Stop() {
			t.Error("it is given back twice")
		}
		return server, o
	}
	_, o := one(true, time.Time{}, func(client net.Conn) { _, _ = io.WriteString(client, "ask") })
	if string(o.read) != "ask" {
		t.Errorf("it says %q", o.read)
	}
	server, _ := one(false, time.Now().Add(time.Hour), func(client net.Conn) { _ = client.Close() })
	said := make([]byte, 3)
	if n, err := server.Read(said); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, %v; want its end", n, err)
	}
	begun := time.Now()
	one(false, begun.Add(2*timeouts), func(net.Conn) {})
	if took := time.Since(begun); took < 2*timeouts {
		t.Errorf("its time is up after %v", took)
	}
	o = &lodger{}
	client, server := parkOne(t, s, time.Time{}, o)
	if !o.parked.Stop() || o.parked.Stop() {
		t.Error("it is wanted, and is not given back once")
	}
	_, _ = io.WriteString(client, "ask")
	if _, err := io.ReadFull(server, said); err != nil || len(o.back) > 0 {
		t.Errorf("%v, and it was given back %d times", err, len(o.back))
	}
	if n := s.polled(); n != 0 {
		t.Errorf("%d connections have a place with the poller", n)
	}
	one(false, time.Time{}, func(net.Conn) { stop() })
	<-ended
	_, far := socketPair(t)
	if s.Prepare(far, &lodger{}).Park(time.Time{}) {
		t.Error("a shard that has ended parks")
	}
}

// Nothing is lost of a connection that is taken back at the moment at which something comes.
func TestParkedIsGivenBackOnce(t *testing.T) {
	noLeaks(t)
	s := runShard(t, &parking{})
	for range 500 {
		o := &lodger{}
		client, server := parkOne(t, s, time.Time{}, o)
		go func() { _, _ = io.WriteString(client, "x") }()
		if !o.parked.Stop() {
			<-o.back
		}
		if len(o.read) == 0 {
			if n, err := server.Read(make([]byte, 2)); n != 1 || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		if len(o.back) > 0 {
			t.Fatal("it is given back twice")
		}
	}
}

// serve answers requests as they say, "large" with those bytes.
func (o *lodger) serve(large []byte) func(b []byte) Next {
	return func(b []byte) Next {
		switch string(b) {
		case "now":
			o.parked.AnswerNow([][]byte{[]byte("in the "), []byte("turn")}, false)
		case "large":
			o.parked.AnswerNow([][]byte{large}, false)
		case "last":
			o.parked.AnswerNow([][]byte{[]byte("bye")}, true)
		default:
			go func() {
				o.parked.Sending()
				_, err := io.WriteString(o.conn, "by a goroutine")
				o.parked.Answered(err != nil)
			}()
		}
		return Busy
	}
}

// Requests are answered in the turn, and by a goroutine; a large answer to a peer that reads nothing holds up nobody.
func TestParkedAnswers(t *testing.T) {
	noLeaks(t)
	s := runShard(t, &parking{})
	large := bytes.Repeat([]byte("0123456789"), mostUnsent/50)
	a, b := &lodger{}, &lodger{}
	a.came, b.came = a.serve(large), b.serve(large)
	one, _ := parkOne(t, s, time.Time{}, a)
	other, _ := parkOne(t, s, time.Time{}, b)
	ask := func(c net.Conn, text, want string) {
		t.Helper()
		_, _ = io.WriteString(c, text)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("%q is answered %q, %v", text, got, err)
		}
	}
	_, _ = io.WriteString(one, "large")
	ended := make(chan bool, 5)
	for range 3 { // what is left of all is more than may wait
		o := &lodger{}
		o.came = o.serve(large)
		more, _ := parkOne(t, s, time.Time{}, o)
		_, _ = io.WriteString(more, "large")
		go func() { ended <- <-o.back }()
	}
	if <-ended {
		t.Error("an answer for which there is no room leaves its connection open")
	}
	for range 100 {
		ask(other, "now", "in the turn")
		ask(other, "later", "by a goroutine")
	}
	got := make([]byte, len(large))
	if _, err := io.ReadFull(one, got); err != nil || !bytes.Equal(got, large) {
		t.Errorf("the large answer: %v", err)
	}
	ask(one, "now", "in the turn")
	ask(one, "last", "bye")
	if <-a.back {
		t.Error("the last answer is not followed by the end")
	}
}

// A peer that leaves while its request is under way is noticed, and one that sends more is served by
// whoever gets the connection back, with nothing lost.
func TestParkedIsBusy(t *testing.T) {
	noLeaks(t)
	s := runShard(t, &parking{})
	o := &lodger{came: func([]byte) Next { return Busy }}
	client, _ := parkOne(t, s, time.Time{}, o)
	_, _ = io.WriteString(client, "ask")
	_ = client.Close()
	<-o.left
	o.parked.Answered(false)
	if <-o.back {
		t.Error("it is given back to be read")
	}

	began := make(chan struct{}, 1)
	o = &lodger{came: func([]byte) Next { began <- struct{}{}; return Busy }}
	client, server := parkOne(t, s, time.Time{}, o)
	_, _ = io.WriteString(client, "ask")
	<-began
	_, _ = io.WriteString(client, "more")
	if o.parked.Stop() {
		t.Error("it is taken back while it is busy")
	}
	o.parked.Answered(false)
	if !<-o.back {
		t.Error("it is not given back")
	}
	said := make([]byte, 5)
	if n, err := server.Read(said); err != nil || string(said[:n]) != "more" {
		t.Errorf("%q, %v", said[:n], err)
	}
	if len(o.left) > 0 {
		t.Error("a peer that sends more has left")
	}
}

// What panics ends its connection, and no other.
func TestParkedPanics(t *testing.T) {
	noLeaks(t)
	s := runShard(t, &parking{})
	for _, o := range []*lodger{
		{came: func([]byte) Next { panic("came") }},
		{came: func([]byte) Next { return Busy }, rests: func() Next { panic("rests") }},
	} {
		client, _ := parkOne(t, s, time.Time{}, o)
		_, _ = io.WriteString(client, "ask")
		if o.rests != nil {
			for len(o.back) == 0 {
				o.parked.Answered(false)
			}
		}
		if <-o.back {
			t.Error("it goes on")
		}
	}
	o := &lodger{}
	client, _ := parkOne(t, s, time.Time{}, o)
	_, _ = io.WriteString(client, "ask")
	<-o.back
}
