package h2

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

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
		"HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=the connection to the " +
			"node was lost; the call may have been executed",
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
			if all := strings.Join(lines, "\n"); !strings.Contains(all, tc.want) ||
				(tc.want == said) != strings.Contains(all, "grpc-status=0") {
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
		"reset": {nil, reset, nil,
			[]string{"HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=" + cut.Message},
			Broken},
		"reset in the answer": {[]string{body}, reset, nil,
			[]string{"HEADERS 1 :status=200", "DATA 1 " + body, "HEADERS 1 end grpc-status=14 grpc-message=" + cut.Message},
			Broken},
		"reset of a commit": {nil, reset, &Status{Body: []byte("lost")},
			[]string{"HEADERS 1 :status=200 content-type=application/grpc", "DATA 1 \x00\x00\x00\x00\x04lost",
				"HEADERS 1 end grpc-status=0"},
			Broken},
		"trailer": {nil,
			func(n *peer, id uint32) { n.headers(id, true, ":status", "200", "grpc-status", "1") }, nil,
			[]string{"HEADERS 1 end :status=200 grpc-status=14"}, Answered},
		"trailer with details": {nil, func(n *peer, id uint32) {
			n.headers(id, true, ":status", "200", "grpc-status", "1", "grpc-status-details-bin", "CAE")
		}, nil, []string{"HEADERS 1 end :status=200 grpc-status=1 grpc-status-details-bin=CAE"}, Answered},
		"trailer in the answer": {[]string{body}, trailer, nil,
			[]string{"HEADERS 1 :status=200", "DATA 1 " + body, "HEADERS 1 end grpc-message=why grpc-status=14"},
			Answered},
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
	c.want("HEADERS 5 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=the node's " +
		"connection is closing; the call was not sent")
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
