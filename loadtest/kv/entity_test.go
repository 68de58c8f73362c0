package kv

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestTheCommittedMixIsSixToThreeToOne(t *testing.T) {
	all, err := entityMix()
	counts := map[string]int{}
	for _, target := range all {
		counts[target.Method]++
		if want := target.Method == http.MethodPut; (len(target.Body) == 2500) != want {
			t.Errorf("%s %s has a body of %d bytes", target.Method, target.URL, len(target.Body))
		}
	}
	if err != nil || len(all) != 10 || counts["GET"] != 6 || counts["PUT"] != 3 || counts["DELETE"] != 1 {
		t.Errorf("got %v, %v; want 6, 3 and 1", counts, err)
	}
	// As vegeta reads it, from the root of the repository.
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(filepath.Dir(wd)))
	if targets, err := vegeta.ReadAllTargets(
		vegeta.NewHTTPTargeter(strings.NewReader(string(entityTargets)), nil, nil),
	); err != nil || len(targets) != 10 || len(targets[0].Body) != 2500 {
		t.Errorf("got %d targets, %v; want ten, the first with its value", len(targets), err)
	}
}

func TestEntitiesAreCheckedByKind(t *testing.T) {
	for _, tc := range []struct {
		method string
		code   uint16
		body   []byte
		ok     bool
	}{
		{"GET", 200, entityValue, true}, {"GET", 200, []byte("x"), false}, {"GET", 404, nil, true},
		{"GET", 503, nil, false}, {"GET", 204, nil, false},
		{"PUT", 204, nil, true}, {"PUT", 201, nil, true}, {"PUT", 404, nil, false}, {"DELETE", 204, nil, true}, {"DELETE", 0, nil, false},
	} {
		if err := checkEntity(&vegeta.Result{Method: tc.method, Code: tc.code, Body: tc.body}); (err == nil) != tc.ok {
			t.Errorf("%s %d with %d bytes: got %v", tc.method, tc.code, len(tc.body), err)
		}
	}
}

// A small store of its own gets the whole mix, over all ids, and every kind of request has its figures.
func TestEntityLoadDrawsIDs(t *testing.T) {
	var mu sync.Mutex
	methods, ids := map[string]int{}, map[string]bool{}
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		methods[r.Method]++
		ids[r.URL.Query().Get("id")] = true
		switch {
		case r.Method != http.MethodGet:
			w.WriteHeader(http.StatusNoContent)
		case methods[r.Method]%2 == 0:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = w.Write(entityValue) // who asks reads it
		}
	}))
	defer store.Close()
	mix, err := entityMix()
	if err != nil {
		t.Fatal(err)
	}
	e := &entityLoad{mix: mix, address: store.Listener.Addr().String(), table: "t", ids: 1000}
	got := e.run(t.Context(), lab.Rate(1000), 100*time.Millisecond, vegeta.KeepAlive(false))
	if got.Calls != 100 || got.Failed != 0 || got.Closed || got.Offered != 1000 || methods["GET"] != 60 ||
		methods["PUT"] != 30 || methods["DELETE"] != 10 || len(
		ids,
	) < 80 {
		t.Errorf("got %+v, %v, %d ids; want 60, 30 and 10 requests of many ids", got, methods, len(ids))
	}
	if f := got.Figures; f["missing"] != 0.5 || f["get-p50-ns"] <= 0 || f["put-p99-ns"] <= 0 || f["delete-p50-ns"] <= 0 {
		t.Errorf("got the figures %v", f)
	}
	if got := e.run(t.Context(), lab.Rate(0), 50*time.Millisecond, vegeta.KeepAlive(false), vegeta.Workers(2),
		vegeta.MaxWorkers(2)); !got.Closed || got.Calls == 0 || got.Failed != 0 {
		t.Errorf("got %+v; want a closed loop", got)
	}
}
