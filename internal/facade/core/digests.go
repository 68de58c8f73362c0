package core

import (
	"context"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/statements"
)

// maxStripes bounds the stripes that count statements.
const maxStripes = 16

// newStripes returns one for each processor, or a few more: their number is a power of two.
func newStripes(r *statements.Recorder, processors int) []*statements.Stripe {
	all := []*statements.Stripe{r.NewStripe()}
	for len(all) < min(processors, maxStripes) {
		for range len(all) {
			all = append(all, r.NewStripe())
		}
	}
	return all
}

// Count counts a statement that was all that its call did, once c.Info says where its time went, with the rows of the answer and
// their bytes. err is why it failed.
func (s *Service) Count(c *Call, st *Statement, rows uint64, bytes int, err error) {
	i := c.Info
	s.count(c, st, err, statements.Call{Rows: rows, Bytes: uint64(bytes), Retries: max(int(i.Attempts)-1, 0),
		Acquire: fromMS(i.AcquireMs), Hop: fromMS(i.HopMs), Took: time.Since(c.began)})
}

// RunCounted is Run for one of several statements of a call. It is counted with the time of its run.
func (s *Service) RunCounted(ctx context.Context, c *Call, session Session, st *Statement, control control, readOnly bool,
	own *Room, out Sink) (ending, error) {
	began := time.Now()
	end, err := Run(ctx, session, st, control, readOnly, own, out)
	took := time.Since(began)
	s.count(c, st, err, statements.Call{Rows: end.rows, Bytes: uint64(end.bytes), Hop: took, Took: took})
	return end, err
}

func (s *Service) count(c *Call, st *Statement, err error, one statements.Call) {
	one.App = c.App.Name()
	if err != nil {
		if f := FaultOf(err, Deed{}); !f.Asked() {
			one.Status = f.Code.Name
		}
	}
	stripe := s.stripes[c.From%uint64(len(s.stripes))] // calls of a connection mostly end on one processor
	stripe.Add(stripe.Look(st.SQL), &one)
}
