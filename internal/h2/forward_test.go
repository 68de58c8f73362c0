package h2

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
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
			n.want("HEADERS "+itoa(id)+" "+requestLine+" x-ydb-trace-id="+strings.Repeat("t", int(i)+1), "DATA "+itoa(id)+" end "+string(message("question")))
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

// Of trailers of a request, which gRPC does not have, only the end goes on, wherever the body stands.
func TestTrailersOfRequestsDoNotPass(t *testing.T) {
	fields := []string{"authorization", "Bearer secret", "x-ydb-database", "/other"}
	whole := string(message("question"))
	for name, tc := range map[string]struct {
		body string
		room uint32 // of the node's stream
		park bool
		want []string
	}{
		"without a body":           {"", 1 << 16, false, []string{"DATA 1 end "}},
		"behind the body":          {whole, 1 << 16, false, []string{"DATA 1 " + whole, "DATA 1 end "}},
		"behind what waits":        {whole, 4, false, []string{"DATA 1 " + whole[:4], "DATA 1 end " + whole[4:]}},
		"behind the body, parked":  {whole, 1 << 16, true, []string{"DATA 1 end " + whole}},
		"without a body, parked":   {"", 1 << 16, true, nil},
		"behind what waits, later": {whole, 4, true, []string{"DATA 1 " + whole[:4], "DATA 1 end " + whole[4:]}},
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, _ := start(t)
			n := node(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: tc.room})
			var ticket Ticket
			r.route = func(call *Call) (*Conn, error) {
				if tc.park && ticket == (Ticket{}) {
					ticket = call.Ticket()
					return nil, ErrPark
				}
				return n.conn, nil
			}
			c.headers(1, false, request...)
			if tc.body != "" {
				c.data(1, false, []byte(tc.body))
			}
			c.send()
			got := n.frames()
			c.headers(1, true, fields...).send()
			f.Resume(ticket)
			if got = append(got, n.frames()...); tc.room < uint32(len(whole)) {
				n.framer.WriteWindowUpdate(1, 1<<10)
				n.send()
				got = append(got, n.frames()...)
			}
			want := append([]string{"HEADERS 1 " + requestLine}, tc.want...)
			if tc.want == nil {
				want = []string{strings.Replace(want[0], "1 ", "1 end ", 1)}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the node got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
			n.headers(1, true, ":status", "200", "grpc-status", "0").send()
			c.frames()
			idle(t, f, c, n)
		})
	}
}

