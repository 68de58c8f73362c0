package upstream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Bridge"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
)

func TestListEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3, nil)
		got, err := b.driver.ListEndpoints(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b.topology(), got); diff != "" {
			t.Error(diff)
		}
		calls := b.node(1).seen("ListEndpoints")
		if len(calls) != 1 || !calls[0].deadline {
			t.Errorf("seen %+v; want one call with a deadline", calls)
		}
	})
}

func TestTopologyOfAnAnswer(t *testing.T) {
	list := &Ydb_Discovery.ListEndpointsResult{SelfLocation: "a", Endpoints: []*Ydb_Discovery.EndpointInfo{
		{Address: "h2", Port: 1, NodeId: 2, Location: "b", LoadFactor: 0.5, SslTargetNameOverride: "name", IpV4: []string{"10.0.0.1"}},
		{Address: "tls", Port: 1, NodeId: 3, Ssl: true},
		{Address: "", Port: 1, NodeId: 4},
		{Address: "h", Port: 0, NodeId: 5},
		{Address: "h", Port: 70000, NodeId: 6},
		{Address: "h", Port: 1, NodeId: 0},
		{Address: "h2", Port: 1, NodeId: 7},
		{Address: "::1", Port: 1, NodeId: 1},
	}}
	want := cluster.Topology{Zone: "a", Nodes: []cluster.Node{
		{ID: 1, Address: "[::1]:1"},
		{ID: 2, Address: "h2:1", Zone: "b", TLSName: "name", LoadFactor: 0.5},
	}}
	got, err := topology(list, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	list.Endpoints = list.Endpoints[:1]
	if _, err := topology(list, true); err == nil || !strings.Contains(err.Error(), "transport security") {
		t.Errorf("only endpoints without TLS: %v", err)
	}
	if _, err := topology(&Ydb_Discovery.ListEndpointsResult{}, false); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty list: %v", err)
	}
}

func TestPilesOfAnAnswer(t *testing.T) {
	list := &Ydb_Discovery.ListEndpointsResult{}
	for i := range Ydb_Bridge.PileState_State_name {
		name := string('a' + rune(i))
		list.PileStates = append(list.PileStates, &Ydb_Bridge.PileState{PileName: name, State: Ydb_Bridge.PileState_State(i)})
		list.Endpoints = append(list.Endpoints,
			&Ydb_Discovery.EndpointInfo{Address: name, Port: 1, NodeId: uint32(i + 1), BridgePileName: name})
	}
	list.Endpoints = append(list.Endpoints, &Ydb_Discovery.EndpointInfo{Address: "x", Port: 1, NodeId: 100, BridgePileName: "of no state"})
	got, err := topology(list, false)
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, n := range got.Nodes {
		states = append(states, n.Pile.Name+"="+n.Pile.State.String())
	}
	want := "a= b=primary c=synchronized d=synchronized e=not_synchronized f=detached g=detached of no state="
	if s := strings.Join(states, " "); s != want {
		t.Errorf("piles %s; want %s", s, want)
	}
}

// Of an answer with more endpoints than are used some are left out, and counted.
func TestEndpointsAreBounded(t *testing.T) {
	long := &Ydb_Discovery.ListEndpointsResult{}
	for i := range cluster.MaxNodes + 3 {
		long.Endpoints = append(long.Endpoints,
			&Ydb_Discovery.EndpointInfo{Address: fmt.Sprintf("h%d", i), Port: 2136, NodeId: uint32(i + 1)})
	}
	if got, err := topology(long, false); err != nil || len(got.Nodes) != cluster.MaxNodes || got.LeftOut != 3 {
		t.Errorf("%d nodes, %d left out, %v; want %d and 3", len(got.Nodes), got.LeftOut, err, cluster.MaxNodes)
	}
	long.Endpoints = long.Endpoints[3:]
	if got, err := topology(long, false); err != nil || len(got.Nodes) != cluster.MaxNodes || got.LeftOut != 0 {
		t.Errorf("%d nodes, %d left out, %v; want %d and none", len(got.Nodes), got.LeftOut, err, cluster.MaxNodes)
	}
}

