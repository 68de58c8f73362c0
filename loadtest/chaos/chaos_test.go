package chaos

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWindowCountsFromTheInstantACallWasDue(t *testing.T) {
	r := &recorder{}
	for i := range 200 {
		due := time.Duration(i) * 10 * time.Millisecond
		s := sample{kind: read, due: due, sent: due, ended: due + 2*time.Millisecond}
		if i >= 50 && i < 60 { // begun late: the sender was held up
			s.sent, s.ended = due+time.Second, due+time.Second+time.Millisecond
			s.failed = &failure{code: "X"}
		}
		r.add(s)
	}
	r.add(sample{kind: stream, due: 0, ended: time.Hour}) // not part of it
	w := r.window(0, 2*time.Second)
	if w.Calls != 200 || w.Failed != 10 || w.P50 != 2 || w.P99 != 1001 || w.Max != 1001 {
		t.Errorf("got %+v; want 200 calls, 10 failed, p50 2 ms, p99 and max 1001 ms", w)
	}
	if w := r.window(time.Second, 2*time.Second); w.Calls != 100 || w.Max != 2 {
		t.Errorf("got %+v; want the second half alone", w)
	}
	if w := r.window(time.Hour, 2*time.Hour); w.Calls != 0 || w.P99 != 0 {
		t.Errorf("got %+v of nothing", w)
	}
}

func TestLedgerNotesWhatCallersWereTold(t *testing.T) {
	var l ledger
	for _, tc := range []struct {
		err  error
		want outcome
	}{
		{nil, kept},
		{&failure{code: "POOL_TIMEOUT", safe: true}, nothing},
		{&failure{code: "YDB_GENERIC_ERROR"}, nothing},
		{&failure{code: "OUTCOME_UNKNOWN", unknown: true}, maybe},
		{&failure{code: "OUTCOME_UNKNOWN", unknown: true, safe: true}, maybe}, // an idempotent call may be sent again
		{errors.New("other"), maybe},
	} {
		id := l.open(entry{table: "counted"})
		if got := l.entries[id].outcome; got != asked {
			t.Errorf("before the answer: %v", got)
		}
		l.note(id, tc.err)
		if got := l.entries[id].outcome; got != tc.want {
			t.Errorf("%v: got %v; want %v", tc.err, got, tc.want)
		}
	}
}

func TestEven(t *testing.T) {
	nodes := func(sessions ...int) (list []judged) {
		for i, n := range sessions {
			list = append(list, judged{ID: uint32(i + 1), Use: "new", Sessions: n})
		}
		return list
	}
	gone := append(nodes(10, 10), judged{Use: "none"})
	for _, tc := range []struct {
		nodes []judged
		want  bool
	}{
		{nodes(10, 10, 10), true}, {nodes(8, 12, 10), true}, {nodes(7, 12, 11), false}, {nodes(30, 0, 0), false},
		{nodes(2, 1, 1), false}, {nodes(), false}, {gone, true},
	} {
		if got := even(tc.nodes, 10, 0.2); got != tc.want {
			t.Errorf("%+v: got %v", tc.nodes, got)
		}
	}
	if !even(nodes(2, 1, 1, 2), 0, 0.2) {
		t.Error("within one session of the fair share; want even")
	}
}

func TestReportShowsTheWorstRunAndWhatWasMissed(t *testing.T) {
	r := NewReport(Options{Break: "drain"})
	run := func(seed uint64, ok bool, p99 float64) *Result {
		return &Result{Row: "kill", Event: "a <node> killed", Seed: seed, OK: ok, Figures: map[string]any{"p99 after/normal": p99},
			Goals:  []Goal{{Name: "one", OK: true}, {Name: "two", OK: ok, Got: "3 of 4"}},
			Normal: &Window{P99: 1}, After: &Window{P99: p99},
			Seconds: []Second{{At: 0, Good: 10, P99: 2}, {At: 0.5, Good: 5, P99: 20, Failed: map[string]int{"safe": 2, "final": 1}}},
			Ticks:   []Tick{{At: 0.1, Nodes: map[uint32]string{1: "healthy"}}, {At: 0.4, Nodes: map[uint32]string{1: "ejected"}}},
			Events:  []Event{{At: 0.3, What: "kill <1>"}}}
	}
	r.Add("kill", 1, run(1, true, 3), nil)
	r.Add("kill", 2, run(2, false, 1), nil)
	r.Add("kill", 3, run(3, true, 9), nil)
	r.Add("kill", 4, nil, errors.New("no cluster"))
	if r.Failed() != 2 || r.Rows[0].Worst.Seed != 2 {
		t.Errorf("got %d failed, worst seed %d; want 2, 2", r.Failed(), r.Rows[0].Worst.Seed)
	}
	text := r.Markdown()
	for _, want := range []string{"drain.grace=0s", "| a <node> killed | 4 | 2 | 2 |", "no cluster", "kill, seed 2 missed: two: 3 of 4"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	dir := t.TempDir()
	if err := (&lab.Report{Sections: r.sections()}).Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"picture-1.svg", "picture-2.svg"} {
		picture, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for d := xml.NewDecoder(bytes.NewReader(picture)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s is not XML: %v\n%s", name, err, picture)
			}
		}
	}
	if err := r.Write(t.TempDir()); err != nil {
		t.Error(err)
	}
}

// A report made in parts is the report of all runs.
func TestReportTakesOverParts(t *testing.T) {
	run := func(row string, seed uint64, ok bool) *Result {
		return &Result{Row: row, Event: row, Seed: seed, OK: ok, Figures: map[string]any{}, Goals: []Goal{{Name: "one", OK: ok}}}
	}
	whole, first, second := NewReport(Options{}), NewReport(Options{}), NewReport(Options{})
	for _, one := range []struct {
		part *Report
		run  *Result
	}{
		{first, run("kill", 1, true)}, {first, run("kill", 2, true)}, {second, run("kill", 3, false)}, {second, run("drain", 1, true)},
	} {
		whole.Add(one.run.Row, one.run.Seed, one.run, nil)
		one.part.Add(one.run.Row, one.run.Seed, one.run, nil)
	}
	dir := t.TempDir()
	if err := first.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := second.Take(dir); err != nil {
		t.Fatal(err)
	}
	if !second.Has("kill", 2) || second.Has("drain", 2) || second.Has("add", 1) || second.Failed() != 1 || second.Rows[0].Worst.Seed != 3 {
		t.Errorf("parts put together: %+v", second.Rows)
	}
	if a, b := strings.Count(whole.Markdown(), "|"), strings.Count(second.Markdown(), "|"); a != b {
		t.Errorf("the tables differ:\n%s\n%s", whole.Markdown(), second.Markdown())
	}
	if err := second.Take(dir); err == nil {
		t.Error("the same runs were taken twice")
	}
	if err := NewReport(Options{Break: "drain"}).Take(dir); err == nil {
		t.Error("runs with other settings were taken")
	}
}

func TestBreaksAreSettings(t *testing.T) {
	for name, settings := range Breaks {
		for _, s := range settings {
			if key, value, ok := strings.Cut(s, "="); !ok || key == "" || value == "" {
				t.Errorf("%s: %q is no setting", name, s)
			}
		}
	}
	if _, err := Run(t.Context(), Options{Break: "everything"}, "kill", 1); err == nil {
		t.Error("a mechanism that cannot be switched off is no error")
	}
	if _, err := Run(t.Context(), Options{}, "explode", 1); err == nil || !strings.Contains(err.Error(), "blackhole") {
		t.Errorf("a row that is not there: %v; want the names of those that are", err)
	}
}
