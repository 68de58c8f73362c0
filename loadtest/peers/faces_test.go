package peers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// oneRow is the row of a node's payload.
func oneRow(node, size, part int) *sidecarv1.Row {
	return &sidecarv1.Row{Values: []*sidecarv1.Value{{Kind: &sidecarv1.Value_BytesValue{BytesValue: payload(node, size, part)}}}}
}

// namedRow is a row of an answer of many.
func namedRow(name string) *sidecarv1.Row {
	return &sidecarv1.Row{Values: []*sidecarv1.Value{
		{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: 1}}, {Kind: &sidecarv1.Value_TextValue{TextValue: name}},
		{Kind: &sidecarv1.Value_DoubleValue{}},
	}}
}

func streamed(rows ...*sidecarv1.Row) *sidecarv1.ExecuteStreamResponse {
	return &sidecarv1.ExecuteStreamResponse{Part: &sidecarv1.ExecuteStreamResponse_Rows{Rows: &sidecarv1.StreamRows{Rows: rows}}}
}

// fake is the plain API as a test wants it.
type fake struct {
	sidecarv1.UnimplementedSidecarServer
	whole *sidecarv1.ExecuteResponse
	parts []*sidecarv1.ExecuteStreamResponse
}

func (f *fake) Execute(context.Context, *sidecarv1.ExecuteRequest) (*sidecarv1.ExecuteResponse, error) {
	return f.whole, nil
}

func (f *fake) ExecuteStream(_ *sidecarv1.ExecuteRequest, stream grpc.ServerStreamingServer[sidecarv1.ExecuteStreamResponse]) error {
	for _, part := range f.parts {
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return nil
}

func TestPlainAnswersAreChecked(t *testing.T) {
	unary, stream := Scenario{Size: 9, Parts: 1}, Scenario{Stream: true, Size: 9, Parts: 2}
	many := Scenario{Stream: true, Size: 10, Rows: 2, Parts: 1}
	columns := &sidecarv1.ExecuteStreamResponse{Part: &sidecarv1.ExecuteStreamResponse_Columns{Columns: &sidecarv1.StreamColumns{}}}
	end := &sidecarv1.ExecuteStreamResponse{Part: &sidecarv1.ExecuteStreamResponse_End{End: &sidecarv1.StreamEnd{}}}
	whole := func(rows ...*sidecarv1.Row) *sidecarv1.ExecuteResponse { return &sidecarv1.ExecuteResponse{Rows: rows} }
	for _, tc := range []struct {
		name   string
		s      Scenario
		answer fake
		want   string // of the error; ""
	}{
		{"a node's", unary, fake{whole: whole(oneRow(2, 9, 0))}, ""},
		{"nobody's", unary, fake{whole: whole(oneRow(4, 9, 0))}, "not what any node answers"},
		{"none", unary, fake{whole: whole()}, "not what any node answers"},
		{"one too many", unary, fake{whole: whole(oneRow(2, 9, 0), oneRow(2, 9, 1))}, "not what any node answers"},
		{"a node's stream", stream,
			fake{parts: []*sidecarv1.ExecuteStreamResponse{columns, streamed(oneRow(3, 9, 0)), streamed(oneRow(3, 9, 1)), end}},
			""},
		{"the same in one part", stream,
			fake{parts: []*sidecarv1.ExecuteStreamResponse{columns, streamed(oneRow(3, 9, 0), oneRow(3, 9, 1)), end}},
			""},
		{"of two nodes", stream,
			fake{parts: []*sidecarv1.ExecuteStreamResponse{columns, streamed(oneRow(3, 9, 0), oneRow(2, 9, 1)), end}},
			"not what any node answers"},
		{"half of it", stream, fake{parts: []*sidecarv1.ExecuteStreamResponse{columns, streamed(oneRow(3, 9, 0)), end}},
			"not what any node answers"},
		{"without an end", stream,
			fake{parts: []*sidecarv1.ExecuteStreamResponse{columns, streamed(oneRow(3, 9, 0), oneRow(3, 9, 1))}},
			"no end"},
		{"many rows", many,
			fake{parts: []*sidecarv1.ExecuteStreamResponse{streamed(namedRow("1234567890")), streamed(namedRow("1234567890")), end}},
			""},
		{"too few", many, fake{parts: []*sidecarv1.ExecuteStreamResponse{streamed(namedRow("1234567890")), end}},
			"got 1 rows of 10 bytes; want 2 of 20"},
		{"too short", many,
			fake{parts: []*sidecarv1.ExecuteStreamResponse{streamed(namedRow("1234567890"), namedRow("")), end}},
			"got 2 rows of 10 bytes; want 2 of 20"},
		{"of another width", many, fake{parts: []*sidecarv1.ExecuteStreamResponse{streamed(oneRow(1, 9, 0)), end}},
			"not what any node answers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			sidecarv1.RegisterSidecarServer(server, &tc.answer)
			go server.Serve(listener)
			defer server.Stop()
			err = calls(t, &field{options: Options{Conns: 1}},
				&target{api: plainAPI, endpoints: map[sides]*endpoint{nowhere: {addresses: []string{listener.Addr().String()}}}},
				tc.s)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v; want %q", err, tc.want)
			}
		})
	}
}

