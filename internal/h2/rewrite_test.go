package h2

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// doubler is a Rewriter that holds messages of which the size is odd, and sends each twice
// over, in one message. Those that begin with "!" are left.
type doubler struct{ asked, shown int }

func (d *doubler) Hold(size int) bool {
	d.asked++
	return size%2 == 1
}

func (d *doubler) Rewrite(b, message []byte, compressed bool) []byte {
	d.shown++
	switch {
	case compressed:
		return append(b, "was compressed"...)
	case bytes.HasPrefix(message, []byte("!")):
		return nil
	}
	return append(append(b, message...), message...)
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
			long := message(strings.Repeat("x", 400001))
			for id := uint32(1); id < 9; id += 2 {
				c.headers(id, false, request...)
				client := newFlow(c)
				client.write(id, long[:len(long)-1], minFrameSize, false)
				if client.read(); (client.status[:min(1, len(client.status))] == "8") != (id > 4) {
					t.Errorf("stream %d ends with %q", id, client.status)
				}
				if got := f.Stats().Buffered; got > 1<<20 {
					t.Fatalf("%d bytes are held", got)
				}
			}
			if got := f.Stats().Abuses[SlowReader]; got != 2 {
				t.Errorf("%d calls are ended; want 2", got)
			}
			for id := uint32(1); id < 5; id += 2 {
				c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			c.send()
			idle(t, f, c, n)
		}
	})
	t.Run("in time", func(t *testing.T) {
		f, r, c, n := start(t, func(c *Config) { c.Buffered, c.ClientSilence, c.Silence = 1<<20, time.Hour, time.Hour })
		r.route = rewrite(n)
		c.headers(1, false, request...)
		newFlow(c).write(1, message(strings.Repeat("x", 900001))[:800000], minFrameSize, false)
		pass(f, 9*time.Second)
		c.data(1, false, []byte("x"))
		c.send()
		if len(r.done) != 0 {
			t.Fatal("ended early")
		}
		pass(f, 2*time.Second)
		if got := strings.Join(c.frames(), "\n"); !strings.Contains(got, "grpc-status=8") {
			t.Errorf("a message that does not become whole is kept: %s", got)
		}
		idle(t, f, c, n)
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

// A first message that is replaced is, to all others, the one that came.
func TestReplace(t *testing.T) {
	const packed, plain = "packed!", "the plain text of it, which is longer"
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
				o, wait := &seen{}, parked
				var ticket Ticket
				r.route = func(call *Call) (*Conn, error) {
					ticket = call.Ticket()
					_, whole := call.Raw()
					switch m, ok := call.Message(); {
					case len(m) > 0 || ok:
						t.Errorf("a compressed message is shown: %q", m)
					case !whole:
						return nil, ErrNeedWhole
					case !call.Compressed():
						t.Error("not compressed")
					}
					if err := call.Replace(replace); err != nil {
						t.Error(err)
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
					t.Errorf("the Observer saw %q", o.client.Bytes())
				}
				if splice {
					want = append(message("the spliced text of it, which is longer"), rest...)
				}
				if string(node.got) != string(want) || !node.ended {
					t.Errorf("frames of %d, parked %v: the node got %q", frame, parked, node.got)
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
