package systemtest

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// The contract of the plain API over both faces of the built program.
func TestRealContract(t *testing.T) {
	s := startSidecarAt(t, endpoint(t), access(), "kv.tables="+contract.KVTables(directory()))
	contract.Run(t, contract.Target{HTTP: "http://" + s.http, GRPC: s.grpc, KV: true, Directory: directory()})
}
