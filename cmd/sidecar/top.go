package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
)

// topData is what top shows: parts of GET /state/page and /state/sessions.
type topData struct {
	Version  string             `json:"version"`
	Host     string             `json:"host"`
	Pod      string             `json:"pod"` // "" outside of Kubernetes
	Database string             `json:"database"`
	Stage    string             `json:"stage"`
	UptimeS  float64            `json:"uptime_s"`
	Findings []findings.Finding `json:"findings"`
	Pool     poolLine           `json:"pool"`
	Nodes    struct {
		Nodes []nodeLine `json:"nodes"`
	} `json:"nodes"`
	API struct {
		OpenCalls    int `json:"open_calls"`
		Transactions int `json:"transactions"`
	} `json:"api"`
	History struct {
		StepMS int                             `json:"step_ms"`
		All    map[string][]float64            `json:"all"`
		Errors map[string][]float64            `json:"errors"`
		Nodes  map[string]map[string][]float64 `json:"nodes"`
	} `json:"history"`

	Apps []struct {
		App     string            `json:"app"`
		Open    int64             `json:"open"`
		InUse   int64             `json:"in_use"`
		Waiting int64             `json:"waiting"`
		Refused map[string]uint64 `json:"refused"`
		WaitP99 float64           `json:"wait_p99_ms"`
	} `json:"apps"` // the app that waits and uses most comes first
	AppsMore int `json:"apps_more"`
	sessions struct {
		Sessions []sessionItem `json:"sessions"`
	}
}

// topPoints is over how many points of the history top takes the mean: ten seconds.
const topPoints = 5

// recent is the mean of the newest points.
func recent(all []float64) (mean float64) {
	all = all[max(0, len(all)-topPoints):]
	for _, v := range all {
		mean += v / float64(len(all))
	}
	return mean
}

// worst is the greatest of them: of quantiles, a mean says little.
func worst(all []float64) (most float64) {
	for _, v := range all[max(0, len(all)-topPoints):] {
		most = max(most, v)
	}
	return most
}

const (
	topItems    = 8 // apps, held sessions, kinds of error
	topFindings = 5
	home        = "\x1b[H"  // the cursor goes to the top left
	clearLine   = "\x1b[K"  // from the cursor on
	clearBelow  = "\x1b[J"  // from the cursor on
	clearAll    = "\x1b[2J" // the screen
)

// top shows what goes on, again and again.
func top(i *invocation) func() error {
	i.output()
	interval := i.duration("interval", 2*time.Second, "Refresh after this `time`, at least 100ms (2s)")
	count := i.number("n", 0,
		"End after this `number` of refreshes; 0 goes on until you interrupt it, or prints once if the output is not a terminal")
	return func() error {
		if *interval < 100*time.Millisecond {
			return i.usageFault("-interval %v; want at least 100ms", *interval)
		}
		return i.top(*interval, *count)
	}
}

// top writes a page at each interval, count times; a count of 0 goes on until it is interrupted.
func (i *invocation) top(interval time.Duration, count int) error {
	op, err := i.operate()
	if err != nil {
		return err
	}
	screen := isTerminal(i.stdout)
	if count == 0 && !screen {
		count = 1
	}
	ctx, cancel := i.interruptible()
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	if screen && !i.asJSON {
		fmt.Fprint(i.stdout, clearAll)
	}
	for n := 1; ; n++ {
		var page bytes.Buffer
		if err := op.topPage(ctx, &page, i.asJSON); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if !screen || n == 1 {
				return err
			}
			page.Reset()
			fmt.Fprintf(&page, "%v\n", err) // it may come back: go on
		}
		text := page.String()
		switch {
		case screen && !i.asJSON:
			text = home + strings.ReplaceAll(text, "\n", clearLine+"\n") + clearBelow
		case n > 1 && !i.asJSON:
			text = "\n" + text
		}
		if _, err := io.WriteString(i.stdout, text); err != nil || n == count {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil // it was told to end
		}
	}
}

