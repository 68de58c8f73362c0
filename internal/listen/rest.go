package listen

import (
	"io"
	"net"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// goAway tells a client of HTTP/2 to send what follows on another connection (RFC 9113, 6.8: no error, and none of the requests is said
// to be lost). A frame may stand between any others of a connection without requests: its server writes them whole.
const goAway = "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00"

// LeaveTaking is how long a client has for that. What it has sent meanwhile is answered.
const LeaveTaking = time.Second

// awayAfter is the same for one that made room. It no longer counts, so it closes whatever it asks for, and an eighth
// as many as may be open have that time, at a time: further ones close at once.
const awayAfter = 3 * time.Second

// restsNow says whether a connection of HTTP/2 has no request open. Once it has had none for Conns.resting its client is told
// (goAway), and it is closed.
func (g *Conn) restsNow(rests bool, conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.away {
		return
	}
	g.noRestLocked()
	if rests && g.of.resting > 0 {
		g.resting = conn
		g.awayLocked(g.of.resting)
	}
}

func (g *Conn) noRestLocked() {
	if g.rests != nil {
		g.rests.Stop()
		g.rests, g.resting = nil, nil
	}
}

// sendAway has a connection without requests told now, and closed awayAfter later: what it asks for meanwhile is
// answered, if that takes no longer. False: it has some.
func (g *Conn) sendAway() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rests == nil || !g.rests.Stop() {
		return false
	}
	g.away = true
	g.of.leaving.Add(1)
	g.awayLocked(0)
	return true
}

func (g *Conn) awayLocked(after time.Duration) {
	conn := g.resting
	var this *time.Timer
	this = time.AfterFunc(after, func() {
		defer panics.Go("an idle connection")
		_ = g.SetWriteDeadline(time.Now().Add(LeaveTaking))
		_, _ = io.WriteString(conn, goAway)
		_ = g.SetWriteDeadline(time.Time{})
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.rests == this { // no request has come meanwhile, or it is away
			wait := LeaveTaking
			if g.away {
				wait = awayAfter
			}
			g.rests = time.AfterFunc(wait, func() {
				defer panics.Go("the end of an idle connection")
				g.leave()
			})
		}
	})
	g.rests = this
}
