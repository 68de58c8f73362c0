package statements

import (
	"slices"
	"time"
)

// What the rules go by.
const (
	manyTexts = 100 // texts of one digest in the last minutes begin a finding,
	fewTexts  = 50  // and fewer than this end it

	slowTimes  = 3                    // the median of a minute against what is usual begins one,
	slowMore   = 5 * time.Millisecond // if the difference is larger than this
	slowCalls  = 20                   // and the minute has at least 20 calls
	quickTimes = 2                    // a smaller multiple ends it,
	quickMore  = 2 * time.Millisecond // or a smaller difference,
	quickCalls = 10                   // or fewer calls

	usualCalls = 5  // calls of a minute that counts for what is usual
	usualLeast = 10 // minutes that must count
)

// allTexts is about how many texts the digest had in the last minutes.
func (d *digest) allTexts() int {
	var all textSet
	for i := range d.texts {
		all.join(&d.texts[i])
	}
	return all.size()
}

// hasMany looks whether the digest has many texts.
func (d *digest) hasMany() {
	n := d.allTexts()
	d.many = n > manyTexts || d.many && n >= fewTexts
}

// medianHop is the median of the last whole minute; 0 if it has too few calls.
func (d *digest) medianHop(least uint64) time.Duration {
	if d.minute.Calls < least {
		return 0
	}
	return d.minute.hop.Quantile(0.5, int(d.minute.Calls))
}

// isSlow compares the last whole minute with those before, which it is not part of yet.
func (d *digest) isSlow() {
	known := slices.DeleteFunc(slices.Clone(d.usual[:]), func(t time.Duration) bool { return t == 0 })
	if d.base = 0; len(known) < usualLeast {
		d.slow = false
		return
	}
	slices.Sort(known)
	d.base = known[len(known)/2]
	times, more, calls := time.Duration(slowTimes), slowMore, uint64(slowCalls)
	if d.slow {
		times, more, calls = quickTimes, quickMore, quickCalls
	}
	took := d.medianHop(calls)
	d.slow = took > times*d.base && took > d.base+more
}

// Unusual is a digest about which there is something to say.
type Unusual struct {
	ID        ID
	Kind, App string
	Texts     int           // about how many it had in the last minutes
	Many      bool          // more texts than a parameterised statement has
	Slow      bool          // calls take longer than they did
	Took      time.Duration // median of the hop in the last minute
	Usual     time.Duration // usual median of the hop
	Calls     uint64        // in the last minute
}

// maxUnusual bounds a list of them.
const maxUnusual = 20

// Unusual returns the digests about which there is something to say, those first whose calls took the most time lately.
func (r *Recorder) Unusual() (all []Unusual) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var of []*digest
	for _, d := range r.digests {
		if d.many || d.slow {
			of = append(of, d)
		}
	}
	byWeight(of)
	for _, d := range of[:min(len(of), maxUnusual)] {
		all = append(all, Unusual{ID: d.id, Kind: d.kind, App: d.app, Texts: d.allTexts(), Many: d.many, Slow: d.slow,
			Took: d.medianHop(1), Usual: d.base, Calls: d.minute.Calls})
	}
	return all
}
