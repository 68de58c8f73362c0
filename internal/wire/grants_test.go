package wire

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// TestGrantsOfSDKs: calls of an app whose grants the proxy cannot keep to, or whose calls= does not have sdk, reach no node, in
// any mode and by any method.
func TestGrantsOfSDKs(t *testing.T) {
	const secret, free = "the-secret-of-the-app", "the-secret-of-another"
	execute := protocol.QueryService + "ExecuteQuery"
	query := bytesOf(t, &Ydb_Query.ExecuteQueryRequest{
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}},
	})
	attach := bytesOf(t, &Ydb_Query.AttachSessionRequest{SessionId: "ydb://session/3?node_id=1&id=abc"})
	for _, mode := range []string{ModeTransaction, ModeSession, ModePassthrough} {
		for _, grant := range []string{"tables=a/*", "read_only=yes", "timeout=1s", "rows=5", "class=batch", "calls=statements,kv"} {
			config := apps.Default()
			config.Token, config.Quotas = []string{"web=" + secret, "free=" + free}, []string{"web " + grant}
			all, err := apps.New(config, nil)
			if err != nil {
				t.Fatal(err)
			}
			h := newHouseOf(t, all, func(c *Config, _ *pool.Config) { c.Mode = mode })
			conn := dial(t, h.addr)
			for path, request := range map[string][]byte{
				execute: query, protocol.QueryService + "CreateSession": nil, protocol.TableService + "CreateSession": nil,
				protocol.QueryService + "AttachSession": attach,
			} {
				answer, err := callAny(t, conn, path, []string{"Bearer " + secret}, request)
				if err != nil {
					t.Fatal(err)
				}
				if got := protocol.Named(path).Status(framedMessage(answer)); got != Ydb.StatusIds_UNAUTHORIZED ||
					!strings.Contains(string(answer), "APP_DENIED: app web has "+grant+" in its line of apps.limits") {
					t.Errorf("%s, %s: %s: %v %q; want the denial", mode, grant, path, got, answer)
				}
				if answer, err := callAny(t, conn, path, []string{"Bearer " + free}, request); err == nil &&
					strings.Contains(string(answer), "APP_DENIED") {
					t.Errorf("%s: %s of another app is denied: %q", mode, path, answer)
				}
			}
			if _, err := callAny(
				t, conn, "/Ydb.Else.V1.ElseService/Do", []string{"Bearer " + secret}, nil,
			); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s, %s: a method that is not known: %v", mode, grant, err)
			}
			for _, s := range all.State([apps.Classes]string{"a", "b", "c", "d"}) {
				word, _, _ := strings.Cut(grant, "=")
				if s.App == "web" && (s.Denied[word] != 5 || s.Open != 0) {
					t.Errorf("%s, %s: %v denied, %d open; want 5 and 0", mode, grant, s.Denied, s.Open)
				}
			}
		}
	}
}