// What a server of gRPC refuses for its headers comes to no node, which would be blamed for the answer.
func TestMalformedHeaders(t *testing.T) {
	const wrong = "HEADERS 1 end :status=200 content-type=application/grpc grpc-status=13 grpc-message=malformed header "
	without := func(name string) (left []string) {
		for i := 0; i < len(request); i += 2 {
			if request[i] != name {
				left = append(left, request[i], request[i+1])
			}
		}
		return left
	}
	with := func(more ...string) []string { return append(slices.Clone(request), more...) }
	for name, tc := range map[string]struct {
		headers []string
		want    string // "": it is forwarded
	}{
		"a timeout of no digits":        {with("grpc-timeout", "zz"), "grpc-timeout: it must be at most 8 digits"},
		"an empty timeout":              {with("grpc-timeout", ""), "grpc-timeout: it must be at most 8 digits"},
		"a timeout without a unit":      {with("grpc-timeout", "100"), "grpc-timeout: it must be at most 8 digits"},
		"a timeout of nine digits":      {with("grpc-timeout", "100000000m"), "grpc-timeout: it must be at most 8 digits"},
		"a negative timeout":            {with("grpc-timeout", "-1S"), "grpc-timeout: it must be at most 8 digits"},
		"a long timeout":                {with("grpc-timeout", strings.Repeat("1", 1000)), "grpc-timeout: it must be at most 8 digits"},
		"a timeout":                     {with("grpc-timeout", "99999999H"), ""},
		"two timeouts":                  {with("grpc-timeout", "10S", "grpc-timeout", "zz"), "grpc-timeout: it must come once"},
		"no base64":                     {with("x-a-bin", "!!!"), "x-a-bin: it ends in -bin, so its value must be base64"},
		"no base64, the second time":    {with("x-a-bin", "AAAA", "x-a-bin", "A"), "x-a-bin: it ends in -bin"},
		"no base64, in a known name":    {with("x-ydb-trace-id", "t", "grpc-trace-bin", "A==="), "grpc-trace-bin: it ends in -bin"},
		"base64 for addresses":          {with("x-a-bin", "_-_-"), "x-a-bin: it ends in -bin"},
		"base64 and a comma":            {with("x-a-bin", "AAAA,AAAA"), "x-a-bin: it ends in -bin"},
		"base64":                        {with("x-a-bin", "Zm8"), ""},
		"base64 with padding":           {with("x-a-bin", "Zm8="), ""},
		"base64 of nothing":             {with("x-a-bin", ""), ""},
		"a name that is not of base64":  {with("x-bin-a", "!!!"), ""},
		"another method":                {append([]string{":method", "GET"}, without(":method")...), ":method: it must be POST"},
		"another scheme":                {append([]string{":scheme", "ftp"}, without(":scheme")...), ":scheme: it must be http or https"},
		"https":                         {append([]string{":scheme", "https"}, without(":scheme")...), ""},
		"two lengths":                   {with("content-length", "0", "content-length", "0"), "RST_STREAM 1 PROTOCOL_ERROR"},
		"no host":                       {without(":authority"), ":authority: it must name the host"},
		"a host":                        {append(without(":authority"), "host", "sidecar"), ""},
		"a host besides an authority":   {with("host", "sidecar"), ""},
		"two hosts":                     {with("host", "sidecar", "host", "other"), "host: it must come once"},
		"what is no call is not judged": {[]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "x", "grpc-timeout", "zz"}, "HEADERS 1 :status=200"},
	} {
		for _, chunk := range []int{0, 1} { // the second time from the dynamic table
			f, r, c, n := start(t)
			c.chunk = chunk
			for id := uint32(1); id <= 3; id += 2 {
				c.headers(id, true, tc.headers...).send()
				first := strings.Replace(strings.Join(c.frames(), "\n"), " 3 ", " 1 ", 1)
				switch got := n.frames(); {
				case strings.Contains(strings.Join(got, ""), "host=") && slices.Contains(tc.headers, ":authority"):
					t.Errorf("%s: the node got %q: two hosts", name, got)
				case tc.want == "" && (len(got) != 1 || first != ""):
					t.Errorf("%s: the node got %q, the client %q; want it forwarded", name, got, first)
				case tc.want != "" && (len(got) > 0 || !strings.HasPrefix(first, tc.want) && !strings.HasPrefix(first, wrong+tc.want)):
					t.Errorf("%s: the node got %q, the client %q; want %q", name, got, first, tc.want)
				case tc.want == "":
					n.headers(n.conn.nextID-2, true, ":status", "200", "grpc-status", "0").send()
					c.frames()
				}
			}
			if idle(t, f, c, n); tc.want != "" && len(r.done) > 0 {
				t.Errorf("%s: the router heard of it: %+v", name, r.done)
			}
		}
	}
}