// isTerminal reports whether a writer is a terminal that moves its cursor.
func isTerminal(to io.Writer) bool {
	f, ok := to.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// topPage writes one look.
func (op *operator) topPage(ctx context.Context, to io.Writer, asJSON bool) error {
	text, err := op.ask(ctx, http.MethodGet, "/state/page", nil)
	if err != nil {
		return err
	}
	if asJSON {
		_, err := to.Write(append(bytes.TrimSpace(text), '\n'))
		return err
	}
	var d topData
	if err := read(text, &d); err != nil {
		return err
	}
	held, err := op.ask(ctx, http.MethodGet, "/state/sessions", url.Values{"limit": {"100"}})
	if err == nil {
		err = read(held, &d.sessions)
	}
	if err != nil {
		return err
	}
	return d.write(to)
}

func (d *topData) write(to io.Writer) error {
	all := d.History.All
	fmt.Fprintf(to, "ydb-sidecar %s  %s  %s  %s, up %s  %s\n\n", d.Version, cmp.Or(d.Pod, d.Host, "-"), d.Database, d.Stage,
		findings.Span(time.Duration(d.UptimeS*float64(time.Second))), time.Now().Format("15:04:05"))

	if len(d.Findings) == 0 {
		fmt.Fprintln(to, "STATUS   OK")
	}
	for i, f := range d.Findings {
		if i == topFindings {
			fmt.Fprintf(to, "         and %d more: sidecar findings\n", len(d.Findings)-i)
			break
		}
		name := "WRONG"
		if f.Severity == findings.Note {
			name = "NOTE"
		}
		fmt.Fprintf(to, "%-8s %s (%s)\n         -> %s\n", name, f.Text, f.Code, f.Do)
	}

	p := &d.Pool
	fmt.Fprintf(to, "\nCALLS    %.0f/s  failed %.1f/s  p50 %s  p99 %s  open %d  transactions %d\n",
		recent(all["calls"]), recent(all["failed"]), span(recent(all["p50"])), span(worst(all["p99"])), d.API.OpenCalls, d.API.Transactions)
	fmt.Fprintf(to, "TIME     %s\n", whereTimeGoes(all))
	fmt.Fprintf(to, "POOL     %s  active %d  idle %d  opening %d  max %d  %s\n", bar(p.Busy, p.Idle, p.Max), p.Busy,
		p.Idle, p.Creating, p.Max, p.state())
	fmt.Fprintf(to, "QUEUE    waiting %d  maxwait %s\n", p.waiting(), span(p.OldestMS))
	fmt.Fprintf(to, "ERRORS   %s\n\n", d.errors())

	table := newTable(to)
	fmt.Fprintln(table, "NODE\tADDRESS\tZONE\tSTATE\tSESSIONS\tOPEN\tCALLS/S\tBAD/S\tP50\tP99\tREASON")
	for _, n := range d.Nodes.Nodes {
		h := d.History.Nodes[fmt.Sprint(n.ID)]
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%d\t%.0f\t%.1f\t%s\t%s\t%s\n", n.ID, n.Address, cmp.Or(n.Zone, "-"),
			n.state(), n.Sessions, n.Calls,
			recent(h["calls"]), recent(h["bad"]), span(recent(h["p50"])), span(worst(h["p99"])), cmp.Or(short(n.Reason, 60), "-"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if err := d.writeApps(to); err != nil {
		return err
	}
	return d.writeHeld(to)
}

// writeApps shows the apps that wait and use most.
func (d *topData) writeApps(to io.Writer) error {
	if len(d.Apps) == 0 {
		return nil
	}
	table := newTable(to)
	fmt.Fprintln(table, "\nAPP\tACTIVE\tWAITING\tOPEN\tWAIT P99\tREFUSED")
	shown := d.Apps[:min(len(d.Apps), topItems)]
	for _, a := range shown {
		refused := uint64(0)
		for _, n := range a.Refused {
			refused += n
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%d\n", cmp.Or(a.App, "-"), a.InUse, a.Waiting, a.Open, span(a.WaitP99), refused)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if more := len(d.Apps) - len(shown) + d.AppsMore; more > 0 {
		fmt.Fprintf(to, "and %d more\n", more)
	}
	return nil
}

// writeHeld shows who holds a session for a second and longer.
func (d *topData) writeHeld(to io.Writer) error {
	table := newTable(to)
	for i, s := range d.sessions.Sessions {
		if s.HeldMS < 1000 || i == topItems {
			break
		}
		if i == 0 {
			fmt.Fprintln(table, "\nHELD\tSESSION\tNODE\tAPP\tBY\tTRACE")
		}
		by := s.Kind
		if s.Kind == "transaction" && !s.Busy {
			by = "idle transaction"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", span(float64(s.HeldMS)), s.Session, s.Node, cmp.Or(s.App, "-"),
			by, cmp.Or(s.Trace, "-"))
	}
	return table.Flush()
}

// errors are those of the last seconds by class, the most frequent first.
func (d *topData) errors() string {
	rate := map[string]float64{}
	for kind, points := range d.History.Errors {
		if r := recent(points); r > 0 {
			rate[kind] = r
		}
	}
	kinds := slices.SortedFunc(maps.Keys(rate), func(a, b string) int { return cmp.Or(cmp.Compare(rate[b], rate[a]), cmp.Compare(a, b)) })
	var texts []string
	for _, kind := range kinds[:min(len(kinds), topItems)] {
		texts = append(texts, fmt.Sprintf("%s %.1f/s", kind, rate[kind]))
	}
	return cmp.Or(strings.Join(texts, "  "), "none")
}

// whereTimeGoes says how the mean time of a call is made up.
func whereTimeGoes(all map[string][]float64) string {
	sum, texts := 0.0, []string{}
	for _, part := range []string{"queue", "acquire", "hop", "server", "rest"} {
		sum += recent(all[part])
	}
	if sum <= 0 {
		return "no calls"
	}
	for _, part := range []string{"queue", "acquire", "hop", "server", "rest"} {
		ms := recent(all[part])
		texts = append(texts, fmt.Sprintf("%s %s (%.0f %%)", part, span(ms), 100*ms/sum))
	}
	return strings.Join(texts, "  ")
}

// bar draws a pool: # in use, . idle.
func bar(used, idle, most int) string {
	const width = 20
	if most <= 0 {
		return ""
	}
	u := min(width, (used*width+most-1)/most)
	i := min(width-u, (idle*width+most-1)/most)
	return "[" + strings.Repeat("#", u) + strings.Repeat(".", i) + strings.Repeat(" ", width-u-i) + "]"
}

// short cuts a text after a number of letters.
func short(text string, most int) string {
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}
