package findings

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Every is how often a Watch is to be shown a Picture.
const Every = time.Second

// past is how many Pictures the rules look back on: for what comes and goes
// within a second, such as a full pool.
const past = 10

// repeats is the time in which the beginnings of a finding are counted.
const repeats = 10 * time.Minute

// Watch finds what is wrong. Its methods may be called from any goroutine.
type Watch struct {
	mu     sync.Mutex // guards all below
	seen   []Picture  // the newest last, at most past
	base   base
	known  map[key]*standing
	began  map[key][]time.Time // by key without a session, those within repeats
	report Report
}

// key tells findings of one code apart.
type key struct {
	code    Code
	node    uint32
	app     string
	session string
	digest  string
}

// keyOf returns the key of a finding. The app of a crowded pool is no part of it: another app may
// come to send most while the pool is crowded.
func keyOf(f *Finding) key {
	switch f.Code {
	case Overload, PoolSmall, ClusterOverloaded:
		return key{code: f.Code}
	case SessionsHeld: // the node is that of the longest transaction
		return key{code: f.Code, app: f.App}
	}
	return key{f.Code, f.Node, f.App, f.Session, f.Digest}
}

// standing is a finding that was seen lately.
type standing struct {
	since time.Time
	row   int // Pictures in a row that showed it
	told  bool
	times int // beginnings within repeats, with this one
	last  Finding
}

// New returns a watch that has seen nothing.
func New() *Watch {
	return &Watch{known: map[key]*standing{}, began: map[key][]time.Time{},
		report: Report{Summary: summaryOf(nil), Findings: []Finding{}}}
}

// Report returns the findings of the last Look.
func (w *Watch) Report() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report
}

// Look takes one more Picture, and returns the findings that began and ended
// with it. It takes over p.
func (w *Watch) Look(p Picture) (began, ended []Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) == past {
		w.seen = slices.Delete(w.seen, 0, 1)
	}
	w.seen = append(w.seen, p)
	size := p.Answers.since(w.seen[0].Answers)
	w.base.add(p, size)
	w.forget(p.At)
	least := w.base.least()
	v := view{Picture: p, seen: w.seen, known: w.known, base: least.latency, size: size, usual: least.size}
	all := []Finding{}
	shown := map[key]bool{}
	for _, f := range v.findings() {
		if f.Code == SessionsHeld {
			w.seen[len(w.seen)-1].held = true
		}
		k := keyOf(&f)
		_, kind := kindOf(f.Code)
		s := w.known[k]
		if s == nil {
			s = &standing{since: p.At}
			w.known[k] = s
		}
		shown[k] = true
		s.row++
		if s.row < kind.hold {
			continue
		}
		begins := !s.told
		if begins {
			s.told, s.times = true, w.begin(k, p.At)
		}
		s.last = complete(f, kind, s)
		if begins {
			began = append(began, s.last)
		}
		all = append(all, s.last)
	}
	for k, s := range w.known {
		if !shown[k] {
			delete(w.known, k)
			if s.told {
				ended = append(ended, s.last)
			}
		}
	}
	all = sorted(causes(all))
	w.report = Report{At: p.At, Summary: summaryOf(all), Findings: all}
	return sorted(began), sorted(ended)
}

// followNoNode are what must be found, too, when no node can be used.
var followNoNode = []Code{NodeDead, NodePanic, DiscoveryFails, SessionsFail, Overload, PoolSmall, ClusterSlow}

// causes leaves out what follows from another finding, which names it.
func causes(all []Finding) []Finding {
	if !slices.ContainsFunc(all, func(f Finding) bool { return f.Code == NoNode }) {
		return all
	}
	return slices.DeleteFunc(all, func(f Finding) bool { return slices.Contains(followNoNode, f.Code) })
}

// complete adds what does not depend on the Picture.
func complete(f Finding, kind Kind, s *standing) Finding {
	f.Since, f.Times, f.Do = s.since, s.times, kind.Do
	if f.Severity == "" {
		f.Severity = kind.Severity
	}
	if f.Node != 0 {
		f.Do = strings.ReplaceAll(f.Do, " NODE", " "+strconv.FormatUint(uint64(f.Node), 10))
	}
	return f
}

// begin notes that a finding begins, and returns how often it did so lately.
func (w *Watch) begin(k key, now time.Time) int {
	k.session = ""
	w.began[k] = append(w.began[k], now)
	return len(w.began[k])
}

// forget drops the beginnings that are too long ago to be counted.
func (w *Watch) forget(now time.Time) {
	for k, all := range w.began {
		all = slices.DeleteFunc(all, func(at time.Time) bool { return now.Sub(at) >= repeats })
		if w.began[k] = all; len(all) == 0 {
			delete(w.began, k)
		}
	}
}

// base remembers what latency is usual: the least of all minutes of the last ten,
// each with the least that its Pictures showed.
type base struct {
	minute [10]usual
	at     int64
}

// usual is a latency, and how many bytes an answer had then; 0: unknown.
type usual struct {
	latency time.Duration
	size    uint64
}

// or returns the one with less latency; of two that have the same, as while no call comes, one whose size is known.
func (u usual) or(o usual) usual {
	if o.latency > 0 && (u.latency == 0 || o.latency < u.latency || o.latency == u.latency && u.size == 0) {
		return o
	}
	return u
}

func (b *base) add(p Picture, size uint64) {
	latency := typical(p.Nodes, Node.latency)
	if now := p.At.Unix() / 60; now != b.at {
		for ; b.at < now && now-b.at <= int64(len(b.minute)); b.at++ {
			b.minute[(b.at+1)%int64(len(b.minute))] = usual{}
		}
		if b.at != now {
			*b = base{at: now}
		}
	}
	slot := &b.minute[b.at%int64(len(b.minute))]
	*slot = slot.or(usual{latency, size})
}

func (b *base) least() (least usual) {
	for _, u := range b.minute {
		least = least.or(u)
	}
	return least
}
