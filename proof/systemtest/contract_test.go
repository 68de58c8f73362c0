package systemtest

import (
	"context"
	"fmt"
	"testing"
	"time"

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

// TestContractOfOldStatuses has the contract's cases for api.statuses=old.
func TestContractOfOldStatuses(t *testing.T) {
	s := startSidecar(t, startCluster(t, nil), nil, "api.statuses=old", "kv.tables="+contract.KVTables(""))
	contract.Run(t, contract.Target{HTTP: "http://" + s.HTTP, GRPC: s.GRPC, KV: true, Old: true})
}

// TestContractOfOperators has the contract's cases of what operators do to calls.
func TestContractOfOperators(t *testing.T) {
	s, operator := startOperated(t, startCluster(t, nil))
	contract.Run(t, contract.Target{HTTP: "http://" + s.HTTP, GRPC: s.GRPC, Operator: operator})
}

// startOperated starts a sidecar for the contract's cases of operators.
func startOperated(t *testing.T, c *ydb) (*sidecar, *contract.Operator) {
	t.Helper()
	const queue = 6
	s := startSidecar(t, c, nil, fmt.Sprint("pool.queue=", queue), "kv.tables="+contract.KVTables(""))
	return s, &contract.Operator{Admin: "http://" + s.Admin, HTTP: "http://" + s.HTTP, Queue: queue}
}

// TestContractOfStreams has the contract's cases of streams, with each client that reads what the nodes send.
func TestContractOfStreams(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"h2", "grpc"} {
		t.Run(client, func(t *testing.T) {
			c := startCluster(t, nil)
			s := startSidecar(t, c, nil, "ydb.client="+client, "api.timeout="+streamTimeout.String())
			contract.Run(t, contract.Target{HTTP: "http://" + s.HTTP, GRPC: s.GRPC, Streams: c.streams()})
		})
	}
}

// streamTimeout is api.timeout of the sidecars of these cases: long enough for a statement on a busy machine.
const streamTimeout = 2 * time.Second

// streams is what the contract's cases of streams need of a cluster.
func (c *ydb) streams() *contract.Streams {
	each := func(what string, body any) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience) // a test's own context ends before its cleanup
		defer cancel()
		for _, node := range c.Nodes {
			if err := c.Do(ctx, node.ID, what, body); err != nil {
				return err
			}
		}
		return nil
	}
	return &contract.Streams{
		Timeout: streamTimeout,
		Slow:    func(speed int) error { return each("throttle", map[string]any{"bytes_per_second": speed}) },
		Silent:  func() error { return each("blackhole", nil) },
		Clear:   func() error { return each("clear", nil) },
	}
}
