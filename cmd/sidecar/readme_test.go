package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// The calls that README.md prints work as they are printed, against what make run starts.
func TestReadmeCalls(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	start, err := os.ReadFile("../../tools/run.sh")
	if err != nil {
		t.Fatal(err)
	}
	tables := regexp.MustCompile(`-set '(kv\.tables=[^']+)'`).FindSubmatch(start)
	if tables == nil {
		t.Fatal("tools/run.sh opens no tables")
	}
	nodes, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Close()
	s := serveHere(t, "-ydb", nodes.Endpoint(), "-set", string(tables[1]), "-set", "drain.idle=10ms") // one call leaves a transaction open
	defer s.end(t)
	_, use, _ := strings.Cut(string(readme), "\n## Use it\n")
	use, _, _ = strings.Cut(use, "\n## ")
	calls := regexp.MustCompile(`(?m)^    curl (?:[^'\\\n]|\\\n|'[^']*')*$`).FindAllString(use, -1)
	if printed := strings.Count(use, "    curl "); len(calls) != printed || printed == 0 {
		t.Fatalf("%d of %d calls were read", len(calls), printed)
	}
	for _, call := range calls {
		script := strings.ReplaceAll(call, "localhost:7401", s.ready["http"].(string))
		script = strings.Replace(script, "curl ", "curl --fail-with-body --noproxy '*' --max-time 30 ", 1)
		if out, err := exec.CommandContext(t.Context(), "bash", "-c", script).CombinedOutput(); err != nil {
			t.Errorf("%s\n%v: %s", strings.TrimSpace(call), err, out)
		} else {
			t.Logf("%s\n%s", strings.TrimSpace(call), out)
		}
	}
}
