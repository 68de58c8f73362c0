package lab

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/pprof/profile"
	vegeta "github.com/tsenart/vegeta/v12/lib"
	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A server that stalls for a second must show in the latency of every call that
// was due in that second, though none of them was sent late by choice.
func TestOpenCountsFromTheInstantACallWasDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		got := Open(t.Context(), Rate(100), 2*time.Second, func(context.Context) error {
			time.Sleep(time.Until(begun.Add(time.Second))) // everything waits for the end of the stall
			time.Sleep(time.Millisecond)
			return nil
		})
		f := finish(Variant{}, got, used{at: begun}, used{at: time.Now()}).Figures
		if got.Calls < 199 || got.Calls > 200 || got.Failed != 0 || got.Closed || f[Offered] < 99 {
			t.Errorf("got %+v; want 200 calls, 100 a second offered", got)
		}
		if f[P50] > 15e6 || f[P99] < 900e6 || f[Max] < 980e6 {
			t.Errorf("got p50 %v, p99 %v, max %v ns; want about 1 ms, nearly a second, a second", f[P50], f[P99], f[Max])
		}
	})
}

func TestOpenExactlySendsWhatIsDue(t *testing.T) {
	var calls atomic.Int64
	got := OpenExactly(t.Context(), Rate(1000), 50*time.Millisecond, func(context.Context) error {
		calls.Add(1)
		return nil
	})
	if got.Calls != 50 || calls.Load() != 50 || got.Failed != 0 || got.Closed || got.Offered != 1000 {
		t.Errorf("got %+v; want 50 calls, 1000 a second", got)
	}
	// The last is due after 50 ms; a signal may end one of the waits early.
	if got.Took < 45*time.Millisecond {
		t.Errorf("50 calls a millisecond apart took %v", got.Took)
	}
}

func TestTheCalmerRunCounts(t *testing.T) {
	calm, busy, failed := Run{Figures: Figures{Others: 0.1}}, Run{Figures: Figures{Others: 0.9}}, Run{
		Figures: Figures{Others: 0.9}, Failed: 1,
	}
	for _, tc := range []struct {
		name             string
		one, again, want Run
	}{
		{"the second", busy, calm, calm},
		{"the first", calm, busy, calm},
		{"not when calls of the first failed", failed, calm, failed},
		{"nor of the second", calm, failed, failed},
	} {
		got := calmer(tc.one, tc.again)
		if !got.Again || got.Failed != tc.want.Failed || got.Figures[Others] != tc.want.Figures[Others] {
			t.Errorf("%s: got %+v; want %+v", tc.name, got, tc.want)
		}
	}
}

func TestClosedKeepsItsCallsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		got := Closed(t.Context(), 4, time.Second, func(context.Context) error {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(100 * time.Millisecond)
			now.Add(-1)
			return errors.New("no")
		})
		if got.Calls != 40 || got.Failed != 40 || most.Load() != 4 || got.FirstFail != "no" || !got.Closed {
			t.Errorf("got %+v with %d under way; want 40 calls, all failed, 4 under way", got, most.Load())
		}
	})
}

// vegeta's one worker is kept for 100 ms by each request, so that it sends them late; the latency must tell.
func TestAttackCountsFromTheInstantARequestWasDue(t *testing.T) {
	const takes = 100 * time.Millisecond
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(takes) // the server's own time, not a wait for something
		w.WriteHeader(http.StatusTeapot)
	}))
	defer slow.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	got := Attack(t.Context(), Post(slow.URL, func() []byte { return []byte("{}") }), Rate(50), 200*time.Millisecond,
		vegeta.Client(&http.Client{Transport: transport}), vegeta.Workers(1), vegeta.MaxWorkers(1))
	f := finish(Variant{}, got, used{}, used{at: time.Now()}).Figures
	// The worker sends them one after the other, also when the attack is over: ten were due.
	if got.Calls != 10 || got.Failed != 10 || !strings.Contains(got.FirstFail, "HTTP 418") {
		t.Errorf("got %+v; want 10 requests, all failed", got)
	}
	// The first was due after 20 ms and the second after 40: sent after 100, it is answered after 200.
	if f[P50] < float64(100*time.Millisecond) {
		t.Errorf("got a middle latency of %v ns; want more than a request takes", f[P50])
	}
}

