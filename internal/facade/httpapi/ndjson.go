package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// ndjson sends results as lines of JSON as they arrive: {"columns":[...]} begins
// a result set, {"row":...} follows for each row, and the last line of a complete
// reply is {"end":{...}} or {"error":{...}}. A line before each further result set
// has its number in "set".
type ndjson struct {
	x       *exchange
	format  format
	columns *yql.Columns
	set     int
	buf     []byte
	moved   func() // called whenever a piece was taken
}

// endTimeout is how long after the deadline of a call its last line may take.
const endTimeout = time.Second

// lineBytes is how much is gathered before it is handed to the connection.
const lineBytes = 64 << 10

func (a *API) stream(x *exchange, in core.ExecuteRequest, body jsonFormat) error {
	f, err := x.format(body, true)
	if err != nil {
		return err
	}
	ctx, moved, cancel, err := a.core.Bounded(x.call).Moving(x.ctx, x.call.Work, in.Timeout, x.call.Timeout)
	if err != nil {
		return err
	}
	defer cancel()
	// A caller that does not read must not hold the call beyond its deadline.
	x.sendBy(time.Time{})
	stop := whenOver(ctx, func() { x.sendBy(time.Now().Add(endTimeout)) })
	defer stop()

	in.Streamed, in.Moved = true, moved
	out := &ndjson{x: x, format: f, set: -1, moved: moved}
	done, err := a.core.Execute(ctx, x.call, in, out)
	if err == nil {
		err = out.finish(ctx, done)
	}
	if err != nil && x.started {
		// Too late for a status: the last line says it.
		fault := a.core.Told(x.ctx, x.call, err)
		out.buf = append(appendProblem(append(out.buf, `{"error":`...), fault, x.call.Failing()), '}', '\n')
		_ = out.flush(ctx)
	}
	if x.started {
		x.timing() // announced as a trailer
	}
	return err
}

func (n *ndjson) Begin(ctx context.Context, columns *yql.Columns) error {
	n.set++
	n.columns = columns
	n.buf = append(n.buf, '{')
	if n.set > 0 {
		n.buf = append(n.buf, `"set":`...)
		n.buf = strconv.AppendInt(n.buf, int64(n.set), 10)
		n.buf = append(n.buf, ',')
	}
	n.buf = append(n.columns.AppendHeader(append(n.buf, `"columns":`...)), '}', '\n')
	return n.flush(ctx)
}

func (n *ndjson) Rows(ctx context.Context, rows [][]byte) (err error) {
	for _, row := range rows {
		start := len(n.buf)
		if n.buf, err = n.format.appendRow(append(n.buf, `{"row":`...), n.columns, row); err != nil {
			n.buf = n.buf[:start] // no half a line
			return err
		}
		n.buf = append(n.buf, '}', '\n')
		if len(n.buf) >= lineBytes {
			if err := n.write(ctx); err != nil {
				return err
			}
		}
	}
	return n.flush(ctx)
}

func (n *ndjson) Cut() {}

func (n *ndjson) Again() bool { return !n.x.started }

func (n *ndjson) Held() int { return 0 }

// finish sends the last line.
func (n *ndjson) finish(ctx context.Context, done core.Outcome) error {
	if n.set < 0 {
		n.buf = append(n.buf, `{"columns":[]}`+"\n"...) // DDL has no rows, but the form stays
	}
	n.buf = append(n.buf, `{"end":{"rows":`...)
	n.buf = strconv.AppendUint(n.buf, done.Rows, 10)
	n.buf = strconv.AppendBool(append(n.buf, `,"truncated":`...), done.Truncated)
	n.buf = append(appendOutcome(n.buf, done, n.x.call.Info), "}}\n"...)
	return n.write(ctx)
}

// write hands what was gathered to the connection, head first.
func (n *ndjson) write(ctx context.Context) error {
	if !n.x.started {
		n.x.started = true
		h := n.x.w.Header()
		h.Set("Content-Type", mediaNDJSON)
		h.Set("Trailer", "Server-Timing")
		n.x.call.Headers(h.Set)
		n.x.call.Status = http.StatusOK
		n.x.w.WriteHeader(http.StatusOK)
	}
	n.x.call.Count(len(n.buf))
	defer func() { n.buf = n.buf[:0] }()
	for piece := range slices.Chunk(n.buf, lineBytes) { // a row may be large, and its caller slow
		if _, err := n.x.w.Write(piece); err != nil {
			return core.Unread(ctx)
		}
		n.moved()
	}
	return nil
}

// flush sends it on to the caller.
func (n *ndjson) flush(ctx context.Context) error {
	if err := n.write(ctx); err != nil {
		return err
	}
	if err := n.x.control.Flush(); err != nil {
		return core.Unread(ctx)
	}
	return nil
}
