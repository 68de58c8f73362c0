package systemtest

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// The contract of the plain API over both faces of the built program.
func TestRealContract(t *testing.T) {
	s := startSidecarAt(t, endpoint(t), nil, "kv.tables="+contract.KVTables(""))
	contract.Run(t, contract.Target{HTTP: "http://" + s.http, GRPC: s.grpc, KV: true})
}