func TestMergeAddsLoadsUp(t *testing.T) {
	load := func(n int, took time.Duration, err error) Result {
		r := NewRecorder()
		for range n {
			r.Add(took, err)
		}
		return r.Open(2*time.Second, time.Second)
	}
	got := Merge(load(90, time.Millisecond, nil), load(10, time.Second, errors.New("no")), Result{})
	if got.Calls != 100 || got.Failed != 10 || got.FirstFail != "no" || got.Offered != 100 || got.Took != 2*time.Second || got.Closed {
		t.Errorf("got %+v; want 100 calls, 10 failed, 100 a second offered", got)
	}
	if p50, p99 := got.Quantile(50), got.Quantile(99); p50 > 1001*time.Microsecond || p99 < 999*time.Millisecond {
		t.Errorf("got p50 %v, p99 %v; want 1 ms, 1 s", p50, p99)
	}
}

func TestScheduleFollowsThePacer(t *testing.T) {
	for name, tc := range map[string]struct {
		pacer    vegeta.Pacer
		duration time.Duration
		want     []time.Duration
	}{
		"constant": {Rate(10), 350 * time.Millisecond,
			[]time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond}},
		"none": {vegeta.Rate{Freq: -1, Per: time.Second}, time.Second, nil},
	} {
		var got []time.Duration
		next := schedule(tc.pacer, tc.duration)
		for at, more := next(); more; at, more = next() {
			got = append(got, at)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v; want %v", name, got, tc.want)
		}
	}
}

func TestOrderTurns(t *testing.T) {
	first, before := map[int]bool{}, map[int]bool{}
	for round := range 4 {
		all := Order(4, round)
		first[all[0]] = true
		if i := slices.Index(all, 2); i > 0 {
			before[all[i-1]] = true
		}
		if slices.Sort(all); !slices.Equal(all, []int{0, 1, 2, 3}) {
			t.Errorf("round %d has %v; want each variant once", round, all)
		}
	}
	if len(first) < 2 || len(before) < 2 {
		t.Errorf("got %v first, and %v before 2; want both to change", first, before)
	}
}

func TestEstimate(t *testing.T) {
	ten := []float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	for _, tc := range []struct {
		values []float64
		want   Estimate
	}{
		{nil, Estimate{}},
		{[]float64{3}, Estimate{3, 3, 3, 1}},
		{[]float64{3, 1, 2}, Estimate{2, 1, 3, 3}},
		{[]float64{4, 1}, Estimate{2.5, 1, 4, 2}},
		// The tables of the sign test: ranks 2 and 9 of 10 enclose the median with 97.9 %.
		{ten, Estimate{5.5, 2, 9, 10}},
	} {
		if got := estimate(tc.values); got != tc.want {
			t.Errorf("%v: got %+v; want %+v", tc.values, got, tc.want)
		}
	}
	if slices.IsSorted(ten) {
		t.Error("the values were sorted in place")
	}
}

// made is a run with one figure.
func made(figure string, value float64) Run {
	return Run{Calls: 10, Figures: Figures{figure: value}}
}

func TestClaimsAreJudgedRoundByRound(t *testing.T) {
	// The machine halves its speed after four rounds: medians of all would say nothing of the ratio.
	var slow, fast []Run
	for i := range 8 {
		speed := 1.0
		if i >= 4 {
			speed = 2
		}
		slow, fast = append(slow, made(CPU, 2000*speed)), append(fast, made(CPU, 1000*speed))
	}
	claim := func(kind Kind, most, least float64) Claim {
		return Claim{Variant: "slow", Figure: CPU, Kind: kind, Of: "fast", Most: most, Least: least}
	}
	for _, tc := range []struct {
		claim         Claim
		goal, verdict string
		median        float64
	}{
		{claim(Ratio, 2.5, 0), "<= 2.50", "met", 2},
		{claim(Ratio, 1.5, 0), "<= 1.50", "missed", 2},
		{claim(Ratio, 0, 1.9), ">= 1.90", "met", 2},
		{claim(Difference, 1200, 0), "<= 1.2 us", "missed, not decided", 1500},
		{claim(Value, 2500, 0), "<= 2.5 us", "missed, not decided", 3000},
		{Claim{Variant: "none", Figure: CPU, Most: 1}, "<= 1 ns", "not measured", 0},
		{Claim{Variant: "slow", Figure: P99, Most: 1}, "<= 1 ns", "not measured", 0},
	} {
		table := NewTable(Case{Baseline: "fast", Claims: []Claim{tc.claim}, Variants: []Variant{{Name: "slow"}, {Name: "fast"}}},
			[][]Run{slow, fast})
		if v := table.Claims[0]; v.Goal != tc.goal || v.Verdict != tc.verdict || v.Value.Median != tc.median {
			t.Errorf("%+v: got %+v; want %s, %s, %v", tc.claim, v, tc.goal, tc.verdict, tc.median)
		}
		if r := table.Row("slow").Ratios[CPU]; r != (Estimate{2, 2, 2, 8}) {
			t.Errorf("got the ratio %+v; want 2 in each round", r)
		}
	}
}

