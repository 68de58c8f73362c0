package h2

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// doubler is a Rewriter that holds messages of which the size is odd, and sends each twice
// over, in one message. Those that begin with "!" are left.
type doubler struct {
	asked, shown int
	message      []byte

	// Of compressed messages, for Rewritten.
	ticket Ticket
	lent   [][]byte
}

func (d *doubler) Hold(size int) bool {
	d.asked++
	d.message = d.message[:0]
	return size%2 == 1
}

func (d *doubler) See(p []byte) { d.message = append(d.message, p...) }

func (d *doubler) Edit(edits []Edit) []Edit {
	d.shown++
	if bytes.HasPrefix(d.message, []byte("!")) {
		return edits
	}
	return append(edits, Edit{len(d.message), len(d.message), d.message})
}

func (d *doubler) Inflate(t Ticket, pieces [][]byte) {
	d.shown++
	d.ticket, d.lent = t, pieces
}

// giveBack has the stream go on with the message in the place of a compressed one, or as it came if that is "".
// It returns how many turns that took.
func (d *doubler) giveBack(f *Forwarder, message string) (turns int) {
	came := 0
	for _, b := range d.lent {
		came += len(b)
	}
	f.Unhold(d.ticket, came)
	pieces, edits := d.lent, []Edit(nil)
	if message != "" {
		pieces, edits = [][]byte{append(make([]byte, messagePrefix), message...)}, []Edit{{0, 0, []byte("in")}, {1, 2, nil}}
	}
	d.lent = nil
	for more := f.Rewritten(d.ticket, came, pieces, edits, nil); more; more = f.GoOn(d.ticket) {
		turns++
	}
	return turns + 1
}

// packed is a message with the flag that says that it is compressed.
func packed(text string) []byte {
	b := message(text)
	b[0] = 1
	return b
}

// What comes behind a compressed message waits for it, in the order of the stream, counted, and goes on a few
// bytes in each turn.
func TestCompressedMessagesAreRewrittenLater(t *testing.T) {
	small := strings.Repeat(string(body("odd", "even")), 10_000)
	for name, back := range map[string]string{"as it came": "", "edited": "plain text"} {
		for _, frame := range []int{1, 3, 4, 5, 6, 7, 1000, minFrameSize} {
			f, r, c, n := start(t)
			d := &doubler{}
			r.route = func(call *Call) (*Conn, error) { call.Rewrite(d); return n.conn, nil }
			n.framer.WriteWindowUpdate(0, 1<<20)
			n.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			n.send()
			c.headers(1, false, request...)
			client, node := newFlow(c), newFlow(n)
			behind := small
			if frame < 1000 {
				behind = string(body("odd", "even", "", "more"))
			}
			one, two := packed("packed!"), packed("p")
			last := body(strings.Repeat("x", 50_000), "even", "last")
			if rest := client.write(1, slices.Concat(body("first"), one, []byte(behind), two, last), frame, true); len(rest) > 0 {
				t.Fatal("no room")
			}
			put := func(came []byte) []byte {
				if back == "" {
					return came
				}
				return message("inp" + back[2:])
			}
			want := doubled("first")
			node.read()
			if want := len(one) + len(behind) + len(two) + len(last); !bytes.Equal(node.got, doubled("first")) || f.Stats().Buffered != want {
				t.Fatalf("%s: the node got %q, %d bytes count; want %d", name, node.got, f.Stats().Buffered, want)
			}
			turns := d.giveBack(f, back)
			if least := len(behind) / bufferSize; turns < least {
				t.Errorf("%s, frames of %d: %d bytes go on in %d turns", name, frame, len(behind), turns)
			}
			if d.lent == nil {
				t.Fatal("the second message is not held")
			}
			d.giveBack(f, back)
			node.read()
			want = append(want, put(one)...)
			for m := []byte(behind); len(m) > 0; m = m[sizeOf(m):] {
				want = append(want, doubled(string(m[messagePrefix:sizeOf(m)]))...)
			}
			want = slices.Concat(want, put(two), last)
			if !bytes.Equal(node.got, want) || !node.ended {
				t.Fatalf("%s, frames of %d: the node got %d bytes of %d, ended %v", name, frame, len(node.got), len(want), node.ended)
			}
			n.headers(1, true, ":status", "200", "grpc-status", "0")
			n.send()
			c.frames()
			idle(t, f, c, n)
		}
	}
}

// A message that comes back to a call that is over, or with an error, leaves nothing.
func TestCompressedMessagesLeaveNothing(t *testing.T) {
	for name, end := range map[string]func(f *Forwarder, c, n *peer, d *doubler){
		"the client resets": func(_ *Forwarder, c, _ *peer, _ *doubler) { c.framer.WriteRSTStream(1, http2.ErrCodeCancel); c.send() },
		"the node is lost":  func(_ *Forwarder, _, n *peer, _ *doubler) { n.conn.Close() },
		"the deadline":      func(f *Forwarder, _, _ *peer, _ *doubler) { pass(f, 3*time.Second) },
		"an error": func(f *Forwarder, _, _ *peer, d *doubler) {
			if f.Rewritten(d.ticket, 0, nil, nil, crowded) {
				t.Error("there is more")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			d := &doubler{}
			r.route = func(call *Call) (*Conn, error) { call.Rewrite(d); return n.conn, nil }
			c.headers(1, false, append(request, "grpc-timeout", "2S")...).data(1, false, append(packed("packed!"), body("odd", "even")...))
			c.send()
			n.frames()
			end(f, c, n, d)
			got := strings.Join(c.frames(), "\n")
			if name == "an error" && !strings.Contains(got, "grpc-status=8") {
				t.Errorf("the client got %s", got)
			}
			came := len(packed("packed!"))
			if s := f.Stats(); s.Buffered != came || f.Hold(d.ticket, 1) {
				t.Errorf("%d bytes are kept; want the %d of the message", s.Buffered, came)
			}
			if d.giveBack(f, "plain text") != 1 || f.Stats().Buffered != 0 {
				t.Errorf("%d bytes are kept", f.Stats().Buffered)
			}
		})
	}
}

// Edits may be anywhere, over the ends of pieces too.
func TestEdits(t *testing.T) {
	f, _, _, _ := start(t)
	text := []byte("0123456789abcdef")
	for cut := messagePrefix; cut < messagePrefix+len(text); cut++ {
		for from := 0; from <= len(text); from++ {
			for to := from; to <= len(text); to++ {
				m := message(string(text))
				var q pieces
				q.push(bytes.Clone(m[:cut]))
				q.push(bytes.Clone(m[cut:]))
				edits := []Edit{{from, to, []byte("one")}, {to, len(text), []byte("two")}}
				out := f.makeEdits(&q, edits)
				got := bytes.Join(out.all, nil)
				if want := message(string(text[:from]) + "onetwo"); !bytes.Equal(got, want) || out.size != len(want) {
					t.Fatalf("cut at %d, edits at %d and %d: %q", cut, from, to, got)
				}
			}
		}
	}
}

// doubled is what a doubler makes of messages.
func doubled(messages ...string) (b []byte) {
	for _, m := range messages {
		if len(m)%2 == 1 && !strings.HasPrefix(m, "!") {
			m += m
		}
		b = append(b, message(m)...)
	}
	return b
}

func body(messages ...string) (b []byte) {
	for _, m := range messages {
		b = append(b, message(m)...)
	}
	return b
}

// flow is one end of a connection that keeps the rules of flow control.
type flow struct {
	*peer
	room   int // bytes that the forwarder takes on the stream
	conn   int // and on the connection
	got    []byte
	ended  bool
	head   string
	status string
}

func newFlow(p *peer) *flow {
	return &flow{peer: p, room: p.f.config.Window, conn: p.f.config.ConnWindow}
}

