package datapathtest

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/conformance"
)

// All of h2spec's cases pass, strict ones too, and none is skipped.
func TestH2Spec(t *testing.T) {
	s := startSidecar(t, startNodes(t))
	before := s.held(t)
	// The reader of plain sockets comes with the first of them and stays: a goroutine and its epoll instance.
	before.goroutines++
	before.descriptors++
	if err := conformance.H2Spec(s.GRPC); err != nil {
		t.Error(err)
	}
	s.backAt(t, before)
}
