package app

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/wire"
	"github.com/ydb-sidecar/sidecar/internal/xds"
)

// EnvPrefix begins the name of every setting in the environment.
const EnvPrefix = "SIDECAR_"

// FileVariable names the file of settings where no flag does. It is no setting. Commands that run beside a sidecar,
// such as those of kubectl exec, have its environment but not its arguments: by this variable they read its settings.
const FileVariable = EnvPrefix + "CONFIG"

// Config nests the settings of all parts. Its yaml tags are the names that
// people use: see internal/config. Wide: it has a field for each section.
type Config struct {
	YDB         upstream.Config      `yaml:"ydb"`
	Discovery   discovery.Config     `yaml:"discovery"`
	Pool        pool.Config          `yaml:"pool"`
	Apps        apps.Config          `yaml:"apps"`
	Routing     routing.Config       `yaml:"routing"`
	Health      pessimize.Config     `yaml:"health"`
	Retry       upstream.RetryConfig `yaml:"retry"`
	Facade      facade.Config        `yaml:",inline"` // api.*, tx.*, http.hosts
	GRPC        GRPC                 `yaml:"grpc"`
	HTTP        HTTP                 `yaml:"http"`
	Wire        wire.Config          `yaml:"wire"`
	DataPath    wire.DataPath        `yaml:"data_path"`
	Admin       admin.Config         `yaml:"admin"`
	XDS         xds.Config           `yaml:"xds"`
	Connections Connections          `yaml:"connections"`
	Startup     Startup              `yaml:"startup"`
	Drain       Drain                `yaml:"drain"`
	Takeover    takeover.Config      `yaml:"takeover"`
	Memory      memguard.Config      `yaml:"memory"`
	Reload      Reload               `yaml:"reload"`
	Log         telemetry.LogConfig  `yaml:"log"`
	Tracing     tracing.Config       `yaml:"tracing"`
	Access      accesslog.Config     `yaml:"log"` // Another part of the section log
	Telemetry   telemetry.Config     `yaml:"telemetry"`
	Statements  statements.Config    `yaml:"statements"`
}

// GRPC is what the gRPC listener needs beside the API's own settings.
type GRPC struct {
	Listen string `yaml:"listen"` // Address of the gRPC API, host:port; port 0 takes a free one
	// Path of a further Unix socket of the gRPC API, plaintext, under the rules of http.socket. Empty: off
	Socket string       `yaml:"socket"`
	TLS    certs.Server `yaml:",inline"`
}

// HTTP is what the HTTP listener needs beside the API's own settings.
type HTTP struct {
	Listen string `yaml:"listen"` // Address of the HTTP API, host:port; port 0 takes a free one
	// Path of a further Unix socket of the HTTP API. Its directory must exist, and its permissions decide which users may connect;
	// apps.users maps them to apps. Empty: off
	Socket        string        `yaml:"socket"`
	HeaderTimeout time.Duration `yaml:"header_timeout"` // Longest wait for the headers of a request
	IdleTimeout   time.Duration `yaml:"idle_timeout"`   // Idle time after which a connection is closed
	TLS           certs.Server  `yaml:",inline"`
}

// Connections bounds those of apps, which cost a descriptor each before they have said a
// word. Those of operators and probes have a bound of their own: listen.AdminConnections.
type Connections struct {
	// Largest number of open connections on one listener of apps (grpc, http, their sockets, xds); all listeners together take twice
	// as many. A further connection replaces the oldest one without a request, or is closed itself, and a metric counts it. If the
	// limit of open files is too low for both bounds, they are lowered with a warning: the sidecar keeps 25 % of it, at most 1024, and
	// three files for each operator connection. admin.listen, admin.probes and admin.socket take 64 connections each besides these
	Each  int `yaml:"each"`
	Total int `yaml:"total"` // Largest number of open connections on all listeners of apps together. 0: twice connections.each
}

func (c Connections) validate() error {
	var errs []error
	if c.Each < 1 || c.Each > 1_000_000 {
		errs = append(errs, config.Faultf("each", " = %d; must be 1 to 1000000", c.Each))
	}
	if c.Total < 0 || c.Total > 1_000_000 {
		errs = append(errs, config.Faultf("total", " = %d; must be 0 to 1000000", c.Total))
	}
	return errors.Join(errs...)
}

