package h2

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/proof/short"
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
			if want := len(one) + len(behind) + len(two) + len(last); !bytes.Equal(node.got, doubled("first")) ||
				f.Stats().Buffered != want {
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

// write sends as much of b as there is room for, in frames of that size, and returns the rest.
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

// rewritten are the messages of a request that comes in frames of that size.
func rewritten(frame int) []string {
	long, passes := 3001, 5000
	if frame < 1000 { // a tenth is many frames, too
		long, passes = short.Of(long, 301), short.Of(passes, 500)
	}
	return []string{"odd", "even", "", "x", "!ab", strings.Repeat("long ", long), strings.Repeat("passes", passes), "y", "last"}
}

func TestMessagesAreRewritten(t *testing.T) {
	for name, how := range map[string]string{"at once": "", "parked": "park", "parked to its end": "park all", "whole first": "whole"} {
		for _, frame := range []int{1, 2, 3, 4, 5, 6, 7, 11, 1000, minFrameSize} {
			messages := rewritten(frame)
			sent, want := body(messages...), doubled(messages...)
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
					t.Fatalf("%s, frames of %d, end %s: the node got %d bytes of %d, ended %v", name, frame, end,
						len(node.got), len(want), node.ended)
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
	n.want("HEADERS 1 "+requestLine, "DATA 1 "+string(body("aa", "bb")), "DATA 1 "+string(body("oddodd")),
		"DATA 1 "+string(body("cc", "dd")))
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

// FuzzRewrite: whatever messages a client sends within the protocol, in whatever frames
// and however slowly the node takes them, the node gets each as the Rewriter has it, in
// order; peers stay within their windows, and nothing is kept.
//
// The script: a byte for each message's length, and one for what comes next: the
// length of a frame of the client's, or of the node's window.
//
// Long: it is one stream from its first byte to its last.
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
		"it stops": {came: string(message("xxx")[:6]),
			end:  func(w world) { pass(w.f, w.f.config.GrowTimeout+2*tick) },
			text: "a message of the request stopped before its end: nothing of it came for 5s"},
		"it is too long": {came: string(message(strings.Repeat("x", 1001))[:20]),
			text: "a message that must be rewritten is longer than 1000 bytes"},
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
