package systemtest

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// node is what the sidecar says of one node.
type nodeState struct {
	ID     uint32 `json:"id"`
	Use    string `json:"use"`
	Health string `json:"health"`
	Reason string `json:"reason"`
}

// nodes asks the sidecar for its view of the nodes.
func (s *sidecar) nodes(t *testing.T) (nodes map[uint32]nodeState, forwarded int) {
	t.Helper()
	var state struct {
		Forwarded int         `json:"forwarded"`
		Nodes     []nodeState `json:"nodes"`
	}
	if code := callJSON(t, "GET", "http://"+s.Admin+"/state/nodes", "", &state); code != 200 {
		t.Fatalf("/state/nodes: %d", code)
	}
	nodes = map[uint32]nodeState{}
	for _, n := range state.Nodes {
		nodes[n.ID] = n
	}
	return nodes, state.Forwarded
}

// awaitUse waits until the sidecar uses a node that way, and logs how long it took.
func (s *sidecar) awaitUse(t *testing.T, id uint32, use string) {
	t.Helper()
	start := time.Now()
	eventually(t, patience, fmt.Sprintf("node %d has use %s", id, use), func() string {
		if nodes, _ := s.nodes(t); nodes[id].Use != use {
			return fmt.Sprintf("%+v", nodes[id])
		}
		return ""
	})
	nodes, _ := s.nodes(t)
	t.Logf("node %d: use %s after %v: %s, %s", id, use, time.Since(start).Round(10*time.Millisecond), nodes[id].Health, nodes[id].Reason)
}

// said is what the sidecar says of a failed call.
func said(err error) *sidecarv1.Error {
	for _, detail := range status.Convert(err).Details() {
		if e, ok := detail.(*sidecarv1.Error); ok {
			return e
		}
	}
	return &sidecarv1.Error{Code: "no word of the sidecar: " + fmt.Sprint(err)}
}

// readLink reads over and over, which is safe to repeat.
func readLink(t *testing.T, s *sidecar) (stop func()) {
	t.Helper()
	c := call(t, 2, func(ctx context.Context, _ int) error {
		_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT COUNT(*) AS n FROM link", Idempotent: true, Timeout: "10s"})
		return err
	})
	return func() {
		t.Helper()
		c.stop()
		if failed := c.bad.Load(); failed != nil {
			t.Errorf("a read, which is safe to repeat, failed: %v", *failed)
		}
	}
}

const insertLink = "DECLARE $id AS Uint64; INSERT INTO link (id) VALUES ($id)"

// ids are the rows of the table link.
func ids(t *testing.T, s *sidecar) map[uint64]bool {
	t.Helper()
	answer, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT id FROM link", Idempotent: true})
	if err != nil {
		t.Fatal(err)
	}
	all := map[uint64]bool{}
	for _, row := range answer.Rows {
		all[row.Values[0].GetUint64Value()] = true
	}
	return all
}

// writers insert rows of their own until stopped and keep what became of each.
type writers struct {
	stop func()

	mu      sync.Mutex // guards all below
	kept    []uint64   // acknowledged
	lost    []uint64   // said to be safe to repeat
	unknown []uint64
	odd     []string // neither
	late    time.Duration
}

const linkTimeout = 5 * time.Second

func writeAlways(t *testing.T, s *sidecar, n int) *writers {
	t.Helper()
	w := &writers{}
	c := call(t, n, func(ctx context.Context, caller int) error {
		w.mu.Lock()
		id := uint64(1000 + len(w.kept) + len(w.lost) + len(w.unknown) + len(w.odd) + 1_000_000*(caller+1))
		w.mu.Unlock()
		start := time.Now()
		_, err := s.Execute(
			ctx,
			&sidecarv1.ExecuteRequest{Sql: insertLink, Params: map[string]*sidecarv1.Value{"id": unsigned(id)},
				Timeout: linkTimeout.String()},
		)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.late = max(w.late, time.Since(start)-linkTimeout)
		switch e := said(err); {
		case err == nil:
			w.kept = append(w.kept, id)
		case ctx.Err() != nil: // the test ends; the outcome is unknown
		case e.OutcomeUnknown:
			w.unknown = append(w.unknown, id)
		case e.SafeToRetry:
			w.lost = append(w.lost, id)
		default:
			w.odd = append(w.odd, e.Code+": "+e.Message)
		}
		return nil
	})
	w.stop = c.stop
	return w
}

