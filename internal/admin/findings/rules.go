package findings

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// What the rules go by. Where there are two numbers, it takes the first for a finding to begin, and
// the second for it to stay: so that it does not come and go while the figures are near a limit.
const (
	slowTimes, slowStays = 3, 2                                          // times the median of the other nodes,
	slowFloor, slowKeeps = 5 * time.Millisecond, 2500 * time.Microsecond // and at least that much more, is a slow node,
	slowAdded            = 2                                             // while statements were added so many times to what is measured
	heldLeast            = 2 * time.Second                               // age from which a transaction counts as held
	heldPart, heldStays  = 0.4, 0.3                                      // of the sessions in use that one app may hold
	jamPast              = 5                                             // Pictures that show whether the pool is jammed,
	fullPart, fullStays  = 0.6, 0.4                                      // by the part of them with callers waiting and no free session
	refusedBy, refStays  = 0.02, 0.01                                    // part of the calls that the cluster rejects
	lostLeast, lostStays = uint64(3), uint64(1)                          // calls rejected in the past
	worseBy, worseStays  = 3, 2                                          // times the usual latency
	crowdPart            = 0.5                                           // of the waiting and rejected calls that make an app worth naming

	panicShown = 10 * time.Minute // a panic that was caught
)

// view is a Picture and its past.
type view struct {
	Picture
	seen  []Picture // with this one
	base  time.Duration
	known map[key]*standing

	size, usual uint64 // bytes of an answer, in the past and when base was measured; 0: unknown
}

// on reports whether one of these findings is reported now, of that node or of none if it is 0.
func (v *view) on(node uint32, codes ...Code) bool {
	for k, s := range v.known {
		if s.told && k.node == node && slices.Contains(codes, k.code) {
			return true
		}
	}
	return false
}

// least returns how many rejected calls make a finding of that code.
func (v *view) least(code Code) uint64 {
	if v.on(0, code) {
		return lostStays
	}
	return lostLeast
}

func (v *view) findings() (all []Finding) {
	add := func(f Finding, format string, args ...any) {
		f.Text = fmt.Sprintf(format, args...)
		all = append(all, f)
	}
	if v.Stage != "serving" {
		add(Finding{Code: NotServing}, "the sidecar is not ready; its stage is: %s", v.Stage)
	}
	if v.Stalled != "" {
		add(Finding{Code: ShardStalled}, "the data path is stalled: %s", v.Stalled)
	}
	good, refused := v.answers()
	switch denied := v.Denied - min(v.Denied, v.seen[0].Denied); {
	case v.Credentials != "":
		add(Finding{Code: CredentialsBad}, "the sidecar's credentials do not work: %s", v.Credentials)
	case denied >= v.least(CredentialsBad) && denied > good:
		// Fewer may be statements that the account has no right to.
		add(Finding{Code: CredentialsBad}, "the cluster rejects the sidecar's credentials: %d calls in the last %d s", denied, v.seconds())
	}
	if v.Panics.Count > 0 && v.At.Sub(v.Panics.At) < panicShown {
		add(Finding{Code: Panicked}, "%s so far, the last one in %s; the log has its stack",
			number(int(v.Panics.Count), "panic", "panics"), v.Panics.Where)
	}
	if v.MemoryTight {
		add(Finding{Code: MemoryShort}, "memory is short: large requests and replies are rejected")
	}
	v.config(add)
	v.nodes(add)
	v.congestion(good, add)
	v.pool(good, refused, add)
	v.sessionUses(add)
	v.statements(add)
	for _, a := range v.Apps {
		if n := a.Limited - v.before(a.Name).Limited; n > 0 {
			add(Finding{Code: QuotaReached, App: a.Name},
				"app %s reached its limit %s of apps.limits: %d calls were rejected in the last %d s", a.Name, a.Limit, n, v.seconds())
		}
	}
	return all
}

// config finds settings that could not be reloaded, or that wait for a restart.
func (v *view) config(add adder) {
	c := v.Config
	if c.Fault != "" {
		more := ""
		if c.Faults > 1 {
			more = fmt.Sprintf(", and %s", number(c.Faults-1, "more fault", "more faults"))
		}
		add(Finding{Code: ConfigBad}, "the settings were not reloaded, the old ones stay in force: %s%s", c.Fault, more)
	}
	if n := len(c.Pending); n > 0 {
		names := strings.Join(c.Pending[:min(n, maxPending)], ", ")
		if n > maxPending {
			names += fmt.Sprintf(" and %d more", n-maxPending)
		}
		add(Finding{Code: ConfigPending}, "%s for a restart: %s",
			number(n, "changed setting waits", "changed settings wait"), names)
	}
}

// maxPending is how many settings a finding names.
const maxPending = 5

type adder = func(f Finding, format string, args ...any)

// seconds is the time that the past covers, at least 1.
func (v *view) seconds() int {
	return max(1, int(v.At.Sub(v.seen[0].At).Round(time.Second)/time.Second))
}

// before is what was known of an app at the beginning of the past.
func (v *view) before(app string) App {
	for _, a := range v.seen[0].Apps {
		if a.Name == app {
			return a
		}
	}
	return App{}
}

// What is named one by one: the longest of each app, and so many in all.
const (
	maxLong    = 20
	maxLongApp = 2
)

func (v *view) sessionUses(add adder) {
	if v.HeldLong <= 0 {
		return
	}
	n, of, more := 0, map[string]int{}, map[string]int{}
	for _, h := range v.SessionUses {
		if h.Held >= v.HeldLong {
			more[h.App]++
		}
	}
	for _, h := range v.SessionUses {
		if h.Held < v.HeldLong || n == maxLong || of[h.App] == maxLongApp {
			continue
		}
		n++
		of[h.App]++
		what, trace := "a call", ""
		if h.Transaction && h.Busy {
			what = "a transaction"
		} else if h.Transaction {
			what = "a transaction, in which nothing runs now"
		}
		if h.Trace != "" {
			trace = ", trace " + h.Trace
		}
		app := h.App
		if app == "" {
			app = "unknown"
		}
		others := ""
		if k := more[h.App] - maxLongApp; k > 0 && of[h.App] == maxLongApp {
			others = fmt.Sprintf("; %d more of its sessions have been held for long, too", k)
		}
		add(Finding{Code: HeldLong, App: h.App, Node: h.Node, Trace: h.Trace, Session: h.Session},
			"app %s has held session %s on node %d for %s, with %s%s%s", app, h.Session, h.Node, Span(h.Held), what, trace, others)
	}
}

func number(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Span writes a duration for people: two or three digits that count.
func Span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.2g ms", max(0.01, float64(d)/float64(time.Millisecond)))
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	default:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
}
