package main

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == lab.ChildCommand { // this program started by itself: see peers_test.go
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestRunRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{}, {"besiege"}, {"attack"}, {"overload", "-rounds", "-1"},
		{"overhead", "-rounds", "-1"}, {"overhead", "-nonsense"}, {"pool-size", "-bin", "/nowhere"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}

// Who looks for an experiment finds it in the list.
func TestEveryExperimentIsInTheList(t *testing.T) {
	list, err := os.ReadFile("../docs/dev/benchmarks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range experiments {
		if !strings.Contains(string(list), "`"+e.Name+"`") {
			t.Errorf("docs/dev/benchmarks/README.md does not name %s", e.Name)
		}
		if e.Title == "" || e.Question == "" {
			t.Errorf("%s does not say what it asks", e.Name)
		}
	}
}

// A child that an experiment starts is one that it has.
func TestChildrenAreFound(t *testing.T) {
	for _, child := range [][2]string{{"acquire", "pools"}, {"knee", "backend"}, {"sdks", "app"},
		{"hostile", "attacker"}, {"peers", "backends"}, {"peers", "forward"}, {"xds", "publisher"}} {
		if err := run(t.Context(), []string{lab.ChildCommand, child[0], child[1], "-nonsense"}); err == nil ||
			strings.Contains(err.Error(), "has a child") {
			t.Errorf("%v: got %v; want it to refuse its arguments", child, err)
		}
	}
	if err := run(t.Context(), []string{lab.ChildCommand, "knee", "nobody"}); err == nil || !strings.Contains(err.Error(), "has a child") {
		t.Errorf("got %v; want no such child", err)
	}
}
