package facade

import (
	"bytes"
	"encoding/json"
)

// checkShape refuses JSON that nests deeper than limit, or has an object with
// two members of one name: a decoder would silently take the last one. It need
// not be JSON at all: that is for others to find out.
func checkShape(raw []byte, limit int) error {
	var seen shape
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			begin := i
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
			if name := raw[begin:min(i+1, len(raw))]; !seen.add(name) {
				return badRequest("the member %.64s stands twice in one object", name)
			}
		case '{', '[':
			seen.open(raw[i] == '{')
			if len(seen.places) > limit {
				return overLimit("depth of the JSON", limit, limit, "api.max_depth")
			}
		case '}', ']':
			seen.close()
		case ',':
			seen.next()
		}
	}
	return nil
}

// fewMembers is how many names are compared one by one before a map is made.
const fewMembers = 32

// shape knows the names of the members of every object that is open.
type shape struct {
	places []place
	names  [][]byte // of all of them, quotes included, innermost last
}

// place is an object or an array that is open.
type place struct {
	object bool
	due    bool // a name comes next
	first  int  // of its names
	many   map[string]struct{}
}

func (m *shape) open(object bool) {
	m.places = append(m.places, place{object: object, due: object, first: len(m.names)})
}

func (m *shape) close() {
	if n := len(m.places); n > 0 {
		m.names = m.names[:m.places[n-1].first]
		m.places = m.places[:n-1]
	}
}

func (m *shape) next() {
	if n := len(m.places); n > 0 {
		m.places[n-1].due = m.places[n-1].object
	}
}

// add takes a string, and reports false if it is the name of a member that the
// object has already.
func (m *shape) add(name []byte) bool {
	if len(m.places) == 0 || !m.places[len(m.places)-1].due {
		return true // a value
	}
	p := &m.places[len(m.places)-1]
	p.due = false
	if bytes.IndexByte(name, '\\') >= 0 {
		var plain string
		if json.Unmarshal(name, &plain) != nil {
			return true // no JSON: somebody else says so
		}
		name = []byte(`"` + plain + `"`)
	}
	if p.many == nil {
		for _, other := range m.names[p.first:] {
			if bytes.Equal(other, name) {
				return false
			}
		}
		m.names = append(m.names, name)
		if len(m.names)-p.first > fewMembers {
			p.many = make(map[string]struct{}, 2*fewMembers)
			for _, other := range m.names[p.first:] {
				p.many[string(other)] = struct{}{}
			}
		}
		return true
	}
	if _, twice := p.many[string(name)]; twice {
		return false
	}
	p.many[string(name)] = struct{}{}
	return true
}
