package wire

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Modes of wire.mode.
const (
	ModeOff         = "off"
	ModePassthrough = "passthrough"
	ModeSession     = "session"
	ModeTransaction = "transaction"
)

// Where implicit sessions are, for wire.implicit.
const (
	ImplicitPool     = "pool"
	ImplicitUpstream = "upstream"
)

// Config is the section "wire".
type Config struct {
	// Mode of YDB's own protocol on the gRPC port: off, transaction, session or passthrough. transaction:
	// SDKs get virtual sessions, which take a session of the pool for each statement or transaction.
	// session: they take it for their whole life. passthrough: SDKs keep sessions of their own, and each
	// call goes to the home node of its session
	Mode string `yaml:"mode"`
	// Mode for sessions of one application (header x-ydb-application-name), in place of wire.mode:
	// `name=mode`, with transaction, session or passthrough
	Apps []string `yaml:"apps"`
	// Address that ListEndpoints returns to SDKs, host:port. Empty: the address that the client dialed
	Advertise string `yaml:"advertise"`

	// The rest is for modes transaction and session.

	// Further databases that the same nodes serve, besides that of ydb.url. Calls to other databases are
	// UNAUTHORIZED
	Databases []string `yaml:"databases"`
	// Credentials of SDK calls at the cluster. caller: those of the call, with a pool for each identity.
	// With ydb.cert_file a call without a ticket is rejected, in mode passthrough, too. own: the sidecar's
	// credentials, for all clients that reach its port
	Auth string `yaml:"auth"`
	// Way of an ExecuteQuery without a session: pool (it takes a session of the pool), or upstream (it
	// goes to any node as it is)
	Implicit string `yaml:"implicit"`
	// Sessions for calls of the table service: shared (sessions of the query service, for one limit), or
	// own (for servers that reject that)
	TableSessions string `yaml:"table_sessions"`
	// Largest number of virtual sessions of SDKs. A further one takes the place of an idle one, else of
	// one on the connection with the most, else it is OVERLOADED; 1 to 1000000
	Sessions int `yaml:"max_virtual_sessions"`
	// Largest number of sessions on the nodes for the pools of all callers together, each of which has at
	// most pool.max; 1 to 60000
	ServerSessions int `yaml:"max_server_sessions"`
}

// Whose credentials, for wire.auth.
const (
	AuthCaller = "caller"
	AuthOwn    = "own"
)

// Sessions of the table service, for wire.table_sessions.
const (
	TableSessionsShared = "shared"
	TableSessionsOwn    = "own"
)

// Default returns the defaults.
func Default() Config {
	return Config{Mode: ModeTransaction, Auth: AuthCaller, Implicit: ImplicitPool, TableSessions: TableSessionsShared,
		Sessions: 10_000, ServerSessions: 1000}
}

// Virtual reports whether sessions of SDKs are the sidecar's own.
func (c Config) Virtual() bool { return c.Mode == ModeTransaction || c.Mode == ModeSession }

// appModes is c.Apps by name.
func (c Config) appModes() (map[string]string, error) {
	modes := map[string]string{}
	for _, app := range c.Apps {
		name, mode, ok := strings.Cut(app, "=")
		if !ok || name == "" || !slices.Contains([]string{ModeTransaction, ModeSession, ModePassthrough}, mode) {
			return nil, config.Faultf("apps", " = %.100q; must be name=mode, with mode %s, %s or %s", app, ModeTransaction,
				ModeSession, ModePassthrough)
		}
		modes[name] = mode
	}
	return modes, nil
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	if !slices.Contains([]string{ModeOff, ModePassthrough, ModeSession, ModeTransaction}, c.Mode) {
		errs = append(errs,
			config.Faultf("mode", " = %q; must be %s, %s, %s or %s", c.Mode, ModeOff, ModePassthrough, ModeSession, ModeTransaction))
	}
	if _, err := c.appModes(); err != nil {
		errs = append(errs, err)
	}
	if c.Auth != AuthCaller && c.Auth != AuthOwn {
		errs = append(errs, config.Faultf("auth", " = %q; must be %s or %s", c.Auth, AuthCaller, AuthOwn))
	}
	if c.TableSessions != TableSessionsShared && c.TableSessions != TableSessionsOwn {
		errs = append(errs,
			config.Faultf("table_sessions", " = %q; must be %s or %s", c.TableSessions, TableSessionsShared, TableSessionsOwn))
	}
	for _, database := range c.Databases {
		if !strings.HasPrefix(database, "/") {
			errs = append(errs, config.Faultf("databases", " = %q; each must begin with /", database))
		}
	}
	if c.ServerSessions < 1 || c.ServerSessions > 60_000 {
		errs = append(errs, config.Faultf("max_server_sessions", " = %d; must be between 1 and 60000", c.ServerSessions))
	}
	if c.Implicit != ImplicitPool && c.Implicit != ImplicitUpstream {
		errs = append(errs, config.Faultf("implicit", " = %q; must be %s or %s", c.Implicit, ImplicitPool, ImplicitUpstream))
	}
	if c.Sessions < 1 || c.Sessions > 1_000_000 {
		errs = append(errs, config.Faultf("max_virtual_sessions", " = %d; must be between 1 and 1000000", c.Sessions))
	}
	if c.Advertise != "" {
		if _, _, ok := hostPort(c.Advertise); !ok {
			errs = append(errs, config.Faultf("advertise", " = %q; must be host:port", c.Advertise))
		}
	}
	return errors.Join(errs...)
}

// DataPath is the section "data_path".
type DataPath struct {
	// Number of independent forwarders among which connections are spread. More than one helps only when
	// one processor is not enough; 1 to 64
	Shards int `yaml:"shards"`
	// Age at which a client connection of the gRPC port is asked to reconnect (GOAWAY), up to 10 % earlier
	// at random, so that a withdrawn certificate expires. Open calls, streams and transactions then have a
	// minute. 0: never; else 1m to 720h
	MaxAge time.Duration `yaml:"max_age"`
}

// DefaultDataPath returns the defaults.
func DefaultDataPath() DataPath { return DataPath{Shards: 1} }

// Validate reports every fault of c.
func (c DataPath) Validate() error {
	if c.Shards < 1 || c.Shards > 64 {
		return config.Faultf("shards", " = %d; must be between 1 and 64", c.Shards)
	}
	if c.MaxAge != 0 && (c.MaxAge < time.Minute || c.MaxAge > 720*time.Hour) {
		return config.Faultf("max_age", " = %v; must be 0, or between 1m and 720h", c.MaxAge)
	}
	return nil
}
