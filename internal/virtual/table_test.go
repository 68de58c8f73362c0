package virtual

import (
	"math/rand/v2"
	"testing"
)

// A table holds what a map holds, also where many ids want the same slot.
func TestTable(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		var all table
		want := map[ID]*Session{}
		anID := func() (id ID) {
			id[0], id[8], id[15] = byte(random.IntN(2)), byte(random.IntN(8))*31, byte(random.IntN(40))
			return id
		}
		for range 3000 {
			id := anID()
			switch v := want[id]; {
			case v == nil && random.IntN(2+round%3) > 0:
				want[id] = &Session{id: id}
				all.put(want[id])
			case v != nil:
				all.remove(v)
				delete(want, id)
			}
			if id := anID(); all.get(id) != want[id] {
				t.Fatalf("%x: %v; want %v", id, all.get(id), want[id])
			}
		}
		seen := 0
		for v := range all.all {
			if seen++; want[v.id] != v {
				t.Fatalf("%x is there", v.id)
			}
		}
		if seen != len(want) || all.n != seen {
			t.Fatalf("%d sessions, %d counted; want %d", seen, all.n, len(want))
		}
	}
}
