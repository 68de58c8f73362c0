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
		for id, v := range want { // a crowd leaves its room to the collector
			all.remove(v)
			delete(want, id)
			for id, v := range want {
				if all.get(id) != v {
					t.Fatalf("%x is not there", id)
				}
				break
			}
			if most := max(fewSlots, 8*(all.n+1)); len(all.slots) > most {
				t.Fatalf("%d sessions have %d slots; want at most %d", all.n, len(all.slots), most)
			}
		}
	}
}
