package queue

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

type (
	line   = Queue[struct{}]
	waiter = Waiter[struct{}]
)

func testQueue(limit int) *line {
	shares := [ClassSize]int{Interactive: 20, Normal: 10, Batch: 5}
	l := New[struct{}](Config{Size: limit, Shares: shares, Deadline: true, Age: time.Minute})
	return &l
}

// served takes out who is served next.
func served(l *line) *waiter {
	w, _ := l.Pop(forAll)
	return w
}

// Under a flood of every class each gets its share, and the highest the rest.
func TestLineShares(t *testing.T) {
	tests := []struct {
		name    string
		classes []Class
		want    [ClassSize]int // of 1000
	}{
		{"all", []Class{System, Interactive, Normal, Batch}, [ClassSize]int{System: 650, Interactive: 200, Normal: 100, Batch: 50}},
		{"batch_against_interactive", []Class{Interactive, Batch}, [ClassSize]int{System: 0, Interactive: 950, Normal: 0, Batch: 50}},
		{"batch_against_normal", []Class{Normal, Batch}, [ClassSize]int{System: 0, Interactive: 0, Normal: 950, Batch: 50}},
		{"batch_alone", []Class{Batch}, [ClassSize]int{System: 0, Interactive: 0, Normal: 0, Batch: 1000}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := testQueue(1000)
			for _, c := range tt.classes {
				for range 100 {
					l.Push(&waiter{class: c}, 1)
				}
			}
			var got [ClassSize]int
			for range 1000 {
				w := served(l)
				got[w.class]++
				l.Push(w, 1)
			}
			for c := range got {
				// Exact except what is owed at the end.
				if d := got[c] - tt.want[c]; d < -1 || d > 3 {
					t.Errorf("served %v; want %v", got, tt.want)
				}
			}
		})
	}
}

// A class earns while it waits, not while it is away.
func TestLineDoesNotSaveUp(t *testing.T) {
	l := testQueue(100)
	batch := &waiter{class: Batch}
	for range 10 {
		l.Push(&waiter{class: Interactive}, 1)
	}
	for range 1000 { // batch is not there
		l.Push(served(l), 1)
	}
	l.Push(batch, 1)
	for i := range 20 {
		w := served(l)
		if w == batch {
			if i < 19 {
				t.Errorf("batch was served after %d others; want 19", i)
			}
			return
		}
		l.Push(w, 1)
	}
	t.Errorf("batch was not among 20 served")
}

// One caller must go when the queue is full.
func TestLineFull(t *testing.T) {
	fill := func(counts [ClassSize]int) (*line, map[Class]*waiter) {
		n := 0
		for _, k := range counts {
			n += k
		}
		l, last := testQueue(n), make(map[Class]*waiter)
		for c, k := range counts {
			for range k {
				w := &waiter{class: Class(c)}
				if l.Push(w, 1) != nil {
					t.Fatal("not full yet")
				}
				last[w.class] = w
			}
		}
		return l, last
	}
	const self, none = Class(100), Class(101)
	tests := []struct {
		name   string
		counts [ClassSize]int // of 100
		comes  Class
		goes   Class
	}{
		{"higher_takes_the_place_of_the_lowest", [ClassSize]int{System: 0, Interactive: 0, Normal: 50, Batch: 50}, Interactive, Batch},
		{"lower_gets_its_share_of_the_line", [ClassSize]int{System: 0, Interactive: 0, Normal: 100, Batch: 0}, Batch, Normal},
		{"beyond_its_share_lower_does_not", [ClassSize]int{System: 0, Interactive: 0, Normal: 95, Batch: 5}, Batch, self},
		{"share_of_the_lower_is_kept", [ClassSize]int{System: 0, Interactive: 95, Normal: 0, Batch: 5}, Interactive, self},
		{"next_lower_goes_then", [ClassSize]int{System: 0, Interactive: 0, Normal: 95, Batch: 5}, Interactive, Normal},
		{"same_class", [ClassSize]int{System: 0, Interactive: 0, Normal: 0, Batch: 100}, Batch, self},
		{"system_over_all", [ClassSize]int{System: 0, Interactive: 100, Normal: 0, Batch: 0}, System, Interactive},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, last := fill(tt.counts)
			w := &waiter{class: tt.comes}
			Reason, goes := l.Push(w, 1), none
			switch {
			case Reason == w:
				goes = self
			case Reason != nil:
				goes = Reason.class
				if Reason != last[goes] || Reason.queued {
					t.Errorf("of class %v not the youngest had to go, or it is still in line", goes)
				}
			}
			if goes != tt.goes {
				t.Errorf("class %d had to go; want %d", goes, tt.goes)
			}
			if l.n != 100 {
				t.Errorf("%d in line; want 100", l.n)
			}
		})
	}
}

