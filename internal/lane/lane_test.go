package lane

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func enter(t *testing.T, d *Door) Slot {
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

// All doors together lead to no more places than there are, and share the time at them: who comes by
// one waits for the work that is there, and then works for as long as others did.
func TestDoorsShareTheTime(t *testing.T) {
	for _, places := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			const long = 5 * Slice
			l := New(places)
			busy, quiet := l.NewDoor(), l.NewDoor()
			working := 0 // guarded by mu
			var mu sync.Mutex
			work := func(d time.Duration) {
				mu.Lock()
				if working++; working > places {
					t.Error("more work than there are places")
				}
				mu.Unlock()
				time.Sleep(d)
				mu.Lock()
				working--
				mu.Unlock()
			}
			for range 300 {
				go func() {
					p := enter(t, busy)
					work(long)
					p.Leave()
				}()
			}
			time.Sleep(10*long + time.Millisecond)
			begun := time.Now()
			p := enter(t, quiet)
			waited := time.Since(begun)
			for range long / Slice {
				work(Slice)
				if err := p.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(begun); waited > long || took > 3*long {
				t.Errorf("with %d places, work of %v waits %v for that of another door, and takes %v", places, long, waited, took)
			}
			p.Leave()
			time.Sleep(time.Minute)
		})
	}
}

// A long work that pauses lets others have its place.
func TestPausesLetOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1)
		p, other := enter(t, l.NewDoor()), l.NewDoor()
		begun := time.Now()
		go func() {
			o := enter(t, other)
			if waited := time.Since(begun); waited != Slice {
				t.Errorf("it waited %v; want %v", waited, Slice)
			}
			time.Sleep(time.Millisecond)
			o.Leave()
		}()
		synctest.Wait()
		for range 100 {
			time.Sleep(time.Millisecond)
			if err := p.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took != 101*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		p.Leave()
		var none Slot
		if err := none.Pause(t.Context()); err != nil {
			t.Error(err)
		}
		none.Leave()
	})
}

// Work that does not wait any longer leaves nothing behind.
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

// A context that ends while a place is given, or in a pause, loses no place.
func TestNoPlaceIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1)
		d := l.NewDoor()
		for range 100 {
			taken := enter(t, d)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				if p, err := d.Enter(ctx); err == nil { // either may come first
					p.Leave()
				}
			}()
			synctest.Wait()
			cancel()
			taken.Leave()
			synctest.Wait()
		}
		p, ended := enter(t, d), errors.New("ended")
		time.Sleep(Slice)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(ended)
		waits := make(chan struct{})
		go func() {
			defer close(waits)
			enter(t, l.NewDoor()).Leave()
		}()
		synctest.Wait()
		if err := p.Pause(ctx); err != nil && !errors.Is(err, ended) {
			t.Errorf("%v; want %v", err, ended)
		}
		p.Leave()
		<-waits
		enter(t, d).Leave()
	})
}
