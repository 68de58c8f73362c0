package app

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

// places say where to listen, and how. An empty address is of no listener.
type places struct {
	grpc, http, admin, probes, xds string
	grpcSocket, httpSocket         string

	grpcTLS, xdsTLS bool          // whether handshakes of TLS count there as headers do
	idle            time.Duration // a connection of HTTP without requests is let go after it
	memory          int64         // the limit of the process, in bytes; 0: there is none

	// take returns the listener of a setting and its address that came from the process whose place this one takes, nil if none
	// did. A nil take: there is no such process.
	take func(setting, address string) net.Listener
}

// placesOf are those of a configuration; from is the process whose place this one takes, nil if none.
func placesOf(c Config, from *inherited) places {
	p := places{
		grpc: c.GRPC.Listen, http: c.HTTP.Listen, admin: c.Admin.Listen, probes: c.Admin.Probes, grpcSocket: c.GRPC.Socket, httpSocket: c.HTTP.Socket,
		grpcTLS: c.GRPC.TLS.CertFile != "", xdsTLS: c.XDS.TLS.CertFile != "", idle: c.HTTP.IdleTimeout, memory: memoryLimit(),
	}
	if c.XDS.Enabled {
		p.xds = c.XDS.Address
	}
	if from != nil {
		p.take = from.take
	}
	return p
}

// listeners are the bound ports.
type listeners struct {
	grpc, http, admin, probes, xds *patient // probes, xds: nil if off
	grpcSocket, httpSocket         *patient // Unix sockets of the same faces; nil: off
	places                         places
	opened                         chan struct{} // closed when connections may be accepted
}

// open binds all ports, or takes them over, or none: the error joins all that failed.
func (l *listeners) open(at places, log *slog.Logger) error {
	l.places, l.opened = at, make(chan struct{})
	replaces := at.take != nil
	if !replaces {
		at.take = func(string, string) net.Listener { return nil }
	}
	var errs []error
	bind := func(setting, address string) *patient {
		if listener, ok := at.take(setting, address).(*net.TCPListener); ok {
			return newPatient(listener, newDoor(setting, log), at.memory)
		}
		listener, err := net.Listen("tcp", address)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
			return nil
		}
		return newPatient(listener.(*net.TCPListener), newDoor(setting, log), at.memory)
	}
	local := func(setting, path string) *patient {
		if path == "" {
			return nil
		}
		if came, ok := at.take(setting, path).(*net.UnixListener); ok {
			came.SetUnlinkOnClose(false)
			p := newPatient(came, newDoor(setting, log), at.memory)
			p.name = &socketName{path: path, here: path}
			return p
		}
		listener, name, err := openAPISocket(path, replaces)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
			return nil
		}
		p := newPatient(listener, newDoor(setting, log), at.memory)
		p.name = name
		return p
	}
	l.grpc = bind("grpc.listen", at.grpc)
	l.http = bind("http.listen", at.http)
	l.admin = bind("admin.listen", at.admin)
	if at.probes != "" {
		l.probes = bind("admin.probes", at.probes)
	}
	if at.xds != "" {
		l.xds = bind("xds.address", at.xds)
	}
	l.grpcSocket = local("grpc.socket", at.grpcSocket)
	l.httpSocket = local("http.socket", at.httpSocket)
	for _, api := range l.ofHTTP() {
		api.guests.resting = at.idle
		api.guests.setMost(secondsFor(at.memory))
	}
	for _, http2 := range []struct {
		on  *patient
		tls bool // whose handshakes count as headers do
	}{{l.grpc, at.grpcTLS}, {l.grpcSocket, false}, {l.xds, at.xdsTLS}} {
		if http2.on != nil && !http2.tls {
			http2.on.guests.headers = nil
		}
	}
	return errors.Join(errs...)
}

