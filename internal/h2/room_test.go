package h2

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

// held is how many bytes wait in the call.
func (c *Call) held() int {
	n := c.client.waits() + c.node.waits() + c.counted
	if c.isHeld {
		n += len(c.block)
	}
	if c.packed > 0 {
		n += len(c.plain)
	}
	if x := c.rewriting; x != nil {
		n += x.held.size + x.behind.size
	}
	return n
}

// balance fails if bytes that wait are counted for no call, or twice.
func balance(t testing.TB, f *Forwarder) {
	t.Helper()
	sum := f.orphans
	for _, conn := range f.conns {
		held, small := 0, 0
		for _, s := range conn.streams.slots {
			if s != nil && s.isClient == (s.call.own == nil) { // each call once
				n := s.call.held()
				if held += n; n <= minFrameSize {
					small += n
				}
				if s.call.sum != n {
					t.Fatalf("%d bytes wait in a call; %d are counted", n, s.call.sum)
				}
			}
		}
		if sum += held; conn.held != held || conn.small != small {
			t.Fatalf("%d bytes wait on a connection, %d of them in small calls; %d and %d are counted", held, small, conn.held, conn.small)
		}
	}
	for _, conn := range f.conns {
		unread := 0
		for _, s := range conn.streams.slots {
			if s != nil && s.isClient {
				unread += s.waits()
			}
		}
		if conn.unread != unread {
			t.Fatalf("%d bytes wait for a client; %d are counted", unread, conn.unread)
		}
		n, before := 0, uint32(maxStreamID)
		for call := conn.lastHeld; call != nil; call = call.heldPrev {
			if n++; call.client.conn != conn || !call.isHeld || call.client.id >= before {
				t.Fatalf("call %d stands behind %d of those that are held", call.client.id, before)
			}
			before = call.client.id
		}
		if n != conn.parked {
			t.Fatalf("%d calls are held; %d are counted", n, conn.parked)
		}
	}
	if f.stats.Buffered != sum {
		t.Fatalf("%d bytes count as waiting; calls have %d", f.stats.Buffered, sum)
	}
}

// holds begins a call of which so many bytes are held.
func (p *peer) holds(id uint32, bytes int) {
	p.t.Helper()
	p.headers(id, false, append(request, "x-ydb-trace-id", "hold")...)
	if rest := newFlow(p).write(id, message(strings.Repeat("x", bytes))[:bytes], minFrameSize, false); len(rest) > 0 {
		p.t.Fatalf("%d bytes of %d could not be written", len(rest), bytes)
	}
}

// startHolding is start with calls, besides the usual ones, of which the first message is held.
func startHolding(t *testing.T, change func(*Config)) (f *Forwarder, r *router, c, n *peer) {
	f, r, c, n = start(t, change)
	r.route = func(call *Call) (*Conn, error) {
		if string(call.Header(FirstName+1)) == "hold" {
			return nil, ErrNeedWhole
		}
		return n.conn, nil
	}
	return f, r, c, n
}

// Bytes on their way to sockets that do not take them are bounded in all, and not on each connection alone. Whoever reads is
// not told off for it.
func TestOutputOfAllConnectionsIsBounded(t *testing.T) {
	const each, clients = 60_000, 40
	f, _, reader, n := start(t, func(c *Config) { c.Buffered = 1 << 20 })
	slow := make([]*peer, clients)
	answer := func(c *peer, id uint32) {
		c.headers(id, true, request...)
		c.send()
		n.collect()
		node := n.conn.nextID - 2
		n.headers(node, false, ":status", "200", "content-type", "application/grpc")
		for sent := 0; sent < each; sent += 10_000 {
			n.data(node, false, make([]byte, 10_000))
		}
		n.headers(node, true, "grpc-status", "0")
		n.send()
		n.collect()
	}
	output, open := 0, 0
	for i := range slow {
		slow[i] = client(t, f)
		answer(slow[i], 1) // it takes nothing
		answer(reader, uint32(2*i+1))
		reader.frames()
		reader.framer.WriteWindowUpdate(0, each)
		reader.send()
		f.Advance(f.Now() + tick)
		output, open = 0, 0
		for _, c := range slow[:i+1] {
			if output += c.conn.backlog(); !c.conn.Finished() {
				open++
			}
		}
		if output > 1<<19+each {
			t.Fatalf("%d bytes wait for sockets", output)
		}
	}
	if output < 1<<18 || open == clients || open < 1<<18/each {
		t.Errorf("%d bytes wait for %d of %d sockets: what is allowed is not used", output, open, clients)
	}
	if reader.conn.Finished() {
		t.Error("a client that reads was ended")
	}
	for _, c := range slow {
		if c.conn.Finished() != c.conn.Expelled() {
			t.Errorf("ended: %v", c.conn.Err())
		}
	}
}

