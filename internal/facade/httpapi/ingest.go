package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// lineBuffer is what is read of a body at a time, in bytes.
const lineBuffer = 64 << 10

// ingest reads rows as lines and answers with lines while they come.
func (a *API) ingest(x *exchange) error {
	f := &ingestLines{api: a, x: x, fed: make(chan struct{})}
	// HTTP/2 is full duplex as it is, and says that it has no such switch.
	_ = x.control.EnableFullDuplex()
	in := rows.Request{Table: a.tablePath(x, "table")}
	offset, err := x.parameter("offset")
	if err == nil {
		in.Stream, err = x.parameter("stream")
	}
	if err == nil && offset != "" {
		if in.Offset, err = strconv.ParseUint(offset, 10, 63); err != nil {
			err = core.BadRequest("offset: %.40q is not a number from 0 to %d", offset, math.MaxInt64)
		}
	}
	if err == nil {
		err = a.rows.Run(x.ctx, x.call, in, f)
	}
	if !x.started {
		return err
	}
	if err != nil {
		f.buf = append(appendProblem(append(f.buf[:0], `{"error":`...), a.core.Told(x.ctx, x.call, err), x.call.TraceID), '}', '\n')
		_ = f.send(context.WithoutCancel(x.ctx)) // whoever left does not read it
	}
	// Nobody may read the body once the handler has returned.
	select {
	case <-f.fed:
	default:
		_ = x.receiveBy(time.Now().Add(linger))
		<-f.fed
	}
	return err
}

// ingestLines is the HTTP side of one stream.
type ingestLines struct {
	api *API
	x   *exchange
	buf []byte
	fed chan struct{} // closed when the body is not read any more
}

func (f *ingestLines) Opened(ctx context.Context) error {
	_ = f.x.receiveBy(time.Time{}) // a stream may rest
	f.x.started = true
	f.x.w.Header().Set("Content-Type", mediaNDJSON)
	f.x.call.Headers(f.x.w.Header().Set)
	f.x.call.Status = http.StatusOK
	f.x.w.WriteHeader(http.StatusOK)
	if err := f.x.control.Flush(); err != nil {
		close(f.fed)
		return core.Unread(ctx)
	}
	return nil
}

// Feed adds the lines of the body, and then reads over what may still come of
// it: most callers hear of the end only when they have sent.
func (f *ingestLines) Feed(ctx context.Context, rows *ingest.Stream, pace func(int) error, added func()) error {
	defer close(f.fed)
	body := pacedReader{slowly{ctx, f.x.r.Body, f.api.core.Deps.Memory}, pace, added}
	lines := lineReader{r: bufio.NewReaderSize(body, lineBuffer), limit: f.api.rows.Config.MaxRow}
	err := addLines(&lines, rows)
	switch {
	case err == nil:
		return nil
	case lines.broken != nil:
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return core.BadRequest("the body ended early: %v", lines.broken)
	}
	rows.Stop(err)
	_, _ = io.Copy(io.Discard, f.x.r.Body) // until ingest or the caller ends it
	return err
}

// slowly reads with pauses while memory is short.
type slowly struct {
	ctx    context.Context
	r      io.Reader
	memory *memguard.Guard
}

// Read implements io.Reader.
func (s slowly) Read(p []byte) (int, error) {
	s.memory.Slow(s.ctx)
	return s.r.Read(p)
}

func addLines(lines *lineReader, rows *ingest.Stream) error {
	for {
		line, err := lines.next()
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, errLongLine):
			err = rows.Refuse(&yql.Error{Msg: "the row has more than " + strconv.Itoa(lines.limit) + " bytes (ingest.max_row)"})
		case err != nil:
			return err
		case len(line) == 0:
			continue
		default:
			err = rows.AddJSON(line)
		}
		if err != nil {
			return err
		}
	}
}

// send hands what was gathered on to the caller.
func (f *ingestLines) send(ctx context.Context) error {
	f.x.sendBy(time.Now().Add(replyTimeout))
	_, err := f.x.w.Write(f.buf)
	if f.buf = f.buf[:0]; err == nil {
		err = f.x.control.Flush()
	}
	if err != nil {
		return core.Unread(ctx)
	}
	return nil
}

func (f *ingestLines) Progress(ctx context.Context, p ingest.Progress) error {
	for _, r := range p.Refused {
		f.buf = strconv.AppendUint(append(f.buf, `{"refused":{"offset":`...), r.Offset, 10)
		f.buf = appendProblem(append(f.buf, `,"error":`...), f.api.core.Answered(rows.FaultOf(r.Err)), f.x.call.TraceID)
		f.buf = append(f.buf, "}}\n"...)
	}
	f.buf = append(strconv.AppendUint(append(f.buf, `{"ack":{"next":`...), p.Next, 10), "}}\n"...)
	return f.send(ctx)
}

func (f *ingestLines) End(ctx context.Context, t ingest.Totals) error {
	f.buf = strconv.AppendUint(append(f.buf, `{"end":{"next":`...), t.Next, 10)
	f.buf = strconv.AppendUint(append(f.buf, `,"rows":`...), t.Rows, 10)
	f.buf = strconv.AppendUint(append(f.buf, `,"refused":`...), t.Refused, 10)
	f.buf = append(f.buf, "}}\n"...)
	return f.send(ctx)
}

// errLongLine says that a line had more bytes than allowed; it is read over.
var errLongLine = errors.New("facade: a line is too long")

// lineReader reads lines of bounded length. A line is good until the next call.
type lineReader struct {
	r      *bufio.Reader
	limit  int
	long   []byte // a line that does not fit into r
	broken error  // why nothing more can be read; nil: it came to its end
}

// next returns a line without its end and without space around it. io.EOF comes
// after the last one, which needs no end. A line whose end did not come because
// reading failed is not returned.
func (l *lineReader) next() ([]byte, error) {
	l.long = l.long[:0]
	tooLong := false
	for {
		part, err := l.r.ReadSlice('\n')
		switch {
		case tooLong:
		case len(l.long) > 0 || err == bufio.ErrBufferFull:
			if tooLong = len(l.long)+len(part) > l.limit+2; !tooLong { // 2: the end of the line
				l.long = append(l.long, part...)
				part = l.long
			}
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err != nil && err != io.EOF:
			l.broken = err
			return nil, err
		case tooLong:
			return nil, errLongLine
		case err == io.EOF && len(part) == 0:
			return nil, io.EOF
		}
		return bytes.TrimSpace(part), nil
	}
}

// pacedReader reports what it reads to pace. A caller of Read has added all rows of what it read before, except the
// start of an incomplete one.
type pacedReader struct {
	io.Reader
	pace  func(bytes int) error
	added func()
}

func (r pacedReader) Read(b []byte) (int, error) {
	r.added()
	n, err := r.Reader.Read(b)
	if n > 0 {
		if late := r.pace(n); late != nil {
			return n, late
		}
	}
	return n, err
}
