package apps

import (
	"sync/atomic"
	"time"
)

// Classes is the number of classes that figures are kept for; see pool.Class.
const Classes = 4

// Reason is why a call was refused.
type Reason uint8

// The reasons. The first four are limits of the app.
const (
	ByOpen Reason = iota
	BySessions
	ByCalls
	ByBytes
	ByQueue    // the line is full
	ByDeadline // it could not be done in time
	ByAge      // it was in the line for too long
	ByDelay    // the same, while too many wait
	ByTimeout  // its time was up in the line
	ByOthers   // no session for another reason

	reasons = int(ByOthers) + 1
)

// String returns the word for metrics; that of a limit is its name in Config.Limits.
func (r Reason) String() string {
	return [reasons]string{"open", "sessions", "calls_per_second", "bytes_per_second", "queue_full", "deadline", "age", "delay", "timeout", "no_session"}[r]
}

// App is one app. Its methods may be called from any goroutine. What is counted in
// an app is counted between Enter and Leave.
type App struct {
	registry *Registry
	name     string
	index    uint8
	limits   atomic.Pointer[limits] // what it points to is immutable
	gone     atomic.Bool            // its place is another's
	seen     atomic.Uint32

	_     [64]byte // written to by every call:
	open  atomic.Int64
	calls bucket
	bytes bucket
	class [Classes]class
}

// class is the part of a class in an app.
type class struct {
	sessions atomic.Int64 // in use, and asked for or in use times oneAsked
	refused  [reasons]atomic.Uint64
	waits    window // of all that were served
}

// oneAsked is a session that is asked for or in use, in class.sessions.
const oneAsked = 1 << 32

func (c *class) asked() int64 { return c.sessions.Load() / oneAsked }

// Name returns the name.
func (a *App) Name() string { return a.name }

// Index returns the number that stands for the app while it has a place.
func (a *App) Index() uint8 { return a.index }

// Weight returns its part of the line next to that of others.
func (a *App) Weight() uint16 { return uint16(a.limits.Load().weight) }

func (a *App) busy() bool {
	for i := range a.class {
		if a.class[i].sessions.Load() != 0 {
			return true
		}
	}
	return a.open.Load() != 0
}

// Enter begins a call, which Leave ends. It reports false if the app has lost its
// place: the registry has another one for the caller.
func (a *App) Enter() bool {
	a.open.Add(1)
	if a.gone.Load() {
		a.open.Add(-1)
		return false
	}
	if now := a.registry.minute.Load(); a.seen.Load() != now {
		a.seen.Store(now)
	}
	return true
}

// Admit checks a call that has entered against the limits of the app: calls open,
// calls and bytes a second. The error is a *Refusal.
func (a *App) Admit(class uint8) error {
	l := a.limits.Load()
	if l.open > 0 && a.open.Load() > l.open {
		return a.refuse(class, ByOpen, l.open, 0)
	}
	if l.calls.perSecond == 0 && l.bytes.perSecond == 0 {
		return nil
	}
	now := a.registry.clock()
	if wait := a.bytes.debt(l.bytes, now); wait > 0 {
		return a.refuse(class, ByBytes, l.bytes.perSecond, wait)
	}
	if wait := a.calls.take(l.calls, now); wait > 0 {
		return a.refuse(class, ByCalls, l.calls.perSecond, wait)
	}
	return nil
}

// Metered reports whether Leave wants to know how many bytes a call had.
func (a *App) Metered() bool { return a.limits.Load().bytes.perSecond > 0 }

// Leave ends a call of so many bytes, of request and answer together.
func (a *App) Leave(bytes int) {
	if l := a.limits.Load(); l.bytes.perSecond > 0 && bytes > 0 {
		a.bytes.spend(l.bytes, a.registry.clock(), int64(bytes))
	}
	a.open.Add(-1)
}

// Spend takes bytes of a call that goes on, and returns how long it should pause.
func (a *App) Spend(bytes int) (pause time.Duration) {
	l := a.limits.Load()
	if l.bytes.perSecond == 0 {
		return 0
	}
	now := a.registry.clock()
	a.bytes.spend(l.bytes, now, int64(bytes))
	return a.bytes.debt(l.bytes, now)
}

// Ask counts a session that is asked for; Got or Lost says what came of that. The
// error is a *Refusal: then nothing is counted. Of callers that ask for the last one at
// the same instant all may be refused, but never more than the limit are served.
func (a *App) Ask(class uint8) error {
	a.class[class].sessions.Add(oneAsked)
	if most := a.limits.Load().sessions; most > 0 && a.asked() > most {
		a.class[class].sessions.Add(-oneAsked)
		return a.refuse(class, BySessions, most, 0)
	}
	return nil
}

// asked is how many sessions are asked for or in use. It is a sum and not a number of
// its own, which would have to be kept also while there is no limit: one may come.
func (a *App) asked() (sum int64) {
	for i := range a.class {
		sum += a.class[i].asked()
	}
	return sum
}

// Got says that it has a session, which Done gives back.
func (a *App) Got(class uint8, waited time.Duration) {
	c := &a.class[class]
	c.sessions.Add(1)
	c.waits.add(waited)
}

// Lost says that it gets none.
func (a *App) Lost(class uint8, why Reason) {
	a.class[class].refused[why].Add(1)
	a.Cancel(class)
}

// Cancel takes back what was asked for: nobody wants it any more.
func (a *App) Cancel(class uint8) { a.class[class].sessions.Add(-oneAsked) }

// Done ends the use of a session.
func (a *App) Done(class uint8) { a.class[class].sessions.Add(-oneAsked - 1) }

// retryOpen is when it makes sense to ask again for what comes free with a call.
const retryOpen = 100 * time.Millisecond

func (a *App) refuse(class uint8, why Reason, limit int64, wait time.Duration) error {
	a.class[class].refused[why].Add(1)
	if wait == 0 {
		wait = retryOpen
	}
	return &Refusal{App: a.name, Why: why, Limit: limit, Retry: max(wait, time.Millisecond)}
}

// Needs returns for how long work of that kind needs a session, at the least: most of
// it took longer. 0: nobody knows. kind is any number that the same work has again.
func (a *App) Needs(class uint8, kind uint64) time.Duration {
	return a.registry.work.needs(a.key(class, kind))
}

// Took says how long such work had a session.
func (a *App) Took(class uint8, kind uint64, took time.Duration) {
	a.registry.work.took(a.key(class, kind), took)
}

// key mixes what tells work apart, after the finalizer of MurmurHash3.
func (a *App) key(class uint8, kind uint64) uint64 {
	k := kind ^ (uint64(a.index)<<8|uint64(class)|1<<16)*0x9e3779b97f4a7c15
	k = (k ^ k>>33) * 0xff51afd7ed558ccd
	k = (k ^ k>>33) * 0xc4ceb9fe1a85ec53
	return k ^ k>>33
}

// turn begins another window of the figures of the last minute.
func (a *App) turn() {
	for i := range a.class {
		a.class[i].waits.turn()
	}
}
