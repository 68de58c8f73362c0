package ydbstatus

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

const (
	execute = cluster.CallExecute
	commit  = cluster.CallCommit
	control = cluster.CallControl
	open    = cluster.CallOpen
	probe   = cluster.CallProbe
)

func TestJudge(t *testing.T) {
	const (
		aborted      = Ydb.StatusIds_ABORTED
		undetermined = Ydb.StatusIds_UNDETERMINED
		timeout      = Ydb.StatusIds_TIMEOUT
	)
	for _, c := range []struct {
		name  string
		signs Signs
		want  Verdict
	}{
		{"success", Signs{Kind: execute, Status: Ydb.StatusIds_SUCCESS}, Verdict{Blame: cluster.BlameSuccess}},
		{"no_sign_of_failure_is_success", Signs{Kind: commit}, Verdict{Blame: cluster.BlameSuccess}},
		{"bad_sql_is_the_callers", Signs{Kind: execute, Status: Ydb.StatusIds_GENERIC_ERROR}, Verdict{}},
		{"conflict", Signs{Kind: commit, Status: aborted}, Verdict{Retry: RetryAlways, Backoff: BackoffFast}},
		{"conflict_that_repeats", Signs{Kind: commit, Status: aborted, Repeats: true}, Verdict{}},
		{"bad_session_leaves_nothing_to_delete", Signs{Kind: execute, Status: Ydb.StatusIds_BAD_SESSION},
			Verdict{Retry: RetryAlways, DropSession: true, SessionGone: true}},
		{"busy_session_is_deleted", Signs{Kind: execute, Status: Ydb.StatusIds_SESSION_BUSY},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true}},
		{"undetermined_commit", Signs{Kind: commit, Status: undetermined},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, Unknown: true}},
		{"undetermined_inside_a_transaction_is_rolled_back", Signs{Kind: execute, Undone: true, Status: undetermined},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true}},
		{"commit_lost_on_the_way", Signs{Kind: commit, Code: codes.Unavailable},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, DropSession: true, Unknown: true, Blame: cluster.BlameTransport}},
		{"undone_does_not_excuse_a_commit", Signs{Kind: commit, Undone: true, Code: codes.Unavailable},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, DropSession: true, Unknown: true, Blame: cluster.BlameTransport}},
		{"statement_of_an_open_transaction_lost_on_the_way", Signs{Kind: execute, Undone: true, Code: codes.Unavailable},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"conflict_in_parts", Signs{Kind: execute, InParts: true, Status: aborted},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, Unknown: true}},
		{"overloaded_in_parts", Signs{Kind: execute, InParts: true, Status: Ydb.StatusIds_OVERLOADED},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffSlow, Unknown: true, Congestion: cluster.CongestedUnknown}},
		{"unavailable_in_parts", Signs{Kind: execute, InParts: true, Status: Ydb.StatusIds_UNAVAILABLE},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, Unknown: true, Congestion: cluster.CongestedUnknown}},
		{"bad_statement_in_parts", Signs{Kind: execute, InParts: true, Status: Ydb.StatusIds_GENERIC_ERROR}, Verdict{Unknown: true}},
		{"refused_at_the_door_in_parts", Signs{Kind: execute, InParts: true, Status: Ydb.StatusIds_SESSION_BUSY},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true}},
		{"not_sent_in_parts", Signs{Kind: execute, InParts: true, Code: codes.Unavailable, NotSent: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"conflict_of_a_schema", Signs{Kind: execute, Schema: true, Status: aborted},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, Unknown: true}},
		{"overloaded_for_a_schema", Signs{Kind: execute, Schema: true, Status: Ydb.StatusIds_OVERLOADED},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffSlow, Unknown: true, Congestion: cluster.CongestedUnknown}},
		{"unavailable_for_a_schema", Signs{Kind: execute, Schema: true, Status: Ydb.StatusIds_UNAVAILABLE},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, Unknown: true, Congestion: cluster.CongestedUnknown}},
		{"bad_schema", Signs{Kind: execute, Schema: true, Status: Ydb.StatusIds_SCHEME_ERROR}, Verdict{}},
		{"bad_statement_of_a_schema", Signs{Kind: execute, Schema: true, Status: Ydb.StatusIds_GENERIC_ERROR}, Verdict{}},
		{"no_resource_for_a_schema", Signs{Kind: execute, Schema: true, Code: codes.ResourceExhausted},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Blame: cluster.BlameRefusal, Congestion: cluster.CongestedNode}},
		{"refused_at_the_door_for_a_schema", Signs{Kind: execute, Schema: true, Status: Ydb.StatusIds_SESSION_BUSY},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true}},
		{"shutdown_before_a_schema", Signs{Kind: execute, Schema: true, Status: Ydb.StatusIds_OVERLOADED, Shutdown: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, Blame: cluster.BlameDraining}},
		{"never_sent", Signs{Kind: commit, Code: codes.Unavailable, NotSent: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"could_not_be_encoded", Signs{Kind: execute, Code: codes.Internal, NotSent: true}, Verdict{}},
		{"too_large_to_send", Signs{Kind: execute, Code: codes.ResourceExhausted, TooLarge: true},
			Verdict{DropSession: true, Unknown: true}},
		{"caller_left_while_it_ran", Signs{Kind: execute, Code: codes.Canceled, CallerGone: true},
			Verdict{DropSession: true, Unknown: true}},
		{"caller_left_before_it_was_sent", Signs{Kind: execute, Code: codes.Canceled, CallerGone: true, NotSent: true},
			Verdict{DropSession: true}},
		{"caller_left_inside_a_transaction", Signs{Kind: execute, Undone: true, Code: codes.DeadlineExceeded, CallerGone: true},
			Verdict{DropSession: true}},
		{"an_answer_counts_even_if_the_caller_left", Signs{Kind: execute, Status: aborted, CallerGone: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast}},
		{"server_side_timeout_of_a_statement", Signs{Kind: execute, Status: timeout},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, DropSession: true, Unknown: true}},
		{"begin_may_always_be_repeated", Signs{Kind: control, Code: codes.Unavailable},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"open_refused_for_load", Signs{Kind: open, Status: Ydb.StatusIds_OVERLOADED},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Blame: cluster.BlameRefusal, Congestion: cluster.CongestedUnknown}},
		{"open_refused_for_a_quota", Signs{Kind: open, Status: Ydb.StatusIds_OVERLOADED, Congestion: cluster.CongestedQuota},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Congestion: cluster.CongestedQuota}},
		{"open_not_answered_in_time_is_the_nodes_fault", Signs{Kind: open, Code: codes.DeadlineExceeded},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"statement_not_answered_in_time_is_not", Signs{Kind: execute, Code: codes.DeadlineExceeded},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, DropSession: true, Unknown: true}},
		{"probe_not_answered_in_time", Signs{Kind: probe, Code: codes.DeadlineExceeded},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"overloaded_statement_says_nothing_of_the_node", Signs{Kind: execute, Status: Ydb.StatusIds_OVERLOADED},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Congestion: cluster.CongestedUnknown}},
		{"unavailable_statement_says_nothing_of_the_node",
			Signs{Kind: execute, Status: Ydb.StatusIds_UNAVAILABLE, Congestion: cluster.CongestedDisk},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, Congestion: cluster.CongestedDisk}},
		{"full_compile_queue_is_the_nodes", Signs{Kind: execute, Status: Ydb.StatusIds_OVERLOADED, Congestion: cluster.CongestedNode},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Blame: cluster.BlameRefusal, Congestion: cluster.CongestedNode}},
		{"no_resource_is_the_nodes", Signs{Kind: execute, Code: codes.ResourceExhausted},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Blame: cluster.BlameRefusal, Congestion: cluster.CongestedNode}},
		{"full_compile_queue_behind_a_hop_may_be_the_owners",
			Signs{Kind: execute, Status: Ydb.StatusIds_OVERLOADED, Congestion: cluster.CongestedNode, Forwarded: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Congestion: cluster.CongestedNode}},
		{"no_resource_behind_a_hop_is_the_nodes", Signs{Kind: execute, Code: codes.ResourceExhausted, Forwarded: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Blame: cluster.BlameRefusal, Congestion: cluster.CongestedNode}},
		{"lost_owner_behind_a_hop", Signs{Kind: commit, Code: codes.Unavailable, Forwarded: true, Cause: CauseHomeNode},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, DropSession: true, Unknown: true}},
		{"octets_that_no_node_decodes", Signs{Kind: execute, Code: codes.Internal, Cause: CauseRequest},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, DropSession: true, Unknown: true}},
		{"killed", Signs{Kind: execute, Undone: true, Code: codes.Aborted, Cause: CauseProcess},
			Verdict{Retry: RetryAlways, DropSession: true}},
		{"no_ticket", Signs{Kind: execute, Code: codes.Unauthenticated, NotSent: true, NoTicket: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow}},
		{"ticket_refused_by_the_provider", Signs{Kind: execute, Code: codes.Unauthenticated, NotSent: true}, Verdict{}},
		{"no_node", Signs{Kind: execute, Unrouted: true}, Verdict{Retry: RetryAlways, Backoff: BackoffFast}},
		{"owner_lost", Signs{Kind: commit, HomeNodeLost: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true}},
		{"a_status_from_the_future", Signs{Kind: execute, Status: 499999}, Verdict{DropSession: true, Unknown: true}},
		{"a_code_from_the_future", Signs{Kind: execute, Code: 99},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffSlow, DropSession: true, Unknown: true, Blame: cluster.BlameTransport}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Judge(c.signs); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// Every status that our protos know has a line, and every combination of signs
