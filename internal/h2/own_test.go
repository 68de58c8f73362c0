package h2

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// listener notes what a call of this process's own hears.
type listener struct {
	heard  []string
	ahead  bool
	left   bool   // it is not to be sent any more
	broken string // the method that panics
	ends   int
	out    Outcome
}

func (l *listener) note(what, format string, args ...any) {
	if l.broken == what {
		panic("broken")
	}
	l.heard = append(l.heard, fmt.Sprintf(what+format, args...))
}

func (l *listener) Going() bool { l.note("sent", ""); return !l.left }
func (l *listener) Header(h Headers, last bool) {
	var all []string
	h.Each(func(name, value []byte) { all = append(all, string(name)+"="+string(value)) })
	l.note("header", " %t %s", last, strings.Join(all, " "))
}
func (l *listener) Data(p []byte) bool { l.note("data", " %s", p); return l.ahead }
func (l *listener) Flush()             { l.note("flush", "") }
func (l *listener) End(o *Outcome, st *Status) {
	l.ends++
	l.out = *o
	text := ""
	if st != nil {
		text = fmt.Sprintf(" %d %s", st.Code, st.Message)
	}
	l.note("end", " %v %d%s", o.End, o.Status, text)
}

// take returns what was heard since.
func (l *listener) take() []string {
	heard := l.heard
	l.heard = nil
	return heard
}

func (l *listener) want(t *testing.T, lines ...string) {
	t.Helper()
	if got := l.take(); !slices.Equal(got, lines) {
		t.Errorf("heard\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(lines, "\n\t"))
	}
}

var ownFields = NewFields(request...)

func (l *listener) request(body string) *Request {
	return &Request{Fields: ownFields, Body: message(body), Listener: l}
}

const (
	answerHead = "HEADERS 1 " + requestLine
	lostText   = " 14 the connection to the node was lost; the call may have been executed"
)

func TestOwnCall(t *testing.T) {
	head, tail := []string{":status", "200", "content-type", "application/grpc"}, []string{"grpc-status", "0", "x-ydb-consumed-units", "7"}
	heardHead, heardTail := "header false :status=200 content-type=application/grpc", "header true grpc-status=0 x-ydb-consumed-units=7"
	for name, tc := range map[string]struct {
		act  func(f *Forwarder, n *peer)
		want []string
	}{
		"answered in one read": {func(_ *Forwarder, n *peer) {
			n.headers(1, false, head...).data(1, false, message("answer")).headers(1, true, tail...).send()
		}, []string{heardHead, "data " + string(message("answer")), heardTail, "end answered 0", "flush"}},
		"answered in two reads": {func(_ *Forwarder, n *peer) {
			n.headers(1, false, head...).data(1, false, message("answer")).send()
			n.headers(1, true, tail...).send()
		}, []string{heardHead, "data " + string(message("answer")), "flush", heardTail, "end answered 0", "flush"}},
		"a trailer alone": {func(_ *Forwarder, n *peer) {
			n.headers(1, true, append(slices.Clone(head), "grpc-status", "12")...).send()
		}, []string{"header true :status=200 content-type=application/grpc grpc-status=12", "end answered 12", "flush"}},
		"no trailer": {func(_ *Forwarder, n *peer) {
			n.headers(1, false, head...).data(1, true, message("answer")).send()
		}, []string{heardHead, "data " + string(message("answer")), "end answered -1", "flush"}},
		"cancelled by the node's trailer": {func(_ *Forwarder, n *peer) {
			n.headers(1, true, append(slices.Clone(head), "grpc-status", "1")...).send()
		}, []string{"header true :status=200 content-type=application/grpc grpc-status=1", "end answered 1", "flush"}},
		"reset": {func(_ *Forwarder, n *peer) { n.framer.WriteRSTStream(1, http2.ErrCodeInternal); n.send() },
			[]string{"end broken 13 13 the node reset the stream: 2"}},
		"reset for too much": {func(_ *Forwarder, n *peer) { n.framer.WriteRSTStream(1, http2.ErrCodeEnhanceYourCalm); n.send() },
			[]string{"end broken 8 8 the node reset the stream: 11"}},
		"refused": {func(_ *Forwarder, n *peer) { n.framer.WriteRSTStream(1, http2.ErrCodeRefusedStream); n.send() },
			[]string{"end refused -1"}},
		"cut by a node that stops": {func(_ *Forwarder, n *peer) { n.framer.WriteRSTStream(1, http2.ErrCodeCancel); n.send() },
			[]string{"end broken 14 14 the node cancelled the call, which may have been executed"}},
		"not taken before a GOAWAY": {func(_ *Forwarder, n *peer) { n.framer.WriteGoAway(0, http2.ErrCodeNo, nil); n.send() },
			[]string{"end refused -1"}},
		"taken back after a part": {func(_ *Forwarder, n *peer) {
			n.headers(1, false, head...).data(1, false, message("part"))
			n.framer.WriteRSTStream(1, http2.ErrCodeRefusedStream)
			n.send()
		}, []string{heardHead, "data " + string(message("part")),
			"end broken 14 14 the node cancelled the call, which may have been executed", "flush"}},
		"connection lost": {func(_ *Forwarder, n *peer) { n.conn.Close() }, []string{"end lost 14" + lostText}},
		"bad frame": {func(_ *Forwarder, n *peer) { n.data(1, false, []byte("x")).send() },
			[]string{"end broken 13 13 the node broke the protocol: DATA before HEADERS"}},
		"shelved": {func(_ *Forwarder, n *peer) { n.conn.Shelve() }, []string{"end lost 14" + lostText}},
		"half of an answer": {func(_ *Forwarder, n *peer) {
			n.headers(1, false, head...).data(1, false, []byte{0, 0, 0, 0, 9, 'a'}).send()
			n.conn.Close()
		}, []string{heardHead, "data \x00\x00\x00\x00\ta", "flush", "end lost 14" + lostText}},
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			l := &listener{}
			f.Start(n.conn, l.request("question"))
			n.want(answerHead, "DATA 1 end "+string(message("question")))
			l.want(t, "sent")
			tc.act(f, n)
			l.want(t, tc.want...)
			if l.ends != 1 || len(r.done) != 0 || f.stats.Buffered != 0 || f.stats.Held != 0 {
				t.Errorf("%d ends, %d calls of the router's, %d bytes and %d calls held", l.ends, len(r.done),
					f.stats.Buffered, f.stats.Held)
			}
			_ = c
		})
	}
}

