package h2

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// end is a peer that sends and checks bodies: byte i of the body of call k is k+i,
// its complement in the answer.
type end struct {
	*peer
	m        *model
	isClient bool
	streams  map[uint32]*side
	next     uint32
	window   int64 // bytes the forwarder may send us
	initial  int64 // and on a new stream
	room     int64 // bytes we may send it
	roomNew  int64
}

// side is one stream as its peer sees it.
type side struct {
	key            int
	sent, got      int
	window, room   int64
	headSent       bool
	endSent, ended bool // we have ended it; the forwarder has
	reset          bool
}

// model runs peers against a forwarder by a script.
type model struct {
	t                 *testing.T
	f                 *Forwarder
	script            []byte
	ends              []*end
	requests, answers map[int]*side // by key: what the sender did
	parked            []Ticket
}

func (m *model) next() int {
	if len(m.script) == 0 {
		return 0
	}
	c := m.script[0]
	m.script = m.script[1:]
	return int(c)
}

func (m *model) join(p *peer, isClient bool) *end {
	e := &end{peer: p, m: m, isClient: isClient, streams: map[uint32]*side{}, next: 1,
		window: defaultWindow, initial: defaultWindow, room: int64(m.f.config.ConnWindow), roomNew: int64(m.f.config.Window)}
	m.ends = append(m.ends, e)
	return e
}

func (e *end) pattern(key, at, n int, answer bool) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(key + at + i)
		if answer {
			b[i] = ^b[i]
		}
	}
	return b
}

// read takes frames from the forwarder and checks them.
func (e *end) read() {
	t := e.m.t
	e.collect()
	for {
		fr, err := e.framer.ReadFrame()
		if err != nil {
			if !strings.Contains(err.Error(), "EOF") {
				t.Fatalf("bad frame: %v", err)
			}
			return
		}
		h := fr.Header()
		s := e.streams[h.StreamID]
		switch fr := fr.(type) {
		case *http2.SettingsFrame:
			if !fr.IsAck() {
				e.framer.WriteSettingsAck()
			}
		case *http2.WindowUpdateFrame:
			if h.StreamID == 0 {
				e.room += int64(fr.Increment)
			} else if s != nil {
				s.room += int64(fr.Increment)
			}
		case *http2.HeadersFrame:
			e.ended(e.begun(s, fr), fr.StreamEnded())
		case *http2.DataFrame:
			e.took(s, fr)
		case *http2.RSTStreamFrame:
			if s != nil {
				s.reset = true
			}
		case *http2.GoAwayFrame:
			if fr.ErrCode != http2.ErrCodeNo {
				t.Fatalf("GOAWAY %v %s", fr.ErrCode, fr.DebugData())
			}
		}
	}
}

// begun returns the stream on which headers came, which may be new.
func (e *end) begun(s *side, fr *http2.HeadersFrame) *side {
	t := e.m.t
	line := e.line(fr)
	if s == nil {
		if e.isClient {
			t.Fatalf("a client gets %s", line)
		}
		_, key, _ := strings.Cut(line, "x-key=")
		k, err := strconv.Atoi(strings.Fields(key)[0])
		if err != nil {
			t.Fatal(line)
		}
		s = &side{key: k, window: e.initial, room: e.roomNew}
		e.streams[fr.StreamID] = s
		e.m.answers[k] = s
	}
	return s
}

// took checks bytes of a body that came on a stream.
func (e *end) took(s *side, fr *http2.DataFrame) {
	t := e.m.t
	n := len(fr.Data())
	e.window -= int64(n)
	if s == nil || s.ended || s.reset && !e.isClient {
		if s == nil || s.ended {
			t.Fatalf("DATA on stream %d, which is over", fr.StreamID)
		}
		return
	}
	if s.window -= int64(n); s.window < 0 && n > 0 || e.window < 0 && n > 0 {
		t.Fatalf("stream %d: windows %d and %d after %d bytes", fr.StreamID, s.window, e.window, n)
	}
	if want := e.pattern(s.key, s.got, n, e.isClient); !slices.Equal(want, fr.Data()) {
		t.Fatalf("call %d: wrong bytes at %d", s.key, s.got)
	}
	s.got += n
	e.ended(s, fr.StreamEnded())
}

