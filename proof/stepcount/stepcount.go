// Package stepcount counts what a piece of code does, in basic blocks that run, so that tests can say how much work a caller's bytes cause
// without a clock. The counters are put into the sources by proof/cmd/steps, which runs such tests (build tag steps; make test-steps).
//
// A Reader is judged by texts that were made to be costly, at three sizes, and by texts that it is led to: changes of those that raise the
// steps a byte are kept, and changed further. What always holds: the same sources count the same, on any machine; what a library does
// is one step, however long it takes, so loops of the standard library have to be looked at otherwise.
package stepcount

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

var counters []func(reset bool) uint64

// Register adds counters of a package: f returns their sum, and sets them to zero if told so. It is for generated code, in init.
func Register(f func(reset bool) uint64) { counters = append(counters, f) }

// Count is how many steps run takes in the packages with counters, on all goroutines. It is not for concurrent use.
func Count(run func()) (n uint64) {
	for _, c := range counters {
		c(true)
	}
	run()
	for _, c := range counters {
		n += c(false)
	}
	return n
}

// Reader is what reads bytes of callers.
type Reader struct {
	Name  string
	Read  func(text []byte)
	Most  float64                       // steps for each byte, besides those for an empty text
	Texts map[string]func(n int) []byte // of about n bytes each

	base float64 // steps for an empty text
}

const (
	rounds   = 4000 // of changes
	longest  = 400  // bytes of a text that is changed
	shortest = 32
	kept     = 12 // of the costliest texts
)

// Check fails t where a reader takes more than Most steps a byte.
func (r Reader) Check(t *testing.T) {
	t.Run(r.Name, func(t *testing.T) {
		if len(counters) == 0 {
			t.Fatal("the sources have no counters: run make test-steps")
		}
		if Count(func() { r.Read(r.Texts[slices.Sorted(maps.Keys(r.Texts))[0]](1 << 10)) }) == 0 {
			t.Fatal("it takes no steps: its package has no counters")
		}
		r.base = float64(Count(func() { r.Read(nil) }))
		most := 0.0
		for _, name := range slices.Sorted(maps.Keys(r.Texts)) {
			for _, n := range []int{1 << 10, 1 << 13, 1 << 16} {
				most = max(most, r.judge(t, name, r.Texts[name](n)))
			}
		}
		led := r.lead()
		for _, times := range []int{1, 16, 256} {
			most = max(most, r.judge(t, "led to", bytes.Repeat(led, times)))
		}
		t.Logf("%.1f steps a byte at most, of %.0f", most, r.Most)
	})
}

// per is how many steps the reader takes for each byte of a text.
func (r Reader) per(text []byte) float64 {
	return (float64(Count(func() { r.Read(text) })) - r.base) / float64(max(len(text), shortest))
}

func (r Reader) judge(t *testing.T, name string, text []byte) float64 {
	per := r.per(text)
	if per > r.Most {
		t.Errorf("%s: %d bytes take %.1f steps each; want %.0f at most: %.300q", name, len(text), per, r.Most, text)
	}
	return per
}

// lead returns the costliest text that changes of the reader's texts lead to.
func (r Reader) lead() []byte {
	type found struct {
		text []byte
		per  float64
	}
	random := rand.New(rand.NewPCG(7, uint64(len(r.Name)))) // it gives the same numbers each time
	var best []found
	keep := func(text []byte) {
		if len(text) > longest {
			text = text[:longest]
		}
		f := found{text, r.per(text)}
		i, _ := slices.BinarySearchFunc(best, f, func(a, b found) int {
			switch {
			case a.per > b.per:
				return -1
			case a.per < b.per:
				return 1
			}
			return bytes.Compare(a.text, b.text)
		})
		if i < len(best) && bytes.Equal(best[i].text, text) || i >= kept {
			return
		}
		best = slices.Insert(best, i, f)
		best = best[:min(len(best), kept)]
	}
	var pieces [][]byte
	for _, name := range slices.Sorted(maps.Keys(r.Texts)) {
		text := r.Texts[name](longest / 2)
		pieces = append(pieces, text)
		keep(text)
	}
	for range rounds {
		text := slices.Clone(best[random.IntN(len(best))].text)
		for range 1 + random.IntN(3) {
			text = change(random, text, pieces)
		}
		if len(text) >= shortest {
			keep(text)
		}
	}
	return best[0].text
}

// change changes a text in one place.
func change(random *rand.Rand, text []byte, pieces [][]byte) []byte {
	if len(text) == 0 {
		return slices.Clone(pieces[random.IntN(len(pieces))])
	}
	part := func(of []byte) []byte {
		from := random.IntN(len(of))
		return of[from : from+random.IntN(min(len(of)-from, 24)+1)]
	}
	at := random.IntN(len(text))
	switch random.IntN(6) {
	case 0:
		text[at] ^= 1 << random.IntN(8)
	case 1:
		text[at] = byte(random.IntN(256))
	case 2: // a part of another
		text = slices.Insert(text, at, part(pieces[random.IntN(len(pieces))])...)
	case 3: // a part of itself again, and again
		text = slices.Insert(text, at, bytes.Repeat(slices.Clone(part(text)), 1+random.IntN(8))...)
	case 4:
		text = slices.Delete(text, at, at+random.IntN(min(len(text)-at, 24)+1))
	case 5:
		text = append(text[:at], part(pieces[random.IntN(len(pieces))])...)
	}
	return text
}

// Of makes a text of a beginning, a unit as often as fits, and an end.
func Of(begin, unit, end string) func(n int) []byte {
	return func(n int) []byte {
		return slices.Concat([]byte(begin), bytes.Repeat([]byte(unit), max(1, (n-len(begin)-len(end))/len(unit))), []byte(end))
	}
}

// Nested makes a text of as many units before a middle as behind it.
func Nested(before, middle, behind string) func(n int) []byte {
	return func(n int) []byte {
		times := max(1, (n-len(middle))/(len(before)+len(behind)))
		return slices.Concat(bytes.Repeat([]byte(before), times), []byte(middle), bytes.Repeat([]byte(behind), times))
	}
}

// Numbered makes a text of a beginning, units that a format makes of numbers, and an end.
func Numbered(begin, format, end string) func(n int) []byte {
	return func(n int) []byte {
		b := []byte(begin)
		for i := 0; len(b) < n; i++ {
			b = fmt.Appendf(b, format, i)
		}
		return append(b, end...)
	}
}

// Messages are texts for readers of protobuf.
func Messages() map[string]func(n int) []byte {
	return map[string]func(n int) []byte{
		"empty fields":   Of("", "\x0a\x00", ""),
		"numbers":        Of("", "\x08\x01", ""),
		"long numbers":   Of("", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ""),
		"groups":         Nested("\x0b", "", "\x0c"),
		"a long field":   Of("\x0a\xff\xff\x03", "x", ""),
		"unknown fields": Of("", "\xf8\x7f\x01", ""),
	}
}
