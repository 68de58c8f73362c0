package lab

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestMetricSumsByNameAndLabel(t *testing.T) {
	text := "# TYPE a gauge\na 3\na_b 100\nc{x=\"1\",s=\"used\"} 2\nc{x=\"2\",s=\"used\"} 4.5e0\nc{x=\"}\",s=\"idle\"} 8\nc{broken\n"
	for _, tc := range []struct {
		name, label string
		want        float64
	}{{"a", "", 3}, {"c", "", 14.5}, {"c", `s="used"`, 6.5}, {"d", "", 0}} {
		if got := metric([]byte(text), tc.name, tc.label); got != tc.want {
			t.Errorf("%s %s: got %v; want %v", tc.name, tc.label, got, tc.want)
		}
	}
}

func TestGaugesOfTheAdminAPI(t *testing.T) {
	metrics := "go_goroutines 17\ngo_memstats_next_gc_bytes 2e+07\ngo_gc_gogc_percent " +
		"300\nydb_query_session_count{ydb_query_session_pool_name=\"/local\",ydb_query_session_state=\"used\"} 2\n" +
		"ydb_query_session_count{ydb_query_session_pool_name=\"callers\",ydb_query_session_state=\"idle\"} " +
		"5\nydb_sidecar_api_connections{ydb_sidecar_face=\"grpc\"} 4\n"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprint(w, metrics)
		case "/state/connections":
			fmt.Fprint(w, `{"clients":9,"virtual_sessions":{"sessions":3,"pools":[]}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer http.DefaultClient.CloseIdleConnections()
	defer s.Close()
	admin := strings.TrimPrefix(s.URL, "http://")
	got, err := gauges(t.Context(), admin)
	if want := (Gauges{Goroutines: 17, Heap: 5e6, Sessions: 7, Busy: 2, Virtual: 3, Clients: 4}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	metrics = "go_threads 3\n"
	if _, err := gauges(t.Context(), admin); err == nil {
		t.Error("metrics without goroutines are no error")
	}
}

func TestGrowthIsThatOfTheSecondHalf(t *testing.T) {
	var x, flat, leak, spiked []float64
	for i := range 100 {
		x = append(x, float64(i))
		flat = append(flat, min(float64(i), 50)) // warms up, then stays
		leak = append(leak, 10+2*float64(i))
		spike := 7.0
		if i%10 == 0 || i > 95 { // outliers, also at the end
			spike = 1000
		}
		spiked = append(spiked, spike)
	}
	for name, tc := range map[string]struct {
		y            []float64
		want, median float64
	}{"flat": {flat, 0, 50}, "leak": {leak, 98, 159}, "spiked": {spiked, 0, 7}} {
		if growth, median := Growth(x, tc.y); math.Abs(growth-tc.want) > 1e-9 || median != tc.median {
			t.Errorf("%s: got %v from %v; want %v from %v", name, growth, median, tc.want, tc.median)
		}
	}
	if growth, _ := Growth(x[:2], flat[:2]); !math.IsNaN(growth) {
		t.Errorf("got %v of two points; want none", growth)
	}
	if got := Slope([]float64{0, 1, 2, 3}, []float64{0, 0, 10, 0}); got != 0 {
		t.Errorf("got %v of one outlier; want 0, the middle of -10, 0, 0, 0, 5 and 10", got)
	}
	if got := Slope([]float64{1, 1}, []float64{1, 2}); got != 0 {
		t.Errorf("got %v of one instant; want 0", got)
	}
}
