package h2

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// Of trailers of a request, which gRPC does not have, only the end goes on, wherever the body stands.
func TestTrailersOfRequestsDoNotPass(t *testing.T) {
	fields := []string{"authorization", "Bearer secret", "x-ydb-database", "/other"}
	whole := string(message("question"))
	for name, tc := range map[string]struct {
		body string
		room uint32 // of the node's stream
		park bool
		want []string
	}{
		"without a body":           {"", 1 << 16, false, []string{"DATA 1 end "}},
		"behind the body":          {whole, 1 << 16, false, []string{"DATA 1 " + whole, "DATA 1 end "}},
		"behind what waits":        {whole, 4, false, []string{"DATA 1 " + whole[:4], "DATA 1 end " + whole[4:]}},
		"behind the body, parked":  {whole, 1 << 16, true, []string{"DATA 1 end " + whole}},
		"without a body, parked":   {"", 1 << 16, true, nil},
		"behind what waits, later": {whole, 4, true, []string{"DATA 1 " + whole[:4], "DATA 1 end " + whole[4:]}},
	} {
		t.Run(name, func(t *testing.T) {
			f, r, c, _ := start(t)
			n := node(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: tc.room})
			var ticket Ticket
			r.route = func(call *Call) (*Conn, error) {
				if tc.park && ticket == (Ticket{}) {
					ticket = call.Ticket()
					return nil, ErrPark
				}
				return n.conn, nil
			}
			c.headers(1, false, request...)
			if tc.body != "" {
				c.data(1, false, []byte(tc.body))
			}
			c.send()
			got := n.frames()
			c.headers(1, true, fields...).send()
			f.Resume(ticket)
			if got = append(got, n.frames()...); tc.room < uint32(len(whole)) {
				n.framer.WriteWindowUpdate(1, 1<<10)
				n.send()
				got = append(got, n.frames()...)
			}
			want := append([]string{"HEADERS 1 " + requestLine}, tc.want...)
			if tc.want == nil {
				want = []string{strings.Replace(want[0], "1 ", "1 end ", 1)}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the node got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
			n.headers(1, true, ":status", "200", "grpc-status", "0").send()
			c.frames()
			idle(t, f, c, n)
		})
	}
}

