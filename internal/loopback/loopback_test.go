package loopback

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestCheck(t *testing.T) {
	guard, err := New([]string{"db.internal", "10.1.2.3:7401", "Proxy.Example."})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		host   string
		header http.Header
		want   error
	}{
		{name: "loopback_address", host: "127.0.0.1:7401"},
		{name: "any_loopback_address", host: "127.8.9.1:7401"},
		{name: "loopback_name", host: "localhost"},
		{name: "loopback_name_with_final_dot_and_capitals", host: "LocalHost.:80"},
		{name: "ipv6", host: "[::1]:7401"},
		{name: "ipv6_without_port", host: "[::1]"},
		{name: "mapped_ipv4", host: "[::ffff:127.0.0.1]:1"},
		{name: "listed_host_on_any_port", host: "db.internal:99"},
		{name: "listed_host_in_other_spelling", host: "proxy.example"},
		{name: "listed_host_and_port", host: "10.1.2.3:7401"},
		{name: "listed_host_on_another_port", host: "10.1.2.3:7402", want: ErrHost},
		{name: "no_host", host: "", want: ErrHost},
		{name: "foreign_host_is_dns_rebinding", host: "evil.example:7401", want: ErrHost},
		{name: "name_that_begins_like_loopback", host: "localhost.evil.example", want: ErrHost},
		{name: "address_that_begins_like_loopback", host: "127.0.0.1.evil.example", want: ErrHost},
		{name: "unspecified_address", host: "0.0.0.0:7401", want: ErrHost},
		{name: "malformed", host: "[::1", want: ErrHost},
		{name: "own_page", host: "127.0.0.1:7402",
			header: http.Header{"Origin": {"http://127.0.0.1:7402"}, "Sec-Fetch-Site": {"same-origin"}}},
		{name: "typed_by_the_user", host: "127.0.0.1:7402", header: http.Header{"Sec-Fetch-Site": {"none"}}},
		{name: "foreign_page", host: "127.0.0.1:7402", header: http.Header{"Origin": {"https://evil.example"}}, want: ErrOrigin},
		{name: "page_of_another_local_server", host: "127.0.0.1:7402",
			header: http.Header{"Origin": {"http://127.0.0.1:3000"}}, want: ErrOrigin},
		{name: "sandboxed_page", host: "127.0.0.1:7402", header: http.Header{"Origin": {"null"}}, want: ErrOrigin},
		{name: "empty_origin", host: "127.0.0.1:7402", header: http.Header{"Origin": {""}}, want: ErrOrigin},
		{name: "second_origin_is_foreign", host: "localhost",
			header: http.Header{"Origin": {"http://localhost", "http://evil.example"}}, want: ErrOrigin},
		{name: "image_in_a_foreign_page", host: "localhost", header: http.Header{"Sec-Fetch-Site": {"cross-site"}}, want: ErrOrigin},
		{name: "page_of_another_port", host: "localhost", header: http.Header{"Sec-Fetch-Site": {"same-site"}}, want: ErrOrigin},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.Host, r.Header = tc.host, tc.header
			if err := guard.Check(r); !errors.Is(err, tc.want) {
				t.Errorf("Check(Host %q, %v) = %v; want %v", tc.host, tc.header, err, tc.want)
			}
		})
	}
}

func TestNewRefusesWhatIsNoHost(t *testing.T) {
	for _, bad := range []string{"", "*", "http://a", "a/b", "u@h", "a b", ":80"} {
		if _, err := New([]string{"fine", bad}); err == nil {
			t.Errorf("New(%q) gave no error", bad)
		}
	}
}

func TestWrap(t *testing.T) {
	var guard Guard
	handler := guard.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}), Forbid)
	for host, want := range map[string]int{"localhost:1": http.StatusOK, "evil.example": http.StatusForbidden} {
		r, w := httptest.NewRequest("POST", "/", nil), httptest.NewRecorder()
		r.Host = host
		handler.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Host %q: status %d; want %d", host, w.Code, want)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("127.0.0.1:7401", "http://127.0.0.1:7401")
	f.Add("[::1]", "null")
	f.Add("evil.example", "")
	var guard Guard
	f.Fuzz(func(t *testing.T, host, origin string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		r.Header.Set("Origin", origin)
		if guard.Check(r) == nil && !guard.local(host) {
			t.Errorf("admitted Host %q", host)
		}
	})
}
