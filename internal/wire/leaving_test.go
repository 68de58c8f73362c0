package wire

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// What happens to clients' own sessions when their node shuts down has discovery asked.
func TestDiscoveryIsAskedWhenANodeMayLeave(t *testing.T) {
	create := protocol.Find([]byte("/Ydb.Query.V1.QueryService/CreateSession"))
	execute := protocol.Find([]byte("/Ydb.Query.V1.QueryService/ExecuteQuery"))
	good := ydbstatus.Signs{Status: Ydb.StatusIds_SUCCESS}
	full := ydbstatus.Signs{Code: codes.ResourceExhausted}
	for _, c := range []struct {
		name   string
		method *protocol.Method
		end    h2.End
		signs  ydbstatus.Signs
		want   bool
	}{
		{"no_session_is_made", create, h2.Answered, full, true},
		{"too_many_sessions", create, h2.Answered, ydbstatus.Signs{Status: Ydb.StatusIds_OVERLOADED}, false},
		{"a_session_is_made", create, h2.Answered, good, false},
		{"a_stream_ends", attachSession, h2.Answered, good, true},
		{"its_client_ends_it", attachSession, h2.Cancelled, ydbstatus.Signs{Code: codes.Canceled, CallerGone: true}, false},
		{"it_breaks", attachSession, h2.Lost, ydbstatus.Signs{Code: codes.Unavailable}, false},
		{"a_statement_is_refused", execute, h2.Answered, full, false},
		{"another_method", nil, h2.Answered, full, false},
	} {
		if got := mayLeave(c.method, &h2.Outcome{End: c.end}, c.signs); got != c.want {
			t.Errorf("%s: %v; want %v", c.name, got, c.want)
		}
	}
}
