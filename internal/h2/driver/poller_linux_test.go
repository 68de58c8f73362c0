package driver

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
	"weak"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

// polled is how many connections the poller reads.
func (s *Shard) polled() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.poller != nil {
		n = len(s.poller.links) - len(s.poller.free)
	}
	return n
}

// echo answers pings and ends each call as soon as it has begun.
func echo(n *node, _ int) {
	for {
		fr, err := n.ReadFrame()
		if err != nil {
			return
		}
		switch fr := fr.(type) {
		case *http2.HeadersFrame:
			n.answer(fr.StreamID, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
		case *http2.PingFrame:
			n.WritePing(true, fr.Data)
		}
	}
}

// One goroutine reads all connections over which something came, and takes up the places
// of those that end.
func TestOneGoroutineReads(t *testing.T) {
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("apart_%v", apart), func(t *testing.T) {
			noLeaks(t)
			s, addr := front(t, patient(), startNode(t, echo))
			s.mu.Lock()
			s.apart = apart
			s.mu.Unlock()
			const clients = 40
			for range 2 {
				before := runtime.NumGoroutine()
				var all []*caller
				for range clients {
					c := dialCaller(t, addr)
					c.call(true)
					if got := c.endings(t, 1); got["status 0"] != 1 {
						t.Fatal(got)
					}
					all = append(all, c)
				}
				if n := s.polled(); apart && n != 0 {
					t.Errorf("%d are read by the poller", n)
				}
				// goroutines of the shard end when it has begun
				for !apart && (s.polled() != clients+1 || runtime.NumGoroutine() > before+clients/2) {
					runtime.Gosched()
				}
				for _, c := range all {
					c.Close()
				}
				for s.Stats().Clients > 0 {
					runtime.Gosched()
				}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if p := s.poller; p != nil && len(p.links) != clients+1 {
				t.Errorf("there are %d places", len(p.links))
			}
		})
	}
}

// Connections that have ended are garbage, although many of them had their turn together.
func TestEndedConnectionsAreGarbage(t *testing.T) {
	noLeaks(t)
	s, addr := front(t, patient(), startNode(t, echo))
	const clients = 40
	var all []*caller
	for range clients {
		c := dialCaller(t, addr)
		c.call(true)
		c.endings(t, 1)
		all = append(all, c)
	}
	var conns []weak.Pointer[h2.Conn]
	s.Do(func(*h2.Forwarder) {
		for l := range s.links {
			conns = append(conns, weak.Make(l.conn))
		}
		for _, c := range all { // they all come up in the next turn
			c.Close()
		}
	})
	for s.Stats().Clients > 0 {
		runtime.Gosched()
	}
	alive := func() (n int) {
		runtime.GC()
		for _, c := range conns {
			if c.Value() != nil {
				n++
			}
		}
		return n
	}
	const node = 1 // its connection lasts
	for end := time.Now().Add(5 * time.Second); alive() > node && time.Now().Before(end); {
		runtime.Gosched()
	}
	if n := alive(); n != node || len(conns) != clients+node {
		t.Errorf("%d of %d connections are kept; want that of the node", n, len(conns))
	}
}

// Of new connections that have something to say only one at a time waits for the forwarder, and with a buffer: the poller, which
// reads all others, would wait for as many as there are.
func TestNewConnectionsComeOneByOne(t *testing.T) {
	const all = 20
	s := runShard(t, nil)
	var clients []net.Conn
	for range all {
		client, server := socketPair(t)
		s.Accept(server, nil)
		clients = append(clients, client)
	}
	for s.Stats().Clients < all {
		runtime.Gosched()
	}
	s.mu.Lock()
	for _, c := range clients {
		io.WriteString(c, http2.ClientPreface)
	}
	stacks, inLine := make([]byte, 1<<20), 0
	for waiting := 0; waiting < all; { // for the forwarder, or for their turn to do so
		waiting, inLine = 0, 0
		for _, g := range bytes.Split(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")) {
			if bytes.Contains(g, []byte("driver.(*raw).read.")) &&
				(bytes.Contains(g, []byte("sync.(*Mutex).Lock")) || bytes.Contains(g, []byte("driver.entry.Lock"))) {
				waiting++
				if bytes.Contains(g, []byte("driver.(*link).deliver")) {
					inLine++
				}
			}
		}
	}
	s.mu.Unlock()
	if inLine != 1 {
		t.Errorf("%d of %d stand in line; want 1", inLine, all)
	}
	for s.polled() < all {
		runtime.Gosched()
	}
}

// A connection that has ended is closed although its peer does not do so.
func TestHungUpConnectionIsClosed(t *testing.T) {
	s := runShard(t, nil)
	client, server := socketPair(t)
	s.Accept(server, nil)
	c := newCaller(client)
	for s.polled() != 1 {
		runtime.Gosched()
	}
	c.WriteRawFrame(http2.FramePing, 0, 1, nil) // an error of the connection
	<-server.heard
	<-server.closed
	for s.polled() != 0 { // the poller forgets it right after
		runtime.Gosched()
	}
}

