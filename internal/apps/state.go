package apps

import (
	"cmp"
	"slices"
	"time"
)

// State is what there is to know of an app.
type State struct {
	App     string `json:"app"`
	Weight  int    `json:"weight"`
	Open    int64  `json:"open"`                     // calls
	Lowered uint64 `json:"lowered,omitempty"`        // calls that asked for a class above the highest of the app and ran in that
	Units   uint64 `json:"consumed_units,omitempty"` // request units that nodes reported so far, of both APIs
	Quotas  Quotas `json:"limits"`
	Grants  string `json:"grants,omitempty"` // as in apps.limits; "": it may do everything

	Denied  map[string]uint64 `json:"denied,omitempty"` // calls by the grant that refused them
	Classes []ClassState      `json:"classes"`          // the classes in which it ever asked for a session
}

// Quotas are those of an app; 0: none.
type Quotas struct {
	Open           int64  `json:"open,omitempty"`
	Sessions       int64  `json:"sessions,omitempty"`
	CallsPerSecond int64  `json:"calls_per_second,omitempty"`
	CallsBurst     int64  `json:"calls_burst,omitempty"`
	BytesPerSecond int64  `json:"bytes_per_second,omitempty"`
	BytesBurst     int64  `json:"bytes_burst,omitempty"`
	System         bool   `json:"system,omitempty"`  // its calls may have that class
	Class          string `json:"class"`             // the highest of its calls
	PoolID         string `json:"pool_id,omitempty"` // resource pool of its statements
}

// ClassState is the part of a class.
type ClassState struct {
	Class   string            `json:"class"`
	Waiting int64             `json:"waiting"`           // calls in the queue for a session
	InUse   int64             `json:"in_use"`            // sessions
	Due     float64           `json:"share"`             // of the class that is due to it while those use it that do now, 0 to 1
	Served  uint64            `json:"served"`            // sessions so far
	Refused map[string]uint64 `json:"refused,omitempty"` // calls by reason
	WaitP50 float64           `json:"wait_p50_ms"`       // in the queue, of the last minute
	WaitP99 float64           `json:"wait_p99_ms"`
}

// Refusals returns how many calls were refused so far, by reason.
func (s *ClassState) Refusals() (sum uint64) {
	for _, n := range s.Refused {
		sum += n
	}
	return sum
}

// NameOf is the name of the app that has the number now; "": nobody has.
func (r *Registry) NameOf(index uint8) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if int(index) >= len(r.all) || r.all[index] == nil {
		return ""
	}
	return r.all[index].name
}

// State lists the apps in order of their names. classes are the names of classes.
func (r *Registry) State(classes [Classes]string) []State {
	var weights [Classes]int // of the apps that use a class now
	r.each(func(a *App) {
		for i := range weights {
			if a.sessions(i) >= oneAsked {
				weights[i] += a.quotas.Load().weight
			}
		}
	})
	out := []State{}
	r.each(func(a *App) { out = append(out, a.state(classes, weights)) })
	slices.SortFunc(out, func(a, b State) int { return cmp.Compare(a.App, b.App) })
	return out
}

func (a *App) state(classes [Classes]string, weights [Classes]int) State {
	l := a.quotas.Load()
	s := State{App: a.name, Weight: l.weight, Open: a.open(), Lowered: a.lowered.Load(), Classes: []ClassState{}, Quotas: Quotas{
		Open: l.open, Sessions: l.sessions, CallsPerSecond: l.calls.perSecond, CallsBurst: l.calls.burst,
		BytesPerSecond: l.bytes.perSecond, BytesBurst: l.bytes.burst, System: l.top == 0, Class: topNames[l.top], PoolID: l.poolID,
	}}
	if l.grants != nil {
		s.Grants = l.grants.String()
	}
	for by := range a.denied {
		if n := a.denied[by].Load(); n > 0 {
			if s.Denied == nil {
				s.Denied = map[string]uint64{}
			}
			s.Denied[Grant(by).String()] = n
		}
	}
	for i := range a.stripes {
		s.Units += a.stripes[i].units.Load()
	}
	for i := range Classes {
		one := ClassState{Class: classes[i]}
		var waits [buckets]uint64
		for k := range a.stripes {
			w := &a.stripes[k].class[i].waits
			one.Served += w.sum()
			w.addTo(&waits)
		}
		sessions := max(0, a.sessions(i)) // stripes are read one after the other
		asked := sessions / oneAsked
		one.InUse = sessions % oneAsked
		one.Waiting = max(0, asked-one.InUse)
		for why := range a.refused[i] {
			if n := a.refused[i][why].Load(); n > 0 {
				if one.Refused == nil {
					one.Refused = map[string]uint64{}
				}
				one.Refused[Reason(why).String()] = n
			}
		}
		if asked == 0 && one.Served == 0 && one.Refused == nil {
			continue
		}
		others := weights[i]
		if asked == 0 {
			others += l.weight // if it asked now
		}
		one.Due = float64(l.weight) / float64(max(others, l.weight))
		marks := quantiles(&waits, 0.5, 0.99)
		one.WaitP50, one.WaitP99 = ms(marks[0]), ms(marks[1])
		s.Classes = append(s.Classes, one)
	}
	return s
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
