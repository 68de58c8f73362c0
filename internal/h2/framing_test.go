package h2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// prefixed is a message's prefix with the bytes behind it.
func prefixed(flag byte, size uint32, payload string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, size), payload...)
}

const leastMost = 64 // bytes of a message, of tests

var notPacked = &Status{Code: 12, Message: "no such encoding"}

// malformedRequests are bodies that end their calls, whole and not.
// malformedRequest is a request, and what its client is told; stream is that if several messages may come.
type malformedRequest struct {
	name   string
	body   []byte
	rules  Rules
	want   string // of the answer; "": the request is fine
	stream string // what it is told where there may be any number of messages
}

var malformedRequests = []malformedRequest{
	{name: "one message", body: message("hello")},
	{name: "an empty message", body: message("")},
	{name: "the longest message", body: message(strings.Repeat("x", leastMost))},
	{name: "a compressed message", body: prefixed(1, 3, "zip")},
	{name: "no message",
		want: "grpc-status=13 grpc-message=cardinality violation: received no request message from non-client-streaming RPC"},
	{name: "two messages", body: append(message("hello"), message("")...),
		want: "grpc-status=13 grpc-message=cardinality violation: received multiple request messages for non-client-streaming RPC"},
	{name: "a flag that does not exist", body: prefixed(2, 3, "two"),
		want: "grpc-status=13 grpc-message=Bad GRPC frame type 0x02", stream: "the same"},
	{name: "a compressed message that is not allowed", body: prefixed(1, 3, "zip"), rules: Rules{Packed: notPacked},
		want: "grpc-status=12 grpc-message=no such encoding", stream: "the same"},
	{name: "part of a prefix", body: []byte{0, 0, 0},
		want: "grpc-status=13 grpc-message=Truncated message: the request ends within it", stream: "the same"},
	{name: "a prefix alone", body: prefixed(0, 3, ""),
		want: "grpc-status=13 grpc-message=Truncated message: the request ends within it", stream: "the same"},
	{name: "part of a message", body: prefixed(0, 3, "he"),
		want: "grpc-status=13 grpc-message=Truncated message: the request ends within it", stream: "the same"},
	{name: "one byte too many", body: prefixed(0, leastMost+1, "x"),
		want: "grpc-status=8 grpc-message=Received message larger than max (65 vs. 64)", stream: "the same"},
	{name: "4 GiB", body: prefixed(0, 1<<32-1, "x"),
		want: "grpc-status=8 grpc-message=Received message larger than max (4294967295 vs. 64)", stream: "the same"},
	{name: "4 GiB compressed", body: prefixed(1, 1<<32-1, "x"),
		want: "grpc-status=8 grpc-message=Received message larger than max (4294967295 vs. 64)", stream: "the same"},
}

// A request that is not what it must be ends its call with the status of a server of gRPC, in whatever pieces it comes, and
// the node's connection stays.
func TestMalformedRequestsEndTheirCalls(t *testing.T) {
	for i := range malformedRequests {
		for _, one := range []bool{true, false} {
			for _, how := range []string{"in one frame", "byte by byte", "before it is routed", "with an end of its own"} {
				malformedRequests[i].ends(t, one, how)
			}
		}
	}
}

// ends checks what becomes of the request.
func (tc malformedRequest) ends(t *testing.T, one bool, how string) {
	f, r, c, n := start(t)
	ready := how != "before it is routed"
	r.route = func(call *Call) (*Conn, error) {
		if !ready {
			return nil, ErrPark
		}
		tc.rules.One, tc.rules.Most = one, leastMost
		call.Check(tc.rules)
		return n.conn, nil
	}
	c.headers(1, len(tc.body) == 0 && how == "in one frame", request...)
	switch {
	case how == "byte by byte":
		for i := range tc.body {
			c.data(1, false, tc.body[i:i+1])
		}
		c.data(1, true, nil)
	case how == "with an end of its own":
		c.data(1, false, tc.body).headers(1, true, "x-trailer", "1")
	case len(tc.body) > 0 || how != "in one frame":
		c.data(1, true, tc.body)
	}
	c.send()
	if ready = true; how == "before it is routed" {
		call := c.conn.streams.get(1).call
		f.Resume(call.Ticket())
	}
	want := tc.want
	if !one && tc.stream != "the same" {
		want = tc.stream
	}
	got := n.frames()
	if want == "" {
		tc.passes(t, c, n, f, r, got, fmt.Sprintf("%s, one %v, %s", tc.name, one, how))
		return
	}
	if slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, " end") }) {
		t.Errorf("%s, one %v, %s: the node got the end: %q", tc.name, one, how, got)
	}
	if len(got) > 0 && got[len(got)-1] != "RST_STREAM 1 CANCEL" {
		t.Errorf("%s, one %v, %s: the node's stream is not reset: %q", tc.name, one, how, got)
	}
	if back := c.frames(); len(back) == 0 || !strings.HasSuffix(back[0], want) {
		t.Errorf("%s, one %v, %s: %q; want %s", tc.name, one, how, back, want)
	}
	if len(r.done) != 1 || r.done[0].End != AnsweredBy || !r.done[0].Partial {
		t.Errorf("%s, one %v, %s: %+v", tc.name, one, how, r.done)
	}
	idle(t, f, c, n)
	if n.conn.Finished() || c.conn.Finished() {
		t.Errorf("%s, one %v, %s: a connection has ended", tc.name, one, how)
	}
}

