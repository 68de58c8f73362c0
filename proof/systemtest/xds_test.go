package systemtest

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// xdsName is what the nodes of the cluster of the tests are called over xDS.
const xdsName = "ydb/local"

// acknowledged fails the test if a client rejected anything that a sidecar published.
func (s *sidecar) acknowledged(t *testing.T) {
	t.Helper()
	_, text := s.get(t, "/state/xds")
	t.Logf("/state/xds: %s", text)
	var state struct {
		Responses, Nacks int
	}
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		t.Fatalf("/state/xds: %v in %s", err, text)
	}
	if state.Responses == 0 || state.Nacks != 0 {
		t.Errorf("of %d answers %d were rejected; want none of some", state.Responses, state.Nacks)
	}
	if log := s.Process.Log(); strings.Contains(log, "refuses what") {
		t.Errorf("the sidecar's log tells of something rejected:\n%s", log)
	}
}

// acknowledged fails the test if Envoy rejected anything that it was told.
func (e *envoy) acknowledged(t *testing.T) {
	t.Helper()
	if bad := e.rejected(t); len(bad) > 0 {
		t.Errorf("Envoy rejected updates: %v", bad)
	}
	if log := e.process.Log(); strings.Contains(log, "reject") || strings.Contains(log, "gRPC config for") {
		t.Errorf("Envoy's log tells of something rejected:\n%s", log)
	}
}

// stops waits until a node that the cluster drains has stopped.
func (c *ydb) stops(t *testing.T, node stand.Node) {
	t.Helper()
	eventually(t, patience, "the drained node has stopped", func() string {
		for _, n := range c.state(t) {
			if n.ID == node.ID {
				return strings.TrimPrefix(n.State, "stopped")
			}
		}
		return "it is unknown"
	})
}

// soon is within what time a client of the sidecar's view follows a change of the cluster.
const soon = 2 * time.Second

// followers are clients that follow the nodes, and the nodes to which nothing was done yet.
type followers struct {
	c       *ydb
	s       *sidecar
	clients []*direct
	unused  []stand.Node
}

// timed does something to a node and measures when the clients go by it.
func (f *followers) timed(t *testing.T, what string, node stand.Node, do func(stand.Node),
	follows func(d *direct, t *testing.T, node string, at time.Time) time.Duration) (late bool) {
	t.Helper()
	at := time.Now()
	do(node)
	for _, d := range f.clients {
		took := follows(d, t, node.Address, at)
		t.Logf("node %d %s: %s after %v", node.ID, what, d.name, took.Round(time.Millisecond))
		late = late || took > soon
	}
	return late
}

// each takes one node after the other until the clients are in time: a busy machine may stall now and then, a mechanism that
// is slow always is.
func (f *followers) each(t *testing.T, try func(node stand.Node) (late bool)) (node stand.Node) {
	t.Helper()
	for range 3 {
		if len(f.unused) == 0 {
			break
		}
		node, f.unused = f.unused[0], f.unused[1:]
		if !try(node) {
			return node
		}
	}
	t.Fatalf("not within %v, three times", soon)
	return node
}

// slow delays a node and measures from the moment at which the sidecar finds it slow: how soon that is depends on the
// sidecar's calls (docs/concepts/health.md).
func (f *followers) slow(t *testing.T, n stand.Node) (late bool) {
	t.Helper()
	slowed := time.Now()
	f.c.do(t, n.ID, "delay", map[string]any{"delay": "200ms"})
	defer f.c.do(t, n.ID, "clear", nil)
	eventually(t, time.Minute, fmt.Sprintf("node %d is found slow", n.ID), func() string {
		var why struct{ State, Summary string }
		if f.s.read(t, fmt.Sprintf("/nodes/%d/why", n.ID), &why); why.State != "ejected" && why.State != "probing" {
			return why.Summary
		}
		return ""
	})
	t.Logf("node %d is found slow after %v", n.ID, time.Since(slowed).Round(time.Millisecond))
	return f.timed(t, "slow", n, func(stand.Node) {}, (*direct).stops)
}

