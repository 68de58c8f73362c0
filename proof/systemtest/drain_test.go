package systemtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// outcome is how one call of a drain ended.
type outcome int

const (
	answered outcome = iota // the whole answer
	refused                 // by the sidecar, in its words: DRAINING, nothing was sent
	absent                  // no process listens any more, or the idle connection was closed: nothing was read
	cut                     // anything else: a call that was under way was lost
)

// tally counts the outcomes of one kind of call.
type tally struct {
	kind  string
	count [4]atomic.Int64
	first sync.Map // the first error that was a cut
}

func (c *tally) add(err error, refusal func(error) bool) {
	switch {
	case err == nil:
		c.count[answered].Add(1)
	case refusal(err):
		c.count[refused].Add(1)
	case errors.Is(err, errUnread) || strings.Contains(err.Error(), "connection refused"),
		strings.Contains(err.Error(), "connect: connection reset"), // the listener closed in the middle of the handshake
		// or after it, before the connection was accepted: gRPC sends no call before the preface
		strings.Contains(err.Error(), "error reading server preface"), strings.Contains(err.Error(), "failed to write client preface"):
		c.count[absent].Add(1)
	default:
		c.count[cut].Add(1)
		c.first.LoadOrStore("cut", err)
	}
}

// stops tells a sidecar that holds sessions to stop: it ends well and leaves none.
func (s *sidecar) stops(t *testing.T, c *ydb) {
	t.Helper()
	if sum(c.perNode(t)) == 0 {
		t.Fatal("no sessions under load: the test proves nothing")
	}
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wait, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	exit, err := s.Wait(wait)
	if err != nil {
		t.Fatal(err)
	}
	if count := c.perNode(t); sum(count) != 0 {
		t.Errorf("after the end the nodes hold sessions: %v", count)
	}
	if exit != 0 {
		t.Errorf("exit code %d; want 0\n%s", exit, stand.LastLines(s.Log(), 10))
	}
}

func TestStopUnderLoadCutsNoAnswerAndLeavesNoSession(t *testing.T) { stopUnderLoad(t) }

func stopUnderLoad(t *testing.T, settings ...string) {
	const each = 8
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, append(settings, "pool.max=40")...)
	fillBig(t, s)
	// Every statement is under way for a while, so that some surely are when the signal comes.
	c.everywhere(t, "delay", map[string]any{"delay": "50ms", "methods": []string{"ExecuteQuery"}})

	kinds := []struct {
		name       string
		statements int64 // of one call
		call       func(ctx context.Context) error
	}{
		{"gRPC", 1, func(ctx context.Context) error {
			_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			return err
		}},
		{"gRPC stream", 1, func(ctx context.Context) error { return wholeStream(ctx, s) }},
		{"gRPC transaction", 2, func(ctx context.Context) error { return transaction(ctx, s) }},
		{"HTTP", 1, func(ctx context.Context) error { return post(ctx, s, "application/json", wholeReply) }},
		{"HTTP stream", 1, func(ctx context.Context) error { return post(ctx, s, "application/x-ndjson", wholeLines) }},
	}
	before := c.sum(t, "statements")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var work sync.WaitGroup
	tallies := make([]*tally, len(kinds))
	for i, kind := range kinds {
		tallies[i] = &tally{kind: kind.name}
		for range each {
			work.Go(func() {
				for ctx.Err() == nil {
					err := kind.call(ctx)
					if ctx.Err() == nil {
						tallies[i].add(err, draining)
					}
					if tallies[i].count[absent].Load() > 0 {
						return
					}
				}
			})
		}
	}
	eventually(t, patience, "every kind of call works", func() string {
		for _, tally := range tallies {
			if n := tally.count[answered].Load(); n < 3*each {
				return fmt.Sprintf("%s: %d answers", tally.kind, n)
			}
		}
		return ""
	})
	s.stops(t, c)
	work.Wait() // every caller ends when no process listens
	ran, told := c.sum(t, "statements")-before, int64(0)
	for i, tally := range tallies {
		told += tally.count[answered].Load() * kinds[i].statements
		t.Logf("%s: %d answered, %d refused, %d found nobody", tally.kind,
			tally.count[answered].Load(), tally.count[refused].Load(), tally.count[absent].Load())
		if n := tally.count[cut].Load(); n > 0 {
			err, _ := tally.first.Load("cut")
			t.Errorf("%s: %d calls were cut off, the first with %v", tally.kind, n, err)
		}
	}
	// The nodes' own count: whatever ran was answered, and no caller was told less.
	if ran != told {
		t.Errorf("the nodes ran %d statements and the callers had the answers to %d", ran, told)
	}
}

