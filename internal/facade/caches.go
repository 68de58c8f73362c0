package facade

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/cache"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// caches hold what can be found out again, off the path of results.
type caches struct {
	declared *cache.Cache[map[string]*Ydb.Type] // by statement
	tables   *cache.Cache[*Ydb_Table.DescribeTableResult]
	plans    *cache.Cache[explained]
	lately   [latelySize]atomic.Pointer[declared] // by a hash of the statement
}

// declared are the types that a statement declares.
type declared struct {
	sql   string
	types map[string]*Ydb.Type
}

const (
	// latelySize is for how many statements nothing is asked of a cache: to find them
	// there costs a cryptographic hash and a lock.
	latelySize = 64
	latelyText = 4 << 10 // bytes of a statement
)

// declaredTTL is long because a statement's declarations depend on nothing else.
const declaredTTL = time.Hour

// maxCachedPlan bounds what one entry of the plan cache may hold, in bytes.
const maxCachedPlan = 256 << 10

func newCaches(a API) *caches {
	return &caches{
		declared: cache.New[map[string]*Ydb.Type](cache.Config{Max: a.CacheSize, TTL: declaredTTL}),
		tables:   cache.New[*Ydb_Table.DescribeTableResult](cache.Config{Max: a.CacheSize, TTL: a.CacheTTL}),
		plans:    cache.New[explained](cache.Config{Max: min(a.CacheSize, 1000), TTL: a.CacheTTL}),
	}
}

// run forgets what is too old, until ctx ends.
func (c *caches) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{c.declared.Run, c.tables.Run, c.plans.Run} {
		wg.Go(func() { _ = run(ctx) })
	}
	wg.Wait()
}

// declarations returns the types that a statement declares for its parameters.
func (c *caches) declarations(sql string) (map[string]*Ydb.Type, error) {
	place := &c.lately[kindOf(sql)%latelySize]
	if d := place.Load(); d != nil && d.sql == sql {
		return d.types, nil
	}
	types, ok := c.declared.Get(sql)
	if !ok {
		var err error
		if types, err = yql.Declarations(sql); err != nil {
			return nil, err
		}
		c.declared.Set(sql, types)
	}
	if len(sql) <= latelyText {
		place.Store(&declared{sql, types})
	}
	return types, nil
}

func (c *caches) table(path string) (*Ydb_Table.DescribeTableResult, bool) { return c.tables.Get(path) }

func (c *caches) keepTable(path string, d *Ydb_Table.DescribeTableResult) { c.tables.Set(path, d) }

func (c *caches) forgetTable(path string) { c.tables.Delete(path) }

// explainKey tells statements apart whose plans may differ.
func explainKey(sql string, types map[string]*Ydb.Type) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(types)) {
		b.WriteString(name)
		b.WriteByte(0)
		b.WriteString(yql.FormatType(types[name]))
		b.WriteByte(0)
	}
	b.WriteByte(0)
	b.WriteString(sql)
	return b.String()
}

func (c *caches) plan(key string) (explained, bool) { return c.plans.Get(key) }

func (c *caches) keepPlan(key string, e explained) {
	if len(e.plan)+len(e.ast) <= maxCachedPlan {
		c.plans.Set(key, e)
	}
}
