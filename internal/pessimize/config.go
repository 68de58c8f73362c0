package pessimize

import (
	"errors"
	"fmt"
	"time"
)

// Config is the section "health" of the configuration.
type Config struct {
	TransportFailures int           `yaml:"transport_failures"` // transport errors in a row, without a success between, that eject a node
	Refusals          int           `yaml:"refusals"`           // refusals in a row, without a success between, that eject a node
	RefusalShare      float64       `yaml:"refusal_share"`      // share of refused calls within refusal_window that ejects a node; 0..1
	RefusalMin        int           `yaml:"refusal_min"`        // refusals within refusal_window below which refusal_share says nothing
	RefusalWindow     time.Duration `yaml:"refusal_window"`     // time over which refusal_share is taken
	Ejection          time.Duration `yaml:"ejection"`           // time without calls after the first ejection; doubles with each repeat
	EjectionMax       time.Duration `yaml:"ejection_max"`       // longest time without calls
	Forgive           time.Duration `yaml:"forgive"`            // good behaviour that takes back one repeat
	ProbeInterval     time.Duration `yaml:"probe_interval"`     // time between failed probes; also how long a suspect may be silent
	ProbeTimeout      time.Duration `yaml:"probe_timeout"`      // longest wait for the answer to a probe
	Probes            int           `yaml:"probes"`             // good probes in a row that bring a node back
	Silence           time.Duration `yaml:"silence"`            // a connection with calls outstanding that brings no byte for so long gets a probe call on it, and one unanswered within probe_timeout counts as a transport error; 0 is off
	Leaving           time.Duration `yaml:"leaving"`            // time after a shutdown hint at which a node that is still listed is probed
	Forget            time.Duration `yaml:"forget"`             // time for which a node that left discovery is remembered; tx.max and a minute at least
}

// Default returns the defaults.
func Default() Config {
	return Config{
		TransportFailures: 2,
		Refusals:          5,
		RefusalShare:      0.5,
		RefusalMin:        20,
		RefusalWindow:     2 * time.Second,
		Ejection:          time.Second,
		EjectionMax:       time.Minute,
		Forgive:           time.Minute,
		ProbeInterval:     time.Second,
		ProbeTimeout:      time.Second,
		Probes:            2,
		Silence:           2 * time.Second,
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
	if !(c.RefusalShare > 0 && c.RefusalShare <= 1) {
		errs = append(errs, fmt.Errorf("refusal_share = %v; must be above 0 and at most 1", c.RefusalShare))
	}
	if c.Silence != 0 && c.Silence < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("silence = %v; must be >= 100ms, or 0 for off", c.Silence))
	}
	if c.EjectionMax < c.Ejection {
		errs = append(errs, fmt.Errorf("ejection_max = %v; must be >= ejection = %v", c.EjectionMax, c.Ejection))
	}
	return errors.Join(errs...)
}