// check compares what the writers were told with what is there.
func (w *writers) check(t *testing.T, there map[uint64]bool) {
	t.Helper()
	for _, id := range w.kept {
		if !there[id] {
			t.Errorf("row %d was acknowledged and is not there", id)
		}
	}
	for _, id := range w.lost {
		if there[id] {
			t.Errorf("row %d is there although its write was said to be safe to repeat", id)
		}
	}
	if len(w.odd) > 0 {
		t.Errorf("writes failed with errors of neither kind: %v", w.odd)
	}
	if w.late > 5*time.Second { // a busy machine adds to it
		t.Errorf("a call was answered %v after its deadline", w.late)
	}
	t.Logf("%d writes acknowledged, %d lost, %d unknown", len(w.kept), len(w.lost), len(w.unknown))
}

func startLink(t *testing.T, settings ...string) (*ydb, *sidecar) {
	t.Helper()
	c := startCluster(t, nil, "-processes", "-data", filepath.Join(t.TempDir(), "data"))
	s := startSidecar(t, c, nil, append([]string{"pool.max=18", "discovery.interval=1s"}, settings...)...)
	if _, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "CREATE TABLE link (id Uint64, PRIMARY KEY (id))"}); err != nil {
		t.Fatal(err)
	}
	return c, s
}

// linkTx is an interactive transaction that writes rows.
type linkTx struct {
	t     *testing.T
	s     *sidecar
	id    string
	owner uint32
	seq   uint64
}