// A shard ends although there is always something to read, and nothing can be.
func TestStopOfABusyPoller(t *testing.T) {
	s := New(h2.Default(), nil)
	s.mu.Lock()
	s.poller = newPoller(s)
	turns := make(chan struct{})
	var once sync.Once
	s.poller.readFn = func(uintptr) {
		s.poller.n, s.poller.err = 0, syscall.EAGAIN
		once.Do(func() { close(turns) })
	}
	s.mu.Unlock()
	client, server := socketPair(t)
	s.Accept(server, nil)
	newCaller(client)
	<-server.heard
	client.Write([]byte("x"))
	<-turns
	ctx, stop := context.WithCancel(t.Context())
	stop()
	s.Run(ctx)
	<-server.closed
}

// What the poller does outside the lock counts, and so does its end.
func TestStalledPollerIsSeen(t *testing.T) {
	for name, do := range map[string]func(release chan struct{}){
		"hangs": func(release chan struct{}) { <-release },
		"ends":  func(chan struct{}) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			release, stall := make(chan struct{}), make(chan struct{})
			s := New(h2.Default(), nil)
			s.mu.Lock()
			s.poller = newPoller(s)
			read := s.poller.readFn
			s.poller.readFn = func(fd uintptr) {
				select {
				case <-stall:
					do(release)
				default:
				}
				read(fd)
			}
			s.mu.Unlock()
			keep(t, s)
			client, server := socketPair(t)
			s.Accept(server, nil)
			c := newCaller(client)
			<-server.heard
			await.True(t, "the poller reads the connection", func() bool { return s.polled() == 1 })
			c.WriteSettingsAck()
			await.True(t, "the poller rests", func() bool { return s.polling.Load() == 0 })
			await.True(t, "nothing is stalled", func() bool { return s.Stalled() == 0 }) // a busy machine may hold up a turn for a second
			close(stall)
			c.WriteSettingsAck()
			await.True(t, "the poller is stalled", func() bool { return s.Stalled() > 0 })
			if _, ok := s.TryStats(t.Context()); !ok {
				t.Error("the lock is not free")
			}
			close(release)
			if name == "hangs" {
				await.True(t, "the poller turns", func() bool { return s.Stalled() == 0 })
			}
		})
	}
}

// BenchmarkTurn is a turn of the poller in which nothing came.
func BenchmarkTurn(b *testing.B) {
	s := New(h2.Default(), nil)
	s.mu.Lock()
	p := newPoller(s)
	s.mu.Unlock()
	b.ReportAllocs()
	for b.Loop() {
		p.serve(nil)
	}
	b.StopTimer()
	s.mu.Lock()
	s.closed, s.poller = true, p
	p.look(time.Now())
	s.mu.Unlock()
	s.wg.Wait()
}

// BenchmarkPing is a frame to a connection that the poller reads, and its answer.
func BenchmarkPing(b *testing.B) {
	ctx, stop := context.WithCancel(context.Background())
	config := h2.Default()
	config.Control = 1 << 30
	s := New(config, nil)
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	defer func() { stop(); <-done }()
	l := listen(b)
	defer l.Close()
	go func() { accept(s, l, nil) }()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	c := newCaller(client)
	for b.Loop() {
		c.WritePing(false, [8]byte{})
		for {
			fr, err := c.ReadFrame()
			if err != nil {
				b.Fatal(err)
			}
			if _, ok := fr.(*http2.PingFrame); ok {
				break
			}
		}
	}
}

// A connection with much to say is read in small pieces while another one has something to say, too.
func TestMuchIsReadInPiecesBesideOthers(t *testing.T) {
	config := patient()
	config.Control = 1 << 30
	s := New(config, nil)
	keep(t, s)
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() { accept(s, l, nil) })
	t.Cleanup(func() { l.Close(); wg.Wait() })
	var all []*caller
	for range 2 {
		all = append(all, dialCaller(t, l.Addr().String()))
	}
	for s.polled() != len(all) {
		runtime.Gosched()
	}
	const size = 1 << 20
	much := bytes.Repeat([]byte{0, 0, 8, byte(http2.FramePing), byte(http2.FlagPingAck), 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}, size/17)
	var mu sync.Mutex
	reads := map[uintptr][]read{}
	total := 0
	s.mu.Lock()
	p := s.poller
	p.paced = func(int, time.Duration) int { return readSize }
	readFn := p.readFn
	p.readFn = func(fd uintptr) {
		readFn(fd)
		mu.Lock()
		defer mu.Unlock()
		reads[fd] = append(reads[fd], read{p.room, p.n, p.alone})
		total += max(0, p.n)
	}
	s.mu.Unlock()
	for _, c := range all {
		wg.Go(func() {
			if _, err := c.Conn.Write(much); err != nil {
				t.Error(err)
			}
		})
	}
	came := func() int {
		mu.Lock()
		defer mu.Unlock()
		return total
	}
	for came() < len(all)*len(much) {
		runtime.Gosched()
	}
	mu.Lock()
	defer mu.Unlock()
	checkReads(t, reads)
}

