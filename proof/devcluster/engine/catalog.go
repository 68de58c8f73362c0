package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/store"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// catalog is one version of the schema; it is immutable. A table that did not change
// keeps its *table from version to version, so plans know by the pointer whether they
// still hold.
type catalog struct {
	schema  uint64
	entries map[string]*entry // by absolute path
}

// entry is a directory, or a table or a topic if one of those is set.
type entry struct {
	path    string
	def     []byte // as stored
	created time.Time
	table   *table
	topic   *Topic
}

// table is an immutable description of a table.
type table struct {
	path    string
	id      uint64
	columns []tableColumn
	byName  map[string]int
	byID    map[uint64]int
	key     []int // places of the key's columns
	indexes []*index
	bloom   Ydb.FeatureFlag_Status // as declared; it has no effect here
}

type tableColumn struct {
	id      uint64 // never used again for another column
	name    string
	bare    *value.Type
	typ     *value.Type // as clients see it: Optional unless NOT NULL
	notNull bool
}

// index is a secondary index: rows of their own, whose keys are its columns and then the
// table's key, and whose values are empty.
type index struct {
	name  string
	id    uint64
	key   []int // places of its columns, then those of the table's key it does not have
	cols  int   // how many of key are the index's own
	data  []string
	async bool
}

func (t *table) index(name string) *index {
	for _, ix := range t.indexes {
		if ix.name == name {
			return ix
		}
	}
	return nil
}

func (t *table) isKey(col int) bool {
	for _, k := range t.key {
		if k == col {
			return true
		}
	}
	return false
}

// The stored forms.
type (
	storedEntry struct {
		Created time.Time    `json:"created"`
		Table   *storedTable `json:"table,omitempty"`
		Topic   *storedTopic `json:"topic,omitempty"`
	}
	storedTable struct {
		ID      uint64         `json:"id"`
		Columns []storedColumn `json:"columns"`
		Key     []string       `json:"key"`
		Indexes []storedIndex  `json:"indexes,omitempty"`
		NextCol uint64         `json:"next_column"`

		KeyBloomFilter Ydb.FeatureFlag_Status `json:"key_bloom_filter,omitempty"`
	}
	storedColumn struct {
		ID      uint64 `json:"id"`
		Name    string `json:"name"`
		Type    string `json:"type"`
		NotNull bool   `json:"not_null,omitempty"`
	}
	storedIndex struct {
		ID      uint64   `json:"id"`
		Name    string   `json:"name"`
		Columns []string `json:"columns"`
		Data    []string `json:"data,omitempty"`
		Async   bool     `json:"async,omitempty"`
	}
)

// loadEntry builds an entry from its stored form.
func loadEntry(e store.Entry) (*entry, error) {
	var st storedEntry
	if err := json.Unmarshal(e.Def, &st); err != nil {
		return nil, fmt.Errorf("read the definition of %s: %w", e.Path, err)
	}
	out := &entry{path: e.Path, def: e.Def, created: st.Created}
	if st.Topic != nil {
		var err error
		out.topic, err = st.Topic.topic(e.Path)
		return out, err
	}
	if st.Table == nil {
		return out, nil
	}
	t := &table{path: e.Path, id: st.Table.ID, byName: map[string]int{}, byID: map[uint64]int{}, bloom: st.Table.KeyBloomFilter}
	for i, c := range st.Table.Columns {
		bare, err := syntax.ParseType(c.Type)
		if err != nil {
			return nil, fmt.Errorf("read the definition of %s: column %s: %w", e.Path, c.Name, err)
		}
		typ := bare
		if !c.NotNull {
			typ = value.OptionalOf(bare)
		}
		t.columns = append(t.columns, tableColumn{id: c.ID, name: c.Name, bare: bare, typ: typ, notNull: c.NotNull})
		t.byName[c.Name], t.byID[c.ID] = i, i
	}
	for _, k := range st.Table.Key {
		t.key = append(t.key, t.byName[k])
	}
	for _, six := range st.Table.Indexes {
		ix := &index{name: six.Name, id: six.ID, data: six.Data, async: six.Async, cols: len(six.Columns)}
		has := map[int]bool{}
		for _, c := range six.Columns {
			ix.key = append(ix.key, t.byName[c])
			has[t.byName[c]] = true
		}
		for _, k := range t.key {
			if !has[k] {
				ix.key = append(ix.key, k)
			}
		}
		t.indexes = append(t.indexes, ix)
	}
	out.table = t
	return out, nil
}

// catalogAt returns the catalog of a version of the schema, or of a newer one.
func (db *DB) catalogAt(ctx context.Context, schema uint64) (*catalog, error) {
	if c := db.catalog.Load(); c != nil && c.schema >= schema {
		return c, nil
	}
	db.loading.Lock()
	defer db.loading.Unlock()
	old := db.catalog.Load()
	if old != nil && old.schema >= schema {
		return old, nil
	}
	entries, version, err := db.store.Catalog(ctx)
	if err != nil {
		return nil, err
	}
	c, err := newCatalog(entries, version, old)
	if err != nil {
		return nil, err
	}
	db.catalog.Store(c)
	return c, nil
}

// newCatalog builds a catalog; entries that are as in old are taken over.
func newCatalog(entries []store.Entry, version uint64, old *catalog) (*catalog, error) {
	c := &catalog{schema: version, entries: make(map[string]*entry, len(entries))}
	for _, se := range entries {
		if old != nil {
			if e := old.entries[se.Path]; e != nil && bytes.Equal(e.def, se.Def) {
				c.entries[se.Path] = e
				continue
			}
		}
		e, err := loadEntry(se)
		if err != nil {
			return nil, err
		}
		c.entries[se.Path] = e
	}
	return c, nil
}

// table returns the table at the absolute path, or nil.
func (c *catalog) table(p string) *table {
	if e := c.entries[p]; e != nil {
		return e.table
	}
	return nil
}

// children returns the entries directly below the directory p.
func (c *catalog) children(p string) []*entry {
	prefix := strings.TrimSuffix(p, "/") + "/"
	var out []*entry
	for name, e := range c.entries {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" && !strings.Contains(rest, "/") {
			out = append(out, e)
		}
	}
	return out
}

// isDir reports whether p is a directory: a made one, or a database ("/local"), which is
// always there.
func (c *catalog) isDir(p string) bool {
	e := c.entries[p]
	return e != nil && e.table == nil && e.topic == nil || strings.Count(p, "/") <= 1 && e == nil
}

// absolute resolves a name against the prefix and cleans it.
func absolute(prefix, name string) string {
	if !strings.HasPrefix(name, "/") {
		name = prefix + "/" + name
	}
	return path.Clean("/" + name)
}
