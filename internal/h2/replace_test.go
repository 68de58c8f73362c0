package h2

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

// followed is a message that is replaced by plain bytes, and what follows it.
type followed struct {
	name        string
	plain, tail int
	refused     bool
}

func followedSize() int { return short.Of(8, 4) << 20 }

// What follows a message that is replaced is shown to the observer, and goes on, without a copy of all of it or of the message.
func TestWhatFollowsAReplacedMessageIsNotCopied(t *testing.T) {
	size := followedSize()
	for _, tc := range []followed{
		{"a small one", 100, size, false}, {"a large one", 3 * bufferSize, size, false}, {"refused", 3 * bufferSize, size, true},
		{"a byte", size, 1, false}, {"little", size, bufferSize - 1, false}, {"as much as a buffer", size, bufferSize, false},
		{"little behind a small one", 100, 1000, false}, {"little, refused", size, bufferSize - 1, true},
	} {
		tc.isNotCopied(t)
	}
}

// isNotCopied checks what is made, shown and sent for one of them.
func (tc followed) isNotCopied(t *testing.T) {
	size := followedSize()
	f, r, c, n := start(t, func(config *Config) { config.Window, config.MaxWindow = 2*size, 2*size })
	n.framer.WriteWindowUpdate(0, uint32(2*size))
	n.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(2 * size)})
	n.send()
	var ticket Ticket
	watched := &watcher{}
	r.route = func(call *Call) (*Conn, error) {
		if ticket == (Ticket{}) {
			ticket = call.Ticket()
			plain := bytes.Repeat([]byte("p"), tc.plain)
			if err := call.Replace(func(b, _ []byte) ([]byte, error) { return append(b, plain...), nil }); err != nil {
				return nil, err
			}
			return nil, ErrPark
		}
		call.Observe(watched)
		call.Splice(1, 3, []byte("spliced"))
		return n.conn, nil
	}
	tail := make([]byte, tc.tail)
	for i := range tail {
		tail[i] = byte(i >> 8 * 7)
	}
	if tc.refused {
		watched.most = messagePrefix + tc.plain
	}
	c.headers(1, false, request...).data(1, false, message("packed")).send()
	for rest := tail; len(rest) > 0; {
		n := min(minFrameSize, len(rest))
		c.data(1, n == len(rest), rest[:n]).send()
		rest = rest[n:]
	}
	c.frames()
	n.frames()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f.Resume(ticket)
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > uint64(size/8) {
		t.Errorf("%s: %d bytes were allocated to forward %d", tc.name, made, tc.plain+tc.tail)
	}
	if want := messagePrefix + tc.plain + tc.tail; watched.bytes != want {
		t.Errorf("%s: the observer was shown %d bytes; want %d", tc.name, watched.bytes, want)
	}
	if tc.refused {
		c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=3 grpc-message=no more")
		n.want()
		idle(t, f, c, n)
		return
	}
	got := n.bodyOf(t, tc.name)
	if want := append(message("pspliced"+strings.Repeat("p", tc.plain-3)), tail...); !bytes.Equal(got, want) {
		t.Errorf("%s: the node got %d bytes, which differ from the %d that it should", tc.name, len(got), len(want))
	}
	n.headers(1, true, ":status", "200", "grpc-status", "0").send()
	c.frames()
	idle(t, f, c, n)
}

// bodyOf is the body that a node gets, to its end.
func (p *peer) bodyOf(t *testing.T, name string) (got []byte) {
	ended := false
	for !ended {
		lines := p.frames()
		if len(lines) == 0 {
			t.Fatalf("%s: the node got %d bytes and no end", name, len(got))
		}
		for _, line := range lines {
			if rest, ok := strings.CutPrefix(line, "DATA 1 "); ok {
				var data string
				if data, ended = strings.CutPrefix(rest, "end "); !ended {
					data = rest
				}
				got = append(got, data...)
			}
		}
	}
	return got
}

// watcher is an Observer that counts a request's bytes, and takes only so many if most is not 0.
type watcher struct{ bytes, most int }

func (w *watcher) Observe(client bool, p []byte) error {
	if client {
		w.bytes += len(p)
	}
	if w.most > 0 && w.bytes > w.most {
		return &Status{Code: 3, Message: "no more"}
	}
	return nil
}

