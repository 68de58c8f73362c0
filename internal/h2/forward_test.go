package h2

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

func TestUnaryCall(t *testing.T) {
	f, r, c, n := start(t)
	for _, chunk := range []int{0, 1} {
		c.chunk, n.chunk = chunk, chunk
		for i := range uint32(3) {
			id := n.conn.nextID
			c.headers(id, false, append(request, "x-ydb-trace-id", strings.Repeat("t", int(i)+1))...).data(id, true, message("question"))
			c.send()
			n.want("HEADERS "+itoa(id)+" "+requestLine+" x-ydb-trace-id="+strings.Repeat("t", int(i)+1),
				"DATA "+itoa(id)+" end "+string(message("question")))
			n.headers(id, false, ":status", "200", "content-type", "application/grpc").data(id, false, message("answer"))
			n.headers(id, true, "grpc-status", "0", "grpc-message", "")
			n.send()
			c.want("HEADERS "+itoa(id)+" :status=200 content-type=application/grpc", "DATA "+itoa(id)+" "+string(message("answer")),
				"HEADERS "+itoa(id)+" end grpc-status=0 grpc-message=")
		}
	}
	idle(t, f, c, n)
	if len(r.done) != 6 || r.done[0].Status != 0 || r.done[0].End != Answered || r.done[0].Request != 13 || r.done[0].Answer != 11 {
		t.Errorf("outcomes %+v", r.done)
	}
}

func itoa(n uint32) string {
	return strings.TrimLeft(string([]byte{'0' + byte(n/10), '0' + byte(n%10)}), "0")
}

func TestTrailersOnlyAndEarlyAnswer(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, false, request...)
	c.send()
	n.want("HEADERS 1 " + requestLine)
	n.headers(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "12")
	n.framer.WriteRSTStream(1, http2.ErrCodeNo)
	n.send()
	c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=12", "RST_STREAM 1 NO_ERROR")
	c.data(1, true, []byte("late")) // on its way when the reset came
	if err := c.send(); err != nil {
		t.Error(err)
	}
	c.want()
	idle(t, f, c, n)
}

func TestResetsPass(t *testing.T) {
	f, r, c, n := start(t)
	c.headers(1, false, request...).headers(3, false, request...).headers(5, true, request...)
	c.send()
	n.frames()
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	n.want("RST_STREAM 1 CANCEL")
	n.framer.WriteRSTStream(3, http2.ErrCodeEnhanceYourCalm)
	n.framer.WriteRSTStream(5, http2.ErrCodeRefusedStream)
	n.send()
	c.want("RST_STREAM 3 INTERNAL_ERROR", "RST_STREAM 5 REFUSED_STREAM")
	idle(t, f, c, n)
	if len(r.done) != 3 || r.done[0].End != Cancelled || r.done[1].End != Broken || r.done[2].End != Refused {
		t.Errorf("outcomes %+v", r.done)
	}
}

// A node that answers a call has it, whatever it says then.
func TestACallThatIsAnsweredWasTaken(t *testing.T) {
	for how, disown := range map[string]func(n *peer){
		"RST_STREAM": func(n *peer) { n.framer.WriteRSTStream(1, http2.ErrCodeRefusedStream) },
		"GOAWAY":     func(n *peer) { n.framer.WriteGoAway(0, http2.ErrCodeNo, nil) },
	} {
		for _, tc := range []struct {
			name   string
			answer func(n *peer)
			end    End
			notRun bool
			want   []string
		}{
			{"nothing", func(*peer) {}, Refused, true, []string{"RST_STREAM 1 REFUSED_STREAM"}},
			{"headers", func(n *peer) { n.headers(1, false, ":status", "200") }, Broken, false,
				[]string{"HEADERS 1 :status=200", "HEADERS 1 end grpc-status=14 grpc-message=" + cut.Message, "RST_STREAM 1 NO_ERROR"}},
			{"a part", func(n *peer) { n.headers(1, false, ":status", "200").data(1, false, message("part")) }, Broken, false,
				[]string{"HEADERS 1 :status=200", "DATA 1 " + string(message("part")),
					"HEADERS 1 end grpc-status=14 grpc-message=" + cut.Message, "RST_STREAM 1 NO_ERROR"}},
			{"all", func(n *peer) { n.headers(1, true, ":status", "200", "grpc-status", "0") }, Answered, false,
				[]string{"HEADERS 1 end :status=200 grpc-status=0", "RST_STREAM 1 NO_ERROR"}},
		} {
			t.Run(how+"_after_"+tc.name, func(t *testing.T) {
				f, r, c, n := start(t)
				c.headers(1, false, request...).send()
				n.frames()
				tc.answer(n)
				disown(n)
				n.send()
				c.want(tc.want...)
				if len(r.done) != 1 || r.done[0].End != tc.end || r.done[0].NotRun() != tc.notRun {
					t.Errorf("outcomes %+v; want one that is %v", r.done, tc.end)
				}
				if f.stats.Buffered != 0 {
					t.Errorf("%d bytes wait", f.stats.Buffered)
				}
			})
		}
	}
}

