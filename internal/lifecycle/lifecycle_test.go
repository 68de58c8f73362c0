package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary notes what happened, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// until is a part that runs until its context ends.
func (d *diary) until(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		d.note(name + " stopped")
		return ctx.Err()
	}
}

func group() *Group { return New(slog.New(slog.DiscardHandler)) }

func TestPhasesRunInOrderWhileThePartsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := group()
		g.Part("pool", d.until("pool"))
		g.Phase("wait", 0, func(context.Context) error { time.Sleep(time.Hour); d.note("waited"); return nil })
		g.Phase("fail", 0, func(context.Context) error { d.note("failed"); return errors.New("broken") })
		g.Phase("bounded", time.Second, func(ctx context.Context) error { <-ctx.Done(); d.note("cut off"); return ctx.Err() })
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Minute); cancel() }()
		err := g.Run(ctx, context.Background())
		if want := []string{"waited", "failed", "cut off", "pool stopped"}; !slices.Equal(d.lines, want) {
			t.Errorf("happened %q; want %q", d.lines, want)
		}
		if want := "fail: broken\nbounded: context deadline exceeded"; err == nil || err.Error() != want {
			t.Errorf("Run = %q; want %q", err, want)
		}
	})
}

func TestCleanEndIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := group()
		served := make(chan struct{})
		g.Part("server", func(context.Context) error { <-served; return nil })
		g.Part("pool", d.until("pool"))
		g.Phase("close the server", 0, func(context.Context) error { close(served); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Run(ctx, context.Background()); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func TestAPartThatEndsStopsAll(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"with_an_error":    {errors.New("port in use"), "server: port in use"},
		"without_an_error": {nil, "server: ended by itself"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				g := group()
				g.Part("server", func(context.Context) error { return tc.err })
				g.Part("pool", d.until("pool"))
				g.Phase("drain", 0, func(context.Context) error { d.note("drained"); return nil })
				err := g.Run(context.Background(), context.Background())
				if err == nil || err.Error() != tc.want {
					t.Errorf("Run = %v; want %s", err, tc.want)
				}
				if want := []string{"drained", "pool stopped"}; !slices.Equal(d.lines, want) {
					t.Errorf("happened %q; want %q", d.lines, want)
				}
			})
		})
	}
}

func TestHurryEndsThePhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := group()
		began := time.Now()
		g.Phase("grace", time.Hour, func(ctx context.Context) error { <-ctx.Done(); return nil })
		g.Phase("more grace", time.Hour, func(ctx context.Context) error { <-ctx.Done(); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		hurry, now := context.WithCancel(context.Background())
		go func() { time.Sleep(time.Second); now() }()
		if err := g.Run(ctx, hurry); !errors.Is(err, ErrHurried) {
			t.Errorf("Run = %v; want ErrHurried", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v; want 1s", took)
		}
	})
}

func TestPanicsAreFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := group()
		g.Part("broken", func(context.Context) error { panic("part") })
		g.Part("pool", d.until("pool"))
		g.Phase("breaks", 0, func(context.Context) error { panic("phase") })
		g.Phase("drain", 0, func(context.Context) error { d.note("drained"); return nil })
		err := g.Run(t.Context(), t.Context())
		if want := "broken: panic in broken: part\nbreaks: panic in breaks: phase"; err == nil || err.Error() != want {
			t.Errorf("Run = %v; want %q", err, want)
		}
		if want := []string{"drained", "pool stopped"}; !slices.Equal(d.lines, want) {
			t.Errorf("happened %q; want %q", d.lines, want)
		}
	})
}

func TestAPartThatDoesNotStopIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := group()
		release := make(chan struct{})
		g.Part("deaf", func(context.Context) error { <-release; return nil })
		g.Part("obedient", func(ctx context.Context) error { <-ctx.Done(); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := g.Run(ctx, context.Background())
		if err == nil || !strings.Contains(err.Error(), "did not stop within 2s: deaf") || strings.Contains(err.Error(), "obedient") {
			t.Errorf("Run = %v; want the part named", err)
		}
		close(release)
	})
}