// A first message that is replaced is, to all others, the one that came.
func TestReplace(t *testing.T) {
	for _, more := range []int{0, 50_000} { // a large one is not copied
		replaces(t, "the plain text of it, which is longer"+strings.Repeat("!", more))
	}
}

func replaces(t *testing.T, plain string) {
	for _, parked := range []bool{false, true} {
		for _, splice := range []bool{false, true} {
			for _, frame := range []int{1, 4, 5, 6, 11, 12, 13, 1000} {
				replacesOnce(t, plain, parked, splice, frame)
			}
		}
	}
	t.Run("fails", replacementFails)
	t.Run("is too much", replacementIsTooMuch)
	t.Run("is not whole", replacedIsNotWhole)
}

const packedText = "packed!"

// compressed is packedText as a message with the flag of a compressed one.
func compressed() []byte {
	b := message(packedText)
	b[0] = 1
	return b
}

// replacesOnce has a message replaced whose bytes come in frames of one size.
func replacesOnce(t *testing.T, plain string, parked, splice bool, frame int) {
	rest := body("a second message")
	f, c, n, o, ticket := startReplacing(t, plain, parked, splice)
	sent := append(append([]byte(nil), compressed()...), rest...)
	c.headers(1, false, append(request, "content-length", fmt.Sprint(len(sent)))...)
	newFlow(c).write(1, sent, frame, false)
	if parked {
		if got := f.Stats().Buffered; got < len(plain) {
			t.Errorf("%d bytes count as waiting; the message has %d", got, len(plain))
		}
		f.Resume(*ticket)
	}
	node := newFlow(n)
	node.read()
	for _, s := range c.conn.streams.slots {
		if s != nil && s.room+s.credit != s.target {
			t.Errorf("frames of %d, parked %v: room %d, credit %d; in all not %d", frame, parked, s.room, s.credit, s.target)
		}
	}
	if strings.Contains(node.head, "content-length") {
		t.Errorf("content-length is passed on: %s", node.head)
	}
	c.data(1, true, nil)
	c.send()
	node.read()
	want := append(message(plain), rest...)
	if o.client.String() != string(want) {
		t.Errorf("the Observer saw %.100q", o.client.Bytes())
	}
	if splice {
		want = append(message("the spliced text of it, which is longer"+plain[len("the plain text of it, which is longer"):]), rest...)
	}
	if string(node.got) != string(want) || !node.ended {
		t.Errorf("frames of %d, parked %v: the node got %d bytes, %.100q", frame, parked, len(node.got), node.got)
	}
	n.headers(1, true, ":status", "200", "grpc-status", "0")
	n.send()
	c.frames()
	idle(t, f, c, n)
}

// startReplacing starts a forwarder whose router replaces the first message of a call by plain, shows o what passes, and tells the call's
// ticket.
func startReplacing(t *testing.T, plain string, parked, splice bool) (f *Forwarder, c, n *peer, o *seen, ticket *Ticket) {
	replace := func(b, message []byte) ([]byte, error) {
		if string(message) != packedText {
			return nil, errors.New("not " + packedText)
		}
		return append(b, plain...), nil
	}
	f, r, c, n := start(t)
	wait, replaced := parked, 0
	o, ticket = &seen{}, new(Ticket)
	r.route = func(call *Call) (*Conn, error) {
		*ticket = call.Ticket()
		if !call.Compressed() && replaced == 0 || replaced > 0 && call.Compressed() {
			if _, whole := call.Raw(); !whole {
				return nil, ErrNeedWhole
			}
			t.Errorf("compressed: %v, replaced %d times", call.Compressed(), replaced)
		}
		if replaced == 0 {
			if _, whole := call.Raw(); !whole {
				return nil, ErrNeedWhole
			}
			if m, ok := call.Message(); len(m) > 0 || ok {
				t.Errorf("a compressed message is shown: %q", m)
			}
			if err := call.Replace(replace); err != nil {
				t.Error(err)
			}
			replaced++
		}
		if m, whole := call.Message(); string(m) != plain || !whole || call.Compressed() {
			t.Errorf("replaced by %q, whole %v, compressed %v", m, whole, call.Compressed())
		}
		if wait {
			wait = false
			return nil, ErrPark
		}
		if splice {
			call.Splice(4, 9, []byte("spliced"))
		}
		call.Observe(o)
		return n.conn, nil
	}
	return f, c, n, o, ticket
}

