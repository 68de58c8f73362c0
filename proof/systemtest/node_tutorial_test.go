package systemtest

import (
	"path/filepath"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/docstest"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// TestTutorialForNode runs every block of the tutorial.
func TestTutorialForNode(t *testing.T) {
	docstest.Run(t, docstest.Page{
		Path:    filepath.Join(standtest.Root(t), "docs", "tutorials", "node.md"),
		Env:     alone,
		Started: []string{"make run", "make clients-node"},
		Replace: append(likeMakeRun(t), "../dist/ydb-sidecar-*.tgz", nodePackage(t)),
	})
}
