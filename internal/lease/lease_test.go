package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bank records the values that came back, and why.
type bank struct {
	mu   sync.Mutex
	back []string
}

func (b *bank) end(v int, why Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.back = append(b.back, fmt.Sprintf("%d %v", v, why))
}

func (b *bank) wants(t *testing.T, want ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.back, want) {
		t.Errorf("values given back: %q; want %q", b.back, want)
	}
}

// start runs a table for the length of the test.
func start(t *testing.T, cfg Config) (*Table[int, string], *bank) {
	t.Helper()
	b := new(bank)
	table := New[int, string](cfg, b.end)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = table.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return table, b
}

// grant opens a lease of v that no step has used.
func grant(t *testing.T, table *Table[int, string], v int) string {
	t.Helper()
	turn, err := table.Open()
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	turn.Grant(v)
	turn.Keep(nil)
	return turn.Token()
}

func take(t *testing.T, table *Table[int, string], token string, step Step) *ActiveStep[int, string] {
	t.Helper()
	turn, stored, err := table.Take(t.Context(), token, step)
	if turn == nil {
		t.Fatalf("Take(%+v) = stored %v, error %v; want a turn", step, stored, err)
	}
	return turn
}

func refused(t *testing.T, table *Table[int, string], token string, step Step, want error) {
	t.Helper()
	turn, stored, err := table.Take(t.Context(), token, step)
	if turn != nil || stored != nil || !errors.Is(err, want) {
		t.Errorf("Take(%+v) = turn %v, stored %v, error %v; want %v", step, turn != nil, stored, err, want)
	}
}

func over(t *testing.T, table *Table[int, string], token string, step Step, want Reason) {
	t.Helper()
	turn, stored, err := table.Take(t.Context(), token, step)
	ended, ok := errors.AsType[*EndedError](err)
	if turn != nil || stored != nil || !ok || ended.Why != want {
		t.Errorf("Take(%+v) = turn %v, stored %v, error %v; want ended: %v", step, turn != nil, stored, err, want)
	}
}

func ptr(s string) *string { return &s }

func TestIdleLeaseEndsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, bank := start(t, Config{Idle: 30 * time.Second, Max: 5 * time.Minute, Limit: 10})
		time.Sleep(7 * time.Second) // the table has been asleep for a while when the lease comes
		token := grant(t, table, 1)
		time.Sleep(20 * time.Second)
		take(t, table, token, Step{Seq: 1}).Keep(nil) // use starts the clock again
		time.Sleep(30*time.Second - time.Millisecond)
		synctest.Wait()
		bank.wants(t)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		bank.wants(t, "1 idle")
		over(t, table, token, Step{Seq: 2}, Idle)
	})
}

func TestLeaseEndsAfterMaxHoweverBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, bank := start(t, Config{Idle: 30 * time.Second, Max: time.Minute, Limit: 10})
		token := grant(t, table, 1)
		granted := time.Now()
		time.Sleep(20 * time.Second)
		take(t, table, token, Step{}).Keep(nil)
		time.Sleep(20 * time.Second)
		turn := take(t, table, token, Step{})
		if got := turn.Deadline().Sub(granted); got != time.Minute {
			t.Errorf("deadline after %v; want 1m", got)
		}
		time.Sleep(25 * time.Second) // a step that overstays is never robbed of its value
		synctest.Wait()
		bank.wants(t)
		if left := turn.Keep(nil); left != 0 {
			t.Errorf("Keep = %v left; want 0", left)
		}
		over(t, table, token, Step{}, Expired)
		synctest.Wait()
		bank.wants(t, "1 expired")
	})
}

func TestAnEndedLeaseIsRememberedForItsIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, bank := start(t, Config{Idle: 30 * time.Second, Max: time.Minute, Limit: 10})
		token := grant(t, table, 1)
		commit := Step{Print: 7, Final: true}
		take(t, table, token, commit).End(Finished, ptr("committed"))
		bank.wants(t, "1 finished")
		time.Sleep(29 * time.Second)
		if _, stored, err := table.Take(t.Context(), token, commit); stored == nil || *stored != "committed" {
			t.Errorf("repeat of the commit = %v, %v; want its outcome", stored, err)
		}
		over(t, table, token, Step{Print: 8, Final: true}, Finished)
		time.Sleep(time.Second)
		synctest.Wait()
		refused(t, table, token, commit, ErrForeign)
		if n := len(table.leases); n != 0 {
			t.Errorf("%d leases remembered; want 0", n)
		}
	})
}

func TestRepeatWhileRunningWaitsForTheOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := start(t, Default())
		token := grant(t, table, 1)
		first := Step{Seq: 1, Print: 5}
		turn := take(t, table, token, first)

		got := make(chan string, 1)
		go func() {
			_, stored, err := table.Take(context.Background(), token, first)
			if stored == nil {
				stored = ptr(fmt.Sprint(err))
			}
			got <- *stored
		}()
		canceled, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		left := make(chan error, 1)
		go func() {
			_, _, err := table.Take(canceled, token, first)
			left <- err
		}()
		synctest.Wait()
		refused(t, table, token, Step{Seq: 2}, ErrBusy)
		refused(t, table, token, Step{Seq: 1, Print: 6}, ErrBusy)
		refused(t, table, token, Step{}, ErrBusy)
		cancel(gone)
		if err := <-left; err != gone {
			t.Errorf("a waiter whose caller left got %v; want %v", err, gone)
		}
		turn.Keep(ptr("one"))
		if s := <-got; s != "one" {
			t.Errorf("the waiting repeat got %q; want %q", s, "one")
		}
	})
}

func TestARollbackWaitsForTheRunningStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, bank := start(t, Default())
		token := grant(t, table, 1)
		turn := take(t, table, token, Step{Seq: 1})
		done := make(chan struct{})
		go func() {
			defer close(done)
			take(t, table, token, Step{Final: true, Print: 1}).End(Abandoned, nil)
		}()
		synctest.Wait()
		bank.wants(t)
		turn.Keep(nil)
		<-done
		bank.wants(t, "1 abandoned")
	})
}

func TestAStepThatWasNotRunKeepsItsNumber(t *testing.T) {
	table, _ := start(t, Default())
	token := grant(t, table, 1)
	take(t, table, token, Step{Seq: 1}).Undo()
	refused(t, table, token, Step{Seq: 2}, ErrOrder)
	take(t, table, token, Step{Seq: 1}).Keep(nil)
	refused(t, table, token, Step{Seq: 1}, ErrRepeated)
}

func TestAnInlineFirstStepIsNumberOne(t *testing.T) {
	table, _ := start(t, Default())
	turn, err := table.Open()
	if err != nil {
		t.Fatal(err)
	}
	turn.Grant(1)
	turn.Count(Step{Print: 3})
	turn.Keep(ptr("one"))
	if _, stored, err := table.Take(t.Context(), turn.Token(), Step{Seq: 1, Print: 3}); stored == nil {
		t.Errorf("repeat of the inline step: %v; want its outcome", err)
	}
	refused(t, table, turn.Token(), Step{Seq: 1, Print: 4}, ErrOrder)
	take(t, table, turn.Token(), Step{Seq: 2}).Keep(nil)
}

func TestTokensOfOthersAreRefused(t *testing.T) {
	table, _ := start(t, Default())
	other, _ := start(t, Default())
	foreign := grant(t, other, 1)
	mine := grant(t, table, 1)
	unknown := mine[:len(mine)-4] + "AAAA"
	for token, want := range map[string]error{
		foreign:                      ErrForeign,
		unknown:                      ErrForeign,
		"":                           ErrMalformed,
		"tx_":                        ErrMalformed,
		mine + "A":                   ErrMalformed,
		strings.ToUpper("x"):         ErrMalformed,
		mine[:10] + "\n" + mine[11:]: ErrMalformed,
	} {
		refused(t, table, token, Step{}, want)
		if _, _, err := table.Look(token); !errors.Is(err, want) {
			t.Errorf("Look(%q) = %v; want %v", token, err, want)
		}
	}
}

