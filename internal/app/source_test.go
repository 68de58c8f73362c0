package app

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery/dnstest"
	"github.com/ydb-sidecar/sidecar/internal/doctor"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// place is an address behind which one node listens after the other.
type place struct {
	net.Listener
	mu    sync.Mutex // guards all below
	to    string
	conns []net.Conn
}

// newPlace forwards connections to the node at to until the test ends.
func newPlace(t *testing.T, to string) *place {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{Listener: l, to: to}
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			out, err := net.Dial("tcp", p.to)
			if err != nil {
				out = in
			}
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				forwarding.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_, _ = way[0].Close(), way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.move("")
		forwarding.Wait()
	})
	return p
}

// move puts another node there.
func (p *place) move(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *place) port() uint16 { return netip.MustParseAddrPort(p.Addr().String()).Port() }

// nodeIDs are the nodes that get new work.
func (s *sidecar) nodeIDs() (ids []cluster.NodeID) {
	var nodes snapshot.NodesState
	s.state("/state/nodes", &nodes)
	for _, n := range nodes.Nodes {
		if n.Use == "new" && !n.Draining {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

func (s *sidecar) awaitNodes(want ...cluster.NodeID) {
	s.Helper()
	s.eventually("the nodes are there", func() bool { return slices.Equal(s.nodeIDs(), want) })
}

// onSessions makes sessions as an SDK does, and calls on each.
func (s *sidecar) onSessions(n int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 5*time.Minute)
	defer cancel()
	client := Ydb_Query_V1.NewQueryServiceClient(s.conn)
	for range n {
		var made *Ydb_Query.CreateSessionResponse
		s.eventually("a session is made", func() bool { // the data path hears of a new node a moment later than the rest
			var err error
			made, err = client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
			return err == nil && made.GetStatus() == Ydb.StatusIds_SUCCESS
		})
		attached, detach := context.WithCancel(ctx)
		life, err := client.AttachSession(attached, &Ydb_Query.AttachSessionRequest{SessionId: made.GetSessionId()})
		if err == nil {
			_, err = life.Recv()
		}
		if err != nil {
			s.Fatalf("AttachSession: %v", err)
		}
		for range 3 {
			stream, err := client.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
				SessionId: made.GetSessionId(), ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
					QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: "SELECT 1"},
				},
			})
			if err != nil {
				s.Fatal(err)
			}
			for {
				part, err := stream.Recv()
				if err == io.EOF {
					break
				}
				if err != nil || part.GetStatus() != Ydb.StatusIds_SUCCESS {
					s.Fatalf("ExecuteQuery: %v %v", part, err)
				}
			}
		}
		if r, err := client.DeleteSession(
			ctx, &Ydb_Query.DeleteSessionRequest{SessionId: made.GetSessionId()},
		); err != nil || r.GetStatus() != Ydb.StatusIds_SUCCESS {
			s.Fatalf("DeleteSession: %v %v", r, err)
		}
		detach()
	}
}

func forwarded(c *devcluster.Cluster) (n int64) {
	for id := uint32(1); c.Node(id) != nil; id++ {
		n += c.Node(id).Counters().Forwarded
	}
	return n
}

// atOwners waits until calls on sessions are forwarded no longer. Sessions on a node
// that has just lost its place did not end with it, and are deleted by way of another.
func (s *sidecar) atOwners(c *devcluster.Cluster) {
	s.Helper()
	s.eventually("all calls go to the owners of their sessions", func() bool {
		before := forwarded(c)
		s.onSessions(10)
		return forwarded(c) == before
	})
}

// examine has a configuration tried out as sidecar doctor does; good says whether all
// must be well, although nobody listens at ydb.url.
func examine(t *testing.T, good bool, url string, settings ...string) {
	t.Helper()
	assignments := []Assignment{{"ydb.url=" + url, "test"}}
	for _, s := range settings {
		assignments = append(assignments, Assignment{s, "test"})
	}
	c, _, err := Load("", nil, assignments)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all []doctor.Exam
	if Examine(ctx, c, "1.2.3", func(e doctor.Exam) { all = append(all, e) }) != good {
		t.Errorf("doctor: %+v", all)
	}
}

