package xds

import (
	"testing"
	"time"
)

// TestReached: a change that was left out for a later one came with that.
func TestReached(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(1000 + ms)) }
	made := map[int]time.Time{1: at(0), 2: at(100), 3: at(200)}
	clients := []*client{{seen: []seen{{2, at(150)}, {3, at(260)}}}, {seen: []seen{{1, at(10)}, {3, at(300)}}}}
	each, whole, err := reached(made, clients)
	if err != nil {
		t.Fatal(err)
	}
	if len(each) != 6 || each[0] != 10*time.Millisecond || each[5] != 200*time.Millisecond {
		t.Errorf("to a client: %v; want 10 ms to 200 ms", each)
	}
	if len(whole) != 3 || whole[0] != 100*time.Millisecond || whole[2] != 200*time.Millisecond {
		t.Errorf("to all: %v; want 100 ms to 200 ms", whole)
	}
	clients[0].seen = clients[0].seen[:1]
	if _, _, err := reached(made, clients); err == nil {
		t.Error("a change that never came is no error")
	}
	c := &client{came: make(chan struct{})}
	c.note([]byte("\x0a\x07mark-12x mark-9 mark-"))
	c.note([]byte("mark-3"))
	if len(c.seen) != 1 || c.seen[0].change != 12 {
		t.Errorf("seen %v; want 12 once", c.seen)
	}
}
