// Package history remembers the last ten minutes: a point every two seconds of what
// calls, sessions and nodes did, and the slowest calls.
//
// It owns the meters that calls are added to, the ring of points, and the list
// of slow calls. What always holds:
//
//   - Adding a call takes no lock and allocates nothing, unless it failed in a
//     way that is new or is among the slowest of its minute.
//   - Memory is bounded, whatever is called and however many nodes there are:
//     see the constants.
//   - Texts, parameters and sessions do not get in: a call is known by its
//     method, its node, its app and its trace.
package history

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// The size of what is remembered.
const (
	Step      = 2 * time.Second // between two points
	Points    = 300             // ten minutes of them
	maxNodes  = 128             // with points of their own: those with bad signs before others
	calm      = 30              // points without a bad sign after which a node makes room for one with some
	maxErrors = 24              // kinds of error told apart; others are Other
	minutes   = 10              // for which slow calls are kept
	perMinute = 20              // slow calls kept of each
)

// The kinds of errors beyond those told apart.
const (
	Other       = "OTHER"        // errors of the service
	OtherCaller = "OTHER_CALLER" // errors of callers
)

// Call is one call that ended.
type Call struct {
	API      string // how it came: http, grpc, wire
	Name     string // of its method
	Status   string // "": it did its work
	Caller   bool   // it failed for a reason of its caller's; the same for all calls of one Status
	App      string // "": nobody's
	Node     uint32 // 0: none
	Attempts int
	Took     time.Duration
	// Of that: in the queue for a session, all else to get one, calls to nodes, and of
	// those the part that the server says it worked.
	Queue, Acquire, Hop, Server time.Duration
	Trace                       [16]byte // zero: it has none
}

// Meter takes the calls of one place. There are as many as there are places that
// add calls at the same time, so that they do not wait for each other's memory.
type Meter struct {
	of                          *Recorder
	times                       latency.Histogram
	took                        atomic.Int64 // nanoseconds, like the others
	queue, acquire, hop, server atomic.Int64
	retries                     atomic.Uint64
}

// Add takes a call.
func (m *Meter) Add(c *Call) {
	m.times.Add(c.Took)
	m.took.Add(int64(c.Took))
	m.hop.Add(int64(c.Hop))
	for _, p := range [...]struct {
		sum  *atomic.Int64
		took time.Duration
	}{{&m.queue, c.Queue}, {&m.acquire, c.Acquire}, {&m.server, c.Server}} {
		if p.took != 0 {
			p.sum.Add(int64(p.took))
		}
	}
	if c.Attempts > 1 {
		m.retries.Add(uint64(c.Attempts - 1))
	}
	if c.Status != "" {
		m.of.failed(c.Status, c.Caller)
	}
	if int64(c.Took) > m.of.slow.least.Load() {
		m.of.slow.keep(time.Now(), c)
	}
}

// Reading is what there is at one time, and since the start.
type Reading struct {
	Used, Idle, Creating int // sessions
	Limit                int // of sessions
	Waiting              int // in the queue for one
	Transactions         int // open
	Nodes                []NodeReading
}

// NodeReading is the part of one node.
type NodeReading struct {
	ID         uint32
	Used, Idle int            // sessions
	Bad        uint64         // bad signs since the start
	Took       latency.Counts // of its calls since the start
}

// Recorder remembers. It is safe for concurrent use.
type Recorder struct {
	read   func(*Reading)
	errors atomic.Pointer[map[string]*atomic.Uint64] // the map is immutable
	slow   slowest

	mu     sync.Mutex // guards all below
	meters []*Meter
	last   uint64 // number of the newest point; the first is 1
	at     time.Time
	sums   sums // at the newest point
	series [seriesSize]ring
	kinds  map[string]*kind // of errors
	nodes  map[uint32]*node
	bad    map[uint32]uint64 // NodeReading.Bad of all nodes, while there are more than have points
}

// ring holds the newest points of one series: number n is at n % Points.
type ring [Points]float32

// The series of all calls and of the pool. Times are means in milliseconds for one call.
const (
	calls   = iota // per second
	failed         // per second: errors of both sides
	caller         // per second: errors of callers
	retries        // attempts after the first, per second
	p50            // milliseconds
	p99
	queue
	acquire
	hop // less server
	server
	rest // in the sidecar itself, or waiting for the caller to read
	used
	idle
	creating
	limit
	waiting
	transactions
	seriesSize
)

var seriesNames = [seriesSize]string{"calls", "failed", "caller", "retries", "p50", "p99", "queue", "acquire", "hop", "server", "rest",
	"used", "idle", "creating", "limit", "waiting", "transactions"}

