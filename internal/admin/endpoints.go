package admin

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Role is what a request must be to be answered.
type Role string

// The roles. Each may do what those before it may.
const (
	// RoleProbe is anybody who can connect, also at admin.probes. At the other
	// addresses web pages are turned away as everywhere.
	RoleProbe Role = "probe"
	// RoleReader is every program that reaches the address; web pages are none.
	RoleReader Role = "reader"
	// RoleControl is the peer of admin.socket, and over TCP whom admin.control admits.
	RoleControl Role = "control"
)

// Endpoint is one row of the table of what is served.
type Endpoint struct {
	Method     string // GET for all that changes nothing
	Path       string // as net/http.ServeMux takes it
	Role       Role
	Text       string      // what it shows or does
	Parameters []Parameter // of the query
	Pprof      bool        // served with admin.pprof only
}

// Parameter is one of a query.
type Parameter struct{ Name, Text string }

var (
	deep  = Parameter{"deep", "1: asks in addition whether any node is good"}
	talk  = Parameter{"verbose", "lists every check with its answer"}
	limit = Parameter{"limit", fmt.Sprintf("items of each list, at most; %d unless given, %d at most", defaultLimit, maxLimit)}
)

// Endpoints is everything that is served. The first path of a probe is its name,
// the others are what it is called elsewhere.
var Endpoints = []Endpoint{
	{Method: "GET", Path: "/livez", Role: RoleProbe,
		Text: "200 unless the process hangs: a shard of the data path that has not turned for a second, or " +
			"another part that has not answered a watchdog for ten; never because of the cluster",
		Parameters: []Parameter{talk}},
	{Method: "GET", Path: "/live", Role: RoleProbe, Text: "/livez as Linkerd calls it", Parameters: []Parameter{talk}},
	{Method: "GET", Path: "/liveness", Role: RoleProbe, Text: "/livez as the Cloud SQL Auth Proxy calls it", Parameters: []Parameter{talk}},
	{Method: "GET", Path: "/readyz", Role: RoleProbe,
		Text: "200 while it serves and is neither a lame duck nor about to end", Parameters: []Parameter{deep, talk}},
	{Method: "GET", Path: "/healthz", Role: RoleProbe, Text: "/readyz", Parameters: []Parameter{deep, talk}},
	{Method: "GET", Path: "/ready", Role: RoleProbe, Text: "/readyz as Envoy and Linkerd call it", Parameters: []Parameter{deep, talk}},
	{Method: "GET", Path: "/readiness", Role: RoleProbe, Text: "/readyz as the Cloud SQL Auth Proxy calls it",
		Parameters: []Parameter{deep, talk}},
	{Method: "GET", Path: "/startupz", Role: RoleProbe,
		Text:       "200 once there are a node and pool.min sessions, or startup.wait is over",
		Parameters: []Parameter{deep, talk}},
	{Method: "GET", Path: "/startup", Role: RoleProbe, Text: "/startupz as the Cloud SQL Auth Proxy calls it",
		Parameters: []Parameter{deep, talk}},

	{Method: "GET", Path: "/{$}", Role: RoleReader, Text: "the page for browsers; for others this list, with one line for each endpoint"},
	{Method: "GET", Path: "/page/{file...}", Role: RoleReader, Text: "the files of the page"},
	{Method: "GET", Path: "/state/page", Role: RoleReader,
		Text: "all that the page shows, with the points of its charts that it does not have yet",
		Parameters: []Parameter{{"process", "the process that the points are of; another one gets all"},
			{"after", "only points with a greater number"}}},
	{Method: "GET", Path: "/state/control", Role: RoleReader, Text: "whether who asks may also act, and if not why"},
	{Method: "GET", Path: "/metrics", Role: RoleReader, Text: "metrics for Prometheus"},
	{Method: "GET", Path: "/buildinfo", Role: RoleReader, Text: "version, revision, platform, and the host and pod that it runs on"},
	{Method: "GET", Path: "/config", Role: RoleReader,
		Text: "every setting, its value, its default and where it comes from; secrets are hidden"},
	{Method: "GET", Path: "/state/findings", Role: RoleReader, Text: "what is wrong, in plain words, the worst first, with stable codes"},
	{Method: "GET", Path: "/state/pool", Role: RoleReader, Text: "sessions by state, the queue by class, what was refused, the limits"},
	{Method: "GET", Path: "/state/nodes", Role: RoleReader, Text: "the nodes: health and why, sessions, calls, latency"},
	{Method: "GET", Path: "/state/queue", Role: RoleReader, Text: "who waits for a session, by class and app, and for how long"},
	{Method: "GET", Path: "/state/calls", Role: RoleReader,
		Text: "calls of every API that are under way or wait, oldest first: app, phase, age, node, trace id",
		Parameters: []Parameter{{"app", "only calls of this app"},
			{"min_ms", "only calls that are at least this old, in milliseconds"}, limit}},
	{Method: "GET", Path: "/state/sessions", Role: RoleReader,
		Text:       "the sessions: node, state, and which app holds one since when under which trace id; those held longest first",
		Parameters: []Parameter{limit}},
	{Method: "GET", Path: "/state/transactions", Role: RoleReader,
		Text: "open transactions of the plain API, oldest first", Parameters: []Parameter{limit}},
	{Method: "GET", Path: "/state/apps", Role: RoleReader, Text: "the apps: what each uses, waits for and is refused"},
	{Method: "GET", Path: "/state/connections", Role: RoleReader,
		Text: "the data path: calls, how they ended, the busiest connections", Parameters: []Parameter{limit}},
	{Method: "GET", Path: "/state/statements", Role: RoleReader,
		Text: "calls, errors, rows, bytes, retries and time of statements by digest, since the start and in the last minute",
		Parameters: []Parameter{{"by", "order: time, calls or errors; time unless given"},
			{"window", "what is ordered: start or minute (the last whole one); start unless given"}, limit}},
	{Method: "GET", Path: "/state/ingest", Role: RoleReader, Text: "open streams of rows, oldest first", Parameters: []Parameter{limit}},
	{Method: "GET", Path: "/state/memory", Role: RoleReader, Text: "memory in use and the limit of the guard"},
	{Method: "GET", Path: "/state/xds", Role: RoleReader,
		Text:       "what is published over xDS, who is connected, and which versions each accepted or refused, and why",
		Parameters: []Parameter{limit}},
	{Method: "GET", Path: "/events", Role: RoleReader,
		Text: "what happened to nodes, pool and findings: JSON lines, or with Accept: text/event-stream a " +
			"stream that goes on, and resumes after Last-Event-ID",
		Parameters: []Parameter{{"after", "only events with a greater number"}}},
	{Method: "GET", Path: "/state/pause", Role: RoleReader,
		Text: "whether calls are paused, and what is still under way at nodes: sessions in use, calls"},
	{Method: "GET", Path: "/nodes/{id}/why", Role: RoleReader,
		Text: "why a node is in the state it is in, with the evidence and what happens next"},
	{Method: "GET", Path: "/drain", Role: RoleReader, Text: "the stage of the process's life, and what its end waits for"},
	{Method: "GET", Path: "/reload", Role: RoleReader, Text: "what came of the last time that the configuration was read again"},
	{Method: "GET", Path: "/logging", Role: RoleReader, Text: "the level of the log"},
	{Method: "GET", Path: "/debug/pprof/", Role: RoleReader, Text: "profiles of Go", Pprof: true},
	{Method: "GET", Path: "/debug/pprof/cmdline", Role: RoleReader, Text: "the command line", Pprof: true},
	{Method: "GET", Path: "/debug/pprof/profile", Role: RoleReader, Text: "a profile of the CPU", Pprof: true},
	{Method: "GET", Path: "/debug/pprof/mutex", Role: RoleReader,
		Text: "a profile of the waits for locks, of which one in 10 is sampled while it is taken", Pprof: true,
		Parameters: []Parameter{{"seconds", "for how long"}}},
	{Method: "GET", Path: "/debug/pprof/block", Role: RoleReader,
		Text:  "a profile of the waits of goroutines, sampled once a millisecond of waiting while it is taken",
		Pprof: true, Parameters: []Parameter{{"seconds", "for how long"}}},
	{Method: "GET", Path: "/debug/pprof/symbol", Role: RoleReader, Text: "names of program counters", Pprof: true},
	{Method: "GET", Path: "/debug/pprof/trace", Role: RoleReader, Text: "a trace of Go's scheduler", Pprof: true},

	{Method: "POST", Path: "/drain", Role: RoleControl, Text: "ends the sidecar, or makes it a lame duck, or takes that back",
		Parameters: []Parameter{{"mode", "graceful, lameduck or off"}, {"timeout", "with graceful: in place of drain.grace"}}},
	{Method: "POST", Path: "/quitquitquit", Role: RoleControl, Text: "ends the sidecar in good order, as SIGTERM does; for jobs"},
	{Method: "POST", Path: "/shutdown", Role: RoleControl, Text: "/quitquitquit as Linkerd calls it"},
	{Method: "POST", Path: "/healthcheck/fail", Role: RoleControl, Text: "/drain?mode=lameduck as Envoy calls it"},
	{Method: "POST", Path: "/healthcheck/ok", Role: RoleControl, Text: "/drain?mode=off as Envoy calls it"},
	{Method: "POST", Path: "/nodes/{id}/ban", Role: RoleControl, Text: "keeps new work off a node",
		Parameters: []Parameter{{"for", "a duration; no end unless given"}, {"reason", "one line for those who look later"}}},
	{Method: "POST", Path: "/nodes/{id}/unban", Role: RoleControl, Text: "takes a ban back"},
	{Method: "POST", Path: "/nodes/{id}/drain", Role: RoleControl, Text: "empties a node of sessions"},
	{Method: "POST", Path: "/nodes/{id}/undrain", Role: RoleControl, Text: "takes that back"},
	{Method: "POST", Path: "/pool/resize", Role: RoleControl, Text: "changes pool.max and pool.min until the process ends",
		Parameters: []Parameter{{"max", "sessions"}, {"min", "sessions"}}},
	{Method: "POST", Path: "/pool/pause", Role: RoleControl,
		Text: "has the calls of every API wait; those under way and open transactions finish"},
	{Method: "POST", Path: "/pool/resume", Role: RoleControl, Text: "takes that back"},
	{Method: "POST", Path: "/sessions/{id}/kill", Role: RoleControl,
		Text: "deletes a session, by the short hash of /state/sessions; who holds it gets an error"},
	{Method: "POST", Path: "/calls/{id}/kill", Role: RoleControl,
		Text: "ends the calls of a trace id, or the one call of that name in /state/calls; who waits for it gets an error"},
	{Method: "POST", Path: "/reload", Role: RoleControl,
		Text:       "reads the configuration again: what changed, and what counts only after a restart",
		Parameters: []Parameter{{"dry_run", "1: changes nothing"}}},
	{Method: "POST", Path: "/logging", Role: RoleControl, Text: "sets the level of the log until the process ends",
		Parameters: []Parameter{{"level", "DEBUG, INFO, WARN or ERROR"}}},
}

