package systemtest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// A sidecar that publishes over xDS is replaced by another process, which has its port: a client that calls the nodes loses no
// call, comes to the new process when the old one has ended, and is told there of what happens from then on.
func TestXDSClientsOfAReplacedSidecar(t *testing.T) {
	c := startCluster(t, nil)
	socket := filepath.Join(t.TempDir(), "own", "admin")
	settings := []string{"takeover.socket=" + filepath.Join(t.TempDir(), "takeover.sock"), "xds.enabled=true", "xds.address=127.0.0.1:0", "admin.socket=" + socket, "discovery.interval=500ms"}
	first := successor(t, c, settings...)
	at := ready(t, first)
	s := &sidecar{process: first, grpc: at["grpc"], http: at["http"], admin: at["admin"], xds: at["xds"], socket: socket}
	s.conn, s.SidecarClient = dial(t, s.grpc)

	begun := time.Now()
	d := startDirect(t, "gRPC", dialXDS(t, s, xdsName))
	for _, node := range c.nodes {
		d.starts(t, node.Address, begun)
	}
	replaced := time.Now()
	second := successor(t, c, settings...)
	if where := ready(t, second)["xds"]; where != s.xds {
		t.Fatalf("the new process publishes at %s; want %s", where, s.xds)
	}
	exited(t, first)
	s.process = second
	eventually(t, patience, "the client comes to the new process", func() string {
		_, text := s.get(t, "/state/xds")
		var state struct{ Clients []any }
		if err := json.Unmarshal([]byte(text), &state); err != nil || len(state.Clients) != 1 {
			return fmt.Sprint(text, err)
		}
		return ""
	})
	ordered := time.Now()
	s.order(t, c.nodes[1].ID, "drain")
	d.stops(t, c.nodes[1].Address, ordered)
	if err := d.failed(replaced); err != nil {
		t.Error(err)
	}
	s.acknowledged(t)
}
