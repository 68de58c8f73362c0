package h2

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Each peer does one thing too much; every one ends with the right code and is counted.
func TestHostilePeers(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		attack func(f *Forwarder, c, n *peer)
		want   string // in what the peer gets
		abuse  Abuse
		ends   bool // the connection
	}{
		"rapid_reset": {
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); c.err == nil && id < 2000; id += 2 {
					c.headers(id, true, request...)
					c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: RapidReset, ends: true},
		"resets_that_we_are_made_to_send": {
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); c.err == nil && id < 2000; id += 2 {
					c.headers(id, true, request...)
					c.framer.WriteWindowUpdate(id, 0)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: RapidReset, ends: true},
		"malformed_requests": {
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); c.err == nil && id < 2000; id += 2 {
					c.headers(id, true, append(request, "Upper", "case")...)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: RapidReset, ends: true},
		"ping_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WritePing(false, [8]byte{})
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true},
		"settings_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)})
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true},
		"priority_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3})
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true},
		"window_update_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteWindowUpdate(0, 1)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true},
		"empty_data": {
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, false, request...)
				for i := 0; c.err == nil && i < 10000; i++ {
					c.data(1, false, nil)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true},
		"padding_only": {
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, false, request...)
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteDataPadded(1, false, nil, make([]byte, 200))
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true},
		"unknown_frames": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteRawFrame(0xee, 0, 0, nil)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true},
		"continuation_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.encode(request...)})
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteContinuation(1, false, c.encode("name", strings.Repeat("v", 1000)))
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ContinuationFlood, ends: true},
		"empty_continuations": {
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.encode(request...)})
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteContinuation(1, false, nil)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ContinuationFlood, ends: true},
		"headers_that_do_not_end": {
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.encode(request...)})
				c.send()
				f.Advance(f.Now() + 11*time.Second)
			}, want: "ENHANCE_YOUR_CALM", abuse: SlowHandshake, ends: true},
		"hpack_bomb": {
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, true, append(request, "bomb", strings.Repeat("b", 3900))...)
				c.send()
				block := append(c.encode(request...), bytes.Repeat([]byte{0x80 | 62}, 16000)...) // 62 MB
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block, EndHeaders: true, EndStream: true})
				c.send()
			}, want: "HEADERS 3 end :status=200 content-type=application/grpc grpc-status=8 grpc-message=the headers are too large", abuse: HeaderBytes},
		"too_many_streams": {
			change: func(c *Config) { c.Streams = 3 },
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); id < 10; id += 2 {
					c.headers(id, true, request...)
				}
				c.send()
			}, want: "RST_STREAM 7 REFUSED_STREAM", abuse: StreamLimit},
		"stream_window_overrun": {
			attack: func(f *Forwarder, c, n *peer) {
				n.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				n.send()
				c.headers(1, false, request...)
				for range f.config.Window/16384 + 1 {
					c.data(1, false, make([]byte, 16384))
				}
				c.send()
			}, want: "RST_STREAM 1 FLOW_CONTROL_ERROR", abuse: WindowOverrun},
		"connection_window_overrun": {
			change: func(c *Config) { c.Window, c.ConnWindow, c.MaxWindow = defaultWindow, defaultWindow, defaultWindow },
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, false, request...)
				c.conn.recvRoom = 10000 // as if the peer had ignored what it was told
				c.data(1, false, make([]byte, 16384))
				c.send()
			}, want: "FLOW_CONTROL_ERROR", abuse: WindowOverrun, ends: true},
		"no_settings": {
			attack: func(f *Forwarder, c, n *peer) {
				c.become(f.Accept())
				c.out.WriteString(preface[:10])
				c.send()
				f.Advance(f.Now() + 11*time.Second)
			}, want: "SETTINGS_TIMEOUT", abuse: SlowHandshake, ends: true},
		"takes_no_bytes": {
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, true, request...)
				c.send()
				n.frames()
				n.headers(1, false, ":status", "200").data(1, false, make([]byte, 10000))
				n.send() // the client's socket takes nothing
				f.Advance(f.Now() + 40*time.Second)
				n.framer.WritePing(true, [8]byte([]byte(pingOfKeepalive)))
				n.send()
				f.Advance(f.Now() + 40*time.Second)
			}, want: "ENHANCE_YOUR_CALM", abuse: Stalled, ends: true},
		"slow_readers_together": {
			change: func(c *Config) { c.Buffered = 1 << 20 },
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				for id := uint32(1); id < 20; id += 2 {
					c.headers(id, true, request...)
				}
				c.send()
				n.frames()
				for id := uint32(1); id < 20; id += 2 {
					n.headers(id, false, ":status", "200")
					for range 15 {
						n.data(id, false, make([]byte, 16384))
					}
				}
				n.send()
				if got := f.Stats().Buffered; got > 1<<20+10*16384 {
					t.Errorf("%d bytes wait", got)
				}
			}, want: "", abuse: SlowReader},
		"huge_frame": {
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 16385))
				c.send()
			}, want: "FRAME_SIZE_ERROR", abuse: numAbuses, ends: true},
		"bad_compression": {
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
				c.send()
			}, want: "COMPRESSION_ERROR", abuse: numAbuses, ends: true},
		"http1": {
			attack: func(f *Forwarder, c, n *peer) {
				c.become(f.Accept())
				c.out.WriteString("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
				c.send()
			}, want: "PROTOCOL_ERROR", abuse: numAbuses, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*Config)
			if tc.change != nil {
				change = append(change, tc.change)
			}
			f, r, c, n := start(t, change...)
			tc.attack(f, c, n)
			if got := strings.Join(c.frames(), "\n"); !strings.Contains(got, tc.want) {
				t.Errorf("no %q in\n%.3000s", tc.want, got)
			}
			if c.conn.Finished() != tc.ends {
				t.Errorf("the connection has ended: %v", c.conn.Finished())
			}
			for a, count := range f.Stats().Abuses {
				if (count > 0) != (Abuse(a) == tc.abuse) {
					t.Errorf("%v: %d", Abuse(a), count)
				}
			}
			c.conn.Close()
			if idle(t, f); n.conn.streams.n != 0 {
				t.Errorf("%d calls are left at the node", n.conn.streams.n)
			}
			if s := f.Stats(); int(s.Forwarded) > len(r.done) {
				t.Errorf("%d calls were forwarded, %d are done", s.Forwarded, len(r.done))
			}
		})
	}
}