// total returns how many connections all listeners of apps together may have.
func (c Connections) total() int { return cmp.Or(c.Total, 2*c.Each) }

// Startup says when the sidecar counts as started.
type Startup struct {
	Wait time.Duration `yaml:"wait"` // Longest time for which /startupz waits for a usable node and pool.min sessions
}

// Drain bounds the end.
type Drain struct {
	Delay time.Duration `yaml:"delay"` // Time after SIGTERM in which the sidecar is not ready and still serves everything
	Grace time.Duration `yaml:"grace"` // Time after drain.delay in which open calls and transactions may finish
	// Idle time after which an open transaction is rolled back while the sidecar drains, or tx.idle if that is less
	Idle time.Duration `yaml:"idle"`
}

// Default returns the defaults of all parts.
func Default() Config {
	return Config{
		YDB:         upstream.Default(),
		Discovery:   discovery.Default(),
		Pool:        pool.Default(),
		Apps:        apps.Default(),
		Routing:     routing.Default(),
		Health:      pessimize.Default(),
		Retry:       upstream.DefaultRetry(),
		Facade:      facade.Default(),
		GRPC:        GRPC{Listen: "127.0.0.1:7400"},
		HTTP:        HTTP{Listen: "127.0.0.1:7401", HeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute},
		Wire:        wire.Default(),
		DataPath:    wire.DefaultDataPath(),
		Admin:       admin.Default(),
		XDS:         xds.Default(),
		Connections: Connections{Each: 10_000},
		Startup:     Startup{Wait: 5 * time.Second},
		Drain:       Drain{Grace: 25 * time.Second, Idle: 20 * time.Second},
		Memory:      memguard.Default(),
		Reload:      Reload{Interval: time.Second},
		Log:         telemetry.DefaultLog(),
		Tracing:     tracing.Default(),
		Access:      accesslog.Default(),
		Telemetry:   telemetry.Default(),
	}
}

// Validate returns all faults of all parts, each a *config.Fault with the full name
// of its setting where it concerns one.
func (c Config) Validate() error {
	var errs []error
	named := map[string]string{}
	for _, one := range []struct{ setting, path string }{
		{"grpc.socket", c.GRPC.Socket}, {"http.socket", c.HTTP.Socket}, {"admin.socket", c.Admin.Socket},
		{"takeover.socket", c.Takeover.Socket},
	} {
		if other := named[one.path]; one.path != "" && other != "" {
			errs = append(errs, config.Faultf(one.setting, " = %q; must be another path than that of %s", one.path, other))
		}
		named[one.path] = one.setting
	}
	for _, part := range []struct {
		section string
		err     error
	}{
		{"ydb.", c.YDB.Validate()},
		{"discovery.", c.Discovery.Validate()},
		{"pool.", c.Pool.Validate()},
		{"apps.", c.Apps.Validate()},
		{"routing.", c.Routing.Validate()},
		{"health.", c.Health.Validate()},
		{"retry.", c.Retry.Validate()},
		{"", c.Facade.Validate()},
		{"grpc.", c.GRPC.validate()},
		{"http.", c.HTTP.validate()},
		{"wire.", c.Wire.Validate()},
		{"data_path.", c.DataPath.Validate()},
		{"admin.", c.Admin.Validate()},
		{"xds.", c.XDS.Validate()},
		{"connections.", c.Connections.validate()},
		{"startup.", positive("wait", c.Startup.Wait)},
		{"drain.", errors.Join(positive("delay", c.Drain.Delay), positive("grace", c.Drain.Grace), positive("idle", c.Drain.Idle))},
		{"takeover.", c.Takeover.Validate()},
		{"memory.", c.Memory.Validate()},
		{"reload.", c.Reload.validate()},
		{"log.", c.Log.Validate()},
		{"tracing.", c.Tracing.Validate()},
		{"log.", c.Access.Validate()},
		{"telemetry.", c.Telemetry.Validate()},
	} {
		errs = append(errs, config.Under(part.section, part.err))
	}
	return errors.Join(errs...)
}

func (c GRPC) validate() error {
	return errors.Join(address("listen", c.Listen), socketPath(c.Socket), c.TLS.Validate())
}

