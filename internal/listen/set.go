package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
)

// Addresses say where to listen, and how. An empty address is of no listener.
type Addresses struct {
	GRPC, HTTP, Admin, Probes, XDS string
	GRPCSocket, HTTPSocket         string

	GRPCTLS, XDSTLS bool          // whether handshakes of TLS count there as headers do
	Idle            time.Duration // a connection of HTTP without requests is let go after it
	Memory          int64         // the limit of the process, in bytes; 0: there is none

	// Take returns the listener of a setting and its address that came from the process whose place this one takes, nil if none
	// did. A nil take: there is no such process.
	Take func(setting, address string) net.Listener
}

// Set are the bound ports.
type Set struct {
	GRPC, HTTP, Admin, Probes, XDS *Listener // probes, xds: nil if off
	GRPCSocket, HTTPSocket         *Listener // Unix sockets of the same APIs; nil: off
	addresses                      Addresses
	opened                         chan struct{} // closed when connections may be accepted
}

// Bind binds all ports, or takes them over, or none: the error joins all that failed.
func (l *Set) Bind(at Addresses, log *slog.Logger) error {
	l.addresses, l.opened = at, make(chan struct{})
	replaces := at.Take != nil
	if !replaces {
		at.Take = func(string, string) net.Listener { return nil }
	}
	var errs []error
	bind := func(setting, address string) *Listener {
		listener, err := at.bindPort(setting, address, log)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
		}
		return listener
	}
	local := func(setting, path string) *Listener {
		if path == "" {
			return nil
		}
		listener, err := at.bindSocket(setting, path, replaces, log)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
		}
		return listener
	}
	l.GRPC = bind("grpc.listen", at.GRPC)
	l.HTTP = bind("http.listen", at.HTTP)
	l.Admin = bind("admin.listen", at.Admin)
	if at.Probes != "" {
		l.Probes = bind("admin.probes", at.Probes)
	}
	if at.XDS != "" {
		l.XDS = bind("xds.address", at.XDS)
	}
	l.GRPCSocket = local("grpc.socket", at.GRPCSocket)
	l.HTTPSocket = local("http.socket", at.HTTPSocket)
	for _, api := range l.OfHTTP() {
		api.Conns.resting = at.Idle
		api.Conns.SetMost(secondsFor(at.Memory))
	}
	for _, http2 := range []struct {
		on  *Listener
		tls bool // handshakes count as headers do
	}{{l.GRPC, at.GRPCTLS}, {l.GRPCSocket, false}, {l.XDS, at.XDSTLS}} {
		if http2.on != nil && !http2.tls {
			http2.on.Conns.Headers = nil
		}
	}
	return errors.Join(errs...)
}

// bindPort binds an address, or takes its listener over.
func (at *Addresses) bindPort(setting, address string, log *slog.Logger) (*Listener, error) {
	if listener, ok := at.Take(setting, address).(*net.TCPListener); ok {
		return newListener(listener, newDoor(setting, log), at.Memory), nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return newListener(listener.(*net.TCPListener), newDoor(setting, log), at.Memory), nil
}

// bindSocket binds a Unix socket of the plain API, or takes its listener over.
func (at *Addresses) bindSocket(setting, path string, replaces bool, log *slog.Logger) (*Listener, error) {
	if came, ok := at.Take(setting, path).(*net.UnixListener); ok {
		came.SetUnlinkOnClose(false)
		p := newListener(came, newDoor(setting, log), at.Memory)
		p.name = &socketName{path: path, here: path}
		return p, nil
	}
	listener, name, err := openAPISocket(path, replaces)
	if err != nil {
		return nil, err
	}
	p := newListener(listener, newDoor(setting, log), at.Memory)
	p.name = name
	return p, nil
}

// OfAPI returns the listeners of the plain API and of YDB's protocol, by their names in metrics.
func (l *Set) OfAPI() map[string]*Listener {
	all := map[string]*Listener{"grpc": l.GRPC, "http": l.HTTP}
	if l.GRPCSocket != nil {
		all["grpc_socket"] = l.GRPCSocket
	}
	if l.HTTPSocket != nil {
		all["http_socket"] = l.HTTPSocket
	}
	return all
}

// OfHTTP are those of the HTTP API.
func (l *Set) OfHTTP() []*Listener {
	return slices.DeleteFunc([]*Listener{l.HTTP, l.HTTPSocket}, func(p *Listener) bool { return p == nil })
}

// Size is how many connections are open, except those of admin.socket.
func (l *Set) Size() (n int) {
	for _, one := range l.all() {
		n += one.Conns.Size()
	}
	return n
}

// Named returns the listeners as another process may take them over.
func (l *Set) Named() []takeover.Listener {
	var all []takeover.Listener
	for _, one := range []struct {
		setting, listen string
		listener        *Listener
	}{
		{"grpc.listen", l.addresses.GRPC, l.GRPC}, {"http.listen", l.addresses.HTTP, l.HTTP},
		{"admin.listen", l.addresses.Admin, l.Admin}, {"admin.probes", l.addresses.Probes, l.Probes},
		{"xds.address", l.addresses.XDS, l.XDS},
		{"grpc.socket", l.addresses.GRPCSocket, l.GRPCSocket}, {"http.socket", l.addresses.HTTPSocket, l.HTTPSocket},
	} {
		if one.listener != nil {
			all = append(all, takeover.Listener{Setting: one.setting, Listen: one.listen, Listener: one.listener})
		}
	}
	return all
}

func (l *Set) all() []*Listener {
	var all []*Listener
	for _, listener := range []*Listener{l.GRPC, l.HTTP, l.Admin, l.Probes, l.XDS, l.GRPCSocket, l.HTTPSocket} {
		if listener != nil {
			all = append(all, listener)
		}
	}
	return all
}

// Await returns when connections may be accepted, or false when ctx ends first.
func (l *Set) Await(ctx context.Context) bool {
	select {
	case <-l.opened:
		return true
	case <-ctx.Done():
		return false
	}
}

// Start lets connections be accepted.
func (l *Set) Start() { close(l.opened) }

// isOpen tells whether connections may be accepted.
func (l *Set) isOpen() bool {
	select {
	case <-l.opened:
		return true
	default:
		return false
	}
}

// Finish takes the connections that wait to be accepted and closes the ports of
// the API.
func (l *Set) Finish(ctx context.Context) {
	var ending sync.WaitGroup
	for _, one := range l.OfAPI() {
		if !l.isOpen() {
			// Nobody accepts here yet. What waits is for the process that still serves.
			_ = one.Close()
			continue
		}
		ending.Go(func() {
			defer panics.Go("the end of a listener")
			one.finish(ctx)
		})
	}
	ending.Wait()
}

// Publish gives the Unix sockets the names that clients know.
func (l *Set) Publish(log *slog.Logger) {
	for _, one := range []*Listener{l.GRPCSocket, l.HTTPSocket} {
		if one == nil {
			continue
		}
		if err := one.name.publish(); err != nil {
			log.Error("clients do not find the Unix socket", "setting", one.setting, "err", err)
		}
	}
}

// Close closes what is still open, in this process only: the ports stay open as
// long as another one has them too. Servers close theirs themselves.
func (l *Set) Close() {
	for _, listener := range l.all() {
		_ = listener.Close() // it may be closed already
	}
}