func TestFirstMessageRoutes(t *testing.T) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) {
		m, whole := call.Message()
		if _, _, to := protocol.Field(m, 1); to == 0 && !whole {
			return nil, ErrNeedMessage
		}
		_, from, to := protocol.Field(m, 1)
		call.Splice(from, to, AppendField(nil, 1, []byte("session-of-the-sidecar")))
		return n.conn, nil
	}
	question := AppendField(AppendField(AppendField(nil, 2, []byte("text")), 1, []byte("s1")), 3, []byte("rest"))
	want := AppendField(AppendField(AppendField(nil, 2, []byte("text")), 1, []byte("session-of-the-sidecar")), 3, []byte("rest"))
	for i, pieces := range []int{1, 2, 7, len(question) + 5, 1, 7} {
		if i == 4 { // a large one, without a copy
			r.route = func(call *Call) (*Conn, error) {
				m, whole := call.Message()
				_, from, to := protocol.Field(m, 1)
				if to == 0 && !whole {
					return nil, ErrNeedMessage
				}
				call.Splice(from, to, []byte("not this"))
				call.SpliceField(from, to, 1, "session-of-the-sidecar")
				return n.conn, nil
			}
		}
		id := uint32(2*i + 1)
		c.headers(id, false, request...)
		body := message(string(question))
		for k := range pieces {
			c.data(id, k == pieces-1, body[k*len(body)/pieces:(k+1)*len(body)/pieces])
			if pieces > 1 {
				c.send()
			}
		}
		c.send()
		var got []byte
		for _, line := range n.frames()[1:] {
			_, data, _ := strings.Cut(strings.TrimPrefix(strings.Replace(line, " end", "", 1), "DATA "), " ")
			got = append(got, data...)
		}
		if !bytes.Equal(got, message(string(want))) {
			t.Errorf("in %d pieces: the node got %q", pieces, got)
		}
		n.headers(id, true, ":status", "200", "grpc-status", "0")
		n.send()
		c.frames()
	}
	idle(t, f, c, n)
}

func TestParkedCall(t *testing.T) {
	f, r, c, n := start(t)
	var tickets []Ticket
	r.route = func(call *Call) (*Conn, error) { tickets = append(tickets, call.Ticket()); return nil, ErrPark }
	c.headers(1, false, append(request, "grpc-timeout", "1S", "x-ydb-database", "/local")...).data(1, true, message("m"))
	c.headers(3, false, append(request, "grpc-timeout", "50m")...)
	c.send()
	n.want()
	if f.Stats().Held != 2 {
		t.Fatalf("%d calls are held", f.Stats().Held)
	}
	f.Advance(f.Now() + 300*time.Millisecond)
	c.want("HEADERS 3 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up",
		"RST_STREAM 3 NO_ERROR")
	if f.Resume(tickets[1]) {
		t.Error("a call that is over was resumed")
	}
	r.route = func(call *Call) (*Conn, error) {
		call.Set(FirstName, []byte("/other"))
		call.SetOnce(FirstName+1, []byte("trace"))
		return n.conn, nil
	}
	if !f.Resume(tickets[0]) {
		t.Error("a parked call was not resumed")
	}
	n.want("HEADERS 1 "+requestLine+" x-ydb-database=/other x-ydb-trace-id=trace grpc-timeout=700000u", "DATA 1 end "+string(message("m")))
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	idle(t, f, c, n)
}

// The time a call may wait here is not that which it has when it has gone on.
func TestForwardedCallsOutliveTheHold(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Silence, c.ClientSilence = 9*time.Hour, 9*time.Hour })
	var tickets []Ticket
	r.route = func(call *Call) (*Conn, error) { tickets = append(tickets, call.Ticket()); return nil, ErrPark }
	c.headers(1, true, request...).headers(3, true, append(request, "grpc-timeout", "2M")...)
	c.send()
	pass(f, 50*time.Second)
	r.route = func(*Call) (*Conn, error) { return n.conn, nil }
	for _, ticket := range tickets {
		f.Resume(ticket)
	}
	if n.collect(); len(tickets) != 2 {
		t.Fatalf("%d calls were parked", len(tickets))
	}
	pass(f, 65*time.Second)
	c.want()
	pass(f, 10*time.Second)
	c.want("HEADERS 3 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up")
	pass(f, 30*time.Second)
	c.frames()
	if n.conn.streams.n != 1 {
		t.Error("a call without a deadline has ended")
	}
}