// obeys the rules that the rest of the project relies on.
func TestEveryVerdictObeysTheRules(t *testing.T) {
	for code := range Ydb.StatusIds_StatusCode_name {
		if _, ok := statuses[Ydb.StatusIds_StatusCode(code)]; !ok && code != 0 {
			t.Errorf("status %v has no line", Ydb.StatusIds_StatusCode(code))
		}
	}
	if len(transport) != int(codes.Unauthenticated)+1 {
		t.Errorf("%d transport lines; want one for each code", len(transport))
	}
	all := []Signs{{Status: 499999}}
	for status := range statuses {
		all = append(all, Signs{Status: status})
	}
	for code := range transport {
		all = append(all, Signs{Code: codes.Code(code)}, Signs{Code: codes.Code(code), NotSent: true},
			Signs{Code: codes.Code(code), CallerGone: true})
		for _, cause := range []Cause{CauseRequest, CauseHomeNode, CauseProcess} {
			all = append(all, Signs{Code: codes.Code(code), Cause: cause}, Signs{Code: codes.Code(code), NotSent: true, Cause: cause})
		}
	}
	for _, s := range all {
		for _, s.Kind = range []cluster.CallKind{execute, commit, control, open, probe} {
			for i := range 4 {
				s.Undone, s.InParts, s.Schema = i == 1, i == 2, i == 3
				v := Judge(s)
				if v.Unknown && v.Retry == RetryAlways {
					t.Errorf("%+v may have run and is always repeated: %+v", s, v)
				}
				if v.Retry == RetryIdempotent && !v.Unknown {
					t.Errorf("%+v surely did not run and is not always repeated: %+v", s, v)
				}
				if v.Unknown && (s.Kind == control || s.Kind == open || s.Kind == probe) {
					t.Errorf("%+v has no effect that could be unknown: %+v", s, v)
				}
				if v.SessionGone && !v.DropSession {
					t.Errorf("%+v keeps a session that is gone: %+v", s, v)
				}
				if s.CallerGone && s.Status == 0 && s.Code != codes.OK && v.Blame != cluster.BlameNone {
					t.Errorf("%+v blames the node for its caller: %+v", s, v)
				}
				if s.Cause != CauseUnknown && v.Blame != cluster.BlameNone {
					t.Errorf("%+v blames the node for another's doing: %+v", s, v)
				}
				if v.Retry == RetryNever && v.Backoff != BackoffNone {
					t.Errorf("%+v pauses before nothing: %+v", s, v)
				}
			}
		}
	}
}

