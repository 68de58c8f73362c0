package lane

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func enter(t *testing.T, d *Door) Place {
	t.Helper()
	p, err := d.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// While small requests go by, a place rests for half of what was worked at it, unless as much time goes by anyway.
func TestPlacesRestBesideSmallRequests(t *testing.T) {
	const (
		work = 10 * time.Millisecond
		many = 100
		free = mayOwe // worked before the first rest: twice that
	)
	for _, c := range []struct {
		small bool
		pause time.Duration // between two requests
		want  time.Duration // until the last is done
	}{
		{false, 0, many * work},
		{true, 0, many*work + (many-1)*work/2 - free},
		{true, work / 2, many*work + many*work/2},
		{true, work, many*work + many*work},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := New(1)
			d := l.NewDoor()
			time.Sleep(2 * smallAfter)
			begun := time.Now()
			for range many {
				if c.small {
					l.Small()
				}
				p := enter(t, d)
				time.Sleep(work)
				p.Leave()
				time.Sleep(c.pause)
			}
			if took := time.Since(begun); took != c.want {
				t.Errorf("beside small ones %v, pauses of %v: %v; want %v", c.small, c.pause, took, c.want)
			}
			time.Sleep(mostRest)
			synctest.Wait()
		})
	}
}

// All doors together lead to no more places than there are, and who comes by one waits for few of those at another.
func TestDoorsTakeTurns(t *testing.T) {
	for _, places := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			const work = time.Millisecond
			l := New(places)
			busy, quiet := l.NewDoor(), l.NewDoor()
			working := make(chan struct{}, places)
			do := func(d *Door) {
				p := enter(t, d)
				defer p.Leave()
				select {
				case working <- struct{}{}:
				default:
					t.Error("more work than there are places")
				}
				time.Sleep(work)
				<-working
			}
			for range 100 {
				go do(busy)
			}
			synctest.Wait()
			begun := time.Now()
			do(quiet)
			if took := time.Since(begun); took > 3*work {
				t.Errorf("with %d places, the first of a door waits %v for those of another", places, took-work)
			}
			synctest.Wait()
			time.Sleep(time.Second)
		})
	}
}

// Who does not wait any longer leaves nothing behind, before the door and behind it.
func TestEnterEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(1).NewDoor()
		taken := enter(t, d)
		late := errors.New("late")
		for range 10 {
			go func() {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
				defer cancel()
				if _, err := d.Enter(ctx); !errors.Is(err, late) {
					t.Errorf("%v; want %v", err, late)
				}
			}()
		}
		time.Sleep(2 * time.Second)
		taken.Leave()
		enter(t, d).Leave()
	})
}
