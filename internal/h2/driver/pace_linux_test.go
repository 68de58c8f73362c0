package driver

import (
	"testing"
	"time"
)

// From a client whose bytes take long as many are read as take a millisecond, and of others as many as there is room for.
func TestBytesInATurn(t *testing.T) {
	for _, c := range []struct {
		n    int
		took time.Duration
		want int
	}{
		{readSize, 60 * time.Microsecond, readSize}, // of a message
		{readSize, heavyTurn, readSize},
		{readSize, 2 * heavyTurn, readSize / 2},
		{heavySize, 1600 * time.Microsecond, 2560}, // 160 calls
		{heavySize, 0, readSize},
		{heavySize, time.Second, leastSize},
		{leastSize, 40 * time.Microsecond, 25600},
		{0, time.Second, leastSize},
	} {
		if got := inATurn(c.n, c.took); got != c.want {
			t.Errorf("%d bytes that took %v: %d; want %d", c.n, c.took, got, c.want)
		}
	}
}