func TestNamesOfWords(t *testing.T) {
	if RetryAlways.String() != "always" || BackoffSlow.String() != "slow" {
		t.Errorf("got %v, %v", RetryAlways, BackoffSlow)
	}
	if !IssueRepeats(200509) || IssueRepeats(2001) {
		t.Error("only 200509 repeats")
	}
}

func TestCongested(t *testing.T) {
	for _, c := range []struct {
		code    uint32
		message string
		want    cluster.Congestion
		subject string
	}{
		{2006,
			"Kikimr cluster or one of its subsystems is overloaded. Tablet 72075186224037888 is overloaded. Table `/local/t`.",
			cluster.CongestedTable, "/local/t"},
		{2006, "Tablet 1 is out of space. Table `/local/t`.", cluster.CongestedTable, "/local/t"},
		{2005, "Wrong shard state. Table `/local/t`.", cluster.CongestedTable, "/local/t"},
		{200300, "Rejecting data TxId", cluster.CongestedTable, ""},
		{2005, "Compute node is unavailable", cluster.CongestedUnknown, ""},
		{2006, "Not enough computation units to execute query", cluster.CongestedUnknown, ""},
		{2033, "Disk space exhausted. Table `/local/t`.", cluster.CongestedDisk, "/local/t"},
		{2033, "", cluster.CongestedDisk, ""},
		{2036, "", cluster.CongestedDisk, ""},
		{0, "Bulk upsert to table '/local/t' Cannot perform writes: database is out of disk space", cluster.CongestedDisk, "/local/t"},
		{0, "Bulk upsert to table '/local/t' wrong shard state", cluster.CongestedTable, "/local/t"},
		{200803, "Throughput limit exceeded", cluster.CongestedQuota, ""},
		{0, "Query failed during adding/waiting in workload pool olap", cluster.CongestedPool, "olap"},
		{0,
			"Request was rejected, number of local pending requests is 20, sum (including concurrent query limit 1) for pool olap",
			cluster.CongestedPool, "olap"},
		{0, "Exceeded maximum number of requests in compile service queue.", cluster.CongestedNode, ""},
		{0, "Node isn't ready to serve database requests.", cluster.CongestedUnknown, ""},
		{0, "Table `/local/t` is busy", cluster.CongestedUnknown, ""},
		{0, "", cluster.CongestedUnknown, ""},
	} {
		if got, subject := Congested(c.code, c.message); got != c.want || subject != c.subject {
			t.Errorf("%d %q: %v %q; want %v %q", c.code, c.message, got, subject, c.want, c.subject)
		}
	}
	if _, subject := Congested(2006, "Table `"+strings.Repeat("\xff", 1000)); len(subject) > maxSubject {
		t.Errorf("a subject of %d bytes", len(subject))
	}
}
