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
	Listen string `yaml:"listen"` // Address of the admin API, host:port; port 0 takes a free one
	// Path of the admin API's Unix socket, for this user and root only. Empty: off
	Socket string `yaml:"socket"`
	// Clients that may drain, ban and so on over TCP: peer (programs of this user and of root on this
	// machine, and clients with the token), token (clients with the token) or socket (none). Over
	// admin.socket each client may
	Control string `yaml:"control"`
	// Bearer token that allows control over TCP. Empty: no token does
	Token string `yaml:"token"`
	// File with the bearer token, read at each use, in place of admin.token
	TokenFile string `yaml:"token_file"`
	// Address that serves only the three probes, host:port, for a kubelet, which cannot reach loopback.
	// Empty: off
	Probes string       `yaml:"probes"`
	TLS    certs.Server `yaml:",inline"` // of listen; admin.probes and the socket are plaintext
	Pprof  bool         `yaml:"pprof"`   // Serve profiles at /debug/pprof/
	// URL of a trace in your tracing system, http or https, with {trace_id} in it; the page links to it.
	// Empty: no links
	TraceLink string `yaml:"trace_link"`

	// Serve /metrics on admin.probes as well, for a Prometheus, which cannot reach loopback
	ProbesMetrics bool `yaml:"probes_metrics"`

	// Time after which a session that one caller holds is a finding and is logged once. 0: never
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
	fault := func(bad bool, setting, format string, args ...any) {
		if bad {
			errs = append(errs, config.Faultf(setting, format, args...))
		}
	}
	fault(!isAddress(c.Listen), "listen", " = %q; must be host:port, the port at most 65535", c.Listen)
	fault(c.Probes != "" && !isAddress(c.Probes), "probes", " = %q; must be host:port, the port at most 65535, or empty", c.Probes)
	fault(c.ProbesMetrics && c.Probes == "", "probes_metrics", " = on; needs probes")
	fault(c.Socket != "" && (!filepath.IsAbs(c.Socket) || strings.HasSuffix(c.Socket, "/")),
		"socket", " = %q; must be an absolute path of a file, or empty", c.Socket)
	fault(len(c.Socket) > maxSocket, "socket", " = %.40q...; must be at most %d bytes long", c.Socket, maxSocket)
	fault(c.Control != ControlPeer && c.Control != ControlToken && c.Control != ControlSocket,
		"control", " = %q; must be %s, %s or %s", c.Control, ControlPeer, ControlToken, ControlSocket)
	fault(c.TraceLink != "" && !isTraceLink(c.TraceLink),
		"trace_link", " = %.100q; must be an http or https URL with %s in its path or query, such as "+
			"https://jaeger.example/trace/%[2]s, or empty",
		c.TraceLink, traceID)
	fault(c.Token != "" && c.TokenFile != "", "token", " and token_file are both set; want one")
	fault(c.Control == ControlToken && c.Token == "" && c.TokenFile == "", "control", " = token; needs token or token_file")
	fault(c.Control == ControlSocket && c.Socket == "", "control", " = socket; needs socket")
	fault(c.HeldLong != 0 && c.HeldLong < time.Second, "held_long", " = %v; must be 0 or at least 1s", c.HeldLong)
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
