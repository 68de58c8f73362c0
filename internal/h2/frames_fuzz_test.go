package h2

import (
	"encoding/binary"
	"testing"
	"time"
)

// FuzzFrames: whatever bytes a client and a node send, in whatever pieces, nothing
// panics, every call that the router has seen ends exactly once, what peers may make
// the forwarder keep is bounded, and nothing is kept when their connections have ended.
//
// The script is a list of frames: a byte says whose (bit 0), how much of it comes at
// once (bit 1), how much time passes (bits 2, 3) and whether the type is one that
// exists, and whether compressed messages come back (bit 5); then come type, flags, stream, length and the payload.
//
// Long: a script drives one loop, whose steps share all that the fuzzer has set up.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 1, 4, 1, 3, 0x83, 0x86, 0x84, 1, 1, 4, 1, 1, 0x88, 0, 0, 1, 1, 2, 7, 7})
	f.Add([]byte{0, 4, 0, 0, 6, 0, 4, 0, 0, 0, 0, 0, 8, 0, 1, 4, 0, 0, 1, 0, 3, 0, 1, 4, 0, 0, 0, 8})
	f.Add([]byte{1, 7, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 12, 6, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{0, 0, 0, 9, 10, 1, 0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 32, 0, 1, 9, 3, 'o', 'd', 'd'})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 1<<14 {
			return
		}
		seen, ended := 0, 0
		config := Default()
		config.Names = []string{"x-key"}
		config.Buffered, config.Streams, config.Held = 1<<20, 16, 16
		r := &router{}
		fw := New(config, counted{r, &ended})
		fw.Advance(time.Second)
		c, n := client(t, fw), node(t, fw)
		known := map[*Call]uint32{}
		var doublers []*doubler
		r.route = func(call *Call) (*Conn, error) {
			if g, ok := known[call]; !ok || g != call.generation {
				known[call] = call.generation
				seen++
			}
			switch string(call.Header(FirstName)) {
			case "body":
				return nil, &Status{Body: make([]byte, 70000)}
			case "park":
				return nil, ErrPark
			case "check":
				call.Check(Rules{One: call.Began() == time.Second, Most: 1 << 12})
				return n.conn, nil
			case "rewrite":
				d := &doubler{}
				doublers = append(doublers, d)
				call.Rewrite(d)
				return n.conn, nil
			case "whole":
				if _, whole := call.Raw(); !whole {
					return nil, ErrNeedWhole
				}
				return n.conn, call.Replace(func(b, _ []byte) ([]byte, error) { return append(b, make([]byte, 50000)...), nil })
			}
			if m, whole := call.Message(); len(m) < 2 && !whole {
				return nil, ErrNeedMessage
			}
			return n.conn, nil
		}
		// Calls for the node to answer.
		for i, more := range [][]string{nil, {"grpc-timeout", "1S"}, {"x-key", "body"}, {"x-key", "park", "grpc-timeout", "2S"},
			{"x-key", "rewrite"}, {"x-key", "rewrite"}, {"x-key", "whole"}, {"x-key", "whole"}, {"x-key", "check"}} {
			id := uint32(2*i + 1)
			body := message("hello")
			if i == 5 || i == 7 {
				body = body[:6]
			}
			c.headers(id, false, append(request, more...)...).data(id, id%4 == 1 && len(body) > 6, body)
		}
		_ = c.send()
		// And calls of this process's own.
		var own [4]listener
		var tickets [4]Ticket
		for i := range own {
			own[i].ahead = i%2 == 0
			r := own[i].request("hello")
			r.Lasts = i == 3
			if i == 2 {
				r.Timeout = 2 * time.Second
			}
			tickets[i] = fw.Start(n.conn, r)
		}
		for len(script) > 5 && !(c.conn.Finished() && n.conn.Finished()) {
			how, kind, flags, stream, size := script[0], script[1], script[2], uint32(script[3]%32), int(script[4])
			script = script[5:]
			payload := script[:min(size, len(script))]
			script = script[len(payload):]
			if how&16 == 0 {
				kind %= 10
			}
			for _, d := range doublers {
				if how&32 != 0 && d.lent != nil {
					d.giveBack(fw, [2]string{"", "plain"}[flags%2])
				}
			}
			if how&32 != 0 { // a long one
				payload = append(append([]byte(nil), payload...), make([]byte, 16000)...)
			}
			if ticket := tickets[stream%4]; how&128 != 0 {
				switch flags % 4 {
				case 0:
					fw.Abandon(ticket)
				case 1:
					fw.Want(ticket)
				case 2:
					fw.Consumed(ticket, size)
				case 3:
					n.conn.Shelve()
				}
			}
			b := append(appendFrame(nil, len(payload), kind, flags, stream), payload...)
			if how&64 != 0 && len(b) > 12 {
				binary.BigEndian.PutUint32(b[5:], 1<<31-1)
			}
			p := c.conn
			if how&1 != 0 {
				p = n.conn
			}
			fw.Advance(fw.Now() + []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 3 * time.Second}[how>>2&3])
			step := len(b)
			if how&2 != 0 {
				step = 5
			}
			for len(b) > 0 && !p.Finished() {
				_ = p.Receive(b[:min(step, len(b))])
				b = b[min(step, len(b)):]
			}
			for _, conn := range fw.Dirty(nil) {
				for out := conn.Take(); out != nil; out = conn.Take() {
					conn.Sent(len(out))
					fw.Recycle(out)
				}
			}
			if s := fw.Stats(); s.Held > config.Held || s.Buffered > config.Buffered+4*config.Output ||
				c.conn.streams.n > int(config.Streams) {
				t.Fatalf("%+v with %d streams", s, c.conn.streams.n)
			}
			balance(t, fw)
		}
		c.conn.Close()
		n.conn.Close()
		for _, d := range doublers {
			if d.lent != nil {
				d.giveBack(fw, "")
			}
		}
		for i := range own {
			if own[i].ends != 1 {
				t.Fatalf("call %d of this process's own ended %d times", i, own[i].ends)
			}
		}
		if s := fw.Stats(); s.Buffered != 0 || s.Answers != 0 || fw.orphans != 0 || s.Held != 0 || s.Clients != 0 || s.Nodes != 0 {
			t.Fatalf("kept after the end: %+v", s)
		}
		if seen != ended {
			t.Fatalf("%d calls seen, %d ended", seen, ended)
		}
	})
}

// counted counts the calls that are over.
type counted struct {
	*router
	n *int
}

func (c counted) Done(*Call, *Outcome) { *c.n++ }
