package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// table describes a table; columns are "name Type", the first one is the key.
func table(t testing.TB, columns ...string) *Ydb_Table.DescribeTableResult {
	t.Helper()
	d := &Ydb_Table.DescribeTableResult{}
	for _, c := range columns {
		name, text, _ := strings.Cut(c, " ")
		typ, err := yql.ParseType(text)
		if err != nil {
			t.Fatal(err)
		}
		d.Columns = append(d.Columns, &Ydb_Table.ColumnMeta{Name: name, Type: typ})
	}
	d.PrimaryKey = []string{d.Columns[0].Name}
	return d
}

// fakeTable is a sink that keeps a table. It checks what must hold of requests:
// they are sorted, name a key once, and never have a key that is being written.
type fakeTable struct {
	t testing.TB

	// before, if not nil, is called with the rows of a request before they are
	// written, and fails it. late has the rows written after the failure, as a shard
	// does: not after the time that the request gives, by a clock that is slow by skew.
	before func(keys []string) (late time.Duration, err error)

	skew time.Duration

	mu        sync.Mutex // guards all below
	form      *Ydb_Table.DescribeTableResult
	rows      map[string]map[string]string // JSON of values, by key and column
	busy      map[string]bool              // keys of requests under way
	requests  [][]string                   // their keys
	peak, now int                          // requests under way
	described int
	late      sync.WaitGroup
}

func newFakeTable(t testing.TB, columns ...string) *fakeTable {
	return &fakeTable{t: t, form: table(t, columns...), rows: map[string]map[string]string{}, busy: map[string]bool{}}
}

func (f *fakeTable) Describe(context.Context, string, bool) (*Ydb_Table.DescribeTableResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.described++
	if f.form == nil {
		return nil, errors.New("there is no such table")
	}
	return f.form, nil
}

// change gives the table another form.
func (f *fakeTable) change(form *Ydb_Table.DescribeTableResult) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.form = form
}

// read takes a request apart, as the server would: rows by column name.
func (f *fakeTable) read(m *Ydb_Table.BulkUpsertRequest) (keys []string, rows []map[string]string, err error) {
	if m.Table != "/local/t" {
		f.t.Errorf("a request is for %q", m.Table)
	}
	members := m.GetRows().GetType().GetListType().GetItem().GetStructType().GetMembers()
	types := map[string]*Ydb.Type{}
	for _, c := range f.form.GetColumns() {
		types[c.GetName()] = c.GetType()
	}
	for _, member := range members {
		if types[member.GetName()] == nil || !yql.EqualTypes(types[member.GetName()], member.GetType()) {
			return nil, nil, &Refused{Err: fmt.Errorf("column %s", member.GetName()), Scheme: true}
		}
	}
	key := slices.IndexFunc(members, func(m *Ydb.StructMember) bool { return m.GetName() == f.form.GetPrimaryKey()[0] })
	for _, row := range m.GetRows().GetValue().GetItems() {
		values := map[string]string{}
		for i, item := range row.GetItems() {
			text, err := yql.AppendJSON(nil, item, members[i].GetType(), yql.JSONOptions{})
			if err != nil {
				f.t.Errorf("column %s: %v", members[i].GetName(), err)
			}
			values[members[i].GetName()] = string(text)
			if i == key {
				keys = append(keys, string(text))
			}
		}
		rows = append(rows, values)
	}
	return keys, rows, nil
}

// enter notes a request that begins, whose keys no other one may be writing.
func (f *fakeTable) enter(m *Ydb_Table.BulkUpsertRequest) (keys []string, rows []map[string]string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if keys, rows, err = f.read(m); err != nil {
		return nil, nil, err
	}
	if len(slices.Compact(slices.Sorted(slices.Values(keys)))) != len(keys) {
		f.t.Errorf("a request has a key twice: %v", keys)
	}
	for _, k := range keys {
		if f.busy[k] {
			f.t.Errorf("key %s is written by two requests at a time", k)
		}
		f.busy[k] = true
	}
	f.requests = append(f.requests, keys)
	f.now++
	f.peak = max(f.peak, f.now)
	return keys, rows, nil
}

func (f *fakeTable) Upsert(ctx context.Context, request mem.Buffer) (Sent, error) {
	m := &Ydb_Table.BulkUpsertRequest{}
	if err := proto.Unmarshal(request.ReadOnlyData(), m); err != nil {
		f.t.Errorf("a request is no protobuf: %v", err)
		return Sent{Attempts: 1}, err
	}
	bound := m.GetOperationParams().GetOperationTimeout().AsDuration()
	if bound <= 0 {
		bound = 5 * time.Minute // as the server does
	}
	until := time.Now().Add(bound + f.skew)
	keys, rows, err := f.enter(m)
	if err != nil {
		return Sent{Attempts: 1}, err
	}
	var late time.Duration
	if f.before != nil {
		late, err = f.before(keys)
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	f.now--
	for _, k := range keys {
		delete(f.busy, k)
	}
	sent := Sent{Attempts: 1}
	switch {
	case late > 0:
		// The first try got lost and arrives later; another one was made.
		sent = Sent{Attempts: 2, Unsure: true}
		f.late.Go(func() {
			time.Sleep(late)
			f.mu.Lock()
			defer f.mu.Unlock()
			if !time.Now().After(until) {
				f.apply(keys, rows)
			}
		})
		fallthrough
	case err == nil:
		f.apply(keys, rows)
	}
	if ctx.Err() != nil && err == nil {
		err = context.Cause(ctx)
	}
	return sent, err
}

func (f *fakeTable) apply(keys []string, rows []map[string]string) {
	for i, k := range keys {
		if f.rows[k] == nil {
			f.rows[k] = map[string]string{}
		}
		maps.Copy(f.rows[k], rows[i])
	}
}

// count is how many requests there were.
func (f *fakeTable) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

func (f *fakeTable) get(key, column string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows[key][column]
}

func newEngine(t testing.TB, sink Sink, change func(*Config)) *Engine {
	t.Helper()
	c := Default()
	if change != nil {
		change(&c)
	}
	e, err := New(c, Deps{Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func open(t testing.TB, e *Engine, o Options) *Stream {
	t.Helper()
	if o.Table == "" {
		o.Table = "/local/t"
	}
	s, err := e.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// add adds rows; "!" alone is a row that cannot be read.
func add(t testing.TB, s *Stream, rows ...string) {
	t.Helper()
	for _, row := range rows {
		if err := s.AddJSON([]byte(row)); err != nil {
			t.Fatalf("%s: %v", row, err)
		}
	}
}

// drain reads the progress of a stream to its end.
func drain(s *Stream) (last uint64, refused map[uint64]string, err error) {
	refused = map[uint64]string{}
	for {
		p, err := s.Next(context.Background())
		if err != nil {
			return last, refused, err
		}
		if p.Next < last {
			return last, refused, fmt.Errorf("acknowledged %d after %d", p.Next, last)
		}
		last = p.Next
		for _, r := range p.Refused {
			if refused[r.Offset] != "" {
				return last, refused, fmt.Errorf("offset %d is refused twice", r.Offset)
			}
			refused[r.Offset] = r.Err.Error()
		}
	}
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }
