package chaos

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// failure is a call that did not succeed, in the sidecar's words.
type failure struct {
	code    string
	safe    bool // safe_to_retry
	unknown bool // outcome_unknown
	text    string
}

func (f *failure) Error() string { return f.code + ": " + f.text }

// The codes of calls that the sidecar did not answer.
const (
	absent   = "ABSENT"    // no process listens: surely not sent
	unread   = "UNREAD"    // an idle connection was closed before anything of the request was read; the ledger shows whether that is true
	noAnswer = "NO_ANSWER" // cut off in the middle
	hung     = "HUNG"      // no answer long after the deadline
)

// class says in one word what a caller may conclude.
func (f *failure) class() string {
	switch {
	case f.unknown:
		return "unknown"
	case f.safe:
		return "safe"
	default:
		return "final"
	}
}

// api makes calls over gRPC or HTTP. Errors are *failure.
type api struct{ contract.Client }

// execute returns an empty reply with an error.
func (f api) execute(ctx context.Context, s contract.Statement) (*contract.Reply, error) {
	reply, err := f.Execute(ctx, s)
	if err != nil {
		return &contract.Reply{}, failed(ctx, err)
	}
	return reply, nil
}

func (f api) transact(ctx context.Context, t contract.Transaction) error {
	_, err := f.Transact(ctx, t)
	return failed(ctx, err)
}

// stream reads all rows and returns their number. After each thousand it pauses,
// but not beyond the deadline, which is then the sidecar's to keep.
func (f api) stream(ctx context.Context, sql string, timeout, pause time.Duration) (rows int, err error) {
	deadline := time.Now().Add(timeout)
	err = f.Each(ctx, contract.Statement{SQL: sql, Timeout: timeout.String()}, func(n int) {
		before := rows / 1000
		rows += n
		time.Sleep(min(pause*time.Duration(rows/1000-before), time.Until(deadline)))
	})
	return rows, failed(ctx, err)
}

// failed reads what the sidecar said; without its words the connection to it failed.
func failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	said, ok := errors.AsType[*contract.Error](err)
	switch {
	case ok && said.Code != "":
		return &failure{code: said.Code, safe: said.Safe, unknown: said.Unknown, text: said.Message}
	case errors.Is(err, syscall.ECONNREFUSED), strings.Contains(err.Error(), "connect: connection reset"):
		return &failure{code: absent, safe: true, text: err.Error()}
	case ctx.Err() != nil:
		return &failure{code: hung, unknown: true, text: err.Error()}
	case ok && unsent(said.Message):
		return &failure{code: absent, safe: true, text: said.Message}
	case closedIdle(err):
		return &failure{code: unread, safe: true, text: err.Error()}
	default:
		return &failure{code: noAnswer, unknown: true, text: err.Error()}
	}
}

// unsent reports whether gRPC says that it sent nothing: it had no connection, or the listener closed
// before the connection was accepted. It sends no call before the preface.
func unsent(message string) bool {
	for _, part := range []string{"connection refused", "while dialing", "error reading server preface", "failed to write client preface"} {
		if strings.Contains(message, part) {
			return true
		}
	}
	return false
}

// closedIdle reports whether an HTTP request found its connection closed before anything of it was read.
func closedIdle(err error) bool {
	if _, requesting := errors.AsType[*url.Error](err); !requesting {
		return false // the answer had begun
	}
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "server closed idle connection")
}