// sums are counts since the start.
type sums struct {
	times                             latency.Counts
	took, queue, acquire, hop, server int64
	retries                           uint64
}

// kind is one kind of error.
type kind struct {
	caller bool   // its errors are those of callers
	before uint64 // at the newest point
	points ring   // per second
}

// The series of a node.
const (
	nodeCalls = iota // per second
	nodeBad          // per second
	nodeP50          // milliseconds
	nodeP99
	nodeUsed
	nodeSeriesSize
)

var nodeNames = [nodeSeriesSize]string{"calls", "bad", "p50", "p99", "used"}

// node is what is remembered of a node.
type node struct {
	took   latency.Counts // at the newest point
	bad    uint64
	seen   uint64 // number of the newest point with it
	ill    uint64 // and of the newest with a bad sign; 0: none
	since  uint64 // of the first
	series [nodeSeriesSize]ring
}

// New returns a recorder; read fills an empty Reading for each point.
func New(read func(*Reading)) *Recorder {
	r := &Recorder{read: read, kinds: map[string]*kind{}, nodes: map[uint32]*node{}, at: time.Now()}
	r.errors.Store(&map[string]*atomic.Uint64{})
	return r
}

// NewMeter returns a meter whose calls count from now on.
func (r *Recorder) NewMeter() *Meter {
	m := &Meter{of: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meters = append(r.meters, m)
	return m
}

// Run makes points until ctx ends. It returns nil.
func (r *Recorder) Run(ctx context.Context) error {
	ticker := time.NewTicker(Step)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			r.point(now)
		}
	}
}

// failed counts an error.
func (r *Recorder) failed(status string, ofCaller bool) {
	n := (*r.errors.Load())[status]
	if n == nil {
		n = r.newKind(status, ofCaller)
	}
	n.Add(1)
}

func (r *Recorder) newKind(status string, ofCaller bool) *atomic.Uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.errors.Load()
	if len(old) >= maxErrors-2 && old[status] == nil {
		if status = Other; ofCaller {
			status = OtherCaller
		}
	}
	if n := old[status]; n != nil {
		return n
	}
	next := maps.Clone(old)
	next[status] = new(atomic.Uint64)
	r.errors.Store(&next)
	r.kinds[status] = &kind{caller: ofCaller}
	return next[status]
}

