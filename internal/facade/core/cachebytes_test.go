package core

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/yql"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// heap is what is in use once all garbage is gone.
func heap() int {
	var m runtime.MemStats
	runtime.GC() // twice: what is pooled goes with the second
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Whatever statements, tables and plans there are, the caches take no more than they may, and count about what that is.
func TestCachesAreBoundedByBytes(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	const budget = 4 << 20
	nested := strings.Repeat("List<", 20) + "Int8" + strings.Repeat(">", 20)
	column := &Ydb_Table.ColumnMeta{Name: "a_column", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}}}
	for name, tc := range map[string]struct {
		n    int
		fill func(c *caches, i int) error
	}{
		"texts of 1 MiB": {32, func(c *caches, i int) error {
			_, _, err := c.declarations(fmt.Sprintf("DECLARE $p AS Struct<a:Utf8>; SELECT $p; -- %d %s", i, strings.Repeat("x", 1<<20)))
			return err
		}},
		"short texts": {5000, func(c *caches, i int) error {
			_, _, err := c.declarations(fmt.Sprintf("SELECT %d, $p -- %s", i, strings.Repeat("x", 1000)))
			return err
		}},
		"large types": {300, func(c *caches, i int) error {
			_, _, err := c.declarations(fmt.Sprintf("DECLARE $p%d AS Tuple<%s>", i, strings.Repeat(nested+",", 20)))
			return err
		}},
		"huge types": {4, func(c *caches, i int) error {
			_, _, err := c.declarations(fmt.Sprintf("DECLARE $p%d AS Tuple<%s>", i, strings.Repeat(nested+",", 500)))
			return err
		}},
		"many parameters": {8, func(c *caches, i int) error {
			var b strings.Builder
			for k := range 3000 {
				fmt.Fprintf(&b, "DECLARE $p%d_%d AS Uint64;", i, k)
			}
			_, _, err := c.declarations(b.String())
			return err
		}},
		"learnt types": {200, func(c *caches, i int) error {
			types := map[string]*Ydb.Type{}
			for k := range 100 {
				types[fmt.Sprint("p", k)], _ = yql.ParseType("List<Struct<a:Int64,b:Int64>>")
			}
			c.learn(fmt.Sprint("SELECT ", i), types)
			return nil
		}},
		"tables": {200, func(c *caches, i int) error {
			d := &Ydb_Table.DescribeTableResult{}
			for range 100 {
				m := &Ydb_Table.ColumnMeta{Name: strings.Clone(column.Name),
					Type: &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: column.Type}}}}
				d.Columns = append(d.Columns, m)
			}
			c.keepTable(fmt.Sprint("/local/", i), d)
			return nil
		}},
		"plans": {100, func(c *caches, i int) error {
			c.keepPlan(explainKey(fmt.Sprint("SELECT ", i), nil),
				explained{Plan: strings.Repeat("x", 60<<10), AST: strings.Repeat("y", 40<<10)})
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			c := newCaches(DefaultAPI(), budget)
			for i := range tc.n {
				if err := tc.fill(c, i); err != nil {
					t.Fatal(err)
				}
			}
			counted, takes := c.declared.Bytes()+c.tables.Bytes()+c.plans.Bytes(), heap()-before
			entries := c.declared.Len() + c.tables.Len() + c.plans.Len()
			t.Logf("%d of %d entries, %d KB are counted and %d KB taken", entries, tc.n, counted>>10, takes>>10)
			const lately = latelySize * latelyAll
			if counted > budget || takes > counted+counted/4+lately {
				t.Errorf("%d KB are counted and %d KB taken; want about as many, and at most %d KB", counted>>10, takes>>10, budget>>10)
			}
			runtime.KeepAlive(c)
		})
	}
}

// To find a statement that was there before costs nothing.
func TestKnownStatementsAllocateNothing(t *testing.T) {
	c := newCaches(DefaultAPI(), maxCaches)
	const sql = "DECLARE $id AS Uint64; SELECT id, v FROM items WHERE id = $id AND v > 0"
	if n := testing.AllocsPerRun(100, func() {
		if d, _, err := c.declarations(sql); err != nil || d.types["id"] == nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
