package core

import (
	"bytes"
	"context"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// stored is the outcome of a step of a transaction, kept to answer its repeat
// over either API.
type stored struct {
	fault *Fault
	sets  []storedSet
	end   Outcome  // without tx, which depends on when it is asked for
	list  []stored // of a list: the outcome of each statement, in place of sets and end
}

type storedSet struct {
	columns *yql.Columns
	rows    [][]byte
	cut     bool
}

// replay hands the stored rows on as if they had just arrived, at most so many (0: all of them), and returns the outcome.
func (o *stored) replay(ctx context.Context, out Sink, most uint64) (Outcome, error) {
	if most == 0 {
		most = math.MaxUint64
	}
	done := o.end
	done.Rows = 0
	for _, set := range o.sets {
		if err := out.Begin(ctx, set.columns); err != nil {
			return Outcome{}, err
		}
		rows := set.rows[:min(uint64(len(set.rows)), most-done.Rows)]
		if err := out.Rows(ctx, rows); err != nil {
			return Outcome{}, err
		}
		done.Rows += uint64(len(rows))
		if set.cut || len(rows) < len(set.rows) {
			done.Truncated = true
			out.Cut()
		}
	}
	return done, nil
}

// recorder hands results on and keeps them too, up to a number of bytes.
type recorder struct {
	Sink
	limit int
	size  int
	over  bool
	sets  []storedSet
}

func (r *recorder) Begin(ctx context.Context, columns *yql.Columns) error {
	r.sets = append(r.sets, storedSet{columns: columns})
	for _, c := range columns.Of() {
		r.add(proto.Size(c))
	}
	return r.Sink.Begin(ctx, columns)
}

func (r *recorder) Rows(ctx context.Context, rows [][]byte) error {
	for _, row := range rows {
		if r.over {
			break
		}
		r.add(len(row))
	}
	if !r.over {
		last := &r.sets[len(r.sets)-1]
		for _, row := range rows {
			last.rows = append(last.rows, bytes.Clone(row))
		}
	}
	return r.Sink.Rows(ctx, rows)
}

func (r *recorder) Cut() {
	if !r.over {
		r.sets[len(r.sets)-1].cut = true
	}
	r.Sink.Cut()
}

func (r *recorder) Again() bool {
	r.sets, r.size, r.over = nil, 0, false
	return r.Sink.Again()
}

func (r *recorder) add(size int) {
	if r.size += size; r.size > r.limit {
		r.over, r.sets = true, r.sets[:0]
	}
}

// outcome is what was recorded, or nil if it was too much.
func (r *recorder) outcome(end Outcome) *stored {
	if r.over {
		return nil
	}
	return &stored{sets: r.sets, end: end}
}