// read takes what the forwarder has sent.
func (f *flow) read() {
	f.t.Helper()
	f.collect()
	for {
		fr, err := f.framer.ReadFrame()
		if err != nil {
			if !strings.Contains(err.Error(), "EOF") {
				f.t.Fatal(err)
			}
			return
		}
		switch fr := fr.(type) {
		case *http2.WindowUpdateFrame:
			if fr.StreamID == 0 {
				f.conn += int(fr.Increment)
			} else {
				f.room += int(fr.Increment)
			}
		case *http2.DataFrame:
			if f.ended {
				f.t.Fatal("DATA after the end")
			}
			f.got = append(f.got, fr.Data()...)
			f.ended = f.ended || fr.StreamEnded()
		case *http2.HeadersFrame:
			f.head = f.line(fr)
			f.ended = f.ended || fr.StreamEnded()
			_, f.status, _ = strings.Cut(f.head, "grpc-status=")
		}
	}
}

// write sends as much of b as there is room for, in frames of so many bytes, and returns the rest.
func (f *flow) write(stream uint32, b []byte, frame int, end bool) []byte {
	for len(b) > 0 {
		n := min(len(b), frame, f.room, f.conn)
		if n == 0 {
			if f.read(); min(f.room, f.conn) == 0 {
				return b
			}
			continue
		}
		f.room, f.conn = f.room-n, f.conn-n
		f.data(stream, end && n == len(b), b[:n])
		if f.send() != nil {
			return nil
		}
		b = b[n:]
	}
	return b
}

func TestMessagesAreRewritten(t *testing.T) {
	messages := []string{"odd", "even", "", "x", "!ab", strings.Repeat("long ", 3001), strings.Repeat("passes", 5000), "y", "last"}
	sent, want := body(messages...), doubled(messages...)
	for name, how := range map[string]string{"at once": "", "parked": "park", "parked to its end": "park all", "whole first": "whole"} {
		for _, frame := range []int{1, 2, 3, 4, 5, 6, 7, 11, 1000, minFrameSize} {
			for _, end := range []string{"with the last", "alone", "trailer"} {
				f, r, c, n := start(t)
				d, parked := &doubler{}, false
				var ticket Ticket
				r.route = func(call *Call) (*Conn, error) {
					ticket = call.Ticket()
					switch _, whole := call.Raw(); {
					case how[:min(4, len(how))] == "park" && !parked:
						parked = true
						return nil, ErrPark
					case how == "whole" && !whole:
						return nil, ErrNeedWhole
					}
					call.Rewrite(d)
					return n.conn, nil
				}
				n.framer.WriteWindowUpdate(0, 1<<20)
				n.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
				n.send()
				c.headers(1, false, request...)
				client, node := newFlow(c), newFlow(n)
				if rest := client.write(1, sent[:12], frame, false); len(rest) > 0 {
					t.Fatal("no room")
				}
				if how == "park" {
					f.Resume(ticket)
				}
				client.write(1, sent[12:], frame, end == "with the last")
				switch end {
				case "alone":
					c.data(1, true, nil)
				case "trailer":
					c.headers(1, true, "a", "b")
				}
				c.send()
				if how == "park all" {
					f.Resume(ticket)
				}
				node.read()
				if !bytes.Equal(node.got, want) || !node.ended {
					t.Fatalf("%s, frames of %d, end %s: the node got %d bytes of %d, ended %v", name, frame, end, len(node.got), len(want), node.ended)
				}
				if d.asked != len(messages) || d.shown != 5 {
					t.Errorf("%s, frames of %d: asked about %d messages, shown %d", name, frame, d.asked, d.shown)
				}
				n.headers(1, true, ":status", "200", "grpc-status", "0")
				n.send()
				c.frames()
				idle(t, f, c, n)
			}
		}
	}
}

// Messages that pass are not cut into more frames than they came in.
func TestWhatPassesStaysInOneFrame(t *testing.T) {
	f, r, c, n := start(t)
	r.route = func(call *Call) (*Conn, error) { call.Rewrite(&doubler{}); return n.conn, nil }
	c.headers(1, false, request...).data(1, false, body("aa", "bb", "odd", "cc", "dd"))
	c.send()
	n.want("HEADERS 1 "+requestLine, "DATA 1 "+string(body("aa", "bb")), "DATA 1 "+string(body("oddodd")), "DATA 1 "+string(body("cc", "dd")))
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	idle(t, f, c, n)
}

