package systemtest

import (
	"path/filepath"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/docstest"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// The page for PHP, with its client, as a reader runs it.
func TestPHP(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "http")
	s := startSidecar(t, startCluster(t, nil), nil, "http.socket="+socket)
	docstest.Run(t, docstest.Page{
		Path:     filepath.Join(standtest.Root(t), "docs", "how-to", "php.md"),
		Replace:  []string{"127.0.0.1:7401", s.HTTP, "/run/ydb-sidecar/http", socket},
		Programs: map[string][]string{"php": {"php"}},
	})
}
