package poolsize

import (
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func sized(figure string, sizes []int, values ...lab.Estimate) *lab.Table {
	t := &lab.Table{}
	for i, size := range sizes {
		t.Rows = append(t.Rows, &lab.Row{Variant: strconv.Itoa(size), Figures: map[string]lab.Estimate{figure: values[i]}})
	}
	return t
}

func exactly(x float64) lab.Estimate { return lab.Estimate{Median: x, Low: x, High: x, N: 6} }

func TestEnoughIsTheLeastThatIsAsGoodAsTheBest(t *testing.T) {
	sizes := []int{1, 5, 20, 200}
	full := sized(lab.PerSecond, sizes, exactly(200), exactly(940), exactly(955), exactly(1000))
	if got := enough(full, lab.PerSecond, true); got.Variant != "20" {
		t.Errorf("got %s for throughput; want 20: 5 has 6 %% less than the best", got.Variant)
	}
	steady := sized(lab.P99, sizes, exactly(90), exactly(12), lab.Estimate{Median: 11, Low: 10.4, High: 12, N: 6}, exactly(10))
	if got := enough(steady, lab.P99, false); got.Variant != "20" {
		t.Errorf("got %s for p99; want 20, which cannot be told from the best", got.Variant)
	}
	text := recommend(full, steady)
	for _, want := range []string{"a pool of 20 sessions", "one of 20 was enough", "gives 5 and 2.5"} {
		if !strings.Contains(text, want) {
			t.Errorf("got %q; want %q in it", text, want)
		}
	}
	if got := recommend(&lab.Table{}, steady); got != "Nothing was measured." {
		t.Errorf("got %q", got)
	}
}
