package driver

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// perConn is how many streams the node of these tests allows on a connection.
const perConn = 2

// An attempt is one to connect to that node.
type attempt struct {
	slow    time.Duration
	fails   bool
	streams int // limit of the connection; 0: perConn
}

// few makes calls over a shard's connections to that node.
type few struct {
	shard   *Shard
	up      *Upstream
	reaches chan openCall
	open    []openCall                    // what has reached the node
	tickets []h2.Ticket                   // of all calls
	lost    func(number int)              // has the node end a connection, and its calls
	dials   func() int                    // attempts so far
	serve   func(nc net.Conn, number int) // is the node
}

// newFew makes the attempts as they are listed, and any further one succeeds at once.
func newFew(t *testing.T, attempts ...attempt) *few {
	w := &few{reaches: make(chan openCall, 100)}
	routes := &toUpstreams{}
	w.shard = runShard(t, routes)
	w.serve = func(nc net.Conn, number int) {
		streams := perConn
		if number < len(attempts) {
			streams = cmp.Or(attempts[number].streams, perConn)
		}
		serveFew(t, nc, number, streams, w.reaches)
	}
	var mu sync.Mutex
	var nodes []net.Conn
	w.lost = func(number int) {
		mu.Lock()
		defer mu.Unlock()
		nodes[number].Close()
		w.open = slices.DeleteFunc(w.open, func(o openCall) bool { return o.conn == number })
	}
	w.dials = func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(nodes)
	}
	w.up = w.shard.Upstream(func(context.Context) (net.Conn, error) {
		here, there := newPipe()
		mu.Lock()
		number := len(nodes)
		nodes = append(nodes, there)
		mu.Unlock()
		var a attempt
		if number < len(attempts) {
			a = attempts[number]
		}
		if time.Sleep(a.slow); a.fails {
			return nil, errors.New("not yet")
		}
		go w.serve(there, number)
		return here, nil
	}, nil)
	routes.all = []*Upstream{w.up}
	return w
}

// begin begins so many calls, which wait or reach the node.
func (w *few) begin(calls int) {
	fields := h2.NewFields(":method", "POST", ":scheme", "http", ":path", "/service/method", ":authority", "node")
	for range calls {
		w.shard.Do(func(f *h2.Forwarder) {
			if conn, err := w.up.Conn(); err == nil {
				w.tickets = append(w.tickets, f.Start(conn, &h2.Request{Fields: fields, Listener: deaf{}}))
			}
		})
		synctest.Wait()
	}
}

// deaf is for calls whose answers nobody reads.
type deaf struct{}

func (deaf) Going() bool                 { return true }
func (deaf) Header(h2.Headers, bool)     {}
func (deaf) Data([]byte) bool            { return false }
func (deaf) End(*h2.Outcome, *h2.Status) {}
func (deaf) Flush()                      {}

// reached checks that so many more calls have reached the node.
func (w *few) reached(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	if got := len(w.reaches); got != want {
		t.Errorf("%d calls reached the node; want %d", got, want)
	}
	for len(w.reaches) > 0 {
		w.open = append(w.open, <-w.reaches)
	}
}

// reach begins calls that reach the node at once.
func (w *few) reach(t *testing.T, calls int) {
	t.Helper()
	w.begin(calls)
	w.reached(t, calls)
}

// answer has the node answer all that has reached it.
func (w *few) answer() {
	for _, o := range w.open {
		o.answer()
	}
	synctest.Wait()
}

// looks reports whether the upstream looks for room.
func (w *few) looks() (yes bool) {
	w.shard.Do(func(*h2.Forwarder) { yes = w.up.again != nil })
	return yes
}