// A client that reads as fast as it gets is not ended for what others hold, although each of those holds less than
// waits for it at the moment.
func TestReadersThatKeepUpGoLast(t *testing.T) {
	for _, kind := range []string{"held", "read slowly"} {
		t.Run(kind, func(t *testing.T) {
			readersThatKeepUpGoLast(t, kind)
		})
	}
}

func readersThatKeepUpGoLast(t *testing.T, kind string) {
	f, r, c, n := startHolding(t, func(c *Config) { c.Buffered = 2 << 20 })
	holders := client(t, f)
	holders.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	holders.send()
	want := "grpc-status=8 grpc-message=the sidecar's memory for waiting bytes (2097152) is full, and the " +
		"connection held the most, this call "
	if kind != "held" { // a node has seen the call, and clients repeat that status whatever it does
		want = strings.Replace(want, "status=8", "status=14", 1)
	}
	const size, rounds = 64 << 10, 25
	open := func(id uint32) { holders.holdsAs(kind, n, id, size) }
	id := uint32(1)
	for ; f.Stats().Buffered+size <= f.config.Buffered; id += 2 {
		open(id)
	}
	pass(f, 2*time.Second)
	if f.Stats().Abuses[SlowReader] != 0 {
		t.Fatal("calls are ended before memory is full")
	}
	at := n.conn.nextID
	c.headers(1, true, request...)
	c.send()
	n.collect()
	n.headers(at, false, ":status", "200")
	reader := newFlow(c)
	for range rounds {
		for range 12 { // more than one of the holders has
			n.data(at, false, make([]byte, minFrameSize))
		}
		n.send()
		c.framer.WriteWindowUpdate(0, 12*minFrameSize)
		c.framer.WriteWindowUpdate(1, 12*minFrameSize)
		c.send()
		reader.read()
		n.collect()
		open(id)
		id += 2
		pass(f, tick)
		balance(t, f)
		if got := f.Stats().Buffered; got > f.config.Buffered {
			t.Fatalf("%d bytes wait", got)
		}
	}
	n.headers(at, true, "grpc-status", "0")
	n.send()
	if reader.read(); reader.status != "0" || len(reader.got) != rounds*12*minFrameSize {
		t.Errorf("the call that keeps up ends with %q after %d bytes", reader.status, len(reader.got))
	}
	if got := strings.Join(holders.frames(), "\n"); !strings.Contains(got, want) || strings.Contains(got, "CANCEL") {
		t.Errorf("the holders get %.2000s", got)
	}
	holders.conn.Close()
	idle(t, f, c, n)
	if len(r.done) != int(id+1)/2 {
		t.Errorf("%d calls are done; want %d", len(r.done), (id+1)/2)
	}
}

// holdsAs has a call hold bytes: of its request, or, for another kind than "held", of an answer of n that its client does not read.
func (p *peer) holdsAs(kind string, n *peer, id uint32, size int) {
	if kind == "held" {
		p.holds(id, size)
		return
	}
	at := n.conn.nextID
	p.headers(id, true, request...)
	p.send()
	n.collect()
	n.headers(at, false, ":status", "200")
	for range size / minFrameSize {
		n.data(at, false, make([]byte, minFrameSize))
	}
	n.send()
}

