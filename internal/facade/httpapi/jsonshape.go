package httpapi

import (
	"bytes"
	"encoding/json"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
)

// checkShape refuses JSON that nests deeper than limit, or has an object with
// two members of one name: a decoder would silently take the last one. It need
// not be JSON at all: that is for others to find out. It returns how many values there are. take takes what it keeps from the memory
// for requests, and says why if there is none; nil: raw is short.
func checkShape(raw []byte, limit int, take func(int) string) (values int, err error) {
	return checkNames(raw, limit, &shape{take: take})
}

// checkRequest is checkShape of a request. It also refuses names like "Idempotent",
// which a decoder would take for the request's own, and more parameters, types or statements than are allowed: those of
// a long list would be decoded for nothing.
func checkRequest(raw []byte, api core.API, take func(int) string) (values int, err error) {
	return checkNames(raw, api.MaxDepth, &shape{ours: true, api: api, take: take})
}

func checkNames(raw []byte, limit int, seen *shape) (values int, err error) {
	defer seen.end()
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			begin := i
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
			name := raw[begin:min(i+1, len(raw))]
			switch seen.add(name) {
			case nameTwice:
				return 0, core.BadRequest("the member %.64s appears twice in one object; send it once", name)
			case nameNoRoom:
				return 0, core.TooMuch(seen.why)
			case nameTooMany:
				return 0, core.Faultf(core.CodeLimit, "an object has more than %d members", mostMembers)
			case nameForeign:
				return 0, core.BadRequest("the member %.64s is unknown; names of members are in lower case", name)
			}
		case '{', '[':
			values++
			seen.open(raw[i] == '{')
			if len(seen.levels) > limit {
				return 0, core.OverLimit("depth of the JSON", limit, limit, "api.max_depth")
			}
		case '}', ']':
			seen.close()
		case ',':
			values++
			if err := seen.next(); err != nil {
				return 0, err
			}
		}
	}
	return values + 1, nil
}

// fewMembers is how many names are compared one by one before a map is made.
const fewMembers = 32

// mostMembers is how many members an object may have: a struct may name as many types (yql). It is fewMembers times a power of two.
const mostMembers = 16 << 10

// memberCost is what a name in such a map takes beside its text, in bytes: measured 40 to 90, while it grows.
const memberCost = 96

// shape knows the names of the members of every object that is open.
type shape struct {
	ours   bool     // the outermost value is a request
	api    core.API // its bounds, if it is
	levels []level
	names  [][]byte            // of all of them, quotes included, innermost last
	spare  map[string]struct{} // an empty one; nil: there is none

	take func(int) string // takes memory for maps; nil: none is needed
	took int              // by it
	why  string           // there is none
}

// takeFor takes the memory for that number of further names in a map.
func (m *shape) takeFor(names int) bool {
	if m.take == nil {
		return true
	}
	if m.why = m.take(memberCost * names); m.why != "" {
		return false
	}
	m.took += memberCost * names
	return true
}

// end gives back what was taken.
func (m *shape) end() {
	if m.took != 0 {
		m.take(-m.took)
	}
}

// level is an object or an array that is open.
type level struct {
	object bool
	due    bool // a name comes next
	ours   bool // the names are those of requests, not of a caller's parameters and rows
	within bool // the names in the value of the last member are those of requests
	first  int  // of its names
	many   map[string]struct{}
	room   int // names for which many has taken memory

	bound   core.Bound // bound on the number of entries
	entries int        // entries that have ended
	next    core.Bound // bound on the entries of the value of the last member
}

func (m *shape) open(object bool) {
	ours, bound := m.ours, core.Bound{}
	if n := len(m.levels); n > 0 {
		ours, bound = m.levels[n-1].within, m.levels[n-1].next
	}
	m.levels = append(m.levels, level{object: object, due: object, ours: ours, within: ours && !object, first: len(m.names), bound: bound})
}

func (m *shape) close() {
	n := len(m.levels)
	if n == 0 {
		return
	}
	p := &m.levels[n-1]
	if p.many != nil {
		m.takeFor(-p.room)
		if p.room == 2*fewMembers { // rows of a table with many columns have one after the other
			clear(p.many)
			m.spare = p.many
		}
	}
	m.names, m.levels = m.names[:p.first], m.levels[:n-1]
}

func (m *shape) next() error {
	if len(m.levels) == 0 {
		return nil
	}
	p := &m.levels[len(m.levels)-1]
	p.due = p.object
	if p.entries++; p.entries >= p.bound.Most && p.bound.Most > 0 {
		return p.bound.Exceeded()
	}
	return nil
}

// What there is to say of a string.
const (
	nameGood    = iota // or no name
	nameTwice          // the object has a member of this name already
	nameForeign        // no request has such a name
	nameNoRoom         // there is no memory for it
	nameTooMany        // the object has mostMembers
)

// add takes a string, which may be the name of a member.
func (m *shape) add(name []byte) int {
	if len(m.levels) == 0 || !m.levels[len(m.levels)-1].due {
		return nameGood // a value
	}
	p := &m.levels[len(m.levels)-1]
	p.due = false
	if bytes.IndexByte(name, '\\') >= 0 {
		var plain string
		if json.Unmarshal(name, &plain) != nil {
			return nameGood // no JSON: somebody else says so
		}
		name = []byte(`"` + plain + `"`)
	}
	if p.ours {
		for _, c := range name {
			if (c < 'a' || c > 'z') && c != '_' && c != '"' {
				return nameForeign
			}
		}
		p.next = m.api.BoundOf(string(bytes.Trim(name, `"`)))
		p.within = withRequests[string(bytes.Trim(name, `"`))]
	}
	if p.many == nil {
		return m.addToFew(p, name)
	}
	return m.addToMany(p, name)
}

// addToFew keeps a name of an object that has few members: they are compared one by one, until there are many.
func (m *shape) addToFew(p *level, name []byte) int {
	for _, other := range m.names[p.first:] {
		if bytes.Equal(other, name) {
			return nameTwice
		}
	}
	m.names = append(m.names, name)
	if len(m.names)-p.first <= fewMembers {
		return nameGood
	}
	if !m.takeFor(2 * fewMembers) {
		return nameNoRoom
	}
	p.room, p.many, m.spare = 2*fewMembers, m.spare, nil
	if p.many == nil {
		p.many = make(map[string]struct{}, p.room)
	}
	for _, other := range m.names[p.first:] {
		p.many[string(other)] = struct{}{}
	}
	return nameGood
}

// addToMany keeps a name of an object that has many members.
func (m *shape) addToMany(p *level, name []byte) int {
	if _, twice := p.many[string(name)]; twice {
		return nameTwice
	}
	if len(p.many) == p.room {
		switch {
		case p.room == mostMembers:
			return nameTooMany
		case !m.takeFor(p.room):
			return nameNoRoom
		}
		p.room *= 2
	}
	p.many[string(name)] = struct{}{}
	return nameGood
}
