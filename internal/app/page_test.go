package app

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The page shows the oldest calls that are under way or wait, and not those of a moment.
func TestPageShowsOpenCalls(t *testing.T) {
	s := start(t, newCluster(t).Endpoint())
	s.knowsNodes()
	if err := (pools{s.App}).Pause(true); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 12)
	for range cap(done) {
		go func() {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", "shop")
			_, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "1m"})
			done <- err
		}()
	}
	var page struct {
		Open struct {
			snapshot.CallsState
			LeastMS int64 `json:"least_ms"`
			Guide   string
		} `json:"open_calls"`
		Docs string `json:"docs"`
	}
	s.eventually("ten are listed and two counted", func() bool {
		s.state("/state/page", &page)
		return len(page.Open.Calls) == 10 && page.Open.More == 2
	})
	for _, c := range page.Open.Calls {
		if c.App != "shop" || c.Phase != "paused" || c.Digest == "" || c.Age < page.Open.LeastMS {
			t.Errorf("listed: %+v; want the app, the phase paused, a digest, and at least %d ms", c, page.Open.LeastMS)
		}
	}
	for _, address := range []string{page.Open.Guide, page.Docs} {
		_, file, _ := strings.Cut(address, "/blob/main/")
		if _, err := os.Stat(filepath.Join("..", "..", file)); err != nil || file == "" {
			t.Errorf("the page leads to %q: %v", address, err)
		}
	}
	if err := (pools{s.App}).Pause(false); err != nil {
		t.Fatal(err)
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	s.eventually("none is listed", func() bool {
		s.state("/state/page", &page)
		return len(page.Open.Calls) == 0 && page.Open.More == 0
	})
}

// What the page and sidecar top say of a sidecar: which it is, who uses it, and what it has left.
func TestPageDocument(t *testing.T) {
	t.Setenv("POD_NAME", "shop-5")
	s := start(t, newCluster(t).Endpoint())
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", "shop")
	if _, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "1m"}); err != nil {
		t.Fatal(err)
	}
	read := func(path string, into any) {
		t.Helper()
		status, text := s.get(path)
		if err := json.Unmarshal([]byte(text), into); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %v", path, status, err)
		}
	}
	var build struct{ Host, Pod, Version string }
	read("/buildinfo", &build)
	host, err := os.Hostname()
	if err != nil || build.Host != host || build.Pod != "shop-5" || build.Version == "" {
		t.Errorf("%+v, %v; want the host %s and the pod shop-5", build, err, host)
	}
	type pageApp struct {
		App    string
		Served uint64
	}
	var page struct {
		Host, Pod string
		Apps      []pageApp
		Retries   struct {
			Left  float64
			Burst int
		}
		Memory struct{ Requests struct{ Most int64 } }
		Nodes  struct{ Discovery struct{ Mode string } }
	}
	s.eventually("the call is counted", func() bool {
		read("/state/page", &page)
		return slices.ContainsFunc(page.Apps, func(a pageApp) bool { return a.App == "shop" && a.Served > 0 })
	})
	if page.Host != host || page.Pod != "shop-5" || page.Retries.Burst == 0 || page.Retries.Left == 0 ||
		page.Memory.Requests.Most == 0 || page.Nodes.Discovery.Mode != "ydb" {
		t.Errorf("%+v", page)
	}
}
