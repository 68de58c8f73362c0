package admin

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/audit"
)

// deed is a request for control as the audit line has it.
func (s *Server) deed(r *http.Request) audit.Deed {
	return audit.Deed{Who: s.who(r), What: r.Method + " " + clip(r.URL.RequestURI()), From: from(r), TraceID: traceOf(r)}
}

// mostText bounds what of a request is in an audit line, in bytes.
const mostText = 300

func clip(text string) string {
	if len(text) <= mostText {
		return text
	}
	return strings.ToValidUTF8(text[:mostText], "") + "..."
}

// who names who makes a request: by its certificate, its token and its program, as far as these are known.
func (s *Server) who(r *http.Request) string {
	var parts []string
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		parts = append(parts, "certificate "+clip(r.TLS.PeerCertificates[0].Subject.String()))
	}
	if r.Header.Get("Authorization") != "" && !overSocket(r) {
		parts = append(parts, map[bool]string{true: "token of admin.token", false: "a token that is not admin.token"}[s.hasToken(r)])
	}
	if overSocket(r) && s.deps.Peer != nil {
		if uid, pid, err := s.deps.Peer(r.Context()); err == nil {
			parts = append(parts, fmt.Sprintf("uid %d, pid %d", uid, pid))
		}
	} else if uid, err := tcpPeer(r.RemoteAddr, localOf(r)); err == nil && !overSocket(r) {
		parts = append(parts, "uid "+strconv.FormatUint(uint64(uid), 10))
	}
	if parts == nil {
		return "unknown"
	}
	return strings.Join(parts, ", ")
}

// localOf is the address at which a request came in; nil: it is not known.
func localOf(r *http.Request) net.Addr {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return local
}

func overSocket(r *http.Request) bool {
	local := localOf(r)
	return local != nil && local.Network() == "unix"
}

// from is where a request comes from.
func from(r *http.Request) string {
	if overSocket(r) {
		return "admin.socket"
	}
	return r.RemoteAddr
}

// traceOf is the trace that the header traceparent of a request names; "": none.
func traceOf(r *http.Request) string {
	parts := strings.Split(r.Header.Get("Traceparent"), "-")
	if len(parts) < 4 || len(parts[1]) != 32 || strings.Trim(parts[1], "0123456789abcdef") != "" {
		return ""
	}
	return parts[1]
}

// answered notes the status of an answer.
type answered struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}
