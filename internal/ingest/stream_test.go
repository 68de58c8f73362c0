package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestRowsAreGatheredSortedAndAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32", "a Optional<Utf8>")
		s := open(t, newEngine(t, f, nil), Options{Offset: 100})
		defer s.Close()
		add(t, s, `{"id":3,"a":"c"}`, `{"a":"a","id":1}`, `{"id":2,"a":null}`)
		if n := f.count(); n != 0 {
			t.Errorf("%d requests before ingest.delay is over", n)
		}
		p, err := s.Next(t.Context())
		if err != nil || p.Next != 103 {
			t.Errorf("%+v, %v; want 103 acknowledged", p, err)
		}
		if want := [][]string{{"1", "2", "3"}}; !slices.EqualFunc(f.requests, want, slices.Equal[[]string]) {
			t.Errorf("requests %v; want %v", f.requests, want)
		}
		s.Finish()
		if last, _, err := drain(s); err != io.EOF || last != 0 {
			t.Errorf("after the end: %d, %v", last, err)
		}
		if got := s.Totals(); got != (Totals{Next: 103, Rows: 3}) {
			t.Errorf("totals %+v", got)
		}
		if f.get("2", "a") != "null" || f.get("1", "a") != `"a"` {
			t.Errorf("rows %v", f.rows)
		}
	})
}

func TestABatchGoesWhenItIsFull(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"by_rows":  func(c *Config) { c.BatchRows = 10 },
		"by_bytes": func(c *Config) { c.BatchBytes = 4 << 10 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeTable(t, "id Uint32", "a Optional<Utf8>")
				s := open(t, newEngine(t, f, func(c *Config) { c.Delay = time.Hour; change(c) }), Options{})
				defer s.Close()
				begun := time.Now()
				for i := range 10 {
					add(t, s, fmt.Sprintf(`{"id":%d,"a":%q}`, i, strings.Repeat("x", 400)))
				}
				if p, err := s.Next(t.Context()); err != nil || p.Next == 0 || time.Since(begun) > time.Second {
					t.Errorf("%+v, %v after %v", p, err, time.Since(begun))
				}
			})
		})
	}
}

// Rows of one key become one row, each column with the newest value.
func TestRowsOfOneKeyAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32", "a Optional<Utf8>", "b Optional<Int32>", "c Optional<Int32>")
		s := open(t, newEngine(t, f, nil), Options{})
		defer s.Close()
		add(t, s, `{"id":1,"a":"old","b":1}`, `{"id":2,"c":5}`, `{"id":1,"c":3}`, `{"id":1,"a":"new"}`, `{"id":2,"c":6}`)
		s.Finish()
		if last, refused, err := drain(s); err != io.EOF || last != 5 || len(refused) > 0 {
			t.Errorf("%d, %v, %v", last, refused, err)
		}
		if len(f.requests) != 2 {
			t.Errorf("requests %v; want one for each set of columns", f.requests)
		}
		for _, c := range []struct{ key, column, want string }{{"1", "a", `"new"`}, {"1", "b", "1"}, {"1", "c", "3"},
			{"2", "c", "6"}, {"2", "a", ""}} {
			if got := f.get(c.key, c.column); got != c.want {
				t.Errorf("key %s, %s = %s; want %q", c.key, c.column, got, c.want)
			}
		}
	})
}

func TestBadRowsAreNamedAndTheOthersWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32", "a Optional<Utf8>", "n Int32")
		f.before = func(keys []string) (time.Duration, error) {
			for _, k := range keys {
				if k == "13" || k == "17" || k == "666" {
					return 0, &Refused{Err: errors.New("the server does not like " + k)}
				}
			}
			return 0, nil
		}
		s := open(t, newEngine(t, f, nil), Options{})
		defer s.Close()
		for i := range 40 {
			add(t, s, fmt.Sprintf(`{"id":%d,"n":%d}`, i, i))
		}
		add(t, s, `{"id":666,"n":1}`, `{"id":666,"n":2,"a":"x"}`) // of one key
		bad := map[string]string{
			`{"id":"x","n":1}`:             `id: "x" is not a Uint32`,
			`{"id":1,"n":1,"z":1}`:         `no column "z"`,
			`{"id":1}`:                     "n: the row has to name this column",
			`{"n":1}`:                      "id: the row has to name this column",
			`{"id":1,"n":null}`:            "n: null is not an Int32",
			`{"id":1,"id":1,"n":1}`:        "twice",
			`[1,2]`:                        "a row is an object",
			`{"id":1`:                      "invalid JSON",
			`{"id":1,"n":1} x`:             "text behind",
			strings.Repeat(" ", 2<<20):     "ingest.max_row",
			`{"id":1,"n":1,"a":"` + "\xff": "invalid JSON",
		}
		want := map[uint64]string{13: "does not like 13", 17: "does not like 17", 40: "does not like 666", 41: "does not like 666"}
		for row, says := range bad {
			want[s.next] = says
			add(t, s, row)
		}
		s.Finish()
		last, refused, err := drain(s)
		if err != io.EOF || last != uint64(42+len(bad)) {
			t.Errorf("%d, %v", last, err)
		}
		for offset, says := range want {
			if !strings.Contains(refused[offset], says) {
				t.Errorf("offset %d: %q; want %q", offset, refused[offset], says)
			}
			delete(refused, offset)
		}
		if len(refused) > 0 {
			t.Errorf("also refused: %v", refused)
		}
		if len(f.rows) != 38 {
			t.Errorf("%d rows are written; want 38", len(f.rows))
		}
	})
}

func TestAKeyIsWrittenByOneBatchAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32", "n Optional<Int32>")
		f.before = func([]string) (time.Duration, error) { time.Sleep(100 * time.Millisecond); return 0, nil }
		s := open(t, newEngine(t, f, func(c *Config) { c.BatchRows, c.Delay, c.Window = 4, 0, 4 }), Options{})
		defer s.Close()
		// Key 0 is in every batch, the others in one each: those go on beside it.
		n := 0
		for i := range 8 {
			add(t, s, fmt.Sprintf(`{"id":0,"n":%d}`, i))
			for range 3 {
				n++
				add(t, s, fmt.Sprintf(`{"id":%d,"n":1}`, n))
			}
		}
		s.Finish()
		if _, _, err := drain(s); err != io.EOF {
			t.Error(err)
		}
		if f.get("0", "n") != "7" {
			t.Errorf("the hot key has %s; want its last value", f.get("0", "n"))
		}
		if f.peak < 2 {
			t.Errorf("at most %d requests were under way; want the others beside the one with the hot key", f.peak)
		}
	})
}

func TestTheWindowIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32")
		free := make(chan struct{})
		f.before = func([]string) (time.Duration, error) { <-free; return 0, nil }
		s := open(t, newEngine(t, f, func(c *Config) { c.BatchRows, c.Window = 10, 3 }), Options{})
		defer s.Close()
		added := make(chan int, 1000)
		var adding sync.WaitGroup
		adding.Go(func() {
			for i := range 200 {
				if s.AddJSON(fmt.Appendf(nil, `{"id":%d}`, i)) != nil {
					return
				}
				added <- i
			}
			s.Finish()
		})
		time.Sleep(10 * time.Second)
		if n := len(added); n != 40 {
			t.Errorf("%d rows were taken; want 3 batches under way and one gathered", n)
		}
		if got := s.state(); got.Flights != 3 || got.Waiting != 10 || got.Done != 0 {
			t.Errorf("state %+v", got)
		}
		close(free)
		if last, _, err := drain(s); last != 200 || err != io.EOF {
			t.Errorf("%d, %v", last, err)
		}
		adding.Wait()
		if f.peak != 3 {
			t.Errorf("%d requests at a time; want 3", f.peak)
		}
	})
}

// A try whose answer got lost may be carried out later, up to the bound that it was given. Its keys are left alone until then.
func TestALateWriteOvertakesNothing(t *testing.T) {
	c := Default()
	for name, late := range map[string]time.Duration{
		"soon":                            900 * time.Millisecond,
		"at_the_end_of_its_time":          c.Attempt,
		"at_the_end_by_a_clock_that_lags": c.Attempt + c.Settle - time.Millisecond,
		"never":                           c.Attempt + c.Settle + time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeTable(t, "id Uint32", "n Optional<Int32>")
				f.skew = c.Settle
				first := true
				f.before = func([]string) (time.Duration, error) {
					if first {
						first = false
						return late, nil
					}
					return 0, nil
				}
				s := open(t, newEngine(t, f, nil), Options{})
				defer s.Close()
				add(t, s, `{"id":1,"n":1}`)
				if p, err := s.Next(t.Context()); err != nil || p.Next != 1 {
					t.Fatalf("%+v, %v", p, err)
				}
				add(t, s, `{"id":1,"n":2}`, `{"id":2,"n":2}`)
				time.Sleep(500 * time.Millisecond)
				if f.get("2", "n") != "2" || f.get("1", "n") != "1" {
					t.Errorf("rows %v; want the other key written, and this one not yet", f.rows)
				}
				s.Finish()
				if last, _, err := drain(s); last != 3 || err != io.EOF {
					t.Errorf("%d, %v", last, err)
				}
				f.late.Wait()
				if f.get("1", "n") != "2" {
					t.Errorf("the late write won: %v", f.rows)
				}
			})
		})
	}
}

func TestAFailureLeavesWhatWasNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32")
		down := errors.New("the cluster is away")
		f.before = func(keys []string) (time.Duration, error) {
			if slices.Contains(keys, "25") {
				return 0, down
			}
			time.Sleep(time.Second)
			return 0, nil
		}
		s := open(t, newEngine(t, f, func(c *Config) { c.BatchRows = 10 }), Options{})
		defer s.Close()
		var err error
		for i := 0; i < 1000 && err == nil; i++ {
			err = s.AddJSON(fmt.Appendf(nil, `{"id":%d}`, i))
		}
		if err != down {
			t.Errorf("AddJSON: %v", err)
		}
		if last, _, err := drain(s); last != 20 || err != down {
			t.Errorf("%d, %v; want the two batches before the one that failed", last, err)
		}
	})
}

func TestStopWritesWhatWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32")
		e := newEngine(t, f, func(c *Config) { c.Delay = time.Hour })
		s := open(t, e, Options{})
		defer s.Close()
		add(t, s, `{"id":1}`, `{"id":2}`)
		e.Drain()
		if err := s.AddJSON([]byte(`{"id":3}`)); err != ErrDraining {
			t.Errorf("a row after Drain: %v", err)
		}
		if last, _, err := drain(s); last != 2 || err != ErrDraining {
			t.Errorf("%d, %v", last, err)
		}
		if _, err := e.Open(t.Context(), Options{Table: "/local/t"}); err != ErrDraining {
			t.Errorf("Open: %v", err)
		}
	})
}

func TestAStreamOfTheSameNameEndsTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32", "n Optional<Int32>")
		f.before = func([]string) (time.Duration, error) { time.Sleep(time.Second); return 0, nil }
		e := newEngine(t, f, nil)
		old := open(t, e, Options{Name: "a"})
		add(t, old, `{"id":1,"n":1}`)
		other := open(t, e, Options{Name: "b"})
		defer other.Close()
		begun := time.Now()
		s := open(t, e, Options{Name: "a"})
		defer s.Close()
		if time.Since(begun) < time.Second {
			t.Error("it did not wait for what the old one had under way")
		}
		if last, _, err := drain(old); last != 1 || err != ErrReplaced {
			t.Errorf("the old one: %d, %v", last, err)
		}
		old.Close()
		add(t, other, `{"id":5}`)
		if n := len(e.State()); n != 2 {
			t.Errorf("%d streams are open; want 2", n)
		}
		// Whoever waits for one that itself waits, waits for both.
		add(t, s, `{"id":1,"n":2}`)
		hasty, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := e.Open(hasty, Options{Table: "/local/t", Name: "a"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Open: %v", err)
		}
		last := open(t, e, Options{Name: "a"})
		defer last.Close()
		if f.get("1", "n") != "2" {
			t.Error("the third one began before the first was over")
		}
	})
}

// TestNamesBelongToApps: a stream ends one of its name only if both are of one app and one table.
func TestNamesBelongToApps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32", "n Optional<Int32>")
		e := newEngine(t, f, nil)
		shop := open(t, e, Options{App: "shop", Name: "a"})
		defer shop.Close()
		admin := open(t, e, Options{App: "admin", Name: "a"})
		defer admin.Close()
		add(t, shop, `{"id":1,"n":1}`)
		again := open(t, e, Options{App: "admin", Name: "a"})
		defer again.Close()
		if _, _, err := drain(admin); err != ErrReplaced {
			t.Errorf("the stream of the same app: %v; want it replaced", err)
		}
		shop.Finish()
		if last, _, err := drain(shop); last != 1 || err != io.EOF {
			t.Errorf("the stream of another app: %d, %v; want it untouched", last, err)
		}
		if open := e.State(); !slices.ContainsFunc(open, func(s State) bool { return s.App == "shop" && s.Name == "a" }) {
			t.Errorf("open streams %+v; want the app of each", open)
		}
	})
}

func TestLimitsOfStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32")
		e := newEngine(t, f, func(c *Config) { c.MaxStreams = 1 })
		s := open(t, e, Options{})
		if _, err := e.Open(t.Context(), Options{Table: "/local/t"}); err != ErrLimit {
			t.Errorf("a second stream: %v", err)
		}
		time.Sleep(e.config.Idle + time.Second)
		if _, _, err := drain(s); err != ErrIdle {
			t.Errorf("an idle stream: %v", err)
		}
		s.Close()
		s = open(t, e, Options{})
		defer s.Close()
		for range e.config.Idle / time.Minute * 3 {
			add(t, s, `{"id":1}`)
			time.Sleep(time.Minute)
		}
	})
}

func TestTheTableChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32", "a Optional<Utf8>", "n Optional<Int32>")
		s := open(t, newEngine(t, f, nil), Options{})
		defer s.Close()
		expect := func(last uint64, bad ...string) {
			t.Helper()
			var refused []string
			for {
				p, err := s.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range p.Refused {
					refused = append(refused, fmt.Sprint(r.Offset, " ", r.Err))
				}
				if p.Next == last {
					break
				}
			}
			if len(refused) != len(bad) || len(bad) > 0 && !strings.Contains(refused[0], bad[0]) {
				t.Errorf("refused %v; want %v", refused, bad)
			}
		}
		add(t, s, `{"id":1,"a":"x","n":1}`)
		expect(1)
		time.Sleep(time.Minute)
		f.change(table(t, "id Uint32", "a Optional<Utf8>", "n Optional<Int32>", "more Optional<Bool>"))
		add(t, s, `{"id":1,"more":true}`)
		expect(2)
		// A type changes while a row is gathered: that row cannot be written as it is.
		time.Sleep(time.Minute)
		add(t, s, `{"id":2,"n":7}`, `{"id":3,"a":"y"}`, `{"id":2,"a":"z"}`)
		f.change(table(t, "id Uint32", "a Optional<Utf8>", "n Optional<Utf8>", "more Optional<Bool>"))
		expect(5, "2 n: the table lost this column")
		if f.get("2", "a") != `"z"` || f.get("2", "n") != "" || f.get("3", "a") != `"y"` {
			t.Errorf("rows %v", f.rows)
		}
		add(t, s, `{"id":2,"n":"text"}`)
		expect(6)
		if f.get("2", "n") != `"text"` || f.get("1", "more") != "true" {
			t.Errorf("rows %v", f.rows)
		}
		// With another key nothing can be said of the rows.
		time.Sleep(time.Minute)
		other := table(t, "a Utf8", "id Uint32")
		f.change(other)
		add(t, s, `{"id":4,"a":"q"}`)
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrKey) {
			t.Errorf("%v; want %v", err, ErrKey)
		}
	})
}

// Keys of some types have several forms: their rows go one batch after the other, as they come.
func TestLooseKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id DyNumber", "n Optional<Int32>", "m Optional<Int32>")
		f.before = func([]string) (time.Duration, error) { time.Sleep(time.Second); return 0, nil }
		s := open(t, newEngine(t, f, func(c *Config) { c.BatchRows = 2 }), Options{})
		defer s.Close()
		add(t, s, `{"id":2,"n":1}`, `{"id":1,"n":2}`, `{"id":"1.0","m":3}`)
		s.Finish()
		if last, _, err := drain(s); last != 3 || err != io.EOF {
			t.Errorf("%d, %v", last, err)
		}
		if f.peak != 1 || !slices.Equal(f.requests[0], []string{`"2"`, `"1"`}) {
			t.Errorf("%d at a time, %v; want one at a time, as they came", f.peak, f.requests)
		}
	})
}

