package h2

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

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
	for text, want := range map[string]time.Duration{"1H": time.Hour, "2M": 2 * time.Minute,
		"99999999S": 99999999 * time.Second, "5m": 5 * time.Millisecond,
		"7u": 7 * time.Microsecond, "8n": 8, "0n": 0, "": -1, "S": -1, "1": -1, "-1S": -1, "123456789S": -1, "1s": -1,
		"99999999H": 1 << 62} {
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
	for n := range short.Of(100, 20) {
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
		t.Errorf("%d bytes of headers and %d of the body are kept", cap(call.block)+cap(f.spareBlock), cap(call.node.pending))
	}
}
