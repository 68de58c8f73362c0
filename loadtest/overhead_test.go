package main

import (
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/peers"
)

// What peers measured keeps its figures in the frame's tables; a direct call has nothing in the middle.
func TestRunsOfPeersAreThoseOfTheFrame(t *testing.T) {
	m := peers.Measured{Calls: 10, Failed: 1, FirstFail: "no", PerSecond: 1000, P50: time.Millisecond, P99: 2 * time.Millisecond, P999: 3 * time.Millisecond,
		CPU: 20 * time.Microsecond, LoadCPU: 30 * time.Microsecond, NodeCPU: 40 * time.Microsecond, RSS: 5, Anonymous: 4, Others: 0.5, Again: true}
	want := lab.Figures{lab.PerSecond: 1000, lab.P50: 1e6, lab.P99: 2e6, lab.P999: 3e6, lab.LoadCPU: 3e4, lab.Others: 0.5, "load-cores": 0.03, "backends-cores": 0.04}
	for target, more := range map[string]lab.Figures{"direct": nil, "envoy-1": {lab.CPU: 2e4, lab.RSS: 5, "anonymous-B": 4, "middle-cores": 0.02}} {
		got := proxyRuns(peers.Scenario{Rate: 5}, target, []peers.Measured{m})[0]
		if got.Calls != 10 || got.Failed != 1 || got.FirstFail != "no" || !got.Again || got.Closed {
			t.Errorf("%s: got %+v", target, got)
		}
		if len(got.Figures) != len(want)+len(more) {
			t.Errorf("%s: got %v", target, got.Figures)
		}
		for _, figures := range []lab.Figures{want, more} {
			for name, value := range figures {
				if d := got.Figures[name] - value; d > 1e-9 || d < -1e-9 {
					t.Errorf("%s: %s is %v; want %v", target, name, got.Figures[name], value)
				}
			}
		}
	}
	if !proxyRuns(peers.Scenario{}, "x", []peers.Measured{m})[0].Closed {
		t.Error("a load without a rate is a closed loop")
	}
}
