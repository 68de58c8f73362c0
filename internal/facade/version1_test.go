package facade

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// version1 is what version 1 of the plain API promises: one entry for each fact that a client may count on. docs/reference/compatibility.md
// has the rules in words.
type version1 map[string]string

// The first words of entries about members of JSON and about parameters, which may become laxer.
const (
	ofRequest   = "request "   // a member of a request
	ofAnswer    = "answer "    // a member of an answer
	ofParameter = "parameter " // a header or a part of the address
)

const (
	required = " required"
	optional = " optional"
)

// breaks lists what is no longer as it was. Whatever is only added breaks nothing, unless requests that were complete lack it.
func (was version1) breaks(now version1) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(was)) {
		value, ok := now[key]
		switch {
		case !ok:
			out = append(out, "removed: "+key)
		case value != was[key] && !laxer(key, was[key], value):
			out = append(out, fmt.Sprintf("changed: %s was%s, is%s", key, was[key], value))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if _, ok := was[key]; ok || !strings.HasSuffix(now[key], required) {
			continue
		}
		if (strings.HasPrefix(key, ofRequest) || strings.HasPrefix(key, ofParameter)) && was.has(ownerOf(key)) {
			out = append(out, "required at once: "+key)
		}
	}
	return out
}

// laxer reports whether a change asks for less of a request, or promises more of an answer.
func laxer(key, was, now string) bool {
	from, to := required, optional
	if strings.HasPrefix(key, ofAnswer) {
		from, to = to, from
	}
	before, ok := strings.CutSuffix(was, from)
	after, too := strings.CutSuffix(now, to)
	return ok && too && before == after
}

// ownerOf is the start of the entries about the same request as key: "request ExecuteRequest." or "parameter Execute ".
func ownerOf(key string) string {
	kind, rest, _ := strings.Cut(key, " ")
	end := strings.IndexAny(rest, ". ")
	return kind + " " + rest[:end+1]
}

// has reports whether there is an entry that begins so.
func (was version1) has(start string) bool {
	for key := range was {
		if strings.HasPrefix(key, start) {
			return true
		}
	}
	return false
}

const golden = "testdata/version1.txt"

const goldenHead = `# What version 1 of the plain API promises, one fact a line: docs/reference/compatibility.md has the rules.
# Additions are written by: go test ./internal/facade -run TestVersion1 -update
# It never removes or changes a line. Whoever breaks version 1 on purpose edits the line by hand, and says why in CHANGELOG.md.
`

func readVersion1(t *testing.T) version1 {
	t.Helper()
	raw, err := os.ReadFile(golden)
	if err != nil && !*update {
		t.Fatal(err)
	}
	v := version1{}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "#") {
			key, value, _ := strings.Cut(line, " =")
			v[key] = value
		}
	}
	return v
}

