package stock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

func TestFitFindsHowManyMayBeUnderWay(t *testing.T) {
	for name, tc := range map[string]struct {
		most, fits int // what fits, exactly
		least      int // of what is found
		noisy      bool
	}{
		"none fits":             {128, 0, 1, false},
		"one fits":              {128, 1, 1, false},
		"seven fit":             {128, 7, 7, false},
		"fifty fit":             {128, 50, 44, false},
		"all fit":               {128, 1000, 128, false},
		"all of few fit":        {4, 1000, 4, false},
		"with every third loud": {128, 50, 44, true},
	} {
		tries := 0
		got, err := fit(tc.most, func(n int) (bool, error) {
			tries++
			return n <= tc.fits && !(tc.noisy && tries%3 == 0), nil
		})
		if err != nil || got < tc.least || got > max(1, min(tc.most, tc.fits)) || tries > 40 {
			t.Errorf("%s: got %d after %d tries, %v; want %d to %d in at most 40", name, got, tries, err, tc.least, tc.fits)
		}
	}
	if _, err := fit(128, func(int) (bool, error) { return false, errors.New("no") }); err == nil {
		t.Error("the error of a try is lost")
	}
}

func TestOrdersAreAsLongAsTheWorkloads(t *testing.T) {
	sum, most := 0, 0
	for range 20_000 {
		n := orderLines()
		if n < 1 {
			t.Fatalf("got an order of %d lines", n)
		}
		sum, most = sum+n, max(most, n)
	}
	// P(n) is e^(-0.8(n-0.5)) - e^(-0.8(n+0.5)), given that n is not 0: its mean is 1/(1-e^-0.8), 1.816.
	if mean := float64(sum) / 20_000; mean < 1.77 || mean > 1.87 || most < 5 {
		t.Errorf("got a mean of %.3f lines, %d at most; want 1.816, and long ones", mean, most)
	}
}

func TestLinesNameEachProductOnce(t *testing.T) {
	v := lines(1, 3, 3, 4)
	if n := len(v.Typed.Value.Items); n != 2 || len(v.Plain.GetListValue().Items) != 2 {
		t.Errorf("got %d lines; want 2", n)
	}
	members := v.Typed.Type.GetListType().Item.GetStructType().Members
	if len(members) != 2 || members[0].Name != "product" || members[1].Type.GetTypeId() != Ydb.Type_INT64 {
		t.Errorf("got the type %v; want product and quantity", members)
	}
}

func TestRepeatTriesWhatSurelyDidNothing(t *testing.T) {
	aborted, bad := &traffic.YDBError{Status: Ydb.StatusIds_ABORTED}, &traffic.YDBError{Status: Ydb.StatusIds_BAD_REQUEST}
	for name, tc := range map[string]struct {
		errs     []error // of the attempts; then it succeeds
		attempts int
		fails    bool
	}{
		"at once":                {nil, 1, false},
		"aborted twice":          {[]error{aborted, aborted}, 3, false},
		"the plain API's":        {[]error{status.Error(codes.Aborted, "")}, 2, false},
		"nonsense":               {[]error{bad}, 1, true},
		"nobody knows":           {[]error{status.Error(codes.Unavailable, "")}, 1, true},
		"aborted without an end": {slicesOf(aborted, 100), traffic.Most, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			attempts, _, err := traffic.Repeat(t.Context(), func(context.Context) (int, int, error) {
				n++
				if n <= len(tc.errs) {
					return 1, 0, tc.errs[n-1]
				}
				return 1, 1, nil
			})
			if attempts != tc.attempts || (err != nil) != tc.fails {
				t.Errorf("%s: got %d attempts, %v; want %d", name, attempts, err, tc.attempts)
			}
		})
	}
}

func slicesOf(err error, n int) (all []error) {
	for range n {
		all = append(all, err)
	}
	return all
}
