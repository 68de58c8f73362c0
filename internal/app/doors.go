package app

import (
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/restart"
)

// addressesOf are those of a configuration; from is the process whose place this one takes, nil if none.
func addressesOf(c Config, from *restart.Inherited) listen.Addresses {
	p := listen.Addresses{
		GRPC: c.GRPC.Listen, HTTP: c.HTTP.Listen, Admin: c.Admin.Listen, Probes: c.Admin.Probes,
		GRPCSocket: c.GRPC.Socket, HTTPSocket: c.HTTP.Socket,
		GRPCTLS: c.GRPC.TLS.CertFile != "", XDSTLS: c.XDS.TLS.CertFile != "", Idle: c.HTTP.IdleTimeout, Memory: memoryLimit(),
	}
	if c.XDS.Enabled {
		p.XDS = c.XDS.Address
	}
	if from != nil {
		p.Take = from.Take
	}
	return p
}

// bound has connections refused beyond b.
func (a *App) bound(b listen.Bounds) {
	var apps, operators []*listen.Door
	for name, d := range a.doors() {
		switch name {
		case "admin", "probes", "admin_socket":
			operators = append(operators, d)
		default:
			apps = append(apps, d)
		}
	}
	b.Hold(apps, operators)
}

// doors are those of all listeners of clients and operators, by their name.
func (a *App) doors() map[string]*listen.Door {
	all := map[string]*listen.Door{}
	for name, l := range map[string]*listen.Listener{"admin": a.listeners.Admin, "probes": a.listeners.Probes, "xds": a.listeners.XDS} {
		if l != nil {
			all[name] = l.Door
		}
	}
	for name, l := range a.listeners.OfAPI() {
		all[name] = l.Door
	}
	if a.socket != nil {
		all["admin_socket"] = a.socket.Door
	}
	return all
}
