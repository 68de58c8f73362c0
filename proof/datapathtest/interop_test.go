package datapathtest

import (
	"crypto/tls"
	"testing"

	"github.com/google/go-cmp/cmp"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/ydb-sidecar/sidecar/proof/conformance"
)

// gRPC's interoperability cases give the same through the sidecar as without it.
func TestCallsThroughEqualDirectOnes(t *testing.T) {
	nodes := startNodes(t)
	direct := map[string]*conformance.Result{}
	for name, run := range conformance.Cases {
		direct[name] = new(conformance.Result)
		run(t.Context(), testpb.NewTestServiceClient(dial(t, nodes[0], nil)), direct[name])
	}
	for _, kind := range []string{"plain", "tls"} {
		t.Run(kind, func(t *testing.T) {
			var settings []string
			var config *tls.Config
			if kind == "tls" {
				cert := newSecure(t)
				settings, config = cert.settings, cert.client
			}
			s := startSidecar(t, nodes, settings...)
			c := testpb.NewTestServiceClient(dial(t, s.GRPC, config))
			var before holdings
			for round := range 3 {
				for name, run := range conformance.Cases {
					var got conformance.Result
					run(t.Context(), c, &got)
					if diff := cmp.Diff(*direct[name], got); diff != "" {
						t.Errorf("%s differs from direct:\n%.2000s", name, diff)
					}
				}
				if round == 0 { // by now every connection is there
					before = s.held(t)
				}
			}
			s.backAt(t, before)
		})
	}
}