// What a server of gRPC refuses for its headers comes to no node, which would be blamed for the answer.
func TestMalformedHeaders(t *testing.T) {
	const wrong = "HEADERS 1 end :status=200 content-type=application/grpc grpc-status=13 grpc-message=malformed header "
	without := func(name string) (left []string) {
		for i := 0; i < len(request); i += 2 {
			if request[i] != name {
				left = append(left, request[i], request[i+1])
			}
		}
		return left
	}
	with := func(more ...string) []string { return append(slices.Clone(request), more...) }
	for name, tc := range map[string]struct {
		headers []string
		want    string // "": it is forwarded
	}{
		"a timeout of no digits":       {with("grpc-timeout", "zz"), "grpc-timeout: it must be at most 8 digits"},
		"an empty timeout":             {with("grpc-timeout", ""), "grpc-timeout: it must be at most 8 digits"},
		"a timeout without a unit":     {with("grpc-timeout", "100"), "grpc-timeout: it must be at most 8 digits"},
		"a timeout of nine digits":     {with("grpc-timeout", "100000000m"), "grpc-timeout: it must be at most 8 digits"},
		"a negative timeout":           {with("grpc-timeout", "-1S"), "grpc-timeout: it must be at most 8 digits"},
		"a long timeout":               {with("grpc-timeout", strings.Repeat("1", 1000)), "grpc-timeout: it must be at most 8 digits"},
		"a timeout":                    {with("grpc-timeout", "99999999H"), ""},
		"two timeouts":                 {with("grpc-timeout", "10S", "grpc-timeout", "zz"), "grpc-timeout: it must come once"},
		"no base64":                    {with("x-a-bin", "!!!"), "x-a-bin: it ends in -bin, so its value must be base64"},
		"no base64, the second time":   {with("x-a-bin", "AAAA", "x-a-bin", "A"), "x-a-bin: it ends in -bin"},
		"no base64, in a known name":   {with("x-ydb-trace-id", "t", "grpc-trace-bin", "A==="), "grpc-trace-bin: it ends in -bin"},
		"base64 for addresses":         {with("x-a-bin", "_-_-"), "x-a-bin: it ends in -bin"},
		"base64 and a comma":           {with("x-a-bin", "AAAA,AAAA"), "x-a-bin: it ends in -bin"},
		"base64":                       {with("x-a-bin", "Zm8"), ""},
		"base64 with padding":          {with("x-a-bin", "Zm8="), ""},
		"base64 of nothing":            {with("x-a-bin", ""), ""},
		"a name that is not of base64": {with("x-bin-a", "!!!"), ""},
		"another method":               {append([]string{":method", "GET"}, without(":method")...), ":method: it must be POST"},
		"another scheme":               {append([]string{":scheme", "ftp"}, without(":scheme")...), ":scheme: it must be http or https"},
		"https":                        {append([]string{":scheme", "https"}, without(":scheme")...), ""},
		"two lengths":                  {with("content-length", "0", "content-length", "0"), "RST_STREAM 1 PROTOCOL_ERROR"},
		"no host":                      {without(":authority"), ":authority: it must name the host"},
		"a host":                       {append(without(":authority"), "host", "sidecar"), ""},
		"a host besides an authority":  {with("host", "sidecar"), ""},
		"two hosts":                    {with("host", "sidecar", "host", "other"), "host: it must come once"},
		"what is no call is not judged": {
			[]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "x", "grpc-timeout", "zz"},
			"HEADERS 1 :status=200",
		},
	} {
		for _, chunk := range []int{0, 1} { // the second time from the dynamic table
			f, r, c, n := start(t)
			c.chunk = chunk
			for id := uint32(1); id <= 3; id += 2 {
				c.headers(id, true, tc.headers...).send()
				first := strings.Replace(strings.Join(c.frames(), "\n"), " 3 ", " 1 ", 1)
				switch got := n.frames(); {
				case strings.Contains(strings.Join(got, ""), "host=") && slices.Contains(tc.headers, ":authority"):
					t.Errorf("%s: the node got %q: two hosts", name, got)
				case tc.want == "" && (len(got) != 1 || first != ""):
					t.Errorf("%s: the node got %q, the client %q; want it forwarded", name, got, first)
				case tc.want != "" && (len(got) > 0 || !strings.HasPrefix(first, tc.want) && !strings.HasPrefix(first, wrong+tc.want)):
					t.Errorf("%s: the node got %q, the client %q; want %q", name, got, first, tc.want)
				case tc.want == "":
					n.headers(n.conn.nextID-2, true, ":status", "200", "grpc-status", "0").send()
					c.frames()
				}
			}
			if idle(t, f, c, n); tc.want != "" && len(r.done) > 0 {
				t.Errorf("%s: the router heard of it: %+v", name, r.done)
			}
		}
	}
}

// Headers that are as they should be are looked at without an allocation.
func TestLookingAtHeadersDoesNotAllocate(t *testing.T) {
	f, r, c, _ := start(t)
	var call *Call
	r.route = func(now *Call) (*Conn, error) { call = now; return nil, ErrPark }
	c.headers(1, false, append(slices.Clone(request), "grpc-timeout", "10S", "x-a-bin", strings.Repeat("AAAA", 20))...).send()
	f.words.text = make([]byte, 0, 256)
	c.conn.decoder.readPortable(call.block, &f.block)
	if n := testing.AllocsPerRun(100, func() {
		if st := call.malformed(); st != nil {
			t.Fatal(st)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Calls of which a header has the same version have the same value, and most that have the same value
// have the same version.
func TestVersionsOfHeaders(t *testing.T) {
	_, r, c, n := start(t)
	type seen struct {
		value   string
		there   bool
		version uint64
	}
	var all []seen
	r.route = func(call *Call) (*Conn, error) {
		value := call.Header(FirstName)
		all = append(all, seen{string(value), value != nil, call.Version(FirstName)})
		return n.conn, nil
	}
	for i, value := range []string{"a", "a", "", "b", "b", "a", "-", "a"} {
		headers := append([]string(nil), request...)
		if value != "-" {
			headers = append(headers, "x-ydb-database", value)
		}
		c.headers(uint32(2*i+1), true, headers...)
		c.send()
	}
	for _, x := range all {
		if x.there != (x.version != 0) {
			t.Errorf("%+v", x)
		}
		for _, y := range all {
			if x.version == y.version && x != y {
				t.Errorf("%+v and %+v", x, y)
			}
		}
	}
	if len(all) != 8 || all[0].version != all[1].version || all[3].version != all[4].version || all[5].version != all[7].version {
		t.Errorf("%+v", all)
	}
}