// Random pushes, pops and removals against plain slices, one for each app of each
// class, and against the rule which app goes next in a class, looked for one by one.
func TestQueueOrder(t *testing.T) {
	m := &orderModel{T: t, r: rand.New(rand.NewPCG(1, 2)), l: testQueue(30)}
	for range short.Of(200_000, 40_000) {
		switch m.r.IntN(5) {
		case 0, 1:
			m.push()
		case 2, 3:
			m.serve()
		case 4:
			m.remove()
		}
		m.check()
	}
}

// orderModel has who waits in a queue, by class and app, in the order in which they came.
type orderModel struct {
	*testing.T
	r       *rand.Rand
	l       *line
	waiting [ClassSize][orderApps][]*waiter
}

const orderApps = 7

func (m *orderModel) size() (n int) {
	for c := range m.waiting {
		for _, q := range m.waiting[c] {
			n += len(q)
		}
	}
	return n
}

func (m *orderModel) push() {
	w := &waiter{class: Class(m.r.IntN(ClassSize)), app: uint8(m.r.IntN(orderApps)), needs: uint32(m.r.IntN(5000))}
	q := &m.waiting[w.class][w.app]
	*q = append(*q, w)
	if turned := m.l.Push(w, uint16(1+w.app%3)); turned != nil {
		q := &m.waiting[turned.class][turned.app]
		if turned != (*q)[len(*q)-1] {
			m.Fatal("not the youngest was turned away")
		}
		*q = (*q)[:len(*q)-1]
	}
}

func (m *orderModel) serve() {
	var least [ClassSize]uint64
	for c := range m.l.class {
		least[c] = 1 << 63
		for app, q := range m.waiting[c] {
			if len(q) > 0 {
				least[c] = min(least[c], m.l.class[c].queues[app].start)
			}
		}
	}
	w := served(m.l)
	if w == nil {
		if m.size() > 0 {
			m.Fatal("no caller was served")
		}
		return
	}
	if m.l.class[w.class].now != least[w.class] {
		m.Fatalf("served at %d of virtual time; the least was %d", m.l.class[w.class].now, least[w.class])
	}
	q := &m.waiting[w.class][w.app]
	if (*q)[0] != w {
		m.Fatal("not the eldest was served")
	}
	*q = (*q)[1:]
}

func (m *orderModel) remove() {
	q := &m.waiting[m.r.IntN(ClassSize)][m.r.IntN(orderApps)]
	if len(*q) == 0 {
		return
	}
	i := m.r.IntN(len(*q))
	m.l.remove((*q)[i])
	*q = slices.Delete(*q, i, i+1)
}

func (m *orderModel) check() {
	if size := m.size(); m.l.n != size || m.l.n > m.l.size {
		m.Fatalf("%d in the queue; want %d, at most %d", m.l.n, size, m.l.size)
	}
	for c := range m.l.class {
		weights, waiting := 0, 0
		for app, q := range m.waiting[c] {
			if len(q) > 0 {
				weights += 1 + app%3
				waiting++
			}
		}
		if k := &m.l.class[c]; k.weights != weights || len(k.order) != waiting {
			m.Fatalf("class %v: %d apps of weight %d wait; want %d, %d", Class(c), len(k.order), k.weights, waiting, weights)
		}
	}
}

