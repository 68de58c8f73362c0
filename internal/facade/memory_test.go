package facade

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

const (
	// mostTypes is how many types one statement of a request may name.
	mostTypes = 1 << 14
	// shortPart is the size in bytes of the parts of an answer while memory is short.
	shortPart = 64 << 10
)

// tight returns a guard that finds memory short as long as the test lasts.
func tight(t *testing.T) *memguard.Guard {
	t.Helper()
	g := memguard.WithLimit(memguard.Config{Headroom: 10, Large: 32 << 10}, 1<<20, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	found := make(chan struct{}, 1)
	g.Watch(func(bool) { found <- struct{}{} })
	var run sync.WaitGroup
	run.Go(func() { _ = g.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		run.Wait()
	})
	<-found
	return g
}

// While memory is short large requests and large replies of what only reads are refused,
// small ones are not, and streams are slow but whole.
func TestShortMemory(t *testing.T) {
	t.Parallel() // it waits more than it works
	const sets = 5
	var mu sync.Mutex
	var limits []int64
	f := &facadetest.Driver{
		Answer: func(
			_ context.Context, _ *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
		) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			mu.Lock()
			limits = append(limits, req.ResponsePartLimitBytes)
			mu.Unlock()
			n := 1
			if strings.Contains(req.GetQueryContent().GetText(), "large") {
				n = 20 << 10
			}
			all := make([]*Ydb_Query.ExecuteQueryResponsePart, sets)
			for i := range all {
				all[i] = facadetest.Part(t, 0, []string{"v Utf8"}, []string{`"` + strings.Repeat("x", n) + `"`})
			}
			return all, nil
		},
	}
	g := tight(t)
	b := start(t, small(), f, func(d *core.Deps) { d.Memory = g })
	b.each(t, func(t *testing.T, c contract.Client) {
		ctx := t.Context()
		if _, err := c.Execute(ctx, contract.Statement{SQL: "small", Mode: "snapshot_ro"}); err != nil {
			t.Errorf("a small call: %v", err)
		}
		_, err := c.Execute(ctx, contract.Statement{SQL: "small " + strings.Repeat("-", 40<<10)})
		e := refused(t, err, "MEMORY_SHORT", true, false)
		for _, want := range []string{"memory.headroom", "memory.large", "GOMEMLIMIT"} {
			if e != nil && !strings.Contains(e.Message, want) {
				t.Errorf("%q lacks %s", e.Message, want)
			}
		}
		_, err = c.Execute(ctx, contract.Statement{SQL: "large", Mode: "snapshot_ro"})
		refused(t, err, "MEMORY_SHORT", true, false)
		if _, err := c.Execute(ctx, contract.Statement{SQL: "large"}); err != nil {
			t.Errorf("what may have written is answered: %v", err)
		}
		began := time.Now()
		reply, err := c.Stream(ctx, contract.Statement{SQL: "large"})
		if err != nil || reply.EndRows != sets {
			t.Fatalf("stream: %v, %+v", err, reply)
		}
		if took := time.Since(began); took < sets*90*time.Millisecond {
			t.Errorf("a stream of %d parts took %v; want a pause before each", sets, took)
		}
	})
	for _, limit := range limits {
		if limit != shortPart {
			t.Errorf("parts of %d bytes were asked for; want %d", limit, shortPart)
		}
	}
	if st := g.State(); st.Refused < 4 || st.Slowed < 2*sets {
		t.Errorf("%+v", st)
	}
	// A body that does not say how long it is.
	code, header, text := facadetest.Send(t, http.MethodPost, b.base+"/v1/query", `{"sql":"`+strings.Repeat("x", 40<<10)+`"}`,
		func(r *http.Request) { r.ContentLength = -1 })
	if code != http.StatusTooManyRequests || !strings.Contains(text, "MEMORY_SHORT") || header.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", code, header, text)
	}
}

// One statement has an end of types, and what they take is given back.
func TestTypesOfOneStatementHaveAnEnd(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	budget := memguard.OfBytes(8 << 20)
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return nil, nil
		},
	}
	b := start(t, Default(), f, func(d *core.Deps) { d.Requests = budget })
	wide := "Tuple<" + strings.Repeat("Int8?,", mostTypes/2-10) + "Int8>?"
	var list []string
	for range 3 {
		list = append(list, fmt.Sprintf(`{"sql":"SELECT $p","params":{"p":null},"types":{"p":%q}}`, wide))
	}
	for name, c := range map[string]struct{ path, body, want string }{
		"one statement": {"/v1/query", list[0], ""},
		"a list":        {"/v1/tx", `{"statements":[` + strings.Join(list, ",") + `]}`, "MEMORY_SHORT"},
		"too many for one": {"/v1/query",
			strings.Replace(list[0], `"types":{`, fmt.Sprintf(`"types":{"q":%q,`, wide), 1), "LIMIT_EXCEEDED"},
		"declared by a statement": {"/v1/query", fmt.Sprintf(`{"sql":"DECLARE $p AS %s; SELECT $p","params":{"p":null}}`, wide), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "http://localhost"+c.path, strings.NewReader(c.body))
			r.Header.Set("Content-Type", core.MediaJSON)
			b.s.Handler().ServeHTTP(w, r)
			if got := w.Body.String(); !strings.Contains(got, c.want) || (c.want == "") != (w.Code == http.StatusOK) {
				t.Errorf("%d %.300s; want %s", w.Code, got, c.want)
			}
			if left := budget.State().Held; left != 0 {
				t.Errorf("%d bytes are held when it is over", left)
			}
		})
	}
}

// Those of a statement of a batch are counted, too, and given back.
func TestTypesOfBatchesAreCounted(t *testing.T) {
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return nil, nil
		},
	}
	wide := "Tuple<" + strings.Repeat("Int8?,", mostTypes/2-10) + "Int8>?"
	body := fmt.Sprintf(`{"statements":[{"sql":"SELECT $p","params":{"p":null},"types":{"p":%q}}]}`, wide)
	for most, want := range map[int64]string{4 << 20: "MEMORY_SHORT", 16 << 20: ""} {
		budget := memguard.OfBytes(most)
		b := start(t, Default(), f, func(d *core.Deps) { d.Requests = budget })
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/batch", strings.NewReader(body))
		r.Header.Set("Content-Type", core.MediaJSON)
		b.s.Handler().ServeHTTP(w, r)
		if got := w.Body.String(); !strings.Contains(got, want) || strings.Contains(got, `"error"`) != (want != "") {
			t.Errorf("%d bytes: %d %.300s; want %s", most, w.Code, got, want)
		}
		if left := budget.State().Held; left != 0 {
			t.Errorf("%d bytes are held when it is over", left)
		}
	}
}