// A call waits for the node's SETTINGS, for room among its streams, and is refused when the connection goes.
func TestOwnCallsWait(t *testing.T) {
	f, _, _, _ := start(t)
	slow := newPeer(t, f, f.Connect())
	var all [3]listener
	for i := range all {
		f.Start(slow.conn, all[i].request("question"))
	}
	slow.conn.Open()
	slow.in.Next(slow.in.Len())
	slow.collect()
	slow.in.Next(len(preface))
	slow.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	slow.framer.WriteSettingsAck()
	slow.send()
	for i := range all {
		want := []string{"sent"}
		if i > 0 {
			want = nil
		}
		all[i].want(t, want...)
	}
	slow.headers(1, true, ":status", "200", "grpc-status", "0").send()
	all[0].want(t, "header true :status=200 grpc-status=0", "end answered 0", "flush")
	all[1].want(t, "sent")
	slow.collect()
	slow.conn.Close()
	all[1].want(t, "end lost 14"+lostText)
	all[2].want(t, "end refused -1")
	if f.stats.Held != 0 {
		t.Errorf("%d calls are held", f.stats.Held)
	}
}

// Whether a call goes out is asked at the last moment: nothing leaves of one that nobody waits for.
func TestOwnCallsThatAreNotToGo(t *testing.T) {
	f, _, _, n := start(t)
	now, later := &listener{left: true}, &listener{}
	f.Start(n.conn, now.request("question"))
	now.want(t, "sent", "end cancelled -1")
	slow := f.Connect()
	f.Start(slow, later.request("question"))
	later.left = true
	slow.Open()
	p := newPeer(t, f, slow)
	p.collect()
	p.in.Next(len(preface))
	p.greet()
	later.want(t, "sent", "end cancelled -1")
	p.want()
	n.want()
	if f.stats.Held != 0 || f.stats.Forwarded != 0 {
		t.Errorf("%d calls held, %d sent", f.stats.Held, f.stats.Forwarded)
	}
}

// A call whose headers are more than its node takes is not sent.
func TestOwnCallsWithLargeHeaders(t *testing.T) {
	f, _, _, _ := start(t)
	n := node(t, f, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 500})
	l := &listener{}
	for _, size := range []int{20, 200} {
		r := l.request("question")
		r.More, r.Once, r.Timeout = NewFields("x-more", "m"), []string{"x-once", strings.Repeat("x", size)}, time.Second
		f.Start(n.conn, r)
	}
	l.want(t, "sent", "end sidecar 8 8 the headers have 647 bytes, with 32 for each field, and the node takes 500; the call was not sent")
	if n.conn.streams.n != 1 || !l.out.NotRun() {
		t.Errorf("%d calls were sent; %+v", n.conn.streams.n, l.out)
	}
}

