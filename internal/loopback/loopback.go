// Package loopback keeps web pages out of servers that are meant for local
// programs.
//
// A browser lets any page send requests to 127.0.0.1, and a page that rebinds
// its own name to a loopback address may even read the answers. Guard refuses
// both: a request must name this machine (or a listed host) in Host, and one
// that comes from a page must come from a page that this server served itself.
// It never looks at the peer's address, holds no state and may be used by any
// number of goroutines.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// The reasons of a refusal; Check wraps them with what the request said.
var (
	ErrHost   = errors.New("the Host header does not name this machine")
	ErrOrigin = errors.New("the request comes from a page of another origin")
)

// Guard decides which HTTP requests may enter. The zero value admits loopback
// names only.
type Guard struct {
	hosts map[string]bool // lower case, as they may stand in Host: with or without a port
}

// New returns a guard that admits the given names beside the loopback names.
// An entry is a host or a host:port; without a port it holds for every port.
// An entry that is not one is an error.
func New(hosts []string) (*Guard, error) {
	g := &Guard{hosts: make(map[string]bool, len(hosts))}
	var errs []error
	for _, h := range hosts {
		name, _ := split(h)
		if name == "" || strings.ContainsAny(h, "/@ *") {
			errs = append(errs, fmt.Errorf("%q is not a host or host:port", h))
			continue
		}
		g.hosts[normal(h)] = true
	}
	return g, errors.Join(errs...)
}

// Check returns nil if the request may enter, and otherwise an error that
// wraps ErrHost or ErrOrigin and is fit to be shown to the caller.
func (g *Guard) Check(r *http.Request) error {
	if !g.local(r.Host) {
		return fmt.Errorf("%w: %.100q", ErrHost, r.Host)
	}
	// A page of this very server has this very authority: browsers leave out
	// the default port in both headers alike.
	for _, origin := range r.Header.Values("Origin") {
		_, authority, ok := strings.Cut(origin, "://")
		if !ok || !strings.EqualFold(authority, r.Host) {
			return fmt.Errorf("%w: %.100q", ErrOrigin, origin)
		}
	}
	// Browsers send no Origin with images, scripts and links, but say this.
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
		return nil
	default:
		return fmt.Errorf("%w: Sec-Fetch-Site %.100q", ErrOrigin, site)
	}
}

// Wrap returns a handler that passes requests to next if Check admits them and
// to refuse, with the error, if not.
func (g *Guard) Wrap(next http.Handler, refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.Check(r); err != nil {
			refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Forbid writes a refusal as plain text with status 403.
func Forbid(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusForbidden)
}

// IsLoopback reports whether host, without a port, is a name or an address of
// the machine itself.
func IsLoopback(host string) bool {
	host = normal(host)
	if host == "localhost" {
		return true
	}
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func (g *Guard) local(hostport string) bool {
	host, _ := split(hostport)
	return IsLoopback(host) || g.hosts[normal(host)] || g.hosts[normal(hostport)]
}

// normal makes spellings of one host equal.
func normal(host string) string {
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// split takes a port off, if there is one. The brackets of an IPv6 address go
// with it; a malformed host comes back as it is and so matches nothing.
func split(hostport string) (host, port string) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return hostport, ""
	}
	return host, port
}
