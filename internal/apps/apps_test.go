package apps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var classes = [Classes]string{"system", "interactive", "normal", "batch"}

const (
	normal  = 2
	secretA = "a-secret-of-sixteen-bytes"
	secretB = "another-secret-of-that-size"
)

func registry(t testing.TB, cfg Config) *Registry {
	t.Helper()
	r, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// running has Run keep the time of a registry, in the bubble of the test.
func running(t *testing.T, cfg Config) *Registry {
	t.Helper()
	r := registry(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

func mustBe(t *testing.T, r *Registry, c Caller, name string) *Stripe {
	t.Helper()
	a, err := r.Of(c)
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	if a.Name() != name {
		t.Fatalf("%+v is app %s; want %s", c, a.Name(), name)
	}
	return a.Stripe(0)
}

func TestWhoACallerIs(t *testing.T) {
	open := registry(t, Config{Max: 10})
	closed := registry(t,
		Config{Max: 10, Users: []string{"1000=web"}, Token: []string{"a=" + secretA, "b=" + secretB, "b=" + secretB + "-too"}})
	plain := func(c Caller) Caller { c.Prove, c.Strict = true, true; return c }
	for _, tc := range []struct {
		what  string
		r     *Registry
		claim Caller
		app   string
		err   error
	}{
		{"nothing is said", open, plain(Caller{}), Unnamed, nil},
		{"a name", open, plain(Caller{Name: "svc/reports-2.x_y@z"}), "svc/reports-2.x_y@z", nil},
		{"no name for the plain API", open, plain(Caller{Name: "a b"}), "", ErrName},
		{"too long a name", open, plain(Caller{Name: strings.Repeat("x", 65)}), "", ErrName},
		{"no name of an SDK", open, Caller{Name: "my app"}, Other, nil},
		{"a token where there are none", open, plain(Caller{Token: "x"}), Unnamed, nil},

		{"a token", closed, plain(Caller{Token: secretA}), "a", nil},
		{"a second token of an app", closed, plain(Caller{Token: secretB + "-too"}), "b", nil},
		{"a token and its name", closed, plain(Caller{Token: secretA, Name: "a"}), "a", nil},
		{"a token and another's name", closed, plain(Caller{Token: secretA, Name: "b"}), "", ErrNotYours},
		{"a token and a name that is nobody's", closed, plain(Caller{Token: secretA, Name: "x"}), "", ErrNotYours},
		{"a wrong token", closed, plain(Caller{Token: "x"}), "", ErrToken},
		{"no token", closed, plain(Caller{}), "", ErrNoToken},
		{"no token, and a name", closed, plain(Caller{Name: "x"}), "", ErrNoToken},
		{"no token, and another's name", closed, plain(Caller{Name: "a"}), "", ErrNotYours},
		{"an SDK with another's name", closed, Caller{Name: "a"}, "", ErrNotYours},
		{"an SDK with a user's name", closed, Caller{Name: "web"}, "", ErrNotYours},
		{"an SDK with a name of its own", closed, Caller{Name: "x"}, "x", nil},
		{"an SDK with a token", closed, Caller{Name: "a", Token: secretA}, "a", nil},
		{"a user", closed, plain(Caller{Local: true, User: 1000}), "web", nil},
		{"a user and its name", closed, plain(Caller{Local: true, User: 1000, Name: "web"}), "web", nil},
		{"a user and another's name", closed, plain(Caller{Local: true, User: 1000, Name: "a"}), "", ErrNotYours},
		{"a user who is nobody", closed, plain(Caller{Local: true, User: 1001}), "", ErrNoToken},
		{"user 0 of a connection over TCP", closed, plain(Caller{User: 1000}), "", ErrNoToken},
		{"a user with a token", closed, plain(Caller{Local: true, User: 1000, Token: secretA}), "a", nil},
		{"what the other process has looked at", closed, plain(Caller{Peer: true, Name: "a"}), "a", nil},
	} {
		t.Run(tc.what, func(t *testing.T) {
			a, err := tc.r.Of(tc.claim)
			if !errors.Is(err, tc.err) || err == nil && a.Name() != tc.app {
				t.Errorf("got %v, %v; want %s, %v", a, err, tc.app, tc.err)
			}
		})
	}
}

// However many names callers invent, there is a bounded number of apps.
func TestNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, Config{Max: 3, Quotas: []string{"listed open=5"}})
		first := mustBe(t, r, Caller{Name: "n1"}, "n1")
		mustBe(t, r, Caller{Name: "n2"}, "n2")
		for i := range 1000 {
			mustBe(t, r, Caller{Name: fmt.Sprint("x", i)}, Other)
		}
		if n := len(r.State(classes)); n != 5 {
			t.Errorf("%d apps; want three and the two that are always there", n)
		}
		mustBe(t, r, Caller{Name: "listed"}, "listed")
		// After a while names that nobody uses leave their places; what is open or listed stays.
		if !first.Enter() {
			t.Fatal("it is gone")
		}
		time.Sleep((forgetAfter + 1) * time.Minute)
		for i := range 3 {
			want := Other
			if i == 0 {
				want = "y0"
			}
			mustBe(t, r, Caller{Name: fmt.Sprint("y", i)}, want)
		}
		mustBe(t, r, Caller{Name: "n1"}, "n1")
		mustBe(t, r, Caller{Name: "listed"}, "listed")
		first.Leave(0)
		time.Sleep((forgetAfter + 1) * time.Minute)
		next := mustBe(t, r, Caller{Name: "z"}, "z")
		if first.Enter() == (next.Index() == first.Index()) {
			t.Errorf("n1 lives: %v, while z has its place: %v", !first.gone.Load(), next.Index() == first.Index())
		}
	})
}