func TestAbandon(t *testing.T) {
	f, _, _, n := start(t)
	l := &listener{}
	ticket := f.Start(n.conn, l.request("question"))
	n.frames()
	l.take()
	f.Abandon(ticket)
	n.want("RST_STREAM 1 CANCEL")
	l.want(t, "end cancelled -1")
	f.Abandon(ticket) // it is over
	f.Consumed(ticket, 5)
	n.want()
}

// A body that is longer than the windows goes out as they grow.
func TestLargeOwnRequest(t *testing.T) {
	f, _, _, _ := start(t)
	n := node(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	l := &listener{}
	body := strings.Repeat("b", 2500)
	f.Start(n.conn, l.request(body))
	sent := 0
	for range 3 {
		for _, line := range n.frames() {
			if data, ok := strings.CutPrefix(strings.Replace(line, " end ", " ", 1), "DATA 1 "); ok {
				sent += len(data)
			}
		}
		n.framer.WriteWindowUpdate(1, 1000)
		n.send()
	}
	if sent != 2505 || f.stats.Buffered != 0 {
		t.Errorf("%d bytes sent, %d wait; want 2505 and none", sent, f.stats.Buffered)
	}
}

// What is not read counts, and holds the node back; what is read ahead of the count does not hold it back.
func TestOwnCallsHoldTheNodeBack(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		f, _, _, n := start(t)
		l := &listener{ahead: ahead}
		ticket := f.Start(n.conn, l.request("question"))
		n.headers(1, false, ":status", "200").send()
		n.frames()
		piece, sent, window := make([]byte, 16<<10), 0, Default().Window
		for sent < window {
			n.data(1, false, piece).send()
			sent += len(piece)
		}
		updates := 0
		for _, line := range n.frames() {
			if strings.HasPrefix(line, "WINDOW_UPDATE 1 ") {
				updates++
			}
		}
		if (updates > 0) != ahead || f.stats.Buffered != sent {
			t.Errorf("ahead %t: %d updates of the window, %d bytes count; want %d", ahead, updates, f.stats.Buffered, sent)
		}
		f.Want(ticket)
		if wanted := len(n.frames()) > 0; wanted == ahead {
			t.Errorf("ahead %t: the window grew %t when more was wanted", ahead, wanted)
		}
		f.Consumed(ticket, sent)
		late := len(n.frames())
		if late > 0 || f.stats.Buffered != 0 {
			t.Errorf("ahead %t: %d frames when it was read, %d bytes count", ahead, late, f.stats.Buffered)
		}
		n.headers(1, true, "grpc-status", "0").send()
		if l.ends != 1 {
			t.Errorf("ahead %t: %d ends", ahead, l.ends)
		}
	}
}

// The call that holds most is ended when memory is short, also one of this process's own.
func TestOwnCallsGoWhenMemoryIsShort(t *testing.T) {
	f, _, _, n := start(t, func(c *Config) { c.Buffered = 300 << 10; c.Window = 256 << 10; c.MaxWindow = 256 << 10 })
	var all [2]listener
	for i := range all {
		f.Start(n.conn, all[i].request("question"))
		n.headers(uint32(2*i+1), false, ":status", "200").send()
	}
	piece := make([]byte, 16<<10)
	for range 15 { // 240 KB, and 80 KB
		n.data(1, false, piece).send()
	}
	f.Advance(3 * time.Second)
	for range 5 {
		n.data(3, false, piece).send()
	}
	if all[0].ends != 1 || all[0].out.End != AnsweredBy || all[1].ends != 0 || f.stats.Abuses[SlowReader] != 1 {
		t.Errorf("ends %d and %d, %v; want the one that holds most to have ended", all[0].ends, all[1].ends, all[0].out.End)
	}
	if f.stats.Buffered != 5*len(piece) {
		t.Errorf("%d bytes count; want those of the other call", f.stats.Buffered)
	}
}

