package peers

import (
	"fmt"
	"strings"
)

// goal is one line of the table of goals.
type goal struct {
	measure       string
	goal, stretch float64
	atLeast       bool // more is better
	unit          string
	applies       func(Scenario) bool
	value         func(r *Report, s Scenario, subject string) (float64, bool) // false: it was not measured
}

// Judged is a goal with what was measured. The worst scenario decides.
type Judged struct {
	Measure string             `json:"measure"`
	Goal    string             `json:"goal"`
	Stretch string             `json:"stretch"`
	Values  map[string]float64 `json:"values"` // by scenario
	Worst   string             `json:"worst,omitempty"`
	Verdict string             `json:"verdict"`
}

// The verdicts.
const (
	beyond  = "stretch met"
	met     = "met"
	missed  = "missed"
	unknown = "not measured"
)

// goals are those of a face; without a stretch it is 0.
func goals(of face) []goal {
	if of != wireFace {
		return plainGoals(of)
	}
	closed := func(counts ...int) func(Scenario) bool {
		return func(s Scenario) bool {
			for _, n := range counts {
				if s.TLS == nowhere && !s.bulk() && s.Rate == 0 && s.InFlight == n {
					return true
				}
			}
			return false
		}
	}
	rate := func(least int) func(Scenario) bool {
		return func(s Scenario) bool { return s.TLS == nowhere && s.Rate >= least }
	}
	either := func(one, other func(Scenario) bool) func(Scenario) bool {
		return func(s Scenario) bool { return one(s) || other(s) }
	}
	var (
		cpu   = func(m Measured) float64 { return float64(m.CPU) }
		p50   = func(m Measured) float64 { return float64(m.P50) }
		p99   = func(m Measured) float64 { return float64(m.P99) }
		speed = func(m Measured) float64 { return m.PerSecond }
	)
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
			goal{measure: "CPU per call, " + row.load + ", of " + haproxy, goal: row.ofHAProxy, stretch: row.beyondHAProx, applies: row.applies, value: ratio(cpu, haproxy)},
			goal{measure: "CPU per call, " + row.load + ", of " + envoy, goal: row.ofEnvoy, stretch: row.beyondEnvoy, applies: row.applies, value: ratio(cpu, envoy)})
	}
	return append(all,
		goal{measure: "p50 at 1, 16, 64 in flight and 5,000/s, of " + haproxy, goal: 1.0, stretch: 0.85, applies: either(closed(1, 16, 64), rate(5000)), value: ratio(p50, haproxy)},
		goal{measure: "p99 at 16-64 in flight, of " + envoy, goal: 1.0, stretch: 0.85, applies: closed(16, 64), value: ratio(p99, envoy)},
		goal{measure: "added p50 over direct, of what " + haproxyTCP + " adds", goal: 1.3, stretch: 1.1, applies: either(closed(1, 16, 64), rate(1)), value: added(p50)},
		goal{measure: "added p99 over direct, of what " + haproxyTCP + " adds", goal: 1.5, stretch: 1.2, applies: either(closed(1, 16, 64), rate(1)), value: added(p99)},
		goal{measure: "calls/s at 64 in flight, of direct", goal: 0.85, stretch: 0.90, atLeast: true, applies: closed(64), value: ratio(speed, direct)},
		goal{measure: "anonymous memory at 64 in flight", goal: 25, stretch: 15, unit: " MB", applies: closed(64),
			value: func(r *Report, s Scenario, subject string) (float64, bool) {
				m, ok := r.median(s, subject)
				return float64(m.Anonymous) / 1e6, ok
			}},
		goal{measure: "TLS on both sides, CPU per call, of " + envoy, goal: 0.60, stretch: 0.40, applies: func(s Scenario) bool { return s.TLS == both }, value: ratio(cpu, envoy)},
		goal{measure: "TLS to the nodes alone, CPU per call with 64 in flight, of " + envoy, goal: 0.35, stretch: 0.25, applies: func(s Scenario) bool { return s.TLS == toNodes && s.InFlight == 64 }, value: ratio(cpu, envoy)},
		goal{measure: "streams of 0.3 and 3 MB, throughput, of direct", goal: 0.60, stretch: 0.80, atLeast: true,
			applies: func(s Scenario) bool { return s.bulk() && s.Rows == 0 }, value: ratio(speed, direct)},
		goal{measure: "stream of 100,000 rows, throughput, of direct", goal: 0.95, stretch: 1.05, atLeast: true, applies: manyRowed, value: ratio(speed, direct)},
	)
}

func manyRowed(s Scenario) bool { return s.Rows > 0 }

