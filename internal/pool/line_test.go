package pool

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func testLine(limit int) *line {
	c := Default()
	c.Queue = limit
	l := newLine(c)
	return &l
}

// Under a flood of every class each gets its share, and the highest the rest.
func TestLineShares(t *testing.T) {
	tests := []struct {
		name    string
		classes []Class
		want    [ClassSize]int // of 1000
	}{
		{"all", []Class{System, Interactive, Normal, Batch}, [ClassSize]int{650, 200, 100, 50}},
		{"batch_against_interactive", []Class{Interactive, Batch}, [ClassSize]int{0, 950, 0, 50}},
		{"batch_against_normal", []Class{Normal, Batch}, [ClassSize]int{0, 0, 950, 50}},
		{"batch_alone", []Class{Batch}, [ClassSize]int{0, 0, 0, 1000}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := testLine(1000)
			for _, c := range tt.classes {
				for range 100 {
					l.push(&Waiter{class: c})
				}
			}
			var got [ClassSize]int
			for range 1000 {
				w := l.pop()
				got[w.class]++
				l.push(w)
			}
			for c := range got {
				// Exact but for what is owed at the end.
				if d := got[c] - tt.want[c]; d < -1 || d > 3 {
					t.Errorf("served %v; want %v", got, tt.want)
				}
			}
		})
	}
}

// A class earns while it waits, not while it is away.
func TestLineDoesNotSaveUp(t *testing.T) {
	l := testLine(100)
	batch := &Waiter{class: Batch}
	for range 10 {
		l.push(&Waiter{class: Interactive})
	}
	for range 1000 { // batch is not there
		l.push(l.pop())
	}
	l.push(batch)
	for i := range 20 {
		w := l.pop()
		if w == batch {
			if i < 19 {
				t.Errorf("batch was served after %d others; want 19", i)
			}
			return
		}
		l.push(w)
	}
	t.Errorf("batch was not among 20 served")
}

// Who must go when the line is full.
func TestLineFull(t *testing.T) {
	fill := func(counts [ClassSize]int) (*line, map[Class]*Waiter) {
		n := 0
		for _, k := range counts {
			n += k
		}
		l, last := testLine(n), make(map[Class]*Waiter)
		for c, k := range counts {
			for range k {
				w := &Waiter{class: Class(c)}
				if l.push(w) != nil {
					t.Fatal("not full yet")
				}
				last[w.class] = w
			}
		}
		return l, last
	}
	const self, none = Class(100), Class(101)
	tests := []struct {
		name   string
		counts [ClassSize]int // of 100
		comes  Class
		goes   Class
	}{
		{"higher_takes_the_place_of_the_lowest", [ClassSize]int{0, 0, 50, 50}, Interactive, Batch},
		{"lower_gets_its_share_of_the_line", [ClassSize]int{0, 0, 100, 0}, Batch, Normal},
		{"beyond_its_share_lower_does_not", [ClassSize]int{0, 0, 95, 5}, Batch, self},
		{"share_of_the_lower_is_kept", [ClassSize]int{0, 95, 0, 5}, Interactive, self},
		{"next_lower_goes_then", [ClassSize]int{0, 0, 95, 5}, Interactive, Normal},
		{"same_class", [ClassSize]int{0, 0, 0, 100}, Batch, self},
		{"system_over_all", [ClassSize]int{0, 100, 0, 0}, System, Interactive},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, last := fill(tt.counts)
			w := &Waiter{class: tt.comes}
			refused, goes := l.push(w), none
			switch {
			case refused == w:
				goes = self
			case refused != nil:
				goes = refused.class
				if refused != last[goes] || refused.queued {
					t.Errorf("of class %v not the youngest had to go, or it is still in line", goes)
				}
			}
			if goes != tt.goes {
				t.Errorf("class %d had to go; want %d", goes, tt.goes)
			}
			if l.n != 100 {
				t.Errorf("%d in line; want 100", l.n)
			}
		})
	}
}

// Random pushes, pops and removals against a plain slice for each class.
func TestLineOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := testLine(30)
	var model [ClassSize][]*Waiter
	size := func() (n int) {
		for _, q := range model {
			n += len(q)
		}
		return n
	}
	for range 100_000 {
		switch r.IntN(5) {
		case 0, 1:
			w := &Waiter{class: Class(r.IntN(ClassSize))}
			model[w.class] = append(model[w.class], w)
			if refused := l.push(w); refused != nil {
				q := model[refused.class]
				if refused != q[len(q)-1] {
					t.Fatal("not the youngest was refused")
				}
				model[refused.class] = q[:len(q)-1]
			}
		case 2, 3:
			w := l.pop()
			if w == nil {
				if size() > 0 {
					t.Fatal("nobody was served")
				}
				continue
			}
			if model[w.class][0] != w {
				t.Fatal("not the eldest was served")
			}
			model[w.class] = model[w.class][1:]
		case 4:
			q := &model[r.IntN(ClassSize)]
			if len(*q) == 0 {
				continue
			}
			i := r.IntN(len(*q))
			l.remove((*q)[i])
			*q = slices.Delete(*q, i, i+1)
		}
		if l.n != size() || l.n > l.limit {
			t.Fatalf("%d in line; want %d, at most %d", l.n, size(), l.limit)
		}
	}
}