func TestTheEndInAHeldMessage(t *testing.T) {
	for i := 2; i < 2*len(message("odd")); i++ {
		cut := i / 2
		f, r, c, n := start(t)
		r.route = func(call *Call) (*Conn, error) { call.Rewrite(&doubler{}); return n.conn, nil }
		c.headers(1, false, request...).data(1, false, body("aa"))
		if i%2 == 0 {
			c.data(1, true, message("odd")[:cut])
		} else {
			c.data(1, false, message("odd")[:cut]).headers(1, true, "a", "b")
		}
		c.send()
		n.want("HEADERS 1 "+requestLine, "DATA 1 "+string(body("aa")), "DATA 1 end "+string(message("odd")[:cut]))
		n.headers(1, true, ":status", "200", "grpc-status", "13")
		n.send()
		c.frames()
		idle(t, f, c, n)
	}
}

// A held message that is longer than all windows arrives; while the node takes nothing
// the client may send that message and no more than the window behind it.
func TestHeldMessagesMayExceedTheWindow(t *testing.T) {
	for name, whole := range map[string]bool{"in the stream": false, "before the call goes on": true} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			r.route = func(call *Call) (*Conn, error) {
				if _, is := call.Raw(); whole && !is {
					return nil, ErrNeedWhole
				}
				if !whole {
					call.Rewrite(&doubler{})
				}
				return n.conn, nil
			}
			long := strings.Repeat("0123456789abcdef", 3<<20/16) + "!"
			sent, want := message(long), doubled(long)
			if whole {
				want = sent
			}
			c.headers(1, false, request...)
			client, node := newFlow(c), newFlow(n)
			if rest := client.write(1, sent, minFrameSize, false); len(rest) > 0 {
				t.Fatalf("the client waits for room with %d bytes left", len(rest))
			}
			client.read()
			more := body(strings.Repeat("more", 8<<20/4))
			rest := client.write(1, more, minFrameSize, false)
			if took := len(more) - len(rest); took > f.config.Window {
				t.Errorf("%d bytes behind the message are taken from a client whose node takes none", took)
			}
			for len(node.got) < len(want)+len(more) {
				before := len(node.got)
				node.read()
				n.framer.WriteWindowUpdate(0, 1<<20)
				n.framer.WriteWindowUpdate(1, 1<<20)
				n.send()
				node.read()
				if rest = client.write(1, rest, minFrameSize, true); len(node.got) == before {
					t.Fatalf("it stops after %d bytes of %d", before, len(want)+len(more))
				}
				// What the client may send, what waits and what it has still to be given make its window.
				for _, s := range c.conn.streams.slots {
					if s != nil && !s.gotEnd && s.room+s.credit+s.twin().waits() != s.target {
						t.Fatalf("room %d, credit %d, %d wait; in all not %d", s.room, s.credit, s.twin().waits(), s.target)
					}
				}
			}
			if !bytes.Equal(node.got, append(want, more...)) || !node.ended {
				t.Error("the node got something else")
			}
			n.headers(1, true, ":status", "200", "grpc-status", "0")
			n.send()
			c.frames()
			idle(t, f, c, n)
		})
	}
}