// ended checks that a body that ends so is whole.
func (e *end) ended(s *side, end bool) {
	if !end {
		return
	}
	s.ended = true
	from := e.m.requests[s.key]
	if e.isClient {
		from = e.m.answers[s.key]
	}
	if from != nil && !from.reset && from.endSent && s.got != from.sent {
		e.m.t.Fatalf("call %d ends after %d bytes of %d", s.key, s.got, from.sent)
	}
}

// pick returns one of the streams, by the script.
func (e *end) pick() (uint32, *side) {
	var ids []uint32
	for id, s := range e.streams {
		if !s.reset && !s.endSent {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	slices.Sort(ids)
	id := ids[e.m.next()%len(ids)]
	return id, e.streams[id]
}

func (e *end) step() {
	m := e.m
	e.chunk = []int{0, 1, 9, 100, 5000}[m.next()%5]
	switch op := m.next() % 16; op {
	case 0, 1, 2:
		if e.isClient {
			key := len(m.requests)
			s := &side{key: key, window: e.initial, room: e.roomNew, headSent: true}
			e.streams[e.next], m.requests[key] = s, s
			s.endSent = op == 2
			e.headers(e.next, s.endSent, append(request, "x-key", strconv.Itoa(key), "x-park", strconv.Itoa(m.next()%3))...)
			e.next += 2
		}
	case 3, 4, 5, 6, 7:
		e.sendSome(op == 7 && e.isClient)
	case 8, 9:
		if id, s := e.pick(); s != nil && (!e.isClient || op == 8) {
			e.finish(id, s)
		}
	case 10:
		if id, s := e.pick(); s != nil {
			s.reset = true
			e.framer.WriteRSTStream(id, http2.ErrCodeCancel)
		}
	case 11:
		n := uint32(m.next()*m.next() + 1)
		e.window += int64(n)
		e.framer.WriteWindowUpdate(0, n)
	case 12:
		if id, s := e.pick(); s != nil {
			n := uint32(m.next()*m.next() + 1)
			s.window += int64(n)
			e.framer.WriteWindowUpdate(id, n)
		}
	case 13:
		e.setInitial(int64(m.next() * m.next()))
	case 14:
		e.framer.WritePing(false, [8]byte{})
		e.read()
	case 15:
		m.f.Advance(m.f.Now() + time.Duration(m.next())*time.Millisecond)
		e.read()
	}
	e.deliver()
}

// sendSome sends bytes of a body within the windows. end: they are the last.
func (e *end) sendSome(end bool) {
	m := e.m
	id, s := e.pick()
	if s == nil {
		return
	}
	if !s.headSent {
		s.headSent = true
		e.headers(id, false, ":status", "200", "content-type", "application/grpc")
	}
	n := int(min(int64(m.next()*m.next()), 16384-257, s.room-257, e.room-257))
	pad := m.next() % 3 * 50
	if n < 0 {
		return
	}
	total := int64(n)
	if b := e.pattern(s.key, s.sent, n, !e.isClient); pad > 0 {
		e.framer.WriteDataPadded(id, end, b, make([]byte, pad))
		total += int64(pad) + 1
	} else {
		e.data(id, end, b)
	}
	s.room -= total
	e.room -= total
	s.sent += n
	s.endSent = end
}

func (e *end) setInitial(v int64) {
	e.read() // what was sent before
	for _, s := range e.streams {
		s.window += v - e.initial
	}
	e.initial = v
	e.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(v)})
}

func (e *end) deliver() {
	if err := e.send(); err != nil && !errors.Is(err, ErrClosed) {
		e.m.t.Fatalf("the forwarder says %v", err)
	}
}

