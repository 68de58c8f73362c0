package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestSoakAllowsOnlyTheRulesAndOnlyDuringAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c faultClock
		if c.broken(time.Now()) {
			t.Error("broken before anything was")
		}
		c.begin("kill")
		early := time.Now()
		time.Sleep(time.Second)
		if !c.broken(early) {
			t.Error("not broken during a fault")
		}
		c.end()
		time.Sleep(soakSettle - time.Second)
		if !c.broken(time.Now()) {
			t.Error("not broken while it settles")
		}
		time.Sleep(2 * time.Second)
		if c.broken(time.Now()) || !c.broken(early) {
			t.Error("want calls that began near the fault to have met it, and later ones not")
		}
		if c.count["kill"] != 1 {
			t.Errorf("counted %v", c.count)
		}
	})
	var all tally
	fair := &traffic.Refusal{Code: "OUTCOME_UNKNOWN", Fair: true, Open: true}
	for _, tc := range []struct {
		err    error
		broken bool
		red    bool
	}{{nil, false, false}, {fair, true, false}, {fair, false, true}, {&traffic.Refusal{Code: "WRONG"}, true, true},
		{errors.New("EOF"), true, true},
		{&traffic.Refusal{Code: "SHED_DELAY", Fair: true}, false, false}, {&traffic.Refusal{Code: "SHED_DELAY"}, true, true}} {
		if got := all.note("read", tc.err, tc.broken); (got != nil) != tc.red {
			t.Errorf("%v, broken %v: got %v; want it red: %v", tc.err, tc.broken, got, tc.red)
		}
	}
	if made, fair, late, unfair := all.sums(); made != 7 || fair != 1 || late != 1 || unfair != 4 {
		t.Errorf("got %d made, %d fair, %d late, %d unfair; want 7, 1, 1, 4", made, fair, late, unfair)
	}
	if text := all.markdown(); !strings.Contains(text, "| read OUTCOME_UNKNOWN | 1 | 0 | 1 |") ||
		!strings.Contains(text, "| read NO_ANSWER | 0 | 0 | 1 |") {
		t.Errorf("got\n%s", text)
	}
}

