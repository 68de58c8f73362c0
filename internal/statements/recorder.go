package statements

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// The size of what a recorder remembers.
const (
	most       = 500         // digests
	usualTimes = 60          // minutes that tell what is usual
	textsTimes = 5           // minutes of texts
	Every      = time.Second // between two gatherings
)

// Recorder has the figures of all digests. Safe for concurrent use; nil has none.
type Recorder struct {
	seed    maphash.Seed
	keep    atomic.Bool // normal forms
	stripes atomic.Pointer[[]*Stripe]

	mu        sync.Mutex // guards all below, and comes before Stripe.mu
	digests   map[ID]*digest
	rest      Sums   // of digests that have no row
	forgotten uint64 // how often a digest made room
	since     time.Time
	minute    time.Time // beginning of this one
	series    series
}

// digest is what is known of one. Wide: it has the figures of three times and the marks of the rules.
type digest struct {
	id              ID
	kind, text, app string
	first, last     time.Time // calls, as they were gathered

	total, now, minute figures // since the start, in this minute, in the last whole one

	usual [usualTimes]time.Duration // medians of the hop in the last minutes, the newest first; 0: too few calls
	texts [textsTimes]textSet       // the newest first
	score float64                   // time of its calls, of which a tenth is forgotten each minute
	base  time.Duration             // what is usual, as of the last minute; 0: not known
	slow  bool
	many  bool

	shown bool // it has a series of its own
	from  Sums // total when that began
}

// New returns a recorder.
func New(c Config) *Recorder {
	r := &Recorder{seed: maphash.MakeSeed(), digests: map[ID]*digest{}, since: time.Now(), minute: time.Now()}
	r.keep.Store(c.Texts)
	r.stripes.Store(&[]*Stripe{})
	return r
}

// NewStripe returns one more stripe.
func (r *Recorder) NewStripe() *Stripe {
	if r == nil {
		return nil
	}
	s := &Stripe{of: r, byID: map[ID]int32{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(slices.Clone(*r.stripes.Load()), s)
	r.stripes.Store(&all)
	return s
}

// slots is how many digests each stripe may have.
func (r *Recorder) slots() int {
	return min(max(allSlots/max(len(*r.stripes.Load()), 1), leastSlots), mostSlots)
}

// Run gathers until ctx ends. It returns nil.
func (r *Recorder) Run(ctx context.Context) error {
	ticker := time.NewTicker(Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			_ = panics.Call("the gathering of statements", func() error { r.Gather(now); return nil })
		}
	}
}

// Gather takes what the stripes counted, and ends a minute if it is over. Run calls it.
func (r *Recorder) Gather(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range *r.stripes.Load() {
		rest, fell := s.take(func(t *taken) { r.takeLocked(t, now) })
		r.rest.add(&rest)
		r.series.rest.add(&rest)
		r.forgotten += fell
	}
	turned := now.Sub(r.minute) >= time.Minute
	for _, d := range r.digests {
		d.hasMany()
		if turned {
			d.turn()
		}
	}
	if turned {
		r.minute = now
		r.chooseLocked()
	}
}

// takeLocked adds what a stripe counted to its digest.
func (r *Recorder) takeLocked(t *taken, now time.Time) {
	d := r.digests[t.id]
	if d == nil {
		if len(r.digests) >= most {
			r.forgetLocked()
		}
		d = &digest{id: t.id, kind: t.kind, first: now}
		r.digests[t.id] = d
		r.series.enter(d)
	}
	if t.text != "" && r.keep.Load() {
		d.text = t.text
	}
	if t.Calls == 0 {
		return
	}
	d.app, d.last = t.app, now
	d.total.add(&t.figures)
	d.now.add(&t.figures)
	d.texts[0].join(&t.texts)
	if !d.shown {
		r.series.rest.add(&t.Sums)
	}
}

// forgetLocked makes room for a digest: the one goes whose calls took the least time lately, of those that have no series.
func (r *Recorder) forgetLocked() {
	var least *digest
	for _, d := range r.digests {
		if !d.shown && (least == nil || d.weight() < least.weight()) {
			least = d
		}
	}
	r.rest.add(&least.total.Sums)
	r.forgotten++
	delete(r.digests, least.id)
}

// weight is the time that the digest's calls took lately.
func (d *digest) weight() float64 { return d.score + d.now.Took.Seconds() }

// turn ends a minute.
func (d *digest) turn() {
	d.score = d.score*0.9 + d.now.Took.Seconds()
	d.minute, d.now = d.now, figures{}
	d.isSlow()
	copy(d.usual[1:], d.usual[:])
	d.usual[0] = d.medianHop(usualCalls)
	copy(d.texts[1:], d.texts[:])
	d.texts[0] = textSet{}
}
