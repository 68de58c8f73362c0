package standtest

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Start starts a program for as long as the test. When the test fails, the end
// of the program's log is shown.
func Start(t testing.TB, spec stand.Spec) *stand.Process {
	t.Helper()
	p, err := stand.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	stopAfter(t, p, spec)
	return p
}

// stopAfter has the end of the test stop a process and show the end of its log if the test has failed.
func stopAfter(t testing.TB, p *stand.Process, spec stand.Spec) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
		defer cancel()
		if _, err := p.Stop(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(spec.Path), strings.Join(spec.Args, " "), stand.LastLines(p.Log(), 40))
		}
	})
}

// Ready waits for the ready line of a program and returns the addresses in it.
func Ready(t testing.TB, p *stand.Process) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a busy machine starts programs slowly
	defer cancel()
	at, err := p.Ready(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// Cluster starts a development cluster for as long as the test.
func Cluster(t testing.TB, spec stand.Spec) *stand.Cluster {
	t.Helper()
	c, err := stand.StartCluster(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	stopAfter(t, c.Process, spec)
	return c
}

// Sidecar starts a sidecar for as long as the test.
func Sidecar(t testing.TB, how stand.Serve) *stand.Sidecar {
	t.Helper()
	s, err := stand.StartSidecar(t.Context(), how)
	if err != nil {
		t.Fatal(err)
	}
	stopAfter(t, s.Process, how.Spec())
	t.Cleanup(s.Close)
	return s
}

// Reach waits until a process that is a sidecar is ready and connects to it for as long as the test.
func Reach(t testing.TB, p *stand.Process) *stand.Sidecar {
	t.Helper()
	Ready(t, p)
	s, err := stand.Reach(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// FreeAddress returns an address for a program that does not report which port it took, or that
// goes away and comes back there.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := stand.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// Root returns the directory of the module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := stand.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