// maxSocket is how long the path of a Unix socket may be, with room for what
// openAPISocket appends: in bytes.
const maxSocket = 90

func socketPath(path string) error {
	if path != "" && (!filepath.IsAbs(path) || strings.HasSuffix(path, "/") || len(path) > maxSocket) {
		return config.Faultf("socket", " = %.100q; must be an absolute path of a file, of at most %d bytes, or empty", path, maxSocket)
	}
	return nil
}

func (c HTTP) validate() error {
	errs := []error{address("listen", c.Listen), socketPath(c.Socket), c.TLS.Validate()}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"header_timeout", c.HeaderTimeout}, {"idle_timeout", c.IdleTimeout}} {
		if d.value < time.Millisecond {
			errs = append(errs, config.Faultf(d.name, " = %v; must be >= 1ms", d.value))
		}
	}
	return errors.Join(errs...)
}

func address(name, value string) error {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return config.Faultf(name, " = %q; must be host:port, the port at most 65535", value)
	}
	return nil
}

func positive(name string, d time.Duration) error {
	if d < 0 {
		return config.Faultf(name, " = %v; must be >= 0", d)
	}
	return nil
}

// FaultLine writes all faults of a configuration in one line.
func FaultLine(err error) string {
	faults := config.Faults(err)
	texts := make([]string, len(faults))
	for i, f := range faults {
		texts[i] = strings.Join(strings.Fields(f.Error()), " ")
	}
	return strings.Join(texts, "; ")
}

// Assignment is one setting from the command line.
type Assignment struct {
	Setting string // "name=value"
	Source  string // the flag, for errors and for /config
}

// Load lays file (if it is not ""), the SIDECAR_ variables of environ and then
// assignments over the defaults, and checks the whole. The error joins all
// faults of all layers.
func Load(file string, environ []string, assignments []Assignment) (*Config, *config.Settings, error) {
	c, settings, sources, err := lay(file, environ, assignments)
	if c == nil {
		return nil, nil, err
	}
	if err := errors.Join(sources, err, located(settings, c.Validate())); err != nil {
		return nil, nil, err
	}
	settings.Warn("tx.idle", c.Facade.Tx.Doubt())
	return c, settings, nil
}

// located puts the place where a setting was set before each fault of one.
func located(settings *config.Settings, err error) error {
	var errs []error
	for _, fault := range config.Faults(err) {
		if of, ok := errors.AsType[*config.Fault](fault); ok && settings.Source(of.Setting) != "" {
			fault = fmt.Errorf("%s: %w", settings.Source(of.Setting), fault)
		}
		errs = append(errs, fault)
	}
	return errors.Join(errs...)
}

// ErrUnplaced is the error of LoadAdmin where a fault may hide the place of the sidecar.
var ErrUnplaced = errors.New("which sidecar is meant is not sure; give -socket or -admin")

// LoadAdmin returns the section admin for a command that operates a running sidecar,
// which must work while the configuration is broken. It reads what Load reads, but
// validates nothing. Faults of the file and of the environment are returned in ignored;
// the settings they concern keep the value of the layer below. The error joins the
// faults of assignments. Where a fault may hide the place of the sidecar, and neither
// the environment nor assignments name it, that is ErrUnplaced: the command would
// operate the sidecar at the default address.
func LoadAdmin(file string, environ []string, assignments []Assignment) (c admin.Config, ignored, err error) {
	all, settings, ignored, err := lay(file, environ, assignments)
	if err != nil {
		return admin.Config{}, nil, err
	}
	if settings.Doubtful("admin.") && !placed(settings, assignments) {
		return admin.Config{}, nil, fmt.Errorf("%s: %w", FaultLine(ignored), ErrUnplaced)
	}
	return all.Admin, ignored, nil
}

// placed reports whether the environment or assignments name the place of the admin API.
func placed(settings *config.Settings, assignments []Assignment) bool {
	return slices.ContainsFunc(settings.List(), func(s config.Setting) bool {
		return (s.Name == "admin.listen" || s.Name == "admin.socket") && s.Value != "" &&
			(s.Source == config.EnvironmentName(EnvPrefix, s.Name) ||
				slices.ContainsFunc(assignments, func(a Assignment) bool { return a.Source == s.Source }))
	})
}