// A call never counts for an app that has just lost its place.
func TestEnterLooksAgain(t *testing.T) {
	r := registry(t, Config{Max: 3})
	was := mustBe(t, r, Caller{Name: "n1"}, "n1").App
	r.mu.Lock()
	was.gone.Store(true) // as leaveLocked does, which takes it off the list after that
	entered := make(chan *Stripe)
	go func() {
		s, err := r.Enter(Caller{Name: "n1"}, 1)
		if err != nil {
			t.Error(err)
		}
		entered <- s
	}()
	for range 100 {
		runtime.Gosched() // it looks, and finds the one that is gone
	}
	byName := maps.Clone(*r.byName.Load())
	delete(byName, "n1")
	r.byName.Store(&byName)
	r.all[was.index] = nil
	r.mu.Unlock()
	if s := <-entered; s.App == was || s.Name() != "n1" || s.App.open() != 1 || was.open() != 0 {
		t.Errorf("it entered %s with %d calls; want another app of that name with one, and none in the old one, which has %d",
			s.Name(), s.App.open(), was.open())
	}
}

func TestEnterDenies(t *testing.T) {
	r := registry(t, Config{Max: 3, Token: []string{"web=" + secretOne}})
	for _, tc := range []struct {
		what    string
		headers []string
		app     string
		err     error
	}{
		{"no token", nil, Unnamed, nil},
		{"its token", []string{"Bearer " + secretOne}, "web", nil},
		{"its token twice", []string{"Bearer " + secretOne, "Basic x, Bearer " + secretOne}, "web", nil},
		{"two tokens", []string{"Bearer " + secretOne + ", Bearer " + secretTwo}, "", ErrTokens},
		{"a token of nobody", []string{"Bearer " + secretTwo}, "", ErrToken},
	} {
		var c Caller
		c.Bear(tc.headers)
		s, err := r.Enter(c, 0)
		if _, denied := errors.AsType[Denial](err); err != tc.err || denied != (tc.err != nil) || s.Name() != tc.app {
			t.Errorf("%s: %q, %v; want %q, %v", tc.what, s.Name(), err, tc.app, tc.err)
		}
	}
}

// minutesPass has minutes pass for the registry, one after the other, until stop.
func minutesPass(r *Registry) (stop func()) {
	over := make(chan struct{})
	var clock sync.WaitGroup
	clock.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				r.minute.Add(1)
			}
		}
	})
	return func() {
		close(over)
		clock.Wait()
	}
}

