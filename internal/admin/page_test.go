package admin

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/loopback"
)

// pageServer answers with what page returns.
func pageServer(config Config, page func(string, uint64) any) http.Handler {
	return New(config,
		Deps{Guard: new(loopback.Guard), Metrics: http.NotFoundHandler(), Nodes: new(fakeNodes),
			Process: new(fakeProcess), Page: page}).Handler()
}

func browse(h http.Handler, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	r.Host = "localhost:7402"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestPageFiles(t *testing.T) {
	h := pageServer(Default(), nil)
	if w := browse(h, "/"); !strings.Contains(w.Body.String(), "/state/page") || strings.Contains(w.Body.String(), "<html") {
		t.Errorf("for a program / is %.60q; want the list of endpoints", w.Body)
	}
	index := browse(h, "/", "Accept", "text/html,*/*")
	files := regexp.MustCompile(`(?:src|href)="(/page/[^"]+)"`).FindAllStringSubmatch(index.Body.String(), -1)
	if len(files) < 5 {
		t.Fatalf("the page names the files %v; want at least 5", files)
	}
	targets := []string{"/"}
	for name, a := range assets {
		targets = append(targets, "/page/"+name)
		for _, m := range regexp.MustCompile(`from "\./([^"]+)"`).FindAllStringSubmatch(a.body, -1) {
			files = append(files, []string{"", "/page/" + m[1]})
		}
	}
	for _, f := range files {
		if !slices.Contains(targets, f[1]) {
			t.Errorf("the page loads %s, which is not served", f[1])
		}
	}
	for _, target := range targets {
		w := browse(h, target, "Accept", "text/html")
		if w.Code != http.StatusOK || w.Body.Len() == 0 {
			t.Errorf("%s: %d, %d bytes", target, w.Code, w.Body.Len())
		}
		for name, want := range map[string]string{"Content-Security-Policy": "default-src 'none'",
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"} {
			if got := w.Header().Get(name); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s is %q; want %q", target, name, got, want)
			}
		}
		if again := browse(
			h, target, "Accept", "text/html", "If-None-Match", w.Header().Get("ETag"),
		); again.Code != http.StatusNotModified || again.Body.Len() != 0 {
			t.Errorf("%s, which is known: %d with %d bytes; want 304", target, again.Code, again.Body.Len())
		}
	}
	for _, target := range []string{"/page/", "/page/../admin.go", "/page/none.js"} {
		if w := browse(h, target); w.Code == http.StatusOK {
			t.Errorf("%s: 200", target)
		}
	}
	for _, bad := range []string{"<script>", "onclick=", " style=", "http://", "https://"} {
		if strings.Contains(index.Body.String(), bad) {
			t.Errorf("the page has %q, which its policy forbids", bad)
		}
	}
	if w := browse(h, "/", "Accept", "text/html", "Origin", "https://evil.example"); w.Code != http.StatusForbidden {
		t.Errorf("for another site's page: %d; want 403", w.Code)
	}
}

// The page leads to the settings and the documentation: to endpoints that answer its readers, and to addresses that the
// document of the page has.
func TestPageLinks(t *testing.T) {
	var paths, scripted []string
	for _, m := range regexp.MustCompile(`<a (?:href="([^"]+)"|id="([^"]+)")`).FindAllStringSubmatch(assets["index.html"].body, -1) {
		if m[1] != "" {
			paths = append(paths, m[1])
		} else {
			scripted = append(scripted, m[2])
		}
	}
	if !slices.Contains(paths, "/config") || !slices.Contains(scripted, "docs") {
		t.Errorf("the page leads to %q and %q; want /config and the documentation", paths, scripted)
	}
	for _, path := range paths {
		if !slices.ContainsFunc(Endpoints, func(e Endpoint) bool { return e.Method == "GET" && e.Path == path && e.Role == RoleReader }) {
			t.Errorf("the page leads to %s, which its readers cannot read", path)
		}
	}
	for _, id := range scripted {
		if lead := `lead($("` + id + `"), `; !slices.ContainsFunc(slices.Collect(maps.Values(assets)), func(a asset) bool {
			return strings.Contains(a.body, lead)
		}) {
			t.Errorf("no script says where the link %q leads", id)
		}
	}
}

func TestPageState(t *testing.T) {
	asked := make(chan struct{}, maxWatchers)
	hold := make(chan struct{})
	h := pageServer(Default(), func(process string, after uint64) any {
		if process == "slow" {
			asked <- struct{}{}
			<-hold
		}
		return map[string]any{"process": process, "after": after}
	})
	if w := browse(h, "/state/page?process=x&after=7"); w.Code != http.StatusOK || w.Body.String() != `{"after":7,"process":"x"}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := browse(h, "/state/page?after=-1"); w.Code != http.StatusBadRequest ||
		!strings.Contains(w.Body.String(), "want the number of a point") {
		t.Errorf("after=-1: %d %s", w.Code, w.Body)
	}
	var wg sync.WaitGroup
	for range maxWatchers {
		wg.Go(func() { browse(h, "/state/page?process=slow") })
	}
	for range maxWatchers {
		<-asked
	}
	if w := browse(h, "/state/page"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("one more than may: %d %s; want 503 with Retry-After", w.Code, w.Body)
	}
	close(hold)
	wg.Wait()
	if w := browse(h, "/state/page"); w.Code != http.StatusOK {
		t.Errorf("after them: %d", w.Code)
	}
}

func TestControlState(t *testing.T) {
	config := Default()
	config.Control, config.Token = ControlToken, "open"
	h := pageServer(config, nil)
	for token, want := range map[string]bool{"": false, "Bearer shut": false, "Bearer open": true} {
		var got controlState
		w := browse(h, "/state/control", "Authorization", token)
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK || got.Allowed != want ||
			got.Allowed == (got.Why != "") {
			t.Errorf("with %q: %d %s, %v; want allowed: %v, else why", token, w.Code, w.Body, err, want)
		}
	}
}

func TestTraceLink(t *testing.T) {
	for link, good := range map[string]bool{
		"": true, "https://jaeger.example/trace/{trace_id}": true,
		"http://127.0.0.1:16686/trace/{trace_id}?x={trace_id}": true, "https://g.example/explore?q={trace_id}": true,
		"https://jaeger.example/": false, "javascript:alert('{trace_id}')": false, "data:text/html,{trace_id}": false,
		"//jaeger.example/{trace_id}": false,
		"https://{trace_id}.example/": false, "https://jaeger{trace_id}/": false,
		"https://u:p@jaeger.example/{trace_id}": false, "https://jaeger.example/%zz{trace_id}": false,
	} {
		config := Default()
		config.TraceLink = link
		if err := config.Validate(); (err == nil) != good {
			t.Errorf("trace_link %q: %v; want good: %v", link, err, good)
		}
	}
}
