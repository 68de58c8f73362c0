package facade

import (
	"context"
	"net/http"
	"strconv"
	"time"

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
}

// endTimeout is how long after the deadline of a call its last line may take.
const endTimeout = time.Second

// lineBytes is how much is gathered before it is handed to the connection.
const lineBytes = 64 << 10

func (a *httpAPI) stream(x *exchange, in executeRequest, body jsonFormat) error {
	f, err := x.format(body, true)
	if err != nil {
		return err
	}
	ctx, cancel, err := a.core.cfg.API.deadline(x.ctx, x.call.work, in.timeout, x.call.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	// A caller that does not read must not hold the call beyond its deadline.
	x.sendBy(time.Time{})
	stop := whenOver(ctx, func() { x.sendBy(time.Now().Add(endTimeout)) })
	defer stop()

	in.streamed = true
	out := &ndjson{x: x, format: f, set: -1}
	done, err := a.core.execute(ctx, x.call, in, out)
	if err == nil {
		err = out.finish(ctx, done)
	}
	if err != nil && x.started {
		// Too late for a status: the last line says it.
		fault := faultOf(err, deed{})
		out.buf = append(appendProblem(append(out.buf, `{"error":`...), fault, x.call.failing()), '}', '\n')
		_ = out.flush(ctx)
	}
	if x.started {
		x.timing() // announced as a trailer
	}
	return err
}

func (n *ndjson) begin(ctx context.Context, columns *yql.Columns) error {
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

func (n *ndjson) rows(ctx context.Context, rows [][]byte) (err error) {
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

func (n *ndjson) cut() {}

func (n *ndjson) again() bool { return !n.x.started }

func (n *ndjson) held() int { return 0 }

// finish sends the last line.
func (n *ndjson) finish(ctx context.Context, done outcome) error {
	if n.set < 0 {
		n.buf = append(n.buf, `{"columns":[]}`+"\n"...) // DDL has no rows, but the form stays
	}
	n.buf = append(n.buf, `{"end":{"rows":`...)
	n.buf = strconv.AppendUint(n.buf, done.rows, 10)
	n.buf = strconv.AppendBool(append(n.buf, `,"truncated":`...), done.truncated)
	n.buf = append(appendOutcome(n.buf, done, n.x.call.info), "}}\n"...)
	return n.write(ctx)
}

// write hands what was gathered to the connection, head first.
func (n *ndjson) write(ctx context.Context) error {
	if !n.x.started {
		n.x.started = true
		h := n.x.w.Header()
		h.Set("Content-Type", mediaNDJSON)
		h.Set("Trailer", "Server-Timing")
		n.x.call.status = http.StatusOK
		n.x.w.WriteHeader(http.StatusOK)
	}
	n.x.call.count(len(n.buf))
	_, err := n.x.w.Write(n.buf)
	n.buf = n.buf[:0]
	if err != nil {
		return unread(ctx)
	}
	return nil
}

// flush sends it on to the caller.
func (n *ndjson) flush(ctx context.Context) error {
	if err := n.write(ctx); err != nil {
		return err
	}
	if err := n.x.control.Flush(); err != nil {
		return unread(ctx)
	}
	return nil
}
