package contract

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// Operator is what the cases of operators need. The sidecar serves no other client meanwhile.
type Operator struct {
	Admin string // base URL of the admin port
	HTTP  string // base URL of the HTTP API, whatever the cases run over
	Queue int    // pool.queue of the sidecar
}

// operatorCases are the cases of Operator; they need KVTables.
var operatorCases = []contractCase{
	{"a_pause_holds_every_call", pauseHolds},
	{"a_call_that_a_pause_holds_too_long_says_so", pauseIsTold},
	{"a_kill_ends_every_call", killEnds},
	{"a_full_queue_is_back_pressure", fullQueue},
}

// post asks the admin port to do something.
func (t *test) post(path string) {
	t.Helper()
	t.admin(http.MethodPost, path, nil)
}

func (t *test) admin(method, path string, into any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a pause is lifted after the case too
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, t.Operator.Admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d, %s, %v", method, path, res.StatusCode, body, err)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %v in %s", path, err, body)
	}
}

// pause holds calls until what it returns is called, or the case ends.
func (t *test) pause() (resume func()) {
	t.Helper()
	t.post("/pool/pause")
	paused := true
	resume = func() {
		if paused {
			paused = false
			t.post("/pool/resume")
		}
	}
	t.Cleanup(resume)
	return resume
}

// An openCall is what GET /state/calls has of a call.
type openCall struct {
	Call, Name, Phase, Mode string
	Trace                   string `json:"trace_id"`
}

// held returns the calls that are under way, once there are n and a pause holds all of them.
func (t *test) held(n int) []openCall {
	t.Helper()
	// There is no event to wait for in another process.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var all struct{ Calls []openCall }
		t.admin(http.MethodGet, "/state/calls", &all)
		others := slices.ContainsFunc(all.Calls, func(c openCall) bool { return c.Phase != "paused" })
		if len(all.Calls) == n && !others {
			return all.Calls
		}
		if time.Now().After(deadline) {
			t.Fatalf("the calls are %+v; want %d that are paused", all.Calls, n)
		}
	}
}

// A heldCall is a call that a pause holds.
type heldCall struct {
	name string // of the call in /state/calls, without "Stream"
	mode string // in which it is listed there; "": it has none
	do   func(ctx context.Context) error
}

// heldCalls is one call of each kind, about a table and a key-value table.
func (t *test) heldCalls(table string) []heldCall {
	read := Statement{SQL: "SELECT id FROM " + table, Mode: "snapshot_ro"}
	write := Statement{SQL: "UPSERT INTO " + table + " (id, n) VALUES (1ul, 1)", Mode: "serializable_rw"}
	key := KV{Table: kvPlain, ID: []any{"1"}, Value: []byte("v")}
	return []heldCall{
		{"Execute", "snapshot_ro", func(ctx context.Context) error {
			_, err := t.Execute(ctx, read)
			return err
		}},
		{"Execute", "snapshot_ro", func(ctx context.Context) error {
			_, err := t.Stream(ctx, read)
			return err
		}},
		{"Transact", "serializable_rw", func(ctx context.Context) error {
			_, err := t.Transact(ctx, Transaction{Statements: []Statement{{SQL: read.SQL}, {SQL: write.SQL}}})
			return err
		}},
		{"Begin", "", func(ctx context.Context) error {
			tx, err := t.Begin(ctx, "snapshot_ro")
			if err == nil {
				err = t.Rollback(ctx, tx.ID)
			}
			return err
		}},
		{"Batch", "snapshot_ro", func(ctx context.Context) error { return t.batchOf(ctx, read, read) }},
		{"BulkUpsert", "", func(ctx context.Context) error {
			_, err := t.BulkUpsert(ctx, Bulk{Table: pathOf(table), Rows: []map[string]any{{"id": 1, "n": 1}}})
			return err
		}},
		{"KeyValue/Put", "serializable_rw", func(ctx context.Context) error {
			_, err := t.Put(ctx, key)
			return err
		}},
		{"KeyValue/Get", "snapshot_ro", func(ctx context.Context) error {
			_, err := t.Get(ctx, key)
			return err
		}},
	}
}

// batchOf runs a batch whose statements have the same outcome, and returns the error of the first.
func (t *test) batchOf(ctx context.Context, list ...Statement) error {
	results, err := t.Batch(ctx, list)
	if err == nil && results[0].Error != nil {
		err = results[0].Error
	}
	return err
}

