package wire

import (
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// SDKs back off from OVERLOADED; the text says what it is and how to raise it.
func TestRefusalsOfApps(t *testing.T) {
	for _, tc := range []struct {
		err    error
		status Ydb.StatusIds_StatusCode
		code   codes.Code
		words  []string
	}{
		{&apps.Refusal{App: "web", Why: apps.BySessions, Limit: 5}, Ydb.StatusIds_OVERLOADED, codes.ResourceExhausted, []string{"QUOTA_EXCEEDED", "web has 5", "sessions= for it in apps.limits"}},
		{&pool.ShedError{Why: pool.ShedDeadline, Needs: time.Second, Left: time.Millisecond}, Ydb.StatusIds_OVERLOADED, codes.ResourceExhausted, []string{"SHED_DEADLINE", "pool.max"}},
		{&pool.ShedError{Why: pool.ShedAge, Limit: time.Minute}, Ydb.StatusIds_OVERLOADED, codes.ResourceExhausted, []string{"SHED_DELAY", "pool.queue_age is 1m0s"}},
		{&pool.ShedError{Why: pool.ShedDelay, Ahead: time.Millisecond}, Ydb.StatusIds_OVERLOADED, codes.ResourceExhausted, []string{"SHED_DELAY", "would have had to wait 1ms"}},
		{&pool.ShedError{Why: pool.ShedDelay, Limit: time.Millisecond}, Ydb.StatusIds_OVERLOADED, codes.ResourceExhausted, []string{"SHED_DELAY", "pool.queue_target is 1ms"}},
		{apps.ErrToken, Ydb.StatusIds_UNAUTHORIZED, codes.PermissionDenied, []string{"apps.token"}},
		{apps.ErrNotYours, Ydb.StatusIds_UNAUTHORIZED, codes.PermissionDenied, []string{"apps.users"}},
	} {
		r := refusalOf(tc.err, 0)
		if r.status != tc.status || r.code != tc.code || !strings.Contains(r.text, "the call was not sent") {
			t.Errorf("%v: %+v; want %v, %v", tc.err, r, tc.status, tc.code)
		}
		for _, word := range tc.words {
			if !strings.Contains(r.text, word) {
				t.Errorf("%v: %q lacks %q", tc.err, r.text, word)
			}
		}
	}
}

// What is open is never left open for a quota, and work of two kinds is not mixed.
func TestMethodsOfApps(t *testing.T) {
	kinds := map[uint64]string{}
	for path, m := range methods {
		if other, ok := kinds[m.kind]; ok || m.kind == 0 {
			t.Errorf("%s and %s are one kind of work", path, other)
		}
		kinds[m.kind] = path
	}
	for path, want := range map[string]bool{
		queryService + "CommitTransaction": true, queryService + "RollbackTransaction": true, queryService + "DeleteSession": true, tableService + "KeepAlive": true,
		queryService + "ExecuteQuery": false, queryService + "CreateSession": false, queryService + "BeginTransaction": false,
	} {
		if got := methods[path].depends(); got != want {
			t.Errorf("%s depends on something open: %v; want %v", path, got, want)
		}
	}
}
