package h2

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Room is made for an eighth of what may wait, so that calls are not looked at for each frame.
func TestCallsAreNotLookedAtForEachFrame(t *testing.T) {
	const calls, size = 400, 20_000
	f, _, c, _ := startHolding(t, func(c *Config) { c.Buffered = calls / 2 * size })
	looks, roof := 0, f.roof
	for i := range calls * 4 {
		before := f.stats.Abuses[SlowReader]
		c.holds(uint32(2*i+1), size)
		if f.stats.Abuses[SlowReader] != before || f.roof != roof {
			looks, roof = looks+1, f.roof
		}
		c.collect()
	}
	if most := calls * 4 * size / (f.config.Buffered / 8); looks == 0 || looks > most {
		t.Errorf("all calls are looked at %d times; want at most %d", looks, most)
	}
	balance(t, f)
	c.conn.Close()
	idle(t, f)
}

// Nor are they at each tick, if nothing is to be freed of what waits.
func TestCallsAreNotLookedAtForEachTick(t *testing.T) {
	f, _, c, _ := startHolding(t, func(c *Config) { c.Buffered, c.GrowTimeout, c.ClientSilence = 2<<20, time.Hour, time.Hour })
	var small []*peer
	for range 70 {
		p := client(t, f)
		p.holds(1, 15_900)
		small = append(small, p)
	}
	for id := range uint32(15) {
		c.holds(2*id+1, 100_000)
	}
	pass(f, lagsAfter)
	small[0].holds(3, 10_000)
	roof := f.roof
	if pass(f, tick); f.waits() <= f.config.Buffered || f.waits() > roof || f.roof != roof {
		t.Errorf("%d bytes wait; the next look was at %d, and is at %d", f.waits(), roof, f.roof)
	}
	if pass(f, lagsAfter); f.roof == roof {
		t.Error("no look comes in a second")
	}
	for _, p := range append(small, c) {
		p.conn.Close()
	}
	idle(t, f)
}

// Calls that hold little and those that hold much leave room for a message together, too.
func TestRoomIsLeftByBothKindsOfHolders(t *testing.T) {
	f, r, c, _ := startHolding(t, func(c *Config) { c.Buffered, c.GrowTimeout, c.ClientSilence = 2<<20, time.Hour, time.Hour })
	var small []*peer
	for range 130 {
		p := client(t, f)
		p.holds(1, 15_900)
		small = append(small, p)
	}
	for id := range uint32(20) {
		c.holds(2*id+1, 100_000)
	}
	var parked Ticket
	r.route = func(call *Call) (*Conn, error) { parked = call.Ticket(); return nil, ErrPark }
	honest := client(t, f)
	honest.headers(1, false, request...)
	honest.send()
	balance(t, f)
	if got := f.Stats(); got.Buffered > f.config.Buffered*15/8 || got.Abuses[SlowReader] > 30 {
		t.Errorf("%d bytes wait; %d calls are ended", got.Buffered, got.Abuses[SlowReader])
	}
	if !f.Hold(parked, f.config.Buffered/8) {
		t.Fatal("there is no room for a message")
	}
	f.Unhold(parked, f.config.Buffered/8)
	for _, p := range append(small, c, honest) {
		p.conn.Close()
	}
	idle(t, f)
}

// Of those that hold most so many calls are looked at and ended in a turn, and not those of others.
func TestATurnEndsSoManyCalls(t *testing.T) {
	const calls, size = 1500, 5000
	f, r, c, _ := start(t, func(c *Config) { c.Buffered = 64 << 20 })
	var parked Ticket
	r.route = func(call *Call) (*Conn, error) { parked = call.Ticket(); return nil, ErrPark }
	park := func(p *peer, id uint32, bytes int) {
		p.headers(id, true, request...)
		if p.send(); !f.Hold(parked, bytes) {
			t.Fatal("there is no room")
		}
		p.collect()
	}
	for i := range calls {
		park(c, uint32(2*i+1), size)
	}
	for range 200 {
		p := client(t, f)
		for i := range 5 {
			park(p, uint32(2*i+1), 4*size)
		}
	}
	all := f.stats.Buffered
	f.config.Buffered, f.roof = all-1, all-1
	for turn := 1; ; turn++ {
		before := f.stats.Abuses[SlowReader]
		f.Advance(f.Now() + 1)
		f.CatchUp()
		ended := f.stats.Abuses[SlowReader] - before
		balance(t, f)
		if ended == 0 {
			if turn != 4 {
				t.Errorf("it took %d turns", turn)
			}
			break
		}
		if ended > 256 || f.seen > calls {
			t.Errorf("turn %d ends %d calls, and looks at %d", turn, ended, f.seen)
		}
	}
	if got := f.stats.Abuses[SlowReader]; int(got) != calls-c.conn.streams.n {
		t.Errorf("%d calls are ended, %d of them of the connection that holds most", got, calls-c.conn.streams.n)
	}
	if f.waits() > all*7/8 {
		t.Errorf("%d bytes of %d wait", f.waits(), all)
	}
}

