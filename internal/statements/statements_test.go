package statements

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

const text = "SELECT id, name FROM users WHERE id = $id AND kind = 1"

// call counts n calls of a text, each with such a hop.
func call(s *Stripe, text string, n int, hop time.Duration) {
	for range n {
		s.Add(s.Look(text),
			&Call{App: "shop", Rows: 2, Bytes: 30, Retries: 1, Acquire: time.Millisecond, Hop: hop, Took: hop + 2*time.Millisecond})
	}
}

// row is that of a text.
func row(t *testing.T, r *Recorder, text string) Row {
	t.Helper()
	for _, row := range r.State(Query{Limit: most}).Rows {
		if row.Digest == Digest(text).String() {
			return row
		}
	}
	t.Fatalf("%s has no row", text)
	return Row{}
}

func TestFiguresOfADigest(t *testing.T) {
	r := New(Config{})
	one, two := r.NewStripe(), r.NewStripe()
	now := time.Now()
	call(one, text, 2, 10*time.Millisecond)
	call(two, strings.Replace(text, "1", "2", 1), 1, 10*time.Millisecond)
	two.Add(two.LookBytes([]byte(text)), &Call{App: "till", Status: "ABORTED", Took: time.Second, Hop: time.Second})
	for i := range 7 {
		two.Add(Unread, &Call{Status: fmt.Sprint("S", i), Took: time.Millisecond})
	}
	two.Add(Ref{}, &Call{})
	r.Gather(now)
	got := row(t, r, text)
	if s := got.Start; s.Calls != 4 || s.Failed != 1 || s.Statuses["ABORTED"] != 1 || s.Rows != 6 || s.Bytes != 90 || s.Retries != 3 ||
		s.AcquireMS != 3 || s.HopMS != 1030 || s.TookMS != 1036 {
		t.Errorf("%+v", s)
	}
	if s := got.Start; s.P50MS < 11 || s.P50MS > 14 || s.P99MS < 880 || s.P99MS > 1130 || s.HopP50MS < 9 || s.HopP50MS > 11.5 {
		t.Errorf("quantiles of %+v", s)
	}
	if got.Kind != "SELECT" || got.App != "till" || got.Texts != 2 || got.Text != "" || got.Minute.Calls != 0 {
		t.Errorf("%+v", got)
	}
	all := r.State(Query{By: "errors", Limit: 1})
	if all.All.Calls != 11 || all.All.Failed != 8 || all.Digests != 2 || len(all.Rows) != 1 || all.Rows[0].Digest != ID(0).String() ||
		all.Rows[0].Texts != 0 || all.Rows[0].Start.Statuses[Other] != 2 {
		t.Errorf("%+v", all)
	}
	r.Gather(now.Add(time.Minute))
	if got := row(t, r, text); got.Minute.Calls != 4 || got.Start.Calls != 4 {
		t.Errorf("a minute later: %+v", got)
	}
	r.Gather(now.Add(2 * time.Minute))
	if got := row(t, r, text); got.Minute.Calls != 0 || got.Start.Calls != 4 {
		t.Errorf("two minutes later: %+v", got)
	}
}

func TestNormalFormsAreKeptOnlyIfAskedFor(t *testing.T) {
	long := "SELECT " + strings.Repeat("abcdef, ", 2*maxKept/8) + "'secret'"
	for _, keep := range []bool{false, true} {
		r := New(Config{Texts: keep})
		s := r.NewStripe()
		call(s, text, 1, 0)
		call(s, long, 1, 0)
		r.Gather(time.Now())
		want := ""
		if keep {
			want = "SELECT id, name FROM users WHERE id = $id AND kind = ?"
		}
		if got := row(t, r, text).Text; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, unsure := range []string{"--!syntax_pg\nSELECT $$a secret$$", "--!syntax_pg v1\nSELECT $$another secret$$",
			"SELECT 'O'Brien's secret'", "SELECT 'a' secret'"} {
			call(s, unsure, 1, 0)
			r.Gather(time.Now())
			if got := row(t, r, unsure).Text; got != "" {
				t.Errorf("%q is kept of %s", got, unsure)
			}
		}
		if got := row(t, r, long).Text; keep && len(got) != maxKept || !keep && got != "" {
			t.Errorf("%d bytes are kept of a long text", len(got))
		}
	}
}