func TestRefusalsOfAllFaces(t *testing.T) {
	detailed := func(e *sidecarv1.Error) error {
		s, err := status.New(codes.Unavailable, e.Message).WithDetails(e)
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for _, tc := range []struct {
		err  error
		code string
		fair bool
		open bool
	}{
		{detailed(&sidecarv1.Error{Code: "UPSTREAM_LOST", SafeToRetry: true}), "UPSTREAM_LOST", true, false},
		{detailed(&sidecarv1.Error{Code: "OUTCOME_UNKNOWN", OutcomeUnknown: true}), "OUTCOME_UNKNOWN", true, true},
		{detailed(&sidecarv1.Error{Code: "INTERNAL"}), "INTERNAL", false, true},
		{status.Error(codes.Unavailable, "connection refused"), "NO_ANSWER", false, true},
		{&contract.Error{Code: "DEADLINE_EXCEEDED"}, "DEADLINE_EXCEEDED", true, true},
		{&contract.Error{Code: "POOL_TIMEOUT", Safe: true}, "POOL_TIMEOUT", true, false},
		{&contract.Error{Transport: "Unavailable", Message: "connection refused"}, "NO_ANSWER", false, true},
		{contract.ErrCut, "CUT", false, false},
		{traffic.Answered(nil, Ydb.StatusIds_BAD_SESSION, nil), "YDB_BAD_SESSION", true, false},
		{traffic.Answered(nil, Ydb.StatusIds_UNDETERMINED, nil), "YDB_UNDETERMINED", true, true},
		{traffic.Answered(nil, Ydb.StatusIds_GENERIC_ERROR, nil), "YDB_GENERIC_ERROR", false, true},
		{traffic.Answered(status.Error(codes.Unavailable, ""), 0, nil), "GRPC_UNAVAILABLE", true, true},
		{fmt.Errorf("visit: %w", traffic.Answered(status.Error(codes.Internal, ""), 0, nil)), "GRPC_INTERNAL", false, true},
	} {
		if r := traffic.AsRefusal(tc.err); r.Code != tc.code || r.Fair != tc.fair || r.Open != tc.open {
			t.Errorf("%v: got %+v; want %s, fair %v, open %v", tc.err, *r, tc.code, tc.fair, tc.open)
		}
	}
	if traffic.Answered(nil, Ydb.StatusIds_SUCCESS, nil) != nil {
		t.Error("success is an error")
	}
}

// memoryFace keeps one row, and fails as it is told.
type memoryFace struct {
	row   map[uint64]string
	fails func(write bool) (kept bool, err error)
}

func (f *memoryFace) Close() {}

func (f *memoryFace) Stream(_ context.Context, _ string, part func(int)) error {
	part(traffic.Rows - 1)
	return nil
}

func (f *memoryFace) Query(_ context.Context, sql string, params map[string]any) ([][]string, error) {
	id, write := params["id"].(uint64), sql == soakWrite
	kept, err := f.fails(write)
	if write && kept {
		f.row[id] = params["payload"].(string)
	}
	if v, ok := f.row[id]; ok && !write {
		return [][]string{{v}}, err
	}
	return nil, err
}

// A lost write must be seen at the next visit, and one of unknown outcome must not be taken for lost.
func TestSoakFindsLostWrites(t *testing.T) {
	f := &memoryFace{row: map[uint64]string{}}
	k := &Soaking{faces: []traffic.Face{f, f, f}, slots: make([]Slot, 1)}
	k.slots[0].ID = k.lastID.Add(1)
	s := &k.slots[0]
	change := func(kept bool, err error) (wrong bool) {
		f.fails = func(write bool) (bool, error) {
			if write {
				return kept, err
			}
			return false, nil
		}
		if err := k.look(t.Context(), s, 0); err != nil {
			return traffic.AsRefusal(err).Code == "WRONG"
		}
		value := s.value + 1
		k.settle(s, value, k.change(t.Context(), s, value, 0))
		return false
	}
	for i, tc := range []struct {
		kept bool
		err  error
	}{
		{true, nil}, {true, nil},
		{false, &traffic.Refusal{Code: "UPSTREAM_LOST", Fair: true}},
		{true, &traffic.Refusal{Code: "OUTCOME_UNKNOWN", Fair: true, Open: true}},
		{false, &traffic.Refusal{Code: "OUTCOME_UNKNOWN", Fair: true, Open: true}},
		{true, nil},
	} {
		if change(tc.kept, tc.err) {
			t.Errorf("change %d was taken for a fault", i)
		}
	}
	if k.lastID.Load() != 3 || s.value != 1 {
		t.Errorf("row %d has %d; want the third row with 1", k.lastID.Load(), s.value)
	}
	change(false, nil) // acknowledged and lost
	if !change(true, nil) {
		t.Error("a lost write was not found")
	}
	f.row[s.ID] = "2"
	if change(true, &traffic.Refusal{Code: "UPSTREAM_LOST", Fair: true}); !change(true, nil) {
		t.Error("a write that was denied and kept was not found")
	}
	if err := k.whole(t.Context(), f); err == nil || traffic.AsRefusal(err).Code != "WRONG" {
		t.Errorf("a stream that lacks a row: got %v", err)
	}
}

func TestFlatAllowsATenthOrTheFloor(t *testing.T) {
	minutes, still, rising := []float64{}, []float64{}, []float64{}
	for i := range 40 {
		minutes, still, rising = append(minutes, float64(i)), append(still, 30+float64(i%3)), append(rising, 30+float64(i))
	}
	if growth, most := flat(minutes, still, 4); growth > most || most != 4 {
		t.Errorf("still: grew by %v of %v; want less than the floor of 4", growth, most)
	}
	if growth, most := flat(minutes, rising, 4); growth <= most || growth != 19 {
		t.Errorf("rising: grew by %v of %v; want 19, more than it may", growth, most)
	}
	if _, most := flat(minutes, rising, 1); most != 5.95 {
		t.Errorf("may grow by %v; want a tenth of the median", most)
	}
}

func TestForMovesTheLimit(t *testing.T) {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(new(strings.Builder))
	var limit time.Duration
	flags.DurationVar(&limit, "limit", 0, "")
	Experiment().Flags(flags)
	if err := flags.Parse([]string{"-for", "2h"}); err != nil || limit != 2*time.Hour+10*time.Minute {
		t.Errorf("got a limit of %v, %v; want 2h10m", limit, err)
	}
	if err := flags.Parse([]string{"-for", "1ms"}); err == nil {
		t.Error("a millisecond is no error")
	}
}

func TestSamplesBecomeLinesAndCSV(t *testing.T) {
	s := &samples{lines: map[string][]float64{}}
	s.add(30*time.Second, lab.Gauges{Goroutines: 7, Anonymous: 3e6, Sessions: 2}, 4)
	text := string(s.csv())
	if !strings.HasPrefix(text, `minute,"anonymous memory, MB",`) || !strings.Contains(text, "\n0.500,3,0,7,0,2,4,0\n") {
		t.Errorf("got\n%s", text)
	}
	var calls atomic.Int64
	if err := Timely(t.Context(), func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); ok {
			calls.Add(1)
		}
		return nil
	}); err != nil || calls.Load() != 1 {
		t.Error("a call without a deadline")
	}
}
