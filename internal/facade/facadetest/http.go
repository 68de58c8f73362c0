package facadetest

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// Get returns the status, the headers and the body of what a URL answers. change may change the request before it is sent.
func Get(t *testing.T, url string, change func(*http.Request)) (int, http.Header, string) {
	t.Helper()
	return Send(t, http.MethodGet, url, "", change)
}

// Send returns the status, the headers with the trailers, and the body of what a URL answers to a body of JSON.
// change may change the request before it is sent.
func Send(t *testing.T, method, url, body string, change func(*http.Request)) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if change != nil {
		change(req)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range res.Trailer {
		res.Header[name] = v
	}
	return res.StatusCode, res.Header, string(raw)
}

// Header returns what sets the headers of a request: pairs of a name and a value. The name Host sets the host.
func Header(pairs ...string) func(*http.Request) {
	return func(r *http.Request) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == "Host" {
				r.Host = pairs[i+1]
				continue
			}
			r.Header.Set(pairs[i], pairs[i+1])
		}
	}
}