// The setting may change while statements are known.
func TestTextsAreTurnedOnAndOff(t *testing.T) {
	r := New(Config{})
	s := r.NewStripe()
	for _, keep := range []bool{false, true, false, true} {
		r.Set(Config{Texts: keep})
		for range 2 {
			call(s, text, 1, 0)
			r.Gather(time.Now())
		}
		if got := row(t, r, text).Text; (got != "") != keep {
			t.Errorf("statements.texts: %t; got %q", keep, got)
		}
	}
}

func TestQueries(t *testing.T) {
	for _, q := range []Query{{}, {By: "time"}, {By: "calls", Window: "minute"}, {By: "errors", Window: "start"}} {
		if err := q.Check(); err != nil {
			t.Error(err)
		}
	}
	for _, q := range []Query{{By: "rows"}, {Window: "hour"}} {
		if q.Check() == nil {
			t.Errorf("%+v is no error", q)
		}
	}
}

// With more digests than there is room for, the totals stay what was counted, and those with the most time stay.
func TestTotalsStayTrue(t *testing.T) {
	r := New(Config{})
	var stripes []*Stripe
	for range 4 {
		stripes = append(stripes, r.NewStripe())
	}
	now, n, rounds := time.Now(), 0, short.Of(20, 6)
	for round := range rounds {
		for i := range 300 {
			call(stripes[i%4], fmt.Sprintf("SELECT c%d_%d FROM t", round, i), 1, time.Millisecond)
			n++
		}
		for i := range 10 {
			call(stripes[i%4], fmt.Sprintf("SELECT busy%d FROM t", i), 3, 100*time.Millisecond)
			n += 3
		}
		r.Gather(now.Add(time.Duration(round) * Every))
	}
	got := r.State(Query{Limit: 10})
	sum := got.Rest.Calls
	for _, row := range r.State(Query{Limit: most}).Rows {
		sum += row.Start.Calls
	}
	if int(got.All.Calls) != n || int(sum) != n || got.Digests != most || got.Forgotten == 0 {
		t.Errorf("%d calls, rows and the rest have %d; want %d: %+v", got.All.Calls, sum, n, got)
	}
	for _, row := range got.Rows {
		if row.Start.Calls != uint64(3*rounds) {
			t.Errorf("a busy one has %d calls", row.Start.Calls)
		}
	}
	counted := uint64(0)
	for _, s := range r.Series() {
		counted += s.Calls
	}
	if int(counted) != n || len(r.Series()) != mostSeries+1 {
		t.Errorf("%d series have %d calls; want %d", len(r.Series()), counted, n)
	}
}

// A stripe whose slots are all in use counts what falls out.
func TestStripesAreBounded(t *testing.T) {
	r := New(Config{})
	s := r.NewStripe()
	for i := range 3 * mostSlots {
		call(s, fmt.Sprintf("SELECT c%d FROM t", i), 1, 0)
	}
	if len(s.slots) != mostSlots || len(s.byID) != mostSlots || s.fell != 2*mostSlots || s.rest.Calls != 2*mostSlots {
		t.Errorf("%d slots, %d fell, %d calls of the rest", len(s.slots), s.fell, s.rest.Calls)
	}
	ref := s.Look("SELECT gone FROM t")
	for i := range mostSlots {
		call(s, fmt.Sprintf("SELECT d%d FROM t", i), 1, 0)
	}
	s.Add(ref, &Call{})
	r.Gather(time.Now())
	if got := row(t, r, "SELECT gone FROM t"); got.Start.Calls != 1 || got.Kind != "SELECT" {
		t.Errorf("a digest that made room during its call: %+v", got)
	}
	for range 200 {
		r.NewStripe()
	}
	if got := r.slots(); got != leastSlots {
		t.Errorf("%d slots of each of many stripes", got)
	}
}