func TestHeldMessagesAreBounded(t *testing.T) {
	small := func(c *Config) { c.Message, c.Buffered = 1000, 1<<20 }
	need := func(n *peer) func(*Call) (*Conn, error) {
		return func(call *Call) (*Conn, error) {
			if _, whole := call.Raw(); !whole {
				return nil, ErrNeedWhole
			}
			return n.conn, nil
		}
	}
	rewrite := func(n *peer) func(*Call) (*Conn, error) {
		return func(call *Call) (*Conn, error) { call.Rewrite(&doubler{}); return n.conn, nil }
	}
	t.Run("in length", func(t *testing.T) {
		for _, route := range []func(*peer) func(*Call) (*Conn, error){need, rewrite} {
			f, r, c, n := start(t, small)
			r.route = route(n)
			c.headers(1, false, request...).data(1, false, message(strings.Repeat("x", 999)))
			c.headers(3, false, request...).data(3, true, message(strings.Repeat("x", 1001))[:20])
			c.send()
			got := strings.Join(c.frames(), "\n")
			if !strings.Contains(got, "HEADERS 3 end :status=200 content-type=application/grpc grpc-status=8 grpc-message=a message that must be rewritten is longer than 1000 bytes") {
				t.Errorf("got %s", got)
			}
			c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
			c.send()
			idle(t, f, c, n)
		}
	})
	t.Run("in all", func(t *testing.T) {
		for _, route := range []func(*peer) func(*Call) (*Conn, error){need, rewrite} {
			f, r, c, n := start(t, func(c *Config) { c.Buffered = 1 << 20 })
			r.route = route(n)
			for i, held := range []int{300_000, 400_000, 200_000, 100_000, 290_000, 280_000} {
				id := uint32(2*i + 1)
				c.headers(id, false, request...)
				if rest := newFlow(c).write(id, message(strings.Repeat("x", held+1))[:held], minFrameSize, false); len(rest) > 0 {
					t.Errorf("stream %d could not write %d bytes", id, len(rest))
				}
				if got := f.Stats().Buffered; got > 1<<20 {
					t.Fatalf("%d bytes are held", got)
				}
				balance(t, f)
			}
			for id, want := range map[uint32]bool{1: false, 3: false, 5: true, 7: true, 9: true, 11: true} { // those that held most are ended, whoever asked
				if got := c.conn.streams.get(id) != nil; got != want {
					t.Errorf("stream %d is open: %t", id, got)
				}
				if c.framer.WriteRSTStream(id, http2.ErrCodeCancel); want {
					c.send()
				}
				c.out.Reset()
			}
			if got := f.Stats().Abuses[SlowReader]; got != 2 {
				t.Errorf("%d calls are ended; want 2", got)
			}
			idle(t, f, c, n)
		}
	})
	t.Run("in time", func(t *testing.T) {
		for _, route := range []func(*peer) func(*Call) (*Conn, error){need, rewrite} {
			for _, size := range []int{7, 20_000, 800_000} {
				f, r, c, n := start(t, func(c *Config) {
					c.HoldTimeout, c.ClientSilence, c.Silence = time.Hour, time.Hour, time.Hour
				})
				r.route = route(n)
				c.headers(1, false, request...)
				newFlow(c).write(1, message(strings.Repeat("x", 900001))[:size], minFrameSize, false)
				for range 60 { // a client that is slow, and sends
					pass(f, f.config.GrowTimeout-tick)
					c.data(1, false, []byte("x"))
					c.send()
					c.collect()
					n.collect()
				}
				pass(f, f.config.GrowTimeout/2)
				f.Advance(f.Now() + time.Minute/2) // the process stood still
				c.data(1, false, nil)              // nothing comes with that
				c.send()
				pass(f, f.config.GrowTimeout-2*tick)
				if len(r.done) != 0 {
					t.Fatalf("%d bytes: ended early: %q", size, c.frames())
				}
				pass(f, 3*tick)
				if got := strings.Join(c.frames(), "\n"); !strings.Contains(got, "grpc-status=8 grpc-message=a message of the request stopped before its end: nothing of it came for 5s") {
					t.Errorf("%d bytes of a message that does not become whole are kept: %s", size, got)
				}
				if got := f.Stats().Abuses[SlowSender]; got != 1 {
					t.Errorf("%d calls are ended; want 1", got)
				}
				idle(t, f, c, n)
			}
		}
	})
}

