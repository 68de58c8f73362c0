package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/loadtest/peers"
)

// The short form, with the peers that are installed, the data path alone and a
// program that does not exist. The run fails when a call through the data path does,
// and with it when an answer does not come from the owner of the session.
func TestPeersQuick(t *testing.T) {
	dir := t.TempDir()
	forward, sidecar := filepath.Join(dir, "h2forward"), filepath.Join(dir, "sidecar")
	for program, source := range map[string]string{forward: "./h2forward", sidecar: "../cmd/sidecar"} {
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", source, err, out)
		}
	}
	if err := run(t.Context(), []string{"peers", "-quick", "-duration", "100ms", "-warm", "50ms", "-scenarios", "^(tls-unary100|stream500|unary100)-c16$",
		"-tools", "../.cache/peers", "-sidecar", forward + "," + sidecar + "," + dir + "/nothing", "-out", dir}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "peers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r peers.Report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]int{"direct": 3, "grpc-go": 2, "h2forward": 3, "sidecar": 3, "sidecar-plain": 2, "sidecar-http": 2} {
		got := 0
		for _, one := range r.Series {
			if one.Target != target {
				continue
			}
			got++
			m := one.Median
			if m.Calls == 0 || m.P50 <= 0 || m.P99 < m.P50 || m.PerSecond <= 0 || target != "direct" && m.Anonymous == 0 {
				t.Errorf("%s, %s: got %+v; want figures", one.Target, one.Scenario, m)
			}
		}
		if got != want {
			t.Errorf("%s was measured in %d scenarios; want %d", target, got, want)
		}
	}
	for _, target := range []string{"h2forward", "sidecar-plain", "sidecar-http"} {
		if len(r.Goals[target]) == 0 {
			t.Errorf("got no goals of %s", target)
		}
	}
	tables, err := os.ReadFile(filepath.Join(dir, "peers.md"))
	for _, want := range []string{"nothing is left out: ", "grpc-go is not measured with TLS", "## Goals: h2forward", "| stream500-c16 | - |"} {
		if err != nil || !strings.Contains(string(tables), want) {
			t.Errorf("got %v and no %q in\n%s", err, want, tables)
		}
	}
}