func TestWhatIsNoMessageIsRefused(t *testing.T) {
	whole, err := proto.Marshal(&sidecarv1.ExecuteResponse{Rows: []*sidecarv1.Row{oneRow(1, 9, 0)}})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(whole); n++ {
		a := plainAnswer{scenario: Scenario{Size: 9, Parts: 1}, want: [nodes][][]byte{{whole[2:]}}}
		if err := (plainly{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(whole[:n])}, &a); err == nil {
			t.Errorf("%d of %d bytes: got no error", n, len(whole))
		}
	}
}

func TestLinesAreChecked(t *testing.T) {
	unary, stream := Scenario{Size: 3, Parts: 1}, Scenario{Stream: true, Size: 3, Parts: 2}
	many := Scenario{Stream: true, Size: 10, Rows: 2, Parts: 2}
	one := func(s Scenario, part int) string { // node 2's
		w, err := newWeb(s, "")
		if err != nil {
			t.Fatal(err)
		}
		return w.want[1][part]
	}
	head := `{"columns":[{"name":"payload","type":"String"}]}` + "\n"
	end := func(n int) string { return fmt.Sprintf(`{"end":{"rows":%d,"truncated":false,"info":{}}}`+"\n", n) }
	manyRows := ""
	for i := range 4 {
		manyRows += fmt.Sprintf(`{"row":["%d","1%09d",%v]}`+"\n", i, i, amount(i))
	}
	for _, tc := range []struct {
		name string
		s    Scenario
		body string
		want string // of the error; ""
	}{
		{"a node's", unary, one(unary, 0) + `,"info":{}}`, ""},
		{"nobody's", unary, strings.Replace(one(unary, 0), `"payload":"`, `"payload":"x`, 1) + `,"info":{}}`, "not what any node answers"},
		{"none", unary, "", "not what any node answers"},
		{"a node's stream", stream, head + one(stream, 0) + one(stream, 1) + end(2), ""},
		{"out of order", stream, head + one(stream, 1) + one(stream, 0) + end(2), "not what any node answers"},
		{"half of it", stream, head + one(stream, 0) + end(1), "not what any node answers"},
		{"without an end", stream, head + one(stream, 0) + one(stream, 1), "no end"},
		{"broken off", stream, head + one(stream, 0) + one(stream, 1) + "{", "no end"},
		{"with an error", stream, head + `{"error":{"code":"x"}}` + "\n", `{"error":{"code":"x"}}`},
		{"that goes on", stream, head + one(stream, 0) + one(stream, 1) + end(2) + end(2), "goes on after its end"},
		{"many rows", many, head + manyRows + end(4), ""},
		{"a row less", many, head + manyRows[strings.IndexByte(manyRows, '\n')+1:] + end(4), "got 3 rows"},
		{"a byte more", many, head + strings.Replace(manyRows, "10", "100", 1) + end(4), "bytes; want 4 of"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status := http.StatusOK
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				fmt.Fprint(w, tc.body)
			}))
			defer server.Close()
			address := server.Listener.Addr().String()
			err := calls(t, &field{}, &target{api: webAPI, endpoints: map[sides]*endpoint{nowhere: {addresses: []string{address}}}}, tc.s)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v; want %q", err, tc.want)
			}
			status = http.StatusServiceUnavailable
			if err := calls(t, &field{},
				&target{
					api: webAPI, endpoints: map[sides]*endpoint{nowhere: {addresses: []string{address}}},
				}, tc.s); err == nil || !strings.Contains(
				err.Error(), "503",
			) {
				t.Errorf("got %v; want the status", err)
			}
		})
	}
}

