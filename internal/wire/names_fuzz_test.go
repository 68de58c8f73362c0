package wire

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

var nodeOfSession = regexp.MustCompile(`[?&]node_id=([0-9]*)`)

// FuzzSessionIDs: an id is of a virtual session only as that session spells it, and the
// owner is the number that a reader of URLs finds.
func FuzzSessionIDs(f *testing.F) {
	f.Add(string(virtual.ID{1, 0xab}.Append(nil)))
	f.Add(strings.ToUpper(string(virtual.ID{1, 0xab}.Append(nil))))
	f.Add("ydb://session/3?node_id=50001&id=ZjY0YzQ1")
	f.Add("ydb://session/3?id=x&node_id=4294967296?node_id=1")
	f.Fuzz(func(t *testing.T, text string) {
		want := uint64(0)
		if m := nodeOfSession.FindStringSubmatch(text); m != nil {
			if n, err := strconv.ParseUint(m[1], 10, 32); err == nil {
				want = n
			}
		}
		if got := protocol.HomeNode([]byte(text)); uint64(got) != want {
			t.Errorf("owner %d; want %d", got, want)
		}
		id, ok := virtual.Parse([]byte(text))
		if ok && (string(id.Append(nil)) != text || protocol.HomeNode([]byte(text)) != virtual.NodeID) {
			t.Errorf("taken for %s", id.Append(nil))
		}
	})
}

// FuzzHeaders: whatever clients write into the headers that are read here, the call is
// answered, in the database that they name or not at all, and the others arrive as they are.
func FuzzHeaders(f *testing.F) {
	f.Add("/local", "app", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "session-balancer", "gzip")
	f.Add("local/", "", "00-", "", "identity")
	f.Add("/other", "passthrough", "x", "", "")
	f.Fuzz(func(t *testing.T, database, app, traceparent, hints, accept string) {
		if strings.IndexFunc(database+app+traceparent+hints+accept, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 ||
			slices.ContainsFunc([]string{database, app, traceparent, hints, accept},
				func(s string) bool { return len(s) > 1000 || strings.TrimSpace(s) != s }) {
			return // no header may hold it
		}
		h := newHouse(t, func(c *Config, _ *pool.Config) { c.Apps = []string{"kept=session"} })
		g := h.guest("a")
		g.database = database
		ctx := metadata.AppendToOutgoingContext(g.with(h.ctx), "x-ydb-application-name", app, "traceparent", traceparent,
			"x-ydb-client-hints", hints, "grpc-accept-encoding", accept)
		want := success
		if named := strings.Trim(database, "/"); named != "local" && database != "" {
			want = Ydb.StatusIds_UNAUTHORIZED
		}
		r, err := g.query.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
		if err != nil || r.GetStatus() != want {
			t.Fatalf("created %v, %v; want %v", r, err, want)
		}
		begun, err := g.query.BeginTransaction(ctx, &Ydb_Query.BeginTransactionRequest{SessionId: r.GetSessionId()})
		if want == success && (err != nil || begun.GetStatus() != success) ||
			err == nil && begun.GetStatus() == success && want != success {
			t.Fatalf("begun %v, %v", begun, err)
		}
		if want != success {
			return
		}
		h.mu.Lock()
		seen := h.seen
		h.mu.Unlock()
		for name, value := range map[string]string{"x-ydb-database": "/local", "x-ydb-auth-ticket": "own ticket",
			"x-ydb-application-name": app, "traceparent": traceparent, "x-ydb-client-hints": hints} {
			if got := seen.Get(name); !slices.Equal(got, []string{value}) {
				t.Errorf("%s arrives as %q; want %q", name, got, value)
			}
		}
		if r, err := g.query.DeleteSession(
			ctx, &Ydb_Query.DeleteSessionRequest{SessionId: r.GetSessionId()},
		); err != nil || r.GetStatus() != success {
			t.Error(r, err)
		}
	})
}
