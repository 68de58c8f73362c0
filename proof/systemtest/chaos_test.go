package systemtest

import (
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/chaos"
)

// The short form of `make chaos`: what does not depend on the speed of the machine.
func TestChaos(t *testing.T) {
	t.Parallel()
	for _, row := range []string{"mix", "kill", "slow", "blackhole", "refuse"} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			result := chaotic(t, row, chaos.Options{Apps: row == "mix", Duration: 20 * time.Second})
			if !result.OK {
				t.Errorf("missed: %+v\nerrors: %v", result.Failed(), result.Errors)
			}
			if result.Books.Acknowledged < 50 {
				t.Errorf("%d writes acknowledged: it proves nothing", result.Books.Acknowledged)
			}
		})
	}
}

// The test of the test: without a mechanism the same judge must find the fault.
func TestChaosFindsWhatIsSwitchedOff(t *testing.T) {
	t.Parallel()
	for _, tc := range chaos.Proofs {
		t.Run(tc.Break+"_"+tc.Row, func(t *testing.T) {
			t.Parallel()
			result := chaotic(t, tc.Row, chaos.Options{Break: tc.Break})
			found := false
			for _, goal := range result.Failed() {
				found = found || strings.Contains(goal.Name, tc.Missed)
			}
			if result.OK || !found {
				t.Errorf("it was not found: missed %+v; want %q among them", result.Failed(), tc.Missed)
			}
		})
	}
}

func chaotic(t *testing.T, row string, o chaos.Options) *chaos.Result {
	t.Helper()
	o.Bin, o.Quick, o.Log = bin, true, t.Output()
	result, err := chaos.Run(t.Context(), o, row, 1)
	if err != nil {
		t.Fatal(err)
	}
	return result
}