// Numbers stand for one app at a time, whoever comes and goes.
func TestPlacesUnderLoad(t *testing.T) {
	r := registry(t, Config{Max: 4})
	stop := minutesPass(r)
	var wg sync.WaitGroup
	var mu sync.Mutex
	inside := map[uint8]string{} // by number, of those with something open
	count := map[uint8]int{}
	for g := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			for range 3000 {
				app, err := r.Of(Caller{Name: fmt.Sprint("n", random.IntN(12))})
				if err != nil {
					t.Error(err)
					continue
				}
				a := app.Stripe(g)
				if !a.Enter() {
					continue
				}
				keeps := random.IntN(2) == 0 // a session, beyond the call
				if keeps {
					_ = a.Ask(normal)
					a.Got(normal, 0)
					runtime.Gosched()
					a.Leave(0)
				}
				mu.Lock()
				if was := inside[a.Index()]; count[a.Index()] > 0 && was != a.Name() {
					t.Errorf("number %d is %s and %s", a.Index(), was, a.Name())
				}
				inside[a.Index()] = a.Name()
				count[a.Index()]++
				mu.Unlock()
				mu.Lock()
				count[a.Index()]--
				mu.Unlock()
				if keeps {
					app.Stripe(g + 1).Done(normal) // by whoever gives it back
				} else {
					a.Leave(0)
				}
			}
		})
	}
	wg.Wait()
	stop()
	nothingOpen(t, r)
}

// nothingOpen fails the test if an app has calls open or sessions in use.
func nothingOpen(t *testing.T, r *Registry) {
	t.Helper()
	for _, s := range r.State(classes) {
		if s.Open != 0 {
			t.Errorf("%s has %d calls open", s.App, s.Open)
		}
		for _, c := range s.Classes {
			if c.InUse != 0 || c.Waiting != 0 {
				t.Errorf("%s: %+v; want nothing in use", s.App, c)
			}
		}
	}
}

// Tokens are read again when their file changes; a file with a fault changes nothing.
func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# of the team\n\na=" + secretA + "\n")
	synctest.Test(t, func(t *testing.T) {
		r := running(t, Config{Max: 10, TokenFile: path})
		mustBe(t, r, Caller{Token: secretA, Prove: true}, "a")
		was := r.Generation()
		time.Sleep((2*fileEvery + 1) * tick)
		if r.Generation() != was {
			t.Error("read again though nothing has changed")
		}
		write("a=" + secretA + "\nb=" + secretB + "\n")
		time.Sleep((fileEvery + 1) * tick)
		mustBe(t, r, Caller{Token: secretB, Prove: true}, "b")
		if r.Generation() == was {
			t.Error("nobody is told to look again")
		}
		write("b=short")
		time.Sleep((fileEvery + 1) * tick)
		mustBe(t, r, Caller{Token: secretB, Prove: true}, "b")
		write("b=" + secretB + "\n")
		time.Sleep((fileEvery + 1) * tick)
		if _, err := r.Of(Caller{Token: secretA, Prove: true}); !errors.Is(err, ErrToken) {
			t.Errorf("a token that was taken out: %v", err)
		}
	})
}

func TestConfigFaults(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "max = 0; must be 1 to 250"},
		{Config{Max: 1, Quotas: []string{""}}, `limits[0]: ""; must begin with`},
		{Config{Max: 1, Quotas: []string{"a b"}}, `"b"; must be one of weight`},
		{Config{Max: 1, Quotas: []string{"a lots=3"}}, `"lots=3"; must be one of weight, open, sessions`},
		{Config{Max: 1, Quotas: []string{"a pool_id="}}, "must be pool_id= and the name of a resource pool"},
		{Config{Max: 1, Quotas: []string{"a open=0"}}, "must be 1 to 1000000"},
		{Config{Max: 1, Quotas: []string{"a weight=1001"}}, "must be 1 to 1000"},
		{Config{Max: 1, Quotas: []string{"a open=-1"}}, "want a number"},
		{Config{Max: 1, Quotas: []string{"a bytes_per_second=1000000GiB"}}, "want a number"},
		{Config{Max: 1, Quotas: []string{"a calls_burst=5"}}, "calls_burst needs calls_per_second"},
		{Config{Max: 2, Quotas: []string{"a open=1", "a open=2"}}, "a is there twice"},
		{Config{Max: 1, Quotas: []string{"a open=1", "b open=2"}}, "name 2 apps"},
		{Config{Max: 1, Users: []string{"x=web"}}, "must be uid=name"},
		{Config{Max: 1, Users: []string{"1=we b"}}, "must be uid=name"},
		{Config{Max: 1, Users: []string{"web"}}, "must be uid=name, cn:NAME=name"},
		{Config{Max: 1, Users: []string{"4294967296=web"}}, "must be uid=name"},
		{Config{Max: 1, Users: []string{"cn:a=we b"}}, "with a name of 1 to 64"},
		{Config{Max: 1, Users: []string{"cn:=web"}}, "cn: names nothing"},
		{Config{Max: 1, Users: []string{"ou:a=web"}}, `"ou"; must be cn, dns or uri`},
		{Config{Max: 1, Users: []string{"dns:*.example.org=web"}}, "is no name of DNS"},
		{Config{Max: 1, Users: []string{"uri:orders=web"}}, "is no URI with a scheme"},
		{Config{Max: 1, Users: []string{"cn:a\nb=web"}}, "without control characters"},
		{Config{Max: 1, Users: []string{"cn:" + strings.Repeat("a", 257) + "=web"}}, "has 257 bytes; must have at most 256"},
		{Config{Max: 2, Users: []string{"dns:A=web", "dns:a=batch"}}, "the same certificates are the app web already"},
		{Config{Max: 1, Users: []string{"1=web", "cn:a=batch"}}, "name 2 apps"},
		{Config{Max: 1, Token: []string{"a"}}, "the secret of a is shorter than 16 bytes"},
		{Config{Max: 1, Token: []string{"=" + secretA}}, "want name=secret"},
		{Config{Max: 2, Token: []string{"a=" + secretA, "b=" + secretA}}, "have the same secret"},
		{Config{Max: 1, TokenFile: "/nowhere/at/all"}, "token_file: "},
	} {
		err := tc.cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v; want %q", tc.cfg, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), secretA) {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
	good := Config{Max: 2,
		Quotas: []string{"* weight=2",
			"a weight=1000 open=1 sessions=1 calls_per_second=1 calls_burst=9 bytes_per_second=8MiB bytes_burst=1GiB pool_id=olap",
			"b"}}
	if err := good.Validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
}