func TestLimits(t *testing.T) {
	table, _ := start(t, Config{Idle: time.Minute, Max: time.Minute, Limit: 2})
	a, b := grant(t, table, 1), grant(t, table, 2)
	if _, err := table.Open(); !errors.Is(err, ErrLimit) {
		t.Errorf("third lease of two: %v; want %v", err, ErrLimit)
	}
	end := func(token string) { take(t, table, token, Step{Final: true}).End(Finished, nil) }
	end(a)
	c := grant(t, table, 3)
	end(b)
	end(c)
	// Three have ended, two are remembered.
	refused(t, table, a, Step{}, ErrForeign)
	over(t, table, b, Step{}, Finished)
	over(t, table, c, Step{}, Finished)
	turn, err := table.Open()
	if err != nil {
		t.Fatal(err)
	}
	turn.Drop()
	refused(t, table, turn.Token(), Step{}, ErrForeign)
	if n := table.Size(); n != 0 {
		t.Errorf("%d leases open; want 0", n)
	}
}

func TestDrainWaitsForOpenLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, bank := start(t, Default())
		token := grant(t, table, 1)
		done := make(chan error, 1)
		go func() { done <- table.Drain(context.Background()) }()
		synctest.Wait()
		if _, err := table.Open(); !errors.Is(err, ErrDraining) {
			t.Errorf("Open while draining: %v; want %v", err, ErrDraining)
		}
		take(t, table, token, Step{Seq: 1}).Keep(nil) // what is open goes on
		select {
		case err := <-done:
			t.Fatalf("Drain returned %v with a lease open", err)
		default:
		}
		take(t, table, token, Step{Final: true}).End(Finished, nil)
		if err := <-done; err != nil {
			t.Errorf("Drain = %v; want nil", err)
		}
		bank.wants(t, "1 finished")
	})
}

func TestCloseGivesBackWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(bank)
		table := New[int, string](Default(), b.end)
		grant(t, table, 1)
		busy := take(t, table, grant(t, table, 2), Step{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := table.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain = %v; want its deadline", err)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			table.Close()
		}()
		synctest.Wait()
		b.wants(t, "1 closed")
		if left := busy.Keep(nil); left != 0 {
			t.Errorf("Keep after Close: %v left; want 0", left)
		}
		<-closed
		b.wants(t, "1 closed", "2 closed")
		over(t, table, busy.Token(), Step{}, Closed)
	})
}

func TestLookAndAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := start(t, Config{Idle: 30 * time.Second, Max: 40 * time.Second, Limit: 10})
		token := grant(t, table, 1)
		time.Sleep(20 * time.Second)
		take(t, table, token, Step{}).Keep(nil)
		grant(t, table, 2)
		time.Sleep(5 * time.Second)
		info, v, err := table.Look(token)
		want := Info{Seq: 1, Age: 25 * time.Second, Expires: 15 * time.Second}
		if err != nil || v != 1 || info != want {
			t.Errorf("Look = %+v, %d, %v; want %+v, 1", info, v, err, want)
		}
		if infos, values := table.All(); !slices.Equal(values, []int{1, 2}) || infos[0] != want {
			t.Errorf("All = %+v, %v; want both, oldest first", infos, values)
		}
	})
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	err := Config{Replay: -1}.Validate()
	for _, key := range []string{"idle", "max", "limit", "replay"} {
		if err == nil || !strings.Contains(err.Error(), key+" = ") {
			t.Errorf("fault of %s is not named: %v", key, err)
		}
	}
}

func FuzzTokens(f *testing.F) {
	table := New[int, string](Default(), func(int, Reason) {})
	turn, err := table.Open()
	if err != nil {
		f.Fatal(err)
	}
	turn.Keep(nil)
	f.Add(turn.Token())
	f.Add("tx_")
	f.Add("")
	f.Add("tx_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, token string) {
		if token == turn.Token() {
			return
		}
		turn, stored, err := table.Take(context.Background(), token, Step{})
		if turn != nil || stored != nil || !errors.Is(err, ErrForeign) && !errors.Is(err, ErrMalformed) {
			t.Errorf("Take(%q) = %v, %v, %v; want a refusal", token, turn, stored, err)
		}
	})
}