func TestManyTexts(t *testing.T) {
	r := New(Config{})
	s := r.NewStripe()
	now := time.Now()
	other := func(from, n int) {
		for i := range n {
			call(s, fmt.Sprintf("SELECT a FROM t WHERE id = %d", from+i), 1, 0)
		}
	}
	many := func() (int, bool) {
		t.Helper()
		r.Gather(now)
		for _, u := range r.Unusual() {
			if u.Many {
				return u.Texts, true
			}
		}
		return 0, false
	}
	other(0, 60)
	call(s, text, 500, 0)
	if n, is := many(); is {
		t.Errorf("%d texts are many", n)
	}
	other(60, 140)
	n, is := many()
	if !is || n < 170 || n > 230 {
		t.Errorf("200 texts: %d, many: %v", n, is)
	}
	for minute, want := range []bool{true, true, true, true, true, false} {
		now = now.Add(time.Minute)
		other(0, 40)
		if _, is := many(); is != want && minute != 4 {
			t.Errorf("minute %d: many: %v", minute, is)
		}
	}
	other(0, 80)
	if n, is := many(); is {
		t.Errorf("%d texts are many again", n)
	}
}

func TestTextSets(t *testing.T) {
	r := New(Config{})
	s := r.NewStripe()
	var set textSet
	for i := range 2000 {
		set.add(s.Look(fmt.Sprintf("SELECT %d", i)).text)
		if n := i + 1; n%100 == 0 && n <= 500 && (set.size() < n*85/100 || set.size() > n*115/100) {
			t.Errorf("%d texts are counted as %d", n, set.size())
		}
	}
	if n := set.size(); n < 1500 || n > 3300 {
		t.Errorf("2000 texts are counted as %d", n)
	}
}

func TestAStatementBecameSlow(t *testing.T) {
	const usual = 10 * time.Millisecond
	for _, c := range []struct {
		name    string
		minutes int // of what is usual
		usual   time.Duration
		calls   int
		took    []time.Duration // minute by minute
		want    string
	}{
		{"as usual", 20, usual, 50, []time.Duration{usual, 2 * usual, usual}, "..."},
		{"four times", 20, usual, 50, []time.Duration{4 * usual, 4 * usual, usual}, "ss."},
		{"between the bounds it stays what it was", 20, usual, 50,
			[]time.Duration{25 * time.Millisecond, 4 * usual, 25 * time.Millisecond, usual}, ".ss."},
		{"too short a past", 8, usual, 50, []time.Duration{4 * usual}, "."},
		{"too few calls", 20, usual, 19, []time.Duration{4 * usual}, "."},
		{"too little to matter", 20, time.Millisecond, 50, []time.Duration{5 * time.Millisecond}, "."},
		{"after half an hour it is usual", 20, usual, 50, repeated(4*usual, 30), strings.Repeat("s", 20)},
	} {
		r := New(Config{})
		s := r.NewStripe()
		now := time.Now()
		minute := func(took time.Duration) bool {
			call(s, text, c.calls, took)
			now = now.Add(time.Minute)
			r.Gather(now)
			all := r.Unusual()
			return len(all) == 1 && all[0].Slow && all[0].App == "shop" && all[0].Kind == "SELECT"
		}
		for range c.minutes {
			if minute(c.usual) {
				t.Errorf("%s: slow before", c.name)
			}
		}
		got := ""
		for _, took := range c.took {
			if minute(took) {
				got += "s"
			} else {
				got += "."
			}
		}
		if !strings.HasPrefix(got, c.want) || len(c.took) == len(c.want) && got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
		if len(c.took) > 25 && !strings.HasSuffix(got, ".") {
			t.Errorf("%s: got %s", c.name, got)
		}
	}
}

func repeated(took time.Duration, n int) (all []time.Duration) {
	for range n {
		all = append(all, took)
	}
	return all
}

