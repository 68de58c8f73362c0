package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/internal/xds"
)

// endpointsOf counts the endpoints of a cluster by their health, and returns the
// address of the last one.
func endpointsOf(a *endpointv3.ClusterLoadAssignment) (status map[string]int, at string) {
	status = map[string]int{}
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			status[e.GetHealthStatus().String()]++
			socket := e.GetEndpoint().GetAddress().GetSocketAddress()
			at = fmt.Sprintf("%s:%d", socket.GetAddress(), socket.GetPortValue())
		}
	}
	return status, at
}

// TestXDS: what the sidecar knows of its nodes reaches a client of xDS, also what an
// operator does to one; /state/xds names the client; the end of the sidecar ends it.
// Long: one stream hears of each step.
func TestXDS(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "xds.enabled=on", "xds.address=127.0.0.1:0")
	conn, err := grpc.NewClient("passthrough:///"+s.at.XDS, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "me", UserAgentName: "envoy"},
		TypeUrl: resourcev3.EndpointType, ResourceNames: []string{"ydb/local", "sidecar"}}
	// hears reads what comes until the endpoints of the database are good.
	hears := func(what string, good func(status map[string]int) bool) {
		t.Helper()
		for {
			if err := stream.Send(ask); err != nil {
				t.Fatal(err)
			}
			r, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			ask = &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResourceNames: ask.GetResourceNames(),
				VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
			for _, packed := range r.GetResources() {
				a := new(endpointv3.ClusterLoadAssignment)
				if err := packed.UnmarshalTo(a); err != nil {
					t.Fatal(err)
				}
				status, at := endpointsOf(a)
				if a.GetClusterName() == "sidecar" && at != s.at.GRPC {
					t.Errorf("the sidecar is at %s; want %s", at, s.at.GRPC)
				}
				if a.GetClusterName() == "ydb/local" && good(status) {
					return
				}
			}
		}
	}
	hears("all nodes", func(status map[string]int) bool { return status["HEALTHY"] == 3 })
	id := s.core.router.View().Nodes[0].ID
	if code, text := s.post(fmt.Sprintf("/nodes/%d/drain", id)); code != http.StatusOK {
		t.Fatal(code, text)
	}
	hears("one drains", func(status map[string]int) bool { return status["HEALTHY"] == 2 && status["DRAINING"] == 1 })
	var text string
	var state xds.State
	s.eventually("it is counted", func() bool { // clients hear of it first
		_, text = s.get("/state/xds")
		state = xds.State{}
		if err := json.Unmarshal([]byte(text), &state); err != nil {
			t.Fatal(err)
		}
		return state.Nodes["draining"] == 1
	})
	if len(state.Clients) != 1 || state.Clients[0].Node != "me" || state.Clients[0].Flavor != xds.Envoy ||
		state.Nacks != 0 || state.Address != s.at.XDS || state.Nodes["draining"] != 1 {
		t.Errorf("/state/xds: %s", text)
	}
	if _, text := s.get("/metrics"); !strings.Contains(text, `ydb_sidecar_xds_streams{`) {
		t.Error("there are no metrics of xDS")
	}
	s.stop()
	for err == nil {
		_, err = stream.Recv()
	}
}
