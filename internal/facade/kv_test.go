package facade

import (
	"context"
	"encoding/json"
	"math"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

func withKV(t testing.TB, tables ...string) Config {
	cfg := small()
	for _, text := range tables {
		cfg.KV.Tables = append(cfg.KV.Tables, facadetest.Entry(t, text))
	}
	return cfg
}

const (
	plainEntry   = "plain=t key=id:Uint64 value=v:String"
	versionEntry = "versions=t key=id:Uint64 value=v:String version=rev:Uint64"
)

// TestKVRepeats: what may run twice is sent again after an unknown outcome, and
// what may not is not.
func TestKVRepeats(t *testing.T) {
	for _, c := range []struct {
		name    string
		entry   string
		call    contract.KV
		remove  bool
		breaks  string // the statement whose connection breaks, once
		created bool
		unknown bool // what the caller is told
		sent    int  // statements
	}{
		{name: "a_plain_put", entry: plainEntry, breaks: " UPSERT ", sent: 2},
		{name: "an_insert", entry: plainEntry, call: contract.KV{NoneMatch: []string{"*"}}, breaks: " INSERT ", unknown: true, sent: 1},
		{name: "a_put_with_a_version", entry: versionEntry, breaks: " UPSERT ", created: true, sent: 4},
		{name: "a_put_if_it_is_there", entry: versionEntry, call: contract.KV{Match: []string{"*"}}, breaks: " UPSERT ",
			unknown: true, sent: 2},
		{name: "a_look", entry: versionEntry, breaks: " SELECT ", created: true, sent: 3},
		{name: "a_plain_delete", entry: versionEntry, remove: true, breaks: " DELETE ", sent: 2},
		{name: "a_delete_if_it_is_there", entry: versionEntry, call: contract.KV{Match: []string{"*"}}, remove: true,
			breaks: " DELETE ", unknown: true, sent: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := facadetest.Shelf(t)
			b := start(t, withKV(t, c.entry), f)
			answer := f.Answer
			b.each(t, func(t *testing.T, face contract.Client) {
				c.call.Table, _, _ = strings.Cut(c.entry, "=")
				c.call.ID = []any{map[string]string{"grpc": "1", "http": "2"}[face.Name()]}
				if c.call.Match != nil { // so that there is something to match
					if _, err := face.Put(t.Context(), contract.KV{Table: c.call.Table, ID: c.call.ID}); err != nil {
						t.Fatal(err)
					}
				}
				f.Taken()
				var broken atomic.Bool
				f.Mu.Lock()
				f.Answer = func(
					ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
				) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
					if strings.Contains(req.GetQueryContent().GetText(), c.breaks) && !broken.Swap(true) {
						return nil, facadetest.Broke(cluster.CallExecute, false)
					}
					return answer(ctx, s, req)
				}
				f.Mu.Unlock()
				var r *contract.KVReply
				var err error
				if c.remove {
					err = face.Delete(t.Context(), c.call)
				} else {
					r, err = face.Put(t.Context(), c.call)
				}
				if c.unknown {
					refused(t, err, "OUTCOME_UNKNOWN", false, true)
				} else if err != nil || r != nil && r.Created != c.created {
					t.Errorf("%+v, %v; want created %v", r, err, c.created)
				}
				if n := len(f.Taken()); n != c.sent {
					t.Errorf("%d statements were sent; want %d", n, c.sent)
				}
			})
		})
	}
}

// TestKVCheckIsMadeOnce: the table is described once, however many calls come at
// a time, and again when the database finds a statement strange.
func TestKVCheckIsMadeOnce(t *testing.T) {
	f := facadetest.Shelf(t)
	b := start(t, withKV(t, plainEntry), f)
	get := func() error {
		_, err := b.grpc.Get(t.Context(), contract.KV{Table: "plain", ID: []any{"1"}})
		return err
	}
	describe := f.Table
	f.Mu.Lock()
	f.Table = func(path string) (*Ydb_Table.DescribeTableResult, error) {
		for b.s.State().OpenCalls < 50 { // so that all of them find the table unknown
			runtime.Gosched()
		}
		return describe(path)
	}
	f.Mu.Unlock()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { refused(t, get(), "KEY_NOT_FOUND", false, false) })
	}
	all.Wait()
	if n := f.Count(&f.Described); n != 1 {
		t.Errorf("the table was described %d times; want 1", n)
	}
	f.Mu.Lock()
	answer := f.Answer
	f.Answer = func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		return nil, facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_SCHEME_ERROR)
	}
	f.Mu.Unlock()
	refused(t, get(), "TABLE_MISMATCH", false, false)
	f.Mu.Lock()
	f.Answer = answer
	f.Table = func(string) (*Ydb_Table.DescribeTableResult, error) {
		d := facadetest.KVTable(t)
		d.PrimaryKey = []string{"id", "v"}
		return d, nil
	}
	f.Mu.Unlock()
	f.Taken()
	refused(t, get(), "TABLE_MISMATCH", false, false)
	if n := len(f.Taken()); n != 0 {
		t.Errorf("%d statements went to a table that does not fit", n)
	}
	f.Mu.Lock()
	f.Table = describe
	f.Mu.Unlock()
	refused(t, get(), "KEY_NOT_FOUND", false, false)
}