func TestHeldMessagesLeaveNothing(t *testing.T) {
	held := message(strings.Repeat("x", 99999))[:20000]
	for name, end := range map[string]func(f *Forwarder, c, n *peer){
		"the client resets":     func(_ *Forwarder, c, _ *peer) { c.framer.WriteRSTStream(1, http2.ErrCodeCancel); c.send() },
		"the client is lost":    func(_ *Forwarder, c, _ *peer) { c.conn.Close() },
		"the node resets":       func(_ *Forwarder, _, n *peer) { n.framer.WriteRSTStream(1, http2.ErrCodeCancel); n.send() },
		"the node is lost":      func(_ *Forwarder, _, n *peer) { n.conn.Close() },
		"the node answers":      func(_ *Forwarder, _, n *peer) { n.headers(1, true, ":status", "200", "grpc-status", "3"); n.send() },
		"the deadline":          func(f *Forwarder, _, _ *peer) { pass(f, 3*time.Second) },
		"the node is gone away": func(_ *Forwarder, _, n *peer) { n.framer.WriteGoAway(0, http2.ErrCodeNo, nil); n.send() },
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			r.route = func(call *Call) (*Conn, error) { call.Rewrite(&doubler{}); return n.conn, nil }
			c.headers(1, false, append(request, "grpc-timeout", "2S")...).data(1, false, held[:16000]).data(1, false, held[16000:])
			c.send()
			n.frames()
			end(f, c, n)
			c.frames()
			if name == "the node answers" {
				c.data(1, true, held[:10])
				c.send()
				n.headers(1, true, ":status", "200", "grpc-status", "0")
				n.send()
			}
			if s := f.Stats(); s.Buffered != 0 || len(r.done) == 0 {
				t.Errorf("%d bytes are kept, outcomes %+v", s.Buffered, r.done)
			}
		})
	}
}