// retired are settings that the next version rejects, with a warning, and what counts in their
// place then. Those that still have a field count until then; the others have no effect.
var retired = map[string]string{
	"data_path.driver": "there is one way to carry calls of YDB's protocol",

	"ydb.client":            "the data path carries the sidecar's own calls",
	"ydb.keepalive_timeout": "health.probe_timeout counts, or 5s with health.silence=0",
	"ydb.discovery_timeout": "ydb.connect_timeout counts",

	"discovery.min_pause": "it is 500ms",
	"discovery.retry_min": "it is 500ms",
	"discovery.retry_max": "it is 4s",

	"pool.queue_age":          "no caller waits longer than 1m; deadlines and pool.shed end most waits earlier",
	"pool.queue_target":       "pool.shed keeps the queue short when calls are lost",
	"pool.create_burst":       "16 openings at a time on a node, fewer after failures",
	"pool.delete_timeout":     "it is 2s",
	"pool.move_rate":          "at most a fifth of pool.max moves in a second",
	"pool.adaptive_floor":     "two sessions may always be used",
	"pool.shares.interactive": "it is 20 %; apps.limits has weights",
	"pool.shares.normal":      "it is 10 %; apps.limits has weights",
	"pool.shares.batch":       "it is 5 %; apps.limits has weights",

	"health.refusal_min":    "it is 20 refusals",
	"health.refusal_window": "it is 2s",
	"health.latency_min":    "it is 20 calls",
	"health.latency_window": "it is 10s",
	"health.forgive":        "it is 1m",
	"health.probe_interval": "it is 1s",
	"health.probes":         "two good probes in a row bring a node back",
	"health.leaving":        "it is 1m",
	"health.forget":         "it is 6m, or tx.max and a minute if that is longer",

	"retry.burst":        "pool.max counts",
	"api.max_depth":      "it is 32",
	"api.max_params":     "it is 1000; api.max_body bounds the request",
	"api.max_statements": "it is 1000; api.max_body bounds the request",
	"api.max_groups":     "it is 64",
	"api.batch_parallel": "it is 4; sessions= in apps.limits allows an app fewer",
	"api.cache_ttl":      "it is 1m",
	"api.cache_size":     "it is 10000, and 16 MiB of memory",
	"api.statuses":       "errors have the statuses of docs/reference/errors.md",
	"kv.max_id":          "it is 1 KiB",
	"kv.max_ids":         "it is 100",
	"tx.replay":          "it is 16 KiB",
	"ingest.idle":        "it is 10m",

	"wire.implicit":       "such a call takes a session of the pool; with wire.mode=passthrough it may go to any node",
	"wire.table_sessions": "sessions of the query service serve both services",

	"xds.max_streams":   "it is 2000",
	"memory.large":      "it is 64 KiB",
	"connections.total": "it is twice connections.each",
}

// bound returns the settings of c, with the retired ones marked.
func bound(c *Config) (*config.Settings, error) {
	settings, err := config.Bind(c)
	if err != nil {
		return nil, err
	}
	for name, why := range retired {
		settings.Retire(name, why)
	}
	return settings, nil
}

// lay lays the layers of Load over the defaults. It returns the faults of file and
// environ in sources, those of assignments in err.
func lay(file string, environ []string, assignments []Assignment) (c *Config, settings *config.Settings, sources, err error) {
	all := Default()
	settings, err = bound(&all)
	if err != nil {
		return nil, nil, nil, err
	}
	if file != "" {
		sources = settings.File(file)
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(v string) bool { return strings.HasPrefix(v, FileVariable+"=") })
	sources = errors.Join(sources, settings.Environ(EnvPrefix, environ))
	var errs []error
	for _, a := range assignments {
		name, _, _ := strings.Cut(a.Setting, "=")
		if name = strings.TrimSpace(name); strings.HasPrefix(a.Source, "-") && settings.IsSecret(name) {
			errs = append(errs,
				fmt.Errorf(
					"%s: %s is a secret, and every user of this machine can read a command line: put it into %s, "+
						"into the file of settings, or into a file of its own where there is a setting for that",
					a.Source, name, config.EnvironmentName(EnvPrefix, name),
				))
			continue
		}
		errs = append(errs, settings.Assign(a.Setting, a.Source))
	}
	return &all, settings, sources, errors.Join(errs...)
}
