package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// target fills a path of the table in, so that the fakes do it.
func target(e Endpoint) string {
	path := strings.TrimSuffix(e.Path, "{$}")
	path = strings.Replace(path, "/nodes/{id}", "/nodes/2", 1)
	path = strings.Replace(path, "/sessions/{id}", "/sessions/5e55", 1)
	path = strings.Replace(path, "/calls/{id}", "/calls/5e55", 1)
	switch path {
	case "/page/{file...}":
		path = "/page/page.js"
	case "/drain":
		path += "?mode=lameduck"
	case "/logging":
		path += "?level=INFO"
	case "/pool/resize":
		path += "?max=3"
	case "/debug/pprof/trace":
		path += "?seconds=0.01"
	}
	return path
}

// Every endpoint, by everybody who may come: what a role may not do is not done.
func TestEveryEndpointAndRole(t *testing.T) {
	const token = "s3cr3t"
	config := Default()
	config.Pprof, config.Control, config.Token = true, ControlToken, token
	for _, who := range []struct {
		name    string
		unix    bool
		headers map[string]string
		may     map[Role]bool
	}{
		{"a_web_page", false, map[string]string{"Origin": "https://evil.example", "Authorization": "Bearer " + token}, nil},
		{"a_page_by_another_name", false, map[string]string{"Host": "evil.example"}, nil},
		{"a_page_that_sends_no_origin", false, map[string]string{"Sec-Fetch-Site": "cross-site"}, nil},
		{"a_program", false, nil, map[Role]bool{RoleProbe: true, RoleReader: true}},
		{"a_program_with_another_token", false, map[string]string{"Authorization": "Bearer other"},
			map[Role]bool{RoleProbe: true, RoleReader: true}},
		{"a_program_with_the_token", false, map[string]string{"Authorization": "Bearer " + token},
			map[Role]bool{RoleProbe: true, RoleReader: true, RoleControl: true}},
		{"the_peer_of_the_socket", true, nil, map[Role]bool{RoleProbe: true, RoleReader: true, RoleControl: true}},
		{"a_web_page_through_the_socket", true, map[string]string{"Origin": "https://evil.example"}, nil},
	} {
		t.Run(who.name, func(t *testing.T) {
			for _, e := range Endpoints {
				if who.may[e.Role] &&
					(e.Path == "/debug/pprof/profile" || e.Path == "/debug/pprof/mutex" || e.Path == "/debug/pprof/block") {
					continue // takes a second at least
				}
				s := serve(t, config)
				client, base := s.tcp.Client(), s.tcp.URL
				if who.unix {
					client, base = s.unix, "http://localhost"
				}
				request, err := http.NewRequest(e.Method, base+target(e), nil)
				if err != nil {
					t.Fatal(err)
				}
				for name, value := range who.headers {
					if name == "Host" {
						request.Host = value
					} else {
						request.Header.Set(name, value)
					}
				}
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
				code := response.StatusCode
				may := who.may[e.Role]
				if e.Path == "/healthcheck/ok" && code == http.StatusConflict {
					code = http.StatusOK // as the fake answers
				}
				switch {
				case may && code != http.StatusOK:
					t.Errorf("%s %s = %d; want 200", e.Method, e.Path, code)
				case !may && code != http.StatusForbidden && code != http.StatusUnauthorized:
					t.Errorf("%s %s = %d; want 401 or 403", e.Method, e.Path, code)
				}
				done := len(s.nodes.done) + len(s.process.done) + len(s.pool.done) + len(s.killed) + len(s.log.level)
				if changes := may && e.Method == http.MethodPost; changes != (done > 0) {
					t.Errorf("%s %s did %d things", e.Method, e.Path, done)
				}
			}
		})
	}
}

