package ingest

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/mem"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// batch is rows on their way. Its keys are in no other batch.
type batch struct {
	s   *Stream
	g   *gather
	pen *encoder
	cut time.Time // when it was taken from what was gathered

	asked    bool // the table was described since then
	unsure   bool // a try may still be under way
	written  uint64
	refused  int
	requests int
	bytes    int // of requests
}

// write sends the batch: one request for each set of columns, sorted by key. The
// error is that of rows which may or may not be written.
func (b *batch) write() error {
	e, g := b.s.engine, b.g
	ctx, span := e.tel.tracer.Start(context.WithoutCancel(b.s.ctx), "ingest batch", trace.WithSpanKind(trace.SpanKindInternal))
	b.pen = e.pens.Get().(*encoder)
	if !b.s.layout.Load().loose {
		g.sort()
	}
	var err error
	for from := 0; from < len(g.slots) && err == nil; {
		items := b.pen.items[:0]
		b.pen.chains = b.pen.chains[:0]
		at := from
		for ; at < len(g.slots) && g.slots[at].set == g.slots[from].set; at++ {
			items = append(items, b.pen.item(g, &g.slots[at]))
		}
		b.pen.items = items
		err = b.put(ctx, items)
		from = at
	}
	clear(b.pen.items)
	e.pens.Put(b.pen)
	e.tel.wrote(b, err)
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("ydb.sidecar.ingest.rows", len(g.rows)), attribute.Int("ydb.sidecar.ingest.keys", len(g.slots)),
			attribute.Int("ydb.sidecar.ingest.refused", b.refused),
			attribute.Int("ydb.sidecar.ingest.requests", b.requests),
			attribute.Int("ydb.sidecar.ingest.bytes", b.bytes))
		if err != nil {
			span.SetStatus(otelcodes.Error, "the batch failed")
		}
	}
	span.End()
	return err
}

// put writes items of one set of columns. Those that the sink refuses are looked
// for by halves, in order.
func (b *batch) put(ctx context.Context, items []item) error {
	l := b.s.layout.Load()
	for _, place := range b.g.sets[items[0].set].indices {
		if l.columns[place].gone {
			return b.sift(ctx, items)
		}
	}
	err := b.send(ctx, l, items)
	refused, ok := errors.AsType[*Refused](err)
	if !ok {
		if err == nil {
			for i := range items {
				b.written += uint64(items[i].count())
			}
		}
		return err
	}
	if !b.asked {
		b.asked = true
		if err := b.refresh(ctx); err != nil {
			return err
		}
		if refused.Scheme || b.s.layout.Load() != l {
			return b.put(ctx, items)
		}
	} else if refused.Scheme {
		return err // it is no row's fault
	}
	if n := len(items); n > 1 {
		if err := b.put(ctx, items[:n/2]); err != nil {
			return err
		}
		return b.put(ctx, items[n/2:])
	}
	if rows := items[0].rows; len(rows) > 1 {
		for _, half := range [][]int32{rows[:len(rows)/2], rows[len(rows)/2:]} {
			if err := b.put(ctx, []item{b.g.part(half)}); err != nil {
				return err
			}
		}
		return nil
	}
	b.refuse(items[0].only, refused.Err)
	return nil
}

// sift refuses the rows that name a column which is gone, and puts the others.
func (b *batch) sift(ctx context.Context, items []item) (err error) {
	for i := range items {
		items[i].each(func(row int32) {
			if gone := b.goneOf(row); gone != "" {
				b.refuse(row,
					&yql.Error{Path: gone,
						Msg: "the table lost this column, or changed its type, while the row was under way; send the row again"})
			} else if err == nil {
				err = b.put(ctx, []item{b.g.part([]int32{row})})
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) goneOf(row int32) string {
	l := b.s.layout.Load()
	for _, place := range b.g.sets[b.g.rows[row].set].indices {
		if l.columns[place].gone {
			return l.columns[place].name
		}
	}
	return ""
}

// refuse names a row that is refused. It waits while as many refusals as may be wait to be read.
func (b *batch) refuse(row int32, err error) {
	s := b.s
	b.refused++
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.refused) >= maxRefused && s.failed == nil && s.engine.cut.Err() == nil {
		seen := s.seen
		s.mu.Unlock()
		signal(s.news)
		select {
		case <-seen:
		case <-s.engine.cut.Done():
		}
		s.mu.Lock()
	}
	s.refuseLocked(b.g.rows[row].offset, err)
}

// refresh asks for the form of the table as it is now.
func (b *batch) refresh(ctx context.Context) error {
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	return b.s.refresh(ctx, b.cut)
}

// send makes one request, once it may be made.
func (b *batch) send(ctx context.Context, l *layout, items []item) error {
	leave, err := b.pass()
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	var memory *[]byte
	octets := b.pen.request(b.g, l, b.s.options.Table, b.s.engine.bound, items, func(size int) []byte {
		memory = mem.DefaultBufferPool().Get(size)
		return (*memory)[:0]
	})
	*memory = octets
	request := mem.NewBuffer(memory, mem.DefaultBufferPool())
	defer request.Free()
	b.requests++
	b.bytes += request.Len()
	sent, err := b.s.options.Sink.Upsert(ctx, request)
	b.s.engine.tel.retries.Add(uint64(max(0, sent.Attempts-1)))
	b.unsure = b.unsure || sent.Unsure
	return err
}

// pass waits until a request may be sent, which counts for none of its time: at most until its stream is given up.
func (b *batch) pass() (leave func(), err error) {
	e := b.s.engine
	if e.pass == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(b.s.ctx)
	defer cancel()
	defer context.AfterFunc(b.s.cut, cancel)()
	return e.pass(ctx)
}

// bounded gives a request its time, which ends when everything is given up.
func (b *batch) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, b.s.engine.config.Timeout)
	stop := context.AfterFunc(b.s.cut, cancel)
	return ctx, func() { stop(); cancel() }
}

// recycle gives the memory of a batch back.
func (b *batch) recycle() {
	e := b.s.engine
	if cap(b.g.arena) <= 2*e.config.BatchBytes {
		b.g.reset()
		e.bins.Put(b.g)
	}
}
