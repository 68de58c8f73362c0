package discovery

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source answers what the test says and notes when it was asked.
type source struct {
	mu     sync.Mutex
	began  time.Time
	asked  []time.Duration
	answer func(n int) (cluster.Topology, error)
}

func (s *source) Database() string { return "/local" }

func (s *source) ListEndpoints(context.Context) (cluster.Topology, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Since(s.began))
	return s.answer(len(s.asked))
}

func (s *source) times() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func nodes(ids ...cluster.NodeID) cluster.Topology {
	var n []cluster.Node
	for _, id := range ids {
		n = append(n, cluster.Node{ID: id, Address: string(rune('a'+id)) + ":1"})
	}
	return cluster.NewTopology(n, "")
}

// A cluster with piles is asked often enough to follow a promotion within a second.
func TestPilesAreAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, _ := start(t, Default(), func(n int) (cluster.Topology, error) {
			topology := nodes(1, 2)
			if n > 1 { // the first answer has none
				topology.Nodes[0].Pile = cluster.Pile{Name: "a", State: cluster.PilePrimary}
			}
			return topology, nil
		})
		time.Sleep(20 * time.Second)
		asked := s.times()
		if asked[1]-asked[0] < 4*time.Second {
			t.Errorf("asked at %v, without piles", asked[:2])
		}
		for i := 2; i < len(asked); i++ {
			if pause := asked[i] - asked[i-1]; pause < 500*time.Millisecond || pause > 900*time.Millisecond {
				t.Fatalf("asked again after %v", pause)
			}
		}
		if len(asked) < 10 {
			t.Errorf("asked %d times", len(asked))
		}
	})
}

// heard collects what a subscriber is told.
type heard struct {
	mu  sync.Mutex
	all []int
}

func (h *heard) hear(t cluster.Topology) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, len(t.Nodes))
}

func (h *heard) sizes() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all)
}

func start(t *testing.T, c Config, answer func(n int) (cluster.Topology, error)) (*Discovery, *source, *heard) {
	t.Helper()
	s := &source{began: time.Now(), answer: answer}
	d := New(c, s, quiet)
	h := &heard{}
	d.Subscribe(h.hear)
	run(t, d)
	return d, s, h
}

var quiet = slog.New(slog.DiscardHandler)

// run runs d until the test ends.
func run(t *testing.T, d *Discovery) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

var errDown = errors.New("connection refused")

func TestAsksEveryFiveSecondsWithJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, h := start(t, Default(), func(int) (cluster.Topology, error) { return nodes(1, 2, 3), nil })
		time.Sleep(50 * time.Second)
		synctest.Wait()
		asked := s.times()
		if len(asked) < 9 || len(asked) > 13 || asked[0] != 0 {
			t.Errorf("asked %d times in 50 s, first after %v; want 9 to 13, at once", len(asked), asked[0])
		}
		for i := 1; i < len(asked); i++ {
			if gap := asked[i] - asked[i-1]; gap < 4*time.Second || gap > 6*time.Second {
				t.Errorf("gap %d is %v; want 4 to 6 s", i, gap)
			}
		}
		if got := h.sizes(); len(got) != len(asked) || got[0] != 3 {
			t.Errorf("the subscriber heard %v for %d answers", got, len(asked))
		}
	})
}

func TestBacksOffWhileTheClusterIsDownAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := Default()
		config.RetryMax, config.Interval = 32*time.Second, time.Hour
		d, s, h := start(t, config, func(n int) (cluster.Topology, error) {
			if n <= 9 {
				return cluster.Topology{}, errDown
			}
			return nodes(1), nil
		})
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if st := d.State(); st.Failures == 0 || !errors.Is(st.Err, errDown) || !st.Answered.IsZero() {
			t.Errorf("state %+v while down", st)
		}
		time.Sleep(160 * time.Second)
		synctest.Wait()
		asked := s.times()
		want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
			16 * time.Second, 32 * time.Second, 32 * time.Second, 32 * time.Second}
		for i, w := range want {
			if got := asked[i+1] - asked[i]; got < w || got > w*3/2 {
				t.Errorf("pause %d is %v; want %v, up to half of it longer", i, got, w)
			}
		}
		if st := d.State(); st.Failures != 0 || st.Err != nil || len(st.Topology.Nodes) != 1 {
			t.Errorf("state %+v after the recovery", st)
		}
		if got := h.sizes(); !slices.Equal(got, []int{1}) {
			t.Errorf("heard %v; want one answer", got)
		}
	})
}

// Many sidecars started at once ask at once, and then no longer in step: each
// later question is spread over at least a fifth of its interval, and so are
// the questions after failures.
func TestManyDoNotAskInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 200
		for name, answer := range map[string]func(int) (cluster.Topology, error){
			"answers":  func(int) (cluster.Topology, error) { return nodes(1), nil },
			"failures": func(int) (cluster.Topology, error) { return cluster.Topology{}, errDown },
		} {
			var sources []*source
			for range many {
				_, s, _ := start(t, Default(), answer)
				sources = append(sources, s)
			}
			time.Sleep(80 * time.Second)
			synctest.Wait()
			first, last := time.Hour, time.Duration(0)
			for _, s := range sources {
				asked := s.times()
				if asked[0] != 0 {
					t.Fatalf("%s: the first question waited for %v", name, asked[0])
				}
				first, last = min(first, asked[1]), max(last, asked[1])
			}
			if spread := last - first; spread < first/5 {
				t.Errorf("%s: the second questions came within %v, from %v on", name, spread, first)
			}
		}
	})
}