// pauseHolds: while calls are paused each kind of call waits and is listed, and it succeeds after the pause. So does a stream of rows.
func pauseHolds(t *test) {
	table := t.table()
	t.openPlain()
	for _, c := range t.heldCalls(table) {
		resume, done := t.pause(), make(chan error, 1)
		go func() { done <- c.do(t.ctx) }()
		if open := t.held(1)[0]; strings.TrimSuffix(open.Name, "Stream") != c.name || open.Mode != c.mode {
			t.Errorf("%+v is listed; want %s in mode %q", open, c.name, c.mode)
		}
		select {
		case err := <-done:
			t.Errorf("%s did not wait: %v", c.name, err)
		default:
		}
		resume()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	resume := t.pause()
	rows, err := t.Ingest(t.ctx, IngestOpen{Table: pathOf(table)})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if err := rows.Send([]string{"id", "n"}, []any{5, 5}); err != nil {
		t.Fatal(err)
	}
	resume()
	if part, err := rows.Next(); err != nil || part.Next != 1 {
		t.Errorf("the stream of rows went on with %+v, %v; want that its row is there", part, err)
	}
}

// pauseIsTold: the error of a call that waited too long names the pause, to the caller and to the operator; back-pressure bound
// by a deadline is 503.
func pauseIsTold(t *test) {
	t.pause()
	_, err := t.Execute(t.ctx, Statement{SQL: "SELECT 1", Timeout: "300ms"})
	e := t.refused(err, "POOL_TIMEOUT", true, false)
	t.status(e, http.StatusServiceUnavailable, codes.Unavailable)
	if !strings.Contains(e.Message, "paused by an operator") || !strings.Contains(e.Hint, "operator paused") ||
		!strings.Contains(e.Operator, "sidecar resume") || e.RetryAfter < time.Second {
		t.Errorf("%q, hints %q and %q, again after %v; want the pause in all of them", e.Message, e.Hint, e.Operator, e.RetryAfter)
	}
}

// killEnds: an operator ends a call by its trace id, or by its name; the error says who ended it, and that nothing was kept.
func killEnds(t *test) {
	table := t.table()
	t.openPlain()
	defer t.pause()()
	for _, c := range t.heldCalls(table) {
		var trace [16]byte
		_, _ = rand.Read(trace[:]) // never fails
		want, done := hex.EncodeToString(trace[:]), make(chan error, 1)
		go func() { done <- c.do(inTrace(t.ctx, want)) }()
		open := t.held(1)[0]
		if !t.driven() && open.Trace != want {
			t.Errorf("%+v is listed; want the trace %s", open, want)
		}
		id := open.Trace
		if t.driven() { // a library names its traces itself, if any
			id = open.Call
		}
		t.post("/calls/" + id + "/kill")
		err := <-done
		e, ok := err.(*Error)
		if !ok || e.Code != "CANCELLED" || e.Unknown || !strings.Contains(e.Message, "ended by an operator") {
			t.Errorf("%s: %v; want CANCELLED by an operator, and that nothing is unknown", c.name, err)
		}
	}
}

// fullQueue: calls beyond pool.queue are 429 with a time after which they may come again.
func fullQueue(t *test) {
	defer t.pause()()
	others := OverHTTP(t.Operator.HTTP)
	ctx, cancel := context.WithCancel(t.ctx)
	var waiting sync.WaitGroup
	defer func() {
		cancel()
		waiting.Wait()
		others.Close()
	}()
	for n := 1; n <= t.Operator.Queue; n++ {
		waiting.Go(func() { _, _ = others.Execute(ctx, Statement{SQL: "SELECT 1", Timeout: "1m"}) }) // ends with the case
		t.held(n)
	}
	_, err := t.Execute(t.ctx, Statement{SQL: "SELECT 1"})
	e := t.refused(err, "QUEUE_FULL", true, false)
	t.status(e, http.StatusTooManyRequests, codes.ResourceExhausted)
	if e.RetryAfter <= 0 {
		t.Errorf("again after %v; want a time", e.RetryAfter)
	}
}

type traceKey struct{}

// inTrace returns a context whose calls belong to a trace.
func inTrace(ctx context.Context, trace string) context.Context {
	parent := fmt.Sprintf("00-%s-00f067aa0ba902b7-01", trace)
	return context.WithValue(metadata.AppendToOutgoingContext(ctx, "traceparent", parent), traceKey{}, parent)
}
