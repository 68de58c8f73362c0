package apps

import (
	"context"
	"sync/atomic"
	"time"
)

// Classes is the number of classes that figures are kept for; see pool.Class.
const Classes = 4

// Reason is why a call was refused.
type Reason uint8

// The reasons. The first four are quotas of the app.
const (
	ByOpen Reason = iota
	BySessions
	ByCalls
	ByBytes
	ByQueue    // the queue is full
	ByDeadline // it could not be done in time
	ByAge      // it waited for pool.queue_age
	ByDelay    // its wait was or would be too long, in a queue that did not empty
	ByTimeout  // its time was up in the queue, or its caller went away
	ByOthers   // no session for another reason

	reasons = int(ByOthers) + 1
)

// String returns the word for metrics; that of a limit is its name in Config.Quotas.
func (r Reason) String() string {
	return [reasons]string{"open", "sessions", "calls_per_second", "bytes_per_second", "queue_full", "deadline", "age",
		"delay", "timeout", "no_session"}[r]
}

// App is one app. Its methods may be called from any goroutine.
type App struct {
	registry *Registry
	name     string
	index    uint8
	quotas   atomic.Pointer[quotas] // what it points to is immutable
	gone     atomic.Bool            // its place is another's
	seen     atomic.Uint32
	stripes  []Stripe // as many as the registry has
	rejected

	patient atomic.Int64  // callers of Await that were not served at once
	first   chan struct{} // capacity 1: holds one while the first of them waits for a session
	freed   chan struct{} // capacity 1: a session is no longer asked for or in use

	_     [64]byte // written to by every call of an app that has a rate:
	calls bucket
	bytes bucket

	Held atomic.Int64 // bytes that requests hold: see memguard.Budget
}

// rejected counts calls of an app that got nothing, or less than they asked for.
type rejected struct {
	refused [Classes][reasons]atomic.Uint64
	denied  [grants]atomic.Uint64
	lowered atomic.Uint64 // calls that named a class above the highest of the app
}

// Stripe is where callers count what they use of an app. All stripes of an app are for
// all callers; those that keep to one of their own, as the shards of the data path do, do not
// write to each other's lines of the cache. Its methods may be called from any goroutine.
// What is counted in an app is counted between Enter and Leave of the same stripe.
type Stripe struct {
	*App
	work  *works // constant
	_     [64]byte
	open  atomic.Int64
	units atomic.Uint64 // consumed so far
	class [Classes]class
	cells cells
}

// class is the part of a class in a stripe.
type class struct {
	sessions atomic.Int64 // in use, and asked for or in use times oneAsked
	waits    window       // of all that were served
}

// oneAsked is a session that is asked for or in use, in class.sessions.
const oneAsked = 1 << 32

// Stripe returns the stripe that a number stands for.
func (a *App) Stripe(n int) *Stripe { return &a.stripes[n&(len(a.stripes)-1)] }

// sessions is how many are asked for or in use, times oneAsked, and in use.
func (a *App) sessions(class int) (sum int64) {
	for i := range a.stripes {
		sum += a.stripes[i].class[class].sessions.Load()
	}
	return sum
}

func (a *App) open() (sum int64) {
	for i := range a.stripes {
		sum += a.stripes[i].open.Load()
	}
	return sum
}

// Name returns the name.
func (a *App) Name() string { return a.name }

// Name returns the name of the app; "" of nil, which stands for nobody.
func (s *Stripe) Name() string {
	if s == nil {
		return ""
	}
	return s.name
}

// Named reports whether its callers gave that name, or proved it: it is neither Unnamed nor Other.
func (a *App) Named() bool { return a.index >= firstOwn }

// Index returns the number that stands for the app while it has a place.
func (a *App) Index() uint8 { return a.index }

// Weight returns its part of the queue next to that of others.
func (a *App) Weight() uint16 { return uint16(a.quotas.Load().weight) }

// ResourcePool returns the resource pool of the app's statements; "": the server chooses.
func (a *App) ResourcePool() string { return a.quotas.Load().poolID }

