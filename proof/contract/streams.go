package contract

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Streams is what the cases of streams that move need: a sidecar with a short api.timeout, and a cluster that can be slow.
type Streams struct {
	Timeout time.Duration                  // api.timeout of the sidecar
	Slow    func(bytesPerSecond int) error // limits each connection from the sidecar to a node
	Silent  func() error                   // has the nodes say nothing more on these connections
	Clear   func() error                   // ends both
}

// streamCases are the cases of Streams.
var streamCases = []contractCase{
	{"a_stream_that_moves_outlives_the_timeout", movingStream},
	{"a_stream_in_which_nothing_moves_ends", silentStream},
	{"a_timeout_of_the_caller_bounds_the_whole_stream", boundedStream},
}

// The reply of slowStatement, and the speed at which it takes two and a half times api.timeout.
const (
	slowRows = 60
	slowRow  = 100 << 10 // bytes
)

// slowStatement has an answer that takes much longer than api.timeout at the speed that slow sets.
func (t *test) slowStatement() Statement {
	rows := make([]any, slowRows)
	for i := range rows {
		rows[i] = map[string]any{"n": i}
	}
	return Statement{
		SQL:    "DECLARE $rows AS List<Struct<n:Int32>>; DECLARE $text AS Utf8; SELECT n, $text AS text FROM AS_TABLE($rows)",
		Params: map[string]any{"rows": rows, "text": strings.Repeat("x", slowRow)}, Mode: "snapshot_ro",
	}
}

// slow makes the cluster slow for the rest of the case.
func (t *test) slow() {
	t.Helper()
	whole := 5 * t.Streams.Timeout / 2
	t.untilServed(t.ctx) // there is a session, which takes no time of the case
	if err := t.Streams.Slow(int(float64(slowRows*slowRow) / whole.Seconds())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := t.Streams.Clear(); err != nil {
			t.Error(err)
		}
		// The case's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		t.untilServed(ctx)
	})
}

// untilServed returns when a statement succeeds. Nodes that were silent may be found so for a moment more.
func (t *test) untilServed(ctx context.Context) {
	t.Helper()
	for {
		_, err := t.Execute(ctx, Statement{SQL: "SELECT 1", Mode: "snapshot_ro"})
		if err == nil {
			return
		}
		if e, ok := errors.AsType[*Error](err); !ok || !e.Safe {
			t.Errorf("the sidecar does not serve: %v", err)
			return
		}
	}
}

// streamSlowly streams the slow statement without a deadline: over gRPC the deadline of a context is one of the caller's.
func (t *test) streamSlowly(s Statement) (*Reply, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.ctx))
	defer cancel()
	late := time.AfterFunc(time.Minute, cancel)
	defer late.Stop()
	return t.Stream(ctx, s)
}

// movingStream: api.timeout bounds pauses, so that a stream without a timeout lasts as long as it moves.
func movingStream(t *test) {
	t.slow()
	began := time.Now()
	r, err := t.streamSlowly(t.slowStatement())
	if err != nil || len(r.Rows) != slowRows {
		t.Fatalf("%v; want all %d rows", err, slowRows)
	}
	if took := time.Since(began); took < 2*t.Streams.Timeout {
		t.Errorf("it took %v, and api.timeout is %v; the case shows nothing", took, t.Streams.Timeout)
	}
}

// silentStream: a stream that came to a stop ends after api.timeout, as an error that says that nothing was kept.
func silentStream(t *test) {
	t.slow()
	began := time.Now()
	later := time.AfterFunc(t.Streams.Timeout/2, func() {
		if err := t.Streams.Silent(); err != nil {
			t.Error(err)
		}
	})
	defer later.Stop()
	_, err := t.streamSlowly(t.slowStatement())
	e := t.refused(err, "DEADLINE_EXCEEDED", true, false)
	if e.Status != 504 {
		t.Errorf("status %d; want 504", e.Status)
	}
	if took := time.Since(began); took < t.Streams.Timeout {
		t.Errorf("it took %v, and api.timeout is %v", took, t.Streams.Timeout)
	}
}

// boundedStream: with a timeout of its caller a stream ends then, though it moves.
func boundedStream(t *test) {
	t.slow()
	s := t.slowStatement()
	s.Timeout = t.Streams.Timeout.String()
	_, err := t.streamSlowly(s)
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != "DEADLINE_EXCEEDED" && e.Code != "SHED_DEADLINE" || !e.Safe {
		t.Errorf("got %v; want the end of the caller's time", err)
	}
}
