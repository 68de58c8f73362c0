package systemtest

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// The contract of the plain API over both APIs of the built program, on each client that says it to the nodes.
func TestRealContract(t *testing.T) {
	for _, client := range []string{"h2", "grpc"} {
		t.Run(client, func(t *testing.T) {
			s := startSidecarAt(t, endpoint(t), access(), "ydb.client="+client, "kv.tables="+contract.KVTables(directory()),
				"apps.limits="+contract.AppLimits(directory()))
			contract.Run(t, contract.Target{HTTP: "http://" + s.HTTP, GRPC: s.GRPC, KV: true, Apps: true, Directory: directory()})
		})
	}
}
