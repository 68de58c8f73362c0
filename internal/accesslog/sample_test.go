package accesslog

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// flood sends calls of two kinds for some seconds, evenly, and returns the lines of each tenth of a second and the sum of what the
// lines of the failed ones and of the good ones stand for.
func flood(l *Log, sleep func(time.Duration), seconds, failed, good int) (lines [10]int, ofFailed, ofGood int) {
	for range seconds {
		for tenth := range lines {
			for range failed / 10 {
				if n := l.Wants(true, 0); n > 0 {
					lines[tenth]++
					ofFailed += n
				}
			}
			for range good / 10 {
				ofGood += l.Wants(false, 0)
			}
			sleep(time.Second / 10)
		}
	}
	return lines, ofFailed, ofGood
}

// The lines of a flood are of all of each second, and say for how many calls they stand; good calls take no lines from failed ones.
func TestAFloodIsSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Access: All, Slow: time.Second, Rate: 200}, slog.New(slog.DiscardHandler))
		flood(l, time.Sleep, 2, 2000, 50_000) // until it knows how many come
		const seconds = 20
		lines, failed, good := flood(l, time.Sleep, seconds, 2000, 50_000)
		if failed < seconds*2000*80/100 || failed > seconds*2000*120/100 {
			t.Errorf("the lines stand for %d failed calls of %d", failed, seconds*2000)
		}
		if good < seconds*50_000*80/100 || good > seconds*50_000*120/100 {
			t.Errorf("the lines stand for %d good calls of %d", good, seconds*50_000)
		}
		sum := 0
		for _, n := range lines {
			sum += n
		}
		for tenth, n := range lines {
			if n < sum/30 || n > sum/4 {
				t.Errorf("%d of %d lines are of the tenth of a second number %d", n, sum, tenth)
			}
		}
	})
}

// While calls are few, all of them have lines, and each stands for itself.
func TestFewCallsAreNotSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Access: All, Slow: time.Second, Rate: 200}, slog.New(slog.DiscardHandler))
		lines, failed, good := flood(l, time.Sleep, 20, 50, 70)
		sum := 0
		for _, n := range lines {
			sum += n
		}
		if sum != 20*50 || failed != 20*50 || good != 20*70 || l.Left() != 0 {
			t.Errorf("%d lines for %d failed and %d good calls, %d left out", sum, failed, good, l.Left())
		}
	})
}
