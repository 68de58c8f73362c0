package driver

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/conformance"
)

// All of h2spec's cases pass, strict ones too, and none is skipped.
func TestH2Spec(t *testing.T) {
	addr, shard, _ := forward(t, nil, func(*Shard) []*Upstream { return nil })
	if err := conformance.H2Spec(addr); err != nil {
		t.Error(err)
	}
	await.True(t, "nothing is kept of the last case", func() bool { st := shard.Stats(); return st.Buffered == 0 && st.Held == 0 })
}