// No call waits on while a further connection could be made, although no other call comes.
func TestCallsThatWaitGetFurtherConnections(t *testing.T) {
	const slow = 3 * firstBackoff
	for name, tc := range map[string]struct {
		attempts []attempt
		run      func(t *testing.T, w *few)
	}{
		"an attempt fails after the next look": {
			attempts: []attempt{{}, {fails: true}, {slow: slow, fails: true}},
			run: func(t *testing.T, w *few) {
				w.reach(t, perConn)
				w.begin(1) // it ends with the attempt
				w.begin(1)
				w.reached(t, 0)
				time.Sleep(time.Second)
				w.reached(t, 1)
			},
		},
		"an attempt that succeeds after the next look brings too little room": {
			attempts: []attempt{{}, {fails: true}, {slow: slow}},
			run: func(t *testing.T, w *few) {
				w.reach(t, perConn)
				w.begin(1) // it ends with the attempt
				w.begin(2*perConn + 1)
				w.reached(t, 0)
				time.Sleep(time.Second)
				w.reached(t, 2*perConn+1)
			},
		},
		"more came before the first connection stood than it has room for": {
			attempts: []attempt{{slow: slow}},
			run: func(t *testing.T, w *few) {
				w.begin(2*perConn + 1)
				w.reached(t, 0)
				time.Sleep(time.Second)
				w.reached(t, 2*perConn+1)
			},
		},
		"a connection is lost while there are as many as there may be": {
			run: func(t *testing.T, w *few) {
				w.reach(t, (1+mostMore)*perConn)
				time.Sleep(time.Second) // nothing looks for room any more
				w.begin(1)
				w.reached(t, 0)
				w.lost(mostMore)
				time.Sleep(time.Second)
				w.reached(t, 1)
			},
		},
		"the first is lost while another is made, which has room for few": {
			attempts: []attempt{{}, {slow: slow, streams: 1}},
			run: func(t *testing.T, w *few) {
				w.reach(t, perConn)
				w.begin(2)
				w.lost(0)
				w.reached(t, 0)
				time.Sleep(time.Second)
				w.reached(t, 2)
			},
		},
		"the first is lost while another is made, and a new first has room": {
			attempts: []attempt{{}, {slow: 4 * time.Second}},
			run: func(t *testing.T, w *few) {
				w.reach(t, perConn)
				w.begin(1)
				time.Sleep(2 * firstBackoff)
				w.lost(0)
				w.reached(t, 0)
				w.begin(1)
				w.reached(t, 2)
				time.Sleep(4 * time.Second)
			},
		},
		"the first is lost while another is made, which stands before a new first": {
			attempts: []attempt{{}, {slow: time.Second, streams: 3}, {slow: 4 * time.Second}},
			run: func(t *testing.T, w *few) {
				w.reach(t, perConn)
				w.begin(1)
				time.Sleep(2 * firstBackoff)
				w.lost(0)
				w.reached(t, 0)
				w.begin(1)
				time.Sleep(time.Second)
				w.reached(t, 2)
				w.reach(t, 1)
				time.Sleep(4 * time.Second)
			},
		},
		"attempts at one time fail together": {
			attempts: slices.Concat([]attempt{{}}, slices.Repeat([]attempt{{slow: firstBackoff, fails: true}}, mostMore)),
			run: func(t *testing.T, w *few) {
				w.reach(t, perConn)
				w.begin(mostMore * perConn) // they end with the attempts
				time.Sleep(firstBackoff)
				synctest.Wait()
				if n := w.dials(); n != 1+mostMore {
					t.Errorf("%d attempts; want all that there may be", n)
				}
				w.begin(1)
				time.Sleep(3 * firstBackoff)
				w.reached(t, 1)
			},
		},
		"attempts fail between others that succeed": {
			attempts: slices.Concat([]attempt{{}}, slices.Repeat([]attempt{{fails: true}, {}}, 10)),
			run: func(t *testing.T, w *few) {
				w.reach(t, perConn)
				for i := range 10 {
					w.begin(1) // it ends with the attempt
					w.begin(1)
					time.Sleep(3 * firstBackoff)
					w.reached(t, 1)
					w.lost(2 + 2*i)
					time.Sleep(2 * firstBackoff)
				}
			},
		},
		"a call that waits is given up": {
			attempts: []attempt{{}, {fails: true}, {slow: time.Minute}},
			run: func(t *testing.T, w *few) {
				w.reach(t, perConn)
				w.begin(1) // it ends with the attempt
				w.begin(1)
				time.Sleep(time.Second)
				if !w.looks() {
					t.Error("nothing looks for room for a call that waits")
				}
				w.shard.Do(func(f *h2.Forwarder) { f.Abandon(w.tickets[len(w.tickets)-1]) })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFew(t, tc.attempts...)
				tc.run(t, w)
				time.Sleep(2 * firstBackoff)
				if w.looks() {
					t.Error("room is looked for when no call waits")
				}
				w.answer()
				if st := w.shard.Stats(); st.Held != 0 {
					t.Errorf("%d calls are held", st.Held)
				}
				w.shard.Do(func(*h2.Forwarder) { w.up.Close() })
			})
		})
	}
}

