package h2

import (
	"bytes"
	"math/rand/v2"
	"slices"
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
		at     int  // peer.sends at the end of a flood, of which the greeting is one; 0: it is none
	}{
		"rapid_reset": {
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); c.err == nil && id < 10000; id += 2 {
					c.headers(id, true, request...)
					c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: RapidReset, ends: true, at: 1002},
		"resets_that_we_are_made_to_send": {
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); c.err == nil && id < 10000; id += 2 {
					c.headers(id, true, request...)
					c.framer.WriteWindowUpdate(id, 0)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: RapidReset, ends: true, at: 1002},
		"malformed_requests": {
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); c.err == nil && id < 10000; id += 2 {
					c.headers(id, true, append(request, "Upper", "case")...)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: RapidReset, ends: true, at: 1002},
		"ping_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WritePing(false, [8]byte{})
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 1001},
		"settings_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)})
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 501},
		"windows_of_many_streams": { // traffic does not pay for them
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); id < 500; id += 2 {
					c.headers(id, false, request...)
				}
				c.send()
				for i := 0; c.err == nil && i < 1000; i++ {
					for range 30 {
						c.data(1, false, []byte("x"))
					}
					c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i % 2)})
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 491},
		"headers_out_of_a_few_octets": {
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); c.err == nil && id < 4000; id += 2 {
					c.headers(id, true, append(request, slices.Repeat([]string{"x-long", strings.Repeat("x", 3000)}, 15)...)...)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 144},
		"answers_that_nobody_reads": {
			change: func(c *Config) { c.Output = 16 << 10 },
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); id < 8000; id += 2 {
					c.headers(id, true, append(request, strings.Repeat("x", 1000)+"-bin", "!")...)
				}
				if c.send(); c.conn.backlog() > 260<<10 {
					t.Errorf("%d bytes wait for a client that has sent its requests at once", c.conn.backlog())
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: Stalled, ends: true},
		"headers_behind_the_goaway": {
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, false, request...)
				c.send()
				c.conn.Drain()
				c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
				c.headers(5, true, request...)
				for i := 0; c.err == nil && i < 10000; i++ {
					c.headers(3+uint32(i%2)*2, true, request...)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 1004},
		"ends_of_streams_that_are_gone": {
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, false, request...)
				c.framer.WriteWindowUpdate(1, 0) // has us reset it
				for i := 0; c.err == nil && i < 10000; i++ {
					c.data(1, true, nil)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 1005},
		"priority_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3})
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 1001},
		"window_update_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteWindowUpdate(0, 1)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 1001},
		"empty_data": {
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, false, request...)
				for i := 0; c.err == nil && i < 10000; i++ {
					c.data(1, false, nil)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 1005},
		"padding_only": {
			attack: func(f *Forwarder, c, n *peer) {
				c.headers(1, false, request...)
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteDataPadded(1, false, nil, make([]byte, 200))
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 1005},
		"unknown_frames": {
			attack: func(f *Forwarder, c, n *peer) {
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteRawFrame(0xee, 0, 0, nil)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true, at: 1001},
		"continuation_flood": {
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.encode(request...)})
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteContinuation(1, false, c.encode("name", strings.Repeat("v", 1000)))
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ContinuationFlood, ends: true, at: 7},
		"empty_continuations": {
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.encode(request...)})
				for i := 0; c.err == nil && i < 10000; i++ {
					c.framer.WriteContinuation(1, false, nil)
					c.send()
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: ContinuationFlood, ends: true, at: 4},
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
			}, want: "ENHANCE_YOUR_CALM", abuse: HeaderBytes, ends: true},
		"hpack_bomb_that_fills_the_table": {
			attack: func(f *Forwarder, c, n *peer) {
				block := append(c.encode(request...), 0x40, 0x7f, 0xa1, 0x1e) // a name of 4000 octets ...
				block = append(append(block, bytes.Repeat([]byte{'n'}, 4000)...), 0)
				block = append(block, bytes.Repeat([]byte{0x40 | 62, 0}, 6000)...) // ... again and again
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, EndStream: true})
				c.send()
				if got := len(c.conn.decoder.evicted); got > 70 {
					t.Errorf("%d entries are kept", got)
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: HeaderBytes, ends: true},
		"large_headers": {
			attack: func(f *Forwarder, c, n *peer) {
				block := bytes.Clone(c.encode(append(request, "large", strings.Repeat("b", 70000))...))
				c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16384], EndStream: true})
				for block = block[16384:]; len(block) > 16384; block = block[16384:] {
					c.framer.WriteContinuation(1, false, block[:16384])
				}
				c.framer.WriteContinuation(1, true, block)
				c.send()
			}, want: "HEADERS 1 end :status=200 content-type=application/grpc grpc-status=8 grpc-message=the headers are too large", abuse: HeaderBytes},
		"many_settings": {
			attack: func(f *Forwarder, c, n *peer) {
				var all []http2.Setting
				for i := range uint32(2000) {
					all = append(all, http2.Setting{ID: http2.SettingInitialWindowSize, Val: i})
				}
				c.framer.WriteSettings(all...)
				c.send()
			}, want: "ENHANCE_YOUR_CALM", abuse: ControlFlood, ends: true},
		"answers_are_not_read": {
			change: func(c *Config) { c.Output = minFrameSize },
			attack: func(f *Forwarder, c, n *peer) {
				for id := uint32(1); c.err == nil && id < 20000; id += 2 { // takes bytes, but too few
					c.headers(id, true, request...)
					c.send()
					n.headers(id, true, ":status", "200", "grpc-status", "5", "grpc-message", strings.Repeat("m", 100)+itoa(id%100))
					n.send()
					n.collect()
					if b := c.conn.Take(); id%100 == 1 && b != nil {
						c.in.Write(b)
						c.conn.Sent(len(b) - 10)
						c.conn.flying += 10
					} else {
						c.in.Write(b)
					}
					pass(f, 10*time.Millisecond)
				}
				if got := c.conn.backlog(); got > 17*minFrameSize {
					t.Errorf("%d bytes wait", got)
				}
			}, want: "ENHANCE_YOUR_CALM", abuse: Stalled, ends: true, at: 2669},
		"streams_pinned_with_bytes": {
			change: func(c *Config) { c.Buffered = 1 << 20 },
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				for id := uint32(1); id < 12; id += 2 {
					c.headers(id, true, request...)
				}
				c.send()
				n.frames()
				for id := uint32(1); id < 12; id += 2 {
					n.headers(id, false, ":status", "200")
					for range 7 {
						n.data(id, false, make([]byte, 16384))
					}
				}
				n.send()
				for range 12 {
					n.framer.WritePing(false, [8]byte{})
					n.send()
					c.framer.WriteWindowUpdate(3, 2000) // its reader takes some
					c.framer.WriteWindowUpdate(5, 1)    // and that one next to nothing
					c.send()
					pass(f, time.Second)
					c.collect()
					n.collect()
				}
				if got := f.Stats().Buffered; got > 1<<19 || c.conn.streams.get(3) == nil || c.conn.streams.get(5) != nil {
					t.Errorf("%d bytes wait for %d streams", got, c.conn.streams.n)
				}
			}, want: " CANCEL", abuse: SlowReader},
		"a_frame_on_each_of_many_streams": {
			change: func(c *Config) { c.Buffered = 1 << 20 },
			attack: func(f *Forwarder, c, n *peer) {
				c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				for id := uint32(1); id < 400; id += 2 {
					c.headers(id, true, request...)
				}
				c.send()
				n.frames()
				for id := uint32(1); id < 400; id += 2 {
					n.headers(id, false, ":status", "200").data(id, false, make([]byte, 16384))
				}
				n.send()
				if got := f.Stats().Buffered; got > 2<<20 {
					t.Errorf("%d bytes wait", got)
				}
			}, want: "grpc-status=14 grpc-message=the sidecar's memory for waiting bytes", abuse: SlowReader},
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
			if tc.at > 0 && c.sends != tc.at {
				t.Errorf("the flood ends after %d sends; want %d", c.sends, tc.at)
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

// What traffic earns is not saved up without end, and comes back once a second only as far as it is allowed without traffic.
func TestEarnedAllowanceIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		flood func(c *peer, id uint32)
		most  func(Config) int
		again func(Config) int
	}{
		"pings": {func(c *peer, _ uint32) { c.framer.WritePing(false, [8]byte{}) },
			func(c Config) int { return 4 * c.Control }, func(c Config) int { return c.Control }},
		"resets": {func(c *peer, id uint32) {
			c.headers(id, true, request...)
			c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
		}, func(c Config) int { return 2 * c.Resets }, func(c Config) int { return c.Resets }},
	} {
		t.Run(name, func(t *testing.T) {
			f, _, c, n := start(t)
			id := uint32(1)
			for ; id < 10000; id += 2 {
				c.headers(id, true, request...)
				c.send()
				n.headers(id, true, ":status", "200", "grpc-status", "0")
				n.send()
				c.frames()
				n.collect()
			}
			flood := func(most int) int {
				before := c.sends
				for ; c.err == nil && c.sends-before < most; id += 2 {
					tc.flood(c, id)
					c.send()
					c.collect()
				}
				return c.sends - before
			}
			most, again := tc.most(f.config), tc.again(f.config)
			if flood(most); c.err != nil {
				t.Fatalf("%v; want as many as were earned", c.err)
			}
			f.Advance(f.Now() + time.Second)
			if got := flood(10 * most); got != again+1 || c.err == nil {
				t.Errorf("%d a second later, %v; want an end after %d", got, c.err, again+1)
			}
		})
	}
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

