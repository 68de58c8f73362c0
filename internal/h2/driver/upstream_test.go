package driver

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// caller is a client on another implementation of HTTP/2.
type caller struct {
	*http2.Framer
	net.Conn
	next    uint32
	encoder *hpack.Encoder
	block   bytes.Buffer
}

func newCaller(nc net.Conn) *caller {
	c := &caller{Framer: http2.NewFramer(nc, nc), Conn: nc, next: 1}
	c.encoder = hpack.NewEncoder(&c.block)
	io.WriteString(nc, http2.ClientPreface)
	c.WriteSettings()
	c.WriteSettingsAck()
	return c
}

// call sends the headers of a request and returns its stream.
func (c *caller) call(end bool) uint32 { return c.callTo("/service/method", end) }

func (c *caller) callTo(path string, end bool) uint32 {
	return c.request(end, ":method", "POST", ":scheme", "http", ":path", path, ":authority", "sidecar", "content-type", "application/grpc")
}

// get asks for the page.
func (c *caller) get() uint32 {
	return c.request(true, ":method", "GET", ":scheme", "http", ":path", "/")
}

func (c *caller) request(end bool, pairs ...string) uint32 {
	c.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		c.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	id := c.next
	c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: end})
	c.next += 2
	return id
}

// A node that is of no use is not dialed in a row, and no call waits for it in vain.
func TestUselessNodesAreNotDialedInARow(t *testing.T) {
	for name, node := range map[string]func(nc net.Conn){
		"closes":       func(nc net.Conn) { nc.Close() },
		"other_words":  func(nc net.Conn) { io.WriteString(nc, "HTTP/1.1 400 Bad Request\r\n\r\n"); io.Copy(io.Discard, nc) },
		"says_nothing": func(nc net.Conn) { io.Copy(io.Discard, nc) },
		"goes_away": func(nc net.Conn) {
			f := http2.NewFramer(nc, nc)
			f.WriteSettings()
			f.WriteGoAway(0, http2.ErrCodeNo, nil)
			io.Copy(io.Discard, nc)
			nc.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var dials atomic.Int32
				r := &toUpstreams{}
				s := runShard(t, r)
				r.all = []*Upstream{s.Upstream(func(context.Context) (net.Conn, error) {
					dials.Add(1)
					here, there := newPipe()
					go node(there)
					return here, nil
				}, nil)}
				here, there := newPipe()
				s.Accept(there, nil)
				c := newCaller(here)
				const calls = 200
				go func() {
					for range calls {
						time.Sleep(10 * time.Millisecond)
						c.call(true)
					}
				}()
				for answers := 0; answers < calls; {
					fr, err := c.ReadFrame()
					if err != nil {
						t.Fatal(err)
					}
					switch fr := fr.(type) {
					case *http2.HeadersFrame:
						answers++
					case *http2.RSTStreamFrame:
						answers++
						if fr.ErrCode != http2.ErrCodeRefusedStream {
							t.Errorf("a call that was not sent ends with %v", fr.ErrCode)
						}
					}
				}
				if n := dials.Load(); n < 2 || n > 50 {
					t.Errorf("%d attempts", n)
				}
				if st := s.Stats(); st.Ends[h2.AnsweredBy]+st.Ends[h2.Refused] != calls || st.Held != 0 {
					t.Errorf("%+v", st)
				}
				here.Close()
			})
		})
	}
}

func TestConnectionsAreSeenAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &toUpstreams{}
		s := New(func() h2.Config { c := h2.Default(); c.Connections = 2; return c }(), r)
		keep(t, s)
		nodeHere, nodeThere := newPipe()
		r.all = []*Upstream{s.Upstream(func(context.Context) (net.Conn, error) { return nodeHere, nil }, nil)}
		http2.NewFramer(nodeThere, nodeThere).WriteSettings()
		for range 3 {
			here, there := newPipe()
			s.Accept(there, nil)
			c := newCaller(here)
			c.call(true)
			c.call(false)
			defer here.Close()
		}
		synctest.Wait()
		time.Sleep(time.Second)
		nodes := 0
		list := func(most int) []Connection {
			all, ok := s.Connections(t.Context(), most)
			if !ok {
				t.Error("no turn")
			}
			return all
		}
		for _, c := range list(10) {
			streams, calls := 2, uint64(2)
			if !c.IsClient {
				nodes++
				streams, calls = 4, 4
			}
			if c.Streams != streams || c.Calls != calls || !c.Ready || c.Draining || c.Age < time.Second || c.Age > 2*time.Second ||
				c.In == 0 || c.Out == 0 || c.Buffered != 0 || c.Window != 65535 || c.Remote != "local" || c.TLS {
				t.Errorf("%+v", c)
			}
		}
		if all, one := list(10), list(1); len(all) != 3 || nodes != 1 || len(one) != 1 {
			t.Errorf("%+v; %d of nodes", all, nodes)
		}
		st := s.Stats()
		if st.Crowded != 1 || st.Accepted != 2 || st.Clients != 2 || st.Nodes != 1 || st.ClientIn == 0 ||
			st.ClientOut == 0 || st.NodeIn == 0 || st.NodeOut == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// An openCall has come to a node over one of its connections.
