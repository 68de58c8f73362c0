package upstream

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

func TestAStreamThatIsNotReadToItsEndCostsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		cancelled := make(chan struct{})
		b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS})
			<-stream.Context().Done()
			close(cancelled)
			return nil
		}
		stream, err := s.Execute(t.Context(), statement("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
		stream.Close()
		stream.Close()
		<-cancelled
		if _, err := stream.Next(); !errors.Is(err, context.Canceled) {
			t.Errorf("Next after Close: %v", err)
		}
		if s.clean() || s.busy {
			t.Errorf("clean %t, busy %t; want neither", s.clean(), s.busy)
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"1 execute none CANCELLED"}) {
			t.Errorf("reported %q", got)
		}
	})
}

// The node must not get ahead of the reader by more than the windows allow.
func TestASlowReaderSlowsTheNodeDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		const parts, size = 64, 256 << 10
		sent := make(chan int, parts)
		b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			for i := range parts {
				p := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSet: &Ydb.ResultSet{Data: make([]byte, size)}}
				if err := stream.Send(p); err != nil {
					return err
				}
				sent <- i
			}
			return nil
		}
		stream, err := s.Execute(t.Context(), statement("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		// The stream's window, what gRPC writes ahead, and the part that was read.
		if n := len(sent); n > 16 {
			t.Errorf("the node sent %d parts of 256 KB while one was read", n)
		}
		for {
			if _, err := stream.Next(); err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				break
			}
		}
		if n := len(sent); n != parts {
			t.Errorf("%d parts sent in the end; want %d", n, parts)
		}
	})
}

func TestTimesTrailersAndStatistics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		var tr tries
		tr.next(0)
		s.tries = &tr
		b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			stream.SetTrailer(metadata.Pairs("x-ydb-consumed-units", "7"))
			time.Sleep(3 * time.Millisecond)
			stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS})
			time.Sleep(4 * time.Millisecond)
			return stream.Send(
				&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS,
					ExecStats: &Ydb_TableStats.QueryStats{TotalDurationUs: 6500}},
			)
		}
		stream, err := s.Execute(t.Context(), statement("x"))
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = stream.Next()
		}
		if stream.First() != 3*time.Millisecond || !slices.Equal(stream.Trailer().Get("x-ydb-consumed-units"), []string{"7"}) {
			t.Errorf("first part after %v, trailer %v", stream.First(), stream.Trailer())
		}
		try := tr.report.Tries[0]
		want := Report{Node: 1, Attempts: 1, Hop: 7 * time.Millisecond, Server: 6500 * time.Microsecond, Units: 7,
			Priced: true, Rounds: []Round{{}}, Tries: []Try{{
				Done: hop.Done{
					Key: hop.Key{Node: 1, Method: methodExecute}, Verdict: ydbstatus.Verdict{Blame: cluster.BlameSuccess}, Sent: true,
					Took: 7 * time.Millisecond, First: 3 * time.Millisecond, Request: try.Request, Answer: try.Answer,
				},
				Attempt: 1, At: try.At, Session: s.ID(), Start: try.Start, Server: 6500 * time.Microsecond,
			}}}
		if diff := cmp.Diff(want, tr.report, cmp.Comparer(func(a, b *protocol.Method) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
		b.judge.mu.Lock()
		defer b.judge.mu.Unlock()
		if got := b.judge.all[0]; got.Latency != 3*time.Millisecond || got.Waited != 0 {
			t.Errorf("reported a latency of %v and a wait of %v", got.Latency, got.Waited)
		}
	})
}

// What callers gave up tells that a node is slow; what they read a part of does not.
func TestWaitsInVainAreReported(t *testing.T) {
	for _, first := range []time.Duration{time.Hour, 2 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 1, nil)
			s, _ := b.mustOpen(1)
			b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
				select {
				case <-time.After(first):
					stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS})
				case <-stream.Context().Done():
				}
				<-stream.Context().Done()
				return stream.Context().Err() // success would be an answer
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			stream, err := s.Execute(ctx, statement("x"))
			for err == nil {
				_, err = stream.Next()
			}
			want := 5 * time.Millisecond
			if first < want {
				want = 0
			}
			b.judge.mu.Lock()
			defer b.judge.mu.Unlock()
			if got := b.judge.all[0]; got.Waited != want || got.Blame != cluster.BlameNone {
				t.Errorf("first part after %v: reported %+v; want a wait of %v", first, got, want)
			}
		})
	}
}

// beforeItsTimer is a context whose timer is late.
type beforeItsTimer struct {
	context.Context
	end time.Time
}

func (c beforeItsTimer) Deadline() (time.Time, bool) { return c.end, true }

// The node keeps the caller's deadline, too. What it says then is the end of the
// caller's time, even if it is there before the timer of this process has fired.
func TestANodeMayBeFirstToEndTheCallersTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		_, err := run(beforeItsTimer{t.Context(), time.Now().Add(5 * time.Millisecond)}, s, statement("x"))
		if e := asError(t, err); e.Code != codes.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) ||
			e.Verdict.Retry != ydbstatus.RetryNever {
			t.Errorf("got %v, retry %v; want the deadline of the caller, and no retry", e, e.Verdict.Retry)
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"1 execute none DEADLINE_EXCEEDED"}) {
			t.Errorf("reported %q", got)
		}
	})
}
