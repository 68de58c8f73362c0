// Package clustertest starts development clusters for tests, in their process.
// It owns the life of such a cluster. What always holds: the cluster is closed
// when its test has ended, after what the test started later, and an error of
// that fails the test.
package clustertest

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// Start starts a cluster with the defaults, and what change makes of them; nil
// changes nothing.
func Start(t testing.TB, change func(*devcluster.Config)) *devcluster.Cluster {
	t.Helper()
	config := devcluster.Default()
	if change != nil {
		change(&config)
	}
	cluster, err := devcluster.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Errorf("close the cluster: %v", err)
		}
	})
	return cluster
}