func (e *end) finish(id uint32, s *side) {
	s.endSent = true
	if !e.isClient {
		if !s.headSent {
			e.headers(id, false, ":status", "200")
		}
		e.headers(id, true, "grpc-status", "0")
	} else {
		e.data(id, true, nil)
	}
}

// FuzzPeers: whatever two clients and two nodes do within the protocol, in any order
// and any pieces, bodies arrive whole and in order, within the windows, each with its end,
// and nothing is kept after the last call.
func FuzzPeers(f *testing.F) {
	f.Add([]byte("a quick brown fox jumps over the lazy dog, again and again: 0123456789"))
	f.Add([]byte{0, 0, 0, 1, 1, 1, 3, 200, 200, 2, 0, 1, 7, 0, 200, 200, 0, 2, 0, 13, 0, 0, 2, 1, 4, 0, 100, 255, 0, 0, 0, 10, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 4000 {
			return
		}
		config := Default()
		config.Names = []string{"x-key", "x-park"}
		config.Window, config.Output, config.HoldTimeout = defaultWindow+1000, 20000, time.Hour
		config.ClientSilence, config.Silence, config.StallTimeout = time.Hour, time.Hour, time.Hour
		config.Control, config.Resets = 1<<20, 1<<20
		r := &router{}
		m := &model{t: t, f: New(config, r), script: script, requests: map[int]*side{}, answers: map[int]*side{}}
		m.join(client(t, m.f), true)
		m.join(client(t, m.f), true)
		nodes := []*end{m.join(node(t, m.f), false),
			m.join(node(t, m.f, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2}), false)}
		open := true
		r.route = func(c *Call) (*Conn, error) {
			key, _ := strconv.Atoi(string(c.Header(FirstName)))
			switch how := string(c.Header(FirstName + 1)); {
			case how == "1" && open:
				m.parked = append(m.parked, c.Ticket())
				return nil, ErrPark
			case how == "2":
				if message, whole := c.Message(); len(message) == 0 && !whole && open && len(c.node.waiting()) < 5 && !c.client.gotEnd {
					return nil, ErrNeedMessage
				}
			}
			return nodes[key%2].conn, nil
		}
		for len(m.script) > 0 {
			k := m.next()
			m.f.Tight(k > 170)
			if k%8 == 0 && len(m.parked) > 0 {
				m.f.Resume(m.parked[0])
				m.parked = m.parked[1:]
			}
			m.ends[m.next()%len(m.ends)].step()
		}
		open = false
		m.finish()
		for _, e := range m.ends {
			idle(t, m.f, e.peer)
		}
		if len(r.done) > len(m.requests) {
			t.Fatalf("%d calls, %d done", len(m.requests), len(r.done))
		}
	})
}

// finish has all read and end what they have begun, and checks that each call has its end.
func (m *model) finish() {
	for _, p := range m.parked {
		m.f.Resume(p)
	}
	for round := 0; round < 2000; round++ {
		busy := false
		for _, e := range m.ends {
			e.chunk = 0
			e.read()
			if e.initial != 1<<20 {
				e.setInitial(1 << 20)
			}
			e.framer.WriteWindowUpdate(0, 1<<20)
			e.window += 1 << 20
			for id, s := range e.streams {
				if !s.endSent && !s.reset && (e.isClient || s.ended) { // a node answers a whole request, as servers do
					e.finish(id, s)
					busy = true
				}
			}
			e.deliver()
			e.read()
		}
		if !busy && round > 3 {
			break
		}
	}
	for _, e := range m.ends {
		for id, s := range e.streams {
			switch {
			case s.reset || s.ended:
			case e.isClient:
				m.t.Fatalf("stream %d of a client has no answer", id)
			default:
				m.t.Fatalf("stream %d of a node has no end: call %d", id, s.key)
			}
		}
	}
}
