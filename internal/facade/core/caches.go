package core

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
	"google.golang.org/protobuf/proto"

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
	effects  [latelySize]atomic.Pointer[effects]  // by a hash of the statement
}

// declared are the types of a statement's parameters, by name without the dollar.
type declared struct {
	sql    string               // "" if it is long
	types  map[string]*Ydb.Type // that it declares
	learnt map[string]*Ydb.Type // that the database wanted of others
	size   int                  // bytes of all that
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
	latelyText = 4 << 10  // bytes of a statement
	latelyAll  = 16 << 10 // with its types
)

// declaredTTL is long because a statement's declarations depend on nothing else.
const declaredTTL = time.Hour

const (
	maxCaches = 16 << 20 // bytes that all caches take, unless Deps.Caches says otherwise

	// What a message takes in memory for each byte of its encoding: lists in lists take
	// the most of all types, and a table is mostly columns.
	typeDecoded  = 32
	tableDecoded = 16
	perType      = 64 // bytes that a map takes for each type besides
)

// newCaches returns caches of so many bytes together. Each has a part of its own, so that what
// one app has explained does not drive out the types of another one's statements.
func newCaches(a API, bytes int) *caches {
	return &caches{
		declared: cache.New[*declared](cache.Config{Max: a.CacheSize, Bytes: bytes / 8 * 3, TTL: declaredTTL}),
		tables:   cache.New[*Ydb_Table.DescribeTableResult](cache.Config{Max: a.CacheSize, Bytes: bytes / 8 * 3, TTL: a.CacheTTL}),
		plans:    cache.New[explained](cache.Config{Max: min(a.CacheSize, 1000), Bytes: bytes / 4, TTL: a.CacheTTL}),
	}
}

// run starts goroutines that forget what is too old, until ctx ends.
func (c *caches) run(ctx context.Context, wg *sync.WaitGroup) {
	for _, run := range []func(context.Context) error{c.declared.Run, c.tables.Run, c.plans.Run} {
		wg.Go(func() { panics.Keep(ctx, "the care of a cache", func() { _ = run(ctx) }) }) // it returns nil
	}
}

// Statements is of how many statements the types of parameters are remembered, and how many bytes that takes.
func (c *caches) Statements() (n, bytes int) { return c.declared.Len(), c.declared.Bytes() }

// Forget empties what is asked before the caches are.
func (c *caches) Forget() {
	for i := range c.lately {
		c.lately[i].Store(nil)
	}
}

// declarations returns the types of a statement's parameters, as far as they are known. apart: they were read now, and the cache
// may not keep them.
func (c *caches) declarations(sql string) (d *declared, apart bool, err error) {
	if d := c.lately[kindOf(sql)%latelySize].Load(); d != nil && d.sql == sql {
		return d, false, nil
	}
	d, ok := c.declared.Get(sql)
	if !ok {
		types, err := yql.Declarations(sql)
		if err != nil {
			return nil, false, err
		}
		d = &declared{types: types}
		c.keep(sql, d)
	}
	c.soon(d)
	return d, !ok, nil
}

// keep remembers the types of a statement. The text of a long one does not stay in memory.
func (c *caches) keep(sql string, d *declared) {
	if d.sql = sql; len(sql) > latelyText {
		d.sql, d.types = "", apart(d.types)
	}
	d.size = len(d.sql)
	for _, types := range []map[string]*Ydb.Type{d.types, d.learnt} {
		for name, t := range types {
			d.size += perType + len(name) + typeDecoded*proto.Size(t)
		}
	}
	c.declared.SetSized(sql, d, d.size)
}

// apart returns copies of types that share no memory with the text they were read from.
func apart(types map[string]*Ydb.Type) map[string]*Ydb.Type {
	out := make(map[string]*Ydb.Type, len(types))
	for name, t := range types {
		own := new(Ydb.Type)
		b, _ := proto.Marshal(t)
		_ = proto.Unmarshal(b, own) // unlike a clone it copies names
		out[strings.Clone(name)] = own
	}
	return out
}

// soon keeps what is likely to be asked for again at once.
func (c *caches) soon(d *declared) {
	if d.sql != "" && d.size <= latelyAll {
		c.lately[kindOf(d.sql)%latelySize].Store(d)
	}
}

// learn adds types that the database wanted of a statement's parameters.
func (c *caches) learn(sql string, types map[string]*Ydb.Type) {
	old, _, err := c.declarations(sql)
	if err != nil {
		return
	}
	d := &declared{types: old.types, learnt: maps.Clone(old.learnt)}
	if d.learnt == nil {
		d.learnt = make(map[string]*Ydb.Type, len(types))
	}
	maps.Copy(d.learnt, types)
	c.keep(sql, d)
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

func (c *caches) Table(path string) (*Ydb_Table.DescribeTableResult, bool) { return c.tables.Get(path) }

func (c *caches) keepTable(path string, d *Ydb_Table.DescribeTableResult) {
	c.tables.SetSized(path, d, tableDecoded*proto.Size(d))
}

func (c *caches) ForgetTable(path string) { c.tables.Delete(path) }

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
	c.plans.SetSized(key, e, len(e.Plan)+len(e.AST))
}
