package knee

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestFindKnee(t *testing.T) {
	const tolerance = 0.05
	below := func(limit int) func(int, int) bool { return func(rate, _ int) bool { return rate <= limit } }
	for name, tc := range map[string]struct {
		first, most int
		holds       func(rate, run int) bool
		least, over int // the knee lies between them
		confirmed   bool
	}{
		"far":            {500, 20_000, below(7777), 7777 * 95 / 100, 7777 * 106 / 100, true},
		"at once":        {500, 20_000, below(500), 500, 526, true},
		"not even first": {500, 20_000, below(499), 0, 0, true},
		"all":            {500, 20_000, below(1 << 30), 20_000, 20_000, false},
		// One run is disturbed, the fourth, at 1688: what it said is found out.
		"one bad run": {500, 20_000, func(rate, run int) bool { return rate <= 7777 && run != 4 }, 7777 * 95 / 100, 7777 * 106 / 100, true},
		// One run is lucky, the eighth, at 8543.
		"one good run": {500, 20_000, func(rate, run int) bool { return rate <= 7000 || run == 8 }, 7000 * 94 / 100, 7000, true},
		"by chance":    {500, 20_000, func(_, run int) bool { return run%2 == 0 }, 0, 20_000, false},
	} {
		runs := 0
		knee, over, confirmed, err := findKnee(tc.first, tc.most, tolerance, func(rate int) (bool, error) {
			if runs++; rate < tc.first || rate > tc.most {
				t.Fatalf("%s: tried %d", name, rate)
			}
			return tc.holds(rate, runs), nil
		})
		if err != nil || knee < tc.least || knee > tc.over || name != "by chance" && confirmed != tc.confirmed || runs > 80 {
			t.Errorf("%s: got %d, not %d, confirmed %t, %v, after %d runs; want %d to %d, confirmed %t", name, knee,
				over, confirmed, err, runs, tc.least, tc.over, tc.confirmed)
		}
		if over > 0 && knee > 0 && confirmed && float64(over-knee) > tolerance*float64(knee)+1 {
			t.Errorf("%s: %d and %d are too far apart", name, knee, over)
		}
	}
	for fail := 1; fail < 20; fail++ {
		runs, broken := 0, errors.New("broken")
		if _, _, _, err := findKnee(500, 20_000, tolerance, func(rate int) (bool, error) {
			if runs++; runs == fail {
				return false, broken
			}
			return rate <= 3000, nil
		}); runs >= fail && !errors.Is(err, broken) {
			t.Errorf("run %d failed: got %v", fail, err)
		}
	}
}

