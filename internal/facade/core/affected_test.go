package core

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// accessOf are the statistics of one table.
func accessOf(name string, updates, deletes uint64) *Ydb_TableStats.TableAccessStats {
	return &Ydb_TableStats.TableAccessStats{Name: name, Reads: &Ydb_TableStats.OperationStats{Rows: 1000},
		Updates: &Ydb_TableStats.OperationStats{Rows: updates}, Deletes: &Ydb_TableStats.OperationStats{Rows: deletes}}
}

// All phases and tables count, except the tables of indexes. Nothing in an open transaction is no count.
func TestAffectedCountsRowsOfTablesOnly(t *testing.T) {
	none := ^uint64(0)
	for name, tc := range map[string]struct {
		tables []*Ydb_TableStats.TableAccessStats
		open   bool
		want   uint64
	}{
		"nothing":                 {nil, false, 0},
		"nothing, in an open one": {nil, true, none},
		"reads, in an open one":   {[]*Ydb_TableStats.TableAccessStats{accessOf("/local/a", 0, 0)}, true, none},
		"a write, in an open one": {[]*Ydb_TableStats.TableAccessStats{accessOf("/local/a", 2, 0)}, true, 2},
		"updates and deletes": {[]*Ydb_TableStats.TableAccessStats{accessOf("/local/a", 2, 3), accessOf("/local/b", 1, 0)},
			false, 6},
		"an index": {[]*Ydb_TableStats.TableAccessStats{accessOf("/local/a", 2, 0), accessOf("/local/a/by_n/indexImplTable", 4, 4)},
			false, 2},
		"an index of vectors": {[]*Ydb_TableStats.TableAccessStats{accessOf("/local/a/v/indexImplPostingTable", 4, 0)},
			false, 0},
		"a directory that is named so":   {[]*Ydb_TableStats.TableAccessStats{accessOf("/local/indexImplTable/a", 4, 0)}, false, 4},
		"a table without a path, at all": {[]*Ydb_TableStats.TableAccessStats{accessOf("", 4, 0)}, false, 4},
	} {
		q := &Ydb_TableStats.QueryStats{}
		for _, one := range tc.tables {
			q.QueryPhases = append(q.QueryPhases, &Ydb_TableStats.QueryPhaseStats{TableAccess: []*Ydb_TableStats.TableAccessStats{one}})
		}
		got := none
		if n := affected(q, tc.open); n != nil {
			got = *n
		}
		if got != tc.want {
			t.Errorf("%s: %d; want %d", name, got, tc.want)
		}
	}
}

// Only texts that may change rows are asked about, and what the caller asks for is not taken away.
func TestStatsAreAskedForWhereRowsMayChange(t *testing.T) {
	const none, basic, full = Ydb_Query.StatsMode_STATS_MODE_NONE, Ydb_Query.StatsMode_STATS_MODE_BASIC, Ydb_Query.StatsMode_STATS_MODE_FULL
	for sql, want := range map[string]Ydb_Query.StatsMode{
		"SELECT 1": none, "UPSERT INTO t (id) VALUES (1)": basic, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))": none,
		"DROP TABLE t; DELETE FROM u": basic,
	} {
		for _, asked := range []Ydb_Query.StatsMode{0, none, basic, full} {
			st := &Statement{SQL: sql, stats: asked, counts: mayChange(yql.EffectsOf(sql))}
			if got := st.statsMode(); got != max(asked, want) && !(asked == 0 && want == none && got == 0) {
				t.Errorf("%s with %v is asked %v; want %v", sql, asked, got, max(asked, want))
			}
			end := ending{stats: &Ydb_TableStats.QueryStats{}}
			end.counted(st, control{})
			if (end.stats != nil) != (asked >= basic) || (end.affected != nil) != (want == basic) {
				t.Errorf("%s with %v: statistics %v, count %v", sql, asked, end.stats != nil, end.affected != nil)
			}
		}
	}
}