func beginLink(t *testing.T, s *sidecar) *linkTx {
	t.Helper()
	begun, err := s.Begin(t.Context(), &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.GetTransaction(t.Context(), &sidecarv1.GetTransactionRequest{Id: begun.Tx.Id})
	if err != nil {
		t.Fatal(err)
	}
	return &linkTx{t: t, s: s, id: begun.Tx.Id, owner: state.NodeId}
}

func (x *linkTx) write(id uint64) (at uint32, err error) {
	x.seq++
	answer, err := x.s.Execute(
		x.t.Context(),
		&sidecarv1.ExecuteRequest{Sql: insertLink, Params: map[string]*sidecarv1.Value{"id": unsigned(id)},
			Tx: &sidecarv1.TxSelector{Id: x.id, Seq: x.seq}, Timeout: linkTimeout.String()},
	)
	return answer.GetInfo().GetNodeId(), err
}

func (x *linkTx) commit() error {
	_, err := x.s.Commit(x.t.Context(), &sidecarv1.CommitRequest{Id: x.id, Timeout: linkTimeout.String()})
	return err
}

// Only the link from the sidecar to the node that owns a transaction is cut; the
// other nodes reach it. The transaction had a quiet moment meanwhile.
func TestOnlyTheLinkToTheOwnerIsCut(t *testing.T) {
	for _, fate := range []string{"forward", "fail"} {
		t.Run(fate, func(t *testing.T) {
			c, s := startLink(t, "routing.owner_unreachable="+fate)
			tx := beginLink(t, s)
			if at, err := tx.write(1); err != nil || at != tx.owner {
				t.Fatalf("the first write: node %d, %v; want node %d", at, err, tx.owner)
			}
			stopReads, writes := readLink(t, s), writeAlways(t, s, 6)
			c.do(t, tx.owner, "blackhole", nil)
			s.awaitUse(t, tx.owner, "none")

			at, err := tx.write(2)
			if fate == "forward" {
				if err != nil || at == tx.owner {
					t.Errorf("a write with the link cut: node %d, %v; want another node", at, err)
				}
				err = tx.commit()
			}
			writes.stop()
			stopReads()
			there := ids(t, s)
			_, forwarded := s.nodes(t)
			if fate == "forward" {
				// Each of the two calls counts once, and once more when it reached no node and was sent again.
				counted := metric(t, s, "ydb_sidecar_routing_forwarded_total")
				if err != nil || !there[1] || !there[2] || forwarded < 2 || counted != fmt.Sprint(forwarded) {
					t.Errorf(
						"commit: %v; rows 1 and 2 there: %t, %t; %d calls counted as forwarded, %s in /metrics; want both, and at least 2",
						err, there[1], there[2], forwarded, counted,
					)
				}
			} else if e := said(err); e.Code != "TX_LOST" || !e.SafeToRetry || e.OutcomeUnknown || there[1] || there[2] || forwarded != 0 {
				t.Errorf("%v: %+v; rows there: %t, %t; %d forwarded; want the transaction lost, safe to repeat, nothing kept",
					err, e, there[1], there[2], forwarded)
			}
			writes.check(t, there)

			c.do(t, tx.owner, "clear", nil)
			s.awaitUse(t, tx.owner, "new")
			again := beginLink(t, s)
			if _, err := again.write(3); err != nil {
				t.Error(err)
			}
			if err := again.commit(); err != nil {
				t.Error(err)
			}
			nothingLeft(t, c, s)
		})
	}
}

// The link is cut and comes back while the transaction is open: it goes around
// its owner and then back to it, on the same session.
func TestTheLinkToTheOwnerComesBack(t *testing.T) {
	c, s := startLink(t)
	tx := beginLink(t, s)
	if _, err := tx.write(1); err != nil {
		t.Fatal(err)
	}
	stopReads, writes := readLink(t, s), writeAlways(t, s, 6)
	c.do(t, tx.owner, "blackhole", nil)
	s.awaitUse(t, tx.owner, "none")
	if at, err := tx.write(2); err != nil || at == tx.owner {
		t.Errorf("with the link cut: node %d, %v; want another node", at, err)
	}
	c.do(t, tx.owner, "clear", nil)
	s.awaitUse(t, tx.owner, "new")
	if at, err := tx.write(3); err != nil || at != tx.owner {
		t.Errorf("with the link back: node %d, %v; want the owner, %d", at, err, tx.owner)
	}
	if err := tx.commit(); err != nil {
		t.Error(err)
	}
	writes.stop()
	stopReads()
	there := ids(t, s)
	for id := range uint64(3) {
		if !there[id+1] {
			t.Errorf("row %d is not there", id+1)
		}
	}
	writes.check(t, there)
	nothingLeft(t, c, s)
}

// A link that resets connections tells the node that its client is gone, and
// the node ends the session: the transaction is lost, and the sidecar says so.
func TestAResetLinkLosesTheTransactionTruthfully(t *testing.T) {
	c, s := startLink(t)
	tx := beginLink(t, s)
	if _, err := tx.write(1); err != nil {
		t.Fatal(err)
	}
	c.do(t, tx.owner, "refuse", nil)
	_, err := tx.write(2)
	if err == nil { // through another node, before the owner heard that its client is gone
		eventually(t, patience, "the owner ends the transaction", func() string {
			sessions, err := c.Sessions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range sessions {
				if s.NodeID == tx.owner && s.Transactions > 0 {
					return fmt.Sprintf("%+v", s)
				}
			}
			return ""
		})
		err = tx.commit()
	}
	if e := said(err); e.Code != "TX_LOST" || !e.SafeToRetry || e.OutcomeUnknown {
		t.Errorf("%v: %+v; want the transaction lost, safe to repeat", err, e)
	}
	if there := ids(t, s); len(there) != 0 {
		t.Errorf("rows %v are there", there)
	}
	nothingLeft(t, c, s)
}

// A stopped process: its kernel accepts connections and data, and no answer comes.
func TestAStoppedNodeKeepsNobodyWaiting(t *testing.T) {
	c, s := startLink(t)
	stopReads, writes := readLink(t, s), writeAlways(t, s, 12)
	victim := c.Nodes[1].ID
	eventually(t, patience, "the node has sessions", func() string {
		if count := c.perNode(t); count[victim] == 0 {
			return fmt.Sprint(count)
		}
		return ""
	})
	c.do(t, victim, "pause", nil)
	s.awaitUse(t, victim, "none")
	writes.stop()
	stopReads()
	c.do(t, victim, "resume", nil)
	s.awaitUse(t, victim, "new")
	writes.check(t, ids(t, s))
	nothingLeft(t, c, s)
}

// nothingLeft stops the sidecar and looks for sessions.
func nothingLeft(t *testing.T, c *ydb, s *sidecar) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if code, err := s.Process.Stop(ctx); err != nil || code != 0 {
		t.Errorf("stop: exit code %d, %v", code, err)
	}
	eventually(t, patience, "no session is left", func() string {
		left, err := c.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			return fmt.Sprintf("%+v", left)
		}
		return ""
	})
}

// metric reads one value from /metrics.
func metric(t *testing.T, s *sidecar, name string) string {
	t.Helper()
	_, text := s.get(t, "/metrics")
	for line := range strings.Lines(text) {
		if labelled, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok &&
			(labelled == name || strings.HasPrefix(labelled, name+"{")) {
			return value
		}
	}
	return ""
}
