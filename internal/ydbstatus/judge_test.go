package ydbstatus

import (
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
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, Unknown: true}},
		{"begin_may_always_be_repeated", Signs{Kind: control, Code: codes.Unavailable},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"open_refused_for_load", Signs{Kind: open, Status: Ydb.StatusIds_OVERLOADED},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Blame: cluster.BlameRefusal}},
		{"open_not_answered_in_time_is_the_nodes_fault", Signs{Kind: open, Code: codes.DeadlineExceeded},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"statement_not_answered_in_time_is_not", Signs{Kind: execute, Code: codes.DeadlineExceeded},
			Verdict{Retry: RetryIdempotent, Backoff: BackoffFast, DropSession: true, Unknown: true}},
		{"probe_not_answered_in_time", Signs{Kind: probe, Code: codes.DeadlineExceeded},
			Verdict{Retry: RetryAlways, Backoff: BackoffFast, DropSession: true, Blame: cluster.BlameTransport}},
		{"overloaded_statement_is_a_soft_sign", Signs{Kind: execute, Status: Ydb.StatusIds_OVERLOADED},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow, Blame: cluster.BlameRefusal}},
		{"no_ticket", Signs{Kind: execute, Code: codes.Unauthenticated, NotSent: true, NoTicket: true},
			Verdict{Retry: RetryAlways, Backoff: BackoffSlow}},
		{"ticket_refused_by_the_provider", Signs{Kind: execute, Code: codes.Unauthenticated, NotSent: true}, Verdict{}},
		{"no_node", Signs{Kind: execute, Unrouted: true}, Verdict{Retry: RetryAlways, Backoff: BackoffFast}},
		{"owner_lost", Signs{Kind: commit, OwnerLost: true},
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
	}
	for _, s := range all {
		for _, s.Kind = range []cluster.CallKind{execute, commit, control, open, probe} {
			for _, s.Undone = range []bool{false, true} {
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
