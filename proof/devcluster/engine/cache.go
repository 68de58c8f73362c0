package engine

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// maxCacheBytes bounds the texts of a cache; a plan takes a small multiple of its text.
const maxCacheBytes = 32 << 20

// PlanCache keeps compiled texts by text and parameter types and forgets the least
// recently used. A node has its own, so that it compiles as often as a node would.
type PlanCache struct {
	size         int
	compilations atomic.Uint64

	compiling sync.Mutex // held while a text is compiled; taken before mu

	mu    sync.Mutex // guards what follows
	texts map[textKey]*list.Element
	used  list.List // of *cached, the last used first
	bytes int
}

// textKey is what a text means by itself.
type textKey struct {
	text, database string
	inferred       bool
}

// cached is a text with its plans: one, or several if parameters took their types from requests.
type cached struct {
	key      textKey
	inferred []string // names of the parameters whose types come with the request
	plans    map[string]*checkedPlan
}

// checkedPlan is a plan and the catalog it was last found to hold for.
type checkedPlan struct {
	*plan
	holds atomic.Pointer[catalog]
}

// NewPlanCache returns a cache of at most size texts.
func NewPlanCache(size int) *PlanCache {
	return &PlanCache{size: size, texts: map[textKey]*list.Element{}}
}

// Compilations returns how many texts were compiled through this cache.
func (c *PlanCache) Compilations() uint64 { return c.compilations.Load() }

// get returns the plan of the request if it is there, with the types in which it differs
// from other requests of the same text.
func (c *PlanCache) get(k textKey, params map[string]*Ydb.TypedValue) *checkedPlan {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.texts[k]
	if el == nil {
		return nil
	}
	c.used.MoveToFront(el)
	t := el.Value.(*cached)
	if len(t.inferred) == 0 {
		return t.plans[""]
	}
	sig, err := signature(t.inferred, params)
	if err != nil {
		return nil // compiling it again says what is wrong
	}
	return t.plans[sig]
}

func (c *PlanCache) put(k textKey, inferred []string, sig string, p *checkedPlan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.texts[k]
	if el == nil {
		el = c.used.PushFront(&cached{key: k, inferred: inferred, plans: map[string]*checkedPlan{}})
		c.texts[k] = el
		c.bytes += len(k.text)
	}
	t := el.Value.(*cached)
	if len(t.plans) >= 64 { // one text with ever new types
		clear(t.plans)
	}
	t.plans[sig] = p
	for c.used.Len() > c.size || c.bytes > maxCacheBytes && c.used.Len() > 1 {
		last := c.used.Back()
		old := c.used.Remove(last).(*cached)
		delete(c.texts, old.key)
		c.bytes -= len(old.key.text)
	}
}

// signature writes the types of the named parameters.
func signature(names []string, params map[string]*Ydb.TypedValue) (string, error) {
	var b strings.Builder
	for _, n := range names {
		tv := params[n]
		if tv == nil {
			b.WriteString("?;")
			continue
		}
		t, err := value.FromProto(tv.GetType())
		if err != nil {
			return "", errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "Parameter %s: %v", n, err)
		}
		b.WriteString(t.String())
		b.WriteByte(';')
	}
	return b.String(), nil
}

// prepare returns the plan of the request, compiled against the catalog that the
// transaction sees. A text without tables does not touch the database.
func (db *DB) prepare(ctx context.Context, tx *Tx, req *Request) (*plan, Stats, error) {
	cache := req.Cache
	if cache == nil {
		cache = db.plans
	}
	k := textKey{req.Text, req.Database, req.Inferred}
	if p := cache.get(k, req.Params); p != nil {
		if len(p.tables) == 0 {
			return p.plan, Stats{}, nil
		}
		cat, err := tx.open(ctx)
		if err != nil {
			return nil, Stats{}, err
		}
		if p.holdsFor(cat) {
			return p.plan, Stats{}, nil
		}
	}
	start := time.Now()
	p, compiled, err := db.compile(ctx, tx, req, cache, k)
	return p, Stats{Compiled: compiled, CompileTime: time.Since(start)}, err
}

// compile parses and compiles the request and puts the plan into the cache. Schema
// statements are not kept: they change what they were compiled against. Of requests that
// come at the same time with the same text one compiles it, as on a node of YDB.
func (db *DB) compile(ctx context.Context, tx *Tx, req *Request, cache *PlanCache, k textKey) (p *plan, compiled bool, err error) {
	if strings.TrimSpace(req.Text) == "" {
		return nil, true, errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "Query text is empty")
	}
	script, err := syntax.Parse(req.Text)
	if err != nil {
		return nil, true, parseError(err)
	}
	inferred, sig, given, err := inferredTypes(script, req)
	if err != nil {
		return nil, true, err
	}
	cat, err := db.catalogFor(ctx, tx, script)
	if err != nil {
		return nil, true, err
	}
	cache.compiling.Lock()
	defer cache.compiling.Unlock()
	if kept := cache.get(k, req.Params); kept != nil && kept.holdsFor(cat) {
		return kept.plan, false, nil
	}
	cache.compilations.Add(1)
	p, err = compile(script, cat, req.Database, req.Inferred, given)
	if err == nil && len(p.ddl) == 0 {
		kept := &checkedPlan{plan: p}
		kept.holds.Store(cat)
		cache.put(k, inferred, sig, kept)
	}
	return p, true, err
}

// catalogFor returns the catalog to compile against: of the transaction if the text may
// name tables.
func (db *DB) catalogFor(ctx context.Context, tx *Tx, script *syntax.Script) (*catalog, error) {
	if !syntax.NamesTables(script) {
		return db.catalog.Load(), nil
	}
	return tx.open(ctx)
}

func parseError(err error) error {
	if e, ok := errors.AsType[*syntax.Error](err); ok {
		return at(e.Pos, Ydb.StatusIds_GENERIC_ERROR, 0, "%s", e.Msg)
	}
	return storeError(err)
}

// holdsFor reports whether all tables of the plan are the same in the catalog.
func (p *checkedPlan) holdsFor(cat *catalog) bool {
	if p.holds.Load() == cat {
		return true
	}
	for _, t := range p.tables {
		if cat.table(t.path) != t {
			return false
		}
	}
	p.holds.Store(cat)
	return true
}

// inferredTypes finds the parameters that the text uses without declaring them, and the
// types that came with the request.
func inferredTypes(script *syntax.Script, req *Request) (names []string, sig string, given map[string]*value.Type, err error) {
	if !req.Inferred {
		return nil, "", nil, nil
	}
	names = syntax.Undeclared(script)
	slices.Sort(names)
	given = map[string]*value.Type{}
	for _, n := range names {
		tv := req.Params[n]
		if tv == nil {
			continue
		}
		t, err := value.FromProto(tv.GetType())
		if err != nil {
			return nil, "", nil, errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "Parameter %s: %v", n, err)
		}
		given[n] = t
	}
	sig, err = signature(names, req.Params)
	return names, sig, given, err
}
