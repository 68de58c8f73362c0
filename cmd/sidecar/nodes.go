package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pessimize"
)

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

// well reports whether the node is healthy and has no mark.
func (n *nodeLine) well() bool { return n.state() == "healthy" }

func listNodes(i *invocation) func() error {
	i.output()
	return func() error { return i.show("/state/nodes", nil, showNodes) }
}

// showNodes writes the table of nodes.
func showNodes(to io.Writer, text []byte) error {
	var state struct {
		Panic bool       `json:"panic"`
		Nodes []nodeLine `json:"nodes"`
	}
	if err := read(text, &state); err != nil {
		return err
	}
	table := newTable(to)
	fmt.Fprintln(table, "ID\tADDRESS\tZONE\tSTATE\tUSE\tWEIGHT\tSESSIONS\tCALLS\tLATENCY\tREASON")
	for _, n := range state.Nodes {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%.2f\t%d\t%d\t%.1fms\t%s\n",
			n.ID, n.Address, cmp.Or(n.Zone, "-"), n.state(), n.Use, n.Weight, n.Sessions, n.Calls, n.LatencyMS, cmp.Or(n.Reason, "-"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if state.Panic {
		fmt.Fprintln(to, "more than half of the nodes are ejected: those that answer are used all the same")
	}
	_, err := fmt.Fprintln(to, nodesSum(state.Nodes))
	return err
}

// nodesSum is the line below the table of nodes.
func nodesSum(all []nodeLine) string {
	ill := slices.DeleteFunc(slices.Clone(all), func(n nodeLine) bool { return n.well() })
	switch {
	case len(all) == 0:
		return "no node is known; sidecar doctor says why"
	case len(ill) == 0:
		return fmt.Sprintf("OK: %d of %d nodes are healthy", len(all), len(all))
	default:
		return fmt.Sprintf("%d of %d nodes are healthy; sidecar why %d explains node %d", len(all)-len(ill), len(all), ill[0].ID, ill[0].ID)
	}
}

func why(i *invocation) func() error {
	i.output()
	return func() error { return i.explain(http.MethodGet, "why", nil) }
}

func ban(i *invocation) func() error {
	d := i.duration("for", 0, "End the ban after this `time`; without it, sidecar unban ends the ban")
	reason := i.set.String("reason", "", "Show this `text` with the ban")
	return func() error {
		query := url.Values{}
		if *d != 0 {
			query.Set("for", d.String())
		}
		if *reason != "" {
			query.Set("reason", *reason)
		}
		return i.explain(http.MethodPost, "ban", query)
	}
}

// onNode is a command that does one thing to one node.
func onNode(act string) func(*invocation) func() error {
	return func(i *invocation) func() error {
		return func() error { return i.explain(http.MethodPost, act, nil) }
	}
}

// explain makes a request about the node that is the argument. The answer explains the node's state.
func (i *invocation) explain(method, act string, query url.Values) error {
	text, err := i.askOnce(method, "/nodes/"+url.PathEscape(i.args[0])+"/"+act, query)
	if err != nil {
		return err
	}
	if i.asJSON {
		_, err := i.stdout.Write(text)
		return err
	}
	var answer pessimize.Why
	if err := read(text, &answer); err != nil {
		return err
	}
	if act != "why" {
		_, err := fmt.Fprintln(i.stdout, answer.Summary)
		return err
	}
	if len(answer.Parts) == 0 { // a sidecar of an older version
		answer.Parts = []string{answer.Summary}
	}
	if _, err := fmt.Fprintln(i.stdout, strings.Join(answer.Parts, "\n")); err != nil {
		return err
	}
	return evidence(i.stdout, &answer)
}

// evidence writes what a verdict rests on: what was counted, at what count the node is ejected, and what happened to it.
func evidence(to io.Writer, w *pessimize.Why) error {
	table := newTable(to)
	fmt.Fprintln(table, "\nSIGN\tNOW\tEJECTED AT")
	row := func(sign, now, limit string) { fmt.Fprintf(table, "%s\t%s\t%s\n", sign, now, limit) }
	row("transport errors in a row", fmt.Sprint(w.TransportRow.Count), fmt.Sprint(w.TransportRow.Limit))
	row("overload errors in a row", fmt.Sprint(w.RefusalRow.Count), fmt.Sprint(w.RefusalRow.Limit))
	share := w.RefusalShare
	row("share of overload errors", fmt.Sprintf("%d of %d calls in %.1f s", share.Refused, share.Calls, float64(share.ElapsedMS)/1000),
		fmt.Sprintf("%.0f %% of calls, and at least %d", 100*share.Limit, share.Least))
	for _, s := range w.Latency {
		limit := "no limit: too few other nodes to compare with"
		if s.LimitMS > 0 {
			limit = fmt.Sprintf("%.1f ms for %.1f s; the median of %d other nodes is %.1f ms", s.LimitMS, s.EjectedAfter,
				s.Others, s.OthersMS)
		}
		now := fmt.Sprintf("%.1f ms, median of %d calls", s.MedianMS, s.Calls)
		if s.Calls < s.Least {
			now += fmt.Sprintf(" (counts from %d calls on)", s.Least)
		}
		row("latency of "+s.Kind+" calls", now, limit)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(to)
	if s := w.LastSign; s != nil {
		fmt.Fprintf(to, "Last bad sign: %s on %s (%s)\n", s.Detail, s.Kind, s.Blame)
	}
	if p := w.LastProbe; p != nil {
		fmt.Fprintf(to, "Last probe: %s, after %.1f ms, at %s\n", p.Result, p.TookMS, p.At.Format(time.RFC3339))
	}
	fmt.Fprintln(to, "Events, the oldest first:")
	for _, e := range w.History {
		fmt.Fprintln(to, "  "+eventLine(e))
	}
	return nil
}

func events(i *invocation) func() error {
	follow := i.set.Bool("follow", false, "Go on with new events until you interrupt it")
	after := i.number("after", 0, "List only events after the one of this `number`")
	i.set.BoolVar(&i.asJSON, "json", false, "Print one line of JSON for each event")
	return func() error { return i.events(*follow, *after) }
}

// events prints the events after one, and with follow those that come.
func (i *invocation) events(follow bool, after int) error {
	op, err := i.operate()
	if err != nil {
		return err
	}
	ctx, cancel := i.interruptible()
	defer cancel()
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	for last := uint64(max(after, 0)); ; {
		text, err := op.ask(ctx, http.MethodGet, "/events", url.Values{"after": {fmt.Sprint(last)}})
		if err != nil && ctx.Err() == nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if last, err = printEvent(i.stdout, line, i.asJSON); err != nil {
				return err
			}
		}
		if !follow {
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
	if err := read([]byte(line), &event); err != nil {
		return 0, err
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