// Highest is the highest class that calls of the app may have: 0 is system, then come interactive, normal and batch.
func (a *App) Highest() uint8 { return a.quotas.Load().top }

// Lower counts a call that named a class above the highest of the app.
func (a *App) Lower() { a.lowered.Add(1) }

// Grants is what the app may do; nil: everything.
func (a *App) Grants() *Grants { return a.quotas.Load().grants }

// Deny counts a call that was refused by a grant.
func (a *App) Deny(by Grant) { a.denied[by].Add(1) }

// busy reports whether something is open. What calls leave open they do before they
// leave, so that it is seen if they are not.
func (a *App) busy() bool {
	if a.open() != 0 {
		return true
	}
	for i := range Classes {
		if a.sessions(i) != 0 {
			return true
		}
	}
	return false
}

// Enter begins a call, which Leave ends. It reports false if the app has lost its
// place: the registry has another one for the caller.
func (s *Stripe) Enter() bool {
	s.open.Add(1)
	if s.gone.Load() {
		s.open.Add(-1)
		return false
	}
	if now := s.registry.minute.Load(); s.seen.Load() != now {
		s.seen.Store(now)
	}
	return true
}

// Admit checks a call that has entered against the quotas of the app: calls open,
// calls and bytes a second. The error is a *Refusal.
func (s *Stripe) Admit(class uint8) error { return s.AdmitAll(class, 1) }

// AdmitAll is Admit for a call that begins as much as so many calls: all of them or none.
func (s *Stripe) AdmitAll(class uint8, calls int) error {
	l := s.quotas.Load()
	if l.calls.perSecond > 0 && int64(calls) > l.calls.burst {
		s.refused[class][ByCalls].Add(1)
		return &Refusal{App: s.name, Why: ByCalls, Limit: l.calls.burst, Calls: calls}
	}
	if l.open > 0 && s.App.open() > l.open {
		return s.refuse(class, ByOpen, l.open, 0)
	}
	if l.calls.perSecond == 0 && l.bytes.perSecond == 0 {
		return nil
	}
	now := s.registry.clock()
	if wait := s.bytes.debt(l.bytes, now); wait > 0 {
		return s.refuse(class, ByBytes, l.bytes.perSecond, wait)
	}
	if wait := s.calls.take(l.calls, now, int64(calls)); wait > 0 {
		return s.refuse(class, ByCalls, l.calls.perSecond, wait)
	}
	return nil
}

// Metered reports whether Leave wants to know how many bytes a call had.
func (a *App) Metered() bool { return a.quotas.Load().bytes.perSecond > 0 }

// Leave ends a call. bytes counts its request and answer together.
func (s *Stripe) Leave(bytes int) {
	if l := s.quotas.Load(); l.bytes.perSecond > 0 && bytes > 0 {
		s.bytes.spend(l.bytes, s.registry.clock(), int64(bytes))
	}
	s.open.Add(-1)
}

// Spend takes bytes of a call that goes on, and returns how long it should pause.
func (a *App) Spend(bytes int) (pause time.Duration) {
	l := a.quotas.Load()
	if l.bytes.perSecond == 0 {
		return 0
	}
	now := a.registry.clock()
	a.bytes.spend(l.bytes, now, int64(bytes))
	return a.bytes.debt(l.bytes, now)
}

// Consume counts the request units that nodes reported for a call.
func (s *Stripe) Consume(units uint64) { s.units.Add(units) }

// Ask counts a session that is asked for; Got or Lost says what came of that. The
// error is a *Refusal: then nothing is counted. Of callers that ask for the last one at
// the same instant all may be refused, but never more than the limit are served.
func (s *Stripe) Ask(class uint8) error {
	if most := s.ask(class); most > 0 {
		s.tell()
		return s.refuse(class, BySessions, most, 0)
	}
	return nil
}

