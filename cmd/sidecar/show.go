package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
)

// look is a command that shows one document.
func look(path string, table shower) func(*invocation) func() error {
	return func(i *invocation) func() error {
		i.output()
		return func() error { return i.show(path, nil, table) }
	}
}

// read takes an answer apart.
func read(text []byte, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("the answer is not that of a sidecar: %w", err)
	}
	return nil
}

func newTable(to io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(to, 0, 0, 2, ' ', 0) }

// span writes milliseconds for people; "-" for none.
func span(ms float64) string {
	if ms <= 0 {
		return "-"
	}
	return findings.Span(time.Duration(ms * float64(time.Millisecond)))
}

// poolLine is what is shown of GET /state/pool.
type poolLine struct {
	Max      int            `json:"max"`
	Min      int            `json:"min"`
	Limit    int            `json:"limit"`
	Sessions int            `json:"sessions"`
	Idle     int            `json:"idle"`
	Busy     int            `json:"busy"`
	Creating int            `json:"creating"`
	Closing  int            `json:"closing"`
	Waiting  map[string]int `json:"waiting"`
	OldestMS float64        `json:"oldest_ms"`
	Paused   bool           `json:"paused"`
	OpenErr  string         `json:"open_error"`
}

func (p *poolLine) waiting() (sum int) {
	for _, n := range p.Waiting {
		sum += n
	}
	return sum
}

func (p *poolLine) state() string {
	switch {
	case p.Paused:
		return "paused"
	case p.Limit < p.Max:
		return fmt.Sprintf("limited to %d", p.Limit)
	case p.Busy >= p.Max:
		return "full"
	default:
		return "running"
	}
}

// listPools shows the sidecar's own pool, and those of callers' identities.
func listPools(i *invocation) func() error {
	i.output()
	return func() error {
		return i.show("/state/pool", nil, func(to io.Writer, text []byte) error {
			more, err := i.askOnce(http.MethodGet, "/state/connections", url.Values{"limit": {"1"}})
			if err != nil {
				return err
			}
			return showPools(to, text, more)
		})
	}
}

// showPools writes the table of pools: own is the sidecar's own pool, more has those of callers' identities.
func showPools(to io.Writer, own, more []byte) error {
	var p poolLine
	var c struct {
		Virtual struct {
			Pools []struct {
				Identity string `json:"identity"`
				App      string `json:"app"`
				Sessions int    `json:"sessions"`
				Opening  int    `json:"opening"`
				Idle     int    `json:"idle"`
				Leased   int    `json:"leased"`
				Closing  int    `json:"closing"`
				Waiting  int    `json:"waiting"`
				Limit    int    `json:"limit"`
			} `json:"pools"`
		} `json:"virtual_sessions"`
	}
	if err := read(own, &p); err != nil {
		return err
	}
	if err := read(more, &c); err != nil {
		return err
	}
	table := newTable(to)
	fmt.Fprintln(table, "POOL\tACTIVE\tWAITING\tIDLE\tMAXWAIT\tOPENING\tCLOSING\tMAX\tMIN\tSTATE")
	fmt.Fprintf(table, "own\t%d\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%s\n", p.Busy, p.waiting(), p.Idle, span(p.OldestMS),
		p.Creating, p.Closing, p.Max, p.Min, p.state())
	waiting := p.waiting()
	for _, t := range c.Virtual.Pools {
		waiting += t.Waiting
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t-\t%d\t%d\t%d\t0\trunning\n", strings.TrimSpace(t.Identity+" "+t.App),
			t.Leased, t.Waiting, t.Idle, t.Opening, t.Closing, t.Limit)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if p.OpenErr != "" {
		_, err := fmt.Fprintf(to, "the last session could not be opened: %s\n", p.OpenErr)
		return err
	}
	if waiting > 0 || p.Paused {
		return nil
	}
	_, err := fmt.Fprintln(to, "OK: no caller waits")
	return err
}

func showQueue(to io.Writer, text []byte) error {
	var q struct {
		Waiting  int     `json:"waiting"`
		OldestMS float64 `json:"oldest_ms"`
		Limit    int     `json:"limit"`
		Queues   []struct {
			Class    string  `json:"class"`
			App      string  `json:"app"`
			Waiting  int     `json:"waiting"`
			OldestMS float64 `json:"oldest_ms"`
		} `json:"queues"`
	}
	if err := read(text, &q); err != nil {
		return err
	}
	if q.Waiting == 0 {
		_, err := fmt.Fprintf(to, "OK: no caller waits (pool.queue has room for %d)\n", q.Limit)
		return err
	}
	table := newTable(to)
	fmt.Fprintln(table, "CLASS\tAPP\tWAITING\tMAXWAIT")
	for _, l := range q.Queues {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", l.Class, cmp.Or(l.App, "-"), l.Waiting, span(l.OldestMS))
	}
	fmt.Fprintf(table, "all\t-\t%d of %d\t%s\n", q.Waiting, q.Limit, span(q.OldestMS))
	return table.Flush()
}

