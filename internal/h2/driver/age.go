package driver

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	agesEach = time.Second // from one look for connections that are too old to the next
	lastUse  = time.Minute // time for what is open on a connection that is too old
)

// Age has the connections of clients end that are older than age, less up to a tenth of that by chance; 0: none. Such a
// client is told to go, and after a minute what is left on its connection breaks. leave hears of those that are too old,
// each second while they are open, in the shard's turn. Age must be called before Run.
func (s *Shard) Age(age time.Duration, leave func(old map[*h2.Conn]bool)) {
	s.age, s.leave = age, leave
}

// retire tells the clients whose connections are older than age to go, drains a connection lastUse later, and cuts it
// one agesEach after that. mu is held.
func (s *Shard) retire(now time.Time) {
	old := map[*h2.Conn]bool{}
	var over []*link
	for l := range s.links {
		if !l.client || l.conn == nil || !l.conn.IsOpen() || now.Before(l.oldAt) {
			continue
		}
		if old[l.conn] = true; now.Sub(l.oldAt) > lastUse {
			over = append(over, l)
		}
	}
	_ = panics.Call("the end of sessions on old connections", func() error { s.leave(old); return nil })
	for c := range old {
		c.Retire()
	}
	for _, l := range over {
		if l.conn.Drain(); now.Sub(l.oldAt) > lastUse+agesEach {
			l.cut(now)
		}
	}
}

// emptied ends Drain when the last client has gone. mu is held.
func (s *Shard) emptied() {
	if !s.drains || s.clients.Load() > 0 {
		return
	}
	select {
	case <-s.empty:
	default:
		close(s.empty)
	}
}