// Series do not come and go with small changes of the order, and only grow. So does the total, also when series go.
func TestSeriesStay(t *testing.T) {
	r := New(Config{})
	s := r.NewStripe()
	now := time.Now()
	last := map[string]uint64{}
	var changes, calls int
	minute := func(weight func(i int) time.Duration) {
		for i := range 60 {
			call(s, fmt.Sprintf("SELECT c%d FROM t", i), 1, weight(i))
		}
		calls += 60
		now = now.Add(time.Minute)
		r.Gather(now)
		is := map[string]uint64{}
		for _, one := range r.Series() {
			is[one.Digest] = one.Calls
			if was, ok := last[one.Digest]; ok && one.Calls < was {
				t.Errorf("%s went back from %d to %d", one.Digest, was, one.Calls)
			} else if !ok {
				changes++
			}
		}
		last = is
		if got := r.Total().Calls; got != uint64(calls) {
			t.Errorf("%d calls in all; want %d", got, calls)
		}
		if len(is) > mostSeries+1 {
			t.Errorf("%d series", len(is))
		}
	}
	for m := range 30 {
		minute(func(i int) time.Duration { return time.Duration(100+(i*7+m*13)%60) * time.Millisecond })
	}
	if changes != mostSeries+1 {
		t.Errorf("%d series came in 30 minutes of about the same", changes)
	}
	for i := range 100 { // digests that leave the first behind
		call(s, fmt.Sprintf("SELECT new%d FROM t", i), 1, time.Duration(i)*time.Second)
	}
	calls += 100
	minute(func(int) time.Duration { return 0 })
	if got := Digest("SELECT new99 FROM t").String(); last[got] != 0 || !has(last, got) {
		t.Errorf("the longest has no series: %v", last)
	}
}

func has(m map[string]uint64, key string) bool { _, ok := m[key]; return ok }

func TestNobodyRecords(t *testing.T) {
	var r *Recorder
	s := r.NewStripe()
	s.Add(s.Look(text), &Call{})
	s.Add(s.LookBytes([]byte(text)), &Call{})
	if r.Unusual() != nil || r.Series() != nil || r.Total() != (Sums{}) || len(r.State(Query{}).Rows) != 0 {
		t.Error("nobody has recorded something")
	}
}

func TestStripesFromManyGoroutines(t *testing.T) {
	r := New(Config{Texts: true})
	s := r.NewStripe()
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 2000 {
				call(s, fmt.Sprintf("SELECT c%d FROM t WHERE id = %d", (i+g)%400, i), 1, time.Millisecond)
			}
		})
	}
	for range 20 {
		r.Gather(time.Now())
		r.State(Query{Limit: 10})
		r.Series()
	}
	all.Wait()
	r.Gather(time.Now())
	if got := r.State(Query{}).All.Calls; got != 8000 {
		t.Errorf("%d calls; want 8000", got)
	}
}

// What all of it takes is bounded: with 8 stripes, all texts kept and more digests than there is room for.
func TestMemoryIsBounded(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	before := heap()
	r := New(Config{Texts: true})
	pad := strings.Repeat("a_long_name, ", maxKept/13)
	for k := range 8 {
		s := r.NewStripe()
		for i := range 1000 {
			call(s, fmt.Sprintf("SELECT %s c%d_%d FROM t", pad, k, i), 1, 0)
		}
		if k%2 == 0 {
			r.Gather(time.Now())
		}
	}
	const bound = 12 << 20
	if took := heap() - before; took > bound {
		t.Errorf("%d KiB; at most %d are allowed", took>>10, bound>>10)
	} else {
		t.Logf("%d KiB", took>>10)
	}
	runtime.KeepAlive(r)
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestATextThatWasSeenAllocatesNothing(t *testing.T) {
	s := New(Config{Texts: true}).NewStripe()
	c, octets := Call{App: "shop", Status: "ABORTED", Took: time.Millisecond}, []byte(text)
	s.Add(s.Look(text), &c)
	if n := testing.AllocsPerRun(100, func() {
		s.Add(s.Look(text), &c)
		s.Add(s.LookBytes(octets), &c)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A text that was seen must not take more than 0.3 us.
func BenchmarkSeen(b *testing.B) {
	s, octets := New(Config{}).NewStripe(), []byte(text)
	b.ReportAllocs()
	for b.Loop() {
		s.Add(s.LookBytes(octets), &Call{App: "shop", Bytes: 100, Acquire: time.Microsecond, Hop: time.Millisecond, Took: time.Millisecond})
	}
}

func BenchmarkNew(b *testing.B) {
	s, n := New(Config{}).NewStripe(), 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		s.Add(s.Look(fmt.Sprintf("SELECT id, name FROM users WHERE id = %d", n)), &Call{})
	}
}
