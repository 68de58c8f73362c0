package virtual

import (
	"slices"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// What a statement is.
const (
	plain = iota
	atOnce
	begins
	beginsByCall
	goesOn
	commits
	ends // by a call for it
	tables
	explains // and asks for a commit
	kinds
)

// What comes of a call.
const (
	fine       = iota
	fineUnsaid // without tx_meta
	notRun
	aborted
	refused  // by a status that keeps sessions
	violated // refused, which has ended the transaction
	broken
	failed // INTERNAL_ERROR
	givenUp
	forgotten
	outcomes
)

// settle ends a call. Its node does what it was asked for, or not, and the client hears so much of it.
func (w *walk) settle(v *seen, how int) {
	l := v.call
	tx := uint64(0)
	if len(v.open) > 0 {
		tx = v.open[w.below(len(v.open))]
	}
	o, doubt := w.runs(l, tx, how, v.told)
	v.told = 0
	w.tell("the call on session %d ends: %+v, %+v, bound %v, closing %v", v.number, l.Request, o, l.Bound, l.Closing)
	w.settled(v, o, doubt)
}

// hear has the first part of an answer name a transaction that the call has begun.
func (w *walk) hear() {
	v := w.pick(func(v *seen) bool { return v.call != nil && v.call.Server != nil && v.told == 0 })
	if v == nil {
		return
	}
	w.tx++
	v.told = w.tx
	w.tell("the call on session %d has begun transaction %d", v.number, v.told)
	v.call.Server.Resource().(*onNode).open[v.told] = true
	if w.vs.Tell(v.call, v.told); v.ended {
		return
	}
	if v.has = v.call.Server; len(v.open) < maxOpen {
		v.open = append(v.open, v.told)
	}
}

// alone has a call without a session.
func (w *walk) alone() {
	v := &seen{call: &Use{Identity: w.identity}}
	w.checkOut(v)
	l, lease := v.call, v.call.Server
	o, doubt := w.runs(l, 0, max(fine, w.below(2*outcomes)-outcomes), 0)
	w.tell("a call without a session ends: %+v, %+v, closing %v", l.Request, o, l.Closing)
	closing := l.Closing
	r, watch := w.vs.Settle(w.vs.Stripe(0), l, o)
	if r.Server != lease || watch != nil || lease != nil && r.Fate == Kept {
		w.Errorf("%+v, %v", r, watch)
	}
	if lease == nil {
		return
	}
	s := lease.Resource().(*onNode)
	q := &l.Request
	// nobody looks what the node made of these
	useless := doubt || closing || s.dirty() || o.Ran && (q.Temporary || q.Begin && !q.Commit || o.Role == protocol.RoleBegin)
	if useless != (r.Fate != Released) {
		w.Errorf("on %s there is %+v, in doubt %v, closing %v; its fate is %d", s.name, s, doubt, closing, r.Fate)
	}
	if r.Fate == Recovered {
		clear(s.open)
	}
	w.back(v, r)
}

// runs has a node do what a call asked for, or not. told: the transaction that the answer has named
// already. doubt: nobody can know whether something is on the server session.
func (w *walk) runs(l *Use, tx uint64, how int, told uint64) (o *Outcome, doubt bool) {
	kind := w.below(kinds)
	if tx != 0 && w.below(3) == 0 {
		kind = begins // there is a limit
	}
	if tx == 0 && (kind == goesOn || kind == commits || kind == ends) {
		kind = plain
	}
	if told != 0 {
		kind = begins
		if how == notRun {
			how = fine
		}
		defer func() {
			if how != fineUnsaid {
				o.HasMeta, o.MetaTx = true, told
			}
			if o.Clean && o.Status != Ydb.StatusIds_SUCCESS && w.below(2) == 0 {
				o.MetaTx = 0
			}
		}()
	}
	q := &l.Request
	o = &Outcome{Role: asks(q, kind, tx)}
	l.Closing = l.Server != nil && w.below(20) == 0
	if l.Server == nil || how == notRun {
		return o, false
	}
	s := l.Server.Resource().(*onNode)
	does := how == fine || how == fineUnsaid || how >= broken && w.below(2) == 0
	if does {
		switch kind {
		case begins, beginsByCall, explains:
			if told == 0 {
				w.tx++
				s.open[w.tx] = true
			}
			o.HasMeta, o.MetaTx = true, w.tx
		case atOnce:
			o.HasMeta = true
		case goesOn:
			o.HasMeta, o.MetaTx = true, tx
		case commits, ends:
			delete(s.open, tx)
			o.HasMeta = true
		}
	}
	if kind == tables { // settings of PostgreSQL's syntax are made before the statement fails
		s.temporary = true
	}
	o.Ran = true
	return o, answers(l, o, kind, how, told)
}

// asks makes the request of a kind of call, in a transaction if tx is not 0.
func asks(q *Request, kind int, tx uint64) (role protocol.Role) {
	role = protocol.RoleUse
	switch kind {
	case atOnce, explains:
		q.Begin, q.Commit = true, true
	case begins:
		q.Begin = true
	case beginsByCall:
		role = protocol.RoleBegin
	case goesOn:
		q.HasTx, q.Tx = true, tx
	case commits:
		q.HasTx, q.Tx, q.Commit = true, tx, true
	case ends:
		q.HasTx, q.Tx, role = true, tx, protocol.RoleEnd
	case tables:
		q.Temporary = true
	}
	return role
}

// answers makes the end of a call that its node was sent.
func answers(l *Use, o *Outcome, kind, how int, told uint64) (doubt bool) {
	q, s := &l.Request, l.Server.Resource().(*onNode)
	doubt = true
	switch how {
	case fine:
		o.Status, o.Clean, doubt = Ydb.StatusIds_SUCCESS, true, len(s.open) > maxOpen
	case fineUnsaid:
		doubt = kind == begins || kind == beginsByCall || kind == explains || kind == atOnce || kind == commits
		o.Status, o.Clean, o.HasMeta, o.MetaTx = Ydb.StatusIds_SUCCESS, true, false, 0
	case aborted:
		delete(s.open, tx0(q))
		delete(s.open, told)
		o.Status, o.Clean, doubt = Ydb.StatusIds_ABORTED, true, false
	case refused:
		o.Status, o.Clean = Ydb.StatusIds_PRECONDITION_FAILED, true
		doubt = q.HasTx || kind == begins || kind == beginsByCall
	case violated:
		delete(s.open, tx0(q))
		delete(s.open, told)
		o.Status, o.Clean, o.Ended, doubt = Ydb.StatusIds_PRECONDITION_FAILED, true, true, false
	case failed:
		o.Status = Ydb.StatusIds_INTERNAL_ERROR
		o.HasMeta, o.MetaTx = false, 0
	case givenUp:
		o.GivenUp = true
		o.HasMeta, o.MetaTx = false, 0
	case forgotten:
		o.Status, o.Gone = Ydb.StatusIds_BAD_SESSION, true
		o.HasMeta, o.MetaTx = false, 0
		clear(s.open)
		s.temporary = false
	default:
		o.HasMeta, o.MetaTx = false, 0
	}
	return doubt
}

// tx0 is the transaction that a request names; 0: none.
func tx0(q *Request) uint64 {
	if q.HasTx {
		return q.Tx
	}
	return 0
}

// settled compares what became of the server session with what the node says of it. doubt: nobody can know
// whether something is on it.
func (w *walk) settled(v *seen, o *Outcome, doubt bool) {
	l, lease := v.call, v.call.Server
	q, had, closing := l.Request, len(v.open) > 0 || v.table, v.closing || l.Closing
	r, watch := w.vs.Settle(w.vs.Stripe(v.stripe), l, o)
	v.call = nil
	if l.Server != nil || l.Session != nil {
		w.Errorf("the use keeps %+v", l)
	}
	if lease == nil {
		if r.Server != nil || watch != nil {
			w.Errorf("%+v, %v; nothing was lent", r, watch)
		}
	} else {
		s := lease.Resource().(*onNode)
		if s.forgotten != o.Gone || s.failed != (o.Status == Ydb.StatusIds_INTERNAL_ERROR) {
			w.Errorf("the server session was told forgotten %v, failed %v", s.forgotten, s.failed)
		}
		goes := w.asked && len(s.open) == 0 && v.attached != nil && !doubt && !v.ended
		alone := !had && !q.HasTx && q.Begin == q.Commit && !q.Temporary && !closing && o.Role == protocol.RoleUse && o.MetaTx == 0
		want := fateOf(s, doubt, o.GivenUp && alone, v.ended || goes, closing, v.always)
		if want == Recovered {
			clear(s.open) // the node rolls back what was given up
		}
		if r.Fate != want || r.Server != lease {
			w.Errorf("%v: the server session's fate is %d; want %d, in doubt %v, %+v", s.name, r.Fate, want, doubt, s)
		}
		stays := want == Kept
		if (watch != nil) != (stays && v.attached == nil) || watch != nil && watch != Client(v.client) {
			w.Errorf("watches %v", watch)
		}
		if v.has, v.open, v.table, v.closing = nil, nil, false, false; stays {
			v.has, v.table, v.closing = lease, s.temporary, closing
			for tx := range s.open {
				v.open = append(v.open, tx)
			}
			slices.Sort(v.open)
		}
		switch {
		// else the client was told that it failed
		case doubt && r.Fate == Discarded && (o.Status == 0 || o.Status == Ydb.StatusIds_SUCCESS || o.Gone):
			v.lost = had || q.Begin || o.Role == protocol.RoleBegin
		case !doubt && o.Ran:
			v.lost = false
		}
		if o.Gone && v.attached != nil && !v.ended {
			w.streamEnds(v)
		}
		if goes {
			w.gone(v)
		}
		w.back(v, r)
	}
	if v.used = time.Now(); len(v.open) == 0 {
		delete(w.staying, v)
	}
	if v.ended {
		w.over = slices.DeleteFunc(w.over, func(o *seen) bool { return o == v })
	}
}

// fateOf returns what is to become of a server session after a call. recovers: the
// call was given up, and nothing but it can be on the session. over: the virtual
// session has ended.
func fateOf(s *onNode, doubt, recovers, over, closing, always bool) Fate {
	switch {
	case doubt && recovers:
		return Recovered
	case doubt:
		return Discarded
	case over && (s.dirty() || closing):
		return Discarded
	case over:
		return Released
	case s.dirty(), always && !closing:
		return Kept
	case closing:
		return Discarded
	}
	return Released
}
