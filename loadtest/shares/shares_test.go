package shares

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestPlansHandOutAllSlots(t *testing.T) {
	for slots, want := range map[int][]string{1: {byOneLine, byShares}, 2: {byPartition, byOneLine, byShares},
		5: {byPartition, byOneLine, byShares}} {
		var names []string
		for _, p := range plans(slots) {
			names = append(names, p.name)
			sum := 0
			for _, n := range p.slots {
				sum += n
				if n < 1 {
					t.Errorf("%d slots, %s: a sidecar has %d", slots, p.name, n)
				}
			}
			apart := p.interactive.sidecar != p.batch.sidecar
			told := p.interactive.priority != p.batch.priority
			if sum != slots || apart != (p.name == byPartition) || told == (p.name == byOneLine) {
				t.Errorf("%d slots: got %+v", slots, p)
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("%d slots: got %v; want %v", slots, names, want)
		}
	}
}

// station counts the calls that are served at once.
type station struct {
	guard       sync.Mutex // guards the two
	atOnce, now int
}

func (s *station) call(context.Context) error {
	s.guard.Lock()
	s.now++
	s.atOnce = max(s.atOnce, s.now)
	s.guard.Unlock()
	time.Sleep(sharesStatement)
	s.guard.Lock()
	s.now--
	s.guard.Unlock()
	return nil
}

func TestASequenceFansOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &station{}
		m := mix{interactive: s.call}
		begun := time.Now()
		if err := m.sequence(t.Context()); err != nil {
			t.Fatal(err)
		}
		// With slots enough each step is two statements long.
		if took := time.Since(begun); took != 2*sharesSteps*sharesStatement || s.atOnce != sharesFan {
			t.Errorf("took %v, %d at once; want %v, %d", took, s.atOnce, 2*sharesSteps*sharesStatement, sharesFan)
		}
	})
}

func TestBatchRunsBesideAndItsFailuresCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		interactive, batch := &station{}, &station{}
		m := mix{interactive: interactive.call, batch: batch.call, workers: 2}
		got, err := m.sequences().Run(t.Context(), time.Second)
		if err != nil || got.Failed != 0 || got.Calls == 0 || !got.Closed || batch.atOnce != 2 {
			t.Errorf("got %v, %+v with %d batch calls at once; want no failure, 2", err, got, batch.atOnce)
		}
		// 25 calls in 30 ms by each of two chains; a batch call every 3 ms by each of two workers.
		if i, b := got.Figures[interactiveRate], got.Figures[batchRate]; i < 1600 || i > 1700 || b < 640 || b > 680 {
			t.Errorf("got %.0f interactive and %.0f batch calls a second; want about 1667 and 667", i, b)
		}
		open, err := m.bursts(50).Run(t.Context(), time.Second)
		if err != nil || open.Closed || open.Calls < 49 || open.Calls > 50 {
			t.Errorf("got %v, %+v; want 50 bursts of an open loop", err, open)
		}
		m.batch = func(context.Context) error { return errors.New("no") }
		if got, _ := m.bursts(50).Run(t.Context(), time.Second); got.Failed != 2 || !strings.Contains(got.FirstFail, "batch: no") {
			t.Errorf("got %+v; want the failures of both workers", got)
		}
	})
}

func TestHighestFindsTheEdge(t *testing.T) {
	for edge, want := range map[float64][2]float64{30: {29, 30}, 0.1: {0, 0.1}, 1000: {63, 64}} {
		got, err := highest(64, 6, func(x float64) (bool, error) { return x <= edge, nil })
		if err != nil || got < want[0] || got > want[1] {
			t.Errorf("edge %v: got %v, %v; want %v", edge, got, err, want)
		}
	}
	if _, err := highest(1, 3, func(float64) (bool, error) { return false, errors.New("no") }); err == nil {
		t.Error("got no error")
	}
}

// On a model of a pool, whose slots are taken by class and in order of arrival, the plans end in the expected order.
func TestPlansEndInTheExpectedOrder(t *testing.T) {
	for _, slots := range []int{2, 4} {
		mean := map[string]float64{}
		for _, p := range plans(slots) {
			synctest.Test(t, func(t *testing.T) {
				var pools []*modelPool
				for _, n := range p.slots {
					pools = append(pools, &modelPool{free: n})
				}
				call := func(to lane) lab.Call {
					return func(context.Context) error {
						pools[to.sidecar].serve(to.priority == "batch")
						return nil
					}
				}
				m := mix{plan: p, interactive: call(p.interactive), batch: call(p.batch), workers: slots}
				got, err := m.sequences().Run(t.Context(), 5*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				mean[p.name] = 1 / got.Figures[interactiveRate]
			})
		}
		if !(mean[byShares] < mean[byOneLine] && mean[byOneLine] < mean[byPartition]) {
			t.Errorf("%d slots: got %v; want shared, one line, partition", slots, mean)
		}
	}
}

// modelPool hands its slots to who came first, those of batch last.
type modelPool struct {
	mu    sync.Mutex // guards all
	free  int
	lines [2][]chan struct{}
}

func (p *modelPool) serve(batch bool) {
	class := 0
	if batch {
		class = 1
	}
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
	} else {
		turn := make(chan struct{})
		p.lines[class] = append(p.lines[class], turn)
		p.mu.Unlock()
		<-turn
	}
	time.Sleep(sharesStatement)
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.lines {
		if len(p.lines[c]) > 0 {
			close(p.lines[c][0])
			p.lines[c] = p.lines[c][1:]
			return
		}
	}
	p.free++
}
