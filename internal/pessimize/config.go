package pessimize

import (
	"errors"
	"fmt"
	"time"
)

// Config is the section "health" of the configuration.
// Wide: each field is one setting of the section.
type Config struct {
	TransportFailures int `yaml:"transport_failures"` // transport errors in a row, without a success between, that eject a node
	Refusals          int `yaml:"refusals"`           // refusals in a row, without a success between, that eject a node
	// share of calls refused within 2 s that ejects a node, when at least 20 were refused; 0..1
	RefusalShare  float64       `yaml:"refusal_share"`
	RefusalMin    int           `yaml:"refusal_min"`    // least number of refusals within refusal_window for refusal_share to count
	RefusalWindow time.Duration `yaml:"refusal_window"` // time over which refusal_share is taken
	// a node whose calls of a kind take so many times what they take on the other nodes, median
	// against the median of medians, is ejected; with two nodes never, with three from 10 times
	LatencyFactor float64       `yaml:"latency_factor"`
	LatencyFloor  time.Duration `yaml:"latency_floor"` // latency below which no node counts as slow, however fast the others are
	// newest calls of a kind whose median counts; fewer raise a doubt that probes settle
	LatencyMin    int           `yaml:"latency_min"`
	LatencyWindow time.Duration `yaml:"latency_window"` // age of the oldest of them
	// share of the nodes ejected for refusals or latency from which neither ejects more; of three
	// nodes always one may be; 0..0.5
	SoftMax float64 `yaml:"soft_max"`
	// time in which the load of a node that joins, or returns after an ejection or a drain, rises
	// from 10 % of its share to all; 0 is off
	SlowStart     time.Duration `yaml:"slow_start"`
	Ejection      time.Duration `yaml:"ejection"`       // time without calls after the first ejection; doubles with each repeat
	EjectionMax   time.Duration `yaml:"ejection_max"`   // longest time without calls
	Forgive       time.Duration `yaml:"forgive"`        // good behaviour that takes back one repeat
	ProbeInterval time.Duration `yaml:"probe_interval"` // time between failed probes; also how long a suspect may be silent
	ProbeTimeout  time.Duration `yaml:"probe_timeout"`  // longest wait for the answer to a probe
	Probes        int           `yaml:"probes"`         // good probes in a row that bring a node back
	// time without a call after which a node gets a probe, at most one node a second; 0 is off
	IdleProbe time.Duration `yaml:"idle_probe"`
	// a connection with calls outstanding that brings no byte for so long gets a ping, and one
	// unanswered within probe_timeout counts as a transport error; 0 is off
	Silence time.Duration `yaml:"silence"`
	// a node shuts down when it says so, refuses sessions for it, or asks for several at once;
	// off: only discovery says that nodes leave
	Shutdown bool          `yaml:"shutdown"`
	Leaving  time.Duration `yaml:"leaving"` // time after a shutdown hint at which a node that is still listed is probed
	// time for which a node that left discovery is remembered; tx.max and a minute at least
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
			errs = append(errs, fmt.Errorf("%s = %d; must be >= 1", n.name, n.value))
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
			errs = append(errs, fmt.Errorf("%s = %v; must be >= 1ms", d.name, d.value))
		}
	}
	must := func(holds bool, format string, args ...any) {
		if !holds {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	must(c.LatencyMin >= latencyLeast && c.LatencyMin <= 1000,
		"latency_min = %d; must be %d to 1000: fewer bound no median", c.LatencyMin, latencyLeast)
	must(c.LatencyWindow >= beat, "latency_window = %v; must be >= %v", c.LatencyWindow, beat)
	must(c.LatencyFactor >= 2 && c.LatencyFactor <= 1000, "latency_factor = %v; must be 2 to 1000", c.LatencyFactor)
	must(c.SoftMax >= 0 && c.SoftMax <= 0.5, "soft_max = %v; must be 0 to 0.5", c.SoftMax)
	must(c.SlowStart == 0 || c.SlowStart >= 100*time.Millisecond, "slow_start = %v; must be >= 100ms, or 0 for off", c.SlowStart)
	must(c.IdleProbe == 0 || c.IdleProbe >= time.Second, "idle_probe = %v; must be >= 1s, or 0 for off", c.IdleProbe)
	must(c.RefusalShare > 0 && c.RefusalShare <= 1, "refusal_share = %v; must be above 0 and at most 1", c.RefusalShare)
	must(c.Silence == 0 || c.Silence >= 100*time.Millisecond, "silence = %v; must be >= 100ms, or 0 for off", c.Silence)
	must(c.EjectionMax >= c.Ejection, "ejection_max = %v; must be >= ejection = %v", c.EjectionMax, c.Ejection)
	return errors.Join(errs...)
}
