package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

// TestModel sends random rows through streams whose sink delays, fails, refuses
// and delivers late, and which are given up at random, as if a process were
// killed; each next one begins where the one before was acknowledged. Whatever was
// acknowledged is there whenever a stream has ended, and in the end every key has
// the last value of each column in the order of the rows.
func TestModel(t *testing.T) {
	for seed := range uint64(short.Of(60, 15)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { model(t, seed) }) })
	}
}

// modelRow is one row of the model.
type modelRow struct {
	json   string
	key    string
	values map[string]string
	bad    bool // it cannot be written
}

func randomRows(seed uint64, n int) []modelRow {
	r := seeded(seed)
	keys := 1 + r.IntN(200)
	all := make([]modelRow, n)
	for i := range all {
		m := modelRow{key: fmt.Sprint(r.IntN(keys)), values: map[string]string{}}
		if r.IntN(100) == 0 {
			m.key, m.bad = fmt.Sprint(1_000_000+i), true
			if r.IntN(2) == 0 {
				m.json = fmt.Sprintf(`{"id":%s,"n":"no number"}`, m.key)
				all[i] = m
				continue
			}
		}
		m.values["id"] = m.key
		if r.IntN(4) > 0 {
			m.values["a"] = fmt.Sprintf(`"a%d"`, i)
		}
		if r.IntN(4) > 0 {
			m.values["n"] = fmt.Sprint(i)
		}
		if r.IntN(10) == 0 {
			m.values["n"] = "null"
		}
		if m.bad {
			m.values["a"] = `"poison"`
		}
		var members []string
		for column, value := range m.values { // in random order
			members = append(members, fmt.Sprintf("%q:%s", column, value))
		}
		m.json = "{" + strings.Join(members, ",") + "}"
		all[i] = m
	}
	return all
}

func model(t *testing.T, seed uint64) {
	r := seeded(seed)
	rows := randomRows(seed, 200+r.IntN(short.Of(3000, 600)))
	f := newFakeTable(t, "id Uint32", "a Optional<Utf8>", "n Optional<Int32>")
	var mu sync.Mutex // of r, which many goroutines use
	dice := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	calm := false // guarded by mu
	f.skew = Default().Settle
	f.before = func(keys []string) (time.Duration, error) {
		time.Sleep(time.Duration(dice(50)) * time.Millisecond)
		for _, k := range keys {
			if len(k) >= 7 {
				return 0, &Refused{Err: errors.New("poison")}
			}
		}
		mu.Lock()
		quiet := calm
		mu.Unlock()
		switch {
		case quiet:
		case dice(40) == 0:
			return 0, errors.New("the node is dead")
		case dice(20) == 0:
			return time.Duration(1+dice(8000)) * time.Millisecond, nil // what is late beyond the time of the request does not arrive
		}
		return 0, nil
	}
	e := newEngine(t, f, func(c *Config) {
		c.BatchRows, c.Window, c.Delay = 1+dice(60), 1+dice(5), time.Duration(dice(3))*10*time.Millisecond
	})
	if dice(3) == 0 {
		e.hash = func(key []byte) uint64 { return uint64(key[len(key)-1]) & 31 } // different keys that seem to be one
	}
	at, most := uint64(0), uint64(0)
	for try := 0; at < uint64(len(rows)); try++ {
		if try > 200 {
			t.Fatalf("no progress beyond %d of %d rows", at, len(rows))
		}
		if try > 20 {
			mu.Lock()
			calm = true
			mu.Unlock()
		}
		until := len(rows)
		if dice(2) == 0 && try < 20 {
			until = int(at) + dice(len(rows)-int(at)+1)
		}
		next, sent := modelStream(t, e, rows, at, uint64(until), try < 20 && dice(2) == 0, dice)
		if next < at || next > sent {
			t.Fatalf("acknowledged %d of rows %d to %d", next, at, sent)
		}
		most = max(most, sent)
		time.Sleep(e.config.Attempt + 2*e.config.Settle)
		f.checkPrefix(t, rows, next, most)
		at = next
	}
	f.late.Wait()
	f.checkPrefix(t, rows, uint64(len(rows)), uint64(len(rows)))
}

// modelStream sends rows from at until, over one stream, and returns how far it
// was acknowledged and sent.
func modelStream(t *testing.T, e *Engine, rows []modelRow, at, until uint64, kill bool, dice func(int) int) (next, sent uint64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := e.Open(ctx, Options{Table: "/local/t", Offset: at, Name: "model"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var feeding sync.WaitGroup
	sent = at
	feeding.Go(func() {
		for sent < until {
			if dice(30) == 0 {
				time.Sleep(time.Duration(dice(30)) * time.Millisecond)
			}
			if s.AddJSON([]byte(rows[sent].json)) != nil {
				return
			}
			sent++
		}
		if kill {
			time.Sleep(time.Duration(dice(100)) * time.Millisecond)
			cancel()
			return
		}
		s.Finish()
	})
	next = at
	for {
		p, err := s.Next(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) && next != until {
				t.Errorf("the stream ended well at %d of %d", next, until)
			}
			break
		}
		next = p.Next
		for _, refused := range p.Refused {
			if !rows[refused.Offset].bad {
				t.Errorf("row %d was refused: %v", refused.Offset, refused.Err)
			}
		}
	}
	cancel()
	feeding.Wait()
	return next, sent
}

// checkPrefix compares the table with the model: each value of each key is as
// after some number of rows between acked and sent, by whichever stream.
func (f *fakeTable) checkPrefix(t *testing.T, rows []modelRow, acked, sent uint64) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	type cell struct{ key, column string }
	want, open := map[cell]string{}, map[cell]bool{} // open: not as they should be yet
	apply := func(m modelRow) {
		for column, value := range m.values {
			if at := (cell{m.key, column}); !m.bad {
				want[at] = value
				open[at] = true
			}
		}
	}
	settle := func(at cell) {
		if want[at] == f.rows[at.key][at.column] {
			delete(open, at)
		}
	}
	for _, m := range rows[:acked] {
		apply(m)
	}
	for key, values := range f.rows {
		for column := range values {
			open[cell{key, column}] = true
		}
	}
	for at := range maps.Clone(open) {
		settle(at)
	}
	for _, m := range rows[acked:sent] {
		for column, value := range m.values {
			if at := (cell{m.key, column}); !m.bad && value == f.rows[m.key][column] {
				delete(open, at)
			}
		}
	}
	for at := range open {
		t.Errorf("with %d rows acknowledged and %d sent: key %s, %s is %q, and should be about %q", acked, sent, at.key,
			at.column, f.rows[at.key][at.column], want[at])
	}
}
