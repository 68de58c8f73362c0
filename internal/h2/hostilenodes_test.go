package h2

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

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
			n.framer.WriteHeaders(
				http2.HeadersFrameParam{StreamID: 1, BlockFragment: n.encode(":status", "200", "big", strings.Repeat("b", 4000))},
			)
			block := n.encode("big", strings.Repeat("b", 4000))
			n.framer.WriteContinuation(1, true, bytes.Repeat(block, 17))
			n.send()
		}, "RST_STREAM 1 PROTOCOL_ERROR", broken, false},
		"hpack_bomb": {func(f *Forwarder, c, n *peer) {
			block := append(bytes.Clone(n.encode(":status", "200", "big", strings.Repeat("b", 4000))),
				bytes.Repeat([]byte{0x80 | 62}, 10000)...)
			n.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
			n.send()
		}, "ENHANCE_YOUR_CALM", lost, true},
		"push": {func(f *Forwarder, c, n *peer) {
			n.framer.WritePushPromise(
				http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: n.encode(request...), EndHeaders: true},
			)
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
	if strings.Count(got, " end ") != 3 || f.Stats().Abuses[SlowReader] == 0 ||
		!strings.Contains(got, "DATA 1 m\nHEADERS 1 end grpc-status=0") ||
		!strings.Contains(got, "HEADERS 3 end :status=200 grpc-status=0\nHEADERS 5 end :status=200 grpc-status=0") {
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
