package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/app"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
)

// operations are the commands that speak to a running sidecar.
var operations = []command{
	{"drain", "stop a sidecar as SIGTERM does, (-wait) and wait for it, or (-lameduck) make it not ready while it serves on", drain},
	{"reload", "read the configuration again, or (-dry-run) only say what that would change", reload},
	{"shutdown", "drain -wait", shutdown},
	{"findings", "say what is wrong, and what to do about it", look("findings", "/state/findings", showFindings)},
	{"top", "show what goes on, again and again: what is wrong, calls, pool, queue, nodes, apps", top},
	{"pools", "list the pools: active, waiting, idle, maxwait", listPools},
	{"queue", "list who waits for a session", look("queue", "/state/queue", showQueue)},
	{"statements", "list statements by digest: calls, errors, rows, bytes, times", listStatements},
	{"sessions", "list who holds which session since when, under which trace", listSessions},
	{"calls", "list the calls of every API that are under way or wait, the oldest first", listCalls},
	{"kill-call", "end the calls of a trace, or one call: kill-call TRACE", killCall},
	{"kill", "delete a session under its holder: kill SESSION", kill},
	{"resize", "change the size of the pool: resize -max 50 -min 5", act("resize", "/pool/resize", sizes, sayPool)},
	{"pause", "have the calls of every API wait, (-wait) and return when nothing is under way at any node", pause},
	{"resume", "take that back", act("resume", "/pool/resume", nil, sayPool)},
	{"log-level", "change the level of the log: log-level -level DEBUG", act("log-level", "/logging", level, sayLevel)},
	{"nodes", "list the nodes: state, use, sessions, calls, latency, reason", listNodes},
	{"why", "why a node is in the state it is in: why NODE", why},
	{"ban", "keep new work off a node: ban NODE [-for 10m] [-reason text]", ban},
	{"unban", "take a ban back: unban NODE", onNode("unban")},
	{"drain-node", "empty a node of sessions: drain-node NODE", onNode("drain")},
	{"undrain-node", "take that back: undrain-node NODE", onNode("undrain")},
	{"events", "what happened to nodes, (-follow) as it happens", events},
}

// nobodyError says that no sidecar answers.
type nobodyError struct {
	at  string
	err error
}

func (e *nobodyError) Error() string {
	return fmt.Sprintf(
		"no sidecar answers at %s (%v): is it running, and is that its admin.socket or admin.listen? -socket and -admin name another",
		e.at, e.err,
	)
}

func isNobody(err error) bool {
	_, ok := errors.AsType[*nobodyError](err)
	return ok
}

// How the admin API is used.
const (
	operateLimit = 10 * time.Second
	followPause  = 500 * time.Millisecond
	watchPause   = 3 * time.Second // between two lines of one stage
	maxAnswer    = 16 << 20        // bytes
)

// operator speaks to the admin API of a running sidecar.
type operator struct {
	at     string // where it listens, for people
	client *http.Client
	base   string // of URLs
	token  string
}

// operate finds the sidecar that the settings name: by its Unix socket if it has
// one, unless -admin names an address. With -socket nothing else is read. Otherwise
// faults of the file and of the environment are a warning: the commands are needed
// most while the configuration is broken, and the sidecar that runs has read another.
// They are an error where they hide which sidecar is meant.
func operate(e *environment, o options) (*operator, error) {
	given := func(flag string) bool {
		return slices.ContainsFunc(o.assignments, func(a app.Assignment) bool { return a.Source == flag })
	}
	file, environ := o.file, e.environ
	if given("-socket") {
		file, environ = "", nil
	}
	c, ignored, err := app.LoadAdmin(file, environ, o.assignments)
	if err != nil {
		return nil, err
	}
	op := &operator{at: c.Socket, base: "http://localhost"}
	bySocket := c.Socket != "" && (given("-socket") || !given("-admin"))
	if !bySocket {
		op.at = reachable(c.Listen)
	}
	if ignored != nil {
		e.warn(fmt.Errorf("%s; asking the sidecar at %s", app.FaultLine(ignored), op.at))
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if path := c.Socket; bySocket {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	} else {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			return nil, fmt.Errorf("admin.listen = %q; must be host:port: give -admin or -socket", c.Listen)
		}
		if transport.TLSClientConfig, err = c.TLS.Pinned(); err != nil {
			return nil, fmt.Errorf("admin.%w", err)
		}
		op.base = "http://" + op.at
		if transport.TLSClientConfig != nil {
			op.base = "https://" + op.at
		}
		if op.token, err = c.BearerToken(); err != nil {
			e.warn(err) // much is allowed without
		}
	}
	op.client = &http.Client{Transport: transport, Timeout: operateLimit}
	return op, nil
}

