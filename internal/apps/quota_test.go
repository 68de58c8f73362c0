package apps

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// begin begins a call, and returns what ends it.
func begin(t *testing.T, a *Stripe) (end func(bytes int), err error) {
	t.Helper()
	if !a.Enter() {
		t.Fatal("gone")
	}
	return a.Leave, a.Admit(normal)
}

// refused fails the test unless err is a refusal by that quota which names the setting.
func refused(t *testing.T, err error, why Reason, limit int64) *Refusal {
	t.Helper()
	e, ok := errors.AsType[*Refusal](err)
	if !ok || e.Why != why || e.Limit != limit || e.Retry <= 0 || !strings.Contains(err.Error(), why.String()+"= for it in apps.limits") {
		t.Fatalf("got %v; want a refusal by %v = %d that names the setting", err, why, limit)
	}
	return e
}

// TestQuotasOfOpenCallsAndSessions has an app use all that it may have at a time,
// and its refusals counted by reason.
func TestQuotasOfOpenCallsAndSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, Config{Max: 10, Quotas: []string{"web open=2 sessions=3"}})
		web := mustBe(t, r, Caller{Name: "web"}, "web")
		end1, _ := begin(t, web)
		end2, _ := begin(t, web)
		end3, err := begin(t, web)
		refused(t, err, ByOpen, 2)
		end3(0)
		end2(0)
		if end, err := begin(t, web); err != nil {
			t.Error(err)
		} else {
			end(0)
		}
		end1(0)

		for range 3 {
			if err := web.Ask(normal); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, web.Ask(normal), BySessions, 3)
		web.Got(normal, 0)
		refused(t, web.Ask(normal), BySessions, 3) // sessions in use count as well
		web.Done(normal)
		web.Cancel(normal)
		web.Lost(normal, ByQueue)
		if err := web.Ask(normal); err != nil {
			t.Error(err)
		}
		web.Cancel(normal)

		state := r.State(classes)
		i := slices.IndexFunc(state, func(s State) bool { return s.App == "web" })
		c := state[i].Classes[0]
		if c.Class != "normal" || c.Refused["open"] != 1 || c.Refused["sessions"] != 2 || c.Refused["queue_full"] != 1 ||
			c.Refusals() != 4 || c.Served != 1 || c.InUse != 0 || c.Waiting != 0 || state[i].Open != 0 {
			t.Errorf("web: %+v", state[i])
		}
	})
}

// TestQuotaOfCalls: a burst, then the rate; what was not used for a while is a burst again, no more.
func TestQuotaOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, Config{Max: 10, Quotas: []string{"bulk calls_per_second=10 calls_burst=20"}})
		bulk := mustBe(t, r, Caller{Name: "bulk"}, "bulk")
		granted := func(tries int) (n int) {
			for range tries {
				end, err := begin(t, bulk)
				if err == nil {
					n++
				}
				end(0)
			}
			return n
		}
		if n := granted(100); n != 20 {
			t.Errorf("%d calls at once; want the burst of 20", n)
		}
		end, err := begin(t, bulk)
		if e := refused(t, err, ByCalls, 10); e.Retry != 100*time.Millisecond {
			t.Errorf("try again in %v; want 100ms", e.Retry)
		}
		end(0)
		time.Sleep(time.Second)
		if n := granted(100); n != 10 {
			t.Errorf("%d calls after a second; want 10", n)
		}
		time.Sleep(time.Hour)
		if n := granted(100); n != 20 {
			t.Errorf("%d calls after an hour; want 20", n)
		}
		if wait := bulk.Spend(1 << 40); wait != 0 {
			t.Errorf("an app without a quota of bytes: pause for %v", wait)
		}
	})
}

// TestQuotaOfBytes: bytes are known when the call is over. What was too much has to come first.
func TestQuotaOfBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, Config{Max: 10, Quotas: []string{"big bytes_per_second=1KiB bytes_burst=4KiB"}})
		big := mustBe(t, r, Caller{Name: "big"}, "big")
		end, _ := begin(t, big)
		end(6 << 10)
		end, err := begin(t, big)
		if e := refused(t, err, ByBytes, 1<<10); e.Retry != 2*time.Second {
			t.Errorf("try again in %v; want 2s", e.Retry)
		}
		end(0)
		time.Sleep(2 * time.Second)
		if end, err := begin(t, big); err != nil {
			t.Error(err)
		} else {
			end(0)
		}

		time.Sleep(time.Hour)
		if wait := big.Spend(5 << 10); wait != time.Second { // a stream that goes on
			t.Errorf("pause for %v; want 1s", wait)
		}
	})
}

