package core

import (
	"context"
	"strconv"
	"sync"

	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TransactRequest is the call Transact, over either API.
type TransactRequest struct {
	Statements []Spec
	Mode       string
	Idempotent bool
	Timeout    string
	Priority   string
}

// Transact runs statements as one transaction, as often as it takes. out gives
// the sink of each.
func (s *Service) Transact(ctx context.Context, c *Call, in TransactRequest, out func(i int) Sink) ([]Outcome, error) {
	m, err := parseTxMode(in.Mode)
	if err != nil {
		return nil, err
	}
	if len(in.Statements) > 0 {
		c.states(in.Statements[0].SQL)
	}
	var list []*Statement
	if err = s.InLane(ctx, c.Large, func() (err error) {
		list, err = s.prepareAll(c, in.Statements)
		return err
	}); err != nil {
		return nil, err
	}
	ctx, cancel, call, err := s.Begin(ctx, c, in.Timeout, in.Priority)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := s.freshList(c, len(list)); err != nil {
		return nil, err
	}
	call.Idempotent = in.Idempotent
	pure := !m.readOnly // which says as much without a look at the texts
	for _, st := range list {
		kind := kindOf(st.SQL)
		call.Work = call.Work*31 + kind
		pure = pure && s.Cached.effectsOf(st.SQL, kind) == yql.Reads
	}
	if pure {
		call.Effects = yql.Reads
	}
	ends := make([]ending, len(list))
	var room *Room
	for tries := 1; ; tries++ {
		at := 0
		report, err := s.Deps.Driver.Do(ctx, call, func(ctx context.Context, session Session) (err error) {
			room.forget()
			room = s.Room(c)
			at, err = attempt(ctx, session, list, m, ends, room, out)
			return err
		})
		c.Note(report)
		if err == nil {
			break
		}
		again := s.learn(in.Statements[at], list[at], err)
		if again == nil || report.Unsure || tries > maxLearnt {
			return nil, hinted(FaultOf(err, Deed{Harmless: in.Idempotent, undone: pure || m.readOnly, Unsure: report.Unsure}), list[at])
		}
		list[at] = again
	}
	outcomes := make([]Outcome, len(ends))
	for i, e := range ends {
		outcomes[i] = e.outcome()
	}
	return outcomes, nil
}

// attempt runs the whole list once: the first statement begins the transaction,
// the last one commits it. The driver rolls back what fails half-way. It returns the
// number of the statement that failed.
func attempt(ctx context.Context, session Session, list []*Statement, m *mode, ends []ending, room *Room, out func(int) Sink) (int, error) {
	for i, st := range list {
		last := i == len(list)-1
		control := Inside(session.TxID(), last)
		if i == 0 {
			control = m.Begin(last)
		}
		var err error
		if ends[i], err = Run(ctx, session, st, control, false, room, out(i)); err != nil {
			return i, err
		}
	}
	return 0, nil
}

// prepareAll checks the statements of a Transact.
func (s *Service) prepareAll(c *Call, in []Spec) ([]*Statement, error) {
	if err := s.checkCount(len(in)); err != nil {
		return nil, err
	}
	list := make([]*Statement, len(in))
	for i, one := range in {
		st, err := s.prepare(one, true)
		if err == nil {
			err = TooMuch(c.Reserved.Take(st.typed))
		}
		if err != nil {
			return nil, atStatement(i, err)
		}
		list[i] = st
	}
	return list, nil
}

func (s *Service) checkCount(n int) error {
	switch {
	case n == 0:
		return BadRequest("statements is empty")
	case n > s.Cfg.API.MaxStatements:
		return OverLimit("statements", n, s.Cfg.API.MaxStatements, "api.max_statements")
	}
	return nil
}

// atStatement says which statement of a list a fault is about.
func atStatement(i int, err error) error {
	return FaultOf(err, Deed{}).With(func(f *Fault) {
		f.Message = "statements[" + strconv.Itoa(i) + "]: " + f.Message
	})
}

// BatchRequest is the call Batch, over either API.
type BatchRequest struct {
	Statements []ExecuteRequest
	Timeout    string
	Priority   string
}

// batchResult is the outcome of one statement of a Batch.
type batchResult struct {
	Outcome
	Info  *sidecarv1.Info
	Fault *Fault

	reports []upstream.Report // for the spans of the Batch
}

// Batch runs independent statements, some at a time, each with an outcome of
// its own.
func (s *Service) Batch(ctx context.Context, c *Call, in BatchRequest, out func(i int) Sink) ([]batchResult, error) {
	if err := s.checkCount(len(in.Statements)); err != nil {
		return nil, err
	}
	if len(in.Statements) > 0 {
		c.states(in.Statements[0].SQL)
	}
	ctx, cancel, _, err := s.Begin(ctx, c, in.Timeout, in.Priority)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := s.freshList(c, len(in.Statements)); err != nil {
		return nil, err
	}
	results := make([]batchResult, len(in.Statements))
	room := s.Room(c)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(s.Cfg.API.BatchParallel, len(in.Statements)) {
		wg.Go(func() {
			for i := range next {
				results[i] = s.batchOne(ctx, c, in, i, room, out(i))
			}
		})
	}
	for i := range in.Statements {
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
func (s *Service) batchOne(ctx context.Context, c *Call, in BatchRequest, i int, room *Room, out Sink) batchResult {
	one := &Call{
		Name: c.Name, Info: &sidecarv1.Info{TraceId: c.TraceID}, admission: admission{App: c.App},
		traced: traced{trace: c.trace, kept: c.kept, TraceID: c.TraceID},
	}
	done, err := func() (_ Outcome, err error) {
		defer func() {
			if v := recover(); v != nil {
				err = panics.Caught("a statement of a batch", v)
			}
		}()
		m, err := parseMode(in.Statements[i].Mode)
		if err != nil {
			return Outcome{}, err
		}
		st, err := s.prepare(in.Statements[i].Spec, true)
		if err == nil {
			err = room.lend(st.typed)
		}
		if err != nil {
			return Outcome{}, err
		}
		defer room.lend(-st.typed)
		ctx, cancel, call, err := s.Begin(ctx, one, "", c.Class.String())
		if err != nil {
			return Outcome{}, err
		}
		defer cancel()
		call.Idempotent = in.Statements[i].Idempotent
		call.Progress = c.Progress()
		call.Patient = true // the app may have fewer sessions than statements run at a time
		return s.executeAlone(ctx, one, call, in.Statements[i].Spec, st, m, room, out)
	}()
	r := batchResult{Outcome: done, Info: one.Info, reports: one.reports}
	if err != nil {
		if r.Fault = s.Answered(FaultOf(err, Deed{})); r.Fault.Unknown {
			s.counts.unknown.Add(1)
		}
	}
	return r
}
