package pessimize

import (
	"errors"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Config is the section "health" of the configuration.
// Wide: each field is one setting of the section.
type Config struct {
	TransportFailures int `yaml:"transport_failures"` // Number of transport errors in a row that eject a node
	Refusals          int `yaml:"refusals"`           // Number of overload errors in a row that eject a node
	// Share of calls that end with overload errors within 2 s and eject a node, once it has 20 of them; 0
	// to 1
	RefusalShare float64 `yaml:"refusal_share"`
	// Smallest number of overload errors within health.refusal_window for health.refusal_share to count
	RefusalMin    int           `yaml:"refusal_min"`
	RefusalWindow time.Duration `yaml:"refusal_window"` // Time over which health.refusal_share is measured
	// Times by which the median latency of a node exceeds the median of the other nodes when it is
	// ejected. With two nodes it never is, with three from 10 times on
	LatencyFactor float64 `yaml:"latency_factor"`
	// Latency below which no node counts as slow, however fast the others are
	LatencyFloor time.Duration `yaml:"latency_floor"`
	// Number of calls of a kind whose median counts. Fewer calls make a node suspect, and probes settle it
	LatencyMin    int           `yaml:"latency_min"`
	LatencyWindow time.Duration `yaml:"latency_window"` // Age of the oldest calls whose median counts
	// Share of nodes ejected for overload errors or latency above which no further node is. With three
	// nodes, one always may be; 0 to 0.5
	SoftMax float64 `yaml:"soft_max"`
	// Time in which the load of a node rises from 10 % of its share to all of it, after it joins, or
	// returns from an ejection or a drain. 0: off
	SlowStart   time.Duration `yaml:"slow_start"`
	Ejection    time.Duration `yaml:"ejection"`     // Length of the first ejection; each repeat doubles it
	EjectionMax time.Duration `yaml:"ejection_max"` // Longest ejection
	// Time of good behavior that takes back one repeat of an ejection
	Forgive time.Duration `yaml:"forgive"`
	// Time between failed probes, and longest silence of a suspect node
	ProbeInterval time.Duration `yaml:"probe_interval"`
	ProbeTimeout  time.Duration `yaml:"probe_timeout"` // Longest wait for the answer to a probe
	Probes        int           `yaml:"probes"`        // Number of good probes in a row that bring a node back
	// Time without a call after which a node gets a probe, at most one node a second. 0: off
	IdleProbe time.Duration `yaml:"idle_probe"`
	// Time without a byte after which a connection with open calls gets a ping. A ping unanswered for
	// health.probe_timeout counts as a transport error. 0: off
	Silence time.Duration `yaml:"silence"`
	// Drain a node as soon as it announces its shutdown, rejects sessions for it, or closes several
	// sessions at once for it. off: only discovery reports nodes that leave
	Shutdown bool `yaml:"shutdown"`
	// Time after a shutdown hint at which a node that is still listed is probed
	Leaving time.Duration `yaml:"leaving"`
	// Time for which a node that left discovery is remembered, at least tx.max and a minute
	Forget time.Duration `yaml:"forget"`
}

// latencyLeast is the least number of calls that bound a median: see ranks.
const latencyLeast = 13

// Default returns the defaults.
func Default() Config {
	return Config{
		TransportFailures: 2,
		Refusals:          5,
		RefusalShare:      0.5,
		RefusalMin:        20,
		RefusalWindow:     2 * time.Second,
		LatencyFactor:     5,
		LatencyFloor:      10 * time.Millisecond,
		LatencyMin:        20,
		LatencyWindow:     10 * time.Second,
		SoftMax:           0.3,
		SlowStart:         10 * time.Second,
		Ejection:          time.Second,
		EjectionMax:       time.Minute,
		Forgive:           time.Minute,
		ProbeInterval:     time.Second,
		ProbeTimeout:      time.Second,
		Probes:            2,
		IdleProbe:         30 * time.Second,
		Silence:           2 * time.Second,
		Shutdown:          true,
		Leaving:           time.Minute,
		Forget:            6 * time.Minute,
	}
}

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var errs []error
	for _, n := range []struct {
		name  string
		value int
	}{
		{"transport_failures", c.TransportFailures},
		{"refusals", c.Refusals},
		{"refusal_min", c.RefusalMin},
		{"probes", c.Probes},
	} {
		if n.value < 1 {
			errs = append(errs, config.Faultf(n.name, " = %d; must be >= 1", n.value))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"refusal_window", c.RefusalWindow},
		{"latency_floor", c.LatencyFloor},
		{"ejection", c.Ejection},
		{"ejection_max", c.EjectionMax},
		{"forgive", c.Forgive},
		{"probe_interval", c.ProbeInterval},
		{"probe_timeout", c.ProbeTimeout},
		{"leaving", c.Leaving},
		{"forget", c.Forget},
	} {
		if d.value < time.Millisecond {
			errs = append(errs, config.Faultf(d.name, " = %v; must be >= 1ms", d.value))
		}
	}
	must := func(holds bool, setting, format string, args ...any) {
		if !holds {
			errs = append(errs, config.Faultf(setting, format, args...))
		}
	}
	must(c.LatencyMin >= latencyLeast && c.LatencyMin <= 1000,
		"latency_min", " = %d; must be %d to 1000: fewer bound no median", c.LatencyMin, latencyLeast)
	must(c.LatencyWindow >= beat, "latency_window", " = %v; must be >= %v", c.LatencyWindow, beat)
	must(c.LatencyFactor >= 2 && c.LatencyFactor <= 1000, "latency_factor", " = %v; must be 2 to 1000", c.LatencyFactor)
	must(c.SoftMax >= 0 && c.SoftMax <= 0.5, "soft_max", " = %v; must be 0 to 0.5", c.SoftMax)
	must(c.SlowStart == 0 || c.SlowStart >= 100*time.Millisecond, "slow_start", " = %v; must be >= 100ms, or 0 for off", c.SlowStart)
	must(c.IdleProbe == 0 || c.IdleProbe >= time.Second, "idle_probe", " = %v; must be >= 1s, or 0 for off", c.IdleProbe)
	must(c.RefusalShare > 0 && c.RefusalShare <= 1, "refusal_share", " = %v; must be above 0 and at most 1", c.RefusalShare)
	must(c.Silence == 0 || c.Silence >= 100*time.Millisecond, "silence", " = %v; must be >= 100ms, or 0 for off", c.Silence)
	must(c.EjectionMax >= c.Ejection, "ejection_max", " = %v; must be >= ejection = %v", c.EjectionMax, c.Ejection)
	return errors.Join(errs...)
}
