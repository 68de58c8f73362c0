package facade

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// Every code is of one side, and an answer of the database is of the same side over either API and for SDKs.
func TestWhoseErrors(t *testing.T) {
	service := map[string]bool{}
	for _, name := range []string{
		"TABLE_MISMATCH", "TOO_MANY_OPEN", "MEMORY_SHORT", "QUEUE_FULL", "SHED_DELAY", "POOL_TIMEOUT", "SHED_DEADLINE",
		"NO_HEALTHY_NODE", "DRAINING", "UPSTREAM_LOST", "UPSTREAM_REFUSED", "OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED", "TX_LOST",
		"INTERNAL", "YDB_UNAUTHORIZED", "YDB_INTERNAL_ERROR", "YDB_UNAVAILABLE", "YDB_OVERLOADED", "YDB_TIMEOUT",
		"YDB_BAD_SESSION", "YDB_SESSION_EXPIRED", "YDB_CANCELLED", "YDB_SESSION_BUSY", "YDB_EXTERNAL_ERROR",
	} {
		service[name] = true
	}
	for _, c := range core.Codes() {
		if c.Caller == service[c.Name] {
			t.Errorf("%s %s: of the caller is %v; in the list of this test: of the service is %v", c.Name, c.Case,
				c.Caller, service[c.Name])
		}
	}
	// Over the plain API the sidecar's own rights are missing, not the caller's, and the caller's cancellation is CANCELLED.
	differ := map[Ydb.StatusIds_StatusCode]bool{Ydb.StatusIds_UNAUTHORIZED: true, Ydb.StatusIds_CANCELLED: true}
	for number := range Ydb.StatusIds_StatusCode_name {
		s := Ydb.StatusIds_StatusCode(number)
		if s == 0 || s == Ydb.StatusIds_SUCCESS {
			continue
		}
		if plain, sdk := core.CodeYDB(s).Caller, ydbstatus.OfCaller(s, 0); (plain == sdk) == differ[s] {
			t.Errorf("%v is the caller's error over the plain API: %v, and for SDKs: %v", s, plain, sdk)
		}
	}
}
