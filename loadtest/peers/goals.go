package peers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// goal is one line of the table of goals.
type goal struct {
	measure       string
	goal, stretch float64
	atLeast       bool // more is better
	unit          string
	applies       func(Scenario) bool
	value         func(r results, s Scenario, subject string) (float64, bool) // false: it was not measured
}

// closed is scenarios of small calls without TLS, with one of the counts in flight.
func closed(counts ...int) func(Scenario) bool {
	return func(s Scenario) bool {
		return s.TLS == nowhere && !s.bulk() && s.Rate == 0 && slices.Contains(counts, s.InFlight)
	}
}

// rate is scenarios without TLS at a rate, of at least that many calls a second.
func rate(least int) func(Scenario) bool {
	return func(s Scenario) bool { return s.TLS == nowhere && s.Rate >= least }
}

// either is scenarios of one kind or the other.
func either(one, other func(Scenario) bool) func(Scenario) bool {
	return func(s Scenario) bool { return one(s) || other(s) }
}

// goals are those of an API; without a stretch it is 0.
func goals(of api) []goal {
	if of != ydbAPI {
		return plainGoals(of)
	}
	all := []goal{}
	for _, row := range []struct {
		load                    string
		applies                 func(Scenario) bool
		ofHAProxy, beyondHAProx float64
		ofEnvoy, beyondEnvoy    float64
	}{
		{"64 in flight", closed(64), 0.45, 0.35, 0.25, 0.15},
		{"16 in flight", closed(16), 0.55, 0.45, 0.35, 0.22},
		{"1 in flight", closed(1), 0.75, 0.65, 0.42, 0.30},
		{"2,000-5,000 calls/s", rate(1), 1.2, 0.85, 0.65, 0.45},
	} {
		all = append(all,
			goal{measure: "CPU per call, " + row.load + ", of " + haproxy, goal: row.ofHAProxy,
				stretch: row.beyondHAProx, applies: row.applies, value: ratio(lab.CPU, haproxy)},
			goal{measure: "CPU per call, " + row.load + ", of " + envoy, goal: row.ofEnvoy, stretch: row.beyondEnvoy,
				applies: row.applies, value: ratio(lab.CPU, envoy)})
	}
	return append(all,
		goal{measure: "p50 at 1, 16, 64 in flight and 5,000/s, of " + haproxy, goal: 1.0, stretch: 0.85,
			applies: either(closed(1, 16, 64), rate(5000)), value: ratio(lab.P50, haproxy)},
		goal{measure: "p99 at 16-64 in flight, of " + envoy, goal: 1.0, stretch: 0.85, applies: closed(16, 64),
			value: ratio(lab.P99, envoy)},
		goal{measure: "added p50 over direct, of what " + haproxyTCP + " adds", goal: 1.3, stretch: 1.1,
			applies: either(closed(1, 16, 64), rate(1)), value: added(lab.P50)},
		goal{measure: "added p99 over direct, of what " + haproxyTCP + " adds", goal: 1.5, stretch: 1.2,
			applies: either(closed(1, 16, 64), rate(1)), value: added(lab.P99)},
		goal{measure: "calls/s at 64 in flight, of direct", goal: 0.85, stretch: 0.90, atLeast: true,
			applies: closed(64), value: ratio(lab.PerSecond, direct)},
		goal{measure: "anonymous memory at 64 in flight", goal: 25, stretch: 15, unit: " MB", applies: closed(64),
			value: func(r results, s Scenario, subject string) (float64, bool) {
				x, ok := r.figure(s, subject, anonymous)
				return x / 1e6, ok
			}},
		goal{measure: "TLS on both sides, CPU per call, of " + envoy, goal: 0.60, stretch: 0.40,
			applies: func(s Scenario) bool { return s.TLS == both }, value: ratio(lab.CPU, envoy)},
		goal{measure: "TLS to the nodes alone, CPU per call with 64 in flight, of " + envoy, goal: 0.35, stretch: 0.25,
			applies: func(s Scenario) bool { return s.TLS == toNodes && s.InFlight == 64 }, value: ratio(lab.CPU, envoy)},
		goal{measure: "streams of 0.3 and 3 MB, throughput, of direct", goal: 0.60, stretch: 0.80, atLeast: true,
			applies: func(s Scenario) bool { return s.bulk() && s.Rows == 0 }, value: ratio(lab.PerSecond, direct)},
		goal{measure: "stream of 100,000 rows, throughput, of direct", goal: 0.95, stretch: 1.05, atLeast: true,
			applies: manyRowed, value: ratio(lab.PerSecond, direct)},
	)
}

func manyRowed(s Scenario) bool { return s.Rows > 0 }