// Apps that wait get sessions by weight, in time and not in number, and what one does
// not want the others have.
func TestLineAppShares(t *testing.T) {
	type app struct {
		weight  uint16
		waiting int
		needs   uint32 // microseconds
	}
	tests := []struct {
		name string
		apps []app
		want []int // of 1000 sessions
	}{
		{"alone", []app{{1, 5, 0}}, []int{1000}},
		{"equal_whatever_the_flood", []app{{1, 2, 0}, {1, 900, 0}}, []int{500, 500}},
		{"by_weight", []app{{1, 10, 0}, {3, 10, 0}, {6, 10, 0}}, []int{100, 300, 600}},
		{"by_time", []app{{1, 10, 9000}, {1, 10, 1000}}, []int{100, 900}},
		{"by_time_and_weight", []app{{9, 10, 9000}, {1, 10, 1000}}, []int{500, 500}},
		{"no_time_is_nothing", []app{{1, 10, 1}, {1, 10, costLeast}}, []int{500, 500}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := testQueue(1000)
			for i, a := range tt.apps {
				for range a.waiting {
					l.Push(&waiter{class: Normal, app: uint8(i), needs: a.needs}, a.weight)
				}
			}
			got := make([]int, len(tt.apps))
			for range 1000 {
				w := served(l)
				got[w.app]++
				l.Push(w, tt.apps[w.app].weight)
			}
			for i := range got {
				if d := got[i] - tt.want[i]; d < -2 || d > 2 {
					t.Errorf("served %v; want %v", got, tt.want)
				}
			}
		})
	}
}

// An app that was away goes next when it comes, before a flood, and saves nothing up.
func TestLineAppsDoNotSaveUp(t *testing.T) {
	l := testQueue(1000)
	for range 500 {
		l.Push(&waiter{class: Normal, app: 1}, 1)
	}
	for range 300 { // app 2 is away
		l.Push(served(l), 1)
	}
	first := 0
	for range 100 {
		l.Push(&waiter{class: Normal, app: 2}, 1)
	}
	var of2 int
	for i := range 100 {
		w := served(l)
		if w.app == 2 {
			if of2 == 0 {
				first = i
			}
			of2++
		}
		l.Push(w, 1)
	}
	if first > 1 {
		t.Errorf("app 2 was served after %d others; want at most one", first)
	}
	if of2 < 49 || of2 > 51 {
		t.Errorf("app 2 had %d of 100; want half, not what it did without before", of2)
	}
}

// The order does not depend on how much virtual time has passed: with one
// class or all, apps of different weight and cost come and go, and the order is that of a
// new queue.
func TestLineClock(t *testing.T) {
	const apps = 5
	// aged is a queue that has served all its apps for long.
	aged := func(clock uint64) *line {
		l := testQueue(1000)
		for c := range l.class {
			r := &l.class[c]
			r.of(apps - 1)
			r.now = clock
			for i := range r.queues {
				r.queues[i].finish = clock
			}
		}
		return l
	}
	order := func(clock uint64, classes int) (all []*waiter) {
		l, r := aged(clock), rand.New(rand.NewPCG(7, uint64(classes)))
		for range 5000 {
			if r.IntN(9) < 5 {
				app := r.IntN(apps)
				l.Push(&waiter{class: Class(ClassSize - 1 - r.IntN(classes)), app: uint8(app), needs: uint32(r.IntN(100_000))}, uint16(app))
			} else if w := served(l); w != nil {
				all = append(all, w)
			}
		}
		return all
	}
	clocks := []uint64{1, clockMax - 1, clockMax - 1<<40, clockMax, 1<<63 - 1, 1 << 63, math.MaxUint64 - 1<<40,
		math.MaxUint64 - 1e9, math.MaxUint64 - 1<<26, math.MaxUint64}
	r := rand.New(rand.NewPCG(8, 0))
	for range short.Of(20, 3) {
		clocks = append(clocks, r.Uint64(), clockMax-r.Uint64N(1<<42))
	}
	same := func(a, b *waiter) bool { return a.class == b.class && a.app == b.app && a.needs == b.needs }
	for _, classes := range []int{1, ClassSize} {
		want := order(0, classes)
		for _, clock := range clocks {
			if got := order(clock, classes); !slices.EqualFunc(got, want, same) {
				t.Errorf("%d classes: from %#x on another order than from 0", classes, clock)
			}
		}
	}
	// Two equal apps that always wait.
	for _, clock := range clocks {
		l := aged(clock)
		var got [2]int
		for app := range got {
			for range 3 {
				l.Push(&waiter{app: uint8(app)}, 1)
			}
		}
		for range 10_000 {
			w := served(l)
			got[w.app]++
			l.Push(w, 1)
		}
		if got[0] != got[1] {
			t.Errorf("from %#x on equal apps had %v turns of 10000; want half each", clock, got)
		}
	}
}

