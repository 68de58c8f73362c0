package pool

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// crowd is what one test asks of a pool, whose sessions are used for service by each.
type crowd struct {
	t       *testing.T
	p       *Pool
	service time.Duration
	calls   sync.WaitGroup

	mu      sync.Mutex
	waits   []time.Duration // waits of callers that were served
	shed    [shedSize]int
	patient int // callers that had no deadline and were refused all the same
}

// one asks for a session and uses it.
func (l *crowd) one(by Ask) (served bool) {
	g, err := l.p.Acquire(l.t.Context(), by)
	l.mu.Lock()
	if err != nil {
		if e, ok := err.(*ShedError); ok {
			l.shed[e.Why]++
		}
		if by.Left == 0 {
			l.patient++
		}
		l.mu.Unlock()
		return false
	}
	l.waits = append(l.waits, g.Waited)
	l.mu.Unlock()
	time.Sleep(l.service/2 + rand.N(l.service))
	l.p.Release(g.Session)
	return true
}

// come sends callers at random instants, whatever becomes of them.
func (l *crowd) come(perSecond float64, length time.Duration, by Ask) {
	r := rand.New(rand.NewPCG(1, 1))
	for end := time.Now().Add(length); time.Now().Before(end); {
		l.calls.Go(func() { l.one(by) })
		time.Sleep(time.Duration(r.ExpFloat64() / perSecond * float64(time.Second)))
	}
}

// seen returns what came of those who have called so far, and forgets it.
func (l *crowd) seen() (waits []time.Duration, shed [shedSize]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waits, shed = l.waits, l.shed
	l.waits, l.shed = nil, [shedSize]int{}
	slices.Sort(waits)
	return waits, shed
}

// While far more come than can be served, who is served has waited for no longer than
// the work takes, however long the deadline and the queue allow, and no session is idle.
func TestOverloadShortensTheLine(t *testing.T) {
	const sessions, service, settle = 10, 20 * time.Millisecond, 5 * time.Second // longer than any queue lasts
	const capacity = float64(sessions) / 0.02
	length := time.Duration(short.Of(10, 4)) * time.Second
	for _, tt := range []struct {
		name  string
		by    Ask
		queue int
		times float64 // of the capacity
		apps  int
	}{
		{"near_deadlines", Ask{Class: Normal, Needs: service, Left: 200 * time.Millisecond}, 1000, 3, 1},
		{"far_deadlines", Ask{Class: Normal, Needs: service, Left: 5 * time.Second}, 1000, 3, 1},
		{"no_deadlines", Ask{Class: Normal}, 500, 3, 1},
		{"half_as_much_again", Ask{Class: Normal, Needs: service, Left: 200 * time.Millisecond}, 1000, 1.5, 1},
		{"ten_times", Ask{Class: Interactive, Needs: service, Left: 200 * time.Millisecond}, 1000, 10, 1},
		{"three_apps", Ask{Class: Normal, Needs: service, Left: 200 * time.Millisecond}, 1000, 6, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := config(sessions)
				cfg.Shed, cfg.Queue = true, tt.queue
				l := &crowd{t: t, p: start(t, cfg, newServers(1, 2), view(1, 2)), service: service}
				checkOut(t, l.p, sessions)()
				for app := range tt.apps {
					by := tt.by
					by.App = uint8(app)
					l.calls.Go(func() { l.come(tt.times*capacity/float64(tt.apps), settle+length, by) })
				}
				time.Sleep(settle)
				l.seen()
				time.Sleep(length)
				waits, shed := l.seen()
				p99 := waits[len(waits)*99/100]
				t.Logf("%d served, p50 %v, p99 %v of the wait, shed %v", len(waits), waits[len(waits)/2], p99, shed)
				if p99 > service*3/2 {
					t.Errorf("p99 of the wait %v; want at most half as much again as the work takes, %v", p99, service)
				}
				if most := int(capacity * length.Seconds()); len(waits) < most*97/100 {
					t.Errorf("%d served in %v; %d could have been", len(waits), length, most)
				}
				l.calls.Wait()
			})
		})
	}
}

// Callers may wait as long as all are served: in a burst, however large, also when
// it comes with others who cannot wait, and as one of many workers that never pause.
func TestPatientCallersAreNotRefused(t *testing.T) {
	const sessions, service = 10, 20 * time.Millisecond
	patient, hasty := Ask{Class: Normal}, Ask{Class: Normal, Needs: service, Left: 150 * time.Millisecond}
	for name, run := range map[string]func(*crowd){
		"burst": func(l *crowd) {
			for range 900 {
				l.calls.Go(func() { l.one(patient) })
			}
		},
		"burst_of_both": func(l *crowd) {
			for range 450 {
				l.calls.Go(func() { l.one(patient) })
				l.calls.Go(func() { l.one(hasty) })
			}
			l.come(100, time.Second, patient)
		},
		"workers": func(l *crowd) {
			for range 200 {
				l.calls.Go(func() {
					for range 50 {
						l.one(patient)
					}
				})
			}
		},
		"workers_and_a_few_who_cannot_wait": func(l *crowd) {
			for range 200 {
				l.calls.Go(func() {
					for range 50 {
						l.one(patient)
					}
				})
			}
			l.come(30, 5*time.Second, hasty)
		},
		"after_an_overload": func(l *crowd) {
			l.come(2000, 2*time.Second, hasty)
			l.calls.Wait()
			time.Sleep(3 * queue.Standing)
			for range 900 {
				l.calls.Go(func() { l.one(patient) })
			}
		},
		"batch_in_an_overload": func(l *crowd) {
			l.calls.Go(func() { l.come(2000, 2*time.Second, hasty) })
			l.come(100, 2*time.Second, Ask{Class: Batch})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := config(sessions)
				cfg.Shed = true
				l := &crowd{t: t, p: start(t, cfg, newServers(1, 2), view(1, 2)), service: service}
				checkOut(t, l.p, sessions)()
				run(l)
				l.calls.Wait()
				waits, shed := l.seen()
				t.Logf("%d served, shed %v", len(waits), shed)
				if l.patient > 0 {
					t.Errorf("%d who were ready to wait were refused (%v)", l.patient, shed)
				}
			})
		})
	}
}

// Also in an overload callers may wait for the cluster to come back.
func TestOverloadedAppWaitsForTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions = 10
		cfg, f := config(sessions), newServers(1)
		cfg.Shed = true
		l := &crowd{t: t, p: start(t, cfg, f, view(1)), service: 20 * time.Millisecond}
		checkOut(t, l.p, sessions)()
		hasty := Ask{Class: Normal, Needs: 20 * time.Millisecond, Left: 150 * time.Millisecond}
		l.come(2000, time.Second, hasty)
		if _, shed := l.seen(); shed[ShedDelay] == 0 {
			t.Fatal("this is no overload")
		}
		f.set(1, after(time.Millisecond, errors.New("down")), nil)
		for f.sum() > 0 {
			r := f.any(1)
			r.retire("its node went")
			synctest.Wait()
			if f.any(1) == r {
				time.Sleep(l.service) // somebody uses it
			}
		}
		l.calls.Go(func() { l.come(2000, time.Second, hasty) })
		l.come(100, time.Second, Ask{Class: Normal})
		f.set(1, nil, nil)
		l.calls.Wait()
		if _, shed := l.seen(); l.patient > 0 {
			t.Errorf("%d who were ready to wait were refused (%v)", l.patient, shed)
		}
	})
}
