package routing

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Forward and Fail are the values of Config.OwnerUnreachable.
const (
	Forward = "forward"
	Fail    = "fail"
)

// The values of Config.Zone that are not names of zones.
const (
	ZoneAny     = "any"
	ZoneLocal   = "local"
	ZoneNearest = "nearest"
)

// Config is the section "routing" of the configuration.
type Config struct {
	// Send each call to the home node of its session. off sends it to a random node, to measure what this
	// saves
	Affinity bool `yaml:"affinity"`
	// Largest number of open calls on one node. Further calls go to other nodes or are rejected
	MaxCallsPerNode int `yaml:"max_calls_per_node"`
	// Handling of calls of an open transaction whose node is alive in discovery but cannot be reached
	// from here: forward (by another node) or fail
	OwnerUnreachable string `yaml:"owner_unreachable"`
	// Longest wait for the answer of a call that another node forwards to its session's home node. It
	// counts for each part over the plain API, and for the first part over YDB's protocol. 0: no limit,
	// the call ends only when that node leaves the cluster
	ForwardSilence time.Duration `yaml:"forward_silence"`
	// Zones that get new load first: any, local, nearest (by the time of a TCP connect), or names with
	// commas between. Other zones get the load that these have no room for
	Zone string `yaml:"zone"`
	// Zone of this host, for routing.zone=local. Empty: the zone of the first node that answered discovery
	LocalZone string `yaml:"local_zone"`
}

// Default returns the defaults.
func Default() Config {
	return Config{Affinity: true, MaxCallsPerNode: 1000, OwnerUnreachable: Forward, ForwardSilence: 5 * time.Second, Zone: ZoneAny}
}

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var errs []error
	if c.MaxCallsPerNode < 1 {
		errs = append(errs, config.Faultf("max_calls_per_node", " = %d; must be >= 1", c.MaxCallsPerNode))
	}
	if c.OwnerUnreachable != Forward && c.OwnerUnreachable != Fail {
		errs = append(errs, config.Faultf("owner_unreachable", " = %q; must be %s or %s", c.OwnerUnreachable, Forward, Fail))
	}
	if c.ForwardSilence < 0 {
		errs = append(errs, config.Faultf("forward_silence", " = %v; must be >= 0", c.ForwardSilence))
	}
	if names := c.names(); slices.Contains(names, "") || len(names) > 1 && slices.ContainsFunc(names, word) {
		errs = append(errs,
			config.Faultf("zone", " = %q; must be %s, %s, %s, or names of zones with commas between them", c.Zone, ZoneAny,
				ZoneLocal, ZoneNearest))
	}
	return errors.Join(errs...)
}

// names splits Config.Zone.
func (c Config) names() []string {
	names := strings.Split(c.Zone, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// word reports whether name is not the name of a zone.
func word(name string) bool { return name == ZoneAny || name == ZoneLocal || name == ZoneNearest }
