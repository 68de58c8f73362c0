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
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// caches hold what can be found out again, off the path of results.
type caches struct {
	declared *cache.Cache[*declared] // by statement
	tables   *cache.Cache[*Ydb_Table.DescribeTableResult]
	plans    *cache.Cache[explained]
	lately   [latelySize]atomic.Pointer[declared] // by a hash of the statement
	effects  [latelySize]atomic.Pointer[effects]  // likewise
}

// declared are the types of a statement's parameters, by name without the dollar.
type declared struct {
	sql    string
	types  map[string]*Ydb.Type // that it declares
	learnt map[string]*Ydb.Type // that the database wanted of others
}

// effects are those of a statement.
type effects struct {
	sql string
	yql.Effects
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
		declared: cache.New[*declared](cache.Config{Max: a.CacheSize, TTL: declaredTTL}),
		tables:   cache.New[*Ydb_Table.DescribeTableResult](cache.Config{Max: a.CacheSize, TTL: a.CacheTTL}),
		plans:    cache.New[explained](cache.Config{Max: min(a.CacheSize, 1000), TTL: a.CacheTTL}),
	}
}

// run starts goroutines that forget what is too old, until ctx ends.
func (c *caches) run(ctx context.Context, wg *sync.WaitGroup) {
	for _, run := range []func(context.Context) error{c.declared.Run, c.tables.Run, c.plans.Run} {
		wg.Go(func() { panics.Keep(ctx, "the care of a cache", func() { _ = run(ctx) }) }) // it returns nil
	}
}

// declarations returns the types of a statement's parameters, as far as they are known.
func (c *caches) declarations(sql string) (*declared, error) {
	if d := c.lately[kindOf(sql)%latelySize].Load(); d != nil && d.sql == sql {
		return d, nil
	}
	d, ok := c.declared.Get(sql)
	if !ok {
		types, err := yql.Declarations(sql)
		if err != nil {
			return nil, err
		}
		d = &declared{sql: sql, types: types}
		c.declared.Set(sql, d)
	}
	c.soon(d)
	return d, nil
}

// soon keeps what is likely to be asked for again at once.
func (c *caches) soon(d *declared) {
	if len(d.sql) <= latelyText {
		c.lately[kindOf(d.sql)%latelySize].Store(d)
	}
}

// learn adds types that the database wanted of a statement's parameters.
func (c *caches) learn(sql string, types map[string]*Ydb.Type) {
	old, err := c.declarations(sql)
	if err != nil {
		return
	}
	d := &declared{sql: sql, types: old.types, learnt: maps.Clone(old.learnt)}
	if d.learnt == nil {
		d.learnt = make(map[string]*Ydb.Type, len(types))
	}
	maps.Copy(d.learnt, types)
	c.declared.Set(sql, d)
	c.soon(d)
}

// effectsOf tells what a statement may leave behind; kind is kindOf it.
func (c *caches) effectsOf(sql string, kind uint64) yql.Effects {
	place := &c.effects[kind%latelySize]
	if e := place.Load(); e != nil && e.sql == sql {
		return e.Effects
	}
	e := yql.EffectsOf(sql)
	if len(sql) <= latelyText {
		place.Store(&effects{sql, e})
	}
	return e
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
