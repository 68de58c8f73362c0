package wire

import (
	"context"
	"net"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// detour is the way of a call of an open transaction around the node that owns it, which cannot be
// reached from here. The node that forwards the call does not tell when the owner is lost, so the call
// has a connection of its own, and ends with it.
type detour struct {
	owner, by cluster.NodeID
	up        *driver.Upstream
	conn      *h2.Conn
	timer     *time.Timer // nil: no limit
	quiet     int         // looks in a row at which nothing had come
	cut       bool        // the connection was ended here
}

// around is the way of a call around owner, by a node that the call has entered.
func (f *frames) around(k *call, owner cluster.NodeID, by *link) (*h2.Conn, error) {
	d := f.detours[k]
	if d != nil && d.by != by.node.ID { // it waited for the connection, and was not sent
		f.endDetour(k)
		d = nil
	}
	if d != nil && d.timer != nil {
		d.timer.Reset(f.server.deps.ForwardSilence / looksAround)
	}
	if d == nil {
		node, nodes := by.node, f.server.deps.Nodes
		dial := func(ctx context.Context) (net.Conn, error) { return nodes.Dial(ctx, node) }
		d = &detour{owner: owner, by: node.ID, up: f.shard.Upstream(dial, nodes.TLS(node))}
		f.detours[k] = d
		if limit := f.server.deps.ForwardSilence; limit > 0 {
			d.timer = time.AfterFunc(limit/looksAround, func() {
				f.shard.Do(func(*h2.Forwarder) {
					if f.detours[k] == d && k.loan.around != aroundNot {
						d.look(k, limit)
					}
				})
			})
		}
	}
	conn, err := d.up.Conn()
	if d.conn = conn; err == nil {
		k.loan.around = aroundFresh
	}
	return conn, err
}

// What is known of the answer to a call around the owner of its session.
const (
	aroundNot   uint8 = iota // it is no such call, or the answer has begun: from then on its reader may be slow
	aroundFresh              // something of the request came since the last look
	aroundQuiet              // nothing did
)

// looksAround is in how many parts the limit of silence is counted.
const looksAround = 4

// look ends a call of which nothing was heard for the limit.
func (d *detour) look(k *call, limit time.Duration) {
	if k.loan.around == aroundFresh || !d.conn.Ready() { // the making of a connection has its own limit
		k.loan.around, d.quiet = aroundQuiet, 0
	} else if d.quiet++; d.quiet == looksAround {
		d.end()
		return
	}
	d.timer.Reset(limit / looksAround)
}

// end ends the connection, and its call with it.
func (d *detour) end() {
	d.cut = true
	if d.conn != nil {
		d.conn.Close()
	}
}

// endDetour lets go of the way of a call that is over, if it had one.
func (f *frames) endDetour(k *call) {
	d := f.detours[k]
	if d == nil {
		return
	}
	delete(f.detours, k)
	if d.timer != nil {
		d.timer.Stop()
	}
	d.up.Close()
}

// leftBehind ends the calls around owners that have left the cluster.
func (f *frames) leftBehind(v cluster.View) {
	var all []*detour
	for _, d := range f.detours {
		if n, ok := v.Find(d.owner); !ok || n.Gone {
			all = append(all, d)
		}
	}
	for _, d := range all { // their calls take them out of the map
		d.end()
	}
}

// wasCut tells whether the call was ended because its owner is lost, for which no other node is to blame.
func (f *frames) wasCut(k *call) bool {
	d := f.detours[k]
	return d != nil && d.cut
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

const lostAround = "ydb-sidecar: the node that owns the session cannot be reached, and it gave no answer through another node within routing.forward_silence, or left the cluster; "

// whenLostAround is what a client is told whose call ends so. commits: it may have.
func whenLostAround(m *protocol.Method, commits bool) *h2.Status {
	if commits {
		return &h2.Status{Body: m.Refusal(Ydb.StatusIds_UNDETERMINED, lostAround+"the call may have been executed"), Stream: m.Rows}
	}
	return &h2.Status{Body: m.Refusal(Ydb.StatusIds_UNAVAILABLE, lostAround+"its transaction is lost, and nothing of it was kept"), Stream: m.Rows}
}
