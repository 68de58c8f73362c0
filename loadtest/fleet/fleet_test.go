package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestRequestsOfAWorker(t *testing.T) {
	all, told, err := requests(`{"ready": true}
{"calls":[[1700000000.5,0.002,""],[1700000001.25,3.5,"UNAVAILABLE"]],"told":1700000001}
{"calls":[],"told":1700000002.5}
{"calls":[[17000`)
	if err != nil || len(all) != 2 || !told.Equal(time.UnixMilli(1700000002500)) {
		t.Fatalf("got %v up to %v, %v; want two requests, up to 2.5 s", all, told, err)
	}
	if want := (fleetRequest{time.UnixMilli(1700000001250), 3500 * time.Millisecond, "UNAVAILABLE"}); all[1] != want {
		t.Errorf("got %+v; want %+v", all[1], want)
	}
	for _, bad := range []string{`{"calls":[["x",1,""]]}`, `{"calls":[[1,2,3]]}`} {
		if _, _, err := requests(bad); err == nil {
			t.Errorf("%s is no error", bad)
		}
	}
	if _, _, err := requests(strings.Repeat("x", 2<<20)); err == nil {
		t.Error("an endless line is no error")
	}
}

func TestTroubleOfAFault(t *testing.T) {
	begun := time.Unix(1000, 0)
	at := func(due, took time.Duration, err string) fleetRequest { return fleetRequest{begun.Add(due), took, err} }
	for name, tc := range map[string]struct {
		all  []fleetRequest
		want lab.Figures
	}{
		"none": {[]fleetRequest{at(0, time.Millisecond, ""), at(time.Second, fleetTrouble, "")},
			lab.Figures{fleetFailed: 0, fleetSlow: 0, fleetRecovery: 0}},
		"a slow one": {[]fleetRequest{at(time.Second, 2*time.Second, ""), at(2*time.Second, 0, "")},
			lab.Figures{fleetFailed: 0, fleetSlow: 1, fleetRecovery: 3e9}},
		"failed and slow": {[]fleetRequest{at(3*time.Second, time.Millisecond, "ABORTED"), at(time.Second, time.Second, "")},
			lab.Figures{fleetFailed: 1, fleetSlow: 2, fleetRecovery: 3.001e9}},
	} {
		got := trouble(tc.all, begun)
		for figure, want := range tc.want {
			if got[figure] != want {
				t.Errorf("%s: %s is %v; want %v", name, figure, got[figure], want)
			}
		}
	}
}

func TestFleetSaysHowToInstallPython(t *testing.T) {
	err := lab.Main(t.Context(), Experiment(),
		[]string{"-size", "smoke", "-python", "/nowhere/python", "-bin", t.TempDir(), "-out", t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "make .cache/official/.installed") {
		t.Errorf("got %v; want the make target", err)
	}
	if err := lab.Main(t.Context(), Experiment(), []string{"-workers", "1000", "-bin", t.TempDir(), "-out", t.TempDir()}); err == nil {
		t.Error("a thousand workers are no error")
	}
}
