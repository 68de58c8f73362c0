package upstream

import (
	"cmp"
	"context"
	"net"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
)

// h2Line is a line of package h2/client, which pings what is silent.
type h2Line struct{ *client.Conn }

func (l h2Line) hurry()  { l.Hurry() }
func (l h2Line) ask()    { l.Ask() }
func (l h2Line) shelve() { l.Shelve() }
func (l h2Line) close()  { l.Close() }

// newEngine makes the client that all lines belong to.
func newEngine(c Config, deps Deps) *client.Client {
	config := h2.Default()
	config.HandshakeTimeout = c.ConnectTimeout
	if deps.Buffered > 0 {
		config.Buffered = deps.Buffered
	}
	config.Keepalive, config.Silence, config.KeepaliveTimeout = c.KeepAlive, deps.Silence, deps.ProbeTimeout
	if deps.Silence == 0 || deps.ProbeTimeout <= 0 { // nothing looks for it, except the pings of a quiet connection
		config.Silence, config.KeepaliveTimeout = c.KeepAlive, c.KeepAliveTimeout
	}
	return client.New(config)
}

// Shard is what carries the driver's calls; nil with ydb.client=grpc.
func (d *Driver) Shard() *driver.Shard {
	if d.config.Client == ClientGRPC {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.engineLocked(); e != nil {
		return e.Shard()
	}
	return nil
}

// engineLocked is the client that all lines belong to, made when it is first needed; nil: the driver is closed.
func (d *Driver) engineLocked() *client.Client {
	if d.engine == nil && !d.closed {
		d.engine = newEngine(d.config, d.deps)
	}
	return d.engine
}

// lineH2 prepares a connection; nothing is sent before the first call.
func (d *Driver) lineH2(e *client.Client, c *nodeConn) line {
	t := d.Target(c.node)
	if d.deps.Silence > 0 && d.deps.ProbeTimeout > 0 {
		t.Silent = func() { go d.silent(c) } // this is the turn of all connections
	}
	return h2Line{e.Connect(t)}
}

// Target is where calls of the sidecar's own to a node go, and what they say.
func (d *Driver) Target(node cluster.Node) client.Target {
	config := d.tlsFor(node.Address, node.TLSName)
	authority := node.Address
	if config != nil {
		authority = cmp.Or(config.ServerName, authority)
	}
	return client.Target{
		Tag: node.ID, Dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, node) },
		TLS: config, Authority: authority, UserAgent: d.build, Timeout: d.config.ConnectTimeout, Message: maxMessage,
	}
}

// silent gives up a connection whose node does not answer.
func (d *Driver) silent(c *nodeConn) {
	if c.wire.checking.CompareAndSwap(false, true) && !d.background(c, func() { d.giveUp(c) }) {
		c.wire.checking.Store(false)
	}
}
