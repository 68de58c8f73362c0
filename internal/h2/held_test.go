package h2

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// Headers of calls that wait count as long as they are kept: HPACK makes kilobytes of a few octets, again and again.
func TestHeadersOfHeldCallsAreBounded(t *testing.T) {
	f, r, c, n := start(t, func(c *Config) { c.Buffered = 1 << 20 })
	r.route = func(*Call) (*Conn, error) { return nil, ErrPark }
	fields := append([]string{}, request...)
	for range 15 {
		fields = append(fields, "x-long", strings.Repeat("x", 3000))
	}
	most := 0
	id := uint32(1)
	for range 200 {
		c.headers(id, true, fields...)
		c.send()
		id += 2
		most = max(most, f.Stats().Buffered)
	}
	if most < 1<<19 || most > 1<<20 {
		t.Errorf("at most %d bytes counted; want what %d allow", most, 1<<20)
	}
	if held := f.Stats().Held; held == 0 || held > 1<<20/40_000 {
		t.Errorf("%d calls are held", held)
	}
	for i := uint32(1); i < id; i += 2 {
		c.framer.WriteRSTStream(i, http2.ErrCodeCancel)
	}
	c.send()
	idle(t, f, c, n)
}

// A call that went on to its node keeps none of its headers here.
func TestHeadersOfCallsThatWentOnAreNotKept(t *testing.T) {
	f, r, c, n := start(t)
	var parked Ticket
	r.route = func(call *Call) (*Conn, error) {
		if parked.call == nil {
			parked = call.Ticket()
			return nil, ErrPark
		}
		return n.conn, nil
	}
	c.headers(1, true, append(append([]string{}, request...), "x-long", strings.Repeat("x", 3000))...)
	c.send()
	if f.Stats().Buffered == 0 {
		t.Error("headers that wait do not count")
	}
	f.Resume(parked)
	if got := f.Stats().Buffered; got != 0 {
		t.Errorf("%d bytes count", got)
	}
	c.framer.WriteRSTStream(1, http2.ErrCodeNo)
	c.send()
	idle(t, f, c, n)
}

// A node is told that a call is cancelled, whatever its client says of it.
func TestCodesOfResetsDoNotPassToNodes(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, false, request...)
	c.send()
	n.frames()
	c.framer.WriteRSTStream(1, http2.ErrCodeEnhanceYourCalm)
	c.send()
	if got := strings.Join(n.frames(), "\n"); !strings.Contains(got, "RST_STREAM 1") || !strings.Contains(got, "CANCEL") {
		t.Errorf("got %s", got)
	}
	idle(t, f, c, n)
}
