package listen

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"
)

// http2Preface is what a client of HTTP/2 sends first. Less of it may be the beginning of a request of HTTP/1.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// prefaced reports whether what came is all of HTTP/2's preface, and notes what is.
func (g *Conn) prefaced(b []byte) bool {
	if g.preface < 0 {
		return false
	}
	next := http2Preface[g.preface:]
	if n := min(len(b), len(next)); string(b[:n]) == next[:n] {
		g.preface += n
	} else {
		g.preface = -1
	}
	return g.preface == len(http2Preface)
}

// freeHead is how much of headers is not counted, in bytes: it fits the buffer that each connection has.
const freeHead = 4 << 10

var errHeaders = errors.New("listen: headers came slowly, or there is no memory for them")

// roomFor reports whether there is memory for b, if it is of headers. If it becomes short while they come slowly, the
// connection ends.
func (g *Conn) roomFor(b []byte) bool {
	if g.prefaced(b) {
		g.headersAre(true)
		g.second.Store(true)
		if g.of.Headers != nil && !g.of.isSecond(g) {
			g.leave() // net/http takes what it has read for a request of HTTP/1 otherwise
			return false
		}
		return true
	}
	n := len(b)
	if g.head += n; g.head <= freeHead {
		return true
	}
	if !g.reserving {
		g.reserving = true
		g.memory.Begin(g.of.Headers, nil, 0)
		g.memory.Coming(func() { _ = g.Stream.SetReadDeadline(time.Unix(1, 0)) }) // its reader sees it
	}
	return g.memory.Take(HeadTwice*n) == ""
}

// HeadTwice: headers are there as they came and as a request.
const HeadTwice = 2

// heads tells a connection of its headers. It is for http.Server.ConnState.
func heads(conn net.Conn, state http.ConnState) {
	g, ok := Below(conn).(*Conn)
	if !ok {
		return
	}
	g.idle.Store(state != http.StateActive)
	secure, ok := conn.(*tls.Conn)
	if state == http.StateNew {
		g.handshake.Store(secure)
		return
	}
	g.asked.Store(true)
	// HTTP/2 bounds its headers itself, and another goroutine reads them.
	second := g.second.Load() || ok && secure.ConnectionState().NegotiatedProtocol == "h2"
	g.headersAre(state != http.StateIdle || second)
	if second {
		g.restsNow(state == http.StateIdle, conn)
	}
}

// shook has what comes after the handshake of TLS counted from zero. It is for the goroutine that shakes hands, before and after.
func (g *Conn) shook() {
	secure := g.handshake.Load()
	if secure == nil {
		return
	}
	if state := secure.ConnectionState(); state.HandshakeComplete {
		g.handshake.Store(nil)
		second := state.NegotiatedProtocol == "h2"
		g.headersAre(second)
		if second && !g.of.isSecond(g) {
			g.leave()
		}
	}
}

// headersAre says whether the headers of a request are here whole.
func (g *Conn) headersAre(whole bool) {
	if g.second.Load() {
		return
	}
	g.whole.Store(whole)
	g.head = 0
	if g.reserving {
		g.reserving = false
		g.memory.Release()
	}
}

// Shaken says that the handshake of TLS is over, well or not, where HTTP/2 is all that is spoken over it. What comes
// now is bounded elsewhere.
func (g *Conn) Shaken() {
	g.asked.Store(true)
	g.headersAre(true)
}