// TestKVLooksAgain: a table that was made anew with another primary key is found out, though it takes every
// statement of ours; until it is, and when nobody can look, calls go on.
func TestKVLooksAgain(t *testing.T) {
	f := facadetest.Shelf(t)
	b := start(t, withKV(t, plainEntry), f)
	get := func() error {
		_, err := b.grpc.Get(t.Context(), contract.KV{Table: "plain", ID: []any{"1"}})
		return err
	}
	later := func() { b.s.kv.Tables["plain"].Checked.Store(time.Now().Add(-b.s.core.Cfg.API.CacheTTL).UnixNano()) }
	looks := func(want int) {
		t.Helper()
		if n := f.Count(&f.Described); n != want {
			t.Errorf("the table was described %d times; want %d", n, want)
		}
	}
	change := func(table func(string) (*Ydb_Table.DescribeTableResult, error)) {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		f.Table = table
	}
	refused(t, get(), "KEY_NOT_FOUND", false, false)
	refused(t, get(), "KEY_NOT_FOUND", false, false)
	looks(1)
	later()
	refused(t, get(), "KEY_NOT_FOUND", false, false)
	looks(2)
	change(func(string) (*Ydb_Table.DescribeTableResult, error) {
		return nil, facadetest.Failed(cluster.CallControl, Ydb.StatusIds_UNAVAILABLE)
	})
	later()
	refused(t, get(), "KEY_NOT_FOUND", false, false)
	refused(t, get(), "KEY_NOT_FOUND", false, false)
	looks(3)
	change(func(string) (*Ydb_Table.DescribeTableResult, error) {
		d := facadetest.KVTable(t)
		d.PrimaryKey = []string{"id", "v"}
		return d, nil
	})
	later()
	// One call looks, and others do not wait for it.
	b.s.kv.Tables["plain"].Checking <- struct{}{}
	refused(t, get(), "KEY_NOT_FOUND", false, false)
	<-b.s.kv.Tables["plain"].Checking
	looks(3)
	f.Taken()
	refused(t, get(), "TABLE_MISMATCH", false, false)
	refused(t, get(), "TABLE_MISMATCH", false, false)
	looks(5)
	if n := len(f.Taken()); n != 0 {
		t.Errorf("%d statements went to a table that does not fit", n)
	}
}

func TestKVIsOffWithoutTables(t *testing.T) {
	b := start(t, small(), facadetest.Shelf(t))
	b.each(t, func(t *testing.T, face contract.Client) {
		_, err := face.Get(t.Context(), contract.KV{Table: "t", ID: []any{"1"}})
		refused(t, err, "TABLE_NOT_OPEN", false, false)
	})
	if calls := b.Driver.Count(&b.Driver.Described); calls != 0 {
		t.Errorf("the database was asked %d times", calls)
	}
}

func TestKVWhileDraining(t *testing.T) {
	b := start(t, withKV(t, plainEntry), facadetest.Shelf(t))
	b.s.core.RefuseNew()
	b.each(t, func(t *testing.T, face contract.Client) {
		_, err := face.Get(t.Context(), contract.KV{Table: "plain", ID: []any{"1"}})
		refused(t, err, "DRAINING", true, false)
	})
}

// TestKVRefusesWhatDoesNotFit: a reply that api.max_bytes cuts would name rows
// as missing that are there.
func TestKVRefusesWhatDoesNotFit(t *testing.T) {
	f := facadetest.Shelf(t)
	cfg := withKV(t, plainEntry)
	cfg.API.MaxBytes = 1 << 10
	b := start(t, cfg, f)
	big := `"` + strings.Repeat("AAAA", 500) + `"`
	f.Answer = func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		return []*Ydb_Query.ExecuteQueryResponsePart{
			facadetest.Part(t, 0, []string{"id Uint64", "v Optional<String>"}, []string{"1", big}),
		}, nil
	}
	b.each(t, func(t *testing.T, face contract.Client) {
		_, err := face.Get(t.Context(), contract.KV{Table: "plain", ID: []any{"1"}})
		if e := refused(t, err, "LIMIT_EXCEEDED", false, false); !strings.Contains(e.Message, "api.max_bytes") {
			t.Errorf("%v does not name the setting", e)
		}
		_, _, err = face.BatchGet(t.Context(), "plain", [][]any{{"1"}, {"2"}}, false)
		refused(t, err, "LIMIT_EXCEEDED", false, false)
	})
}