// Headers that are as they should be are looked at without an allocation.
func TestLookingAtHeadersDoesNotAllocate(t *testing.T) {
	f, r, c, _ := start(t)
	var call *Call
	r.route = func(now *Call) (*Conn, error) { call = now; return nil, ErrPark }
	c.headers(1, false, append(slices.Clone(request), "grpc-timeout", "10S", "x-a-bin", strings.Repeat("AAAA", 20))...).send()
	f.words.text = make([]byte, 0, 256)
	c.conn.decoder.readPortable(call.block, &f.block)
	if n := testing.AllocsPerRun(100, func() {
		if st := call.malformed(); st != nil {
			t.Fatal(st)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
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
				[]string{"HEADERS 1 :status=200", "DATA 1 " + string(message("part")), "HEADERS 1 end grpc-status=14 grpc-message=" + cut.Message, "RST_STREAM 1 NO_ERROR"}},
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
		if i == 4 { // the same without a copy
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
	c.want("HEADERS 3 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up", "RST_STREAM 3 NO_ERROR")
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

func TestNodeIsLost(t *testing.T) {
	f, r, c, n := start(t)
	c.headers(1, true, request...).headers(3, true, request...)
	c.send()
	n.frames()
	n.headers(3, false, ":status", "200", "content-type", "application/grpc").data(3, false, []byte("part"))
	n.send()
	c.frames()
	c.headers(7, true, request...)
	c.send()
	n.conn.Take()                  // on its way, and may arrive
	c.headers(9, true, request...) // does not leave
	c.send()
	n.conn.Close()
	lines := c.frames()
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		"HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=the connection to the node was lost; the call may have been executed",
		"HEADERS 3 end grpc-status=14 grpc-message=the connection to the node was lost; the call may have been executed",
		"HEADERS 7 end :status=200 content-type=application/grpc grpc-status=14",
		"RST_STREAM 9 REFUSED_STREAM",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	idle(t, f, c)
	if len(r.done) != 4 || f.Stats().Nodes != 0 {
		t.Errorf("outcomes %+v, nodes %d", r.done, f.Stats().Nodes)
	}
}

// Behind whole messages of a stream there is a place for what the client is to be told, and nowhere else.
func TestNodeIsLostInAStream(t *testing.T) {
	const said, code = "DATA 1 \x00\x00\x00\x00\x04lost", "grpc-status=14"
	for name, tc := range map[string]struct {
		parts []string
		want  string
	}{
		"after a message":                 {[]string{"\x00\x00\x00\x00\x02ab"}, said},
		"after one in pieces":             {[]string{"\x00\x00", "\x00\x00\x02", "a", "b"}, said},
		"after two, of which one is none": {[]string{"\x00\x00\x00\x00\x01a\x00\x00", "\x00\x00\x00"}, said},
		"in a prefix":                     {[]string{"\x00\x00\x00\x00\x02ab\x00"}, code},
		"in a message":                    {[]string{"\x00\x00\x00\x00\x02a"}, code},
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			r.route = func(c *Call) (*Conn, error) {
				c.WhenLost(&Status{Body: []byte("lost"), Stream: true})
				return n.conn, nil
			}
			c.headers(1, true, request...)
			c.send()
			n.frames()
			n.headers(1, false, ":status", "200", "content-type", "application/grpc")
			for _, part := range tc.parts {
				n.data(1, false, []byte(part))
			}
			n.send()
			c.frames()
			n.conn.Close()
			lines := c.frames()
			if all := strings.Join(lines, "\n"); !strings.Contains(all, tc.want) || (tc.want == said) != strings.Contains(all, "grpc-status=0") {
				t.Errorf("no %q in\n%s", tc.want, all)
			}
			idle(t, f, c)
		})
	}
}

// A node that stops cancels what is left, in one of two ways. Nobody asked for it, and few clients repeat
// what was cancelled.
func TestNodeCancels(t *testing.T) {
	const body = "\x00\x00\x00\x00\x02ab"
	reset := func(n *peer, id uint32) { n.framer.WriteRSTStream(id, http2.ErrCodeCancel) }
	trailer := func(n *peer, id uint32) { n.headers(id, true, "grpc-status", "1", "grpc-message", "why") }
	for name, tc := range map[string]struct {
		says   []string // before it cancels
		cancel func(n *peer, id uint32)
		lost   *Status
		want   []string
		end    End
	}{
		"reset":               {nil, reset, nil, []string{"HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=" + cut.Message}, Broken},
		"reset in the answer": {[]string{body}, reset, nil, []string{"HEADERS 1 :status=200", "DATA 1 " + body, "HEADERS 1 end grpc-status=14 grpc-message=" + cut.Message}, Broken},
		"reset of a commit":   {nil, reset, &Status{Body: []byte("lost")}, []string{"HEADERS 1 :status=200 content-type=application/grpc", "DATA 1 \x00\x00\x00\x00\x04lost", "HEADERS 1 end grpc-status=0"}, Broken},
		"trailer":             {nil, func(n *peer, id uint32) { n.headers(id, true, ":status", "200", "grpc-status", "1") }, nil, []string{"HEADERS 1 end :status=200 grpc-status=14"}, Answered},
		"trailer with details": {nil, func(n *peer, id uint32) {
			n.headers(id, true, ":status", "200", "grpc-status", "1", "grpc-status-details-bin", "CAE")
		}, nil, []string{"HEADERS 1 end :status=200 grpc-status=1 grpc-status-details-bin=CAE"}, Answered},
		"trailer in the answer": {[]string{body}, trailer, nil, []string{"HEADERS 1 :status=200", "DATA 1 " + body, "HEADERS 1 end grpc-message=why grpc-status=14"}, Answered},
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			r.route = func(c *Call) (*Conn, error) {
				if tc.lost != nil {
					c.WhenLost(tc.lost)
				}
				return n.conn, nil
			}
			c.headers(1, true, request...)
			c.send()
			n.frames()
			if len(tc.says) > 0 {
				n.headers(1, false, ":status", "200")
			}
			for _, part := range tc.says {
				n.data(1, false, []byte(part))
			}
			tc.cancel(n, 1)
			n.send()
			c.want(tc.want...)
			if len(r.done) != 1 || r.done[0].End != tc.end || n.conn.Finished() {
				t.Errorf("outcomes %+v", r.done)
			}
			idle(t, f, c, n)
		})
	}
}

