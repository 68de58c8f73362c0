package admin

import (
	"errors"
	"fmt"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The values of Config.Control.
const (
	ControlPeer   = "peer"
	ControlToken  = "token"
	ControlSocket = "socket"
)

// Config is the section "admin" of the configuration.
type Config struct {
	Listen string `yaml:"listen"` // host:port of this API; port 0 takes a free one
	Socket string `yaml:"socket"` // path of a Unix socket of this API, for this user and root only; "" is off
	// who may drain, ban and so on over TCP: peer (programs of this user and of root on this
	// machine, and whoever has the token) | token (whoever has it) | socket (no program does); over
	// admin.socket each may
	Control   string `yaml:"control"`
	Token     string `yaml:"token"`      // bearer token that admits to control over TCP; "" admits no program
	TokenFile string `yaml:"token_file"` // a file with it instead, read at each use
	// host:port that serves the three probes and nothing else, for a kubelet, which cannot reach
	// loopback; "" is off
	Probes string       `yaml:"probes"`
	TLS    certs.Server `yaml:",inline"` // of listen; admin.probes and the socket are plaintext
	Pprof  bool         `yaml:"pprof"`   // serve profiles at /debug/pprof/
	// where the page links traces to: an http or https URL with {trace_id} in it; "": it does not
	TraceLink string `yaml:"trace_link"`

	// serve /metrics on admin.probes as well, for a Prometheus, which cannot reach loopback either
	ProbesMetrics bool `yaml:"probes_metrics"`

	// a session that one caller holds for longer is a finding, and named in the log once; 0: never
	HeldLong time.Duration `yaml:"held_long"`
}

// Default returns the defaults.
func Default() Config {
	return Config{Listen: "127.0.0.1:7402", Control: ControlPeer, HeldLong: 10 * time.Second}
}

// maxSocket is how long a path of a Unix socket may be on every system, in bytes.
const maxSocket = 103

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(!isAddress(c.Listen), "listen = %q; must be host:port, the port at most 65535", c.Listen)
	fault(c.Probes != "" && !isAddress(c.Probes), "probes = %q; must be host:port, the port at most 65535, or empty", c.Probes)
	fault(c.ProbesMetrics && c.Probes == "", "probes_metrics = on; needs probes")
	fault(c.Socket != "" && (!filepath.IsAbs(c.Socket) || strings.HasSuffix(c.Socket, "/")),
		"socket = %q; must be an absolute path of a file, or empty", c.Socket)
	fault(len(c.Socket) > maxSocket, "socket = %.40q...; must be at most %d bytes long", c.Socket, maxSocket)
	fault(c.Control != ControlPeer && c.Control != ControlToken && c.Control != ControlSocket,
		"control = %q; must be %s, %s or %s", c.Control, ControlPeer, ControlToken, ControlSocket)
	fault(c.TraceLink != "" && !isTraceLink(c.TraceLink),
		"trace_link = %.100q; must be an http or https URL with %s in its path or query, such as "+
			"https://jaeger.example/trace/%[2]s, or empty",
		c.TraceLink, traceID)
	fault(c.Token != "" && c.TokenFile != "", "token and token_file are both set; want one")
	fault(c.Control == ControlToken && c.Token == "" && c.TokenFile == "", "control = token; needs token or token_file")
	fault(c.Control == ControlSocket && c.Socket == "", "control = socket; needs socket")
	fault(c.HeldLong != 0 && c.HeldLong < time.Second, "held_long = %v; must be 0 or at least 1s", c.HeldLong)
	return errors.Join(append(errs, c.TLS.Validate())...)
}

// traceID stands for the id of a trace in Config.TraceLink.
const traceID = "{trace_id}"

func isTraceLink(text string) bool {
	before, _, found := strings.Cut(text, traceID)
	u, err := url.Parse(before)
	_, rest := url.Parse(strings.ReplaceAll(text, traceID, "0"))
	return found && err == nil && rest == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil &&
		u.Path+u.RawQuery+u.Fragment != "" // else the id would be part of the host's name
}

func isAddress(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// BearerToken returns the token as it is now; "": none is set.
func (c Config) BearerToken() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	text, err := config.ReadFile(c.TokenFile, config.MaxToken)
	if err != nil {
		return "", fmt.Errorf("admin.token_file: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
