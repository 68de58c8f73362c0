package listen

import (
	"math"
	"testing"
)

// Apps get no more connections than leave descriptors for the rest.
func TestConnectionsFitTheDescriptors(t *testing.T) {
	for _, tc := range []struct {
		files       uint64
		each, total int
		memory      int64
		want        Bounds
	}{
		{0, 10_000, 20_000, 0, Bounds{10_000, 20_000, 64}}, // not known
		{1 << 20, 10_000, 20_000, 0, Bounds{10_000, 20_000, 64}},
		{math.MaxUint64, 1_000_000, 1_000_000, 0, Bounds{1_000_000, 1_000_000, 64}}, // no limit
		{20_000, 10_000, 20_000, 0, Bounds{10_000, 18_784, 64}},
		{4096, 10_000, 20_000, 0, Bounds{2880, 2880, 64}},
		{1024, 10_000, 500, 0, Bounds{576, 500, 64}},
		{256, 10_000, 20_000, 0, Bounds{144, 144, 16}},
		{256, 20, 50, 0, Bounds{20, 50, 16}},
		{1, 10, 10, 0, Bounds{1, 1, 1}},
		{1 << 20, 10_000, 20_000, 256 << 20, Bounds{4096, 4096, 64}},
		{1 << 20, 10_000, 20_000, 1 << 30, Bounds{10_000, 16_384, 64}},
		{1024, 10_000, 20_000, 256 << 20, Bounds{576, 576, 64}},
	} {
		b := BoundsOf(tc.each, tc.total, tc.files, tc.memory)
		if b != tc.want {
			t.Errorf("%d files, %d and %d: %+v; want %+v", tc.files, tc.each, tc.total, b, tc.want)
		}
	}
}