// Calls that keep up, however many, hide none that do not.
func TestCallsThatKeepUpHideNoOthers(t *testing.T) {
	f, _, _, n := startHolding(t, func(c *Config) { c.Buffered = 64 << 20 })
	const each, size = 4096, 300
	for range 3 {
		p := client(t, f)
		p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		p.send()
		for i := range each {
			at := n.conn.nextID
			p.headers(uint32(2*i+1), true, request...)
			p.send()
			n.headers(at, false, ":status", "200").data(at, false, make([]byte, size))
			n.send()
			n.collect()
			p.collect()
			n.in.Reset()
			p.in.Reset()
		}
	}
	slow := client(t, f)
	slow.holds(1, each*size-10_000)
	f.config.Buffered = f.stats.Buffered - 1
	f.roof = 0
	for turn := range 3 {
		f.Advance(f.Now() + 1)
		if f.CatchUp(); f.seen >= 3*each {
			t.Errorf("turn %d looks at %d calls", turn, f.seen)
		}
	}
	if got := f.stats.Abuses[SlowReader]; got != 1 || slow.conn.streams.n != 0 {
		t.Errorf("%d calls are ended, and the one that does not keep up is not: %t", got, slow.conn.streams.n != 0)
	}
}

// One look, for calls on one connection and on many of their own, which ends as many as a turn may.
func BenchmarkEvict(b *testing.B) {
	const calls = 10_000
	for _, conns := range []int{1, 100, calls} {
		b.Run(fmt.Sprint(conns), func(b *testing.B) {
			f, r, _, _ := start(b, func(c *Config) { c.Streams, c.Buffered = 1<<20, 1<<30 })
			var parked Ticket
			r.route = func(call *Call) (*Conn, error) { parked = call.Ticket(); return nil, ErrPark }
			all, next := make([]*peer, conns), make([]uint32, conns)
			for i := range all {
				all[i] = client(b, f)
			}
			fill := func() {
				for i, p := range all {
					for p.conn.streams.n < calls/conns {
						p.headers(2*next[i]+1, true, request...)
						next[i]++
						p.send()
						f.Hold(parked, 50_000)
						p.collect()
						p.in.Reset()
					}
				}
			}
			for b.Loop() {
				b.StopTimer()
				r.done, f.paused, f.thins = r.done[:0], false, [2]bool{}
				f.config.Buffered, f.roof = 1<<30, 1<<30
				fill()
				f.config.Buffered, f.roof = f.waits()-1, 0
				b.StartTimer()
				f.evict(nil)
			}
			b.ReportMetric(float64(f.stats.Abuses[SlowReader])/float64(b.N), "ended/op")
		})
	}
}

// Calls that wait come beyond their bound, evenly of connections that have many.
func BenchmarkUnpark(b *testing.B) {
	for _, conns := range []int{64, 10_000} {
		b.Run(fmt.Sprint(conns), func(b *testing.B) {
			each := 16_384 / conns
			f, r, _, _ := start(b, func(c *Config) { c.Streams, c.Held, c.Buffered = 1<<20, conns*each, 1<<30 })
			r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
			var all []*peer
			for range conns {
				all = append(all, client(b, f))
			}
			i := 0
			come := func() {
				p := all[i%conns]
				p.headers(uint32(2*(i/conns)+1), true, request...)
				p.send()
				p.collect()
				p.in.Reset()
				i++
			}
			for range conns * each {
				come()
			}
			for b.Loop() {
				b.StopTimer()
				for r.done = r.done[:0]; f.stats.Held < f.config.Held; {
					come()
				}
				f.stats.Held++ // of one more
				b.StartTimer()
				f.unpark()
				f.stats.Held--
			}
		})
	}
}