func TestSaturatedNamesTheProcess(t *testing.T) {
	for _, tc := range []struct {
		load, sidecar time.Duration
		others        float64
		want          string
	}{
		{time.Second, 10 * time.Second, 0, "sidecar"}, {10 * time.Second, time.Second, 0, "load"},
		{0, 0, 0, ""}, {time.Millisecond, time.Millisecond, 1000, "other programs"},
	} {
		// Ten seconds in a tenth of one is more than any machine's processors give here: what is asked for is the rule.
		roles := map[string]time.Duration{"load": tc.load * 100, "sidecar": tc.sidecar * 100}
		if got := saturated(roles, tc.others, time.Second); got != tc.want {
			t.Errorf("%+v: got %q; want %q", tc, got, tc.want)
		}
	}
}

func TestFinishCountsTheProcessesUnderTest(t *testing.T) {
	me := startSleep(t)
	r := NewRecorder()
	r.Add(time.Millisecond, nil)
	r.Add(2*time.Millisecond, errors.New("no"))
	now := time.Now()
	at := func(cpu time.Duration) processUsed {
		return processUsed{stand.Usage{CPU: cpu, RSS: 5000}, "sidecar"}
	}
	result := r.Result(time.Second)
	result.Rows = 4
	run := finish(Variant{Under: []*Process{me}}, result, used{at: now, processes: map[int]processUsed{me.Pid(): at(time.Second)}},
		used{at: now.Add(time.Second), machine: 3 * time.Second / 2, processes: map[int]processUsed{me.Pid(): at(2 * time.Second)}})
	for name, want := range map[string]float64{CPU: 5e8, RSS: 5000, "sidecar-cores": 1, Others: 0.5, PerSecond: 1,
		Offered: 2, RowsPerS: 4, RowCPU: 2.5e8} {
		if got := run.Figures[name]; got != want {
			t.Errorf("%s: got %v; want %v", name, got, want)
		}
	}
	if run.Failed != 1 || run.FirstFail != "no" {
		t.Errorf("got %+v; want one failure", run)
	}
}

func startSleep(t *testing.T) *stand.Process {
	p, err := stand.Start(stand.Spec{Path: "/bin/sleep", Args: []string{"60"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.Stop(context.Background()) })
	return p
}

// demo measures two ways to sleep.
func demo(fail bool) Experiment {
	nap := func(d time.Duration) Variant {
		return Variant{Name: fmt.Sprintf("nap of %v", d), Run: func(ctx context.Context, took time.Duration) (Result, error) {
			return Closed(ctx, 2, took, func(context.Context) error {
				time.Sleep(d) // it is the work
				if fail {
					return errors.New("bad | luck")
				}
				return nil
			}), nil
		}}
	}
	return Experiment{Name: "demo", Title: "Naps", Question: "How long do naps last?", Published: "Nobody did.",
		Run: func(ctx context.Context, l *Lab) error {
			table, err := l.Compare(ctx, Case{Name: "naps", Title: "Two naps", Baseline: "nap of 1ms", Chart: P50, Added: []string{P50},
				Claims:   []Claim{{Text: "longer", Variant: "nap of 5ms", Figure: P50, Kind: Ratio, Of: "nap of 1ms", Least: 1.01}},
				Variants: []Variant{nap(time.Millisecond), nap(5 * time.Millisecond)}})
			if err != nil || table == nil {
				return err
			}
			l.Report.Note("That was %s.", "all")
			l.Report.File("extra/list.txt", []byte("x"))
			_, err = l.Compare(ctx, Case{Name: "other", Variants: []Variant{nap(time.Millisecond)}})
			return err
		}}
}

func TestMainWritesTheReport(t *testing.T) {
	dir := t.TempDir()
	if err := Main(t.Context(), demo(false),
		[]string{"-size", "smoke", "-out", dir, "-only", "naps", "-duration", "50ms", "-rounds", "2"}); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, "demo", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	text := read("report.md")
	for _, want := range []string{"# Naps", "go run ./loadtest demo -size smoke", "### Two naps", "| nap of 5ms |",
		"p50, of nap of 1ms", "p50, more than nap of 1ms", "| longer | >= 1.01 |", "met", "closed", "That was all.",
		"Picture: Two naps (`picture-1.svg`).", "Nobody did.", "cores"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "other") && strings.Contains(text, "### other") {
		t.Error("-only did not leave a case out")
	}
	if page := read("report.html"); !strings.Contains(page, "<svg") || !strings.Contains(page, "<table>") ||
		strings.Contains(page, "<img") {
		t.Errorf("the page is not whole by itself:\n%.500s", page)
	}
	if runs := read("runs.txt"); strings.Count(runs, "Benchmarkdemo/naps/nap_of_5ms ") != 2 || !strings.Contains(runs, " p50-ns") {
		t.Errorf("got the runs\n%s", runs)
	}
	if log := read("latencies.hlog"); strings.Count(log, "Tag=naps/nap_of_1ms/") != 2 {
		t.Errorf("got the latencies\n%s", log)
	}
	if summary := read("summary.json"); !strings.Contains(summary, `"verdict": "met`) {
		t.Errorf("got the summary\n%s", summary)
	}
	read("extra/list.txt")
}

func TestMainTellsOfFailedCalls(t *testing.T) {
	dir := t.TempDir()
	err := Main(t.Context(), demo(true), []string{"-size", "smoke", "-out", dir, "-duration", "50ms"})
	if err == nil || !strings.Contains(err.Error(), "calls failed") {
		t.Errorf("got %v; want that calls failed", err)
	}
	text, _ := os.ReadFile(filepath.Join(dir, "demo", "report.md"))
	if !bytes.Contains(text, []byte(`bad \| luck`)) {
		t.Errorf("the report does not say what failed:\n%s", text)
	}
}

func TestMainRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"-size", "huge"}, {"rest"}, {"-rounds", "-1"}, {"-rounds", "5", "-max-rounds", "2"},
		{"-duration", "1ns"}, {"-max-rate", "0"}, {"-sidecar", "a,b,c,d,e"}, {"-nonsense"},
		{"-size", "smoke", "-only", "("}} {
		e := demo(false)
		e.Flags = func(f *flag.FlagSet) { f.SetOutput(io.Discard) }
		if err := Main(t.Context(), e, append(args, "-out", t.TempDir())); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
	e := demo(false)
	if err := Main(t.Context(), e, []string{"-size", "smoke", "-limit", "1ns", "-out", t.TempDir()}); err == nil ||
		!strings.Contains(err.Error(), "-limit") {
		t.Errorf("got %v; want that it took too long", err)
	}
}