// plainGoals are those of the plain API.
func plainGoals(of face) []goal {
	unary := func(inFlight int) func(Scenario) bool {
		return func(s Scenario) bool { return s.TLS == nowhere && !s.Stream && s.Rate == 0 && s.InFlight == inFlight }
	}
	cpu := func(m Measured) float64 { return float64(m.CPU) }
	p50 := func(m Measured) float64 { return float64(m.P50) }
	p99 := func(m Measured) float64 { return float64(m.P99) }
	speed := func(m Measured) float64 { return m.PerSecond }
	ofEnvoy := func(inFlight int, most, stretch float64) goal {
		return goal{measure: fmt.Sprintf("CPU per call, %d in flight, of what %s takes to forward the same statements", inFlight, envoy), goal: most, stretch: stretch, applies: unary(inFlight), value: ratio(cpu, envoy)}
	}
	if of == webFace {
		return []goal{
			ofEnvoy(64, 0.80, 0.50), ofEnvoy(1, 1.0, 0.75),
			{measure: "CPU per call, 64 in flight, of plain gRPC's", goal: 1.3, applies: unary(64), value: func(r *Report, s Scenario, subject string) (float64, bool) {
				return ratio(cpu, strings.TrimSuffix(subject, webFace.suffix())+plainFace.suffix())(r, s, subject)
			}},
			{measure: "p50, 1 in flight, of direct", goal: 1.8, stretch: 1.5, applies: unary(1), value: ratio(p50, direct)},
			{measure: "stream of 100,000 rows, throughput, of direct", goal: 1.5, stretch: 1.66, atLeast: true, applies: manyRowed, value: ratio(speed, direct)},
		}
	}
	rate := func(s Scenario) bool { return s.TLS == nowhere && s.Rate == 2000 }
	return []goal{
		ofEnvoy(64, 0.45, 0.25), ofEnvoy(16, 0.50, 0.30), ofEnvoy(1, 0.90, 0.60),
		{measure: "p50, 1 in flight, of direct", goal: 1.6, stretch: 1.4, applies: unary(1), value: ratio(p50, direct)},
		{measure: "added p50 over direct at 2,000/s, of what " + haproxyTCP + " adds", goal: 2.5, stretch: 2, applies: rate, value: added(p50)},
		{measure: "added p99 over direct at 2,000/s, of what " + haproxyTCP + " adds", goal: 3, applies: rate, value: added(p99)},
		{measure: "stream of 100,000 rows, throughput, of direct", goal: 1.2, stretch: 1.34, atLeast: true, applies: manyRowed, value: ratio(speed, direct)},
	}
}

// ratio is a figure of the subject's divided by that of another target.
func ratio(figure func(Measured) float64, of string) func(*Report, Scenario, string) (float64, bool) {
	return func(r *Report, s Scenario, subject string) (float64, bool) {
		a, ok := r.median(s, subject)
		b, both := r.median(s, of)
		if !ok || !both || figure(b) == 0 {
			return 0, false
		}
		return figure(a) / figure(b), true
	}
}

// least is the share of direct's latency that copying octets must add for a ratio to
// it to mean something: in a closed loop that fills the machine it may add nothing.
const least = 0.1

// added is what the subject adds to direct's latency, divided by what copying octets adds.
func added(figure func(Measured) float64) func(*Report, Scenario, string) (float64, bool) {
	return func(r *Report, s Scenario, subject string) (float64, bool) {
		a, ok := r.median(s, subject)
		floor, both := r.median(s, haproxyTCP)
		none, all := r.median(s, direct)
		if !ok || !both || !all || figure(floor)-figure(none) < least*figure(none) {
			return 0, false
		}
		return (figure(a) - figure(none)) / (figure(floor) - figure(none)), true
	}
}

// judge compares a subject with a goal.
func (g goal) judge(r *Report, subject string) Judged {
	sign := "<="
	if g.atLeast {
		sign = ">="
	}
	j := Judged{Measure: g.measure, Goal: fmt.Sprintf("%s %g%s", sign, g.goal, g.unit), Stretch: "-", Values: map[string]float64{}, Verdict: unknown}
	if g.stretch != 0 {
		j.Stretch = fmt.Sprintf("%s %g%s", sign, g.stretch, g.unit)
	}
	for _, s := range r.Scenarios {
		if !g.applies(s) {
			continue
		}
		value, ok := g.value(r, s, subject)
		if !ok {
			continue
		}
		j.Values[s.Name] = value
		if j.Worst == "" || g.worse(value, j.Values[j.Worst]) {
			j.Worst = s.Name
		}
	}
	if j.Worst == "" {
		return j
	}
	switch worst := j.Values[j.Worst]; {
	case g.stretch != 0 && !g.worse(worst, g.stretch):
		j.Verdict = beyond
	case !g.worse(worst, g.goal):
		j.Verdict = met
	default:
		j.Verdict = missed
	}
	return j
}

func (g goal) worse(a, b float64) bool {
	if g.atLeast {
		return a < b
	}
	return a > b
}

// shown writes the values of a goal, the worst one in bold.
func (j Judged) shown(scenarios []Scenario) string {
	var all []string
	for _, s := range scenarios {
		value, ok := j.Values[s.Name]
		if !ok {
			continue
		}
		text := fmt.Sprintf("%s %.2f", s.Name, value)
		if s.Name == j.Worst {
			text = "**" + text + "**"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