func TestSettingsChangeInFlight(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, true, request...)
	c.send()
	n.frames()
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3},
		http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	c.send()
	n.headers(1, false, ":status", "200", "content-type", "application/grpc").data(1, false, []byte("abcdef")).headers(1,
		true, "grpc-status", "0")
	n.send()
	c.decoder.SetMaxDynamicTableSize(0)
	c.want("SETTINGS 0", "HEADERS 1 :status=200 content-type=application/grpc", "DATA 1 abc")
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 5})
	c.send()
	c.want("SETTINGS 0", "DATA 1 de")
	c.framer.WriteWindowUpdate(1, 1)
	c.send()
	c.want("DATA 1 f", "HEADERS 1 end grpc-status=0")
	idle(t, f, c, n)
}

func TestInformationalHeadersAndPadding(t *testing.T) {
	f, _, c, n := start(t)
	c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.encode(request...), EndHeaders: false, PadLength: 7,
		Priority: http2.PriorityParam{StreamDep: 3, Weight: 3}})
	c.framer.WriteContinuation(1, true, c.encode("x-ydb-trace-id", "split"))
	c.framer.WriteDataPadded(1, true, message("x"), make([]byte, 30))
	c.send()
	n.want("HEADERS 1 "+requestLine+" x-ydb-trace-id=split", "DATA 1 end "+string(message("x")))
	n.headers(1, false, ":status", "103", "link", "x").headers(1, false, ":status", "200").headers(1, true, "grpc-status", "0")
	n.send()
	c.want("HEADERS 1 :status=103 link=x", "HEADERS 1 :status=200", "HEADERS 1 end grpc-status=0")
	idle(t, f, c, n)
}

func TestPlainRequestGetsAPage(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "sidecar")
	c.send()
	c.want("HEADERS 1 :status=200 content-type=text/plain; charset=utf-8", "DATA 1 end "+f.config.Page)
	n.want()
	idle(t, f, c, n)
}

func TestAnswerEdits(t *testing.T) {
	f, r, c, n := start(t)
	var hint string
	r.answer = func(call *Call) {
		hint = string(call.Header(FirstName + 2))
		call.Remove(FirstName + 2)
	}
	c.headers(1, true, request...)
	c.send()
	n.frames()
	n.headers(1, false, ":status", "200", "x-ydb-server-hints", "session-close").headers(1, true, "grpc-status", "0")
	n.send()
	c.want("HEADERS 1 :status=200", "HEADERS 1 end grpc-status=0")
	if hint != "session-close" {
		t.Errorf("hint %q", hint)
	}
	idle(t, f, c, n)
}

// pass lets time pass in the steps a driver makes.
func pass(f *Forwarder, d time.Duration) {
	for end := f.Now() + d; f.Now() < end; {
		f.Advance(min(f.Now()+tick, end))
	}
}

// usual returns a function that passes a call of a usual size, over and over.
func usual(t testing.TB) (f *Forwarder, pass func()) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) {
		m, _ := call.Message()
		if len(call.Path()) == 0 || len(m) == 0 {
			return nil, ErrNeedMessage
		}
		call.Set(FirstName, []byte("/local"))
		call.Check(Rules{One: true, Most: 64_000_000})
		return n.conn, nil
	}
	var in, out []byte // one call, when the tables have settled
	for id := n.conn.nextID; id < 9; id += 2 {
		c.headers(id, false, append(request, "x-ydb-auth-ticket", "secret", "grpc-timeout", "10S", "x-ydb-trace-id", "one-two-three")...)
		c.data(id, true, message("question"))
		in = bytes.Clone(c.out.Bytes())
		c.send()
		n.collect()
		n.headers(id, false, ":status", "200", "content-type", "application/grpc").data(id, false, message("answer")).headers(id,
			true, "grpc-status", "0")
		out = bytes.Clone(n.out.Bytes())
		n.send()
		c.collect()
	}
	var dirty []*Conn
	room := appendWindow(nil, 0, 1<<14)
	return f, func() {
		if n.conn.nextID%512 == 1 {
			c.conn.Receive(room)
			n.conn.Receive(room)
		}
		number(in, n.conn.nextID)
		number(out, n.conn.nextID)
		f.Advance(f.now + 50*time.Microsecond)
		c.conn.Receive(in)
		n.conn.Receive(out)
		dirty = f.Dirty(dirty[:0])
		for _, d := range dirty {
			b := d.Take()
			d.Sent(len(b))
			f.Recycle(b)
		}
		r.done = r.done[:0]
	}
}