// warn reports faults that a command goes on without.
func (e *environment) warn(faults error) {
	if faults != nil {
		fmt.Fprintf(e.stderr, "sidecar: warning: ignored: %s\n", app.FaultLine(faults))
	}
}

// ask makes one request and returns the answer to it, or the sidecar's refusal.
func (op *operator) ask(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	target := op.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, err
	}
	if op.token != "" {
		request.Header.Set("Authorization", "Bearer "+op.token)
	}
	response, err := op.client.Do(request)
	if ctx.Err() != nil {
		if err == nil {
			response.Body.Close()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL of a socket, which is none
		}
		if gone(err) {
			err = &nobodyError{at: op.at, err: err}
		}
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", op.at, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(cmp.Or(strings.Join(strings.Fields(string(text)), " "), response.Status))
	}
	return text, nil
}

// gone reports whether err means that no process listens at the address, or that the one that did is just ending.
func gone(err error) bool {
	for _, sign := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, fs.ErrNotExist, io.EOF} {
		if errors.Is(err, sign) {
			return true
		}
	}
	return false
}

// interruptible is a context that the signals end.
func (e *environment) interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		select {
		case s := <-e.signals:
			cancel(fmt.Errorf("interrupted (%v)", s))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// parseNode parses flags and one argument, which may stand before them.
func parseNode(set *flag.FlagSet, args []string) (node string, err error) {
	if err := set.Parse(args); err != nil {
		return "", explained(err)
	}
	if set.NArg() == 0 {
		fmt.Fprintf(set.Output(), "%s: want the number of a node; sidecar nodes lists them\n", set.Name())
		return "", errUsage
	}
	return set.Arg(0), parse(set, set.Args()[1:])
}

func drain(e *environment, args []string) error {
	var o options
	set := flags(e, "drain", &o)
	lameDuck := set.Bool("lameduck", false, "only make it not ready and end optional work; it goes on serving; returns at once")
	off := set.Bool("off", false, "take -lameduck back")
	wait := set.Bool("wait", false, "return when it has stopped, and say meanwhile what it waits for")
	grace := set.Duration("timeout", 0, "cut off what is still open after this `time`, instead of drain.grace")
	if err := parse(set, args); err != nil {
		return err
	}
	query := url.Values{"mode": {"graceful"}}
	switch {
	case *lameDuck && *off, (*lameDuck || *off) && (*wait || *grace != 0):
		fmt.Fprintf(e.stderr, "%s: -lameduck and -off go with no other\n", set.Name())
		return errUsage
	case *lameDuck:
		query.Set("mode", "lameduck")
	case *off:
		query.Set("mode", "off")
	case *grace != 0:
		query.Set("timeout", grace.String())
	}
	op, err := operate(e, o)
	if err != nil {
		return err
	}
	ctx, cancel := e.interruptible()
	defer cancel()
	text, err := op.ask(ctx, http.MethodPost, "/drain", query)
	if err != nil {
		return err
	}
	if *wait {
		return op.watch(ctx, e.stdout, text)
	}
	_, line, err := progressLine(text)
	if err == nil {
		_, err = fmt.Fprintln(e.stdout, line)
	}
	return err
}

// watch says how the end goes on, until nobody answers any more.
func (op *operator) watch(ctx context.Context, to io.Writer, text []byte) error {
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	var said time.Time
	for last := ""; ; {
		stage, line, err := progressLine(text)
		if err != nil {
			return err
		}
		if stage != last || time.Since(said) >= watchPause {
			fmt.Fprintln(to, line)
			last, said = stage, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if text, err = op.ask(ctx, http.MethodGet, "/drain", nil); isNobody(err) {
			_, err := fmt.Fprintln(to, "stopped")
			return err
		} else if err != nil {
			return err
		}
	}
}

// progressLine writes what GET /drain shows for people.
func progressLine(text []byte) (stage, line string, err error) {
	var now struct {
		Stage    string `json:"stage"`
		WaitsFor string `json:"waits_for"`
		LeftMS   int64  `json:"left_ms"`
	}
	if err := json.Unmarshal(text, &now); err != nil {
		return "", "", fmt.Errorf("the answer is not that of a sidecar: %w", err)
	}
	line = now.Stage
	if now.WaitsFor != "" {
		line += "; waits for " + now.WaitsFor
	}
	if now.LeftMS > 0 {
		line += fmt.Sprintf("; at most %v", (time.Duration(now.LeftMS) * time.Millisecond).Round(time.Second))
	}
	return now.Stage, line, nil
}

// nodeLine is what the table of nodes shows of GET /state/nodes.
type nodeLine struct {
	ID        uint32  `json:"id"`
	Address   string  `json:"address"`
	Zone      string  `json:"zone"`
	Health    string  `json:"health"`
	Draining  bool    `json:"leaving"`
	Missing   bool    `json:"missing"`
	Unwell    bool    `json:"listed_unhealthy"`
	Banned    bool    `json:"banned"`
	Use       string  `json:"use"`
	Weight    float64 `json:"weight"`
	Sessions  int     `json:"sessions"`
	Calls     int     `json:"calls"`
	LatencyMS float64 `json:"latency_ms"`
	Reason    string  `json:"reason"`
}

// state is the health with the marks.
func (n *nodeLine) state() string {
	health := n.Health
	if n.Banned {
		health += ",banned"
	}
	if n.Draining {
		health += ",leaving"
	}
	if n.Missing {
		health += ",missing"
	}
	if n.Unwell {
		health += ",listed_unhealthy"
	}
	return health
}

func listNodes(e *environment, args []string) error {
	var o options
	set := flags(e, "nodes", &o)
	var out output
	out.add(set)
	if err := parse(set, args); err != nil {
		return err
	}
	text, err := askOnce(e, o, http.MethodGet, "/state/nodes", nil)
	if err != nil {
		return err
	}
	if out.json {
		_, err := e.stdout.Write(text)
		return err
	}
	var state struct {
		Panic bool       `json:"panic"`
		Nodes []nodeLine `json:"nodes"`
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return fmt.Errorf("the answer is not that of a sidecar: %w", err)
	}
	table := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tADDRESS\tZONE\tSTATE\tUSE\tWEIGHT\tSESSIONS\tCALLS\tLATENCY\tREASON")
	for _, n := range state.Nodes {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%.2f\t%d\t%d\t%.1fms\t%s\n",
			n.ID, n.Address, cmp.Or(n.Zone, "-"), n.state(), n.Use, n.Weight, n.Sessions, n.Calls, n.LatencyMS, cmp.Or(n.Reason, "-"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if state.Panic {
		fmt.Fprintln(e.stdout, "more than half of the nodes are ejected: those that answer are used all the same")
	}
	return nil
}

// askOnce is a command that is one request.
func askOnce(e *environment, o options, method, path string, query url.Values) ([]byte, error) {
	op, err := operate(e, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := e.interruptible()
	defer cancel()
	return op.ask(ctx, method, path, query)
}

func why(e *environment, args []string) error {
	var o options
	set := flags(e, "why", &o)
	var out output
	out.add(set)
	node, err := parseNode(set, args)
	if err != nil {
		return err
	}
	return explain(e, o, http.MethodGet, node, "why", nil, out.json)
}

func ban(e *environment, args []string) error {
	var o options
	set := flags(e, "ban", &o)
	d := set.Duration("for", 0, "for this `time`; 0: until unban")
	reason := set.String("reason", "", "one line of `text` for those who look later")
	node, err := parseNode(set, args)
	if err != nil {
		return err
	}
	query := url.Values{}
	if *d != 0 {
		query.Set("for", d.String())
	}
	if *reason != "" {
		query.Set("reason", *reason)
	}
	return explain(e, o, http.MethodPost, node, "ban", query, false)
}

// onNode is a command that does one thing to one node.
func onNode(act string) func(*environment, []string) error {
	return func(e *environment, args []string) error {
		var o options
		name := act
		if act != "unban" {
			name += "-node" // drain alone is the sidecar
		}
		node, err := parseNode(flags(e, name, &o), args)
		if err != nil {
			return err
		}
		return explain(e, o, http.MethodPost, node, act, nil, false)
	}
}

// explain asks for something that is answered with why a node is where it is.
func explain(e *environment, o options, method, node, act string, query url.Values, asJSON bool) error {
	text, err := askOnce(e, o, method, "/nodes/"+url.PathEscape(node)+"/"+act, query)
	if err != nil {
		return err
	}
	if asJSON {
		_, err := e.stdout.Write(text)
		return err
	}
	var answer pessimize.Why
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("the answer is not that of a sidecar: %w", err)
	}
	if _, err := fmt.Fprintln(e.stdout, answer.Summary); err != nil || act != "why" {
		return err
	}
	return evidence(e.stdout, answer)
}

// evidence writes what a verdict rests on: what was counted, and what it takes.
func evidence(to io.Writer, w pessimize.Why) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	row := func(what, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", what, fmt.Sprintf(format, args...))
	}
	row("transport errors in a row", "%d; ejected at %d", w.TransportRow.Count, w.TransportRow.Limit)
	row("refusals in a row", "%d; ejected at %d", w.RefusalRow.Count, w.RefusalRow.Limit)
	row("refusals lately", "%d of %d calls in %.1f s; ejected at %.0f %% and %d", w.RefusalShare.Refused, w.RefusalShare.Calls,
		float64(w.RefusalShare.ElapsedMS)/1000, 100*w.RefusalShare.Limit, w.RefusalShare.Least)
	for _, s := range w.Latency {
		limit := "too few others to compare with"
		if s.LimitMS > 0 {
			limit = fmt.Sprintf("%d others %.1f ms; ejected when surely above %.1f ms for %.1f s", s.Others, s.OthersMS,
				s.LimitMS, s.EjectedAfter)
		}
		row(s.Kind+" calls", "%.1f ms, the median of %d (%d are needed); %s", s.MedianMS, s.Calls, s.Least, limit)
	}
	if s := w.LastSign; s != nil {
		row("last bad sign", "%s on %s (%s)", s.Detail, s.Kind, s.Blame)
	}
	if p := w.LastProbe; p != nil {
		row("last probe", "%s, took %.1f ms: %s", p.At.Format(time.RFC3339), p.TookMS, p.Result)
	}
	for _, e := range w.History {
		row("", "%s", eventLine(e))
	}
	return table.Flush()
}

func events(e *environment, args []string) error {
	var o options
	set := flags(e, "events", &o)
	follow := set.Bool("follow", false, "go on until interrupted")
	after := set.Uint64("after", 0, "only those after the event of this `number`")
	asJSON := set.Bool("json", false, "a line of JSON for each")
	if err := parse(set, args); err != nil {
		return err
	}
	op, err := operate(e, o)
	if err != nil {
		return err
	}
	ctx, cancel := e.interruptible()
	defer cancel()
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	for last := *after; ; {
		text, err := op.ask(ctx, http.MethodGet, "/events", url.Values{"after": {fmt.Sprint(last)}})
		if err != nil && ctx.Err() == nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if last, err = printEvent(e.stdout, line, *asJSON); err != nil {
				return err
			}
		}
		if !*follow {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil // it was told to end
		}
	}
}

// printEvent writes one line of GET /events and returns its number.
func printEvent(to io.Writer, line string, asJSON bool) (seq uint64, err error) {
	var event pessimize.Event
	if err := json.Unmarshal([]byte(line), &event); err != nil {
		return 0, fmt.Errorf("the answer is not that of a sidecar: %w", err)
	}
	if asJSON {
		_, err = io.WriteString(to, line)
		return event.Seq, err
	}
	_, err = fmt.Fprintln(to, eventLine(event))
	return event.Seq, err
}

func eventLine(e pessimize.Event) string {
	what := string(e.Kind)
	if e.Node != 0 {
		what = fmt.Sprintf("node %d %s", e.Node, what)
	}
	if e.From != "" || e.To != "" {
		what += fmt.Sprintf(" %s -> %s", cmp.Or(e.From, "none"), cmp.Or(e.To, "none"))
	}
	return e.Time.Format("2006-01-02T15:04:05.000Z07:00") + " " + what + ": " + e.Reason
}