// TestQuotasOfOthers: the line of * holds for each app that has none of its own.
func TestQuotasOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, Config{Max: 10, Quotas: []string{"web open=2", "* open=1"}})
		for _, name := range []string{"u", "v"} {
			a := mustBe(t, r, Caller{Name: name}, name)
			end, _ := begin(t, a)
			end2, err := begin(t, a)
			refused(t, err, ByOpen, 1)
			end2(0)
			end(0)
		}
	})
}

func TestHugeRates(t *testing.T) {
	for _, r := range []rate{{1, 1e12}, {1e12, 1e12}, {1, 1}, {1e6, 1}} {
		var b bucket
		for range 100 {
			b.spend(r, time.Hour, 1<<62)
			if full := b.full.Load(); full < 0 || b.debt(r, time.Hour) < 0 || b.debt(r, time.Hour) > 2*time.Hour {
				t.Fatalf("%+v: full at %d, debt %v", r, full, b.debt(r, time.Hour))
			}
		}
	}
}

func TestNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, Config{Max: 10})
		a, b := mustBe(t, r, Caller{Name: "a"}, "a"), mustBe(t, r, Caller{Name: "b"}, "b")
		const kind = 7
		if n := a.Needs(normal, kind); n != 0 {
			t.Errorf("unknown work needs %v", n)
		}
		a.Took(normal, kind, 10*time.Millisecond)
		if n := a.Needs(normal, kind); n <= 0 || n > 10*time.Millisecond {
			t.Errorf("after one call of 10ms: %v", n)
		}
		for range 100 {
			a.Took(normal, kind, 10*time.Millisecond)
		}
		if n := a.Needs(normal, kind); n < 9900*time.Microsecond || n > 10*time.Millisecond {
			t.Errorf("after many calls of 10ms: %v", n)
		}
		if x, y, z := a.Needs(normal, kind+1), a.Needs(normal+1, kind), b.Needs(normal, kind); x != 0 || y != 0 || z != 0 {
			t.Errorf("other work, class, app: %v, %v, %v; want nothing known", x, y, z)
		}
		// Uneven work: hardly anything took less than what is told.
		random := rand.New(rand.NewPCG(1, 1))
		below, asked := 0, 0
		for i := range 5000 {
			d := time.Duration(1 + random.ExpFloat64()*float64(20*time.Millisecond))
			b.Took(normal, kind, d)
			if n := b.Needs(normal, kind); i > 100 {
				asked++
				if d < n {
					below++
				}
			}
		}
		if below > asked*40/100 {
			t.Errorf("%d of %d calls took less than they are said to need at the least", below, asked)
		}
		// What is not confirmed for a while is tried by one call, not by all.
		time.Sleep((trustFor + 2) * time.Second)
		if n := a.Needs(normal, kind); n != 0 {
			t.Errorf("the first call after a while is said to need %v; want nothing", n)
		}
		for range 10 {
			if n := a.Needs(normal, kind); n < 9*time.Millisecond {
				t.Errorf("the next ones: %v", n)
			}
		}
	})
}