// A fault of a line of apps.limits names the app, and quotes the word as it was written.
func TestFaultsOfLimitsNameTheAppAndTheWord(t *testing.T) {
	for _, word := range []string{
		"calls", "calls=", "calls=kv,", "tables", "tables=/a", "read_only", "read_only=1", "timeout", "timeout=2", "rows", "rows=0",
		"class", "class=top", "pool_id", "pool_id=a:b", "weight", "weight=x", "open=0", "lots=3", "=",
	} {
		err := Config{Max: 2, Quotas: []string{"* weight=2", "shop " + word}}.Validate()
		if want := fmt.Sprintf("limits[1]: app shop: %q", word); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v; want %s", word, err, want)
		}
	}
	for line, want := range map[string]string{
		"* calls_burst=5":               "app *: calls_burst needs calls_per_second",
		"shop calls=bulk read_only=on":  `app shop: "read_only=on"; must be`,
		"shop calls=bulk read_only=yes": "app shop: calls=bulk and read_only=yes leave nothing",
		"shop calls=sdk rows=5":         "app shop: calls= has sdk",
	} {
		if err := (Config{Max: 2, Quotas: []string{line}}).Validate(); err == nil || !strings.HasPrefix(err.Error(), "limits[0]: "+want) {
			t.Errorf("%s: %v; want %s", line, err, want)
		}
	}
}

func TestCallsAllocateNothing(t *testing.T) {
	r := registry(t, Config{Max: 10, Quotas: []string{"a open=5 sessions=5 calls_per_second=1000000 bytes_per_second=1GiB"}})
	claim := Caller{Name: "a"}
	if n := testing.AllocsPerRun(1000, func() {
		app, err := r.Of(claim)
		a := app.Stripe(0)
		if err != nil || !a.Enter() || a.Admit(normal) != nil || a.Ask(normal) != nil {
			t.Fatal("refused")
		}
		_ = a.Needs(normal, 3)
		a.Got(normal, time.Millisecond)
		a.Took(normal, 3, time.Millisecond)
		a.Done(normal)
		a.Leave(100)
	}); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}

func BenchmarkCall(b *testing.B) {
	r := registry(b, Config{Max: 10})
	app, _ := r.Of(Caller{Name: "a"})
	a := app.Stripe(0)
	for b.Loop() {
		if !a.Enter() || a.Admit(normal) != nil || a.Ask(normal) != nil {
			b.Fatal("refused")
		}
		_ = a.Needs(normal, 3)
		a.Got(normal, 0)
		a.Took(normal, 3, time.Millisecond)
		a.Done(normal)
		a.Leave(100)
	}
}