// Only calls that are to last go on when their connection is shelved; it takes no more, and is not asked.
func TestShelve(t *testing.T) {
	f, _, _, n := start(t)
	var short, long, late listener
	f.Start(n.conn, short.request("question"))
	r := long.request("question")
	r.Lasts = true
	f.Start(n.conn, r)
	n.frames()
	n.conn.Silent = func() { t.Error("it is asked") }
	n.conn.Shelve()
	short.want(t, "sent", "end lost 14"+lostText)
	long.want(t, "sent")
	n.want("RST_STREAM 1 CANCEL")
	f.Start(n.conn, late.request("question"))
	late.want(t, "end refused -1")
	for i := range 100 {
		f.Advance(time.Duration(i) * time.Second)
	}
	n.want()
	n.headers(3, true, ":status", "200", "grpc-status", "0").send()
	long.want(t, "header true :status=200 grpc-status=0", "end answered 0", "flush")
	if !n.conn.Finished() {
		t.Error("the connection stays although nothing is left on it")
	}
}

func TestSilentIsTold(t *testing.T) {
	f, _, _, n := start(t)
	l := &listener{}
	f.Start(n.conn, l.request("question"))
	told := 0
	n.conn.Silent = func() { told++ }
	n.frames()
	for at := time.Second; told == 0 && at < 10*time.Second; at += tick {
		f.Advance(at)
	}
	n.want("PING 0 " + pingOfKeepalive)
	if told != 1 || n.conn.Finished() || l.ends != 0 {
		t.Errorf("told %d times, finished %t, %d calls ended", told, n.conn.Finished(), l.ends)
	}
}

// A connection that drains has been replaced: nobody shelves it.
func TestASilentConnectionThatDrainsEnds(t *testing.T) {
	f, _, _, n := start(t)
	l := &listener{}
	f.Start(n.conn, l.request("question"))
	n.frames()
	n.conn.Silent = func() { t.Error("it is told") }
	n.framer.WriteGoAway(1, http2.ErrCodeNo, nil)
	n.send()
	for at := time.Second; !n.conn.Finished() && at < 10*time.Second; at += tick {
		f.Advance(at)
	}
	if l.ends != 1 || l.out.End != Lost || n.conn.Err() != ErrSilent {
		t.Errorf("%d ends, %v, %v; want it to be lost for silence", l.ends, l.out.End, n.conn.Err())
	}
}

// A listener that panics loses its call, and no other.
func TestListenersThatPanic(t *testing.T) {
	silencePanics(t)
	for _, broken := range []string{"sent", "header", "data", "flush", "end"} {
		f, _, _, n := start(t)
		bad, good := &listener{broken: broken}, &listener{}
		f.Start(n.conn, bad.request("question"))
		f.Start(n.conn, good.request("question"))
		for id := uint32(1); id < n.conn.nextID; id += 2 {
			n.headers(id, false, ":status", "200").data(id, false, message("answer")).headers(id, true, "grpc-status", "0")
		}
		n.send()
		if good.ends != 1 || good.out.End != Answered || bad.ends != 1 {
			t.Errorf("%s: %d and %d ends, %v", broken, bad.ends, good.ends, good.out.End)
		}
		if n.frames(); n.err != nil || n.conn.Finished() {
			t.Errorf("%s: the connection ended: %v", broken, n.err)
		}
	}
}

// Nothing that is under way is forgotten when the forwarder itself fails.
func TestGivingUpEndsOwnCalls(t *testing.T) {
	f, _, _, n := start(t)
	waits := f.Connect()
	var sent, held listener
	ticket := f.Start(n.conn, sent.request("question"))
	f.Start(waits, held.request("question"))
	f.GiveUp(f.Renew())
	if sent.ends != 1 || held.ends != 1 {
		t.Errorf("%d and %d ends; want one of each", sent.ends, held.ends)
	}
	f.Abandon(ticket)
}

func BenchmarkOwnCall(b *testing.B) {
	f, _, _, n := start(b)
	l := &quiet{}
	r := &Request{Fields: ownFields, Body: message(strings.Repeat("q", 100)), Listener: l}
	block := slices.Clone(n.encode(":status", "200", "content-type", "application/grpc"))
	tail := slices.Clone(n.encode("grpc-status", "0"))
	b.ReportAllocs()
	for b.Loop() {
		id := n.conn.nextID
		f.Start(n.conn, r)
		n.collect()
		n.in.Reset()
		n.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
		n.framer.WriteData(id, false, r.Body)
		n.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: tail, EndHeaders: true, EndStream: true})
		n.send()
	}
	if l.ends == 0 {
		b.Fatal("no call ended")
	}
}

// quiet is a listener that notes nothing.
type quiet struct{ ends int }

func (q *quiet) Going() bool           { return true }
func (q *quiet) Header(Headers, bool)  {}
func (q *quiet) Data([]byte) bool      { return true }
func (q *quiet) Flush()                {}
func (q *quiet) End(*Outcome, *Status) { q.ends++ }