// ask returns the limit if there are as many already; 0: the session is counted.
func (s *Stripe) ask(class uint8) (most int64) {
	s.class[class].sessions.Add(oneAsked)
	if most = s.quotas.Load().sessions; most > 0 && s.asked() > most {
		s.class[class].sessions.Add(-oneAsked)
		return most
	}
	return 0
}

// free takes back what was counted.
func (s *Stripe) free(class uint8, counted int64) {
	s.class[class].sessions.Add(-counted)
	s.tell()
}

// tell has the caller of Await whose turn it is look again.
func (a *App) tell() {
	if a.patient.Load() > 0 {
		select {
		case a.freed <- struct{}{}:
		default:
		}
	}
}

// Await is Ask for a caller that waits, while its app has as many sessions as it may, until
// one comes free. Such callers are served in the order in which they came, also if they came
// to different stripes. When ctx ends it is refused.
func (s *Stripe) Await(ctx context.Context, class uint8) error {
	if s.patient.Load() == 0 {
		if s.ask(class) == 0 {
			return nil
		}
		s.tell()
	}
	s.patient.Add(1) // before the next look: what comes free after that is told
	defer s.patient.Add(-1)
	select {
	case s.first <- struct{}{}:
		defer func() { <-s.first }()
	case <-ctx.Done():
		return s.refuse(class, BySessions, s.quotas.Load().sessions, 0)
	}
	look := time.NewTicker(retryOpen) // a limit that was raised is not told
	defer look.Stop()
	for {
		most := s.ask(class)
		if most == 0 {
			return nil
		}
		select {
		case <-s.freed:
		case <-look.C:
		case <-ctx.Done():
			return s.refuse(class, BySessions, most, 0)
		}
	}
}

// asked is how many sessions are asked for or in use. It is a sum and not a number of
// its own, which would have to be kept also while there is no limit: one may come.
func (a *App) asked() (sum int64) {
	for i := range Classes {
		sum += a.sessions(i)
	}
	return sum / oneAsked
}

// Got says that it has a session, which Done gives back.
func (s *Stripe) Got(class uint8, waited time.Duration) {
	c := &s.class[class]
	c.sessions.Add(1)
	c.waits.add(waited)
	s.waited(class, waited)
}

// Lost says that it gets none.
func (s *Stripe) Lost(class uint8, why Reason) {
	s.refused[class][why].Add(1)
	s.Cancel(class)
}

// Cancel takes back what was asked for: nobody wants it any more.
func (s *Stripe) Cancel(class uint8) { s.free(class, oneAsked) }

// Done ends the use of a session.
func (s *Stripe) Done(class uint8) { s.free(class, oneAsked+1) }

// retryOpen is when it makes sense to ask again for what comes free with a call.
const retryOpen = 100 * time.Millisecond

func (a *App) refuse(class uint8, why Reason, limit int64, wait time.Duration) error {
	a.refused[class][why].Add(1)
	if wait == 0 {
		wait = retryOpen
	}
	return &Refusal{App: a.name, Why: why, Limit: limit, Retry: max(wait, time.Millisecond)}
}

// Needs returns for how long work of that kind needs a session, at the least: most of
// it took longer. 0: nobody knows. kind is any number that the same work has again.
func (s *Stripe) Needs(class uint8, kind uint64) time.Duration {
	return s.work.needs(s.key(class, kind))
}

// Took says how long such work had a session.
func (s *Stripe) Took(class uint8, kind uint64, took time.Duration) {
	s.work.took(s.key(class, kind), took)
}

// key mixes what tells work apart, after the finalizer of MurmurHash3.
func (a *App) key(class uint8, kind uint64) uint64 {
	k := kind ^ (uint64(a.index)<<8|uint64(class)|1<<16)*0x9e3779b97f4a7c15
	k = (k ^ k>>33) * 0xff51afd7ed558ccd
	k = (k ^ k>>33) * 0xc4ceb9fe1a85ec53
	return k ^ k>>33
}

// rotate begins another window of the figures of the last minute.
func (a *App) rotate() {
	for i := range a.stripes {
		for c := range Classes {
			a.stripes[i].class[c].waits.rotate()
		}
	}
}