type openCall struct {
	conn   int
	answer func()
}

// serveFew is a node that allows few streams on a connection.
func serveFew(t *testing.T, there net.Conn, number, limit int, calls chan<- openCall) {
	io.ReadFull(there, make([]byte, len(http2.ClientPreface)))
	f := http2.NewFramer(there, there)
	f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(limit)})
	f.WriteSettingsAck()
	n := 0
	var mu sync.Mutex
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			there.Close()
			return
		}
		h, ok := fr.(*http2.HeadersFrame)
		if !ok {
			continue
		}
		mu.Lock()
		if n++; n > limit {
			t.Errorf("%d streams on connection %d", n, number)
		}
		mu.Unlock()
		id := h.StreamID
		calls <- openCall{number, func() {
			mu.Lock()
			defer mu.Unlock()
			n--
			var block bytes.Buffer
			e := hpack.NewEncoder(&block)
			for _, field := range [][2]string{{":status", "200"}, {"content-type", "application/grpc"}, {"grpc-status", "0"}} {
				e.WriteField(hpack.HeaderField{Name: field[0], Value: field[1], Sensitive: true})
			}
			f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
		}}
	}
}

// While a node allows no more streams on a connection, its calls go over further ones, up to a bound. Those end
// when they have been of no use for a while.
func TestMoreConnectionsWhereANodeAllowsFewStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFew(t)
		here, there := newPipe()
		w.shard.Accept(there, nil)
		c := newCaller(here)
		go io.Copy(io.Discard, here)
		call := func() (came *openCall) {
			c.call(true)
			synctest.Wait()
			select {
			case o := <-w.reaches:
				return &o
			default:
				return nil
			}
		}
		var all []*openCall
		for i := range (1 + mostMore) * perConn {
			o := call()
			if o == nil || o.conn != i/perConn {
				t.Fatalf("call %d: %+v; want connection %d", i, o, i/perConn)
			}
			all = append(all, o)
		}
		if o := call(); o != nil {
			t.Fatalf("beyond the bound: connection %d", o.conn)
		}
		all[0].answer()
		synctest.Wait()
		waited := <-w.reaches
		if waited.conn != 0 {
			t.Errorf("the call that waited went to connection %d", waited.conn)
		}
		all[0] = &waited
		// What comes free elsewhere is used by the next call.
		all[9].answer()
		synctest.Wait()
		if all[9] = call(); all[9] == nil || all[9].conn != 9/perConn {
			t.Fatalf("%+v", all[9])
		}
		for _, o := range all {
			o.answer()
		}
		synctest.Wait()
		// When the first is lost, another one takes its place.
		w.lost(0)
		synctest.Wait()
		for _, more := range []int{mostMore - 1, mostMore - 1, 0} {
			o := call()
			if o == nil || o.conn != 1 {
				t.Fatalf("%+v; want the second connection", o)
			}
			o.answer()
			synctest.Wait()
			if n := w.shard.Stats().Nodes; n != 1+more {
				t.Errorf("%d connections; want %d", n, 1+more)
			}
			time.Sleep(keepMore/2 + time.Millisecond)
		}
		if n := w.dials(); n != 1+mostMore {
			t.Errorf("%d dials", n)
		}
		w.shard.Do(func(*h2.Forwarder) { w.up.Close() })
		here.Close()
	})
}

// Clients whose connections are too old are told to go. What is open on them has a minute, then it breaks.
func TestOldConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const age = 10 * time.Minute
		config := patient()
		config.HoldTimeout = time.Hour
		s := New(config, &parking{make(chan struct{}, 1)})
		began, left := time.Now(), 0
		s.Age(age, func(old map[*h2.Conn]bool) {
			left += len(old)
			for c := range old {
				if !c.IsOpen() {
					t.Error("an old connection is over")
				}
			}
		})
		keep(t, s)
		for busy := range 2 {
			here, there := newPipe()
			defer here.Close()
			s.Accept(there, nil)
			c := newCaller(here)
			if busy == 1 {
				c.call(true) // it waits for good
			}
			go func() {
				var told time.Duration
				for {
					fr, err := c.ReadFrame()
					switch fr := fr.(type) {
					case *http2.PingFrame:
						c.WritePing(true, fr.Data)
					case *http2.GoAwayFrame:
						if told == 0 {
							told = time.Since(began)
						}
					}
					if err == nil {
						continue
					}
					ended := time.Since(began)
					if told < age*9/10 || told > age+agesEach {
						t.Errorf("connection %d: told after %v", busy, told)
					}
					if more := ended - told; busy == 0 && more > lingering ||
						busy == 1 && (more < lastUse-agesEach || more > lastUse+2*agesEach) {
						t.Errorf("connection %d: ends after another %v", busy, more)
					}
					return
				}
			}()
		}
		time.Sleep(age + 2*lastUse)
		if n := s.Stats().Clients; n != 0 || left < 55 || left > 65 {
			t.Errorf("%d clients are left; heard of old ones %d times", n, left)
		}
	})
}
