package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// written runs f with a log and returns what it wrote.
func written(t *testing.T, c Config, f func(l *Log)) string {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	l := New(c, slog.New(slog.NewJSONHandler(&out, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(ctx) })
	f(l)
	cancel()
	wg.Wait()
	return out.String()
}

func TestWhichCallsGetALine(t *testing.T) {
	for access, want := range map[string]string{Off: "", Errors: "failed ", Slow: "failed slow ", All: "failed slow good "} {
		got := written(t, Config{Access: access, Slow: time.Second, Rate: 100}, func(l *Log) {
			for _, c := range []Call{{Method: "failed", Reason: "X"}, {Method: "slow", Took: time.Second},
				{Method: "good", Took: time.Millisecond}} {
				if l.Wants(c.Reason != "", c.Took) == 1 {
					l.Write(c)
				}
			}
		})
		methods := ""
		for line := range strings.Lines(got) {
			var one struct{ Method string }
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			methods += one.Method + " "
		}
		if methods != want {
			t.Errorf("%s: lines of %q; want %q", access, methods, want)
		}
	}
}

func TestALine(t *testing.T) {
	c := Call{
		API: "http", Method: "sidecar.v1.Sidecar/Execute", Route: "POST /v1/query", Status: "503",
		Reason: "POOL_TIMEOUT", App: "shop", Class: "batch", Mode: "snapshot_ro", Node: 3, Attempts: 2, Answer: 77,
		Took: 1500 * time.Microsecond, Phases: [4]Phase{{"queue_ms", 0.5}, {"hop_ms", 0}}, TraceID: "abc", SQL: "SELECT 'secret'",
		Sampled: 7,
	}
	config := Config{Access: Errors, Slow: time.Second, Rate: 1}
	var line map[string]any
	got := written(t, config, func(l *Log) { l.Write(c) })
	if err := json.Unmarshal([]byte(got), &line); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	for name, want := range map[string]any{
		"level": "WARN", "msg": "call", "face": "http", "route": "POST /v1/query", "status": "503",
		"reason": "POOL_TIMEOUT", "app": "shop", "class": "batch", "mode": "snapshot_ro", "node": 3.0, "answer_bytes": 77.0,
		"attempts": 2.0, "sampled": 7.0, "total_ms": 1.5, "queue_ms": 0.5, "hop_ms": 0.0, "trace_id": "abc", "sql": nil,
		"request_bytes": nil,
	} {
		if line[name] != want {
			t.Errorf("%s = %v; want %v", name, line[name], want)
		}
	}
	config.Statements = true
	c.Request, c.Answer = 78, 0
	c.SQL = "x" + strings.Repeat("ä", 2000) // two bytes each: the bound is within one
	if err := json.Unmarshal([]byte(written(t, config, func(l *Log) { l.Write(c) })), &line); err != nil {
		t.Fatal(err)
	}
	if line["request_bytes"] != 78.0 {
		t.Errorf("request_bytes = %v; want 78", line["request_bytes"])
	}
	if sql, _ := line["sql"].(string); len(sql) != maxSQL-1+3 || strings.ContainsRune(sql, utf8.RuneError) {
		t.Errorf("sql has %d bytes; want %d, and whole characters", len(sql), maxSQL-1+3)
	}
}

// A flood of failures costs a bounded number of lines a second, and one now and then, and at the
// end, that says how many are missing.
func TestTheRateIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, seconds, flood = 50, 25, 1000
		wrote := 0
		got := written(t, Config{Access: Errors, Slow: time.Second, Rate: rate}, func(l *Log) {
			for range seconds {
				for range flood {
					if n := l.Wants(true, 0); n > 0 {
						wrote++
						l.Write(Call{Reason: "X", Sampled: n})
					}
				}
				time.Sleep(time.Second)
			}
			if l.Left() != uint64(seconds*flood-wrote) {
				t.Errorf("%d lines left out; want %d", l.Left(), seconds*flood-wrote)
			}
		})
		if wrote < seconds*rate/2 || wrote > (seconds+1)*rate+1 {
			t.Errorf("%d lines; want at most %d, and more than half of them", wrote, (seconds+1)*rate)
		}
		if n := strings.Count(got, `"msg":"call"`); n != wrote {
			t.Errorf("%d lines were written of %d", n, wrote)
		}
		reports, missing := 0, 0
		for line := range strings.Lines(got) {
			var one struct {
				Msg, Setting string
				Calls        int
			}
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			if one.Setting == "log.access_rate" && strings.Contains(one.Msg, "left out") {
				reports++
				missing += one.Calls
			}
		}
		if want := int(seconds*time.Second/report) + 1; reports != want || missing != seconds*flood-wrote {
			t.Errorf("%d lines say that %d calls are missing; want %d, %d", reports, missing, want, seconds*flood-wrote)
		}
	})
}

// Whoever writes never waits for the log.
func TestAWriterThatHangsHoldsNobodyUp(t *testing.T) {
	l := New(Config{Access: All, Slow: time.Second, Rate: maxRate}, slog.New(slog.DiscardHandler)) // Run does not run
	for range backlog + 10 {
		l.Write(Call{})
	}
	if l.Left() != 10 {
		t.Errorf("%d lines left out; want 10", l.Left())
	}
}

func TestSetChangesTheRulesAtOnce(t *testing.T) {
	l := New(Default(), slog.New(slog.DiscardHandler))
	if l.On() || l.Wants(true, time.Hour) > 0 {
		t.Error("off logs")
	}
	l.Set(Config{Access: Errors, Slow: time.Second, Rate: 1})
	if !l.On() || l.Wants(true, 0) != 1 || l.Wants(false, time.Hour) > 0 {
		t.Error("errors does not log errors alone")
	}
	var none *Log
	if none.On() || none.Wants(true, 0) > 0 || none.Left() != 0 {
		t.Error("none logs")
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	err := Config{Access: "some", Slow: -1}.Validate()
	for _, name := range []string{"access = ", "access_slow = ", "access_rate = "} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v; want a fault of %s", err, name)
		}
	}
}

func TestNothingIsAllocatedForCallsWithoutALine(t *testing.T) {
	l := New(Config{Access: Errors, Slow: time.Second, Rate: 1}, slog.New(slog.DiscardHandler))
	if n := testing.AllocsPerRun(1000, func() { l.Wants(false, time.Second); l.Wants(true, 0) }); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}

func BenchmarkWants(b *testing.B) {
	b.Run("good", func(b *testing.B) {
		l := New(Config{Access: Errors, Slow: time.Second, Rate: 1}, slog.New(slog.DiscardHandler))
		for b.Loop() {
			l.Wants(false, time.Millisecond)
		}
	})
	b.Run("flood", func(b *testing.B) {
		l := New(Config{Access: Errors, Slow: time.Second, Rate: 1}, slog.New(slog.DiscardHandler))
		for b.Loop() {
			l.Wants(true, time.Millisecond)
		}
	})
}