// A client that holds much in many small calls is ended for it, and not clients that read what comes. So are many that hold little each.
func TestSmallHoldersGoBeforeReaders(t *testing.T) {
	for _, connections := range []int{1, 200} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			const size = 15_900
			f, _, c, n := startHolding(t, func(c *Config) { c.Buffered, c.GrowTimeout, c.ClientSilence = 2<<20, time.Hour, time.Hour })
			var holders []*peer
			for range connections {
				holders = append(holders, client(t, f))
			}
			at := n.conn.nextID
			c.headers(1, true, request...)
			bystander := client(t, f)
			bystander.headers(1, false, append(request, "x-ydb-trace-id", "hold")...).data(1, false,
				message(strings.Repeat("m", 1000))[:20])
			for _, p := range []*peer{c, bystander} {
				p.send()
			}
			n.collect()
			n.headers(at, false, ":status", "200")
			reader := newFlow(c)
			for i := range short.Of(400, 200) {
				holders[i%connections].holds(uint32(2*(i/connections)+1), size)
				for range 12 { // more than a frame waits for the reader at the time
					n.data(at, false, make([]byte, minFrameSize))
				}
				n.send()
				pass(f, tick)
				c.framer.WriteWindowUpdate(0, 12*minFrameSize)
				c.framer.WriteWindowUpdate(1, 12*minFrameSize)
				c.send()
				reader.read()
				n.collect()
				balance(t, f)
				if got := f.Stats().Buffered; got > 2*f.config.Buffered {
					t.Fatalf("%d bytes wait", got)
				}
				if bystander.conn.streams.n != 1 {
					t.Fatalf("after %d holders a call is ended that holds little", i)
				}
				bystander.data(1, false, []byte("x")) // it goes on
				bystander.send()
			}
			n.headers(at, true, "grpc-status", "0")
			n.send()
			if reader.read(); reader.status != "0" {
				t.Errorf("the call that keeps up ends with %q after %d bytes", reader.status, len(reader.got))
			}
			if f.Stats().Abuses[SlowReader] == 0 {
				t.Error("nobody is ended")
			}
			for _, p := range append(holders, bystander) {
				p.conn.Close()
			}
			idle(t, f, c, n)
		})
	}
}

// The connection that holds most gives way until it holds no more than the next.
func TestConnectionsThatHoldMostGoFirst(t *testing.T) {
	f, _, c, _ := startHolding(t, func(c *Config) { c.Buffered = 4 << 20 })
	small, middle := client(t, f), client(t, f)
	small.holds(1, 900_000) // the largest call, of a connection that has no other
	for id := uint32(1); id <= 15; id += 2 {
		middle.holds(id, 150_000)
	}
	for id := uint32(1); id <= 41; id += 2 {
		c.holds(id, 100_000)
		pass(f, tick)
	}
	if got := f.Stats().Abuses[SlowReader]; got == 0 || small.conn.streams.n != 1 || middle.conn.streams.n != 8 ||
		c.conn.streams.n != 21-int(got) {
		t.Errorf("%d calls are ended; open are %d, %d and %d", got, small.conn.streams.n, middle.conn.streams.n, c.conn.streams.n)
	}
	for _, p := range []*peer{small, middle, c} {
		p.conn.Close()
	}
	idle(t, f)
}

// Frames and header blocks that are not whole are bounded in all, and who goes on sending is not told off for others.
func TestUnfinishedFramesAreBounded(t *testing.T) {
	const most = 1 << 20
	f, _, honest, _ := start(t, func(c *Config) {
		c.Buffered, c.ClientSilence, c.Window, c.MaxWindow = 8*most, time.Hour, 8*most, 8*most
	})
	honest.headers(1, false, request...)
	honest.send()
	var frames bytes.Buffer
	http2.NewFramer(&frames, nil).WriteData(1, false, make([]byte, minFrameSize))
	var slow []*peer
	for i := range 120 {
		p := client(t, f)
		slow = append(slow, p)
		switch {
		case i%2 == 0:
			p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 15_000)})
			p.framer.WriteContinuation(1, false, make([]byte, 15_000))
		default:
			p.framer.WriteRawFrame(0xee, 0, 0, make([]byte, 16_000))
			p.out.Truncate(p.out.Len() - 1)
		}
		p.send()
		// it always is within a frame
		for _, part := range [][]byte{frames.Bytes()[:12_000], frames.Bytes()[12_000:], frames.Bytes()[:12_000]} {
			honest.conn.Receive(part)
			pass(f, tick)
		}
		honest.conn.Receive(frames.Bytes()[12_000:])
		sum := 0
		for _, c := range f.conns {
			sum += c.kept
		}
		if f.unfinished != sum || sum > most {
			t.Fatalf("frames and headers that are not whole take %d bytes; %d are counted", sum, f.unfinished)
		}
	}
	if honest.conn.Finished() {
		t.Errorf("who goes on sending was ended: %v", honest.conn.Err())
	}
	for i, p := range slow {
		if ended := p.conn.Finished(); ended && i >= 110 || !ended && i < 60 {
			t.Errorf("connection %d of 120 has ended: %v", i, ended)
		}
		p.conn.Close()
	}
	if f.Stats().Abuses[SlowSender] < 60 {
		t.Errorf("%d connections were ended", f.Stats().Abuses[SlowSender])
	}
	if honest.conn.Close(); f.unfinished != 0 {
		t.Errorf("%d bytes are counted for nobody", f.unfinished)
	}
}

