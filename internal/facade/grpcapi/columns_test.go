package grpcapi

import (
	"bytes"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
)

// No more names of columns are kept of a message than a row may have.
func TestColumnsOfIngestAreBounded(t *testing.T) {
	g := &ingestStream{api: &API{core: &core.Service{Cfg: core.Config{API: core.DefaultAPI()}}}}
	message := bytes.Repeat([]byte{fieldColumns<<3 | 2, 0}, 1<<20)
	var columns []string
	var err error
	allocated := testing.AllocsPerRun(1, func() { err = g.add(message, &columns, nil) })
	if f, ok := err.(*core.Fault); !ok || f.Code != core.CodeLimit || allocated > 100 {
		t.Errorf("%v, with %v allocations", err, allocated)
	}
}
