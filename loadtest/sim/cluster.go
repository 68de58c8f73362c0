// Package sim plays many sidecars with an adaptive limit on a cluster that is too weak
// for all of them, in a time of its own: no socket, no goroutine, the same course for
// the same seed. The limits are those of internal/adaptive, as in the product.
//
// # The cluster
//
// A node works on a number of calls at a time at full speed. Beyond that all of them
// become slower in proportion, those that are new at once, as where work is shared in small slices; beyond a
// multiple of it new ones are refused for load. How long a call takes without others is random, of a
// skewed distribution. A node that goes takes its calls with it.
//
// # The sidecars
//
// Each has a number of callers, who call again as soon as they are answered and pause
// for a moment when they are refused. A caller needs a session in use; a call goes to
// the less loaded of two random nodes, as the product's pool does by the latency that it
// has seen on them.
//
// What always holds: a run allocates before it begins and not afterwards.
package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/adaptive"
)

// Config is one simulated world.
type Config struct {
	Sidecars, Nodes int
	PerNode         int           // calls that a node works on at full speed
	Refuse          int           // times PerNode: calls on a node beyond which it refuses
	Service         time.Duration // mean time of a call without others
	Spread          float64       // standard deviation of its logarithm
	Max             int           // of a sidecar's sessions
	Seed            uint64

	Fixed  bool          // no adaptive limit: each may use Max
	Skew   time.Duration // clocks are wrong by so much at most, either way
	Series int           // seconds to be recorded at most
}

// Default returns a world with a share of about 4 sessions for each sidecar.
func Default(sidecars, nodes int) Config {
	return Config{
		Sidecars: sidecars, Nodes: nodes, PerNode: 4 * sidecars / nodes, Refuse: 4, Service: 20 * time.Millisecond, Spread: 0.2,
		Max: 50, Seed: 1, Skew: 50 * time.Millisecond, Series: 1000,
	}
}

const (
	tickLength = time.Millisecond // the clock's step
	wheelSize  = 1 << 13          // ticks that an event may lie ahead
	refusedIn  = 1                // ticks that a refusal takes
	pauseLeast = 50               // ticks that a caller pauses after it, and
	pauseMore  = 100              // so many more at random
	none       = int32(-1)
)

// World is a cluster and its sidecars.
type World struct {
	Config
	random *rand.Rand
	now    int64 // ticks

	sidecars []sidecar
	nodes    []node
	alive    []int32
	calls    []call
	free     int32 // head of the list of calls that are none
	next     []int32
	wheel    []int32 // heads of the lists of events by tick
	factors  [4096]float32

	second  Second
	Seconds []Second
}

// sidecar is one of them.
type sidecar struct {
	law      adaptive.Law
	sample   adaptive.Sample
	quiet    [2]int64 // ticks: calls that began then
	skew     time.Duration
	limit    int32
	inUse    int32
	waiting  int32 // callers
	peak     int32
	limited  bool
	away     int32 // callers to leave when their call ends
	callers  int32
	started  bool
	Done     int64 // calls, so far
	doneThen int64 // at the last call of Count
}

type node struct {
	calls int32
	lives int32 // counts comings: calls of an earlier life are lost
}

type call struct {
	sidecar, node, life int32
	latency             int32 // ticks
	kind                uint8
}

const (
	running uint8 = iota
	refused
	pausing
)

// Second is what happened in one second.
type Second struct {
	Done, Refused, Lost int64
	Latency             float64 // mean of the calls that were done, in seconds
	InUse               int64   // calls on nodes at its end
	Limit               float64 // of all sidecars that have callers, at its end, outside marks
	Capacity            int64   // calls that the nodes can do in a second
}

// New returns a world at rest: no sidecar has started.
func New(c Config) *World {
	w := &World{Config: c, random: rand.New(rand.NewPCG(c.Seed, 1))}
	w.sidecars, w.nodes = make([]sidecar, c.Sidecars), make([]node, c.Nodes)
	w.alive = make([]int32, c.Nodes)
	for i := range w.alive {
		w.alive[i] = int32(i)
	}
	w.calls = make([]call, c.Sidecars*c.Max)
	w.next = make([]int32, c.Sidecars+len(w.calls))
	for i := range w.calls {
		w.next[c.Sidecars+i] = int32(c.Sidecars + i + 1)
	}
	w.next[len(w.next)-1], w.free = none, int32(c.Sidecars)
	w.wheel = make([]int32, wheelSize)
	for i := range w.wheel {
		w.wheel[i] = none
	}
	for i := range w.factors { // with a mean of 1
		w.factors[i] = float32(math.Exp(w.random.NormFloat64()*c.Spread - c.Spread*c.Spread/2))
	}
	w.Seconds = make([]Second, 0, c.Series)
	config := adaptive.Default(1, c.Max)
	for i := range w.sidecars {
		s := &w.sidecars[i]
		s.law.Init(config)
		s.skew = time.Duration(w.random.Int64N(2*int64(c.Skew)+1)) - c.Skew
		s.limit = int32(c.Max)
	}
	return w
}

// Now is the time since the beginning.
func (w *World) Now() time.Duration { return time.Duration(w.now) * tickLength }

// at has an event happen in so many ticks, at least 1.
func (w *World) at(event int32, in int64) {
	slot := &w.wheel[(w.now+min(max(in, 1), wheelSize-1))%wheelSize]
	w.next[event], *slot = *slot, event
}

