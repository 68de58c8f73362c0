package facade

import (
	"context"
	"math"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"

	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// executeRequest is the call Execute, from either face.
type executeRequest struct {
	spec
	mode       string
	tx         *txSelector // nil: it is a transaction of its own
	idempotent bool
	timeout    string
	priority   string
	streamed   bool
}

// txSelector says which transaction a statement begins or continues.
type txSelector struct {
	begin  bool
	mode   string // of the transaction that it begins; "": none is named
	id     string // of the transaction that it continues
	seq    uint64 // 0: it has no number
	commit bool
}

// outcome is the reply to a statement beside its rows.
type outcome struct {
	tx        *sidecarv1.Tx
	stats     *sidecarv1.Stats
	rows      uint64
	truncated bool
}

// execute runs one statement and hands its rows to out.
func (s *coreService) execute(ctx context.Context, c *call, in executeRequest, out sink) (outcome, error) {
	st, m, err := s.compose(ctx, c, in)
	if err != nil {
		return outcome{}, err
	}
	ctx, cancel, call, err := s.begin(ctx, c, in.timeout, in.priority)
	if err != nil {
		return outcome{}, err
	}
	defer cancel()
	call.Idempotent = in.idempotent
	if in.tx != nil {
		done, err := s.tx.execute(ctx, c, call, in, st, m, out)
		return done, hinted(err, st)
	}
	if err := s.fresh(c); err != nil {
		return outcome{}, err
	}
	return s.executeAlone(ctx, c, call, in.spec, st, m, in.room(s, c), out)
}

// alone reports whether the statement is all of its transaction, so that it may be repeated.
func (in executeRequest) alone() bool { return in.tx == nil || in.tx.begin && in.tx.commit }

// compose makes a statement of a request.
func (s *coreService) compose(ctx context.Context, c *call, in executeRequest) (st *statement, m *mode, err error) {
	c.sql = in.sql
	if m, err = parseMode(in.mode); err != nil {
		return nil, nil, err
	}
	err = s.inLane(ctx, c.large, func() (err error) {
		if st, err = s.prepare(in.spec, in.alone()); err == nil {
			err = tooMuch(c.reserved.Take(st.typed))
		}
		return err
	})
	return st, m, err
}

// room has no end for a streamed reply, which is not held.
func (in executeRequest) room(s *coreService, c *call) *room {
	room := s.room(c)
	if in.streamed {
		room.streamed, room.rows, room.bytes = true, math.MaxInt, math.MaxInt
	}
	return room
}

// executeAlone runs a statement as a transaction of its own, which the gate has let in.
// It goes again with the types that a refusal teaches, each time with another one.
func (s *coreService) executeAlone(ctx context.Context, c *call, call upstream.Call, in spec, st *statement, m *mode, own *room, out sink) (outcome, error) {
	if call.Ahead == nil { // else it was
		s.classify(&call, st)
	}
	reads := m.readOnly || call.Effects == yql.Reads
	for tries := 1; ; tries++ {
		var end ending
		report, err := s.deps.Driver.Do(ctx, call, func(ctx context.Context, session Session) (err error) {
			end, err = run(ctx, session, st, m.single(), reads, own, out)
			return err
		})
		call.Ahead = nil
		c.note(report)
		if err == nil {
			return end.outcome(), nil
		}
		again := s.learn(in, st, err)
		if again == nil || report.Unsure || tries > maxLearnt {
			return outcome{}, hinted(faultOf(err, deed{harmless: reads || call.Idempotent, unsure: report.Unsure}), st)
		}
		st = again
	}
}

// classify says what kind of work a statement is.
func (s *coreService) classify(call *upstream.Call, st *statement) {
	call.Work = kindOf(st.sql)
	call.Effects = s.cached.effectsOf(st.sql, call.Work)
}

func (e ending) outcome() outcome {
	return outcome{stats: statsOf(e.stats), rows: e.rows, truncated: e.truncated}
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
