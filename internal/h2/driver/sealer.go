package driver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// secured is the TLS layer of a connection, if there is one.
type secured struct {
	tls    *tls.Conn
	sealed *sealer
}

var errNoH2 = errors.New("driver: the peer does not offer h2 by ALPN")

// secure makes the TLS layer, and finds out how to reach the socket.
func (l *link) secure(nc net.Conn, config *tls.Config, server bool) error {
	l.raw.use(nc)
	if config == nil {
		return nil
	}
	l.shard.mu.Lock() // hangUp looks for TLS, and may come during the handshake
	l.sealed = &sealer{Conn: nc, link: l}
	if server {
		l.tls = tls.Server(l.sealed, config)
	} else {
		l.tls = tls.Client(l.sealed, config)
	}
	l.shard.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.shard.ctx, l.shard.config.HandshakeTimeout)
	defer cancel()
	err := panics.Call("a TLS handshake", func() error { return l.tls.HandshakeContext(ctx) })
	if h, ok := nc.(interface{ Shaken() }); ok {
		h.Shaken()
	}
	if err != nil {
		return err
	}
	state := l.tls.ConnectionState()
	if state.NegotiatedProtocol != "h2" {
		return errNoH2
	}
	if server {
		l.certificate = apps.CertificateOf(state.VerifiedChains)
	}
	l.sealed.keep()
	return nil
}

// sealer keeps what TLS writes after the handshake, so that writing it can be tried
// without blocking. For the poller it hands TLS what that has read.
type sealer struct {
	net.Conn
	link *link
	fed  bool   // it reads from in; of the reading goroutine, as in
	in   []byte // as it came over the wire

	mu      sync.Mutex // guards what follows
	kept    bool
	sealing bool // bytes of the link are being sealed
	out     []byte
	own     int // bytes of out that TLS wrote on its own
}

// errDry is that nothing more is here yet. TLS goes on where it was after an error that is temporary.
var errDry net.Error = dry{}

type dry struct{}

func (dry) Error() string { return "driver: no more has come" }

func (dry) Timeout() bool { return false }

func (dry) Temporary() bool { return true }

// open opens what has come over the wire, as far as there is room for it. errDry: that was all. Only the goroutine
// that reads may call it.
func (s *sealer) open(came, room []byte) (n int, err error) {
	s.in = came
	for n < len(room) && err == nil {
		var m int
		m, err = s.unseal(room[n:])
		n += m
	}
	return n, err
}

// unseal reads from TLS. What panics there ends the connection, as an error does.
func (s *sealer) unseal(b []byte) (n int, err error) {
	err = panics.Call("a read over TLS", func() (err error) {
		n, err = s.link.tls.Read(b)
		return err
	})
	return n, err
}

func (s *sealer) keep() {
	s.mu.Lock()
	s.kept = true
	s.mu.Unlock()
}

// seal says that what TLS writes from now on is what it is given, until take.
func (s *sealer) seal() {
	s.mu.Lock()
	s.sealing = true
	s.mu.Unlock()
}

func (s *sealer) Read(p []byte) (int, error) {
	if s.fed {
		n := copy(p, s.in)
		if s.in = s.in[n:]; n == 0 {
			return 0, errDry
		}
		return n, nil
	}
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.link.hear()
	}
	return n, err
}

func (s *sealer) Write(p []byte) (int, error) {
	s.mu.Lock()
	if !s.kept {
		s.mu.Unlock()
		return s.Conn.Write(p)
	}
	defer s.mu.Unlock()
	if !s.sealing {
		if s.own += len(p); s.own > maxOwn {
			return 0, errSealed
		}
	}
	s.out = append(s.out, p...)
	return len(p), nil
}

// maxOwn bounds what TLS writes on its own between two writes of the link, as answers to the peer's key updates: those of a hundred.
const maxOwn = 4 << 10

var errSealed = errors.New("driver: the peer has TLS write too much")

// take returns what was written, for the one goroutine that may write.
func (s *sealer) take(spare []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.out
	s.out, s.own, s.sealing = spare[:0], 0, false
	return b
}
