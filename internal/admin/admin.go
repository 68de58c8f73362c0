// Package admin answers operators and kubelets: probes, metrics, build,
// settings, the state of the parts, and what an operator may do: drain the
// sidecar, ban or drain a node.
//
// What always holds: every request to Handler passes the guard against web
// pages; only POST changes anything, and only for the sidecar's own user, root,
// or who has admin.token; Probes serves the probes and nothing else; no probe
// waits for a database, a lock or a network; secrets are not shown.
package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/loopback"
)

// How the watchdog works: it goes round all vital signs each beat, and the
// process counts as hung when a round takes longer than pulseLimit. Time in which the
// process did not run at all does not count.
const (
	beat       = time.Second
	pulseLimit = 10 * time.Second
)

// Check is one question with a quick answer. Ask must not wait for a database
// or a network; nil means good.
type Check struct {
	Name string
	Ask  func() error
}

// Deps is what the API shows.
//
// Wide: it is a flat list of what one caller gives, with one line for each.
type Deps struct {
	Guard   *loopback.Guard
	Metrics http.Handler
	Nodes   Nodes
	Process Process
	Pool    Pool
	Kill    func(session string) (any, error) // by its short hash
	EndCall func(id string) (any, error)      // by its trace id or its name
	Logging Logging
	Audit   *audit.Log // of what operators do; nil: none
	Events  *Events
	// Peer is the user and the process at the other end of a connection over admin.socket; nil: it is not known.
	Peer func(ctx context.Context) (uid uint32, pid int32, err error)
	// Reload reads the configuration again, and with dryRun only says what would come
	// of that. The error is the configuration's.
	Reload func(dryRun bool) (any, error)
	// Reloaded is what came of the last one; nil: there was none.
	Reloaded func() any
	// Documents are served as JSON at their paths, such as "/state/pool". A document that is an error is
	// what is wrong with the query.
	Documents map[string]func(Query) any
	// Page is what the page shows; of its charts, the points after a number. Another
	// process, by its name, gets all of them.
	Page func(process string, after uint64) any
	Checks
}

// Checks are what probes and the watchdog ask.
type Checks struct {
	Live    []Check // asked with each /livez; they take no lock
	Ready   []Check // listening and not draining
	Started []Check // listening, and warm or long enough awake
	Deep    []Check // asked in addition when a probe says ?deep=1
	Vital   []Check // asked by the watchdog; one that hangs makes /livez fail
}

// Query is what a request for a document may ask.
type Query struct {
	Limit int           // items of each list
	App   string        // only items of this app; empty: of all
	Least time.Duration // only items that have lasted for at least this time

	By, Window string // of /state/statements; "": not given
}

// First returns the items that a list may have.
func First[T any](q Query, all []T) []T { return all[:min(len(all), q.Limit)] }

// Server makes the handlers and watches the vital signs.
type Server struct {
	config  Config                 // at the start
	inForce atomic.Pointer[Config] // see Reconfigure
	deps    Deps
	pulse   atomic.Pointer[pulse]
	awake   awake.Clock // goes while Run does

	streams atomic.Int32  // of events, open
	ended   chan struct{} // closed when Run's context ends
}

// pulse is where the watchdog is. Immutable.
type pulse struct {
	at    time.Duration // by Server.awake
	check string        // being asked
	err   error         // of the last complete round
}

// New returns a server; its handlers work before Run.
func New(config Config, deps Deps) *Server {
	if deps.Events == nil {
		deps.Events = NewEvents()
	}
	s := &Server{config: config, deps: deps, ended: make(chan struct{})}
	s.inForce.Store(&config)
	s.pulse.Store(&pulse{at: s.awake.Now()})
	return s
}

// Config returns the configuration that is in force.
func (s *Server) Config() Config { return *s.inForce.Load() }

// Reconfigure puts another Control, Token and TokenFile into force; the rest needs
// another server.
func (s *Server) Reconfigure(config Config) { s.inForce.Store(&config) }

// Run asks the vital signs until ctx ends. It returns nil.
func (s *Server) Run(ctx context.Context) error {
	defer close(s.ended)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.awake.Run(ctx) }() // it returns nil
	defer func() { <-done }()
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		s.round()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (s *Server) round() {
	var failed error
	last := s.pulse.Load().err
	for _, check := range s.deps.Vital {
		s.pulse.Store(&pulse{at: s.awake.Now(), check: check.Name, err: last})
		if err := check.Ask(); err != nil && failed == nil {
			failed = fmt.Errorf("%s: %w", check.Name, err)
		}
	}
	s.pulse.Store(&pulse{at: s.awake.Now(), err: failed})
}

// live is the check behind /livez.
func (s *Server) live() error {
	p := s.pulse.Load()
	if silent := s.awake.Now() - p.at; silent > pulseLimit {
		return fmt.Errorf("hung for %v, asking %q", silent.Round(time.Second), p.check)
	}
	return p.err
}

// Handler serves everything.
func (s *Server) Handler() http.Handler {
	return s.deps.Guard.Wrap(s.mux(func(e Endpoint) bool { return !e.Pprof || s.config.Pprof }), loopback.Forbid)
}

// Probes serves the three probes, and /metrics if admin.probes_metrics is on, to
// anybody who can connect.
func (s *Server) Probes() http.Handler {
	return s.mux(func(e Endpoint) bool { return e.Role == RoleProbe || s.config.ProbesMetrics && e.Path == "/metrics" })
}

// probe is one question under all the names that people's manifests use.
type probe struct {
	checks []Check
	paths  []string
}

func (s *Server) probes() []probe {
	return []probe{
		{append([]Check{{"live", s.live}}, s.deps.Live...), []string{"/livez", "/live", "/liveness"}},
		{s.deps.Ready, []string{"/readyz", "/healthz", "/ready", "/readiness"}},
		{s.deps.Started, []string{"/startupz", "/startup"}},
	}
}

// answer asks the checks: 200 if all are good, 503 if not. ?deep=1 asks more,
// ?verbose lists every answer.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, checks []Check) {
	query := r.URL.Query()
	if deep := query.Get("deep"); deep != "" && deep != "0" && deep != "false" {
		checks = slices.Concat(checks, s.deps.Deep)
	}
	status, all, bad := http.StatusOK, "", ""
	for _, check := range checks {
		if err := check.Ask(); err != nil {
			status = http.StatusServiceUnavailable
			bad += fmt.Sprintf("[-] %s: %v\n", check.Name, err)
			all += fmt.Sprintf("[-] %s: %v\n", check.Name, err)
		} else {
			all += fmt.Sprintf("[+] %s: ok\n", check.Name)
		}
	}
	switch {
	case query.Has("verbose"):
		writeText(w, status, all)
	case bad != "":
		writeText(w, status, bad)
	default:
		writeText(w, status, "ok\n")
	}
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // the caller went away
}

func writeJSON(w http.ResponseWriter, document any) {
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		writeText(w, http.StatusInternalServerError, "cannot be shown: "+err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(text, '\n')) // the caller went away
}
