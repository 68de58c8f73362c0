package admin

import (
	"errors"
	"fmt"
	"net"
)

// Config is the section "admin" of the configuration.
type Config struct {
	Listen string `yaml:"listen"` // host:port of this API; port 0 takes a free one
	Probes string `yaml:"probes"` // host:port that serves the three probes and nothing else, for a kubelet, which cannot reach loopback; "" is off
	Pprof  bool   `yaml:"pprof"`  // serve profiles at /debug/pprof/
}

// Default returns the defaults.
func Default() Config { return Config{Listen: "127.0.0.1:7402"} }

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var errs []error
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("listen = %q; must be host:port", c.Listen))
	}
	if _, _, err := net.SplitHostPort(c.Probes); err != nil && c.Probes != "" {
		errs = append(errs, fmt.Errorf("probes = %q; must be host:port or empty", c.Probes))
	}
	return errors.Join(errs...)
}
