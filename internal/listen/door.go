package listen

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Door is what the listeners have in common: connections beyond a bound are closed at
// once, unless others give way, and a failure to accept, such as for want of
// descriptors, is no end.
type Door struct {
	setting string // the setting of its listener
	log     *slog.Logger
	open    func() int   // connections that are open
	full    func() bool  // no more connections are taken; nil: never
	idle    *idle        // of the connections of operators; nil: they are apps'
	conns   *Conns       // the connections; nil: they are those of admin.socket
	refused atomic.Int64 // connections closed because it was full

	// giveWay closes a connection over which no request is under way, for a new one, when it is full. If none has been so for
	// long enough it returns how long to wait instead; false and 0: there is none. nil: none gives way.
	giveWay func() (closed bool, wait time.Duration)

	Backoff

	once sync.Once
	gone chan struct{} // closed by shut
}

// Size is how many connections are open.
func (d *Door) Size() int { return d.open() }

// Refused is how many connections were closed because it was full.
func (d *Door) Refused() int64 { return d.refused.Load() }

func newDoor(setting string, log *slog.Logger) *Door {
	return &Door{setting: setting, log: log, gone: make(chan struct{})}
}

// accept returns the next connection that there is room for. The error says that the
// listener is closed or, by a deadline, about to be.
func (d *Door) accept(next func() (net.Conn, error)) (net.Conn, error) {
	for {
		conn, err := next()
		switch {
		case err == nil && d.room():
			d.Worked()
			return conn, nil
		case err == nil:
			d.Worked()
			d.refused.Add(1)
			_ = conn.Close() // it has been told nothing
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return nil, err
		default:
			d.Failed(err, d.setting, d.log, d.gone)
		}
	}
}

// room reports whether one more connection can be taken. Others give way for it, once they have been idle for a moment.
func (d *Door) room() bool {
	for d.full != nil && d.full() {
		if d.giveWay == nil {
			return false
		}
		closed, wait := d.giveWay()
		switch {
		case closed:
			d.refused.Add(1)
		case wait == 0 || !d.sleep(wait):
			return false
		}
	}
	return true
}

// sleep returns false if shut ends it.
func (d *Door) sleep(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.gone:
		return false
	}
}

// shut ends the pause of accept.
func (d *Door) shut() { d.once.Do(func() { close(d.gone) }) }

// Between attempts to accept.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
	episode    = time.Minute // failures no further apart are logged once
)

// Backoff paces attempts to accept. Only the accepting goroutine calls its methods.
type Backoff struct {
	failures atomic.Int64
	pause    time.Duration // the last one since an attempt succeeded
	last     time.Time     // failure
}

// Worked notes that an attempt has succeeded.
func (b *Backoff) Worked() { b.pause = 0 }

// Failures is how many attempts have failed.
func (b *Backoff) Failures() int64 { return b.failures.Load() }

// Failed waits until it is time for the next attempt, or gone is closed.
func (b *Backoff) Failed(err error, setting string, log *slog.Logger, gone <-chan struct{}) {
	b.failures.Add(1)
	if now := time.Now(); b.last.IsZero() || now.Sub(b.last) >= episode {
		log.Warn("connections cannot be accepted; trying again", "setting", setting, "err", err)
	}
	b.last = time.Now()
	b.pause = min(max(2*b.pause, firstPause), lastPause)
	timer := time.NewTimer(b.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-gone:
	}
}

// localDoor is the door of a Unix socket, which counts what comes in.
type localDoor struct {
	*Door
	inside atomic.Int64
}

func newLocalDoor(setting string, log *slog.Logger) *localDoor {
	d := &localDoor{Door: newDoor(setting, log)}
	d.Door.open = func() int { return int(d.inside.Load()) }
	return d
}

// localConn is one of its connections.
type localConn struct {
	*net.UnixConn
	of   *localDoor
	once sync.Once
}

func (d *localDoor) accept(l *net.UnixListener) (*localConn, error) {
	conn, err := d.Door.accept(l.Accept)
	if err != nil {
		return nil, err
	}
	d.inside.Add(1)
	return &localConn{UnixConn: conn.(*net.UnixConn), of: d}, nil
}

// Close closes the connection, which then counts no more.
func (c *localConn) Close() error {
	c.once.Do(func() { c.of.inside.Add(-1) })
	return c.UnixConn.Close()
}
