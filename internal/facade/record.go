package facade

import (
	"bytes"
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// stored is the outcome of a step of a transaction, kept to answer its repeat
// over either face.
type stored struct {
	fault *fault
	sets  []storedSet
	end   outcome // without tx, which depends on when it is asked for
}

type storedSet struct {
	columns *yql.Columns
	rows    [][]byte
	cut     bool
}

// replay hands the stored rows on as if they had just arrived.
func (o *stored) replay(ctx context.Context, out sink) error {
	for _, set := range o.sets {
		if err := out.begin(ctx, set.columns); err != nil {
			return err
		}
		if err := out.rows(ctx, set.rows); err != nil {
			return err
		}
		if set.cut {
			out.cut()
		}
	}
	return nil
}

// recorder hands results on and keeps them too, up to a number of bytes.
type recorder struct {
	sink
	limit int
	size  int
	over  bool
	sets  []storedSet
}

func (r *recorder) begin(ctx context.Context, columns *yql.Columns) error {
	r.sets = append(r.sets, storedSet{columns: columns})
	for _, c := range columns.Of() {
		r.add(proto.Size(c))
	}
	return r.sink.begin(ctx, columns)
}

func (r *recorder) rows(ctx context.Context, rows [][]byte) error {
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
	return r.sink.rows(ctx, rows)
}

func (r *recorder) cut() {
	if !r.over {
		r.sets[len(r.sets)-1].cut = true
	}
	r.sink.cut()
}

func (r *recorder) again() bool {
	r.sets, r.size, r.over = nil, 0, false
	return r.sink.again()
}

func (r *recorder) add(size int) {
	if r.size += size; r.size > r.limit {
		r.over, r.sets = true, r.sets[:0]
	}
}

// outcome is what was recorded, or nil if it was too much.
func (r *recorder) outcome(end outcome) *stored {
	if r.over {
		return nil
	}
	return &stored{sets: r.sets, end: end}
}
