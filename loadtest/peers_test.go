package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// The short form, with the peers that are installed, the data path alone and a
// program that does not exist. The run fails when a call through the data path does,
// and with it when an answer does not come from the owner of the session.
func TestPeersQuick(t *testing.T) {
	short.Skip(t, "two programs are built for it; TestPeersWithoutPrograms has the same frame and load")
	dir := t.TempDir()
	forward, sidecar := filepath.Join(dir, "h2forward"), filepath.Join(dir, "sidecar")
	for program, source := range map[string]string{forward: "./h2forward", sidecar: "../cmd/sidecar"} {
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", source, err, out)
		}
	}
	judged, tables := comparePeers(t, dir, map[string]int{"direct": 3, "grpc-go": 2, "h2forward": 3, "sidecar": 3, "sidecar-plain": 2,
		"sidecar-http": 2}, "-sidecar", forward+","+sidecar+","+dir+"/nothing")
	for _, target := range []string{"h2forward", "sidecar-plain", "sidecar-http"} {
		if judged["goals-"+target] == 0 {
			t.Errorf("got no goals of %s", target)
		}
	}
	for _, want := range []string{"nothing is left out: ", "grpc-go is not measured with TLS", "### Goals: h2forward",
		"### stream500-c16"} {
		if !strings.Contains(tables, want) {
			t.Errorf("got no %q in\n%s", want, tables)
		}
	}
}

// No proxy and the one that is part of this program are compared, and programs that do not exist are left out.
func TestPeersWithoutPrograms(t *testing.T) {
	dir := t.TempDir()
	judged, tables := comparePeers(t, dir, map[string]int{"direct": 3, "grpc-go": 2, "nothing": 0}, "-targets", "direct,grpc-go,nothing",
		"-sidecar", dir+"/nothing")
	for _, want := range []string{"nothing is left out: ", "grpc-go is not measured with TLS", "### stream500-c16"} {
		if !strings.Contains(tables, want) {
			t.Errorf("got no %q in\n%s", want, tables)
		}
	}
	if n := judged["goals-nothing"]; n != 0 {
		t.Errorf("got %d goals of a program that does not exist", n)
	}
}

// comparePeers runs the experiment in its smallest form, checks in how many scenarios each target was measured, and returns how
// many claims each table has, and the report.
func comparePeers(t *testing.T, dir string, want map[string]int, args ...string) (judged map[string]int, report string) {
	t.Helper()
	if err := run(t.Context(), append([]string{"peers", "-size", "smoke", "-duration", "100ms", "-out", dir,
		"-only", "^(tls-unary100|stream500|unary100)-c16$", "-tools", "../.cache/peers"}, args...)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "peers", "summary.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r lab.Report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	measured, judged := map[string]int{}, map[string]int{}
	for _, s := range r.Sections {
		if s.Table == nil {
			continue
		}
		judged[s.Table.Name] = len(s.Table.Claims)
		for _, row := range s.Table.Rows {
			measured[row.Variant]++
			f := func(name string) float64 { return row.Figures[name].Median }
			if row.Calls == 0 || f(lab.P50) <= 0 || f(lab.P99) < f(lab.P50) || f(lab.PerSecond) <= 0 ||
				row.Variant != "direct" && f("anonymous-B") == 0 {
				t.Errorf("%s, %s: got %+v; want figures", row.Variant, s.Table.Name, row)
			}
		}
	}
	for target, n := range want {
		if got := measured[target]; got != n {
			t.Errorf("%s was measured in %d scenarios; want %d", target, got, n)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "peers", "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	return judged, string(text)
}
