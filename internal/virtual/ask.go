package virtual

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// question is whose a ticket is.
type question struct {
	hash             [sha256.Size]byte // of both:
	database, ticket string
	waiting          []Waiter
}

// askingConn is a client's connection that came with tickets which are not known. One of its questions is asked at a time, and the
// connections take turns: tickets that one of them makes up do not keep those of others waiting.
type askingConn struct {
	client Client
	asks   []*question // the first is under way, or next; never empty
}

// Ask has somebody find out whose ticket it is; false: nobody will, and nobody is told.
func (ts *IdentityPools) Ask(who *Credentials, client Client, w Waiter) bool {
	_, refused := ts.refused.Get(string(who.Hash[:]))
	return !refused && ts.ask(who, client, w)
}

// ask has somebody find out whose ticket it is, once for all who wait; false: too
// many tickets of the connection are being asked about.
func (ts *IdentityPools) ask(who *Credentials, client Client, w Waiter) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	q := ts.asking[who.Hash]
	if q == nil {
		a := ts.askers[client]
		switch {
		case a == nil:
			a = &askingConn{client: client}
			ts.askers[client] = a
			ts.waiting = append(ts.waiting, a)
		case len(a.asks) == maxOfClient || ts.further == maxFurther:
			return false
		default:
			ts.further++
		}
		q = &question{hash: who.Hash, database: who.Database, ticket: who.Ticket}
		ts.asking[who.Hash] = q
		a.asks = append(a.asks, q)
		ts.askLocked()
	}
	if len(q.waiting) == maxWaiters {
		return false
	}
	q.waiting = append(q.waiting, w)
	return true
}

// askLocked asks as many questions as may be under way.
func (ts *IdentityPools) askLocked() {
	for ts.asks < maxAsks && len(ts.waiting) > 0 {
		a := ts.waiting[0]
		ts.waiting[0], ts.waiting = nil, ts.waiting[1:]
		q := a.asks[0]
		ts.asks++
		ts.runs.Go(func() {
			ts.find(q)
			ts.found(a, q)
		})
	}
}

// found lets the calls go on that wait for an answer, and has the next question asked.
func (ts *IdentityPools) found(a *askingConn, q *question) {
	ts.mu.Lock()
	waiting := q.waiting
	delete(ts.asking, q.hash)
	if a.asks = a.asks[1:]; len(a.asks) == 0 {
		delete(ts.askers, a.client)
	} else {
		ts.further--
		ts.waiting = append(ts.waiting, a)
	}
	ts.asks--
	ts.askLocked()
	ts.mu.Unlock()
	for _, w := range waiting {
		w.Wake()
	}
}

// find asks the cluster.
func (ts *IdentityPools) find(q *question) {
	ctx, cancel := context.WithTimeout(ts.ctx, askTimeout)
	defer cancel()
	key := string(q.hash[:])
	var user string
	var status Ydb.StatusIds_StatusCode
	err := panics.Call("the search for the owner of a ticket", func() error {
		user, status = ts.config.Cluster.WhoAmI(ctx, q.database, q.ticket)
		return nil
	})
	switch {
	case err != nil:
		ts.refused.Set(key, ErrNobodyKnows)
	case status == Ydb.StatusIds_UNAUTHORIZED:
		ts.refused.Set(key, ErrUnauthorized)
	case status != Ydb.StatusIds_SUCCESS:
		ts.refused.Set(key, ErrNobodyKnows)
	case user == "":
		ts.users.Set(key, "ticket "+hex.EncodeToString(q.hash[:]))
	default:
		ts.users.Set(key, "user "+user)
	}
}