func TestDiscoveryGoesOnToTheNextAddressAndThenToNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3, func(c *Config, _ *Deps) { c.URL = "grpc://node1:2136,node2:2136/local" })
		ask := func() error {
			_, err := b.driver.ListEndpoints(t.Context())
			return err
		}
		b.node(1).onList = func() (*Ydb_Discovery.ListEndpointsResult, Ydb.StatusIds_StatusCode, error) {
			return nil, Ydb.StatusIds_UNAVAILABLE, nil
		}
		for range 2 {
			if err := ask(); err != nil {
				t.Errorf("with one bad address: %v", err)
			}
		}
		if n := len(b.node(1).seen("ListEndpoints")); n != 1 {
			t.Errorf("the bad address was asked %d times; want once, then the good one first", n)
		}
		b.node(2).kill()
		if err := ask(); err != nil || len(b.node(3).seen("ListEndpoints")) != 1 {
			t.Errorf("without a good address, but with a good node: %v", err)
		}
		b.node(3).onList = func() (*Ydb_Discovery.ListEndpointsResult, Ydb.StatusIds_StatusCode, error) {
			return nil, 0, status.Error(codes.Internal, "boom")
		}
		err := ask()
		for _, want := range []string{"node1:2136", "UNAVAILABLE", "node2:2136", "/local"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not name %s", err, want)
			}
		}
	})
}

func TestAnotherServerIsAskedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3, func(c *Config, _ *Deps) { c.URL = "grpc://node1:2136,node2:2136/local" })
		v := b.driver.view.Load()
		b.driver.SetView(cluster.View{Nodes: v.Nodes[2:]}) // of the three the driver knows the last one
		asked := func() (n [3]int) {
			for i := range n {
				n[i] = len(b.node(cluster.NodeID(i + 1)).seen("ListEndpoints"))
			}
			return n
		}
		if _, err := b.driver.ListElsewhere(t.Context()); err != nil || asked() != [3]int{0, 0, 1} {
			t.Errorf("%v, asked %v; want a node of the view", err, asked())
		}
		b.node(3).kill()
		if _, err := b.driver.ListElsewhere(t.Context()); err != nil || asked() != [3]int{0, 1, 1} {
			t.Errorf("%v, asked %v; want the bootstrap address that did not answer last", err, asked())
		}
		if _, err := b.driver.ListEndpoints(t.Context()); err != nil || asked() != [3]int{0, 2, 1} {
			t.Errorf("%v, asked %v; want the one that answered last", err, asked())
		}
	})
}

func TestUsesTellsWhereSessionsAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		s, err := b.driver.Open(t.Context(), 2, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		if b.driver.Uses(1) || !b.driver.Uses(2) || b.driver.Uses(9) {
			t.Errorf("Uses: %t, %t, %t; want node 2 alone", b.driver.Uses(1), b.driver.Uses(2), b.driver.Uses(9))
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if b.driver.Uses(2) {
			t.Error("node 2 is in use after its session was closed")
		}
	})
}

// mute makes a node keep silent about its nodes until the test ends.
func mute(t *testing.T, n *fakeNode) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	n.onList = func() (*Ydb_Discovery.ListEndpointsResult, Ydb.StatusIds_StatusCode, error) {
		<-release
		return nil, Ydb.StatusIds_UNAVAILABLE, nil
	}
}

func TestASilentAddressDelaysTheNextByTheStaggerOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3, func(c *Config, _ *Deps) { c.URL = "grpc://node1:2136,node2:2136,node3:2136/local" })
		mute(t, b.node(1))
		mute(t, b.node(2))
		for i, want := range []time.Duration{2 * stagger, 0} {
			start := time.Now()
			if _, err := b.driver.ListEndpoints(t.Context()); err != nil || time.Since(start) != want {
				t.Errorf("question %d: %v after %v; want an answer after %v", i, err, time.Since(start), want)
			}
		}
	})
}

func TestSilentAddressesAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3, func(c *Config, _ *Deps) { c.URL = "grpc://node1:2136,node2:2136/local" })
		mute(t, b.node(1))
		mute(t, b.node(2))
		start := time.Now()
		if _, err := b.driver.ListEndpoints(t.Context()); err != nil || time.Since(start) < stagger+patience ||
			time.Since(start) > stagger+patience+2*stagger {
			t.Errorf("%v after %v; want the answer of node 3", err, time.Since(start))
		}
		mute(t, b.node(3))
		start = time.Now()
		_, err := b.driver.ListEndpoints(t.Context())
		if took := time.Since(start); err == nil || took < 5*time.Second || took > 8*time.Second {
			t.Errorf("%v after %v; want an error after the 5s that each address has, and their stagger", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err := b.driver.ListEndpoints(ctx); err == nil || time.Since(start) != time.Second {
			t.Errorf("%v after %v; want an error when the caller's second is over", err, time.Since(start))
		}
	})
}

// probesOfADeadNode checks that probes fail while the node is away, and succeed each time that it is back.
func probesOfADeadNode(t *testing.T, b *bench, s *Session, probe func() error) {
	b.node(2).kill()
	if err := probe(); err == nil || errors.Is(err, pessimize.ErrRefused) {
		t.Errorf("a dead node: %v; want a hard failure", err)
	}
	b.node(2).onCreate = nil
	for range 10 {
		for range 10 { // calls that let the connection's own pause grow
			run(within(t, time.Second), s, plain())
			time.Sleep(time.Second)
		}
		b.node(2).revive()
		if err := probe(); err != nil {
			t.Errorf("a node that came back: %v", err)
		}
		b.node(2).kill()
	}
}

func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		s, _ := b.mustOpen(2)
		probe := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := b.driver.Probe(ctx, 2)
			synctest.Wait()
			return err
		}
		if err := probe(); err != nil || b.sessions() != 1 || len(b.node(2).seen("CreateSession")) != 2 {
			t.Errorf("a good node: %v, %d sessions left; want the one from before", err, b.sessions())
		}
		b.node(2).onCreate = creating(&Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_OVERLOADED}, nil)
		if err := probe(); !errors.Is(err, pessimize.ErrRefused) {
			t.Errorf("a node that refuses: %v; want ErrRefused", err)
		}
		b.node(2).onCreate = creating(&Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_UNAUTHORIZED}, nil)
		if err := probe(); err != nil {
			t.Errorf("a right that is missing: %v; want nothing against the node", err)
		}
		b.judge.take()
		for text, want := range map[string]string{
			"Cannot create session: system shutdown requested.":                    "2 probe leaving RESOURCE_EXHAUSTED",
			"Unexpected node to perform query on database: /local, domain: /other": "2 probe foreign UNAUTHORIZED",
		} {
			b.node(2).onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
				if strings.Contains(want, "foreign") {
					return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_UNAUTHORIZED,
						Issues: []*Ydb_Issue.IssueMessage{{Message: text}}}, nil
				}
				return nil, status.Error(codes.ResourceExhausted, text)
			}
			err := probe()
			if got := b.judge.take(); !errors.Is(err, pessimize.ErrRefused) || !slices.Equal(got, []string{want}) {
				t.Errorf("%q: %v, told the judge %q; want %q", text, err, got, want)
			}
		}
		b.node(2).onCreate = creating(nil, status.Error(codes.Unimplemented, "unknown service"))
		if err := probe(); err != nil {
			t.Errorf("a server without sessions: %v", err)
		}
		b.node(2).onCreate = func(ctx context.Context) (*Ydb_Query.CreateSessionResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if err := probe(); err == nil || errors.Is(err, pessimize.ErrRefused) {
			t.Errorf("a silent node: %v; want a hard failure", err)
		}
		probesOfADeadNode(t, b, s, probe)
		if err := b.driver.Probe(t.Context(), 9); !errors.Is(err, hop.ErrUnknownNode) {
			t.Errorf("an unknown node: %v", err)
		}
	})
}