// A real Envoy with the shipped configuration and gRPC's own xDS client call the nodes that the sidecar tells them of. A node
// that is added, slow, drained or killed gets calls, or no more calls, within two seconds; none fails but on the killed node.
func TestEnvoyAndGRPCFollowTheNodes(t *testing.T) {
	c := startCluster(t, nil, "-nodes", "7")
	s := startXDS(t, c)
	e := startEnvoy(t, s)
	s.calls(t) // it knows what is slow by its own calls
	begun := time.Now()
	clients := []*direct{startDirect(t, "Envoy", e.conn), startDirect(t, "gRPC", dialXDS(t, s, xdsName))}
	for _, d := range clients {
		for _, node := range c.Nodes {
			d.starts(t, node.Address, begun)
		}
	}

	follow := followers{c, s, clients, slices.Clone(c.Nodes[1:])}
	do := func(what string, body any) func(stand.Node) {
		return func(n stand.Node) { c.do(t, n.ID, what, body) }
	}
	order := func(what string) func(stand.Node) {
		return func(n stand.Node) { s.order(t, n.ID, what) }
	}

	follow.unused = slices.Insert(follow.unused, 0, stand.Node{}, stand.Node{}) // to be added
	follow.each(t, func(stand.Node) bool {
		n, err := c.Add(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return follow.timed(t, "added", n, func(stand.Node) {}, (*direct).starts)
	})
	follow.unused = slices.DeleteFunc(follow.unused, func(n stand.Node) bool { return n.ID == 0 })
	follow.each(t, func(n stand.Node) bool {
		return follow.timed(t, "drained by an operator", n, order("drain"), (*direct).stops) ||
			follow.timed(t, "no longer drained", n, order("undrain"), (*direct).starts)
	})
	leaving := follow.each(t, func(n stand.Node) bool {
		return follow.timed(t, "drained by the cluster", n,
			do("drain", map[string]any{"mode": "hints", "notice": "1s", "soft": "10s", "hard": "10s"}), (*direct).stops)
	})
	c.stops(t, leaving)
	follow.each(t, func(n stand.Node) bool { return follow.slow(t, n) })
	for _, d := range clients {
		if err := d.failed(begun); err != nil {
			t.Errorf("%s: a call failed while nodes were added, slow and drained: %v", d.name, err)
		}
	}
	follow.each(t, func(n stand.Node) bool { return follow.timed(t, "killed", n, do("kill", nil), (*direct).stops) })

	for _, d := range clients {
		d.stop()
		t.Logf("%s: %d calls", d.name, len(d.since(begun)))
	}
	s.acknowledged(t)
	e.acknowledged(t)
}

// calls has calls go through a sidecar until the test ends, 400 a second by 20 callers.
func (s *sidecar) calls(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			pace := time.NewTicker(50 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				// It may fail, when a node is killed: what the sidecar does about that is not the matter here.
				_, _ = s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Idempotent: true})
				select {
				case <-ctx.Done():
				case <-pace.C:
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); callers.Wait() })
}

// order gives an operator's order for a node.
func (s *sidecar) order(t *testing.T, node uint32, what string) {
	t.Helper()
	operate(t, s.socket, what+"-node", fmt.Sprint(node))
}

// Clients that set the header have every call of a session on the node that owns it, whatever the sidecar thinks of that node.
func TestEnvoyKeepsSessionsOnTheirNode(t *testing.T) {
	c := startCluster(t, nil, "-nodes", "4")
	s := startXDS(t, c, "health.ejection=1m")
	s.calls(t)
	e := startEnvoy(t, s)
	const sessions, calls = 30, 10

	eventually(t, patience, "Envoy knows the nodes", func() string {
		if health := e.health(t); len(health) != len(c.Nodes) {
			return fmt.Sprint(health)
		}
		return ""
	})
	all, perNode := e.openSessions(t, sessions)
	if len(perNode) != len(c.Nodes) {
		t.Errorf("sessions are %v; want some on each of %d nodes", perNode, len(c.Nodes))
	}
	drained, slow := c.Nodes[0], c.Nodes[1]
	s.order(t, drained.ID, "drain")
	c.do(t, slow.ID, "delay", map[string]any{"delay": "300ms"})
	eventually(t, 60*time.Second, "Envoy knows of the drained and the slow node", func() string {
		if health := e.health(t); health[drained.Address] != "DRAINING" || health[slow.Address] != "DEGRADED" {
			return fmt.Sprint(health)
		}
		return ""
	})
	if owner, forwarded := e.callAll(t, c, all, calls); forwarded != 0 || owner < sessions*calls {
		t.Errorf("with the shipped configuration %d calls went to the owner and %d were forwarded; want at least %d and 0",
			owner, forwarded, sessions*calls)
	}
	// New sessions go elsewhere.
	if _, perNode := e.openSessions(t, sessions); perNode[int64(drained.ID)] != 0 || perNode[int64(slow.ID)] != 0 {
		t.Errorf("new sessions are %v; want none on the drained node %d and the slow node %d", perNode, drained.ID, slow.ID)
	}
	s.acknowledged(t)

	// The same without affinity: Envoy takes no notice of the header.
	off := startEnvoy(t, s, "header: "+ownerHeader, "header: x-unused")
	c.do(t, slow.ID, "clear", nil)
	all, _ = off.openSessions(t, sessions)
	if owner, forwarded := off.callAll(t, c, all, calls); forwarded < sessions*calls/4 {
		t.Errorf("without affinity %d calls went to the owner and %d were forwarded; want half of %d forwarded, two nodes being left",
			owner, forwarded, sessions*calls)
	}
}