// plainGoals are those of the plain API.
func plainGoals(of api) []goal {
	unary := func(inFlight int) func(Scenario) bool {
		return func(s Scenario) bool { return s.TLS == nowhere && !s.Stream && s.Rate == 0 && s.InFlight == inFlight }
	}
	ofEnvoy := func(inFlight int, most, stretch float64) goal {
		return goal{measure: fmt.Sprintf("CPU per call, %d in flight, of what %s takes to forward the same statements", inFlight, envoy),
			goal: most, stretch: stretch, applies: unary(inFlight), value: ratio(lab.CPU, envoy)}
	}
	if of == webAPI {
		return []goal{
			ofEnvoy(64, 0.80, 0.50), ofEnvoy(1, 1.0, 0.75),
			{measure: "CPU per call, 64 in flight, of plain gRPC's", goal: 1.3, applies: unary(64),
				value: func(r results, s Scenario, subject string) (float64, bool) {
					return ratio(lab.CPU, strings.TrimSuffix(subject, webAPI.suffix())+plainAPI.suffix())(r, s, subject)
				}},
			{measure: "p50, 1 in flight, of direct", goal: 1.8, stretch: 1.5, applies: unary(1), value: ratio(lab.P50, direct)},
			{measure: "stream of 100,000 rows, throughput, of direct", goal: 1.5, stretch: 1.66, atLeast: true,
				applies: manyRowed, value: ratio(lab.PerSecond, direct)},
		}
	}
	rate := func(s Scenario) bool { return s.TLS == nowhere && s.Rate == 2000 }
	return []goal{
		ofEnvoy(64, 0.45, 0.25), ofEnvoy(16, 0.50, 0.30), ofEnvoy(1, 0.90, 0.60),
		{measure: "p50, 1 in flight, of direct", goal: 1.6, stretch: 1.4, applies: unary(1), value: ratio(lab.P50, direct)},
		{measure: "added p50 over direct at 2,000/s, of what " + haproxyTCP + " adds", goal: 2.5, stretch: 2,
			applies: rate, value: added(lab.P50)},
		{measure: "added p99 over direct at 2,000/s, of what " + haproxyTCP + " adds", goal: 3, applies: rate, value: added(lab.P99)},
		{measure: "stream of 100,000 rows, throughput, of direct", goal: 1.2, stretch: 1.34, atLeast: true,
			applies: manyRowed, value: ratio(lab.PerSecond, direct)},
	}
}

// results are the tables of the scenarios.
type results struct {
	scenarios []Scenario
	tables    map[string]*lab.Table // by scenario
}

// figure returns the median of a target's figure. Without any call that succeeded there is none.
func (r results) figure(s Scenario, target, figure string) (float64, bool) {
	row := r.tables[s.Name].Row(target)
	if row == nil || row.Calls == row.Failed {
		return 0, false
	}
	e, ok := row.Figures[figure]
	return e.Median, ok
}

// ratio is a figure of the subject's divided by that of another target.
func ratio(figure, of string) func(results, Scenario, string) (float64, bool) {
	return func(r results, s Scenario, subject string) (float64, bool) {
		a, ok := r.figure(s, subject, figure)
		b, both := r.figure(s, of, figure)
		if !ok || !both || b == 0 {
			return 0, false
		}
		return a / b, true
	}
}

// least is the share of direct's latency that copying bytes must add for a ratio to
// it to mean something: in a closed loop that fills the machine it may add nothing.
const least = 0.1

// added is what the subject adds to direct's latency, divided by what copying bytes adds.
func added(figure string) func(results, Scenario, string) (float64, bool) {
	return func(r results, s Scenario, subject string) (float64, bool) {
		a, ok := r.figure(s, subject, figure)
		floor, both := r.figure(s, haproxyTCP, figure)
		none, all := r.figure(s, direct, figure)
		if !ok || !both || !all || floor-none < least*none {
			return 0, false
		}
		return (a - none) / (floor - none), true
	}
}

// judge adds the goals of an own target, and whether they are met, to the report.
func (r results) judge(l *lab.Lab, t *target) {
	table := lab.NewTable(lab.Case{Name: "goals-" + t.Name, Title: "Goals: " + t.Name}, nil)
	for _, g := range goals(t.api) {
		g.judge(r, t.Name, table)
	}
	l.Report.Add(lab.Section{Table: table})
}

// judge compares a subject with a goal. The worst scenario decides.
func (g goal) judge(r results, subject string, into *lab.Table) {
	var worst lab.Estimate
	var all []string
	for _, s := range r.scenarios {
		if !g.applies(s) {
			continue
		}
		value, ok := g.value(r, s, subject)
		if !ok {
			continue
		}
		all = append(all, fmt.Sprintf("%s %.2f", s.Name, value))
		if worst.N == 0 || g.worse(value, worst.Median) {
			worst = lab.Estimate{Median: value, Low: value, High: value, N: 1}
		}
	}
	text := g.measure
	if len(all) > 1 {
		text += ": the worst of " + strings.Join(all, ", ")
	}
	sign := "<="
	if g.atLeast {
		sign = ">="
	}
	into.Judge(text, fmt.Sprintf("%s %g%s", sign, g.goal, g.unit), !g.worse(worst.Median, g.goal), worst)
	if g.stretch != 0 {
		into.Judge(g.measure+", stretch", fmt.Sprintf("%s %g%s", sign, g.stretch, g.unit), !g.worse(worst.Median, g.stretch), worst)
	}
}

func (g goal) worse(a, b float64) bool {
	if g.atLeast {
		return a < b
	}
	return a > b
}
