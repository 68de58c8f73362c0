package systemtest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// A sidecar that publishes over xDS is replaced by another process, which has its port: a client that calls the nodes loses no
// call, comes to the new process when the old one has ended, and is told there of what happens from then on.
func TestXDSClientsOfAReplacedSidecar(t *testing.T) {
	c := startCluster(t, nil)
	socket := filepath.Join(t.TempDir(), "own", "admin")
	settings := []string{"takeover.socket=" + filepath.Join(t.TempDir(), "takeover.sock"), "xds.enabled=true",
		"xds.address=127.0.0.1:0", "admin.socket=" + socket, "discovery.interval=500ms"}
	first := successor(t, c, settings...)
	s := reach(t, first)
	s.socket = socket

	begun := time.Now()
	d := startDirect(t, "gRPC", dialXDS(t, s, xdsName))
	for _, node := range c.Nodes {
		d.starts(t, node.Address, begun)
	}
	replaced := time.Now()
	second := successor(t, c, settings...)
	if where := standtest.Ready(t, second)["xds"]; where != s.XDS {
		t.Fatalf("the new process publishes at %s; want %s", where, s.XDS)
	}
	exited(t, first)
	s.Process = second
	eventually(t, patience, "the client comes to the new process", func() string {
		_, text := s.get(t, "/state/xds")
		var state struct{ Clients []any }
		if err := json.Unmarshal([]byte(text), &state); err != nil || len(state.Clients) != 1 {
			return fmt.Sprint(text, err)
		}
		return ""
	})
	ordered := time.Now()
	s.order(t, c.Nodes[1].ID, "drain")
	d.stops(t, c.Nodes[1].Address, ordered)
	if err := d.failed(replaced); err != nil {
		t.Error(err)
	}
	s.acknowledged(t)
}
