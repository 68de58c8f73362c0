package wire

import (
	"errors"
	"fmt"
	"slices"
)

// Modes of wire.mode.
const (
	ModeOff         = "off"
	ModePassthrough = "passthrough"
)

// Config is the section "wire".
type Config struct {
	Mode      string `yaml:"mode"`      // YDB's own protocol on the gRPC port: off, or passthrough (an SDK's own sessions, each call routed to the node that owns its session)
	Advertise string `yaml:"advertise"` // host:port that ListEndpoints names in place of what the client dialled; empty: that
}

// Default returns the defaults.
func Default() Config { return Config{Mode: ModeOff} }

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	if !slices.Contains([]string{ModeOff, ModePassthrough}, c.Mode) {
		errs = append(errs, fmt.Errorf("mode = %q; must be %s or %s", c.Mode, ModeOff, ModePassthrough))
	}
	if c.Advertise != "" {
		if _, _, ok := hostPort(c.Advertise); !ok {
			errs = append(errs, fmt.Errorf("advertise = %q; must be host:port", c.Advertise))
		}
	}
	return errors.Join(errs...)
}

// Drivers of data_path.driver.
const (
	DriverGoroutine = "goroutine"
	DriverGRPC      = "grpc"
)

// DataPath is the section "data_path".
type DataPath struct {
	Driver string `yaml:"driver"` // what carries calls of YDB's protocol: goroutine (frames, forwarded as they are), or grpc (a slower fallback)
	Shards int    `yaml:"shards"` // independent forwarders among which connections are dealt; more than one pays only when one processor is not enough; 1 to 64
}

// DefaultDataPath returns the defaults.
func DefaultDataPath() DataPath { return DataPath{Driver: DriverGoroutine, Shards: 1} }

// Validate reports every fault of c.
func (c DataPath) Validate() error {
	var errs []error
	if !slices.Contains([]string{DriverGoroutine, DriverGRPC}, c.Driver) {
		errs = append(errs, fmt.Errorf("driver = %q; must be %s or %s", c.Driver, DriverGoroutine, DriverGRPC))
	}
	if c.Shards < 1 || c.Shards > 64 {
		errs = append(errs, fmt.Errorf("shards = %d; must be between 1 and 64", c.Shards))
	}
	return errors.Join(errs...)
}
