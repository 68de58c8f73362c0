package routing

import (
	"errors"
	"fmt"
)

// Forward and Fail are the values of Config.OwnerUnreachable.
const (
	Forward = "forward"
	Fail    = "fail"
)

// Config is the section "routing" of the configuration.
type Config struct {
	Affinity         bool   `yaml:"affinity"`           // send each call to the node that owns its session; off sends it to a random node, to measure what this saves
	MaxCallsPerNode  int    `yaml:"max_calls_per_node"` // calls that may be open on one node at a time; what exceeds it goes elsewhere or is refused
	OwnerUnreachable string `yaml:"owner_unreachable"`  // forward | fail: calls of an open transaction whose node is alive in discovery but cannot be reached from here
}

// Default returns the defaults.
func Default() Config {
	return Config{Affinity: true, MaxCallsPerNode: 1000, OwnerUnreachable: Forward}
}

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var errs []error
	if c.MaxCallsPerNode < 1 {
		errs = append(errs, fmt.Errorf("max_calls_per_node = %d; must be >= 1", c.MaxCallsPerNode))
	}
	if c.OwnerUnreachable != Forward && c.OwnerUnreachable != Fail {
		errs = append(errs, fmt.Errorf("owner_unreachable = %q; must be %s or %s", c.OwnerUnreachable, Forward, Fail))
	}
	return errors.Join(errs...)
}
