// Package await is the one place where a test waits for something that has no
// event: it looks again and again. It owns the pace of the looks and their
// limit. What always holds: the first look is at once, the pauses grow with the
// time waited from 1 to 50 ms, and a condition that holds by the last look
// counts as met.
package await

import (
	"testing"
	"time"
)

// Limit is how long True and Right wait.
const Limit = time.Minute

// True waits until a condition holds, and fails the test after a minute.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !look(Limit, holds) {
		t.Fatalf("not within %v: %s", Limit, what)
	}
}

// Right waits until wrong returns "", and fails the test with its last text
// after a minute.
func Right(t testing.TB, what string, wrong func() string) {
	t.Helper()
	if text := Within(Limit, wrong); text != "" {
		t.Fatalf("not within %v: %s: %s", Limit, what, text)
	}
}

// Within waits until wrong returns "", and returns its last text when the time
// is over.
func Within(limit time.Duration, wrong func() string) (text string) {
	look(limit, func() bool {
		text = wrong()
		return text == ""
	})
	return text
}

func look(limit time.Duration, holds func() bool) bool {
	for began := time.Now(); ; {
		if holds() {
			return true
		}
		waited := time.Since(began)
		if waited > limit {
			return false
		}
		time.Sleep(min(max(waited/10, time.Millisecond), 50*time.Millisecond))
	}
}