// FuzzConfig: whatever is in a setting or a file of tokens, there is an error or a
// registry that keeps its bounds, and errors show no secret.
func FuzzConfig(f *testing.F) {
	f.Add("web weight=2 open=100 sessions=10 calls_per_second=500 calls_burst=1000 bytes_per_second=8MiB bytes_burst=16MiB",
		"1000=web", "a="+secretA)
	f.Add("*", "4294967295=x", "#\n\na="+secretA+"\r\nb="+secretB)
	f.Add("a bytes_per_second=1 bytes_burst=1GiB", "-1=x", "a==================")
	f.Fuzz(func(t *testing.T, quotas, user, tokens string) {
		p := parsed{tokens: map[digest]string{}}
		if err := p.addTokens(tokens); err != nil {
			for _, line := range strings.Split(tokens, "\n") {
				name, secret, ok := strings.Cut(strings.TrimSpace(line), "=")
				if ok && len(secret) > 24 && !strings.Contains(name, secret) && strings.Contains(err.Error(), secret) {
					t.Errorf("%v shows %q", err, secret)
				}
			}
		}
		r, err := New(Config{Max: 3, Quotas: []string{quotas}, Users: []string{user}}, nil)
		if err != nil {
			return
		}
		for _, name := range []string{"", quotas, user, tokens, "a"} {
			for _, strict := range []bool{true, false} {
				app, err := r.Of(Caller{Name: name, Strict: strict, Token: tokens, Local: true})
				if err != nil {
					continue
				}
				a := app.Stripe(0)
				if !isName(a.Name()) || int(a.Index()) >= 3+firstOwn || a.Weight() < 1 {
					t.Errorf("%q is %q, number %d, weight %d", name, a.Name(), a.Index(), a.Weight())
				}
				a.Enter()
				_ = a.Admit(normal)
				a.Leave(1 << 40)
				if a.Admit(normal) == nil && a.quotas.Load().bytes.perSecond == 1 && a.quotas.Load().bytes.burst < 1e6 {
					t.Error("nothing was spent")
				}
			}
		}
	})
}

// The token counts wherever it stands, and two that differ never do.
func TestToken(t *testing.T) {
	for _, tc := range []struct {
		headers []string
		want    string
		err     error
	}{
		{nil, "", nil},
		{[]string{"Basic x"}, "", nil},
		{[]string{"Bearer a"}, "a", nil},
		{[]string{"Basic x", "Bearer a"}, "a", nil},
		{[]string{"Bearer a", "Basic x", "bearer  a "}, "a", nil},
		{[]string{"Basic x, Bearer a"}, "a", nil},
		{[]string{"Basic x,bearer\ta "}, "a", nil},
		{[]string{"Basic x, Bearer a ,Bearer a", "Bearer a"}, "a", nil},
		{[]string{", Bearer a", ",,Bearer a,"}, "", ErrTokens},
		{[]string{", Bearer a", " , ,Bearer a  "}, "a", nil},
		{[]string{"Bearer a,b"}, "a,b", nil},
		{[]string{"Bearer a, Bearer b"}, "", ErrTokens},
		{[]string{"Basic x, Bearer a", "Bearer b"}, "", ErrTokens},
		{[]string{"Basic x, Basic y", ",", ""}, "", nil},
		{[]string{"Bearer a", "Bearer b"}, "", ErrTokens},
		{[]string{"Bearer a", "Basic x", "Bearer b"}, "", ErrTokens},
	} {
		if got, err := Token(tc.headers); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%q: %q, %v; want %q, %v", tc.headers, got, err, tc.want, tc.err)
		}
	}
}

// All ways in read the token by this.
func TestBearer(t *testing.T) {
	for given, want := range map[string]string{
		"Bearer x": "x", "bearer x": "x", "BEARER x": "x", "bEaReR X": "X", "Bearer   x": "x", "Bearer x \t": "x",
		"Bearer x y": "x y", "Bearer bearer x": "bearer x",
		"Bearer ": "", "Bearer    ": "", "Bearer": "", "Bearerx y": "", "Bearer\tx": "x", " Bearer x": "x", " ": "",
		" Bearer ": "", "\x02earer x": "", "Basic eDp5": "", "x": "", "": "",
	} {
		if got := Bearer(given); got != want {
			t.Errorf("%q: %q; want %q", given, got, want)
		}
		if got := Bearer([]byte(given)); string(got) != want {
			t.Errorf("%q in bytes: %q; want %q", given, got, want)
		}
	}
	if n := testing.AllocsPerRun(10, func() { Bearer("Bearer x") }); n > 0 {
		t.Errorf("%v allocations; want none", n)
	}
}
