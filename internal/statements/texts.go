package statements

import (
	"math"
	"math/bits"
)

// textBits is the size of a set of texts.
const textBits = 512

// textSet is a set of hashes of texts, of which only the size can be told, and only about: each hash has one bit, and
// some share one.
type textSet [textBits / 64]uint64

func (t *textSet) add(hash uint64) { t[hash>>58%uint64(len(t))] |= 1 << (hash >> 52 & 63) }

func (t *textSet) join(o *textSet) {
	for i := range t {
		t[i] |= o[i]
	}
}

// size is about how many were added: within a tenth up to 500, and at most about 3000.
func (t *textSet) size() int {
	free := textBits
	for _, w := range t {
		free -= bits.OnesCount64(w)
	}
	return int(math.Round(textBits * math.Log(textBits/math.Max(float64(free), 1))))
}