// Names and addresses say nothing of node ids. The sidecar finds them out, also that
// another node has come to an address, and calls go to the owners of their sessions.
// Long: one cluster moves from address to address.
func TestNodesByDNS(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s1, s2 := newPlace(t, c.Node(3).Address()), newPlace(t, c.Node(1).Address())
	dns := dnstest.Start(t)
	dns.Addresses("ydb.test.", "127.0.0.1")
	dns.Services("_grpc._tcp.ydb.test.", dnstest.Target{Host: "ydb.test.", Port: s1.port()},
		dnstest.Target{Host: "ydb.test.", Port: s2.port()})
	settings := []string{
		"discovery.mode=dns", "discovery.dns_name=_grpc._tcp.ydb.test", "discovery.dns_server=" + dns.Addr,
		"discovery.interval=100ms", "discovery.min_pause=5ms", "wire.mode=passthrough",
	}
	const nobody = "grpc://127.0.0.1:1/local" // YDB's own discovery is not used
	s := start(t, nobody, append(settings, "pool.min=4")...)
	s.awaitNodes(1, 3)
	s.onSessions(10)
	if _, err := s.query("SELECT 1"); err != nil {
		t.Error(err)
	}

	if n := forwarded(c); n != 0 {
		t.Errorf("nodes forwarded %d calls; want all at the owners of their sessions", n)
	}
	examine(t, true, nobody, settings...)
	examine(t, false, nobody, append(settings, "discovery.dns_name=nobody.test:1")...)
	// An address where nobody is shows, and takes nothing from the others.
	const dead = 1 // as in nobody
	dns.Services("_grpc._tcp.ydb.test.", dnstest.Target{Host: "ydb.test.", Port: s1.port()},
		dnstest.Target{Host: "ydb.test.", Port: dead}, dnstest.Target{Host: "ydb.test.", Port: s2.port()})
	s.eventually("an address without a node shows", func() bool {
		var nodes snapshot.NodesState
		s.state("/state/nodes", &nodes)
		_, metrics := s.get("/metrics")
		return len(nodes.Discovery.Unidentified) == 1 && nodes.Discovery.Unidentified[0].Error != "" &&
			strings.Contains(metrics, "ydb_sidecar_discovery_unidentified 1")
	})
	s.awaitNodes(1, 3)
	dns.Services("_grpc._tcp.ydb.test.", dnstest.Target{Host: "ydb.test.", Port: s1.port()},
		dnstest.Target{Host: "ydb.test.", Port: s2.port()})
	s1.move(c.Node(2).Address())
	s.awaitNodes(1, 2)
	var open []string
	for range 8 { // the four that the pool keeps may be on the other node, from before this one told its id
		begun, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, begun.GetTx().GetId())
	}
	s.eventually("sessions are open on the new node", func() bool { return len(c.Node(2).Sessions()) >= 2 })
	for _, id := range open {
		if _, err := s.client.Rollback(t.Context(), &sidecarv1.RollbackRequest{Id: id}); err != nil {
			t.Error(err)
		}
	}
	s.atOwners(c)

	dns.Services("_grpc._tcp.ydb.test.", dnstest.Target{Host: "ydb.test.", Port: s1.port()})
	s.awaitNodes(2)
	s.atOwners(c)
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s.eventually("no session is left", func() bool { return len(c.Sessions()) == 0 })

	// That the count above means something: without affinity it is another.
	dns.Services("_grpc._tcp.ydb.test.", dnstest.Target{Host: "ydb.test.", Port: s1.port()},
		dnstest.Target{Host: "ydb.test.", Port: s2.port()})
	before := forwarded(c)
	s = start(t, nobody, append(settings, "routing.affinity=off")...)
	s.awaitNodes(1, 2)
	s.onSessions(20)
	if forwarded(c) == before {
		t.Error("no call was forwarded although calls went anywhere")
	}
}

// A sidecar that takes its nodes from another one, over TLS with certificates on both
// sides and a token: what happens to a node is seen there, and the nodes stay when the
// other one goes.
func TestNodesOfAnotherSidecar(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	dir := t.TempDir()
	cert, key, token := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "token")
	selfSigned(t, cert, key)
	if err := os.WriteFile(token, []byte("the token of the control plane\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := start(t, c.Endpoint(), "xds.enabled=on", "xds.address=127.0.0.1:0", "xds.cert_file="+cert,
		"xds.key_file="+key, "xds.client_ca_file="+cert, "xds.token_file="+token,
		"discovery.interval=100ms", "discovery.min_pause=5ms")
	settings := []string{
		"discovery.mode=xds", "discovery.xds_url=grpcs://" + first.at.XDS, "discovery.xds_ca_file=" + cert,
		"discovery.xds_cert_file=" + cert, "discovery.xds_key_file=" + key,
		"discovery.min_pause=5ms", "discovery.retry_min=10ms", "discovery.retry_max=50ms", "wire.mode=passthrough",
	}
	const nobody = "grpc://127.0.0.1:1/local"
	stranger := start(t, nobody, settings...)
	s := start(t, nobody, append(settings, "discovery.xds_token_file="+token, "pool.min=3")...)
	s.awaitNodes(1, 2, 3)
	s.onSessions(10)
	if n := forwarded(c); n != 0 {
		t.Errorf("nodes forwarded %d calls; want all at the owners of their sessions", n)
	}
	var nodes snapshot.NodesState
	if s.state("/state/nodes", &nodes); nodes.Discovery.Version == "" || nodes.Discovery.Error != "" || nodes.Nodes[0].Zone == "" {
		t.Errorf("nodes %+v", nodes)
	}
	stranger.eventually("who has no token is told so", func() bool {
		var nodes snapshot.NodesState
		stranger.state("/state/nodes", &nodes)
		return len(nodes.Nodes) == 0 && strings.Contains(nodes.Discovery.Error, "token")
	})

	first.post("/nodes/2/drain")
	s.awaitNodes(1, 3)
	if s.state("/state/nodes", &nodes); len(nodes.Nodes) != 3 || !nodes.Nodes[1].Draining ||
		!strings.Contains(nodes.Nodes[1].Reason, "drained") {
		t.Errorf("a node drained at the other sidecar: %+v", nodes.Nodes)
	}
	s.eventually("its sessions are gone", func() bool {
		s.state("/state/nodes", &nodes)
		return nodes.Nodes[1].Sessions == 0
	})
	first.post("/nodes/2/undrain")
	s.awaitNodes(1, 2, 3)
	c.Node(3).Stop()
	s.awaitNodes(1, 2)

	if err := first.stop(); err != nil {
		t.Error(err)
	}
	s.eventually("the control plane is missed", func() bool {
		s.state("/state/nodes", &nodes)
		return nodes.Discovery.Failures > 2
	})
	s.onSessions(5)
	if ids := s.nodeIDs(); !slices.Equal(ids, []cluster.NodeID{1, 2}) {
		t.Errorf("nodes %v; want those of before", ids)
	}
}
