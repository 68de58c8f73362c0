package driver

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/conformance"
)

// All of h2spec's cases pass, strict ones too, and none is skipped.
func TestH2Spec(t *testing.T) {
	addr, shard, _ := forward(t, nil, func(*Shard) []*Upstream { return nil })
	if err := conformance.H2Spec(addr); err != nil {
		t.Error(err)
	}
	if s := shard.Stats(); s.Buffered != 0 || s.Held != 0 {
		t.Errorf("after the last case: %+v", s)
	}
}