// A read is one that a poller made: for how much there was room, how much came, and whether no other connection had something.
type read struct {
	room, n int
	alone   bool
}

// checkReads checks for how much there was room, by descriptor.
func checkReads(t *testing.T, all map[uintptr][]read) {
	small := 0
	for fd, reads := range all {
		for i, r := range reads[1:] {
			before, want := reads[i], readSize
			switch {
			case r.alone:
			case before.n < heavySize:
				want = heavySize
			case before.n == before.room && before.room > heavySize:
				want = fairSize
				small++
			}
			if r.room != want {
				t.Errorf("of %d were read %+v, and then %+v; want room for %d", fd, before, r, want)
			}
		}
	}
	if small == 0 {
		t.Error("never had both something")
	}
}

// BenchmarkPingBesideMuch is a ping while 16 other connections have as much to say as is read of them.
func BenchmarkPingBesideMuch(b *testing.B) {
	ctx, stop := context.WithCancel(context.Background())
	config := h2.Default()
	config.Control = 1 << 30
	s := New(config, nil)
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	l := listen(b)
	go func() { accept(s, l, nil) }()
	unknown := append([]byte{0, 0x3f, 0xf7, 0xfe, 0, 0, 0, 0, 0}, make([]byte, 0x3ff7)...)
	var wg sync.WaitGroup
	var all []*caller
	come := func() *caller {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, newCaller(nc))
		return all[len(all)-1]
	}
	c := come()
	for range 16 {
		c := come()
		wg.Go(func() {
			for err := error(nil); err == nil; {
				_, err = c.Conn.Write(unknown)
			}
		})
		wg.Go(func() { io.Copy(io.Discard, c.Conn) })
	}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		c.WritePing(false, [8]byte{})
		for {
			fr, err := c.ReadFrame()
			if err != nil {
				b.Fatal(err)
			}
			if _, ok := fr.(*http2.PingFrame); ok {
				break
			}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(float64(s.Stats().ClientIn)/b.Elapsed().Seconds()/1e6, "MB/s")
	stop()
	<-done
	for _, c := range all {
		c.Close()
	}
	l.Close()
	wg.Wait()
}

// A connection ends for the poller while a goroutine waits until its socket takes more: both let go of it, and the node hears
// of the calls.
func TestPollerClosesAConnectionThatIsWrittenTo(t *testing.T) {
	certificate, roots := selfSigned(t)
	for name, fault := range map[string]func(nc *net.TCPConn){
		"killed":      func(nc *net.TCPConn) { nc.SetLinger(0); nc.Close() },
		"half_closed": func(nc *net.TCPConn) { nc.CloseWrite() },
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s tls_%v", name, secure), func(t *testing.T) {
				noLeaks(t)
				const calls, each = 16, 60 // frames: more than sockets take
				config := patient()
				config.Window = 1 << 20
				resets := make(chan int, 1)
				r := &toUpstreams{}
				s := New(config, r)
				r.all = []*Upstream{s.Upstream(dialTCP(startNode(t, func(n *node, _ int) {
					n.requests(calls, false)
					for id := uint32(1); id < 2*calls; id += 2 {
						n.answer(id, false, ":status", "200", "content-type", "application/grpc")
						for range each {
							n.WriteData(id, false, make([]byte, 16000))
						}
					}
					seen := 0
					for seen < calls {
						fr, err := n.ReadFrame()
						if err != nil {
							break
						}
						if _, ok := fr.(*http2.RSTStreamFrame); ok {
							seen++
						}
					}
					resets <- seen
					<-n.stop
				})), nil)}
				var sealed *tls.Config
				if secure {
					sealed = &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}
				}
				l := listen(t)
				var wg sync.WaitGroup
				wg.Go(func() { accept(s, l, sealed) })
				keep(t, s)
				t.Cleanup(func() { l.Close(); wg.Wait() })
				nc, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				client := nc
				if secure {
					client = tls.Client(nc, &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"h2"}})
				}
				c := newCaller(client)
				c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
				c.WriteWindowUpdate(0, 1<<30)
				for range calls {
					c.call(false)
				}
				await.True(t, "a goroutine waits for the socket", func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					for l := range s.links {
						if l.client && l.blocked && l.poller != nil {
							return true
						}
					}
					return false
				})
				fault(nc.(*net.TCPConn))
				if n := <-resets; n != calls {
					t.Errorf("%d streams were reset at the node; want %d", n, calls)
				}
				await.True(t, "the connection is gone", func() bool { return s.Stats().Clients == 0 && s.polled() == 1 })
				if st := s.Stats(); st.Ends[h2.Cancelled] != calls || st.Buffered != 0 || st.Answers != 0 {
					t.Errorf("%+v", st)
				}
			})
		}
	}
}
