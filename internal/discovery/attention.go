package discovery

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// The pauses between the questions of an Attention: the first, which doubles, and
// the longest. So a node that was away for a time is back in use after about
// twice that time at most.
const (
	attentionFirst = time.Second
	attentionMost  = 30 * time.Second
)

// Attention has discovery ask more often than its interval while nodes are
// ejected or gone: one that was restarted is listed again long before the next
// regular question.
type Attention struct {
	refresh func()
	changed chan int // capacity 1: how many nodes are bad, the newest count
}

// NewAttention returns one that asks through refresh.
func NewAttention(refresh func()) *Attention {
	return &Attention{refresh: refresh, changed: make(chan int, 1)}
}

// Set takes new verdicts. It is called by one goroutine at a time.
func (a *Attention) Set(verdicts cluster.Conditions) {
	bad := 0
	for _, v := range verdicts {
		if v.Draining || v.Health == cluster.Ejected || v.Health == cluster.Probing {
			bad++
		}
	}
	select {
	case <-a.changed: // outdated
	default:
	}
	a.changed <- bad
}

// Run asks at once whenever there are more bad nodes than before, and then
// again and again while there are any. It returns nil.
func (a *Attention) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	bad, pause := 0, attentionFirst
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-a.changed:
			switch {
			case now > bad:
				a.refresh()
				pause = attentionFirst
				timer.Reset(jittered(pause))
			case now == 0:
				timer.Stop()
			}
			bad = now
		case <-timer.C:
			a.refresh()
			pause = min(2*pause, attentionMost)
			timer.Reset(jittered(pause))
		}
	}
}

// jittered lengthens a pause by up to a fifth, which keeps many sidecars from asking together.
func jittered(d time.Duration) time.Duration { return d + rand.N(d/5) }
