package driver

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

// readTogether calls meanwhile while the poller reads the next connection: what that writes to others
// is read in one turn. each is called after each further read. The poller's goroutine calls both,
// until done returns.
func (s *Shard) readTogether(meanwhile, each func(*poller)) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, first := s.poller, true
	readFn := p.readFn
	p.readFn = func(fd uintptr) {
		readFn(fd)
		if first {
			first = false
			meanwhile(p)
			return
		}
		each(p)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.readFn = readFn
	}
}

// Connections whose bytes were many have their turn after the others, and all of them together only for a while.
func TestHeavyConnectionsComeLast(t *testing.T) {
	const clients = 20
	s, all := startCallers(t, clients, false)
	lights := 0
	var waiting []int // how many heavy ones did, at each read of one
	done := s.readTogether(func(p *poller) {
		for _, l := range p.links {
			l.heavy = l.nc.RemoteAddr().String() != all[clients/2].Conn.LocalAddr().String()
		}
		for i, c := range all[1:] {
			c.WritePing(false, [8]byte{byte(i + 1)})
		}
	}, func(p *poller) {
		if len(p.ready) > 0 {
			if lights++; len(waiting) > 0 {
				t.Error("a light one was read after a heavy one")
			}
			return
		}
		waiting = append(waiting, len(p.heavy))
		for began := time.Now(); time.Since(began) < heavyTurn; {
			runtime.Gosched()
		}
	})
	all[0].WritePing(false, [8]byte{})
	for i, c := range all {
		c.pong(t, [8]byte{byte(i)})
	}
	done()
	var want []int
	for i := range clients - 2 {
		want = append(want, clients-2-i)
	}
	if lights != 1 || !slices.Equal(waiting, want) {
		t.Errorf("%d light ones, and of the heavy ones %v waited; want %v", lights, waiting, want)
	}
}

// Clients that are not heavy wait as heavy ones do once they have taken their part of a turn.
func TestLightClientsHaveTheirPartOfATurn(t *testing.T) {
	const clients = 2*lookEach + 8
	s, all := startCallers(t, clients, false)
	lights, others := 0, 0
	done := s.readTogether(func(p *poller) {
		for _, l := range p.links {
			l.heavy = false
		}
		for i, c := range all[1:] {
			c.WritePing(false, [8]byte{byte(i + 1)})
		}
	}, func(p *poller) {
		if len(p.ready) == 0 {
			others++
			return
		}
		lights++
		for began := time.Now(); time.Since(began) < 2*lightTurn/lookEach; {
			runtime.Gosched()
		}
	})
	all[0].WritePing(false, [8]byte{})
	for i, c := range all {
		c.pong(t, [8]byte{byte(i)})
	}
	done()
	if lights != lookEach || others == 0 {
		t.Errorf("%d were read before the others' answers were written, %d after; want %d before", lights, others, lookEach)
	}
}

// Of a client whose bytes take long few are read at once, behind those who say little.
func TestBytesThatTakeLongAreReadInParts(t *testing.T) {
	const clients, few, much = 3, 2 << 10, 3 * heavySize
	s, all := startCallers(t, clients, false)
	var heavy []int // bytes of each read, except the first
	done := s.readTogether(func(p *poller) {
		p.paced = func(int, time.Duration) int { return few }
		for _, l := range p.links {
			l.heavy = false
		}
		_ = all[1].WriteRawFrame(0xbe, 0, 0, make([]byte, much)) // of no known type
		all[1].WritePing(false, [8]byte{1})
		all[2].WritePing(false, [8]byte{1})
	}, func(p *poller) {
		if len(p.ready) == 0 {
			heavy = append(heavy, p.n)
		}
	})
	all[0].WritePing(false, [8]byte{})
	all[0].pong(t, [8]byte{})
	for _, c := range all[1:] {
		c.pong(t, [8]byte{1})
	}
	done()
	if len(heavy) < (much-heavySize)/few || slices.Max(heavy) != few {
		t.Errorf("%d were read at once; want %d at most, behind the others", heavy, few)
	}
}

// A client that says little and then much has only the beginning of that read before it is heavy.
func TestTheBeginningOfMuchIsLight(t *testing.T) {
	const clients = 3
	s, all := startCallers(t, clients, false)
	type read struct {
		n     int
		light bool
	}
	var reads []read
	done := s.readTogether(func(p *poller) {
		for _, l := range p.links {
			l.heavy = false
		}
		all[1].WritePing(false, [8]byte{1})
		_ = all[2].WriteRawFrame(0xbe, 0, 0, make([]byte, 3*heavySize)) // of no known type
		all[2].WritePing(false, [8]byte{1})
	}, func(p *poller) { reads = append(reads, read{p.n, len(p.ready) > 0}) })
	all[0].WritePing(false, [8]byte{})
	all[0].pong(t, [8]byte{})
	for _, c := range all[1:] {
		c.pong(t, [8]byte{1})
	}
	done()
	most := 0
	for _, r := range reads {
		if r.light {
			most = max(most, r.n)
		}
	}
	if most != heavySize || len(reads) < 3 {
		t.Errorf("%+v were read; want %d of the light ones at most", reads, heavySize)
	}
}