// A call waits for no connection that is being made while another one has room.
func TestCallsPreferConnectionsThatStand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFew(t, attempt{}, attempt{slow: time.Second}, attempt{})
		w.reach(t, perConn)
		w.begin(perConn + 1) // for the last of them a third connection is made, and stands before the second
		w.reached(t, perConn)
		w.open[perConn].answer()
		w.reached(t, 1)
		w.open[perConn+1].answer()
		synctest.Wait()
		w.reach(t, 1)
	})
}

// Further connections that the node ends at once are not made in a row, and calls wait meanwhile.
func TestUselessFurtherConnectionsAreNotMadeInARow(t *testing.T) {
	for name, ends := range map[string]func(net.Conn){
		"it closes": func(nc net.Conn) { nc.Close() },
		"it goes away": func(nc net.Conn) {
			f := http2.NewFramer(nc, nc)
			f.WriteSettings()
			f.WriteGoAway(0, http2.ErrCodeNo, nil)
			io.Copy(io.Discard, nc)
			nc.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFew(t)
				first := w.serve
				w.serve = func(nc net.Conn, number int) {
					if number == 0 {
						first(nc, number)
						return
					}
					ends(nc)
				}
				w.reach(t, perConn)
				for range 200 {
					w.begin(1)
					time.Sleep(time.Millisecond)
				}
				if n := w.dials(); n < 2 || n > 6 {
					t.Errorf("%d attempts", n)
				}
			})
		})
	}
}

// After the end nothing looks for room, and an attempt that fails late changes nothing.
func TestNoMoreAttemptsAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(*Upstream){"close": (*Upstream).Close, "cut": (*Upstream).Cut, "shelve": (*Upstream).Shelve} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFew(t, attempt{}, attempt{slow: time.Second, fails: true})
				w.reach(t, perConn)
				w.begin(1)
				if !w.looks() {
					t.Error("nothing looks for room for a call that waits")
				}
				var why error
				w.shard.Do(func(*h2.Forwarder) { end(w.up); why = w.up.failure })
				if w.looks() {
					t.Error("room is looked for after the end")
				}
				w.answer()
				time.Sleep(10 * time.Second)
				w.begin(1)
				if n := w.dials(); n != 2 {
					t.Errorf("%d attempts; want none after the end", n)
				}
				w.shard.Do(func(*h2.Forwarder) {
					if w.up.failure != why {
						t.Errorf("calls are told %v; want %v", w.up.failure, why)
					}
					w.up.Cut()
				})
			})
		})
	}
}

// A caller that is in a hurry does not wait for the end of a pause, nor do calls that wait already.
func TestHurryEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFew(t, slices.Concat([]attempt{{}}, slices.Repeat([]attempt{{fails: true}}, 6))...)
		w.reach(t, perConn)
		for range 6 {
			w.begin(1) // it ends with the attempt
			w.shard.Do(func(*h2.Forwarder) { w.up.retryAt = 0 })
		}
		w.shard.Do(func(f *h2.Forwarder) { w.up.retryAt = f.Now() + lastBackoff })
		w.begin(1)
		w.reached(t, 0)
		w.shard.Do(func(*h2.Forwarder) { w.up.Hurry() })
		time.Sleep(time.Millisecond)
		w.reached(t, 1)
		w.answer()
		w.shard.Do(func(*h2.Forwarder) { w.up.Close() })
	})
}
