package httpapi

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// askAll sends every request to a sidecar, and returns the answers as examples have them.
func askAll(t *testing.T) map[string]string {
	b := exampleService(t)
	tx := ""
	begin := func() string {
		got, err := b.client.Begin(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return got.ID
	}
	answers := map[string]string{}
	for _, d := range described {
		if slices.ContainsFunc(shown, func(s struct{ call, name, summary, request string }) bool { return s.call == d.call }) {
			continue
		}
		path := d.path
		if path == "" {
			path = routeOf[d.call].Path
		}
		if strings.Contains(path, "{tx}") && tx == "" {
			tx = begin()
		}
		path = strings.Replace(path, "{tx}", tx, 1)
		if before, after, found := strings.Cut(path, "{new}"); found {
			path = before + begin() + after
		}
		status, _, text := facadetest.Send(t, routeOf[d.call].Method, b.base+path, d.request, nil)
		if status != 200 {
			t.Fatalf("%s: %d %s", d.call, status, text)
		}
		answers[d.call] = steady(text)
	}
	for _, s := range shown {
		request := s.request
		if before, after, of := strings.Cut(request, "{tx}"); of {
			request = before + begin() + after
		}
		status, _, text := facadetest.Send(t, routeOf[s.call].Method, b.base+routeOf[s.call].Path, request, nil)
		if status != 200 {
			t.Fatalf("%s %s: %d %s", s.call, s.name, status, text)
		}
		answers[s.call+" "+s.name] = steady(text)
	}
	return answers
}

// requestOf is a request of shown as openapi.yaml has it.
func requestOf(call, name string) string {
	for _, s := range shown {
		if s.call == call && s.name == name {
			return steady(strings.Replace(s.request, "{tx}", "tx_12345678", 1))
		}
	}
	return ""
}

// madeExample writes the one example of a body, or those of shown.
func madeExample(b *strings.Builder, indent, call, one string, of func(name string) string) {
	several := false
	for _, s := range shown {
		if s.call != call {
			continue
		}
		if !several {
			several = true
			fmt.Fprintf(b, "%sexamples:\n", indent)
		}
		fmt.Fprintf(b, "%s  %s: { summary: %s, value: %s }\n", indent, s.name, quote(s.summary), of(s.name))
	}
	if !several {
		fmt.Fprintf(b, "%sexample: %s\n", indent, one)
	}
}

// askProblem returns the error of a row that exists.
func askProblem(t *testing.T, b *service) string {
	const request = `{"sql":"INSERT INTO users (id, name) VALUES (42ul, 'Ann')"}`
	status, _, text := facadetest.Send(t, "POST", b.base+"/v1/query", request, nil)
	if status != 409 {
		t.Fatalf("a row that exists: %d %s", status, text)
	}
	return steady(text)
}

// askLines returns the lines of a stream, as a list.
func askLines(t *testing.T, b *service) string {
	const request = `{"sql":"SELECT id, name FROM users WHERE id = 42ul; SELECT id, name FROM users WHERE id = 43ul"}`
	status, _, text := facadetest.Send(t, "POST", b.base+"/v1/query", request, facadetest.Header("Accept", mediaNDJSON))
	if status != 200 {
		t.Fatalf("a stream: %d %s", status, text)
	}
	return "[" + strings.Join(strings.Split(strings.TrimSpace(steady(text)), "\n"), ", ") + "]"
}

var (
	changing = regexp.MustCompile(`"(queue_ms|acquire_ms|hop_ms|server_ms|age_ms|uptime_s)":[0-9.]+`)
	expiring = regexp.MustCompile(`"expires_ms":[0-9]+`)
	tokens   = regexp.MustCompile(`tx_[A-Za-z0-9_-]{8,}`)
)

// steady is an answer without what is different each time.
func steady(text string) string {
	text = changing.ReplaceAllString(strings.TrimSpace(text), `"$1":0`)
	return tokens.ReplaceAllString(expiring.ReplaceAllString(text, `"expires_ms":30000`), "tx_Jq2LhQm9s1IafYPM3uDiwkfliSjNNTkG")
}
