package sdks

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

func TestWindowsOfAnApp(t *testing.T) {
	const ready = `{"ready": true}` + "\n"
	line := func(fields string) string { return "{" + fields + "}\n" }
	good := line(`"calls":10,"failed":1,"first":"no","seconds":2,"cpu_seconds":0.5,"p50_us":300,"p99_us":900`)
	want := sdksWindow{Calls: 10, Failed: 1, First: "no", Seconds: 2, CPU: 0.5, P50: 300, P99: 900}
	for name, tc := range map[string]struct {
		stdout string
		want   []sdksWindow
		bad    bool
	}{
		"nothing yet":             {"", nil, false},
		"ready":                   {ready, nil, false},
		"two windows":             {ready + good + good, []sdksWindow{want, want}, false},
		"the last is half there":  {ready + good + good[:20], []sdksWindow{want}, false},
		"no JSON":                 {ready + "Traceback\n", nil, true},
		"no call":                 {line(`"calls":0,"seconds":2,"cpu_seconds":0.5,"p50_us":300,"p99_us":900`), nil, true},
		"more failed than called": {line(`"calls":1,"failed":2,"seconds":2,"cpu_seconds":0.5,"p50_us":300,"p99_us":900`), nil, true},
		"no length":               {line(`"calls":1,"cpu_seconds":0.5,"p50_us":300,"p99_us":900`), nil, true},
		"no CPU":                  {line(`"calls":1,"seconds":2,"p50_us":300,"p99_us":900`), nil, true},
		"no latency":              {line(`"calls":1,"seconds":2,"cpu_seconds":0.5`), nil, true},
		"p99 below p50":           {line(`"calls":1,"seconds":2,"cpu_seconds":0.5,"p50_us":300,"p99_us":200`), nil, true},
	} {
		got, err := sdksWindows(tc.stdout)
		if tc.bad != (err != nil) || !cmp.Equal(got, tc.want) {
			t.Errorf("%s: got %+v, %v; want %+v, an error: %v", name, got, err, tc.want, tc.bad)
		}
	}
}

// A failed call takes CPU and is no call that was answered; a direct call has no CPU of the sidecar.
func TestFiguresOfAWindow(t *testing.T) {
	w := sdksWindow{Calls: 100, Failed: 20, First: "no", Seconds: 2, CPU: 0.05, P50: 300, P99: 900}
	got := w.result(10 * time.Millisecond)
	if got.Calls != 100 || got.Failed != 20 || got.FirstFail != "no" || got.Took != 2*time.Second || !got.Closed {
		t.Errorf("got %+v", got)
	}
	want := lab.Figures{lab.PerSecond: 40, lab.P50: 3e5, lab.P99: 9e5, sdksApp: 5e5, sdksBoth: 5e5, sdksCluster: 1e5}
	if diff := cmp.Diff(want, got.Figures); diff != "" {
		t.Errorf("directly: %s", diff)
	}
	w.through(got.Figures, 20*time.Millisecond)
	want[sdksSidecar], want[sdksBoth] = 2e5, 7e5
	if diff := cmp.Diff(want, got.Figures); diff != "" {
		t.Errorf("through the sidecar: %s", diff)
	}
}

// Every way of every language makes the same calls, and the first one is direct.
func TestAppsOfSDKs(t *testing.T) {
	for _, language := range sdksApps() {
		if language.ways[0].over != "" {
			t.Errorf("%s: the first way, %s, is not direct", language.name, language.ways[0].name)
		}
		seen := map[string]bool{}
		for _, way := range language.ways {
			if seen[way.name] {
				t.Errorf("%s: %s twice", language.name, way.name)
			}
			seen[way.name] = true
			if sdk := way.way != "plain"; sdk != slices.Contains([]string{"", "wire"}, way.over) {
				t.Errorf("%s, %s: way %s goes over %q", language.name, way.name, way.way, way.over)
			}
			if way.app[0] == "" {
				continue
			}
			text, err := os.ReadFile(filepath.Join("../..", way.app[1]))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), traffic.Read) || !strings.Contains(string(text), "ROWS = 1000") {
				t.Errorf("%s has another statement than %q, or another number of rows than %d", way.app[1], traffic.Read, traffic.Rows)
			}
		}
	}
}

func TestSDKsSaysHowToInstallWhatItNeeds(t *testing.T) {
	root := t.TempDir()
	err := sdksMissing(root)
	for _, target := range []string{".cache/official/.installed", ".venv/.installed",
		"proof/sdktest/testdata/node/node_modules/.installed", "examples/node/node_modules/.installed",
		poollessNode + "/node_modules/.installed"} {
		if err == nil || !strings.Contains(err.Error(), "make "+target) {
			t.Errorf("got %v; want make %s", err, target)
		}
	}
	for _, path := range []string{sdksPython, plainPython, sdksNode, plainNode, poollessNode + "/node_modules"} {
		if err := os.MkdirAll(filepath.Join(root, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := sdksMissing(root); err != nil {
		t.Errorf("got %v; want nothing missing", err)
	}
}

func TestAppInGoRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{}, {"--way", "plain", "--address", "127.0.0.1:7400"},
		{"--way", "fly", "--address", "grpc://127.0.0.1:7400"}, {"--in-flight", "0"}, {"--warm", "0"},
		{"--window", "-1"}, {"more"}} {
		if err := readSDKs(t.Context(), args); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}