// passes checks that a node got the request as it is, and answers it.
func (tc malformedRequest) passes(t *testing.T, c, n *peer, f *Forwarder, r *router, got []string, name string) {
	var passed []byte
	for _, line := range got {
		if s, ok := strings.CutPrefix(strings.Replace(line, "DATA 1 end ", "DATA 1 ", 1), "DATA 1 "); ok {
			passed = append(passed, s...)
		}
	}
	if !bytes.Equal(passed, tc.body) || !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, " end") }) {
		t.Errorf("%s: the node got %q", name, got)
	}
	n.headers(1, true, ":status", "200", "grpc-status", "13")
	n.send()
	if o := r.done[0]; o.Partial != (tc.body == nil) || o.Packed != (tc.body != nil && tc.body[0] == 1) {
		t.Errorf("%s: %+v", name, o)
	}
	idle(t, f, c, n)
}

// What has come of a request when the node answers it, or when it ends, is noted.
func TestPartsOfRequestsAreNoted(t *testing.T) {
	for _, tc := range []struct {
		name string
		one  bool
		body []byte
		end  string
		want bool
	}{
		{"a part", true, prefixed(0, 5, "he"), "answer", true},
		{"a part of a stream", false, append(message("hello"), 0), "answer", true},
		{"nothing", true, nil, "answer", true},
		{"nothing of a stream", false, nil, "answer", false},
		{"a stream that ends without a message", false, nil, "end", true},
		{"a stream that ends after one", false, message("hello"), "end", false},
		{"a message without the end", true, message("hello"), "answer", false},
		{"a part, cancelled", true, prefixed(0, 5, "he"), "cancel", true},
		{"a message, cancelled", true, message("hello"), "cancel", false},
		{"a part, reset", true, prefixed(0, 5, "he"), "reset", true},
		{"a message, reset", true, message("hello"), "reset", false},
	} {
		f, r, c, n := start(t)
		r.route = func(call *Call) (*Conn, error) {
			call.Check(Rules{One: tc.one, Most: leastMost})
			return n.conn, nil
		}
		c.headers(1, false, request...)
		if len(tc.body) > 0 {
			c.data(1, false, tc.body)
		}
		c.send()
		n.collect()
		switch tc.end {
		case "end":
			c.data(1, true, nil)
			c.send()
			n.headers(1, true, ":status", "200", "grpc-status", "2")
			n.send()
		case "answer":
			n.headers(1, true, ":status", "200", "grpc-status", "13")
			n.send()
			c.data(1, false, prefixed(0, 5, "late")) // what comes later does not count
			c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
			c.send()
		case "cancel":
			c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
			c.send()
		case "reset":
			n.framer.WriteRSTStream(1, http2.ErrCodeInternal)
			n.send()
		}
		if len(r.done) != 1 || r.done[0].Partial != tc.want {
			t.Errorf("%s: %+v; want %v", tc.name, r.done, tc.want)
		}
		idle(t, f, c, n)
	}
}

// A long request is judged without its bytes being kept here, and without an allocation.
func TestJudgingAllocatesNothing(t *testing.T) {
	x := framing{Rules: Rules{Most: 64_000_000}}
	piece := bytes.Repeat(message(strings.Repeat("x", 1000)), 16)
	if got := testing.AllocsPerRun(100, func() {
		if st := x.see(piece); st != nil {
			t.Fatal(st)
		}
		if st := x.see(piece[:7]); st != nil {
			t.Fatal(st)
		}
		if st := x.see(piece[7:]); st != nil || x.end() != nil {
			t.Fatal(st)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// FuzzFraming: requests are judged the same in whatever pieces they come, and as a reader of whole requests judges them.
func FuzzFraming(f *testing.F) {
	for _, tc := range malformedRequests {
		f.Add(tc.body, uint8(1), true, tc.rules.Packed == nil)
		f.Add(append(message("first"), tc.body...), uint8(3), false, tc.rules.Packed == nil)
	}
	f.Fuzz(func(t *testing.T, request []byte, step uint8, one, packed bool) {
		rules := Rules{One: one, Most: leastMost}
		if !packed {
			rules.Packed = notPacked
		}
		x := framing{Rules: rules}
		var got *Status
		for rest := request; len(rest) > 0 && got == nil; {
			n := min(max(int(step), 1), len(rest))
			got, rest = x.see(rest[:n]), rest[n:]
		}
		if got == nil {
			got = x.end()
		}
		want := judgedWhole(request, rules)
		if (got == nil) != (want == nil) || got != nil && (got.Code != want.Code || got.Message != want.Message) {
			t.Fatalf("%q: %v; want %v", request, got, want)
		}
		if got == nil && x.packed != hasPacked(request) {
			t.Fatalf("%q: compressed %v", request, x.packed)
		}
	})
}

// judgedWhole is what is wrong with a request.
func judgedWhole(request []byte, rules Rules) *Status {
	n := 0
	for ; len(request) > 0; n++ {
		switch flag := request[0]; {
		case rules.One && n > 0:
			return twoMessages
		case flag > 1:
			return &Status{Code: internal,
				Message: "Bad GRPC frame type 0x" + string("0123456789abcdef"[flag>>4]) + string("0123456789abcdef"[flag&15])}
		case flag == 1 && rules.Packed != nil:
			return rules.Packed
		}
		if len(request) < messagePrefix {
			return cutMessage
		}
		size := sizeOf(request) - messagePrefix
		if size > rules.Most {
			return tooLong(uint32(size), rules.Most)
		}
		if request = request[messagePrefix:]; len(request) < size {
			return cutMessage
		}
		request = request[size:]
	}
	if rules.One && n == 0 {
		return noMessage
	}
	return nil
}

func hasPacked(request []byte) bool {
	for ; len(request) > 0; request = request[sizeOf(request):] {
		if request[0] == 1 {
			return true
		}
	}
	return false
}