// What follows a message that is replaced is shown to the observer, and goes on, without a copy of all of it or of the message.
func TestWhatFollowsAReplacedMessageIsNotCopied(t *testing.T) {
	const size = 8 << 20
	for _, tc := range []struct {
		name        string
		plain, tail int
		refused     bool
	}{
		{"a small one", 100, size, false}, {"a large one", 3 * bufferSize, size, false}, {"refused", 3 * bufferSize, size, true},
		{"a byte", size, 1, false}, {"little", size, bufferSize - 1, false}, {"as much as a buffer", size, bufferSize, false},
		{"little behind a small one", 100, 1000, false}, {"little, refused", size, bufferSize - 1, true},
	} {
		f, r, c, n := start(t, func(config *Config) { config.Window, config.MaxWindow = 2*size, 2*size })
		n.framer.WriteWindowUpdate(0, 2*size)
		n.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2 * size})
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
		if made := after.TotalAlloc - before.TotalAlloc; made > size/8 {
			t.Errorf("%s: %d bytes were allocated to forward %d", tc.name, made, tc.plain+tc.tail)
		}
		if want := messagePrefix + tc.plain + tc.tail; watched.bytes != want {
			t.Errorf("%s: the observer was shown %d bytes; want %d", tc.name, watched.bytes, want)
		}
		if tc.refused {
			c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=3 grpc-message=no more")
			n.want()
			idle(t, f, c, n)
			continue
		}
		var got []byte
		ended := false
		for !ended {
			lines := n.frames()
			if len(lines) == 0 {
				t.Fatalf("%s: the node got %d bytes and no end", tc.name, len(got))
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
		if want := append(message("pspliced"+strings.Repeat("p", tc.plain-3)), tail...); !bytes.Equal(got, want) {
			t.Errorf("%s: the node got %d bytes, which differ from the %d that it should", tc.name, len(got), len(want))
		}
		n.headers(1, true, ":status", "200", "grpc-status", "0").send()
		c.frames()
		idle(t, f, c, n)
	}
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
	const packed = "packed!"
	replace := func(b, message []byte) ([]byte, error) {
		if string(message) != packed {
			return nil, errors.New("not " + packed)
		}
		return append(b, plain...), nil
	}
	compressed := message(packed)
	compressed[0] = 1
	rest := body("a second message")
	for _, parked := range []bool{false, true} {
		for _, splice := range []bool{false, true} {
			for _, frame := range []int{1, 4, 5, 6, 11, 12, 13, 1000} {
				f, r, c, n := start(t)
				o, wait, replaced := &seen{}, parked, 0
				var ticket Ticket
				r.route = func(call *Call) (*Conn, error) {
					ticket = call.Ticket()
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
				sent := append(append([]byte(nil), compressed...), rest...)
				c.headers(1, false, append(request, "content-length", fmt.Sprint(len(sent)))...)
				newFlow(c).write(1, sent, frame, false)
				if parked {
					if got := f.Stats().Buffered; got < len(plain) {
						t.Errorf("%d bytes count as waiting; the message has %d", got, len(plain))
					}
					f.Resume(ticket)
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
		}
	}
	t.Run("fails", func(t *testing.T) {
		f, r, c, n := start(t)
		r.route = func(call *Call) (*Conn, error) {
			return nil, call.Replace(func([]byte, []byte) ([]byte, error) { return nil, &Status{Code: 3, Message: "bad"} })
		}
		c.headers(1, false, request...).data(1, true, compressed)
		c.send()
		c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=3 grpc-message=bad")
		idle(t, f, c, n)
	})
	t.Run("is too much", func(t *testing.T) {
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
		c.headers(1, false, request...).data(1, true, compressed)
		c.send()
		f.Resume(ticket)
		if got := strings.Join(c.frames(), "\n"); !strings.Contains(got, "grpc-status=8") {
			t.Errorf("got %s", got)
		}
		n.want()
		idle(t, f, c, n)
	})
	t.Run("is not whole", func(t *testing.T) {
		f, r, c, n := start(t)
		r.route = func(call *Call) (*Conn, error) { return nil, ErrNeedWhole }
		c.headers(1, false, request...).data(1, true, compressed[:8]).headers(3, false, request...).data(3, true, compressed[:3]).headers(5, true, request...).headers(7, false, request...).data(7, true, compressed)
		c.send()
		if got := strings.Join(c.frames(), "\n"); strings.Count(got, "grpc-status=13") != 4 {
			t.Errorf("got %s", got)
		}
		idle(t, f, c, n)
	})
}

// What was put in the place of a message counts as waiting until the call is over, however that comes.
func TestReplacedMessageOfCallThatEnds(t *testing.T) {
	compressed := message("packed!")
	compressed[0] = 1
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
		for _, first := range []int{100, 16 << 10} { // of a message in one frame what is lent is a copy
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

// Bytes that are held for a call that is parked count, within the bound.
func TestHold(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Buffered = 1 << 20 })
	var ticket Ticket
	r.route = func(call *Call) (*Conn, error) {
		ticket = call.Ticket()
		return nil, ErrPark
	}
	c.headers(1, true, request...)
	c.send()
	headers := f.Stats().Buffered // of the call that is parked
	const held = 1<<20 - 1000
	if !f.Hold(ticket, held) || headers == 0 || f.Stats().Buffered != headers+held {
		t.Errorf("%d bytes count, %d of them headers", f.Stats().Buffered, headers)
	}
	if f.Hold(ticket, 100_000) {
		t.Error("more is held than there may be")
	}
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	f.Unhold(ticket, held)
	if f.Hold(ticket, 1) {
		t.Error("bytes are held for a call that is over")
	}
	idle(t, f, c, n)
}

// FuzzRewrite: whatever messages a client sends within the protocol, in whatever frames
// and however slowly the node takes them, the node gets each as the Rewriter has it, in
// order; peers stay within their windows, and nothing is kept.
//
// The script: a byte for each message's length, and one for what comes next: the
// length of a frame of the client's, or of the node's window.
func FuzzRewrite(f *testing.F) {
	f.Add([]byte{3, 0, 7, 200, 250, 6, 9}, []byte{1, 40, 130, 255, 200, 7})
	f.Add([]byte{255, 255, 1, 1, 1, 0}, []byte{4, 5, 6, 129, 255})
	f.Fuzz(func(t *testing.T, lengths, script []byte) {
		if len(lengths) > 60 || len(script) > 400 {
			return
		}
		var sent, want []byte
		for i, k := range lengths {
			text := strings.Repeat(string(rune('a'+i%26)), int(k)*int(k))
			if i%5 == 4 && len(text) > 0 {
				text = "!" + text[1:]
			}
			sent, want = append(sent, message(text)...), append(want, doubled(text)...)
		}
		fw, r, c, n := start(t, func(c *Config) {
			c.Window, c.Control = defaultWindow, 1<<20
			c.ClientSilence, c.Silence, c.StallTimeout = time.Hour, time.Hour, time.Hour
		})
		var ticket Ticket
		park := len(lengths)%3 == 0
		r.route = func(call *Call) (*Conn, error) {
			if ticket = call.Ticket(); park {
				park = false
				return nil, ErrPark
			}
			call.Rewrite(&doubler{})
			return n.conn, nil
		}
		c.headers(1, false, request...)
		c.send()
		client, node := newFlow(c), newFlow(n)
		window := defaultWindow
		take := func(k int) {
			n.framer.WriteWindowUpdate(0, uint32(k))
			n.framer.WriteWindowUpdate(1, uint32(k))
			window += k
			n.send()
			if node.read(); len(node.got) > window {
				t.Fatalf("the node got %d bytes with a window of %d", len(node.got), window)
			}
		}
		opened := false
		for i, k := range script {
			if i == 1 {
				fw.Resume(ticket)
			}
			if k >= 128 {
				if node.read(); len(node.got) > 0 || opened {
					opened = true
					take(int(k-127) * int(k-127))
				}
				continue
			}
			frame := int(k)*int(k) + 1
			some := min(len(sent), frame)
			rest := client.write(1, sent[:some], frame, false)
			sent = sent[some-len(rest):]
		}
		fw.Resume(ticket)
		for round := 0; !node.ended; round++ {
			client.read()
			left := len(sent)
			if sent = client.write(1, sent, minFrameSize, true); left == 0 && round == 0 {
				c.data(1, true, nil)
				c.send()
			}
			if node.read(); !node.ended {
				take(100000)
			}
			if round > 1000 {
				t.Fatalf("it stops with %d bytes to send, %d of %d received", len(sent), len(node.got), len(want))
			}
		}
		if !bytes.Equal(node.got, want) {
			t.Fatalf("the node got %d bytes; want %d", len(node.got), len(want))
		}
		n.headers(1, true, ":status", "200", "grpc-status", "0")
		n.send()
		c.frames()
		idle(t, fw, c, n)
	})
}

// RESOURCE_EXHAUSTED, which clients repeat, is only for a stream of which no message has passed.
func TestStreamsThatEndForAMessage(t *testing.T) {
	type world struct {
		f *Forwarder
		c *peer
		d *doubler
	}
	for name, tc := range map[string]struct {
		came string // of the message
		end  func(w world)
		text string
	}{
		"it stops":       {came: string(message("xxx")[:6]), end: func(w world) { pass(w.f, w.f.config.GrowTimeout+2*tick) }, text: "a message of the request stopped before its end: nothing of it came for 5s"},
		"it is too long": {came: string(message(strings.Repeat("x", 1001))[:20]), text: "a message that must be rewritten is longer than 1000 bytes"},
		"it is too much now": {came: string(packed("xxx")), end: func(w world) {
			w.f.Rewritten(w.d.ticket, 8, nil, nil, &Status{Code: resourceExhausted, Message: "no memory"})
			w.f.Unhold(w.d.ticket, 8)
		}, text: "no memory"},
	} {
		for before, code := range map[string]string{"": "8", string(message("odd")): "14", string(message("even")): "14"} {
			f, r, c, n := start(t, func(c *Config) { c.Message, c.ClientSilence, c.Silence = 1000, time.Hour, time.Hour })
			w := world{f, c, &doubler{}}
			r.route = func(call *Call) (*Conn, error) { call.Rewrite(w.d); return n.conn, nil }
			c.headers(1, false, request...)
			if before != "" {
				c.data(1, false, []byte(before))
			}
			c.data(1, false, []byte(tc.came))
			c.send()
			n.collect()
			if tc.end != nil {
				tc.end(w)
			}
			want := "grpc-status=" + code + " grpc-message=" + tc.text
			if code == "14" {
				want += "; what came before may have been executed"
			}
			if got := strings.Join(c.frames(), "\n") + "\n"; !strings.Contains(got, want+"\n") {
				t.Errorf("%s, behind %q: %s; want %s", name, before, got, want)
			}
			idle(t, f, c, n)
		}
	}
}