// In a full queue an app with less for its weight takes the place of one with more.
func TestLineFullOfApps(t *testing.T) {
	l := testQueue(100)
	for range 100 {
		l.Push(&waiter{class: Normal, app: 1}, 1)
	}
	if w := (&waiter{class: Normal, app: 1}); l.Push(w, 1) != w || w.why != Full {
		t.Error("the flood found a place in a full line")
	}
	for i := range 50 {
		turned := l.Push(&waiter{class: Normal, app: 2}, 1)
		if i == 49 { // both have about half now
			break
		}
		if turned == nil || turned.app != 1 || turned.queued {
			t.Fatalf("%d of app 2 are in line; the next displaced %+v; want the youngest of app 1", i, turned)
		}
	}
	for _, app := range []uint8{1, 2} {
		if w := (&waiter{class: Normal, app: app}); l.Push(w, 1) != w {
			t.Errorf("app %d found a place beyond its half", app)
		}
	}
	if turned := l.Push(&waiter{class: Normal, app: 3}, 2); turned == nil || turned.app == 3 {
		t.Errorf("app 3 displaced %+v; want one of another app", turned)
	}
	if l.n != 100 {
		t.Errorf("%d in line; want 100", l.n)
	}
}

// In the queue of an app connections take turns, so many callers each, however many wait of one of them.
func TestConnectionsTakeTurns(t *testing.T) {
	l := testQueue(100)
	l.inTurn = 1
	for _, from := range []uint64{1, 1, 1, 1, 2, 1, 2, 3} {
		l.Push(&waiter{class: Normal, from: from}, 1)
	}
	q := l.class[Normal].of(0)
	for from, want := range map[uint64]int{1: 8, 2: 8, 3: 6, 4: 3} { // at most
		if got := l.before(q, from); got != want {
			t.Errorf("%d are served before the next one of connection %d; want %d", got, from, want)
		}
	}
	var got []uint64
	for l.n > 0 {
		got = append(got, served(l).from)
	}
	if want := []uint64{1, 2, 3, 1, 2, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("served %v; want %v", got, want)
	}
	l.inTurn, got = 2, nil
	for _, from := range []uint64{1, 1, 1, 1, 1, 2, 3, 3, 3} {
		l.Push(&waiter{class: Normal, from: from}, 1)
	}
	if before := l.before(q, 4); before != 5 {
		t.Errorf("%d are served before a new connection's first; want 5", before)
	}
	for l.n > 0 {
		got = append(got, served(l).from)
	}
	if want := []uint64{1, 1, 2, 3, 3, 1, 1, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("served %v, two in a turn; want %v", got, want)
	}
	if q.round != 0 {
		t.Errorf("round %d of an empty queue", q.round)
	}
}

// A connection that holds its part of the sessions passes its turn on to those that do not.
func TestConnectionsWithTheirPartPass(t *testing.T) {
	l := testQueue(100)
	l.inTurn, l.serves = 2, 12
	now := time.Duration(0)
	serve := func() *waiter {
		now += time.Millisecond
		w, _ := l.Pop(now)
		return w
	}
	for _, from := range []uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2} {
		l.Push(&waiter{class: Normal, from: from}, 1)
	}
	var held []*waiter
	for range 12 { // six each
		held = append(held, serve())
	}
	q := l.class[Normal].of(0)
	if got := l.before(q, 3); got != 0 {
		t.Errorf("%d are served before a connection that has none; want 0", got)
	}
	for range 3 {
		l.Push(&waiter{class: Normal, from: 3}, 1)
	}
	var got []uint64
	for range 3 {
		got = append(got, serve().from)
	}
	if want := []uint64{3, 3, 3}; !slices.Equal(got, want) {
		t.Errorf("served %v; want %v: the others hold more than a third of the sessions", got, want)
	}
	for _, w := range held {
		if w.from == 1 {
			w.conn.sessions.Add(-1) // they are given back
		}
	}
	if w := serve(); w.from != 1 {
		t.Errorf("connection %d was served; want 1, which holds none any more", w.from)
	}
	for from, want := range map[uint64]int32{1: 1, 2: 6, 3: 3} {
		if n := l.connections[from].sessions.Load(); n != want {
			t.Errorf("%d sessions of connection %d; want %d", n, from, want)
		}
	}
	for l.n > 0 { // nobody waits for ever, whatever all hold
		serve()
	}
}

