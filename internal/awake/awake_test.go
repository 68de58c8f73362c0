package awake

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A clock that runs keeps the time of the system's.
func TestClockGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		time.Sleep(time.Hour)
		if got := c.Now(); got != 1 {
			t.Errorf("before Run: %v; want 1ns", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		for _, after := range []time.Duration{0, 30 * time.Millisecond, time.Second, 10*time.Minute + time.Millisecond} {
			began := c.Now()
			time.Sleep(after)
			if got := c.Now() - began; got != after {
				t.Errorf("counted %v; want %v", got, after)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

// Time without ticks, as for a process that is stopped, does not count.
func TestStoppedTimeDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Second)
		stop() // no tick comes, as in a process that is stopped
		<-done
		before := c.Now()
		time.Sleep(time.Hour)
		if got := c.Now() - before; got > most {
			t.Errorf("an hour without a tick counts %v; want at most %v", got, most)
		}
		stopped := c.Now()
		ctx, stop = context.WithCancel(t.Context())
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		if got := c.Now(); got != stopped {
			t.Errorf("%v after the first tick; want %v as before it", got, stopped)
		}
		time.Sleep(time.Second)
		if got := c.Now() - stopped; got != time.Second {
			t.Errorf("the second after that counts %v", got)
		}
		stop()
		<-done
	})
}