func TestDefaultsOfAnExperiment(t *testing.T) {
	for _, tc := range []struct {
		given Options
		size  string
		want  time.Duration
	}{{Options{}, "full", time.Minute}, {Options{Duration: time.Second}, "full", time.Second}, {Options{}, "short", time.Second}} {
		o := tc.given
		o.MaxRate = 1
		err := o.fill(nil, tc.size, "", func(o *Options) {
			if o.Size == Full && o.Duration == 0 {
				o.Duration = time.Minute
			}
		})
		if err != nil || o.Duration != tc.want || o.Rounds == 0 {
			t.Errorf("%+v, %s: got %+v, %v; want runs of %v", tc.given, tc.size, o, err, tc.want)
		}
	}
}

func TestShowTellsTheUnit(t *testing.T) {
	for name, want := range map[string]string{"p50-ns": "1234 us", "cpu-ns/call": "1234 us", "rss-B": "1.2 MB",
		"calls/s": "1234000", "share": "1234000"} {
		if got := show(name, 1234e3); got != want {
			t.Errorf("%s: got %s; want %s", name, got, want)
		}
	}
	if got := show("share", 0.123) + show("p50-ns", 12.3e6) + show("p50-ns", 223e6) +
		show("p50-ns", 950); got != "0.1212.3 ms223 ms950 ns" {
		t.Errorf("got %s", got)
	}
}

func TestShareCountsStacksWithAFunction(t *testing.T) {
	location := func(name string) *profile.Location {
		return &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}}
	}
	p := &profile.Profile{Sample: []*profile.Sample{
		{Value: []int64{1, 30},
			Location: []*profile.Location{location("runtime.cas"), location("a/pool.(*Pool).Acquire"), location("main.main")}},
		{Value: []int64{1, 70}, Location: []*profile.Location{location("a/poolish.f"), {Line: []profile.Line{{}}}}},
	}}
	if got := Share(p, "x.", "a/pool."); got != 0.3 {
		t.Errorf("got %v; want 0.3", got)
	}
	if got := Share(&profile.Profile{}, "x"); got != 0 {
		t.Errorf("got %v of nothing; want 0", got)
	}
}

func TestProfileSaysWhatIsWrong(t *testing.T) {
	for answer, want := range map[int]string{404: "admin.pprof", 200: "profile allocs"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(answer)
			fmt.Fprint(w, "no profile")
		}))
		_, _, err := Profile(t.Context(), strings.TrimPrefix(s.URL, "http://"), "allocs", time.Second)
		s.Close()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: got %v; want %q", answer, err, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