func TestValuesOfTheGRPCFace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32", "a Optional<Utf8>", "n Optional<Int32>")
		s := open(t, newEngine(t, f, nil), Options{})
		defer s.Close()
		number := func(n int64) *sidecarv1.Value {
			return &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: n}}
		}
		null := &sidecarv1.Value{Kind: &sidecarv1.Value_NullValue{NullValue: true}}
		for _, row := range []struct {
			names  []string
			values []*sidecarv1.Value
		}{
			{[]string{"n", "id"}, []*sidecarv1.Value{number(5), number(1)}},
			{[]string{"id", "a"}, []*sidecarv1.Value{number(1), null}},
			{[]string{"id", "a"}, []*sidecarv1.Value{number(1)}},
			{[]string{"id", "id"}, []*sidecarv1.Value{number(1), number(1)}},
			{[]string{"id", "z"}, []*sidecarv1.Value{number(1), number(1)}},
			{[]string{"id"}, []*sidecarv1.Value{number(-1)}},
		} {
			octets, err := proto.Marshal(&sidecarv1.Row{Values: row.values})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.AddEncoded(row.names, octets); err != nil {
				t.Fatal(err)
			}
		}
		s.Finish()
		last, refused, err := drain(s)
		if last != 6 || err != io.EOF || len(refused) != 4 {
			t.Errorf("%d, %v, %v", last, refused, err)
		}
		if f.get("1", "n") != "5" || f.get("1", "a") != "null" {
			t.Errorf("rows %v", f.rows)
		}
	})
}

func TestManyRefusalsWaitForTheirReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32")
		s := open(t, newEngine(t, f, nil), Options{})
		defer s.Close()
		var adding sync.WaitGroup
		adding.Go(func() {
			for range 3 * maxRefused {
				if s.AddJSON([]byte(`{"id":-1}`)) != nil {
					return
				}
			}
			s.Finish()
		})
		synctest.Wait()
		if n := len(s.refused); n != maxRefused {
			t.Errorf("%d refusals are kept; want %d", n, maxRefused)
		}
		if last, refused, err := drain(s); last != 3*maxRefused || len(refused) != 3*maxRefused || err != io.EOF {
			t.Errorf("%d, %d, %v", last, len(refused), err)
		}
		adding.Wait()
	})
}

// TestRefusalsOfOneBatchAreBounded: a batch whose rows are all refused waits until its refusals are read.
func TestRefusalsOfOneBatchAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTable(t, "id Uint32")
		f.before = func([]string) (time.Duration, error) { return 0, &Refused{Err: errors.New("no")} }
		s := open(t, newEngine(t, f, func(c *Config) { c.BatchRows = 3 * maxRefused }), Options{})
		for i := range 3 * maxRefused {
			add(t, s, fmt.Sprintf(`{"id":%d}`, i))
		}
		s.Finish()
		time.Sleep(time.Minute)
		s.mu.Lock()
		if n := len(s.refused); n != maxRefused {
			t.Errorf("%d refusals are held; want %d", n, maxRefused)
		}
		s.mu.Unlock()
		if last, refused, err := drain(s); last != 3*maxRefused || len(refused) != 3*maxRefused || err != io.EOF {
			t.Errorf("%d, %d, %v", last, len(refused), err)
		}
		s.Close()
	})
}

// TestUnreadRefusalsHoldUpNoEnd: nobody has to read the refusals of a stream that is given up.
func TestUnreadRefusalsHoldUpNoEnd(t *testing.T) {
	for name, end := range map[string]func(*Engine, *Stream){
		"closed":  func(_ *Engine, s *Stream) { s.Close() },
		"cut_off": func(e *Engine, s *Stream) { e.Drain(); e.Cut(); <-s.landed; s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeTable(t, "id Uint32")
				f.before = func([]string) (time.Duration, error) { return 0, &Refused{Err: errors.New("no")} }
				e := newEngine(t, f, func(c *Config) { c.BatchRows = 2 * maxRefused })
				s := open(t, e, Options{})
				for i := range 2 * maxRefused {
					add(t, s, fmt.Sprintf(`{"id":%d}`, i))
				}
				s.Finish()
				time.Sleep(time.Minute)
				end(e, s)
			})
		})
	}
}

func TestConfig(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{Delay: -1, Settle: -1}.Validate()
	for _, key := range []string{"batch_rows", "batch_bytes", "delay", "window", "max_row", "max_streams", "timeout",
		"attempt", "settle", "idle"} {
		if err == nil || !strings.Contains(err.Error(), key+" = ") {
			t.Errorf("the fault of %s is not named: %v", key, err)
		}
	}
	long := Default()
	long.Attempt = 6 * time.Minute
	if err := long.Validate(); err == nil || !strings.Contains(err.Error(), "attempt = 6m0s") {
		t.Errorf("a time that YDB does not heed: %v", err)
	}
	if _, err := New(Config{}, Deps{}); err == nil {
		t.Error("New takes a configuration that cannot work")
	}
}
