package wire

import (
	"context"
	"net"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// detour is the way of a call of an open transaction around the node that owns it, which cannot be
// reached from here. It has a connection of its own, and ends with it.
type detour struct {
	watch *hop.Detour
	by    cluster.NodeID
	up    *driver.Upstream
	conn  *h2.Conn // nil: there was none yet
	waits bool     // the call was sent, and nothing of its answer has come: from then on its reader may be slow
	cut   bool     // the connection was ended here
}

// around is the way of a call around owner, by a node that the call has entered.
func (f *frames) around(k *call, owner cluster.NodeID, by *link) (*h2.Conn, error) {
	d := k.detour
	if d != nil && d.by != by.node.ID { // it waited for the connection, and was not sent
		k.endDetour()
		d = nil
	}
	if d != nil {
		d.watch.Heard()
	} else {
		node, nodes := by.node, f.server.deps.Nodes
		dial := func(ctx context.Context) (net.Conn, error) { return nodes.Dial(ctx, node) }
		d = &detour{by: node.ID, up: f.shard.Upstream(dial, nodes.TLS(node))}
		limit := f.server.deps.ForwardSilence
		// That the owner has left already is not looked at: the view that says so ended what was bound to it, or comes to this shard in
		// a turn of its own.
		d.watch, _ = f.detours.Begin(owner, limit, func(why error) {
			if why == hop.ErrHomeNodeLeft {
				d.end()
				return
			}
			f.shard.Do(func(e *h2.Forwarder) {
				if k.detour == d && d.waits {
					d.silent(e, limit)
				}
			})
		})
		k.detour = d
	}
	conn, err := d.up.Conn()
	d.conn, d.waits = conn, err == nil
	return conn, err
}

// silent ends a call that has been silent for the limit since its connection was made, which has a limit of its own.
func (d *detour) silent(e *h2.Forwarder, limit time.Duration) {
	since, ok := d.conn.Settled()
	if rest := since + limit - e.Now(); !ok {
		d.watch.Heard()
	} else if rest > 0 {
		d.watch.Wait(rest)
	} else {
		d.end()
	}
}

// heard notes that something of the request went on, or something of the answer came.
func (d *detour) heard(request bool) {
	switch {
	case !d.waits:
	case request:
		d.watch.Heard()
	default:
		d.waits = false
		d.watch.Hush()
	}
}

// end ends the connection, and its call with it.
func (d *detour) end() {
	d.cut = true
	if d.conn != nil {
		d.conn.Close()
	}
}

// endDetour lets go of the way of a call that is over, if it had one.
func (l *use) endDetour() {
	if d := l.detour; d != nil {
		l.detour = nil
		d.watch.End()
		d.up.Close()
	}
}

// undone reports whether what a call does is lost with its transaction. scanned: r is known.
func undone(m *protocol.Method, r virtual.Request, scanned bool) bool {
	switch m.Role {
	case protocol.RoleBegin:
		return true
	case protocol.RoleEnd:
		return m.Kind != cluster.CallCommit // a rollback
	}
	return m.Kind == cluster.CallExecute && scanned && (r.HasTx || r.Begin) && !r.Commit
}

const lostAround = "ydb-sidecar: the node that owns the session cannot be reached, and it gave no answer through " +
	"another node within routing.forward_silence, or left the cluster; "

// whenLostAround returns the answer to a call whose detour around the home node was cut. commits: it may have been
// executed.
func whenLostAround(m *protocol.Method, commits bool) *h2.Status {
	if commits {
		return &h2.Status{Body: m.Refusal(Ydb.StatusIds_UNDETERMINED, lostAround+"the call may have been executed"), Stream: m.Rows}
	}
	return &h2.Status{Body: m.Refusal(Ydb.StatusIds_UNAVAILABLE, lostAround+"its transaction is lost, and nothing of it was kept"),
		Stream: m.Rows}
}