// ownedSession is a session and its home node.
type ownedSession struct {
	id   string
	node int64
}

// openSessions opens sessions through Envoy, and counts them by node.
func (e *envoy) openSessions(t *testing.T, sessions int) (all []ownedSession, perNode map[int64]int) {
	t.Helper()
	perNode = map[int64]int{}
	for range sessions {
		one := e.openSession(t)
		all, perNode[one.node] = append(all, one), perNode[one.node]+1
	}
	return all, perNode
}

func (e *envoy) openSession(t *testing.T) ownedSession {
	t.Helper()
	created, err := Ydb_Query_V1.NewQueryServiceClient(e.conn).CreateSession(
		t.Context(), &Ydb_Query.CreateSessionRequest{}, grpc.WaitForReady(true),
	)
	if err != nil || created.Status != Ydb.StatusIds_SUCCESS {
		t.Fatalf("create a session: %v, %v", created, err)
	}
	stream, err := Ydb_Query_V1.NewQueryServiceClient(e.conn).AttachSession(
		metadata.AppendToOutgoingContext(t.Context(), ownerHeader, fmt.Sprint(created.NodeId)),
		&Ydb_Query.AttachSessionRequest{SessionId: created.SessionId})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatalf("attach the session: %v", err)
	}
	return ownedSession{created.SessionId, created.NodeId}
}

// callAll makes calls with each of these sessions, and returns how many reached their owner and how many were forwarded.
func (e *envoy) callAll(t *testing.T, c *ydb, all []ownedSession, calls int) (owner, forwarded int64) {
	t.Helper()
	owner, forwarded = c.sum(t, "owned"), c.sum(t, "forwarded")
	var work sync.WaitGroup
	for _, one := range all {
		work.Go(func() {
			for range calls {
				if _, err := selectOne(t.Context(), e.conn, one.id, one.node); err != nil {
					t.Errorf("a call of a session on node %d: %v", one.node, err)
					return
				}
			}
		})
	}
	work.Wait()
	return c.sum(t, "owned") - owner, c.sum(t, "forwarded") - forwarded
}

// All of it with TLS and a token, and with the state of the world in place of changes: the parts of the shipped configuration that
// are comments.
func TestEnvoyWithTLS(t *testing.T) {
	nodeCert, nodeKey, _ := certify(t)
	cert, key, _ := certify(t)
	const token = "a token of the test"
	c := startCluster(t, nil, "-tls-cert", nodeCert, "-tls-key", nodeKey)
	for _, n := range c.Nodes { // Envoy compares names, not addresses
		c.do(t, n.ID, "advertise", map[string]string{"address": strings.Replace(n.Address, "127.0.0.1", "localhost", 1)})
	}
	s := startXDSAt(t, "grpcs://"+c.Nodes[0].Address+"/local", "ydb.ca_file="+nodeCert, "xds.cert_file="+cert,
		"xds.key_file="+key, "xds.token="+token)
	e := startEnvoy(t, s, "api_type: DELTA_GRPC", "api_type: GRPC", "the-token-of-the-sidecar", token,
		"# initial_metadata", "initial_metadata",
		"  # secrets:", "  secrets:", "  #   - name: ydb", "    - name: ydb", "  #     validation_context",
		"      validation_context", "/etc/ssl/certs/ca-certificates.crt", nodeCert,
		"# transport_socket", "transport_socket", "#   name: envoy.tr", "  name: envoy.tr", "#   typed_config",
		"  typed_config", "#     \"@type\"", "    \"@type\"", "#     common_tls", "    common_tls",
		"#       alpn", "      alpn", "#       validation_context", "      validation_context", "/etc/ydb-sidecar/xds-ca.pem", cert)
	eventually(t, patience, "calls reach the nodes", func() string {
		if _, err := selectOne(t.Context(), e.conn, "", 0); err != nil {
			return err.Error()
		}
		return ""
	})
	s.acknowledged(t)
	if bad := e.rejected(t); len(bad) > 0 {
		t.Errorf("Envoy rejected updates: %v", bad)
	}

	stranger := startEnvoy(t, s, "ads: {}", "ads: {}\n    initial_fetch_timeout: 1s") // which has neither TLS nor the token
	if _, err := selectOne(t.Context(), stranger.conn, "", 0); err == nil {
		t.Error("an Envoy without the token knows the nodes")
	}
}