// A client that leaves, or breaks a rule, has as many calls as it may: a part of them ends in each turn, whatever comes to them meanwhile.
func TestManyCallsEndInParts(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*peer)
	}{
		{"it leaves", func(p *peer) { p.conn.Close() }},
		{"it breaks a rule", func(p *peer) {
			p.framer.WriteWindowUpdate(0, 0)
			p.send()
			p.conn.Close()
		}},
	} {
		f, r, c, n := start(t)
		other := client(t, f)
		other.headers(1, true, request...)
		other.send()
		toNode, parked := r.route, []Ticket(nil)
		r.route = func(call *Call) (*Conn, error) {
			if len(parked) < 2*perTurn {
				parked = append(parked, call.Ticket())
				return nil, ErrPark
			}
			return toNode(call)
		}
		for i := range 4 * perTurn {
			c.headers(uint32(2*i+1), true, request...)
		}
		c.send()
		n.frames()
		ended := false
		c.conn.Ended = func() { ended = true }
		tt.end(c)
		if got := len(r.done); got > perTurn {
			t.Errorf("%s: %d calls end at once", tt.name, got)
		}
		for _, ticket := range parked[:3] {
			f.Resume(ticket)
		}
		n.headers(5, true, ":status", "200", "grpc-status", "0") // of one of its calls
		n.send()
		for turns := 0; f.Behind() || !ended; turns++ {
			had := len(r.done)
			f.Advance(f.Now())
			if got := len(r.done) - had; got > perTurn || turns > 10 {
				t.Fatalf("%s: %d calls end in turn %d", tt.name, got, turns)
			}
		}
		if len(r.done) != 4*perTurn || f.stats.Clients != 1 || n.conn.streams.n != 1 {
			t.Errorf("%s: %d calls are done, %d clients and %d calls at the node are left", tt.name, len(r.done),
				f.stats.Clients, n.conn.streams.n)
		}
		for i, o := range r.done {
			if o.End != Cancelled && !(o.End == Answered && i < 10) {
				t.Fatalf("%s: a call ends as %v", tt.name, o.End)
			}
		}
		n.headers(1, true, ":status", "200", "grpc-status", "0")
		n.send()
		other.want("HEADERS 1 end :status=200 grpc-status=0")
		idle(t, f, c, n, other)
	}
}

// A client that changes its windows pays for the streams that have one.
func TestSettingsCostWhatTheyChange(t *testing.T) {
	f, r, c, _ := start(t)
	r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
	streams := int(f.config.Streams)
	for i := range streams {
		c.headers(uint32(2*i+1), true, request...)
	}
	c.send()
	c.conn.control = 4 * f.config.Control // as much as it can earn
	changed := 0
	for ; c.err == nil && changed < 10_000; changed++ {
		c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(changed)})
		c.send()
	}
	if got := changed * streams; got > 300_000 || changed < 16 {
		t.Errorf("%d windows change, %d times each", got, changed)
	}
}

// A client leaves with as many calls as it may have, parked or on their way to a node.
func BenchmarkClose(b *testing.B) {
	for _, forwarded := range []bool{false, true} {
		b.Run(fmt.Sprintf("forwarded=%t", forwarded), func(b *testing.B) {
			f, r, _, n := start(b)
			n.send()
			if !forwarded {
				r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
			}
			turns := 0
			for b.Loop() {
				b.StopTimer()
				r.done = r.done[:0]
				p := client(b, f)
				for i := range f.config.Streams {
					p.headers(uint32(2*i+1), false, request...)
					p.send()
				}
				if got := p.conn.streams.n; got != int(f.config.Streams) {
					b.Fatalf("%d calls", got)
				}
				n.frames()
				b.StartTimer()
				for p.conn.Close(); f.Behind(); turns++ {
					f.Advance(f.Now())
				}
			}
			b.ReportMetric(float64(turns)/float64(b.N)+1, "turns/op")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(f.config.Streams), "ns/call")
		})
	}
}

// What is looked at every tick with that number of clients, in one turn of several.
func BenchmarkAdvance(b *testing.B) {
	for _, conns := range []int{100, 10_000} {
		b.Run(fmt.Sprint(conns), func(b *testing.B) {
			f, _, _, _ := start(b, func(c *Config) { c.ClientSilence = 1000 * time.Hour })
			for range conns {
				client(b, f)
			}
			turns := 0
			for b.Loop() {
				for f.Advance(f.Now() + tick); f.Behind(); turns++ {
					f.Advance(f.Now())
				}
			}
			b.ReportMetric(float64(turns)/float64(b.N)+1, "turns/op")
		})
	}
}