// bound has connections refused beyond b.
func (a *App) bound(b bounds) {
	var apps, operators []*door
	for face, d := range a.doors() {
		switch face {
		case "admin", "probes", "admin_socket":
			operators = append(operators, d)
		default:
			apps = append(apps, d)
		}
	}
	b.hold(apps, operators)
}

// ofAPI are those of the API and of YDB's protocol, by the name of their face.
func (l *listeners) ofAPI() map[string]*patient {
	all := map[string]*patient{"grpc": l.grpc, "http": l.http}
	if l.grpcSocket != nil {
		all["grpc_socket"] = l.grpcSocket
	}
	if l.httpSocket != nil {
		all["http_socket"] = l.httpSocket
	}
	return all
}

// ofHTTP are those of the HTTP API.
func (l *listeners) ofHTTP() []*patient {
	return slices.DeleteFunc([]*patient{l.http, l.httpSocket}, func(p *patient) bool { return p == nil })
}

// size is how many connections are open, but for those of admin.socket.
func (l *listeners) size() (n int) {
	for _, one := range l.all() {
		n += one.guests.size()
	}
	return n
}

// named returns the listeners as another process may take them over.
func (l *listeners) named() []takeover.Listener {
	var all []takeover.Listener
	for _, one := range []struct {
		setting, listen string
		listener        *patient
	}{
		{"grpc.listen", l.places.grpc, l.grpc}, {"http.listen", l.places.http, l.http},
		{"admin.listen", l.places.admin, l.admin}, {"admin.probes", l.places.probes, l.probes}, {"xds.address", l.places.xds, l.xds},
		{"grpc.socket", l.places.grpcSocket, l.grpcSocket}, {"http.socket", l.places.httpSocket, l.httpSocket},
	} {
		if one.listener != nil {
			all = append(all, takeover.Listener{Setting: one.setting, Listen: one.listen, Listener: one.listener})
		}
	}
	return all
}

func (l *listeners) all() []*patient {
	var all []*patient
	for _, listener := range []*patient{l.grpc, l.http, l.admin, l.probes, l.xds, l.grpcSocket, l.httpSocket} {
		if listener != nil {
			all = append(all, listener)
		}
	}
	return all
}

// doors are those of all listeners of clients and operators, by the name of their face.
func (a *App) doors() map[string]*door {
	all := map[string]*door{}
	for face, l := range map[string]*patient{"admin": a.listeners.admin, "probes": a.listeners.probes, "xds": a.listeners.xds} {
		if l != nil {
			all[face] = l.door
		}
	}
	for face, l := range a.listeners.ofAPI() {
		all[face] = l.door
	}
	if a.socket != nil {
		all["admin_socket"] = a.socket.localDoor.door
	}
	return all
}

// await returns when connections may be accepted, or false when ctx ends first.
func (l *listeners) await(ctx context.Context) bool {
	select {
	case <-l.opened:
		return true
	case <-ctx.Done():
		return false
	}
}

// start lets connections be accepted.
func (l *listeners) start() { close(l.opened) }

// isOpen tells whether connections may be accepted.
func (l *listeners) isOpen() bool {
	select {
	case <-l.opened:
		return true
	default:
		return false
	}
}

// finish takes the connections that wait to be accepted and closes the ports of
// the API.
func (l *listeners) finish(ctx context.Context) {
	var ending sync.WaitGroup
	for _, one := range l.ofAPI() {
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

// publish gives the Unix sockets the names that clients know.
func (l *listeners) publish(log *slog.Logger) {
	for _, one := range []*patient{l.grpcSocket, l.httpSocket} {
		if one == nil {
			continue
		}
		if err := one.name.publish(); err != nil {
			log.Error("clients do not find the Unix socket", "setting", one.setting, "err", err)
		}
	}
}

// close closes what is still open, in this process only: the ports stay open as
// long as another one has them too. Servers close theirs themselves.
func (l *listeners) close() {
	for _, listener := range l.all() {
		_ = listener.Close() // it may be closed already
	}
}