// Connections that hold nothing are forgotten, so that as many are kept as there may be sessions.
func TestHoldersAreForgotten(t *testing.T) {
	l := testQueue(10)
	l.connOf(1).sessions.Add(1)
	l.Push(&waiter{class: Normal, from: 2}, 1) // it waits, and is not forgotten
	for from := range uint64(100_000) {
		l.connOf(from + 2)
	}
	if n := len(l.connections); n > mostConns || l.connOf(1).sessions.Load() != 1 || l.connections[2] == nil {
		t.Errorf("%d are kept, and %d sessions of the one that has one; the one that waits: %v",
			n, l.connOf(1).sessions.Load(), l.connections[2])
	}
	if l.connOf(0) != nil {
		t.Error("those that say nothing are counted as one")
	}
}

// One connection cannot keep others of its app out of a full queue: each may have its part.
func TestOneConnectionDoesNotFillTheLine(t *testing.T) {
	l := testQueue(10)
	l.inTurn = 1
	push := func(from uint64) (turned uint64) {
		if w := l.Push(&waiter{class: Normal, from: from}, 1); w != nil {
			return w.from
		}
		return 0
	}
	for range 10 {
		push(1)
	}
	for _, step := range []struct{ comes, goes uint64 }{
		{1, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 2}, {3, 1}, {3, 3}, {1, 1},
	} {
		if goes := push(step.comes); goes != step.goes {
			t.Errorf("connection %d comes, and one of %d must go; want %d", step.comes, goes, step.goes)
		}
	}
	if l.n != 10 {
		t.Errorf("%d wait; want 10", l.n)
	}
}

// Whatever comes and goes, those of a connection are served in the order in which they came, and
// no connection is served twice while another one waits that came before.
func TestTurnsOfConnectionsByChance(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	l := testQueue(50)
	l.inTurn = 1
	var all []*waiter        // waiting callers, in the order in which they came
	last := map[uint64]int{} // when a connection was served last
	began := map[uint64]int{}
	for step := 1; step < 20_000; step++ {
		switch k := random.IntN(10); {
		case k < 5 && l.n < 50:
			w := &waiter{class: Normal, from: random.Uint64N(6)}
			if !slices.ContainsFunc(all, func(o *waiter) bool { return o.from == w.from }) {
				began[w.from] = step
			}
			l.Push(w, 1)
			all = append(all, w)
		case k < 7 && len(all) > 0:
			i := random.IntN(len(all))
			l.remove(all[i])
			all = slices.Delete(all, i, i+1)
		case len(all) > 0:
			w := served(l)
			i := slices.IndexFunc(all, func(o *waiter) bool { return o.from == w.from })
			if all[i] != w {
				t.Fatalf("step %d: not the first of connection %d was served", step, w.from)
			}
			for _, o := range all {
				if o.from != w.from && began[o.from] < last[w.from] && last[o.from] < last[w.from] && began[w.from] < last[w.from] {
					t.Fatalf("step %d: connection %d is served again, and %d has waited since before", step, w.from, o.from)
				}
			}
			last[w.from] = step
			all = slices.Delete(all, i, i+1)
		}
		if q := l.class[Normal].of(0); q.n != len(all) || q.n > 0 && q.oldest() != all[0] && q.oldest().since < all[0].since {
			t.Fatalf("step %d: %d wait; want %d", step, q.n, len(all))
		}
	}
	q := l.class[Normal].of(0)
	for l.n > 0 {
		served(l)
	}
	if q.current != nil || q.conns != 0 || len(q.others) != 0 {
		t.Errorf("%d turns are left, %d by connection", q.conns, len(q.others))
	}
}