// TestVersion1 compares the API with what was promised.
func TestVersion1(t *testing.T) {
	was, now := readVersion1(t), version1Now(t)
	if broken := was.breaks(now); len(broken) > 0 {
		t.Fatalf("this breaks clients of version 1 (docs/reference/compatibility.md):\n%s", strings.Join(broken, "\n"))
	}
	if maps.Equal(was, now) {
		return
	}
	if !*update {
		var added []string
		for key, value := range now {
			if was[key] != value {
				added = append(added, key+" ="+value)
			}
		}
		slices.Sort(added)
		t.Fatalf("additions to version 1, to be recorded with -update:\n%s", strings.Join(added, "\n"))
	}
	var b strings.Builder
	b.WriteString(goldenHead)
	for _, key := range slices.Sorted(maps.Keys(now)) {
		fmt.Fprintf(&b, "%s =%s\n", key, now[key])
	}
	if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestVersion1SeesEdits: an edit that breaks a client is found, and one that does not is no break.
func TestVersion1SeesEdits(t *testing.T) {
	const message = "field sidecar.v1.ExecuteRequest."
	remove := func(keys ...string) func(version1) {
		return func(v version1) {
			for _, key := range keys {
				delete(v, key)
			}
		}
	}
	set := func(key, value string) func(version1) { return func(v version1) { v[key] = value } }
	edits := []struct {
		name string
		edit func(version1)
		want string // the start of what is found; "": nothing
	}{
		{"a field is removed", remove(message + "stats"), "removed: "},
		{"a field is renumbered", set(message+"mode", " 14 string"), "changed: "},
		{"a field changes its type", set(message+"timeout", " 7 google.protobuf.Duration"), "changed: "},
		{"a field changes its label", set(message+"mode", " 4 repeated string"), "changed: "},
		{"a field is renamed", func(v version1) {
			v[message+"query"] = v[message+"sql"]
			delete(v, message+"sql")
		}, "removed: "},
		{"a method is removed", remove("rpc sidecar.v1.Sidecar.Explain"), "removed: "},
		{"a method begins to stream",
			set("rpc sidecar.v1.Sidecar.Batch", " sidecar.v1.BatchRequest returns stream sidecar.v1.BatchResponse"),
			"changed: "},
		{"a route is removed", remove("route POST /v1/bulk"), "removed: "},
		{"a body is no longer taken", remove("body BulkUpsert application/x-ndjson"), "removed: "},
		{"a member of an answer is removed", remove("answer ExecuteResponse.truncated"), "removed: "},
		{"a member of an answer may be missing", set("answer ExecuteResponse.columns", " array of Column optional"), "changed: "},
		{"a member of a request becomes required", set("request ExecuteRequest.timeout", " Duration required"), "changed: "},
		{"a new member of a request is required", set("request ExecuteRequest.purpose", " string required"), "required at once: "},
		{"a new header is required", set("parameter Execute header X-Purpose", " string required"), "required at once: "},
		{"a header is removed", remove("parameter Execute header X-Ydb-Rows"), "removed: "},
		{"a header of answers is removed", remove("status KeyValue/Get 200 header ETag"), "removed: "},
		{"a default changes", set("form Mode default", " serializable_rw"), "changed: "},
		{"a word of a setting is removed", remove("form StatsMode word basic"), "removed: "},
		{"a code is removed", remove("code TX_LOST"), "removed: "},
		{"a code changes its status", set("code TX_LOST", " 409 Aborted"), "changed: "},
		{"an error loses a detail", remove("grpc detail google.rpc.ErrorInfo"), "removed: "},
		{"a header of requests counts no more", remove("honours gRPC x-ydb-priority"), "removed: "},
		{"a feature is removed", remove("feature kv"), "removed: "},

		{"a new field", set(message+"purpose", " 99 string"), ""},
		{"a new method", set("rpc sidecar.v1.Sidecar.Watch", " sidecar.v1.WatchRequest returns sidecar.v1.WatchResponse"), ""},
		{"a new optional member", set("request ExecuteRequest.purpose", " string optional"), ""},
		{"a new member of an answer", set("answer ExecuteResponse.purpose", " string required"), ""},
		{"a required member of a new request", set("request WatchRequest.path", " string required"), ""},
		{"a member of a request becomes optional", set("request ExecuteRequest.sql", " string optional"), ""},
		{"a member of an answer is always there", set("answer ExecuteResponse.stats", " Stats required"), ""},
		{"a new route", set("route GET /v1/watch", " Watch"), ""},
		{"a new code", set("code NOT_WATCHED", " 404 NotFound"), ""},
	}
	was := version1Now(t)
	for _, tt := range edits {
		t.Run(tt.name, func(t *testing.T) {
			now := maps.Clone(was)
			tt.edit(now)
			if maps.Equal(was, now) {
				t.Fatal("the edit changes nothing: what it names is not there")
			}
			switch broken := was.breaks(now); {
			case tt.want == "" && len(broken) > 0:
				t.Errorf("it is taken for a break: %q", broken)
			case tt.want != "" && (len(broken) != 1 || !strings.HasPrefix(broken[0], tt.want)):
				t.Errorf("found %q; want one that begins with %q", broken, tt.want)
			}
		})
	}
}
