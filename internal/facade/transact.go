package facade

import (
	"context"
	"strconv"
	"sync"

	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// transactRequest is the call Transact, from either face.
type transactRequest struct {
	statements []spec
	mode       string
	idempotent bool
	timeout    string
	priority   string
}

// transact runs statements as one transaction, as often as it takes. out gives
// the sink of each.
func (s *coreService) transact(ctx context.Context, c *call, in transactRequest, out func(i int) sink) ([]outcome, error) {
	m, err := parseTxMode(in.mode)
	if err != nil {
		return nil, err
	}
	if len(in.statements) > 0 {
		c.sql = in.statements[0].sql
	}
	var list []*statement
	if err = s.inLane(ctx, c.large, func() (err error) {
		list, err = s.prepareAll(c, in.statements)
		return err
	}); err != nil {
		return nil, err
	}
	ctx, cancel, call, err := s.begin(ctx, c, in.timeout, in.priority)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := s.freshList(c, len(list)); err != nil {
		return nil, err
	}
	call.Idempotent = in.idempotent
	pure := !m.readOnly // which says as much without a look at the texts
	for _, st := range list {
		kind := kindOf(st.sql)
		call.Work = call.Work*31 + kind
		pure = pure && s.cached.effectsOf(st.sql, kind) == yql.Reads
	}
	if pure {
		call.Effects = yql.Reads
	}
	ends := make([]ending, len(list))
	var room *room
	for tries := 1; ; tries++ {
		at := 0
		report, err := s.deps.Driver.Do(ctx, call, func(ctx context.Context, session Session) (err error) {
			room.forget()
			room = s.room(c)
			at, err = attempt(ctx, session, list, m, ends, room, out)
			return err
		})
		c.note(report)
		if err == nil {
			break
		}
		again := s.learn(in.statements[at], list[at], err)
		if again == nil || report.Unsure || tries > maxLearnt {
			return nil, hinted(faultOf(err, deed{harmless: in.idempotent, undone: pure || m.readOnly, unsure: report.Unsure}), list[at])
		}
		list[at] = again
	}
	outcomes := make([]outcome, len(ends))
	for i, e := range ends {
		outcomes[i] = e.outcome()
	}
	return outcomes, nil
}

// attempt runs the whole list once: the first statement begins the transaction,
// the last one commits it. The driver rolls back what fails half-way. It returns the
// number of the statement that failed.
func attempt(ctx context.Context, session Session, list []*statement, m *mode, ends []ending, room *room, out func(int) sink) (int, error) {
	for i, st := range list {
		last := i == len(list)-1
		control := inside(session.TxID(), last)
		if i == 0 {
			control = m.begin(last)
		}
		var err error
		if ends[i], err = run(ctx, session, st, control, false, room, out(i)); err != nil {
			return i, err
		}
	}
	return 0, nil
}

// prepareAll checks the statements of a Transact.
func (s *coreService) prepareAll(c *call, in []spec) ([]*statement, error) {
	if err := s.checkCount(len(in)); err != nil {
		return nil, err
	}
	list := make([]*statement, len(in))
	for i, one := range in {
		st, err := s.prepare(one, true)
		if err == nil {
			err = tooMuch(c.reserved.Take(st.typed))
		}
		if err != nil {
			return nil, atStatement(i, err)
		}
		list[i] = st
	}
	return list, nil
}

func (s *coreService) checkCount(n int) error {
	switch {
	case n == 0:
		return badRequest("statements is empty")
	case n > s.cfg.API.MaxStatements:
		return overLimit("statements", n, s.cfg.API.MaxStatements, "api.max_statements")
	}
	return nil
}

// atStatement says which statement of a list a fault is about.
func atStatement(i int, err error) error {
	return faultOf(err, deed{}).with(func(f *fault) {
		f.message = "statements[" + strconv.Itoa(i) + "]: " + f.message
	})
}

// batchRequest is the call Batch, from either face.
type batchRequest struct {
	statements []executeRequest
	timeout    string
	priority   string
}

// batchResult is the outcome of one statement of a Batch.
type batchResult struct {
	outcome
	info  *sidecarv1.Info
	fault *fault

	reports []upstream.Report // for the spans of the Batch
}

// batch runs independent statements, some at a time, each with an outcome of
// its own.
func (s *coreService) batch(ctx context.Context, c *call, in batchRequest, out func(i int) sink) ([]batchResult, error) {
	if err := s.checkCount(len(in.statements)); err != nil {
		return nil, err
	}
	if len(in.statements) > 0 {
		c.sql = in.statements[0].sql
	}
	ctx, cancel, _, err := s.begin(ctx, c, in.timeout, in.priority)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := s.freshList(c, len(in.statements)); err != nil {
		return nil, err
	}
	results := make([]batchResult, len(in.statements))
	room := s.room(c)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(s.cfg.API.BatchParallel, len(in.statements)) {
		wg.Go(func() {
			for i := range next {
				results[i] = s.batchOne(ctx, c, in, i, room, out(i))
			}
		})
	}
	for i := range in.statements {
		next <- i
	}
	close(next)
	wg.Wait()
	for i := range results {
		if left := maxReports - len(c.reports); left > 0 {
			c.reports = append(c.reports, results[i].reports[:min(left, len(results[i].reports))]...)
		}
	}
	return results, nil
}

// batchOne runs one statement of a Batch.
func (s *coreService) batchOne(ctx context.Context, c *call, in batchRequest, i int, room *room, out sink) batchResult {
	one := &call{name: c.name, trace: c.trace, kept: c.kept, traceID: c.traceID, app: c.app, info: &sidecarv1.Info{TraceId: c.traceID}}
	done, err := func() (_ outcome, err error) {
		defer func() {
			if v := recover(); v != nil {
				err = panics.Caught("a statement of a batch", v)
			}
		}()
		m, err := parseMode(in.statements[i].mode)
		if err != nil {
			return outcome{}, err
		}
		st, err := s.prepare(in.statements[i].spec, true)
		if err == nil {
			err = room.lend(st.typed)
		}
		if err != nil {
			return outcome{}, err
		}
		defer room.lend(-st.typed)
		ctx, cancel, call, err := s.begin(ctx, one, "", c.class.String())
		if err != nil {
			return outcome{}, err
		}
		defer cancel()
		call.Idempotent = in.statements[i].idempotent
		call.Patient = true // the app may have fewer sessions than statements run at a time
		return s.executeAlone(ctx, one, call, in.statements[i].spec, st, m, room, out)
	}()
	r := batchResult{outcome: done, info: one.info, reports: one.reports}
	if err != nil {
		r.fault = faultOf(err, deed{})
	}
	return r
}
