package core

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TransactRequest is the call Transact, over either API.
type TransactRequest struct {
	Statements []Spec
	Mode       string
	Tx         *TxSelector // nil: it is a transaction of its own
	Idempotent bool
	Timeout    string
	Priority   string
}

// Transact runs statements as one transaction, as often as it takes, or as one step of an interactive transaction, which it
// returns while that is open. out gives the sink of each statement.
func (s *Service) Transact(ctx context.Context, c *Call, in TransactRequest, out func(i int) Sink) (
	[]Outcome, *sidecarv1.Tx, error) {
	m, err := txModeOfList(in)
	if err != nil {
		return nil, nil, err
	}
	if in.Tx == nil {
		c.RunsIn(m)
	}
	if len(in.Statements) > 0 {
		c.states(in.Statements[0].SQL)
	}
	var statements []*Statement
	if err = s.InLane(ctx, c.Large, func() (err error) {
		statements, err = s.prepareAll(c, in.Statements, in.alone())
		return err
	}); err != nil {
		return nil, nil, err
	}
	ctx, cancel, call, err := s.Begin(ctx, c, in.Timeout, in.Priority)
	if err != nil {
		return nil, nil, err
	}
	defer cancel()
	call.Idempotent = in.Idempotent
	l := newList(s, c, statements, out)
	if !in.alone() {
		return s.Tx.transact(ctx, c, call, in.Tx, l, m)
	}
	if err := s.freshList(c, len(statements)); err != nil {
		return nil, nil, err
	}
	return s.transactAlone(ctx, c, call, in, l, m)
}

// alone reports whether the list is all of its transaction, so that it may be repeated.
func (in TransactRequest) alone() bool { return in.Tx == nil || in.Tx.Begin && in.Tx.Commit }

// txModeOfList returns the mode of the transaction that a list begins.
func txModeOfList(in TransactRequest) (*mode, error) {
	if in.Tx == nil {
		return parseTxMode(in.Mode)
	}
	m := modeImplicit // nothing is named
	if in.Mode != "" {
		var err error
		if m, err = parseTxMode(in.Mode); err != nil {
			return nil, err
		}
	}
	return txModeOf(in.Tx, m)
}

// transactAlone runs a list as a transaction of its own. It goes again with the types that a refusal teaches.
func (s *Service) transactAlone(ctx context.Context, c *Call, call upstream.Call, in TransactRequest, l *list, m *mode) (
	[]Outcome, *sidecarv1.Tx, error) {
	pure := !m.readOnly // which says as much without a look at the texts
	for _, st := range l.statements {
		kind := kindOf(st.SQL)
		call.Work = call.Work*31 + kind
		pure = pure && s.Cached.effectsOf(st.SQL, kind) == yql.Reads
	}
	if pure {
		call.Effects = yql.Reads
	}
	for tries := 1; ; tries++ {
		report, err := s.Deps.Driver.Do(ctx, call, func(ctx context.Context, session Session) error {
			l.room.forget()
			l.room = s.Room(c)
			return l.run(ctx, session, m, true)
		})
		c.Note(report)
		if err == nil {
			return l.outcomes(), nil, nil
		}
		again := s.learn(in.Statements[l.at], l.statements[l.at], err)
		if again == nil || report.Unsure || tries > maxLearnt {
			deed := Deed{Harmless: in.Idempotent, undone: pure || m.readOnly, Unsure: report.Unsure}
			return nil, nil, hinted(FaultOf(err, deed).unmet(), l.statements[l.at])
		}
		l.statements[l.at] = again
	}
}

// prepareAll checks the statements of a Transact. learnt says whether those types count that earlier calls have learnt.
func (s *Service) prepareAll(c *Call, in []Spec, learnt bool) ([]*Statement, error) {
	if err := s.checkCount(len(in)); err != nil {
		return nil, err
	}
	list := make([]*Statement, len(in))
	for i, one := range in {
		err := s.Allow(c, Wish{Kind: apps.Statements, Text: one.SQL})
		var st *Statement
		if err == nil {
			st, err = s.prepare(one, learnt)
		}
		if err == nil {
			err = s.countable(st)
		}
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

// mode is that of all statements; nil: they differ, or one is wrong.
func (in BatchRequest) mode() (all *mode) {
	for i := range in.Statements {
		m, err := parseMode(in.Statements[i].Mode)
		if err != nil || all != nil && m != all {
			return nil
		}
		all = m
	}
	return all
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
	if m := in.mode(); m != nil {
		c.RunsIn(m)
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
		if results[i].Fault != nil {
			s.Deprecated.Shows(c, results[i].Fault)
		}
	}
	return results, nil
}

// batchOne runs one statement of a Batch.
func (s *Service) batchOne(ctx context.Context, c *Call, in BatchRequest, i int, room *Room, out Sink) batchResult {
	one := &Call{
		Name: c.Name, Info: &sidecarv1.Info{TraceId: c.TraceID}, From: c.From, Caller: c.Caller, admission: admission{App: c.App},
		traced: traced{trace: c.trace, kept: c.kept, TraceID: c.TraceID, began: time.Now()},
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
		if err := s.Allow(one, Wish{Kind: apps.Statements, Text: in.Statements[i].SQL}); err != nil {
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
		if r.Fault = s.Told(ctx, one, err); r.Fault.Unknown {
			s.counts.unknown.Add(1)
		}
	}
	return r
}