// What has just begun to come may take more, but not everything.
func TestFreshUnfinishedFramesAreBounded(t *testing.T) {
	f, _, _, _ := start(t, func(c *Config) { c.Buffered = 1 << 20 })
	for i := range 100 {
		p := client(t, f)
		p.framer.WriteRawFrame(0xee, 0, 0, make([]byte, 16_000))
		p.out.Truncate(p.out.Len() - 1)
		p.send()
		if i == 10 {
			if pass(f, tick); f.Stats().Abuses[SlowSender] != 0 {
				t.Error("connections are ended for frames that have just begun")
			}
		}
	}
	if pass(f, tick); f.unfinished > 1<<19 || f.unfinished < 1<<18 {
		t.Errorf("%d bytes are kept", f.unfinished)
	}
}

// A client that has part of an answer cannot be told a status behind it: its stream is reset, with a code that
// gRPC does not read as RESOURCE_EXHAUSTED, which clients repeat whatever the call does.
func TestSlowReaderOfPartOfAnAnswer(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Buffered = 1 << 20 })
	n.collect()
	for id := uint32(1); id < 15; id += 2 {
		c.headers(id, true, request...)
	}
	c.framer.WriteWindowUpdate(0, 1<<20)
	c.send()
	n.frames()
	for id := uint32(1); id < 15; id += 2 {
		n.headers(id, false, ":status", "200")
	}
	for range 15 {
		for id := uint32(1); id < 15; id += 2 {
			n.data(id, false, make([]byte, minFrameSize))
		}
		n.send()
		c.collect() // 65535 bytes of each
	}
	if got := strings.Join(c.frames(), "\n"); !strings.Contains(got, "RST_STREAM 1 INTERNAL_ERROR") ||
		strings.Contains(got, "grpc-status=8") {
		t.Errorf("the client gets %.2000s", got)
	}
	if !slices.ContainsFunc(r.done, func(o Outcome) bool { return o.Status == internal }) {
		t.Errorf("outcomes %+v", r.done)
	}
	c.conn.Close()
	idle(t, f, n)
}

// Bytes that a goroutine has not given back of a call that is over end no other call.
func TestBytesOfCallsThatAreOver(t *testing.T) {
	f, r, c, _ := start(t, func(c *Config) { c.Buffered = 1 << 20 })
	var tickets []Ticket
	r.route = func(call *Call) (*Conn, error) {
		tickets = append(tickets, call.Ticket())
		return nil, ErrPark
	}
	c.headers(1, true, request...).headers(3, true, request...).headers(5, true, request...)
	c.send()
	if !f.Hold(tickets[0], 900_000) {
		t.Fatal("there is no room")
	}
	c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	c.send()
	if !f.Hold(tickets[1], 800_000) || len(r.done) != 1 {
		t.Errorf("what a call that is over held is charged to another: %+v", r.done)
	}
	if f.Hold(tickets[1], 1<<20) || len(r.done) != 1 {
		t.Error("twice as much is held as there may be")
	}
	balance(t, f)
	f.Unhold(tickets[0], 900_000)
	if !f.Hold(tickets[2], 700_000) || len(r.done) != 2 || r.done[1].Status != resourceExhausted {
		t.Errorf("the one that holds most is not ended: %+v", r.done)
	}
	for i, n := range []int{800_000, 700_000} {
		f.Unhold(tickets[i+1], n)
	}
	c.framer.WriteRSTStream(5, http2.ErrCodeCancel)
	c.send()
	c.frames()
	idle(t, f, c)
}