// sessionItem is what is shown of one of GET /state/sessions.
type sessionItem struct {
	Session string `json:"session"`
	Node    uint32 `json:"node_id"`
	State   string `json:"state"`
	App     string `json:"app"`
	Kind    string `json:"kind"`
	Busy    bool   `json:"busy"`
	HeldMS  int64  `json:"held_ms"`
	Trace   string `json:"trace_id"`
	Why     string `json:"why"`
}

func listSessions(i *invocation) func() error {
	i.output()
	idle := i.set.Bool("idle", false, "List sessions that no caller uses as well")
	limit := i.number("n", 100, "List at most this `number` of sessions, those held longest first (100)")
	return func() error {
		return i.show("/state/sessions", url.Values{"limit": {strconv.Itoa(*limit)}},
			func(to io.Writer, text []byte) error { return showSessions(to, text, *idle) })
	}
}

// showSessions writes the table of sessions, with the idle ones or without.
func showSessions(to io.Writer, text []byte, idle bool) error {
	var s struct {
		Total    int           `json:"total"`
		Used     int           `json:"used"`
		Sessions []sessionItem `json:"sessions"`
	}
	if err := read(text, &s); err != nil {
		return err
	}
	table, shown := newTable(to), 0
	for _, l := range s.Sessions {
		if l.State == "idle" && !idle {
			continue
		}
		if shown++; shown == 1 {
			fmt.Fprintln(table, "SESSION\tNODE\tSTATE\tHELD\tAPP\tBY\tTRACE")
		}
		by := cmp.Or(l.Kind, "-")
		if l.Kind == "transaction" && !l.Busy {
			by = "idle transaction"
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", l.Session, l.Node, l.State, span(float64(l.HeldMS)),
			cmp.Or(l.App, "-"), by, cmp.Or(l.Trace, "-"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(to, "%d of %d sessions are in use\n", s.Used, s.Total)
	return err
}

// showFindings lists what is wrong.
func showFindings(to io.Writer, text []byte) error {
	var r findings.Report
	if err := read(text, &r); err != nil {
		return err
	}
	writeFindings(to, r.Findings)
	return nil
}

// writeFindings says what is wrong and what to do about it.
func writeFindings(to io.Writer, all []findings.Finding) {
	if len(all) == 0 {
		fmt.Fprintln(to, "OK: nothing is wrong")
	}
	for _, f := range all {
		fmt.Fprintf(to, "%-8s %s (%s, for %s)\n         %s\n", f.Severity, f.Text, f.Code, findings.Span(time.Since(f.Since)), f.Do)
	}
}

func sayPool(to io.Writer, text []byte) error {
	var p poolLine
	if err := read(text, &p); err != nil {
		return err
	}
	_, err := fmt.Fprintf(
		to, "pool %s: max %d, min %d; %d in use, %d idle, %d waiting\n", p.state(), p.Max, p.Min, p.Busy, p.Idle,
		p.waiting(),
	)
	return err
}

func sayLevel(to io.Writer, text []byte) error {
	var l struct {
		Level string `json:"level"`
	}
	if err := read(text, &l); err != nil {
		return err
	}
	_, err := fmt.Fprintf(to, "the level of the log is %s\n", l.Level)
	return err
}

func resize(i *invocation) func() error {
	most := i.number("max", -1, "Largest number of `sessions`, as pool.max")
	least := i.number("min", -1, "Number of `sessions` that stay open, as pool.min")
	return func() error {
		q := url.Values{}
		for name, n := range map[string]int{"max": *most, "min": *least} {
			if n >= 0 {
				q.Set(name, strconv.Itoa(n))
			}
		}
		return i.post("/pool/resize", q, sayPool)
	}
}

func logLevel(i *invocation) func() error {
	to := i.set.String("level", "", "New level, `DEBUG|INFO|WARN|ERROR`")
	return func() error { return i.post("/logging", url.Values{"level": {*to}}, sayLevel) }
}

func kill(i *invocation) func() error {
	return func() error { return i.post("/sessions/"+url.PathEscape(i.args[0])+"/kill", nil, sayKilled) }
}

// sayKilled names the session that was deleted, and its app.
func sayKilled(to io.Writer, text []byte) error {
	var s sessionItem
	if err := read(text, &s); err != nil {
		return err
	}
	held := "it was idle"
	if s.HeldMS > 0 {
		held = fmt.Sprintf("app %s had it for %s", cmp.Or(s.App, "unknown"), span(float64(s.HeldMS)))
	}
	_, err := fmt.Fprintf(to, "session %s on node %d is killed; %s\n", s.Session, s.Node, held)
	return err
}
