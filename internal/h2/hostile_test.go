package h2

import (
	"bytes"
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
				block := append(c.encode(request...), 0x40, 0x7f, 0xa1, 0x1e) // a name of 4000 bytes ...
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
			}, want: "HEADERS 1 end :status=200 content-type=application/grpc grpc-status=8 grpc-message=the headers are too large",
			abuse: HeaderBytes},
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
				c.framer.WriteHeaders(
					http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true},
				)
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
