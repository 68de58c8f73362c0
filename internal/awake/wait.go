package awake

import (
	"context"
	"time"
)

// lookEvery is from one look of Until to the next.
const lookEvery = 5 * time.Millisecond

// Sleep waits for d; false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Until looks every 5 ms, and first at once, whether something is so; false if ctx ended first.
func Until(ctx context.Context, is func() bool) bool {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