// certificates makes a CA and a certificate of it for the given name.
func certificates(t *testing.T, name string) (caFile string, server tls.Certificate) {
	t.Helper()
	sign := func(c, parent *x509.Certificate, key *ecdsa.PrivateKey, by *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	caKey, key := newKey(), newKey()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0),
	}
	caDER := sign(ca, ca, caKey, caKey)
	server = tls.Certificate{Certificate: [][]byte{sign(leaf, ca, key, caKey)}, PrivateKey: key}
	return writeFile(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}))), server
}

func TestTLS(t *testing.T) {
	for _, c := range []struct {
		name    string
		cert    string // name in the certificates of the nodes
		tlsName string // override in discovery
		trust   bool
		ok      bool
	}{
		{"own_ca", "node1", "", true, true},
		{"untrusted_ca", "node1", "", false, false},
		{"wrong_name", "other", "", true, false},
		{"name_from_discovery", "other", "other", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca, server := certificates(t, c.cert)
				f := &fakeCluster{t: t, nodes: map[string]*fakeNode{}, byID: map[cluster.NodeID]*fakeNode{}, down: map[string]bool{}}
				n := &fakeNode{cluster: f, id: 1, address: "node1:2136", sessions: map[string]*fakeSession{},
					creds: credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{server}})}
				f.nodes[n.address], f.byID[1] = n, n
				n.start()
				t.Cleanup(n.stop)
				b := benchOn(t, f, func(config *Config, _ *Deps) {
					config.URL = "grpcs://node1:2136/local"
					if c.trust {
						config.CAFile = ca
					}
				})
				b.driver.SetView(
					cluster.View{Nodes: []cluster.ViewNode{{Node: cluster.Node{ID: 1, Address: "node1:2136", TLSName: c.tlsName}}}},
				)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				res, err := b.driver.Open(ctx, 1, func(string) {})
				if (err == nil) != c.ok {
					t.Fatalf("Open: %v; want ok %t", err, c.ok)
				}
				if !c.ok {
					if !strings.Contains(err.Error(), "certificate") {
						t.Errorf("%v does not say what is wrong", err)
					}
					return
				}
				if err := res.Close(ctx); err != nil {
					t.Error(err)
				}
				if c.cert != "node1" {
					return // the bootstrap address has no override
				}
				if top, err := b.driver.ListEndpoints(ctx); err != nil || len(top.Nodes) != 1 {
					t.Errorf("discovery over TLS: %v, %v", top, err)
				}
			})
		})
	}
}

// What this process ends because its memory for waiting bytes is full counts neither for the node nor against it.
func TestWantOfMemoryHereSaysNothingOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Only the client of internal/h2 counts what waits: grpc-go's would take the answer whole.
		b := newBench(t, 2, func(config *Config, deps *Deps) { config.Client, deps.Buffered = ClientH2, 4096 })
		b.node(2).onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
			tooLong := strings.Repeat("x", 2*h2.Default().Window) // for one turn of the shard, after which the bytes are weighed
			return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_SUCCESS,
				Issues: []*Ydb_Issue.IssueMessage{{Message: tooLong}}}, nil
		}
		b.judge.take()
		if err := b.driver.Probe(
			t.Context(), 2,
		); !errors.Is(err, pessimize.ErrNothing) || errors.Is(err, pessimize.ErrRefused) || !strings.Contains(err.Error(), "memory") {
			t.Errorf("a probe: %v", err)
		}
		if got := b.judge.take(); len(got) > 0 {
			t.Errorf("a probe: the judge hears %q", got)
		}
		if _, _, err := b.open(2); err == nil || !strings.Contains(err.Error(), "memory") {
			t.Errorf("a session: %v", err)
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"2 open none UNAVAILABLE"}) {
			t.Errorf("a session: the judge hears %q", got)
		}
	})
}