func replacementFails(t *testing.T) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) {
		return nil, call.Replace(func([]byte, []byte) ([]byte, error) { return nil, &Status{Code: 3, Message: "bad"} })
	}
	c.headers(1, false, request...).data(1, true, compressed())
	c.send()
	c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=3 grpc-message=bad")
	idle(t, f, c, n)
}

func replacementIsTooMuch(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Buffered = 1 << 20 })
	var ticket Ticket
	wait := true
	r.route = func(call *Call) (*Conn, error) {
		if ticket = call.Ticket(); wait {
			wait = false
			return nil, ErrPark
		}
		return n.conn, call.Replace(func(b, _ []byte) ([]byte, error) { return append(b, make([]byte, 2<<20)...), nil })
	}
	c.headers(1, false, request...).data(1, true, compressed())
	c.send()
	f.Resume(ticket)
	if got := strings.Join(c.frames(), "\n"); !strings.Contains(got, "grpc-status=8") {
		t.Errorf("got %s", got)
	}
	n.want()
	idle(t, f, c, n)
}

func replacedIsNotWhole(t *testing.T) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) { return nil, ErrNeedWhole }
	c.headers(1, false, request...).data(1, true, compressed()[:8]).headers(3, false, request...).data(3, true, compressed()[:3]).headers(5,
		true, request...).headers(
		7,
		false, request...,
	).data(
		7,
		true, compressed(),
	)
	c.send()
	if got := strings.Join(c.frames(), "\n"); strings.Count(got, "grpc-status=13") != 4 {
		t.Errorf("got %s", got)
	}
	idle(t, f, c, n)
}

// What was put in the place of a message counts as waiting until the call is over, however that comes.
func TestReplacedMessageOfCallThatEnds(t *testing.T) {
	compressed := compressed()
	for name, end := range map[string]func(f *Forwarder, c *peer, ticket Ticket){
		"cancelled": func(_ *Forwarder, c *peer, _ Ticket) {
			c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
			c.send()
		},
		"expired": func(f *Forwarder, _ *peer, _ Ticket) { f.Advance(f.Now() + 2*time.Second) },
		"refused": func(f *Forwarder, _ *peer, ticket Ticket) { f.Resume(ticket) },
	} {
		f, r, c, n := start(t)
		var ticket Ticket
		parked := false
		r.route = func(call *Call) (*Conn, error) {
			if ticket = call.Ticket(); parked {
				return nil, &Status{Code: 3, Message: "no"}
			}
			parked = true
			if err := call.Replace(func(b, _ []byte) ([]byte, error) { return append(b, make([]byte, 1<<20)...), nil }); err != nil {
				t.Error(err)
			}
			return nil, ErrPark
		}
		c.headers(1, false, append(request, "grpc-timeout", "1S")...).data(1, true, compressed)
		c.send()
		if got := f.Stats().Buffered; got < 1<<20 {
			t.Errorf("%s: %d bytes count as waiting", name, got)
		}
		end(f, c, ticket)
		c.frames()
		idle(t, f, c, n)
	}
}

// A message that others read while its call is parked stays as it is, whatever becomes of the call.
func TestLentMessage(t *testing.T) {
	for _, size := range []int{3000, 16 << 10, 30_000} { // their buffers are kept in different ways
		for _, first := range []int{100, 16 << 10} { // of a message in one frame what is read by others is a copy
			_, r, c, _ := start(t)
			packed := strings.Repeat("p", size)
			compressed := message(packed)
			compressed[0] = 1
			var lent []byte
			r.route = func(call *Call) (*Conn, error) {
				if _, whole := call.Raw(); !whole {
					return nil, ErrNeedWhole
				}
				if call.client.id == 1 {
					lent = call.Lend()
				}
				return nil, ErrPark
			}
			c.headers(1, false, request...)
			for rest := compressed; len(rest) > 0; first = 16 << 10 {
				n := min(first, len(rest))
				c.data(1, false, rest[:n])
				rest = rest[n:]
			}
			c.data(1, false, []byte(strings.Repeat("b", 1000))) // behind it
			c.send()
			c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
			c.send()
			for id := uint32(3); id < 15; id += 2 { // their bytes go where there is room
				c.headers(id, false, request...).data(id, true, bytes.Repeat([]byte{1}, []int{16 << 10, 3000}[id/2%2]))
			}
			c.send()
			if string(lent) != packed {
				t.Errorf("%d bytes: the lent message is %d, %.50q, now", size, len(lent), lent)
			}
		}
	}
}
