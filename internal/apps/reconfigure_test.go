package apps

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	secretOne = "one-0123456789abcdef"
	secretTwo = "two-0123456789abcdef"
)

func reconfigure(t *testing.T, r *Registry, cfg Config) {
	t.Helper()
	if err := r.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
}

func TestReconfigure(t *testing.T) {
	r, err := New(Config{Max: 8, Token: []string{"one=" + secretOne}, Quotas: []string{"one open=1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	app, err := r.Of(Caller{Token: secretOne})
	if err != nil {
		t.Fatal(err)
	}
	one := app.Stripe(0)
	if !one.Enter() || one.Admit(normal) != nil {
		t.Fatal("the first call was refused")
	}
	was := r.Generation()
	reconfigure(t, r,
		Config{Max: 8, Token: []string{"two=" + secretTwo}, Users: []string{"7=seven"}, Quotas: []string{"one open=2", "* open=3"}})
	if r.Generation() == was {
		t.Error("the generation is the same: who keeps answers of Of would not ask again")
	}
	if _, err := r.Of(Caller{Token: secretOne}); !errors.Is(err, ErrToken) {
		t.Errorf("a token that is no longer there: %v; want %v", err, ErrToken)
	}
	if two, err := r.Of(Caller{Token: secretTwo}); err != nil || two.Name() != "two" || two.quotas.Load().open != 3 {
		t.Errorf("the new token: %v", err)
	}
	if seven, err := r.Of(Caller{Local: true, User: 7, Prove: true}); err != nil || seven.Name() != "seven" {
		t.Errorf("the new user: %v", err)
	}
	// The app that has a call open has the new limit at once.
	if again := r.look("one"); again != app || !one.Enter() || one.Admit(normal) != nil {
		t.Error("the second call of the first app was refused; want a limit of 2")
	}
	if !one.Enter() || one.Admit(normal) == nil {
		t.Error("a third call was admitted; want a limit of 2")
	}
}

func TestReconfigureKeepsAllAfterAFault(t *testing.T) {
	r, err := New(Config{Max: 8, Token: []string{"one=" + secretOne}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	was := r.Generation()
	for _, bad := range []Config{{Max: 8, Token: []string{"two=short"}},
		{Max: 8, TokenFile: filepath.Join(t.TempDir(), "none")}, {Max: 0}} {
		if r.Reconfigure(bad) == nil {
			t.Errorf("no error for %+v", bad)
		}
	}
	if a, err := r.Of(Caller{Token: secretOne}); err != nil || a.Name() != "one" || r.Generation() != was {
		t.Errorf("the token of before: %v", err)
	}
}

// An app with quotas or a token gets a number though callers have taken all.
func TestReconfigureFindsAPlace(t *testing.T) {
	r, err := New(Config{Max: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		if _, err := r.Of(Caller{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	reconfigure(t, r, Config{Max: 2, Token: []string{"two=" + secretTwo}, Quotas: []string{"one open=1"}})
	if r.look("one") == nil {
		t.Error("an app with limits has no place")
	}
	if two, err := r.Of(Caller{Token: secretTwo}); err != nil || two.Name() != "two" {
		t.Errorf("an app with a token is %v, %v", two, err)
	}
	if d, err := r.Of(Caller{Name: "d"}); err != nil || d.Name() != Other {
		t.Errorf("another app: %v, %v; want none of the places", d, err)
	}
}

func TestTheTokenFileMayBeNamedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens")
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("one=" + secretOne)
		r, err := New(Config{Max: 8}, nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { defer close(done); _ = r.Run(ctx) }()
		reconfigure(t, r, Config{Max: 8, TokenFile: path})
		if _, err := r.Of(Caller{Token: secretOne}); err != nil {
			t.Errorf("the token of the file: %v", err)
		}
		was := r.Generation()
		time.Sleep((2*fileEvery + 1) * tick)
		if r.Generation() != was {
			t.Error("read again though nothing has changed")
		}
		write("one=" + secretOne + "\ntwo=" + secretTwo)
		time.Sleep((fileEvery + 1) * tick)
		if _, err := r.Of(Caller{Token: secretTwo}); err != nil {
			t.Errorf("the token that came into the file: %v", err)
		}
		cancel()
		<-done
	})
}

// A file with a fault is told once, not at every look.
func TestABadTokenFileIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte("one="+secretOne), 0o600); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		r, err := New(Config{Max: 8, TokenFile: path}, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { defer close(done); _ = r.Run(ctx) }()
		if err := os.WriteFile(path, []byte("two=short"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep((5*fileEvery + 1) * tick)
		cancel()
		<-done
		if n := strings.Count(log.String(), "the tokens were not read again"); n != 1 {
			t.Errorf("told %d times; want once:\n%s", n, log.String())
		}
	})
}

// A limit of sessions that comes while some are in use counts those.
func TestALimitOfSessionsComesLater(t *testing.T) {
	r, err := New(Config{Max: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	app, err := r.Of(Caller{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	a := app.Stripe(0)
	if a.Ask(normal) != nil || app.Stripe(1).Ask(0) != nil {
		t.Fatal("the first two are refused")
	}
	reconfigure(t, r, Config{Max: 8, Quotas: []string{"* sessions=2"}})
	if a.Ask(normal) == nil {
		t.Error("a third one; want a refusal by the new limit")
	}
	app.Stripe(1).Cancel(0)
	if err := a.Ask(normal); err != nil {
		t.Errorf("a second one: %v", err)
	}
	reconfigure(t, r, Config{Max: 8})
	for range 10 {
		if err := a.Ask(normal); err != nil {
			t.Errorf("without a limit: %v", err)
		}
	}
}