// The same for gRPC's own client, which knows certificates but no tokens.
func TestGRPCWithTLS(t *testing.T) {
	nodeCert, nodeKey, parsed := certify(t)
	cert, key, _ := certify(t)
	c := startCluster(t, nil, "-tls-cert", nodeCert, "-tls-key", nodeKey)
	s := startXDSAt(t, "grpcs://"+c.Nodes[0].Address+"/local", "ydb.ca_file="+nodeCert, "xds.cert_file="+cert,
		"xds.key_file="+key, "xds.client_ca_file="+cert)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	secure := fmt.Sprintf(`{"type": "tls", "config": {"ca_certificate_file": %q, "certificate_file": %q, "private_key_file": %q}}`,
		cert, cert, key)
	config := bytes.ReplaceAll(bootstrap(t, s), []byte(`{"type": "insecure"}`), []byte(secure))
	conn := dialBootstrap(t, config, xdsName, grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(roots, "")),
		grpc.WithAuthority("localhost"))
	eventually(t, patience, "calls reach the nodes", func() string {
		if _, err := selectOne(t.Context(), conn, "", 0); err != nil {
			return err.Error()
		}
		return ""
	})
	s.acknowledged(t)
}

// The sidecar is found over xDS as well: its plain API is the listener "sidecar".
func TestTheSidecarIsFoundOverXDS(t *testing.T) {
	c := startCluster(t, nil)
	s := startXDS(t, c)
	api := sidecarv1.NewSidecarClient(dialXDS(t, s, "sidecar"))
	if _, err := api.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	s.acknowledged(t)
}

// gRPC in Python speaks xDS too: a node that is drained, and then one that is killed, gets no more calls, and only the killed
// one costs any.
func TestPythonFollowsTheNodes(t *testing.T) {
	c := startCluster(t, nil)
	s := startXDS(t, c)
	p := standtest.Start(t, stand.Spec{
		Path: officialPython(t), Args: []string{filepath.Join("testdata", "xds", "client.py"), "xds:///" + xdsName},
		Env: []string{"GRPC_XDS_BOOTSTRAP_CONFIG=" + string(bootstrap(t, s)), "PYTHONDONTWRITEBYTECODE=1"},
	})
	standtest.Ready(t, p) // it has made a call
	statements := func(node uint32) int64 {
		t.Helper()
		for _, n := range c.state(t) {
			if n.ID == node {
				return n.Counters["statements"]
			}
		}
		t.Fatalf("there is no node %d", node)
		return 0
	}
	for _, node := range c.Nodes {
		eventually(t, patience, fmt.Sprintf("node %d gets calls", node.ID), func() string {
			if statements(node.ID) == 0 {
				return tail3(p)
			}
			return ""
		})
	}
	s.order(t, c.Nodes[0].ID, "drain")
	last, quiet := int64(-1), time.Now()
	eventually(t, patience, "the drained node gets no calls", func() string {
		if now := statements(c.Nodes[0].ID); now != last {
			last, quiet = now, time.Now()
		}
		if time.Since(quiet) < time.Second {
			return fmt.Sprintf("%d statements", last)
		}
		return ""
	})
	if failed := tail3(p); strings.Contains(failed, "failed") {
		t.Errorf("calls failed while a node was drained: %s", failed)
	}
	c.do(t, c.Nodes[1].ID, "kill", nil)
	was := statements(c.Nodes[2].ID)
	eventually(t, patience, "the node that is left gets the calls", func() string {
		if now := statements(c.Nodes[2].ID); now < was+200 {
			return fmt.Sprintf("%d of 200\n%s", now-was, tail3(p))
		}
		return ""
	})
	s.acknowledged(t)
}

func tail3(p *stand.Process) string {
	return stand.LastLines(p.Stdout(), 3) + stand.LastLines(p.Log(), 3)
}