func TestTableOfEndpoints(t *testing.T) {
	server := New(Default(),
		Deps{Nodes: new(fakeNodes), Process: new(fakeProcess), Pool: new(fakePool), Logging: new(fakeLog), Metrics: http.NotFoundHandler()})
	handlers, seen := server.handlers(), map[string]bool{}
	for _, e := range Endpoints {
		name := e.Method + " " + e.Path
		if seen[name] || e.Text == "" {
			t.Errorf("%s is twice in the table, or has no text", name)
		}
		seen[name] = true
		if (e.Role == RoleControl) != (e.Method == http.MethodPost) {
			t.Errorf("%s is for %s: what changes anything is POST and for control, and nothing else is", name, e.Role)
		}
		document := strings.HasPrefix(e.Path, "/state/") || e.Path == "/config" || e.Path == "/buildinfo"
		if handlers[name] == nil && !document {
			t.Errorf("%s is in the table and has no handler", name)
		}
	}
	for name := range handlers {
		if !seen[name] {
			t.Errorf("%s is served and not in the table", name)
		}
	}
}

// The probes' own address serves nothing else.
func TestProbesAlone(t *testing.T) {
	server := New(Default(),
		Deps{Nodes: new(fakeNodes), Process: new(fakeProcess), Pool: new(fakePool), Logging: new(fakeLog), Metrics: http.NotFoundHandler()})
	h := server.Probes()
	for _, e := range Endpoints {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(e.Method, target(e), nil)
		r.Host = "10.0.0.7"
		h.ServeHTTP(w, r)
		if want := e.Role == RoleProbe; (w.Code == http.StatusOK) != want {
			t.Errorf("%s %s = %d", e.Method, e.Path, w.Code)
		}
	}
}

// follow opens a stream of events and returns its lines.
func follow(t *testing.T, s *running, last string) *bufio.Scanner {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, "GET", s.tcp.URL+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/event-stream")
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	response, err := s.tcp.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if got := response.Header.Get("Content-Type"); response.StatusCode != 200 || got != "text/event-stream" {
		t.Fatalf("%s %s", response.Status, got)
	}
	return bufio.NewScanner(response.Body)
}

// next returns the next event of a stream.
func next(t *testing.T, lines *bufio.Scanner) (id string, e Event) {
	t.Helper()
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = text
		}
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Fatal(err)
			}
			return id, e
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return "", e
}

func TestStreamOfEvents(t *testing.T) {
	s := serve(t, Default())
	lines := follow(t, s, "")
	for want := uint64(1); want <= 3; want++ {
		if id, e := next(t, lines); e.Seq != want || id == "" {
			t.Errorf("%s %+v; want number %d", id, e, want)
		}
	}
	s.events.Add(Event{Kind: "pool", Reason: "paused"})
	if id, e := next(t, lines); id != "4" || e.Kind != "pool" || e.Time.IsZero() {
		t.Errorf("%s %+v; want what was just added", id, e)
	}
	if id, _ := next(t, follow(t, s, "2")); id != "3" {
		t.Errorf("resumed after 2 with %s", id)
	}
	// A number of an earlier process is beyond all that this one has.
	if id, _ := next(t, follow(t, s, "4000")); id != "1" {
		t.Errorf("resumed in another process with %s", id)
	}
}

func TestEventsAreBounded(t *testing.T) {
	e := NewEvents()
	for range 3 * maxEvents {
		e.Add(Event{Kind: "state"})
	}
	all, _ := e.After(0)
	if len(all) != maxEvents || all[0].Seq != 2*maxEvents+1 || all[len(all)-1].Seq != 3*maxEvents {
		t.Errorf("%d events, from %d to %d", len(all), all[0].Seq, all[len(all)-1].Seq)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	s := serve(t, Default())
	for range maxStreams {
		follow(t, s, "")
	}
	request, err := http.NewRequest("GET", s.tcp.URL+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/event-stream")
	response, err := s.tcp.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more stream: %s; want 503", response.Status)
	}
}

// stuck is a client that takes nothing: writes to it fail once their time is up.
type stuck struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (s *stuck) SetWriteDeadline(t time.Time) error { s.deadline = t; return nil }
func (s *stuck) Write(p []byte) (int, error) {
	if s.deadline.IsZero() {
		return len(p), nil // would block for ever
	}
	return 0, context.DeadlineExceeded
}

func TestASlowReaderIsDropped(t *testing.T) {
	server := New(Default(), Deps{Events: threeEvents()})
	r := httptest.NewRequest("GET", "/events", nil)
	r.Header.Set("Accept", "text/event-stream")
	server.events(&stuck{ResponseRecorder: httptest.NewRecorder()}, r) // returns
}
