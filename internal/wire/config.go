package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
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
	// YDB's own protocol on the gRPC port: off; transaction (sessions of SDKs are the sidecar's
	// own, and have a session of the pool for a statement or a transaction); session (the same,
	// for their whole life); or passthrough (an SDK's own sessions, each call routed to the node
	// that owns its session)
	Mode string `yaml:"mode"`
	// name=mode for sessions of the application of that name (header x-ydb-application-name), if
	// not wire.mode: transaction, session or passthrough
	Apps      []string `yaml:"apps"`
	Advertise string   `yaml:"advertise"` // host:port that ListEndpoints names in place of what the client dialled; empty: that

	// The rest is for modes transaction and session.
	Databases []string `yaml:"databases"` // served beside that of ydb.url, by the same nodes; others are UNAUTHORIZED
	// whose credentials calls go to the cluster with: caller (its own, and a pool for each
	// identity; with ydb.cert_file a call without a ticket is refused, in mode passthrough, too),
	// or own (the sidecar's, for everybody who reaches its port)
	Auth string `yaml:"auth"`
	// ExecuteQuery without a session: pool (takes a session of the pool), or upstream (goes to any
	// node as it is)
	Implicit string `yaml:"implicit"`
	// of calls of the table service: shared (those of the query service, for one limit), or own
	// (for servers that refuse that)
	TableSessions string `yaml:"table_sessions"`
	// sessions of SDKs at a time; beyond, one that nobody uses makes room, else one of the
	// connection that has most, else the new one is OVERLOADED; 1 to 1000000
	Sessions int `yaml:"max_virtual_sessions"`
	// sessions on the nodes, of the pools of all callers together, each of which has at most
	// pool.max; 1 to 60000
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
			return nil, fmt.Errorf("apps = %.100q; must be name=mode, with mode %s, %s or %s", app, ModeTransaction,
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
			fmt.Errorf("mode = %q; must be %s, %s, %s or %s", c.Mode, ModeOff, ModePassthrough, ModeSession, ModeTransaction))
	}
	if _, err := c.appModes(); err != nil {
		errs = append(errs, err)
	}
	if c.Auth != AuthCaller && c.Auth != AuthOwn {
		errs = append(errs, fmt.Errorf("auth = %q; must be %s or %s", c.Auth, AuthCaller, AuthOwn))
	}
	if c.TableSessions != TableSessionsShared && c.TableSessions != TableSessionsOwn {
		errs = append(errs, fmt.Errorf("table_sessions = %q; must be %s or %s", c.TableSessions, TableSessionsShared, TableSessionsOwn))
	}
	for _, database := range c.Databases {
		if !strings.HasPrefix(database, "/") {
			errs = append(errs, fmt.Errorf("databases = %q; each must begin with /", database))
		}
	}
	if c.ServerSessions < 1 || c.ServerSessions > 60_000 {
		errs = append(errs, fmt.Errorf("max_server_sessions = %d; must be between 1 and 60000", c.ServerSessions))
	}
	if c.Implicit != ImplicitPool && c.Implicit != ImplicitUpstream {
		errs = append(errs, fmt.Errorf("implicit = %q; must be %s or %s", c.Implicit, ImplicitPool, ImplicitUpstream))
	}
	if c.Sessions < 1 || c.Sessions > 1_000_000 {
		errs = append(errs, fmt.Errorf("max_virtual_sessions = %d; must be between 1 and 1000000", c.Sessions))
	}
	if c.Advertise != "" {
		if _, _, ok := hostPort(c.Advertise); !ok {
			errs = append(errs, fmt.Errorf("advertise = %q; must be host:port", c.Advertise))
		}
	}
	return errors.Join(errs...)
}

// DataPath is the section "data_path".
type DataPath struct {
	// independent forwarders among which connections are dealt; more than one pays only when one
	// processor is not enough; 1 to 64
	Shards int `yaml:"shards"`
	// a client of the gRPC port is told to come again (GOAWAY) when its connection is so old, less
	// up to a tenth of that by chance: a withdrawn certificate serves no longer. Calls, streams
	// and transactions that are open have a minute, then they break. 0: it may stay; else 1m to
	// 720h
	MaxAge time.Duration `yaml:"max_age"`
}

// DefaultDataPath returns the defaults.
func DefaultDataPath() DataPath { return DataPath{Shards: 1} }

// Validate reports every fault of c.
func (c DataPath) Validate() error {
	if c.Shards < 1 || c.Shards > 64 {
		return fmt.Errorf("shards = %d; must be between 1 and 64", c.Shards)
	}
	if c.MaxAge != 0 && (c.MaxAge < time.Minute || c.MaxAge > 720*time.Hour) {
		return fmt.Errorf("max_age = %v; must be 0, or between 1m and 720h", c.MaxAge)
	}
	return nil
}
