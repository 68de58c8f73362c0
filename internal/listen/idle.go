package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// idle are the connections of an HTTP server that have no request under way: silent ones,
// those that wait for their next request, and those whose request has a body to come.
type idle struct {
	mu    sync.Mutex // guards what follows
	since map[net.Conn]time.Time
}

// idleLeast is how long a connection is idle before it gives way: the request that it was
// made for can be on its way.
const idleLeast = 100 * time.Millisecond

func newIdle() *idle { return &idle{since: make(map[net.Conn]time.Time)} }

// track is http.Server.ConnState.
func (i *idle) track(conn net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if state != http.StateNew && state != http.StateIdle {
		delete(i.since, conn)
		return
	}
	i.since[conn] = time.Now()
}

// withoutBodies reads over the body of a request before it is served: nothing that operators
// ask has one. A connection is idle until its body is here.
func (i *idle) withoutBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(adminLimit)) // fails only when the connection has ended
		conn, ok := r.Context().Value(connKey{}).(net.Conn)
		if ok = ok && r.ProtoMajor == 1; ok { // one of HTTP/2 may have other requests under way
			i.track(conn, http.StateIdle)
		}
		_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, adminBody))
		if ok {
			i.track(conn, http.StateActive)
		}
		if err != nil {
			status := http.StatusRequestTimeout
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				status = http.StatusRequestEntityTooLarge
			}
			w.Header().Set("Connection", "close")
			_ = control.SetReadDeadline(time.Now().Add(bodyLinger))
			why := "the body did not come, or not within %d bytes and %v: send none, parameters are in the query"
			http.Error(w, fmt.Sprintf(why, adminBody, adminLimit), status)
			return
		}
		_ = control.SetReadDeadline(time.Time{}) // or the server would take its end for the caller's leaving
		r.Body = http.NoBody
		next.ServeHTTP(w, r)
	})
}

// bodyLinger is how long a caller that still sends may take to read why its request failed.
const bodyLinger = time.Second

// connKey is the key of a request's connection, as ConnState knows it.
type connKey struct{}

// withConn is http.Server.ConnContext.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// giveWay is that of a door: it closes the connection that has been idle longest.
func (i *idle) giveWay() (closed bool, wait time.Duration) {
	oldest, wait := i.takeOldest()
	if oldest == nil {
		return false, wait
	}
	_ = Below(oldest).Close() // its server sees it
	return true, 0
}

// takeOldest returns the connection that has been idle longest, which then counts as idle no
// more. If that is not yet idleLeast, it returns how long to wait instead; both are zero if
// no connection is idle.
func (i *idle) takeOldest() (oldest net.Conn, wait time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for conn, since := range i.since {
		if oldest == nil || since.Before(i.since[oldest]) {
			oldest = conn
		}
	}
	if oldest == nil {
		return nil, 0
	}
	if wait := idleLeast - time.Since(i.since[oldest]); wait > 0 {
		return nil, wait
	}
	delete(i.since, oldest)
	return oldest, 0
}
