package wire

import (
	"sync/atomic"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// While an operator has paused calls (hop.Hold), calls that a node would get wait here: those that need no session of a pool,
// and those on a session that the client keeps. Calls that need a session of a pool wait in its queue, since pools are
// paused too. What belongs to an open transaction goes on, so that it can end, and so does what keeps or ends a session.

// errPaused is for a call that could not wait any longer.
var errPaused = overloaded("calls are paused by an operator (sidecar resume); the call was not sent")

// pausing has the calls of a shard that wait while calls are paused.
type pausing struct {
	hold  *hop.Hold
	calls map[*call]h2.Ticket
	// Of calls whose virtual session has its server session, how many have begun to wait here, and how many no longer do.
	// Each counts while its session is busy.
	keptFrom, keptTo atomic.Uint64
}

// pause parks a call while calls are paused. nil: it goes on.
func (p *pausing) pause(c *h2.Call, k *call) error {
	if !p.hold.On() {
		p.forget(k)
		return nil
	}
	if p.calls == nil {
		p.calls = map[*call]h2.Ticket{}
	}
	p.calls[k], k.paused = c.Ticket(), true
	return h2.ErrPark
}

// forget takes out a call that goes on, or is over.
func (p *pausing) forget(k *call) {
	if k.paused {
		delete(p.calls, k)
		k.paused = false
	}
	if k.kept {
		p.keptTo.Add(1)
		k.kept = false
	}
}

// keepsOpen reports whether the method is about something open, or keeps a session alive.
func keepsOpen(m *protocol.Method) bool {
	return m != nil && (m == attachSession || m.Role == protocol.RoleAttach || m.NeedsOpen())
}

// outsideTx is pause for a call on a session that is none of the sidecar's.
func (p *pausing) outsideTx(c *h2.Call, k *call, r *request) error {
	if r.inTx || keepsOpen(k.method) || !p.hold.On() && !k.paused {
		return nil
	}
	return p.pause(c, k)
}

// enoughForTx is how many bytes of a request are looked at for its transaction, which comes before the text.
const enoughForTx = 4 << 10

// tooEarly reports whether it cannot be seen yet if a request of a method that can names a transaction.
func tooEarly(message []byte, whole bool) bool { return !whole && len(message) < enoughForTx }

// onSession is pause for a call on a virtual session that has its server session: of mode session, nothing needs to be
// open there.
func (p *pausing) onSession(all *virtual.Sessions, c *h2.Call, k *call, r *request) error {
	if !k.Bound || r.inTx || !p.hold.On() && !k.paused || all.Loses(&k.Use) {
		return nil
	}
	err := p.pause(c, k)
	if k.paused && !k.kept {
		k.kept = true
		p.keptFrom.Add(1)
	}
	return err
}

// own is pause where sessions are the clients' own.
func (p *pausing) own(f *frames, c *h2.Call, k *call) error {
	if keepsOpen(k.method) || !p.hold.On() && !k.paused {
		return nil
	}
	if m := k.method; m != nil && m.Session != nil && m.Role != protocol.RoleFree {
		message, whole, err := f.head(c, k)
		switch {
		case err != nil:
			return err
		case m.NamesTx(message):
			return nil
		case tooEarly(message, whole) && m.MayNameTx():
			return h2.ErrNeedMessage
		}
	}
	return p.pause(c, k)
}

// IdleSessions is how many server sessions virtual sessions keep on which nothing runs and no transaction is open, with
// those whose call waits for the end of a pause. It is never more.
func (s *Server) IdleSessions() (n int) {
	waiting, ended := s.keptCalls()
	for _, h := range s.SessionUses() {
		if h.Transactions == 0 && !h.Busy {
			n++
		}
	}
	if _, now := s.keptCalls(); now == ended { // else a session may count twice whose call has ended
		n += waiting
	}
	return n
}

// keptCalls is how many calls wait for the end of a pause whose virtual sessions have their server sessions, and how many have
// done so.
func (s *Server) keptCalls() (waiting int, ended uint64) {
	for _, f := range s.shards {
		ended += f.pausing.keptTo.Load()
	}
	var begun uint64
	for _, f := range s.shards {
		begun += f.pausing.keptFrom.Load()
	}
	return int(begun - ended), ended
}

// Resume has calls go on that wait because calls were paused. It is called after hop.Hold has been told.
func (s *Server) Resume() {
	for _, f := range s.shards {
		f.shard.Do(func(e *h2.Forwarder) {
			for _, ticket := range f.pausing.calls {
				e.Later(ticket, nil)
			}
			e.CatchUp()
		})
		f.ring() // there may be more than go on in one turn
	}
}