// A call that fails leaves no connection to go on with.
func TestWebConnectsAnew(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s := Scenario{Size: 3, Parts: 1}
	w, err := newWeb(s, listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	go func() {
		for i := range 2 {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil && i == 1 {
				body := w.want[0][0] + `,"info":{}}`
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				_ = r.Body.Close()
			}
			_ = conn.Close()
		}
	}()
	if err := w.call(t.Context()); err == nil || w.conn != nil {
		t.Errorf("got %v and the connection %v; want an error and none", err, w.conn)
	}
	if err := w.call(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFacesAreTargets(t *testing.T) {
	f := &field{dir: "/d", nodes: map[bool][]string{false: {"h:1", "h:2", "h:3"}}}
	all := own("x", "bin/sidecar -v", true)
	if len(all) != 3 || len(own("x", "bin/sidecar", false)) != 1 || len(own("x", "h2forward", true)) != 1 {
		t.Fatalf("got %d targets; want 3 of a sidecar, or 1", len(all))
	}
	for i, want := range []struct {
		name, flag string
		routes     bool
	}{{"x", "-grpc", true}, {"x-plain", "-grpc", false}, {"x-http", "-http", false}} {
		got, err := all[i].command(f, "/p", "l:1", nowhere)
		if at := slices.Index(
			got.Args, "l:1",
		); err != nil || all[i].name != want.name || all[i].routes != want.routes || at < 1 ||
			got.Args[at-1] != want.flag || got.Args[len(got.Args)-1] != "-v" {
			t.Errorf("got %+v with %+v, %v; want %+v", all[i], got, err, want)
		}
	}
}

func TestPlainGoals(t *testing.T) {
	unary, rate := Scenario{Name: "u", Parts: 1, InFlight: 64}, Scenario{Name: "r", Parts: 1, Rate: 2000, InFlight: 9}
	one := Scenario{Name: "one", Parts: 1, InFlight: 1}
	rows := Scenario{Name: "rows", Stream: true, Rows: 10, Parts: 2, InFlight: 1}
	r := results{[]Scenario{unary, one, rate, rows}, map[string]*lab.Table{}}
	for _, s := range r.scenarios {
		var c lab.Case
		var runs [][]lab.Run
		for name, cost := range map[string]float64{direct: 100, haproxyTCP: 200, envoy: 400, "own-plain": 500, "own-http": 600} {
			c.Variants = append(c.Variants, lab.Variant{Name: name})
			runs = append(runs,
				[]lab.Run{{Calls: 1, Figures: lab.Figures{lab.CPU: cost, lab.P50: cost, lab.P99: cost, lab.PerSecond: 100 / cost}}})
		}
		r.tables[s.Name] = lab.NewTable(c, runs)
	}
	for of, want := range map[api][]string{
		plainAPI: {"1.25 missed <= 0.45", "1.25 missed <= 0.25", "0.00 not measured <= 0.5", "0.00 not measured <= 0.3",
			"1.25 missed <= 0.9", "1.25 missed <= 0.6",
			"5.00 missed <= 1.6", "5.00 missed <= 1.4", "4.00 missed <= 2.5", "4.00 missed <= 2", "4.00 missed <= 3",
			"0.20 missed >= 1.2", "0.20 missed >= 1.34"},
		webAPI: {"1.50 missed <= 0.8", "1.50 missed <= 0.5", "1.50 missed <= 1", "1.50 missed <= 0.75",
			"1.20 met <= 1.3", "6.00 missed <= 1.8", "6.00 missed <= 1.5", "0.17 missed >= 1.5", "0.17 missed >= 1.66"},
	} {
		table := lab.NewTable(lab.Case{}, nil)
		for _, g := range goals(of) {
			g.judge(r, "own"+of.suffix(), table)
		}
		var got []string
		for _, v := range table.Claims {
			got = append(got, fmt.Sprintf("%.2f %s %s", v.Value.Median, v.Verdict, v.Goal))
		}
		if !slices.Equal(got, want) {
			t.Errorf("own%s: got %q; want %q", of.suffix(), got, want)
		}
	}
}