func TestNodeGoesAway(t *testing.T) {
	f, r, c, n := start(t)
	c.headers(1, true, request...).headers(3, true, request...)
	c.send()
	n.frames()
	n.framer.WriteGoAway(1, http2.ErrCodeNo, nil)
	n.send()
	c.want("RST_STREAM 3 REFUSED_STREAM")
	if n.conn.Usable() {
		t.Error("a node that goes away gets new calls")
	}
	n.headers(1, true, ":status", "200", "grpc-status", "0")
	n.send()
	c.want("HEADERS 1 end :status=200 grpc-status=0")
	if n.want("GOAWAY 0 last=0 NO_ERROR"); !n.conn.Finished() {
		t.Error("the connection stays")
	}
	c.headers(5, true, request...)
	c.send()
	c.want("HEADERS 5 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=the node's connection is closing; the call was not sent")
	idle(t, f, c, n)
	if len(r.done) != 3 {
		t.Errorf("outcomes %+v", r.done)
	}
}

// A client that goes away takes no streams of ours. Its own may come behind its
// GOAWAY: nghttp2 sends a request that was made before it after it.
func TestClientGoesAway(t *testing.T) {
	f, r, c, n := start(t)
	c.headers(1, true, request...)
	c.framer.WriteGoAway(0, http2.ErrCodeNo, nil)
	c.headers(3, true, request...)
	c.send()
	if got := n.frames(); len(got) != 2 {
		t.Errorf("the node got %q", got)
	}
	n.headers(1, true, ":status", "200", "grpc-status", "0").headers(3, true, ":status", "200", "grpc-status", "0")
	n.send()
	if got := c.frames(); len(got) != 2 || c.conn.Finished() {
		t.Errorf("the client got %q; finished: %v", got, c.conn.Finished())
	}
	idle(t, f, c, n)
	if len(r.done) != 2 {
		t.Errorf("outcomes %+v", r.done)
	}
}

func TestClientIsDrained(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, true, request...)
	c.send()
	c.conn.Drain()
	c.want("GOAWAY 0 last=2147483647 NO_ERROR", "PING 0 "+pingOfDrain)
	c.headers(3, true, request...) // crosses the GOAWAY
	c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
	c.send()
	c.want("GOAWAY 0 last=3 NO_ERROR")
	if got := n.frames(); len(got) != 2 {
		t.Errorf("the node got %q", got)
	}
	n.headers(1, true, ":status", "200", "grpc-status", "0").headers(3, true, ":status", "200", "grpc-status", "0")
	n.send()
	if len(c.frames()) != 2 || !c.conn.Finished() {
		t.Error("the connection does not end with its last call")
	}
	idle(t, f, n)
}

// The last stream that GOAWAY names does not rise again, RFC 9113, 6.8: what the client opened behind it
// was not looked at, also if the connection ends badly then.
func TestLastStreamDoesNotRise(t *testing.T) {
	f, r, c, n := start(t)
	c.headers(1, true, request...)
	c.send()
	c.conn.Drain()
	c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
	c.headers(3, true, request...)
	c.send()
	c.want("GOAWAY 0 last=2147483647 NO_ERROR", "PING 0 "+pingOfDrain, "GOAWAY 0 last=1 NO_ERROR")
	c.framer.WriteWindowUpdate(0, 0)
	if c.send() == nil {
		t.Fatal("an error is let pass")
	}
	c.want("GOAWAY 0 last=1 PROTOCOL_ERROR")
	if len(r.done) != 1 || r.done[0].End != Cancelled {
		t.Errorf("outcomes %+v", r.done)
	}
	if got := n.frames(); len(got) != 2 {
		t.Errorf("the node got %q", got)
	}
	idle(t, f, n)
}