// errUnread wraps the error of a request that was on its way when its idle
// connection was closed. HTTP/1.1 has no word to prevent that. It is not what a
// lost answer is: the count of statements tells the two apart.
var errUnread = errors.New("the connection was closed before the request was read")

func sum(count map[uint32]int) (n int) {
	for _, one := range count {
		n += one
	}
	return n
}

// draining reports whether the sidecar refused a call in its own words.
func draining(err error) bool {
	if p, ok := errors.AsType[*problem](err); ok {
		return p.Code == "DRAINING"
	}
	return code(err) == "DRAINING"
}

// bigRows is how many rows the table of the streams has.
const bigRows = 2000

// fillBig creates that table.
func fillBig(t *testing.T, s *sidecar) {
	t.Helper()
	if _, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{
		Sql: "CREATE TABLE big (id Uint64, payload Utf8, PRIMARY KEY (id))"}); err != nil {
		t.Fatal(err)
	}
	payload := &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: strings.Repeat("x", 100)}}
	request := &sidecarv1.BulkUpsertRequest{Table: "big"}
	for id := range uint64(bigRows) {
		request.Rows = append(request.Rows,
			&sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{"id": unsigned(id), "payload": payload}})
	}
	if _, err := s.BulkUpsert(t.Context(), request); err != nil {
		t.Fatal(err)
	}
}

func wholeStream(ctx context.Context, s *sidecar) error {
	parts, err := s.ExecuteStream(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT id, payload FROM big"})
	if err != nil {
		return err
	}
	rows, ended := 0, false
	for {
		part, err := parts.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		rows += len(part.GetRows().GetRows())
		if end := part.GetEnd(); end != nil {
			ended = true
			if rows != bigRows || end.Rows != bigRows {
				return fmt.Errorf("%d rows came and the end says %d; want %d", rows, end.Rows, bigRows)
			}
		}
	}
	if !ended {
		return fmt.Errorf("the stream stopped without its end after %d rows", rows)
	}
	return nil
}

// transaction begins, reads and commits. Once it is begun, the drain must let it finish.
func transaction(ctx context.Context, s *sidecar) error {
	begun, err := s.Begin(ctx, &sidecarv1.BeginRequest{})
	if err != nil {
		return err
	}
	for seq := range uint64(2) {
		if _, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1",
			Tx: &sidecarv1.TxSelector{Id: begun.Tx.Id, Seq: seq + 1, Commit: seq == 1}}); err != nil {
			return fmt.Errorf("statement %d of an open transaction: %v", seq+1, err) // never a refusal
		}
	}
	return nil
}

// problem is an error over HTTP.
type problem struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Status int    `json:"status"`
}

func (p *problem) Error() string { return fmt.Sprintf("HTTP %d %s: %s", p.Status, p.Code, p.Detail) }

func post(ctx context.Context, s *sidecar, accept string, whole func(*http.Response) error) error {
	body := strings.NewReader(`{"sql":"SELECT id, payload FROM big"}`)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/v1/query", body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", accept)
	response, err := http.DefaultClient.Do(request)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		strings.Contains(err.Error(), "server closed idle connection"):
		return fmt.Errorf("%w: %w", errUnread, err)
	default:
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		p := &problem{}
		if err := json.NewDecoder(response.Body).Decode(p); err != nil {
			return fmt.Errorf("%s: %w", response.Status, err)
		}
		return p
	}
	return whole(response)
}

func wholeReply(response *http.Response) error {
	var reply struct{ Rows []json.RawMessage }
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil {
		return fmt.Errorf("read the reply: %w", err)
	}
	if len(reply.Rows) != bigRows {
		return fmt.Errorf("got %d rows; want %d", len(reply.Rows), bigRows)
	}
	return nil
}

// wholeLines reads NDJSON to its end, which must be an "end" line.
func wholeLines(response *http.Response) error {
	lines, rows := bufio.NewScanner(response.Body), 0
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Row   json.RawMessage
			End   json.RawMessage
			Error *problem
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("line after %d rows: %w", rows, err)
		}
		switch {
		case line.Error != nil:
			return line.Error
		case line.End != nil:
			return nil
		case line.Row != nil:
			rows++
		}
	}
	return fmt.Errorf("the lines stopped without an end after %d rows: %w", rows, lines.Err())
}
