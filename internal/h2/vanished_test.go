package h2

import (
	"strings"
	"testing"
)

// Of clients that come, open many calls and go, no more calls are left than some turns end: beyond that as many end as begin.
func TestCallsOfClientsThatWentDoNotPileUp(t *testing.T) {
	f, _, c, n := start(t)
	open := func(p *peer, calls uint32) {
		for id := range calls {
			p.headers(2*id+1, false, request...)
		}
		p.send()
	}
	var gone []int
	for i := range 2 {
		p := client(t, f)
		p.conn.Ended = func() { gone = append(gone, i) }
		open(p, 4096)
		p.conn.Close()
	}
	if f.leftOver != 2*4096 || !f.Behind() {
		t.Fatalf("%d calls are left of clients that went", f.leftOver)
	}
	open(c, 1000)
	if f.leftOver != 2*4096-1000 {
		t.Errorf("%d calls are left after 1000 have begun; want %d", f.leftOver, 2*4096-1000)
	}
	for turns := 0; f.Behind() && turns < 100; turns++ {
		f.Advance(f.Now())
	}
	if f.leftOver != 0 || len(f.vanished) != 0 || len(gone) != 2 || gone[0] != 0 {
		t.Errorf("%d calls are left in the end, of %d clients; ended in the order %v", f.leftOver, len(f.vanished), gone)
	}
	c.conn.Close()
	for turns := 0; f.Behind() && turns < 100; turns++ {
		f.Advance(f.Now())
	}
	idle(t, f)
	if n.conn.streams.n != 0 {
		t.Errorf("%d calls are left at the node", n.conn.streams.n)
	}
}

// A client that went is told of once, also if its calls were still to end when the turn of another panicked, or if it has a few.
func TestGivingUpTellsOfEachClientOnce(t *testing.T) {
	f, r, c, _ := start(t)
	told := map[string]int{}
	many, few := client(t, f), client(t, f)
	for name, p := range map[string]*peer{"many": many, "few": few, "here": c} {
		p.conn.Ended = func() { told[name]++ }
	}
	for id := range uint32(1000) {
		many.headers(2*id+1, false, request...)
	}
	many.send()
	few.headers(1, false, request...)
	few.send()
	many.conn.Close()
	few.conn.Close()
	if told["many"] != 0 || told["few"] != 1 {
		t.Fatalf("told %v; want it of the client with few calls", told)
	}
	f.GiveUp(f.Renew())
	if told["many"] != 1 || told["few"] != 1 || told["here"] != 1 || len(r.done) != 1001 {
		t.Errorf("told %v of clients, and of the end of %d calls; want each once, 1001", told, len(r.done))
	}
}

// Requests that are not gRPC and do not end are few on a connection, and have no more time than a handshake.
func TestPagesThatAreNotAskedForToTheEnd(t *testing.T) {
	f, _, c, n := start(t)
	get := []string{":method", "POST", ":scheme", "http", ":path", "/", ":authority", "h"}
	for id := range uint32(2 * mostPlain) {
		c.headers(2*id+1, false, get...)
	}
	c.send()
	if c.conn.plain != mostPlain || c.conn.streams.n != mostPlain {
		t.Errorf("%d are open, %d as the connection counts them; want %d", c.conn.streams.n, c.conn.plain, mostPlain)
	}
	pass(f, f.config.HandshakeTimeout+2*tick)
	if c.conn.plain != 0 || c.conn.streams.n != 0 {
		t.Errorf("%d are open after their time, %d as the connection counts them", c.conn.streams.n, c.conn.plain)
	}
	idle(t, f, c, n)
}

// A client is not sent as much as it sends, with names of headers that are said back to it.
func TestNamesOfMalformedHeadersAreCut(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, true, append(request, strings.Repeat("x", 1000)+"-bin", "!")...)
	c.send()
	want := "HEADERS 1 end :status=200 content-type=application/grpc grpc-status=13 grpc-message=malformed header " +
		strings.Repeat("x", 64) + ": it ends in -bin, so its value must be base64"
	if got := strings.Join(c.frames(), "\n"); got != want {
		t.Errorf("the client gets %s", got)
	}
	idle(t, f, c, n)
}