// number gives all frames in p the id of a stream.
func number(p []byte, id uint32) {
	for at := 0; at < len(p); at += frameHeaderLen + frameLen(p[at:]) {
		binary.BigEndian.PutUint32(p[at+5:], id)
	}
}

// A call of a usual size allocates nothing, and neither do ticks.
func TestUnaryCallAllocatesNothing(t *testing.T) {
	f, pass := usual(t)
	for range 20_000 { // the slices of the wheel and of the tables have their size
		pass()
	}
	if got := testing.AllocsPerRun(20_000, pass); got != 0 {
		t.Errorf("%v allocations a call", got)
	}
	if s := f.Stats(); s.Ends[Answered] < 40_000 || s.Ends[Answered] != s.Calls {
		t.Errorf("%+v", s)
	}
}

func BenchmarkUnaryCall(b *testing.B) {
	_, pass := usual(b)
	b.ReportAllocs()
	for b.Loop() {
		pass()
	}
}

// A node that cancels a call because its time is up, as grpc-go's server does, may say so before our timer does: it is not at fault.
func TestNodeSaysThatTheTimeIsUp(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   time.Duration
		code http2.ErrCode
		want End
	}{
		{"when it nearly is", 149 * time.Millisecond, http2.ErrCodeCancel, Expired},
		{"a little before", 141 * time.Millisecond, http2.ErrCodeCancel, Expired},
		{"long before", 100 * time.Millisecond, http2.ErrCodeCancel, Broken},
		{"for another reason", 145 * time.Millisecond, http2.ErrCodeInternal, Broken},
	} {
		f, r, c, n := start(t)
		c.headers(1, true, append(request, "grpc-timeout", "150m")...)
		c.send()
		n.frames()
		f.Advance(f.Now() + tt.at)
		n.framer.WriteRSTStream(1, tt.code)
		n.send()
		switch {
		case tt.want == Expired:
			c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up")
		case tt.code == http2.ErrCodeCancel:
			c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=the node " +
				"cancelled the call, which may have been executed")
		default:
			c.want("RST_STREAM 1 " + tt.code.String())
		}
		if len(r.done) != 1 || r.done[0].End != tt.want {
			t.Errorf("%s: %+v; want %v", tt.name, r.done, tt.want)
		}
		idle(t, f, c, n)
	}
}

// The end of an upload that comes alone goes out although no byte could: RFC 9113, 6.9.
func TestEndAloneNeedsNoRoom(t *testing.T) {
	upload := bytes.Repeat([]byte{1}, minFrameSize-1)
	for name, fill := range map[string]func(c, n *peer){
		"full_socket": func(c, _ *peer) { c.data(1, false, upload).data(3, false, upload).send() },
		"stream_window": func(c, n *peer) {
			c.data(1, false, upload).send()
			n.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
			n.send()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _, c, n := start(t, func(c *Config) { c.Output = minFrameSize })
			c.headers(1, false, request...).headers(3, false, request...).send()
			n.frames()
			fill(c, n)
			c.data(1, true, nil).send()
			if name == "full_socket" && n.conn.space() {
				t.Fatalf("there is room: %d bytes wait", n.conn.backlog())
			}
			if all := n.frames(); !slices.Contains(all, "DATA 1 end ") {
				t.Errorf("the node never learns that the request has ended: %.60q", all)
			}
			n.headers(1, true, ":status", "200", "grpc-status", "0").headers(3, true, ":status", "200", "grpc-status", "0").send()
			c.data(3, true, nil).send()
			c.frames()
			idle(t, f, c, n)
		})
	}
}

// A call whose headers come alone is looked at again as soon as its first message is whole, however short that is
// and whether the client ends its side or not.
func TestShortMessageBehindItsHeaders(t *testing.T) {
	for _, piece := range []int{1, 4, 5, 6, 1000} {
		f, r, c, n := start(t)
		r.route = func(call *Call) (*Conn, error) {
			if _, whole := call.Message(); !whole {
				return nil, ErrNeedMessage
			}
			return n.conn, nil
		}
		c.headers(1, false, request...)
		c.send()
		for rest := message("short"); len(rest) > 0; {
			k := min(piece, len(rest))
			c.data(1, false, rest[:k])
			rest = rest[k:]
		}
		c.send()
		if got := f.Stats(); got.Forwarded != 1 || got.Held != 0 {
			t.Errorf("in pieces of %d: %d forwarded, %d held", piece, got.Forwarded, got.Held)
		}
		c.data(1, true, nil)
		c.send()
		n.frames()
		n.headers(1, true, ":status", "200", "grpc-status", "0")
		n.send()
		c.frames()
		idle(t, f, c, n)
	}
}
