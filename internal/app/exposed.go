package app

import (
	"net"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/listen"
)

// warnOpen says which listeners other machines can reach, and what protects each.
func (a *App) warnOpen() {
	for _, one := range []struct {
		setting  string
		listener *listen.Listener
		protects string
	}{
		{"grpc.listen", a.listeners.GRPC, a.protects(a.config.GRPC.TLS)},
		{"http.listen", a.listeners.HTTP, a.protects(a.config.HTTP.TLS)},
		{"admin.listen", a.listeners.Admin,
			secrecy(a.config.Admin.TLS) + "; every program that reaches it may read metrics and state, and " +
				map[string]string{
					admin.ControlPeer: "clients with admin.token may control", admin.ControlToken: "clients with admin.token may control",
					admin.ControlSocket: "no client may control",
				}[a.config.Admin.Control]},
		{"admin.probes", a.listeners.Probes, "it answers probes and nothing else, in plaintext"},
		{"xds.address", a.listeners.XDS, secrecy(a.config.XDS.TLS) + "; " + map[bool]string{
			true:  "clients need the token of xds.token or xds.token_file",
			false: "clients that reach it learn the addresses of all nodes: set client_ca_file or xds.token",
		}[a.config.XDS.HasToken()]},
	} {
		if one.listener == nil {
			continue
		}
		at, ok := one.listener.Addr().(*net.TCPAddr)
		if ok && at.IP.IsLoopback() {
			continue
		}
		a.log.Warn("other machines can reach a listener: it is not on a loopback address", "setting", one.setting,
			"address", one.listener.Addr().String(), "protection", one.protects)
	}
}

// protects says what stands between other machines and the API of a listener.
func (a *App) protects(s certs.Server) string {
	parts := []string{secrecy(s)}
	switch {
	case a.core.apps.HasTokens():
		parts = append(parts, "the plain API needs a token of apps.token")
	case s.ClientCAFile == "":
		parts = append(parts, "clients need not prove anything: set client_ca_file beside cert_file, or apps.token")
	}
	return strings.Join(parts, "; ")
}

// secrecy says what the TLS of a listener is.
func secrecy(s certs.Server) string {
	switch {
	case s.ClientCAFile != "":
		return "TLS, and only clients with a certificate of client_ca_file"
	case s.CertFile != "":
		return "TLS"
	default:
		return "plaintext: anybody on the way can read and change it (cert_file, key_file)"
	}
}