func TestKeepsTheLastTopologyOnFailureAndOnAnEmptyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, h := start(t, Default(), func(n int) (cluster.Topology, error) {
			switch n {
			case 1:
				return nodes(1, 2), nil
			case 2:
				return cluster.Topology{}, errDown
			}
			return cluster.Topology{}, nil
		})
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		st := d.State()
		if len(st.Topology.Nodes) != 2 || !errors.Is(st.Err, errNoNodes) {
			t.Errorf("state %+v; want two nodes and the error of the empty answer", st)
		}
		if got := h.sizes(); !slices.Equal(got, []int{2}) {
			t.Errorf("heard %v; want only the good answer", got)
		}
	})
}

func TestRefreshesAreOneQuestionAndKeepTheirDistance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := Default()
		config.Interval = time.Minute
		d, s, _ := start(t, config, func(int) (cluster.Topology, error) { return nodes(1), nil })
		time.Sleep(10 * time.Second)
		for range 1000 {
			d.Refresh()
		}
		synctest.Wait()
		if got := len(s.times()); got != 2 {
			t.Errorf("asked %d times after a burst of refreshes; want 2", got)
		}
		for range 100 { // one second of storm
			d.Refresh()
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if got := len(s.times()); got < 3 || got > 4 {
			t.Errorf("asked %d times after a second of refreshes; want 3 or 4", got)
		}
	})
}

// An incident in which every moment brings a reason to ask does not have an ill cluster asked more and more often:
// soon each two seconds. The first reason after a quiet time counts at once.
func TestRefreshesThatDoNotEndBecomeRare(t *testing.T) {
	for _, interval := range []time.Duration{Default().Interval, time.Minute} {
		t.Run(interval.String(), func(t *testing.T) { rareRefreshes(t, interval) })
	}
}

func rareRefreshes(t *testing.T, interval time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		config := Default()
		config.Interval = interval
		d, s, _ := start(t, config, func(int) (cluster.Topology, error) { return nodes(1), nil })
		time.Sleep(2 * time.Minute)
		storm := func(d0 time.Duration) (asked int) {
			before := len(s.times())
			for end := time.Now().Add(d0); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				d.Refresh()
			}
			return len(s.times()) - before
		}
		if first := storm(2 * time.Second); first < 2 || first > 4 {
			t.Errorf("asked %d times in the first 2 s; want 3, give or take one", first)
		}
		storm(10 * time.Second)
		if later := storm(time.Minute); later < 28 || later > 32 {
			t.Errorf("asked %d times in a later minute; want 30: a node that comes back is found within 2 s", later)
		}
		time.Sleep(2*interval + time.Minute)
		before := len(s.times())
		d.Refresh()
		time.Sleep(config.MinPause)
		synctest.Wait()
		if n := len(s.times()) - before; n != 1 {
			t.Errorf("asked %d times at once after a quiet minute; want 1", n)
		}
	})
}

// What the source has new is heeded at the least pause, however often that happens.
func TestNewsOfTheSourceAreNotRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, _ := start(t, Default(), func(int) (cluster.Topology, error) { return nodes(1), nil })
		time.Sleep(time.Minute)
		before := len(s.times())
		for range 1000 {
			d.changed()
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(s.times()) - before; n < 19 || n > 21 {
			t.Errorf("asked %d times in 10 s; want 20", n)
		}
	})
}

func TestRefreshCutsABackoffShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := Default()
		config.RetryMin, config.RetryMax = time.Hour, time.Hour
		d, s, _ := start(t, config, func(int) (cluster.Topology, error) { return cluster.Topology{}, errDown })
		time.Sleep(40 * time.Second)
		d.Refresh()
		synctest.Wait()
		if got := len(s.times()); got != 2 {
			t.Errorf("asked %d times; want 2", got)
		}
	})
}

func TestValidateReportsEveryFault(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatalf("the default is not valid: %v", err)
	}
	err := Config{RetryMin: time.Second}.Validate()
	for _, name := range []string{"interval", "min_pause", "retry_max"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}

// More nodes than are used are counted, and the warning comes once.
func TestNodesThatAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &source{began: time.Now(), answer: func(int) (cluster.Topology, error) {
			topology := nodes(1, 2)
			topology.LeftOut = 3
			return topology, nil
		}}
		d := New(Default(), s, slog.New(slog.NewTextHandler(&log, nil)))
		run(t, d)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := d.State().Topology.LeftOut; got != 3 {
			t.Errorf("%d left out; want 3", got)
		}
		if n := strings.Count(log.String(), "left_out=3"); n != 1 {
			t.Errorf("%d warnings; want 1: %s", n, log.String())
		}
	})
}