// Want sets how many callers a sidecar has, Config.Max at most; one that has none yet
// starts.
func (w *World) Want(i, callers int) {
	s := &w.sidecars[i]
	callers = min(callers, w.Max)
	change := int32(callers) - s.callers
	s.callers = int32(callers)
	if change >= 0 {
		back := min(change, s.away)
		s.away -= back
		s.waiting += change - back
	} else {
		gone := min(-change, s.waiting)
		s.waiting -= gone
		s.away += -change - gone
	}
	if !s.started {
		s.started = true
		if !w.Fixed {
			s.limit = int32(s.law.Limit())
			w.step(int32(i), s)
		}
	}
	w.begin(int32(i), s)
}

// Kill takes the last so many nodes away, Revive brings all back.
func (w *World) Kill(n int) {
	for _, i := range w.alive[len(w.alive)-n:] {
		w.nodes[i].calls = 0
		w.nodes[i].lives++
	}
	w.alive = w.alive[:len(w.alive)-n]
}

// Revive brings back the nodes that went.
func (w *World) Revive() { w.alive = w.alive[:w.Nodes] }

// Run lets time pass.
func (w *World) Run(d time.Duration) {
	for end := w.now + int64(d/tickLength); w.now < end; {
		w.now++
		slot := &w.wheel[w.now%wheelSize]
		event := *slot
		*slot = none
		for event != none {
			following := w.next[event]
			if int(event) < w.Sidecars {
				s := &w.sidecars[event]
				w.step(event, s)
				w.begin(event, s)
			} else {
				w.ended(event)
			}
			event = following
		}
		if w.now%int64(time.Second/tickLength) == 0 {
			w.record()
		}
	}
}

// step has a sidecar's law look at what happened.
func (w *World) step(i int32, s *sidecar) {
	now := w.Now()
	limited := s.limited || s.waiting > 0 && s.inUse >= s.limit
	next := s.law.Step(now, now+s.skew+time.Hour, s.sample, adaptive.Use{Peak: int(max(s.peak, s.inUse)), Limited: limited})
	from, to := s.law.Quiet()
	s.quiet = [2]int64{int64(from / tickLength), int64(to / tickLength)}
	s.limit = int32(s.law.Limit())
	s.sample, s.peak, s.limited = adaptive.Sample{}, s.inUse, false
	w.at(i, int64((next-now+tickLength-1)/tickLength))
}

// begin sends what callers wait for and the limit allows.
func (w *World) begin(i int32, s *sidecar) {
	for s.waiting > 0 && s.inUse < s.limit && len(w.alive) > 0 && w.free != none {
		s.waiting--
		s.inUse++
		s.peak = max(s.peak, s.inUse)
		event := w.free
		w.free = w.next[event]
		c := &w.calls[int(event)-w.Sidecars]
		c.sidecar, c.node = i, w.alive[w.random.IntN(len(w.alive))]
		if other := w.alive[w.random.IntN(len(w.alive))]; w.nodes[other].calls < w.nodes[c.node].calls {
			c.node = other
		}
		n := &w.nodes[c.node]
		c.life = n.lives
		if int(n.calls) >= w.PerNode*w.Refuse {
			c.kind, c.latency = refused, refusedIn
		} else {
			n.calls++
			busy := max(1, float64(n.calls)/float64(w.PerNode))
			c.kind = running
			c.latency = max(1, int32(float64(w.Service/tickLength)*busy*float64(w.factors[w.random.IntN(len(w.factors))])+0.5))
		}
		w.at(event, int64(c.latency))
	}
	s.limited = s.limited || s.waiting > 0 && s.inUse >= s.limit
}

// ended deals with a call whose time has come.
func (w *World) ended(event int32) {
	c := &w.calls[int(event)-w.Sidecars]
	s := &w.sidecars[c.sidecar]
	switch c.kind {
	case running:
		s.inUse--
		if n := &w.nodes[c.node]; n.lives != c.life {
			w.second.Lost++
			break
		} else {
			n.calls--
		}
		began := w.now - int64(c.latency)
		s.sample.Served(time.Duration(c.latency)*tickLength, began >= s.quiet[0] && began < s.quiet[1])
		s.Done++
		w.second.Done++
		w.second.Latency += float64(c.latency)
	case refused:
		s.inUse--
		s.sample.Refused++
		w.second.Refused++
		c.kind = pausing
		w.at(event, pauseLeast+w.random.Int64N(pauseMore))
		w.begin(c.sidecar, s)
		return
	}
	w.next[event], w.free = w.free, event
	if s.away > 0 {
		s.away--
	} else {
		s.waiting++
	}
	w.begin(c.sidecar, s)
}

// record ends a second.
func (w *World) record() {
	if len(w.Seconds) == cap(w.Seconds) {
		return
	}
	r := &w.second
	r.Latency *= tickLength.Seconds() / float64(max(r.Done, 1))
	for i := range w.nodes {
		r.InUse += int64(w.nodes[i].calls)
	}
	for i := range w.sidecars {
		if s := &w.sidecars[i]; s.callers > 0 {
			if w.Fixed {
				r.Limit += float64(s.limit)
			} else {
				r.Limit += s.law.State().Limit
			}
		}
	}
	r.Capacity = int64(float64(len(w.alive)*w.PerNode) / w.Service.Seconds())
	w.Seconds = append(w.Seconds, *r)
	*r = Second{}
}

// Count has fairness count from now on.
func (w *World) Count() {
	for i := range w.sidecars {
		w.sidecars[i].doneThen = w.sidecars[i].Done
	}
}
