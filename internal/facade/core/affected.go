package core

import (
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// How many rows a statement wrote or deleted only the server's statistics say. YDB gathers the basic ones for every statement,
// also for those that ask for none (GetDqStatsMode in ydb/core/kqp/executer_actor/kqp_executer_stats.cpp), so asking costs the bytes of
// the answer alone.

// mayChange reports whether a text with these effects may change rows, so that the server is asked how many.
func mayChange(e yql.Effects) bool { return e == yql.Whole || e == yql.Parts }

// statsMode is what the server is asked for.
func (st *Statement) statsMode() Ydb_Query.StatsMode {
	if st.counts {
		return max(st.stats, Ydb_Query.StatsMode_STATS_MODE_BASIC)
	}
	return st.stats
}

// counted takes from the statistics of a statement how many rows it affected, and drops statistics that only this
// sidecar asked for.
func (e *ending) counted(st *Statement, control control) {
	if st.counts && e.stats != nil {
		e.affected = affected(e.stats, control.open())
	}
	if st.stats <= Ydb_Query.StatsMode_STATS_MODE_NONE {
		e.stats = nil
	}
}

// affected is how many rows a statement wrote or deleted; those of indexes are not counted. open says that its transaction stays
// open: YDB may hold the writes of such a statement back, up to the commit, and counts them where it makes them. 0 may be
// such a count, so it is nil.
func affected(q *Ydb_TableStats.QueryStats, open bool) *uint64 {
	rows := uint64(0)
	for _, phase := range q.GetQueryPhases() {
		for _, t := range phase.GetTableAccess() {
			if !ofIndex(t.GetName()) {
				rows += t.GetUpdates().GetRows() + t.GetDeletes().GetRows()
			}
		}
	}
	if open && rows == 0 {
		return nil
	}
	return &rows
}

// ofIndex reports whether a table is a part of an index: indexImplTable, or indexImplLevelTable and the others of indexes of vectors.
func ofIndex(path string) bool {
	return strings.HasPrefix(path[strings.LastIndexByte(path, '/')+1:], "indexImpl")
}