// point adds the next point.
func (r *Recorder) point(now time.Time) {
	var in Reading
	r.read(&in)
	r.slow.rotate(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	seconds := max(now.Sub(r.at).Seconds(), 0.001)
	r.at = now
	r.last++
	i := r.last % Points

	var s sums
	for _, m := range r.meters {
		m.times.AddTo(&s.times)
		s.took += m.took.Load()
		s.queue += m.queue.Load()
		s.acquire += m.acquire.Load()
		s.hop += m.hop.Load()
		s.server += m.server.Load()
		s.retries += m.retries.Load()
	}
	times, n := s.times.Since(&r.sums.times)
	set := func(which int, v float64) { r.series[which][i] = float32(v) }
	set(calls, float64(n)/seconds)
	set(retries, float64(s.retries-r.sums.retries)/seconds)
	set(p50, ms(times.Quantile(0.5, n)))
	set(p99, ms(times.Quantile(0.99, n)))
	mean := func(now, before int64) float64 { return ms(time.Duration(max(now-before, 0))) / float64(max(n, 1)) }
	q, a, h, v := mean(s.queue, r.sums.queue), mean(s.acquire, r.sums.acquire), mean(s.hop, r.sums.hop), mean(s.server, r.sums.server)
	set(queue, q)
	set(acquire, a)
	set(hop, max(h-v, 0))
	set(server, v)
	set(rest, max(mean(s.took, r.sums.took)-q-a-max(h, v), 0))
	r.sums = s
	for which, v := range map[int]int{used: in.Used, idle: in.Idle, creating: in.Creating, limit: in.Limit,
		waiting: in.Waiting, transactions: in.Transactions} {
		set(which, float64(v))
	}

	all, callers := 0.0, 0.0
	for status, n := range *r.errors.Load() {
		k, now := r.kinds[status], n.Load()
		rate := float64(now-k.before) / seconds
		k.before, k.points[i] = now, float32(rate)
		if all += rate; k.caller {
			callers += rate
		}
	}
	set(failed, all)
	set(caller, callers)
	r.pointNodesLocked(in.Nodes, i, seconds)
}

func (r *Recorder) pointNodesLocked(all []NodeReading, i uint64, seconds float64) {
	before := r.bad
	r.bad = nil
	if len(all) > maxNodes {
		r.bad = make(map[uint32]uint64, len(all))
		for j := range all {
			r.bad[all[j].ID] = all[j].Bad
		}
	}
	for j := range all {
		in := &all[j]
		n := r.nodes[in.ID]
		if n == nil {
			before, known := before[in.ID]
			ill := known && in.Bad > before
			if len(r.nodes) >= maxNodes && !(ill && r.makeRoomLocked()) {
				continue
			}
			// What it did before is not of these two seconds.
			n = &node{took: in.Took, bad: in.Bad, since: r.last, seen: r.last}
			if ill {
				n.bad = before
			}
			r.nodes[in.ID] = n
		}
		times, count := in.Took.Since(&n.took)
		bad := in.Bad - n.bad
		if in.Bad < n.bad { // it counts from its beginning
			bad = in.Bad
		}
		if bad > 0 {
			n.ill = r.last
		}
		for missed := n.seen + 1; missed < r.last; missed++ { // it was away
			for s := range n.series {
				n.series[s][missed%Points] = 0
			}
		}
		n.took, n.bad, n.seen = in.Took, in.Bad, r.last
		n.series[nodeCalls][i] = float32(float64(count) / seconds)
		n.series[nodeBad][i] = float32(float64(bad) / seconds)
		n.series[nodeP50][i] = float32(ms(times.Quantile(0.5, count)))
		n.series[nodeP99][i] = float32(ms(times.Quantile(0.99, count)))
		n.series[nodeUsed][i] = float32(in.Used)
	}
	maps.DeleteFunc(r.nodes, func(_ uint32, n *node) bool { return r.last-n.seen >= Points })
}

// makeRoomLocked forgets the node whose last bad sign is the longest ago, if that is long enough.
func (r *Recorder) makeRoomLocked() bool {
	at, oldest := uint32(0), (*node)(nil)
	for id, n := range r.nodes {
		if oldest == nil || n.ill < oldest.ill || n.ill == oldest.ill && id > at {
			at, oldest = id, n
		}
	}
	if oldest == nil || oldest.ill != 0 && r.last-oldest.ill < calm {
		return false
	}
	delete(r.nodes, at)
	return true
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// slowest holds the slowest calls of each of the last minutes.
type slowest struct {
	least atomic.Int64 // nanoseconds: a call that did not take longer is not kept

	mu     sync.Mutex // guards all below
	minute [minutes]struct {
		n     int
		calls [perMinute]Slow
	}
	current int
	turned  time.Time
}

// Slow is a slow call.
type Slow struct {
	Call
	At     time.Time // of its end
	Others int       // slow calls of the same stall that Slowest left out
}

func (s *slowest) keep(now time.Time, c *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &s.minute[s.current]
	if m.n < perMinute {
		m.calls[m.n] = Slow{Call: *c, At: now}
		m.n++
	} else if i := quickest(m.calls[:]); m.calls[i].Took < c.Took {
		m.calls[i] = Slow{Call: *c, At: now}
	}
	if m.n == perMinute {
		s.least.Store(int64(m.calls[quickest(m.calls[:])].Took))
	}
}

func quickest(all []Slow) (least int) {
	for i := range all {
		if all[i].Took < all[least].Took {
			least = i
		}
	}
	return least
}

// rotate begins another minute when it is time.
func (s *slowest) rotate(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.turned.IsZero():
		s.turned = now
	case now.Sub(s.turned) >= time.Minute:
		s.turned, s.current = now, (s.current+1)%minutes
		s.minute[s.current].n = 0
		s.least.Store(0)
	}
}

// sorted lists all that are kept, slowest first.
func (s *slowest) sorted() []Slow {
	s.mu.Lock()
	all := []Slow{}
	for i := range s.minute {
		m := &s.minute[i]
		all = append(all, m.calls[:m.n]...)
	}
	s.mu.Unlock()
	slices.SortStableFunc(all, func(a, b Slow) int { return cmp.Compare(b.Took, a.Took) })
	return all
}

// What one stall may fill of a list of slow calls.
const (
	together = 10 * time.Second // calls that end within this time of each other belong to one stall,
	shownOf  = 3                // and so many of them are listed
)

// Slowest returns the slowest calls of the last ten minutes, slowest first, at
// most so many. Of the calls that one stall held up it has the slowest; Others of
// the first of those counts the rest.
func (r *Recorder) Slowest(most int) []Slow {
	out := []Slow{}
	for _, one := range r.slow.sorted() {
		first, n := -1, 0
		for i := range out {
			if out[i].At.Sub(one.At).Abs() <= together {
				if n++; first < 0 {
					first = i
				}
			}
		}
		switch {
		case n >= shownOf:
			out[first].Others++
		case len(out) < most:
			out = append(out, one)
		}
	}
	return out
}
