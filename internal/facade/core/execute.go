package core

import (
	"context"
	"math"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// ExecuteRequest is the call Execute, over either API.
type ExecuteRequest struct {
	Spec
	Mode       string
	Tx         *TxSelector // nil: it is a transaction of its own
	Idempotent bool
	Timeout    string
	Priority   string
	Streamed   bool
	Moved      func() // called when a piece of a stream arrived or was taken; see API.Moving
}

// TxSelector says which transaction a statement begins or continues.
type TxSelector struct {
	Begin  bool
	Mode   string // of the transaction that it begins; "": none is named
	ID     string // of the transaction that it continues
	Seq    uint64 // 0: it has no number
	Commit bool
}

// Outcome is the reply to a statement beside its rows.
type Outcome struct {
	Tx        *sidecarv1.Tx
	Stats     *sidecarv1.Stats
	Rows      uint64  // handed on to the caller
	Affected  *uint64 // rows written or deleted; nil: see affected
	Truncated bool
}

// Execute runs one statement and hands its rows to out.
func (s *Service) Execute(ctx context.Context, c *Call, in ExecuteRequest, out Sink) (Outcome, error) {
	st, m, err := s.compose(ctx, c, in)
	if err != nil {
		return Outcome{}, err
	}
	ctx, cancel, call, err := s.Begin(ctx, c, in.Timeout, in.Priority)
	if err != nil {
		return Outcome{}, err
	}
	defer cancel()
	call.Idempotent = in.Idempotent
	if in.Tx != nil {
		done, err := s.Tx.execute(ctx, c, call, in, st, m, out)
		return done, hinted(err, st)
	}
	if err := s.Fresh(c); err != nil {
		return Outcome{}, err
	}
	return s.executeAlone(ctx, c, call, in.Spec, st, m, in.room(s, c), out)
}

// alone reports whether the statement is all of its transaction, so that it may be repeated.
func (in ExecuteRequest) alone() bool { return in.Tx == nil || in.Tx.Begin && in.Tx.Commit }

// compose makes a statement of a request.
func (s *Service) compose(ctx context.Context, c *Call, in ExecuteRequest) (st *Statement, m *mode, err error) {
	c.states(in.SQL)
	if err := s.Allow(c, Wish{Kind: apps.Statements, Text: in.SQL}); err != nil {
		return nil, nil, err
	}
	if m, err = parseMode(in.Mode); err != nil {
		return nil, nil, err
	}
	if in.Tx == nil {
		c.RunsIn(m)
	}
	err = s.InLane(ctx, c.Large, func() (err error) {
		if st, err = s.prepare(in.Spec, in.alone()); err == nil {
			err = TooMuch(c.Reserved.Take(st.typed))
		}
		return err
	})
	return st, m, err
}

// room has no end for a streamed reply, which is not held.
func (in ExecuteRequest) room(s *Service, c *Call) *Room {
	room := s.Room(c)
	if in.Streamed {
		room.streamed, room.rows, room.bytes, room.moved = true, math.MaxInt, math.MaxInt, in.Moved
	}
	return room
}

// executeAlone runs a statement as a transaction of its own, which the gate has let in.
// It goes again with the types that a refusal teaches, each time with another one.
func (s *Service) executeAlone(ctx context.Context, c *Call, call upstream.Call, in Spec, st *Statement, m *mode,
	own *Room, out Sink) (Outcome, error) {
	if call.Ahead == nil { // else it was
		s.classify(&call, st)
	}
	reads := m.readOnly || call.Effects == yql.Reads
	for tries := 1; ; tries++ {
		var end ending
		report, err := s.Deps.Driver.Do(ctx, call, func(ctx context.Context, session Session) (err error) {
			end, err = Run(ctx, session, st, m.Single(), reads, own, out)
			return err
		})
		call.Ahead = nil
		c.Note(report)
		if err == nil {
			s.Count(c, st, end.rows, end.bytes, nil)
			return end.outcome(), nil
		}
		again := s.learn(in, st, err)
		if again == nil || report.Unsure || tries > maxLearnt {
			s.Count(c, st, end.rows, end.bytes, err)
			f := FaultOf(err, Deed{Harmless: reads || call.Idempotent, Unsure: report.Unsure})
			return Outcome{}, hinted(f.ofSelect(st.SQL), st)
		}
		st = again
	}
}

// hintOfSelect is for a SELECT whose outcome is unknown: its text does not say with certainty that it only reads.
const hintOfSelect = `Read back whether anything was kept. If the statement only reads, send it with "mode": "snapshot_ro": ` +
	`its outcome is never unknown then, and it can be sent again.`

// ofSelect returns a fault with what a caller does about a SELECT whose outcome is unknown.
func (f *Fault) ofSelect(sql string) *Fault {
	if !f.Unknown || f.Safe || yql.AppendNormal(nil, sql).Kind != "SELECT" {
		return f
	}
	return f.With(func(f *Fault) { f.hint = hintOfSelect })
}

// classify says what kind of work a statement is.
func (s *Service) classify(call *upstream.Call, st *Statement) {
	call.Work = kindOf(st.SQL)
	call.Effects = s.Cached.effectsOf(st.SQL, call.Work)
}

func (e ending) outcome() Outcome {
	return Outcome{Stats: statsOf(e.stats), Rows: e.rows, Truncated: e.truncated, Affected: e.affected}
}

// statsOf sums the statistics of all phases of a statement.
func statsOf(q *Ydb_TableStats.QueryStats) *sidecarv1.Stats {
	if q == nil {
		return nil
	}
	out := &sidecarv1.Stats{DurationUs: q.GetTotalDurationUs(), CpuUs: q.GetTotalCpuTimeUs()}
	if c := q.GetCompilation(); c != nil {
		out.Compiled = !c.GetFromCache()
	}
	at := make(map[string]int)
	for _, phase := range q.GetQueryPhases() {
		for _, t := range phase.GetTableAccess() {
			i, ok := at[t.GetName()]
			if !ok {
				i = len(out.Tables)
				at[t.GetName()] = i
				out.Tables = append(out.Tables, &sidecarv1.TableStats{Name: t.GetName()})
			}
			sum := out.Tables[i]
			sum.ReadRows += t.GetReads().GetRows()
			sum.ReadBytes += t.GetReads().GetBytes()
			sum.UpdatedRows += t.GetUpdates().GetRows()
			sum.DeletedRows += t.GetDeletes().GetRows()
		}
	}
	return out
}