func TestWindow(t *testing.T) {
	for us := time.Duration(0); us < 100*time.Second; us += us/7 + time.Microsecond {
		i := bucketOf(us)
		if i > 0 && us <= bound(i-1)-time.Microsecond || us >= bound(i) && i < buckets-1 {
			t.Fatalf("%v is in bucket %d, from %v to %v", us, i, bound(max(0, i-1)), bound(i))
		}
		if i > 8 && float64(bound(i)) > 1.26*float64(bound(i-1)) {
			t.Fatalf("bucket %d goes from %v to %v", i, bound(i-1), bound(i))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := running(t, Config{Max: 1})
		a := mustBe(t, r, Caller{Name: "a"}, "a")
		get := func() (p50, p99 float64) {
			for _, s := range r.State(classes) {
				if s.App == "a" && len(s.Classes) > 0 {
					return s.Classes[0].WaitP50, s.Classes[0].WaitP99
				}
			}
			return -1, -1
		}
		for i := range 1000 {
			if err := a.Ask(normal); err != nil {
				t.Fatal(err)
			}
			a.Got(normal, time.Duration(i)*time.Millisecond/10)
			a.Done(normal)
		}
		if p50, p99 := get(); p50 < 48 || p50 > 62 || p99 < 97 || p99 > 123 {
			t.Errorf("p50 %v, p99 %v; want about 50, 99", p50, p99)
		}
		time.Sleep(61 * time.Second)
		if p50, p99 := get(); p50 != 0 || p99 != 0 {
			t.Errorf("a minute later p50 %v, p99 %v; want nothing", p50, p99)
		}
		if state := r.State(classes); state[0].App != "a" || state[0].Classes[0].Served != 1000 {
			t.Errorf("a minute later %+v; want 1000 sessions served", state)
		}
	})
}

func TestShares(t *testing.T) {
	r := registry(t, Config{Max: 10, Quotas: []string{"a weight=3"}})
	a, b := mustBe(t, r, Caller{Name: "a"}, "a"), mustBe(t, r, Caller{Name: "b"}, "b")
	share := func(name string) float64 {
		for _, s := range r.State(classes) {
			if s.App == name {
				return s.Classes[0].Due
			}
		}
		return -1
	}
	_ = a.Ask(normal)
	if s := share("a"); s != 1 {
		t.Errorf("alone: %v", s)
	}
	_ = b.Ask(normal)
	if x, y := share("a"), share("b"); x != 0.75 || y != 0.25 {
		t.Errorf("shares %v, %v; want 0.75, 0.25", x, y)
	}
	if a.Weight() != 3 || b.Weight() != 1 {
		t.Errorf("weights %d, %d", a.Weight(), b.Weight())
	}
}

// Callers that wait for a session of their app get one in the order in which they came, as
// soon as one comes free, and leave when their time is up.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, Config{Max: 5, Quotas: []string{"a sessions=2"}})
		a := mustBe(t, r, Caller{Name: "a"}, "a")
		for range 2 {
			if err := a.Await(t.Context(), normal); err != nil {
				t.Fatal(err)
			}
			a.Got(normal, 0)
		}
		var served []int
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i == 2 { // it gives up
					time.AfterFunc(time.Second, cancel)
				}
				err := a.Stripe(i).Await(ctx, normal)
				if refusal, ok := errors.AsType[*Refusal](err); ok != (i == 2) || ok && (refusal.Why != BySessions || refusal.Limit != 2) {
					t.Errorf("caller %d: %v", i, err)
				}
				if err == nil {
					served = append(served, i)
				}
			})
			synctest.Wait()
		}
		if e, ok := errors.AsType[*Refusal](a.Ask(normal)); !ok || e.Why != BySessions {
			t.Errorf("a caller that does not wait: %v", e)
		}
		time.Sleep(time.Minute)
		if len(served) != 0 {
			t.Fatalf("served %v beyond the limit", served)
		}
		began := time.Now()
		for i, want := range [][]int{{0}, {0, 1}, {0, 1, 3}} {
			if i == 0 {
				a.Done(normal)
			} else {
				a.Cancel(normal) // what the one before asked for
			}
			synctest.Wait()
			if !slices.Equal(served, want) {
				t.Errorf("after %d came free, served are %v; want %v", i+1, served, want)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("they waited %v longer than they had to", took)
		}
		wg.Wait()
		a.Cancel(normal)
		a.Done(normal)
		if a.busy() {
			t.Error("something is still counted")
		}
	})
}

// A quota that is raised counts soon for those that wait.
func TestAwaitARaisedQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, Config{Max: 5, Quotas: []string{"a sessions=2"}})
		a := mustBe(t, r, Caller{Name: "a"}, "a")
		var wg sync.WaitGroup
		for range 2 {
			if err := a.Await(t.Context(), normal); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			if err := a.Await(t.Context(), normal); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if err := r.Reconfigure(Config{Max: 5, Quotas: []string{"a sessions=3"}}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	})
}
