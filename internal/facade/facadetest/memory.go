package facadetest

import (
	"runtime"
	"testing"
)

// InUse is the memory in use, once what earlier tests leave behind has gone.
func InUse() (n int64) {
	for last := int64(-1); last < 0 || max(n-last, last-n) > 64<<10; {
		last = n
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		n = int64(m.HeapAlloc + m.StackInuse)
	}
	return n
}

// IsCounted fails unless what is counted is right for what is taken, which measure returns in bytes.
// What is not right is measured again, twice at most: the memory is of the process, and what earlier
// tests left may go meanwhile, but not each time.
func IsCounted(t *testing.T, right func(takes, counted int64) bool, measure func() (takes, counted int64)) {
	t.Helper()
	var takes, counted int64
	for range 3 {
		takes, counted = measure()
		t.Logf("takes %d KB, counted %d KB", takes>>10, counted>>10)
		if right(takes, counted) {
			return
		}
	}
	t.Errorf("it takes %d bytes, and %d are counted", takes, counted)
}

// Nearly is right for a count that is a tenth less than what is taken at most, and four times as much.
func Nearly(takes, counted int64) bool {
	const beside = 2 << 20 // what tests and their drivers take
	return counted >= takes-takes/10-beside && counted <= 4*takes
}
