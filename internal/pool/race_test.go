//go:build race

package pool

// sync.Pool forgets on purpose under the race detector.
const poolForgets = true