// Bounds of lists.
const (
	defaultLimit = 1000
	maxLimit     = 10000
)

// limitOf reads the parameter limit.
func limitOf(r *http.Request) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		return 0, badRequest(fmt.Sprintf("limit = %.40q; want 1 to %d", text, maxLimit))
	}
	return n, nil
}

// leastOf reads the parameter min_ms.
func leastOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("min_ms")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, badRequest(fmt.Sprintf("min_ms = %.40q; want milliseconds from 0 to 2147483647", text))
	}
	return time.Duration(n) * time.Millisecond, nil
}

// action answers with a document.
type action func(*http.Request) (any, error)

// handlers are what answers, by method and path: one for each row of Endpoints.
func (s *Server) handlers() map[string]http.Handler {
	all := map[string]http.Handler{
		"GET /{$}":            http.HandlerFunc(s.index),
		"GET /page/{file...}": http.HandlerFunc(s.pageFile),
		"GET /state/page":     s.pageState(),
		"GET /state/control":  answering(s.controlState),
		"GET /metrics":        s.deps.Metrics,
		"GET /events":         http.HandlerFunc(s.events),

		"GET /debug/pprof/":        http.HandlerFunc(pprof.Index),
		"GET /debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline),
		"GET /debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"GET /debug/pprof/mutex":   mutexes(),
		"GET /debug/pprof/block":   blocks(),
		"GET /debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"GET /debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
	}
	for _, probe := range s.probes() {
		for _, path := range probe.paths {
			all["GET "+path] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, probe.checks) })
		}
	}
	for path, document := range s.deps.Documents {
		all["GET "+path] = answering(func(r *http.Request) (any, error) {
			n, err := limitOf(r)
			if err != nil {
				return nil, err
			}
			least, err := leastOf(r)
			if err != nil {
				return nil, err
			}
			values := r.URL.Query()
			answer := document(Query{Limit: n, App: values.Get("app"), Least: least, By: values.Get("by"), Window: values.Get("window")})
			if err, wrong := answer.(error); wrong {
				return nil, badRequest(err.Error())
			}
			return answer, nil
		})
	}
	for name, do := range s.actions() {
		all[name] = answering(do)
	}
	return all
}

