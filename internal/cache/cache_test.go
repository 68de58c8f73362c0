package cache

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReturnsWhatWasSetUntilItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[int](Config{Max: 10, TTL: time.Minute})
		c.Set("a", 1)
		time.Sleep(59 * time.Second)
		if v, ok := c.Get("a"); !ok || v != 1 {
			t.Errorf("Get(a) = %d, %t before the end; want 1, true", v, ok)
		}
		time.Sleep(2 * time.Second)
		if v, ok := c.Get("a"); ok || v != 0 {
			t.Errorf("Get(a) = %d, %t after the end; want 0, false", v, ok)
		}
		if v, ok := c.Get("b"); ok {
			t.Errorf("Get(b) = %d, %t; want nothing", v, ok)
		}
	})
}

func TestNeverHoldsMoreThanMaxAndDropsTheOldest(t *testing.T) {
	c := New[int](Config{Max: 3, TTL: time.Hour})
	for i := range 100 {
		c.Set(fmt.Sprint(i), i)
		if n := c.Len(); n > 3 {
			t.Fatalf("%d entries after %d sets; want at most 3", n, i+1)
		}
	}
	for i := range 100 {
		if _, ok := c.Get(fmt.Sprint(i)); ok != (i >= 97) {
			t.Errorf("Get(%d) found it: %t; want only the last three", i, ok)
		}
	}
	if n := len(c.order); n > 6 {
		t.Errorf("%d keys remembered for 3 entries", n)
	}
}

func TestNeverHoldsMoreThanBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 1000
		c := New[int](Config{Max: 100, Bytes: 10 * (each + perEntry), TTL: time.Minute})
		want := func(what string, entries int, keys ...string) {
			t.Helper()
			if c.Len() != entries || c.Bytes() != entries*(each+perEntry) {
				t.Errorf("%s: %d entries of %d bytes; want %d of %d", what, c.Len(), c.Bytes(), entries, entries*(each+perEntry))
			}
			for _, key := range keys {
				if _, ok := c.Get(key); !ok {
					t.Errorf("%s: %s is gone", what, key)
				}
			}
		}
		for i := range 30 {
			c.SetSized(fmt.Sprint(i), i, each)
		}
		want("30 entries", 10, "20", "29")
		c.SetSized("29", 0, each)
		want("one again", 10, "20", "29")
		c.Delete("29")
		want("one deleted", 9, "20", "28")
		c.SetSized("28", 0, 3*each)
		want("one that is too large", 8, "20", "27")
		time.Sleep(2 * time.Minute)
		want("all expired", 8)
		c.SetSized("27", 0, each)
		want("an expired one again", 8, "27")
		c.sweep()
		want("swept", 1, "27")
	})
}

func TestExpiredEntriesMakeRoomThoughManyWereDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[int](Config{Max: 5, Bytes: 10 * perEntry, TTL: time.Minute})
		for i := range 5 {
			c.Set(fmt.Sprint("old", i), i)
		}
		time.Sleep(2 * time.Minute)
		for range 20 {
			c.Set("x", 1)
			c.Delete("x")
		}
		for i := range 5 {
			c.Set(fmt.Sprint("new", i), i)
		}
		for i := range 5 {
			if _, ok := c.Get(fmt.Sprint("new", i)); !ok {
				t.Errorf("new%d is gone; %d entries", i, c.Len())
			}
		}
	})
}

func TestKeysThatComeAndGoLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[int](Config{Max: 100, TTL: time.Second})
		for i := range 10_000 {
			c.Set(fmt.Sprint(i%50), i)
			c.Delete(fmt.Sprint(i % 50))
		}
		if n := len(c.order); n > 201 {
			t.Errorf("%d keys remembered; want at most 201", n)
		}
		if c.Len() != 0 {
			t.Errorf("%d entries after deleting all", c.Len())
		}
	})
}

func TestRunSweepsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[string](Config{Max: 10, TTL: time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		c.Set("a", "x")
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		if c.Len() != 0 || len(c.order) != 0 {
			t.Errorf("%d entries, %d keys after the sweep; want none", c.Len(), len(c.order))
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestLongKeysAreKeptShortAndApart(t *testing.T) {
	c := New[int](Config{Max: 10, TTL: time.Hour})
	one, two := strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20)+"y"
	c.Set(one, 1)
	c.Set(two, 2)
	for key, want := range map[string]int{one: 1, two: 2} {
		if v, ok := c.Get(key); !ok || v != want {
			t.Errorf("got %d, %t; want %d", v, ok, want)
		}
	}
	for _, k := range c.order {
		if len(k) > 64 {
			t.Errorf("a key of %d bytes is kept", len(k))
		}
	}
}

func TestManyGoroutines(t *testing.T) {
	c := New[int](Config{Max: 8, TTL: time.Hour})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				key := fmt.Sprint((g + i) % 20)
				c.Set(key, i)
				c.Get(key)
				if i%7 == 0 {
					c.Delete(key)
				}
			}
		})
	}
	wg.Wait()
	if c.Len() > 8 {
		t.Errorf("%d entries; want at most 8", c.Len())
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{Max: 0, TTL: time.Second}, {Max: 1}, {Max: 1, Bytes: -1, TTL: time.Second}} {
		if c.Validate() == nil {
			t.Errorf("%+v is valid", c)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("New did not panic")
		}
	}()
	New[int](Config{})
}