func TestKVSpansTellTheTableAndNoMore(t *testing.T) {
	tracer, spans := traced(tracing.Config{}, tracing.Ratio(1))
	b := start(t, withKV(t, "plain=t key=id:Utf8 value=v:String"), facadetest.Shelf(t), func(d *core.Deps) { d.Tracer = tracer })
	const secret = "hunter2"
	b.each(t, func(t *testing.T, face contract.Client) {
		// Described with another key: what counts here is the span.
		_, _ = face.Put(t.Context(), contract.KV{Table: "plain", ID: []any{secret}, Value: []byte(secret)})
	})
	names := map[string]int{}
	for _, s := range spans.Ended() {
		if s.Parent().IsValid() {
			continue
		}
		names[s.Name()]++
		set := attribute.NewSet(s.Attributes()...)
		if v, _ := set.Value("db.collection.name"); v.AsString() != "/local/t" {
			t.Errorf("%s says %v", s.Name(), s.Attributes())
		}
		if v, _ := set.Value("rpc.method"); v.AsString() != "sidecar.v1.KeyValue/Put" {
			t.Errorf("%s says %v", s.Name(), s.Attributes())
		}
		for _, a := range s.Attributes() {
			if strings.Contains(a.Value.String(), secret) {
				t.Errorf("%s tells %s", s.Name(), a.Key)
			}
		}
	}
	if names["sidecar.v1.KeyValue/Put"] != 2 || len(names) != 1 {
		t.Errorf("spans %v; want two puts", names)
	}
}

// FuzzKV sends any address, headers and body: the answer is no fault of ours,
// and the database sees no text but ours.
func FuzzKV(f *testing.F) {
	db := &facadetest.Driver{}
	s, err := New(withKV(f, plainEntry, versionEntry, "b=t key=id:String value=v:String"), core.Deps{Driver: db, Database: "/local"})
	if err != nil {
		f.Fatal(err)
	}
	var texts []string
	for _, t := range s.kv.Tables {
		t.Checked.Store(math.MaxInt64)
		texts = append(texts, t.Texts()...)
	}
	handler := s.Handler()
	methods := []string{"GET", "HEAD", "PUT", "DELETE", "POST"}
	f.Add(uint8(0), "plain", "id=1", "", "", "")
	f.Add(uint8(2), "versions", "id=18446744073709551615", `"5", W/"6"`, "*", "value")
	f.Add(uint8(3), "b", "id=%ff%00'%3B--", "*", `"1"`, "")
	f.Add(uint8(4), "plain:batchGet", "", "", "", `{"ids":[1,"2",3.0e0],"timeout":"1s"}`)
	f.Add(uint8(4), "b:batchGet", "", "", "", `{"ids":["AP8=",{"base64":""}]}`)
	f.Add(uint8(1), "pla`in", "id=1&id=2;", "W/", "\"", "\x00")
	f.Fuzz(func(t *testing.T, method uint8, table, query, match, noneMatch, body string) {
		db.Answer = facadetest.Shelf(t).Answer
		target := &url.URL{Scheme: "http", Host: "localhost", Path: "/v1/kv/" + table, RawQuery: query}
		req := httptest.NewRequestWithContext(context.Background(), methods[int(method)%len(methods)],
			"http://localhost/", strings.NewReader(body))
		req.URL, req.RequestURI = target, target.RequestURI()
		if match != "" {
			req.Header.Set("If-Match", match)
		}
		if noneMatch != "" {
			req.Header.Set("If-None-Match", noneMatch)
		}
		if req.Method == "POST" {
			req.Header.Set("Content-Type", core.MediaJSON)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		if w.Code >= 500 {
			t.Errorf("%s %s: %d %s", req.Method, target, w.Code, w.Body)
		}
		if w.Code >= 400 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %s was answered with %q", req.Method, target, w.Body)
		}
		for _, sent := range db.Taken() {
			if !slices.Contains(texts, sent.GetQueryContent().GetText()) {
				t.Errorf("%s %s made the statement %q", req.Method, target, sent.GetQueryContent().GetText())
			}
		}
	})
}