func TestBeyond(t *testing.T) {
	k := &kneeBench{low: 500 * time.Microsecond, high: 2 * time.Millisecond, p99: 25 * time.Millisecond,
		service: time.Millisecond, first: 500}
	if err := k.check(); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		p50, p99 time.Duration
		failed   int64
		want     string
	}{
		{time.Millisecond, 20 * time.Millisecond, 0, ""},
		{3 * time.Millisecond, 20 * time.Millisecond, 0, "the middle latency, 3.0 ms"},
		{time.Millisecond, 26 * time.Millisecond, 0, "the 99th percentile, 26.0 ms"},
		{time.Millisecond, time.Millisecond, 2, "2 calls failed"},
	} {
		if got := k.beyond(lab.Figures{lab.P50: float64(tc.p50), lab.P99: float64(tc.p99)}, tc.failed); got != tc.want {
			t.Errorf("%+v: got %q", tc, got)
		}
	}
	alone := &kneeBench{high: 0, p99: time.Second, service: time.Millisecond, first: 500}
	if got := alone.beyond(lab.Figures{lab.P50: 1e9 / 2, lab.P99: 1e9 / 2}, 0); got != "" || alone.check() != nil {
		t.Errorf("without a band: got %q, %v", got, alone.check())
	}
	for _, bad := range []kneeBench{{}, {p99: 1, first: 500},
		{high: time.Millisecond, service: time.Millisecond, first: 500}, {low: 2, high: 1, service: 1, first: 500},
		{p99: 1, service: 1}, {p99: 1, service: time.Hour, first: 500}, {p99: 1, service: 1, first: 500, probe: -1}} {
		if bad.check() == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

func TestLimitOfARun(t *testing.T) {
	run := func(cores float64, saturated string) lab.Run {
		return lab.Run{Figures: lab.Figures{"sidecar-cores": cores}, Saturated: saturated}
	}
	for _, tc := range []struct {
		processors int
		run        lab.Run
		want       string
	}{{1, run(0.95, "load"), "sidecar"}, {1, run(0.6, "load"), "load"}, {1, run(0.6, ""), "nothing"},
		{0, run(1.2, "sidecar"), "sidecar"}, {0, run(0.95, "load"), "load"}} {
		if got := (&kneeCase{processor: tc.processors}).limit(tc.run); got != tc.want {
			t.Errorf("%+v: got %s", tc, got)
		}
	}
}

func TestKneeMessages(t *testing.T) {
	plain, own := kneeMessages(kneeWrite, map[string]any{"id": 7, "payload": "text"})
	var request sidecarv1.ExecuteRequest
	var query Ydb_Query.ExecuteQueryRequest
	if err := errors.Join(proto.Unmarshal(plain, &request), proto.Unmarshal(own, &query)); err != nil {
		t.Fatal(err)
	}
	if request.Params["id"].GetUint64Value() != 7 || request.Params["payload"].GetTextValue() != "text" ||
		query.Parameters["$id"].Value.GetUint64Value() != 7 ||
		query.Parameters["$payload"].Value.GetTextValue() != "text" || query.GetQueryContent().GetText() != request.Sql {
		t.Errorf("got %v and %v", &request, &query)
	}
}

func TestCheckedAnswers(t *testing.T) {
	good := traffic.Must(&Ydb_Query.ExecuteQueryResponsePart{Status: 400000})
	bad := traffic.Must(&Ydb_Query.ExecuteQueryResponsePart{Status: 400010})
	codec := checking{}
	for _, tc := range []struct {
		answer []byte
		check  checked
		ok     bool
	}{{good, succeeded, true}, {bad, succeeded, false}, {nil, succeeded, false}, {good, long(4), true}, {good, long(100), false}} {
		if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(tc.answer)}, tc.check); (err == nil) != tc.ok {
			t.Errorf("%x: got %v", tc.answer, err)
		}
	}
}

// profileOf is a profile of functions, with samples of 10 ms.
func profileOf(samples map[string]int64) *pprof.Profile {
	p := &pprof.Profile{SampleType: []*pprof.ValueType{{Type: "samples"}, {Type: "cpu"}}}
	for name, n := range samples {
		p.Sample = append(p.Sample,
			&pprof.Sample{Value: []int64{n, n * 1e7},
				Location: []*pprof.Location{{Line: []pprof.Line{{Function: &pprof.Function{Name: name}}}}}})
	}
	return p
}

func TestProfilesAreCompared(t *testing.T) {
	same := profileOf(map[string]int64{"a/b.f": 500, "a/b.g": 100, "runtime.m": 400})
	for name, tc := range map[string]struct {
		above   *pprof.Profile
		most    string
		changed bool
	}{
		"the same": {same, "none", false},
		"longer":   {profileOf(map[string]int64{"a/b.f": 1000, "a/b.g": 200, "runtime.m": 800}), "none", false},
		"chance":   {profileOf(map[string]int64{"a/b.f": 520, "a/b.g": 105, "runtime.m": 375}), "a/b", false},
		// Functions of one package: the package's share counts.
		"inside a package": {profileOf(map[string]int64{"a/b.f": 100, "a/b.g": 500, "runtime.m": 400}), "none", false},
		"another":          {profileOf(map[string]int64{"a/b.f": 400, "a/b.g": 100, "runtime.m": 300, "sync.w": 200}), "sync", true},
		"few samples":      {profileOf(map[string]int64{"a/b.f": 3, "a/b.g": 1, "runtime.m": 6}), "a/b", false},
	} {
		f := compareProfiles([3]*pprof.Profile{same, same, tc.above}, [3]float64{100, 100, 100}, lab.Leaf)
		if f.most != tc.most || f.changed() != tc.changed {
			t.Errorf("%s: got %s from %.2f to %.2f, chance %.3f, changed %t; want %s, %t", name, f.most, f.from, f.to,
				f.chance, f.changed(), tc.most, tc.changed)
		}
		if math.Abs(f.each[0]-1e8) > 1 || f.functions[0] != "a/b.f" && f.functions[0] != "a/b.g" && f.functions[0] != "runtime.m" {
			t.Errorf("%s: got %.0f ns a call, first %s", name, f.each[0], f.functions[0])
		}
		var b strings.Builder
		f.table(&b)
		if !strings.Contains(b.String(), "| `a/b.f` | 50.0 % | 50.0 % |") {
			t.Errorf("%s: got\n%s", name, b.String())
		}
	}
	p := profileOf(map[string]int64{"a/b.f": 1, "runtime/pprof.write": 2, "net/http/pprof.h": 3})
	if withoutProfiling(p); len(p.Sample) != 1 {
		t.Errorf("%d samples are left; want that of a/b", len(p.Sample))
	}
}

func TestWhatHappensBeyondTheKnee(t *testing.T) {
	for _, tc := range []struct {
		mean    float64 // above, of 1 ms below
		changed bool
		want    string
	}{{9e6, false, "only the queue grew, by 8.00 ms"},
		{9e6, true, "The profile changes, and a call waits 8.00 ms longer"}, {1.1e6, false, "Neither"},
		{1.1e6, true, "hardly grows"}} {
		c := lab.Case{}
		var runs [][]lab.Run
		for i, mean := range []float64{1e6, 2e6, tc.mean} {
			c.Variants = append(c.Variants, lab.Variant{Name: kneeRates[i]})
			runs = append(runs, []lab.Run{{Figures: lab.Figures{lab.Mean: mean, lab.CPU: 50e3, kneeWay: mean / 1e5, "sidecar-cores": 0.9}}})
		}
		if got := queued(lab.NewTable(c, runs), tc.changed); !strings.Contains(got, tc.want) ||
			!strings.Contains(got, "1.00 of that at the knee") {
			t.Errorf("got %s; want %s", got, tc.want)
		}
	}
}

func TestKneesInWords(t *testing.T) {
	k := &kneeBench{low: 1, high: 2, p99: 3, first: 500}
	got := k.text(
		[]*kneeCase{{name: "a", knee: 1000, over: 1040, confirmed: true, why: "x", saturated: "sidecar"},
			{name: "b", over: 500}, {name: "c", knee: 20_000}},
	)
	for _, want := range []string{"| a | 1000/s | 1040/s | x | sidecar | yes | 0 |", "| b | below 500/s | 500/s |",
		"| c | not reached at 20000/s | - | - |"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
	if rates := (&kneeCase{knee: 1000, over: 1100}).rates(); rates != [3]int{850, 1000, 1150} {
		t.Errorf("got %v", rates)
	}
	if rates := (&kneeCase{over: 500}).rates(); rates != [3]int{425, 500, 575} {
		t.Errorf("got %v", rates)
	}
}

func TestKneeRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"-service", "5ms"}, {"-profiles", "("}, {"-only", "("}, {"-bin", "/nowhere"}} {
		if err := lab.Main(t.Context(), Experiment(), append([]string{"-size", "smoke", "-out", t.TempDir()}, args...)); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
	if err := Experiment().Children[kneeBackend](t.Context(), []string{"soon"}); err == nil {
		t.Error("a backend that takes no duration: no error")
	}
}