func TestCallsWaitForStreams(t *testing.T) {
	f, r, c, _ := start(t)
	n := newPeer(t, f, f.Connect())
	r.route = func(*Call) (*Conn, error) { return n.conn, nil }
	c.headers(1, true, request...)
	c.send()
	if f.Stats().Held != 1 {
		t.Fatal("a call does not wait for the connection")
	}
	n.conn.Open()
	n.in.Write(n.conn.Take()[len(preface):])
	n.greet(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	c.headers(3, true, request...).headers(5, true, request...)
	c.framer.WriteRSTStream(3, http2.ErrCodeCancel)
	c.send()
	n.want()
	n.headers(1, true, ":status", "200", "grpc-status", "0")
	n.send()
	n.want("HEADERS 3 " + "end " + requestLine)
	n.headers(3, true, ":status", "200", "grpc-status", "0")
	n.send()
	c.want("HEADERS 1 end :status=200 grpc-status=0", "HEADERS 5 end :status=200 grpc-status=0")
	idle(t, f, c, n)
}

func TestSlowReaderHoldsBackTheSender(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, true, request...)
	c.send()
	n.frames()
	n.headers(1, false, ":status", "200")
	body := bytes.Repeat([]byte("0123456789abcdef"), 1024)
	for range f.config.Window / len(body) {
		n.data(1, false, body)
	}
	n.send()
	n.want() // the client's window is 65535: half of ours is not given back
	if got := f.Stats().Buffered; got != f.config.Window-defaultWindow {
		t.Errorf("%d bytes wait", got)
	}
	got := 0
	read := func() {
		for _, line := range c.frames() {
			if strings.HasPrefix(line, "DATA") {
				got += len(strings.SplitN(line, " ", 3)[2])
			}
		}
	}
	if read(); got != defaultWindow {
		t.Errorf("the client got %d bytes", got)
	}
	c.framer.WriteWindowUpdate(0, 1<<20)
	c.framer.WriteWindowUpdate(1, 1<<20)
	c.send()
	n.headers(1, true, "grpc-status", "0")
	n.send()
	read()
	if got != f.config.Window {
		t.Errorf("the client got %d bytes in all", got)
	}
	if lines := n.frames(); len(lines) == 0 || !strings.HasPrefix(lines[0], "WINDOW_UPDATE 1") {
		t.Errorf("the node got %q", lines)
	}
	idle(t, f, c, n)
}

func TestSettingsChangeInFlight(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, true, request...)
	c.send()
	n.frames()
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	c.send()
	n.headers(1, false, ":status", "200", "content-type", "application/grpc").data(1, false, []byte("abcdef")).headers(1, true, "grpc-status", "0")
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

// A node is asked after 2 s of silence, every 10 s while it only answers that, anew
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
		t.Errorf("finished: one with a call %v, one that greeted late %v, one that said nothing %v", c.conn.Finished(), late.conn.Finished(), unheard.Finished())
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
		t.Errorf("one that says nothing: finished %v; one that goes on saying nothing: %v; %v", silent.Finished(), p.conn.Finished(), f.Stats().Abuses)
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
		n.headers(id, false, ":status", "200", "content-type", "application/grpc").data(id, false, message("answer")).headers(id, true, "grpc-status", "0")
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
			c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=the node cancelled the call, which may have been executed")
		default:
			c.want("RST_STREAM 1 " + tt.code.String())
		}
		if len(r.done) != 1 || r.done[0].End != tt.want {
			t.Errorf("%s: %+v; want %v", tt.name, r.done, tt.want)
		}
		idle(t, f, c, n)
	}
}

// Calls of which a header has the same version have the same value, and most that have the same value
// have the same version.
func TestVersionsOfHeaders(t *testing.T) {
	_, r, c, n := start(t)
	type seen struct {
		value   string
		there   bool
		version uint64
	}
	var all []seen
	r.route = func(call *Call) (*Conn, error) {
		value := call.Header(FirstName)
		all = append(all, seen{string(value), value != nil, call.Version(FirstName)})
		return n.conn, nil
	}
	for i, value := range []string{"a", "a", "", "b", "b", "a", "-", "a"} {
		headers := append([]string(nil), request...)
		if value != "-" {
			headers = append(headers, "x-ydb-database", value)
		}
		c.headers(uint32(2*i+1), true, headers...)
		c.send()
	}
	for _, x := range all {
		if x.there != (x.version != 0) {
			t.Errorf("%+v", x)
		}
		for _, y := range all {
			if x.version == y.version && x != y {
				t.Errorf("%+v and %+v", x, y)
			}
		}
	}
	if len(all) != 8 || all[0].version != all[1].version || all[3].version != all[4].version || all[5].version != all[7].version {
		t.Errorf("%+v", all)
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