// Honest peers do not run out of their allowance: as many pings, window updates and
// cancellations as traffic explains.
func TestAllowanceIsEarned(t *testing.T) {
	f, _, c, n := start(t)
	for id := uint32(1); id < 10000; id += 2 {
		c.headers(id, false, request...).data(id, true, message("m"))
		c.framer.WritePing(false, [8]byte{})
		c.framer.WriteWindowUpdate(0, 10)
		if id%4 == 1 {
			c.send()
			c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		c.send()
		n.headers(id, true, ":status", "200", "grpc-status", "0")
		n.send()
		c.frames()
		n.collect()
	}
	if c.err != nil || f.Stats().Abuses != (Stats{}).Abuses {
		t.Errorf("%v, %v", c.err, f.Stats().Abuses)
	}
	idle(t, f, c)
}

func TestTimeouts(t *testing.T) {
	for text, want := range map[string]time.Duration{"1H": time.Hour, "2M": 2 * time.Minute, "99999999S": 99999999 * time.Second, "5m": 5 * time.Millisecond,
		"7u": 7 * time.Microsecond, "8n": 8, "0n": 0, "": -1, "S": -1, "1": -1, "-1S": -1, "123456789S": -1, "1s": -1, "99999999H": 1 << 62} {
		got, ok := parseTimeout([]byte(text))
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q is %v; want %v", text, got, want)
		}
	}
	for _, d := range []time.Duration{0, 1, 99999999, 1e8, 123456789, time.Hour, 1000 * time.Hour, 1 << 62} {
		text := appendTimeout(nil, d)
		got, ok := parseTimeout(text)
		if !ok || got > d || got < d-d/100000 && d < 1<<60 {
			t.Errorf("%v is written as %q, which is %v", d, text, got)
		}
	}
}

func TestField(t *testing.T) {
	m := AppendField(AppendField(AppendField(nil, 2, []byte("two")), 1, []byte("a")), 1, []byte("last"))
	for n := range m {
		value, from, to := Field(m[:n], 1)
		if to > n || string(value) != "" && string(value) != "a" || to > 0 && to-from != 3 {
			t.Errorf("of %d bytes: %q at %d to %d", n, value, from, to)
		}
	}
	if value, from, to := Field(m, 1); string(value) != "last" || string(m[from:to]) != "\x0a\x04last" {
		t.Errorf("got %q at %d to %d", value, from, to)
	}
}

func FuzzField(f *testing.F) {
	f.Add(AppendField([]byte{0x08, 1, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0x15, 0, 0, 0, 0}, 1, []byte("session")))
	f.Fuzz(func(t *testing.T, m []byte) {
		value, from, to := Field(m, 1)
		if from < 0 || to > len(m) || from > to || to > 0 && !bytes.HasSuffix(m[from:to], value) {
			t.Fatalf("%x: %x at %d to %d", m, value, from, to)
		}
	})
}