// A node that breaks the protocol ends its own calls or its connection; its clients get
// an answer each, and never more than one.
func TestHostileNodes(t *testing.T) {
	const broken = "grpc-status=13 grpc-message=the node broke the protocol"
	const lost = "grpc-status=14 grpc-message=the connection to the node was lost"
	for name, tc := range map[string]struct {
		attack func(f *Forwarder, c, n *peer)
		node   string // in what the node gets
		client string // in what the client gets
		ends   bool   // the node's connection
	}{
		"informational_flood": {func(f *Forwarder, c, n *peer) {
			for i := 0; n.err == nil && i < 10000; i++ {
				n.headers(1, false, ":status", "103")
				n.send()
			}
			if got := c.conn.backlog(); got > 64<<10 {
				t.Errorf("%d bytes wait for the client", got)
			}
		}, "ENHANCE_YOUR_CALM", lost, true},
		"data_after_the_end": {func(f *Forwarder, c, n *peer) {
			n.headers(1, true, ":status", "200", "grpc-status", "0").data(1, false, []byte("more"))
			n.send()
		}, "RST_STREAM 1 STREAM_CLOSED", "grpc-status=0", false},
		"headers_after_the_end": {func(f *Forwarder, c, n *peer) {
			n.headers(1, true, ":status", "200", "grpc-status", "0").headers(1, true, ":status", "200", "grpc-status", "5")
			n.send()
		}, "RST_STREAM 1 STREAM_CLOSED", "grpc-status=0", false},
		"data_before_headers": {func(f *Forwarder, c, n *peer) {
			n.data(1, false, []byte("m"))
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"two_heads": {func(f *Forwarder, c, n *peer) {
			n.headers(1, false, ":status", "200").headers(1, false, ":status", "200")
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"more_than_its_length": {func(f *Forwarder, c, n *peer) {
			n.headers(1, false, ":status", "200", "content-length", "3").data(1, false, []byte("more"))
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"less_than_its_length": {func(f *Forwarder, c, n *peer) {
			n.headers(1, false, ":status", "200", "content-length", "5").data(1, true, []byte("less"))
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"a_trailer_before_its_length": {func(f *Forwarder, c, n *peer) {
			n.headers(1, false, ":status", "200", "content-length", "5").data(1, false, []byte("less")).headers(1, true, "grpc-status", "0")
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"no_body_of_a_length": {func(f *Forwarder, c, n *peer) {
			n.headers(1, true, ":status", "200", "grpc-status", "0", "content-length", "5")
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"two_lengths": {func(f *Forwarder, c, n *peer) {
			n.headers(1, false, ":status", "200", "content-length", "5", "content-length", "5")
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"its_length": {func(f *Forwarder, c, n *peer) {
			n.headers(1, false, ":status", "200", "content-length", "4").data(1, false, []byte("body")).headers(1, true, "grpc-status", "0")
			n.send()
			c.data(1, true, nil)
			c.send()
		}, "", "DATA 1 body\nHEADERS 1 end grpc-status=0", false},
		"no_status": {func(f *Forwarder, c, n *peer) {
			n.headers(1, false, "content-type", "application/grpc")
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"headers_too_large": {func(f *Forwarder, c, n *peer) {
			n.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: n.encode(":status", "200", "big", strings.Repeat("b", 4000))})
			block := n.encode("big", strings.Repeat("b", 4000))
			n.framer.WriteContinuation(1, true, bytes.Repeat(block, 17))
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"hpack_bomb": {func(f *Forwarder, c, n *peer) {
			block := append(bytes.Clone(n.encode(":status", "200", "big", strings.Repeat("b", 4000))), bytes.Repeat([]byte{0x80 | 62}, 10000)...)
			n.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
			n.send()
		}, "ENHANCE_YOUR_CALM", lost, true},
		"push": {func(f *Forwarder, c, n *peer) {
			n.framer.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: n.encode(request...), EndHeaders: true})
			n.send()
		}, "PROTOCOL_ERROR", lost, true},
		"stream_of_its_own": {func(f *Forwarder, c, n *peer) {
			n.headers(2, false, ":status", "200")
			n.send()
		}, "PROTOCOL_ERROR", lost, true},
		"idle_stream": {func(f *Forwarder, c, n *peer) {
			n.framer.WriteRSTStream(101, http2.ErrCodeCancel)
			n.send()
		}, "PROTOCOL_ERROR", lost, true},
		"stream_window_overflow": {func(f *Forwarder, c, n *peer) {
			n.framer.WriteWindowUpdate(1, maxWindow)
			n.send()
		}, "RST_STREAM 1 FLOW_CONTROL_ERROR", broken, false},
		"connection_window_overflow": {func(f *Forwarder, c, n *peer) {
			n.framer.WriteWindowUpdate(0, maxWindow)
			n.send()
		}, "FLOW_CONTROL_ERROR", lost, true},
		"window_of_0": {func(f *Forwarder, c, n *peer) {
			n.framer.WriteWindowUpdate(1, 0)
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"settings_overflow": {func(f *Forwarder, c, n *peer) {
			n.framer.WriteWindowUpdate(1, 1000)
			n.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
			n.send()
		}, "FLOW_CONTROL_ERROR", lost, true},
		"push_enabled": {func(f *Forwarder, c, n *peer) {
			n.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1})
			n.send()
		}, "PROTOCOL_ERROR", lost, true},
		"ping_flood": {func(f *Forwarder, c, n *peer) {
			for i := 0; n.err == nil && i < 10000; i++ {
				n.framer.WritePing(false, [8]byte{})
				n.send()
			}
		}, "ENHANCE_YOUR_CALM", lost, true},
		"goaway_flood": {func(f *Forwarder, c, n *peer) {
			for i := 0; n.err == nil && i < 10000; i++ {
				n.framer.WriteGoAway(maxStreamID, http2.ErrCodeNo, nil)
				n.send()
			}
		}, "ENHANCE_YOUR_CALM", lost, true},
		"overrun": {func(f *Forwarder, c, n *peer) {
			n.headers(1, false, ":status", "200")
			for range f.config.Window/16384 + 1 {
				n.data(1, false, make([]byte, 16384))
			}
			n.send()
		}, "RST_STREAM 1 FLOW_CONTROL_ERROR", "RST_STREAM", false},
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, n := start(t)
			c.headers(1, false, request...)
			c.send()
			n.frames()
			if name == "overrun" {
				c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				c.send()
			}
			tc.attack(f, c, n)
			if got := strings.Join(n.frames(), "\n"); !strings.Contains(got, tc.node) {
				t.Errorf("the node gets no %q in\n%.2000s", tc.node, got)
			}
			if n.conn.Finished() != tc.ends {
				t.Errorf("the node's connection has ended: %v", n.conn.Finished())
			}
			if strings.HasSuffix(name, "_flood") && n.sends != f.config.Control+1 { // of which the greeting is one
				t.Errorf("the flood ends after %d sends; want %d", n.sends, f.config.Control+1)
			}
			c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			c.framer.WriteWindowUpdate(0, 1<<20)
			c.send()
			got := c.frames()
			if all := strings.Join(got, "\n"); strings.Count(all, " end ") > 1 || !strings.Contains(all, tc.client) && name != "overrun" {
				t.Errorf("the client gets\n%.2000s", all)
			}
			if len(r.done) != 1 || c.conn.Finished() {
				t.Errorf("outcomes %+v; the client's connection has ended: %v", r.done, c.conn.Finished())
			}
			idle(t, f, c)
		})
	}
}

// An answer that is whole stays as it is, whatever comes after it.
func TestWholeAnswersStay(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Buffered = 300 << 10 })
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.headers(1, false, request...).headers(3, false, request...).headers(5, false, request...)
	c.send()
	n.frames()
	n.headers(1, false, ":status", "200").data(1, false, []byte("m")).headers(1, true, "grpc-status", "0")
	n.data(1, false, []byte("too much")) // while the client has not read what is due to it
	n.headers(3, true, ":status", "200", "grpc-status", "0").headers(5, true, ":status", "200", "grpc-status", "0")
	n.send()
	for range 15 { // more than the node takes, and than there is memory for
		c.data(3, false, make([]byte, 16384)).data(5, false, make([]byte, 16384))
	}
	c.send()
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	c.send()
	got := strings.Join(c.frames(), "\n")
	if strings.Count(got, " end ") != 3 || f.Stats().Abuses[SlowReader] == 0 || !strings.Contains(got, "DATA 1 m\nHEADERS 1 end grpc-status=0") || !strings.Contains(got, "HEADERS 3 end :status=200 grpc-status=0\nHEADERS 5 end :status=200 grpc-status=0") {
		t.Errorf("the client gets\n%s", got)
	}
	c.conn.Close()
	if idle(t, f, n); len(r.done) != 3 || r.done[0].Status != 0 || r.done[1].Status != 0 || r.done[2].Status != 0 {
		t.Errorf("outcomes %+v", r.done)
	}
}

// Calls wait for a node that takes no bytes, instead of piling up in its output.
func TestCallsDoNotPileUpAtANode(t *testing.T) {
	f, _, c, n := start(t, func(c *Config) { c.Output = minFrameSize })
	large := append(request, "x-ydb-database", strings.Repeat("d", 8000))
	for id := uint32(1); id < 100; id += 2 {
		c.headers(id, true, large...)
		c.framer.WriteSettings()
		c.send()
		n.conn.encoder.resize(0) // so that each block is as long
	}
	if got := n.conn.backlog(); got > 5*minFrameSize || f.Stats().Held == 0 {
		t.Errorf("%d bytes and %d calls wait", got, f.Stats().Held)
	}
	for range 50 {
		n.collect()
	}
	if f.Stats().Held != 0 || n.conn.streams.n != 50 {
		t.Errorf("%d calls wait, %d have gone on", f.Stats().Held, n.conn.streams.n)
	}
}

func TestStreamIDsRunOut(t *testing.T) {
	f, r, c, n := start(t)
	second := node(t, f)
	r.route = func(*Call) (*Conn, error) {
		if n.conn.Usable() {
			return n.conn, nil
		}
		return second.conn, nil
	}
	n.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	n.send()
	n.frames()
	c.headers(1, true, append(request, "x-ydb-database", "one")...)
	c.headers(3, true, append(request, "x-ydb-database", "three")...)
	c.headers(5, true, append(request, "x-ydb-database", "five")...)
	c.send()
	n.conn.nextID = maxStreamID
	n.headers(1, true, ":status", "200", "grpc-status", "0")
	n.send()
	n.want("HEADERS 1 end "+requestLine+" x-ydb-database=one", "HEADERS 2147483647 end "+requestLine+" x-ydb-database=three")
	second.want("HEADERS 1 end " + requestLine + " x-ydb-database=five")
	n.headers(maxStreamID, true, ":status", "200", "grpc-status", "0")
	n.send()
	if !n.conn.Finished() || n.conn.Err() != nil {
		t.Errorf("the connection stays: %v", n.conn.Err())
	}
	// A client's may run out as well.
	c.headers(maxStreamID, true, request...)
	if err := c.send(); err != nil {
		t.Error(err)
	}
	c.headers(7, true, request...)
	if err := c.send(); err == nil {
		t.Error("a stream id that was skipped is taken")
	}
}

// Clients choose the ids of their streams, but not how long they take to find.
func TestStreamIDsOfAnAttacker(t *testing.T) {
	defer func(was uint32) { spread = was }(spread)
	for n := range 100 {
		if spread = rand.Uint32() | 1; n < len(poor) {
			spread = poor[n]
		}
		idsOfAnAttacker(t)
	}
}

// poor are multipliers that keep ids in a row together.
var poor = []uint32{1, 3, 0x55555555, 0xaaaaaaab, 0x80000001, 0xffffffff, 0x00010001, 0x33333333, 0x00400001}

func idsOfAnAttacker(t *testing.T) {
	for _, step := range []uint32{2, 1 << 10, 1 << 14, 1 << 18, 3 << 14} {
		var table streams
		worst := 0
		for i := range min(uint32(4096), maxStreamID/step-1) {
			s := &stream{id: i*step + 1}
			table.put(s)
		}
		for i, s := range table.slots {
			if s != nil {
				worst = max(worst, (i-table.home(s.id))&(len(table.slots)-1))
			}
		}
		if worst > 128 {
			t.Errorf("times %#x, ids %d apart: %d slots to look at", spread, step, worst)
		}
		for i := range min(uint32(4096), maxStreamID/step-1) {
			s := table.get(i*step + 1)
			if s == nil {
				t.Fatalf("ids %d apart: %d is lost", step, i)
			}
			table.remove(s)
		}
		if table.n != 0 || len(table.slots) > keptSlots {
			t.Errorf("%d streams and %d slots are left", table.n, len(table.slots))
		}
	}
}

// A client whose calls run into their deadlines cancels many at once, and is no attacker.
func TestSlowCallsMayBeCancelled(t *testing.T) {
	f, _, c, _ := start(t)
	for id := uint32(1); id < 8000; id += 2 {
		c.headers(id, true, request...)
	}
	c.send()
	pass(f, rapid)
	for id := uint32(1); id < 8000; id += 2 {
		c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	if err := c.send(); err != nil {
		t.Error(err)
	}
}

// The frame that is one too many may end the last stream of a connection that drains.
func TestTheLastStreamIsOneTooMany(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, true, request...)
	c.send()
	c.conn.Drain()
	c.framer.WritePing(true, [8]byte([]byte(pingOfDrain)))
	c.send()
	c.conn.resets = 0
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	if got := f.Stats().Clients; got != 0 || !c.conn.Finished() {
		t.Errorf("%d clients are counted; finished %v", got, c.conn.Finished())
	}
	idle(t, f, n)
}

// Padding takes room that is given back although nothing is passed on.
func TestPaddingIsGivenBack(t *testing.T) {
	f, _, c, n := start(t, func(c *Config) { c.Silence = time.Hour })
	c.headers(1, false, request...)
	for range 2000 {
		c.framer.WriteDataPadded(1, false, nil, make([]byte, 255))
		f.Advance(f.Now() + 10*time.Millisecond)
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		n.collect()
	}
	if got := len(n.frames()); got != 1 {
		t.Errorf("the node gets %d frames", got)
	}
	if s := c.conn.streams.get(1); s.room < f.config.Window/2 {
		t.Errorf("room for %d bytes is left", s.room)
	}
}

// Calls wait here for a bounded time, and a bounded number of them.
func TestCallsAreNotParkedForEver(t *testing.T) {
	f, r, c, _ := start(t, func(c *Config) { c.Held, c.ClientSilence = 2, time.Hour })
	r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
	c.headers(1, true, request...).headers(3, false, request...).data(3, false, make([]byte, 10000)).headers(5, true, request...)
	c.send()
	c.want("HEADERS 5 end :status=200 content-type=application/grpc grpc-status=8 grpc-message=too many calls wait in the sidecar")
	if pass(f, f.config.HoldTimeout-tick); f.Stats().Held != 2 {
		t.Errorf("%d calls wait", f.Stats().Held)
	}
	pass(f, tick)
	c.want("HEADERS 1 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up",
		"HEADERS 3 end :status=200 content-type=application/grpc grpc-status=4 grpc-message=the call's time is up", "RST_STREAM 3 NO_ERROR")
	for i, want := range []End{AnsweredBy, Expired, Expired} {
		if o := r.done[i]; o.End != want || !o.NotRun() {
			t.Errorf("outcome %d: %+v", i, o)
		}
	}
	idle(t, f, c)
}

// What a large call needed is not kept for the next one.
func TestLargeCallsLeaveNothing(t *testing.T) {
	f, r, c, _ := start(t)
	r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
	c.headers(1, false, append(request, "name"+strings.Repeat("n", 6000), strings.Repeat("v", 6000))...).data(1, false, make([]byte, 16000))
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	call := f.freeCalls
	if call == nil || cap(call.block)+cap(f.spareBlock) > keptPending || cap(call.node.pending) > keptPending {
		t.Errorf("%d octets of headers and %d of the body are kept", cap(call.block)+cap(f.spareBlock), cap(call.node.pending))
	}
}

// A client that has calls end at nodes before their answers, however late, opens fewer of them, and those of others go on.
func TestResetsAtNodesAreBounded(t *testing.T) {
	for name, fields := range map[string][]string{"cancelled": nil, "out of time": {"grpc-timeout", "150m"}} {
		t.Run(name, func(t *testing.T) {
			f, _, c, n := start(t, func(c *Config) { c.Resets = 100 })
			other := client(t, f)
			resets, refused, id, theirs := 0, 0, uint32(1), uint32(1)
			for range 50 { // 10 s
				first := id
				for ; id < first+2*300; id += 2 {
					c.headers(id, true, append(slices.Clone(request), fields...)...)
				}
				other.headers(theirs, true, request...)
				theirs += 2
				n.framer.WritePing(false, [8]byte{}) // it lives
				for _, p := range []*peer{c, other, n} {
					if err := p.send(); err != nil {
						t.Fatal(err)
					}
				}
				pass(f, 2*rapid)
				for _, line := range c.frames() {
					if strings.Contains(line, "grpc-status=8 grpc-message=too many calls of the connection were reset at nodes") {
						refused++
					}
				}
				if name == "cancelled" {
					for i := first; i < id; i += 2 {
						c.framer.WriteRSTStream(i, http2.ErrCodeCancel)
					}
					c.send()
				}
				for _, line := range n.frames() {
					if strings.HasPrefix(line, "RST_STREAM") {
						resets++
					}
				}
			}
			if resets > 10*100+3*300 || resets < 900 || refused < 10_000 {
				t.Errorf("%d streams were reset at the node, %d calls refused", resets, refused)
			}
			if got := other.frames(); len(got) != 0 || f.stats.Abuses[RapidReset] != uint64(refused) {
				t.Errorf("%d abuses; another client gets %.200s", f.stats.Abuses[RapidReset], got)
			}
			c.conn.Close()
			other.conn.Close()
			idle(t, f, n)
		})
	}
}