func answering(do action) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := do(r)
		if err != nil {
			writeText(w, statusOf(err), err.Error()+"\n")
			return
		}
		writeJSON(w, answer)
	})
}

// mux serves the rows of Endpoints that are chosen, each to its role.
func (s *Server) mux(chosen func(Endpoint) bool) *http.ServeMux {
	mux := http.NewServeMux()
	handlers := s.handlers()
	for _, e := range Endpoints {
		if h := handlers[e.Method+" "+e.Path]; h != nil && chosen(e) {
			if e.Role == RoleControl {
				h = s.controlled(h)
			}
			mux.Handle(e.Method+" "+e.Path, h)
		}
	}
	return mux
}

// controlled admits those who may control, and has the log say who did what.
func (s *Server) controlled(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := s.mayControl(r); refusal != nil {
			deed := s.deed(r)
			deed.Outcome = refusal.text
			s.deps.Audit.Denied(deed)
			writeText(w, refusal.status, refusal.text+"\n")
			return
		}
		deed := s.deed(r) // before the act, which may be the end
		answer := &answered{w, http.StatusOK}
		whole := false
		defer func() {
			if deed.Outcome = strconv.Itoa(answer.status); !whole {
				deed.Outcome = "a panic"
			}
			s.deps.Audit.Acted(deed)
		}()
		h.ServeHTTP(answer, r)
		whole = true
	})
}

// index lists the endpoints, or begins the page.
func (s *Server) index(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		writeAsset(w, r, assets["index.html"])
		return
	}
	lines := []string{}
	for _, e := range Endpoints {
		if !e.Pprof || s.config.Pprof {
			lines = append(lines, fmt.Sprintf("%-4s %-22s %s\n", e.Method, strings.TrimSuffix(e.Path, "{$}"), e.Text))
		}
	}
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(a[:4], b[:4]) })
	writeText(w, http.StatusOK, strings.Join(lines, ""))
}
