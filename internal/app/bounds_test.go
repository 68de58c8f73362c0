package app

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// A limit of the page's section "Bounds": of what, where its number is, what happens beyond it, and what shows that. The number is
// that of a setting ("pool.max"), of a field of h2.Config ("h2.Streams"), or of a constant ("../virtual/identity.go MaxPools").
// A unit is B for bytes, ns for durations, or empty.
type limit struct{ what, where, unit, beyond, shown string }

// limits bound what callers and peers can make the sidecar keep or do.
var limits = []struct {
	title string
	rows  []limit
}{
	{"Connections", []limit{
		{"connections of apps on one listener", "connections.each", "",
			"the one that came first of those of which no request has come is closed for a new one; if there is " +
				"none the new one is closed; fewer where the memory limit has less than 64 KiB for each, or open files are scarce",
			"`ydb.sidecar.connections.refused`"},
		{"connections of apps on all listeners: twice as many as on one", "connections.each", "", "the same",
			"`ydb.sidecar.connections.refused`"},
		{"connections of operators on each listener of theirs", "../listen/bounds.go AdminConnections", "",
			"the one idle for longest is closed for a new one; if none is idle the new one is closed",
			"`ydb.sidecar.connections.refused`"},
		{"time for a handshake, the first SETTINGS, the rest of a header block", "h2.HandshakeTimeout", "ns",
			"the connection is closed", "`ydb.sidecar.forward.abuses`"},
		{"time for the headers of an HTTP/1 request; over HTTP/2 it is `http.idle_timeout`",
			"http.header_timeout", "ns", "the connection is closed", ""},
		{"headers of an HTTP request, or of a handshake of TLS, that have come and are not counted",
			"../listen/headers.go freeHead", "B",
			"further bytes count until the headers or the handshake are whole. A sixteenth of the memory limit is " +
				"for those of a listener; then connections are closed, first those that come slowly",
			""},
		{"time of an HTTP connection without a request", "http.idle_timeout", "ns", "the connection is closed", ""},
		{"silence of a gRPC client before it is pinged", "h2.ClientSilence", "ns",
			"without an answer in 10 s the connection is closed, its calls are cancelled",
			"`ydb.sidecar.forward.abuses`"},
		{"time of a connection to a node without a call", "h2.Idle", "ns", "the connection is closed", ""},
		{"further connections of a shard to a node that allows few streams", "../h2/driver/upstream.go mostMore", "",
			"calls wait", "`ydb.sidecar.forward.held`"},
	}},
	{"Frames and calls of gRPC", []limit{
		{"open streams of one connection", "h2.Streams", "", "REFUSED_STREAM", "`ydb.sidecar.forward.abuses`"},
		{"decoded headers of one call", "h2.HeaderBytes", "B", "the call is rejected: RESOURCE_EXHAUSTED", "`ydb.sidecar.forward.abuses`"},
		{
			"frames without content a second (PING, SETTINGS, PRIORITY, empty DATA), of one connection; 4 KiB of " +
				"headers that come out of the table of a header block are as much",
			"h2.Control", "", "GOAWAY ENHANCE_YOUR_CALM", "`ydb.sidecar.forward.abuses`",
		},
		{"places for streams that are looked at in a second because SETTINGS change their windows, of one connection",
			"../h2/conn.go walksPerSecond", "", "GOAWAY ENHANCE_YOUR_CALM", "`ydb.sidecar.forward.abuses`"},
		{"requests that are not gRPC, open on one connection", "../h2/connheaders.go mostPlain", "",
			"answered before they end; each ends after 10 s", ""},
		{"calls of clients that are gone, left in one shard", "../h2/connend.go mostLeftOver", "", "as many end as begin", ""},
		{"calls a second that are reset within 100 ms, of one connection", "h2.Resets", "", "GOAWAY ENHANCE_YOUR_CALM",
			"`ydb.sidecar.forward.abuses`"},
		{"streams a second that are reset at nodes for one connection, less its calls that end well", "h2.Resets", "",
			"new calls are rejected until that is made up for: RESOURCE_EXHAUSTED", "`ydb.sidecar.forward.abuses`"},
		{"calls that wait for a message, a session or a connection, in one shard", "h2.Held", "",
			"of the connection with most of them the newest ones end: RESOURCE_EXHAUSTED", "`ydb.sidecar.forward.held`"},
		{"time for which a call waits so", "h2.HoldTimeout", "ns", "UNAVAILABLE, or DEADLINE_EXCEEDED if its own deadline is shorter", ""},
		{"pause within a message that must be whole", "h2.GrowTimeout", "ns", "the call ends", "`ydb.sidecar.forward.abuses`"},
		{"bytes that a peer may send ahead on a stream, at first", "h2.Window", "B",
			"the peer waits; more while its reader keeps up, up to 4 MiB", ""},
		{"a message", "h2.Message", "B", "RESOURCE_EXHAUSTED", ""},
		{"inflated bytes of a compressed message in a shard's turn", "../wire/inflate.go mostInflated", "B",
			"inflated beside the data path, a few messages at a time, once the caller is known", ""},
		{"inflated bytes of all messages in turns within 20 ms, of which a compressed byte counts for 64 at least",
			"../wire/inflate.go mostAtOnce", "B", "the same", ""},
		{"messages of which 20 ms were inflated, and which wait for another turn while others wait",
			"../wire/inflate.go mostYielded", "", "a further one goes on to its end", ""},
		{"compressed bytes in a row that inflate to nothing, of a message inflated beside the data path",
			"../wire/inflate.go mostBarren", "B",
			"the call is rejected; in a topic stream of an SDK the message goes on as it came", ""},
		{"bytes held by calls that go on in one turn after they have waited", "../h2/forwarder.go perResume", "B",
			"the others go on in the next turns; 256 calls at most", ""},
		{"bytes that TLS writes on its own (answers to key updates) and the client does not take",
			"../h2/driver/sealer.go maxOwn", "B", "the connection is closed", ""},
	}},
	{"Memory", []limit{
		{"bytes that wait in the calls of one shard", "h2.Buffered", "B",
			"an eighth of the memory limit if that is less. From half on, streams whose reader has taken less than " +
				"16 KiB in 10 s end; beyond it calls of the connections that hold most, and of these first those " +
				"that lag; calls of at most 16 KiB of connections that hold less than 1/64 may have as much again",
			"`ydb.sidecar.forward.buffered`, `ydb.sidecar.forward.abuses`"},
		{"bytes to be written to one connection", "h2.Output", "B",
			"further ones wait in their calls; half of the row above for all connections of clients together, then " +
				"those that hold most are closed; an eighth for frames and headers of clients that are not whole, " +
				"then those with the oldest are closed",
			"`ydb.sidecar.forward.abuses`"},
		{"requests of the plain API, percent of the memory limit", "memory.requests", "",
			"the largest one of those that have been arriving for longest, and over a second, ends, else one of the " +
				"connection from which most are arriving, else the new one is rejected: `MEMORY_SHORT`. One app has " +
				"half of it; the last eighth of both is for requests that hold up to 64 KiB",
			"`ydb.sidecar.memory.requests`"},
		{"bytes a second that are read of bodies whose calls have ended", "../facade/httpapi/api.go discardRate", "B",
			"the rest is not read, and the connection is closed after a second", ""},
		{"free memory, percent of the limit", "memory.headroom", "",
			"large work is rejected (`MEMORY_SHORT`), streams are slowed",
			"`ydb.sidecar.memory.tight`, `ydb.sidecar.memory.refused`"},
		{"texts of prepared statements of SDKs", "../wire/prepared.go maxTexts", "B",
			"a 32nd of the memory limit if that is less. Beyond it any are forgotten: a call that names one is told " +
				"NOT_FOUND, and the SDK prepares it again",
			""},
		{"entries of each cache of the plain API (types of parameters, tables, plans)", "api.cache_size", "",
			"the oldest are forgotten; of plans there are at most 1000", ""},
		{"bytes of these caches together", "../facade/core/caches.go maxCaches", "B",
			"a 32nd of the memory limit if that is less. Types and tables have 3/8 each, plans a quarter; beyond it " +
				"the oldest are forgotten, and an entry of more than a quarter of its cache is not kept",
			""},
	}},
	{"Calls of the plain API", []limit{
		{"requests open on one HTTP/2 connection of the HTTP API", "../listen/serve.go HTTPStreams", "",
			"the client waits, or opens another connection", ""},
		{"memory for each of them, of half of the memory limit, which bounds the HTTP/2 connections of one listener",
			"../listen/bounds.go perOpen", "B",
			"40 connections with 256 MiB, 655 without a limit, 16 at least. For a further one that closes of which " +
				"no request has come whole, else the one that has had none under way for longest, and for a second " +
				"at least; if there is none within two seconds the new one is closed",
			"`ydb.sidecar.connections.refused`"},
		{"memory of an open call over HTTP beside its headers and body", "../facade/httpapi/api.go openCall", "B",
			"all counts against `memory.requests`", "`ydb.sidecar.memory.requests`"},
		{"calls open at a time", "api.max_open", "", "`TOO_MANY_OPEN`", "`ydb.sidecar.api.refused`"},
		{"memory for each stream over gRPC, of half of the memory limit", "limits.go perStream", "B",
			"where there is less, one of the connection that has most of them ends; the new one is RESOURCE_EXHAUSTED if that is its own",
			""},
		{"a request", "api.max_body", "B", "`LIMIT_EXCEEDED`", ""},
		{
			"size of a request beyond which decoding and typing it waits for a place: half as many as there are " +
				"processors, which inflations off the data path share. Places pause for half of the time that they " +
				"work, beyond 10 ms, while smaller requests go by",
			"../lane/lane.go Large", "B", "it waits for up to `api.timeout`: `TOO_MANY_OPEN`", "",
		},
		{"headers or metadata of a request", "api.max_headers", "B", "431, RESOURCE_EXHAUSTED", ""},
		{"nesting of values", "api.max_depth", "", "`LIMIT_EXCEEDED`", ""},
		{"parameters of a statement", "api.max_params", "", "`LIMIT_EXCEEDED`", ""},
		{"a message of a stream of requests (Ingest over gRPC)", "../wire/inside.go mostPart", "B",
			"the call ends with RESOURCE_EXHAUSTED, a compressed one with INVALID_ARGUMENT", ""},
		{"bytes of bodies over HTTP a second, for each processor, besides the first 64 KiB of each",
			"../facade/httpapi/body.go bodyRate", "B", "the rest of the body waits", ""},
		{"members of an object of JSON", "../facade/httpapi/jsonshape.go mostMembers", "", "`LIMIT_EXCEEDED`", ""},
		{"values within one column of a row of bulk or ingest", "../yql/row.go mostInCell", "", "`BAD_REQUEST`", ""},
		{
			"types that a statement declares, those within others included; so for all types that a request names " +
				"for a statement, which count against `memory.requests`",
			"../yql/typeparse.go maxTypes", "", "`BAD_REQUEST`; `LIMIT_EXCEEDED` for those that a request names", "",
		},
		{"statements of a list", "api.max_statements", "", "`LIMIT_EXCEEDED`", ""},
		{"statements of a Batch at a time", "api.batch_parallel", "", "the others wait", ""},
		{"rows of an answer that is not streamed", "api.max_rows", "", "cut off, with `truncated`", ""},
		{"bytes of such an answer", "api.max_bytes", "B", "cut off, with `truncated`", ""},
		{"deadline", "api.max_timeout", "ns", "lowered to this", ""},
		{"open transactions", "tx.limit", "", "`TOO_MANY_OPEN`", "`ydb.sidecar.transactions`"},
		{"time of a transaction without a call", "tx.idle", "ns", "rolled back: `TX_LOST`", "`ydb.sidecar.transactions`"},
		{"length of a transaction", "tx.max", "ns", "rolled back: `TX_LOST`", "`ydb.sidecar.transactions`"},
		{"a value of a key-value table", "kv.max_value", "B", "`LIMIT_EXCEEDED`", ""},
		{"streams of rows", "ingest.max_streams", "", "`TOO_MANY_OPEN`", "`ydb.sidecar.ingest.streams`"},
		{"one row of a stream", "ingest.max_row", "B", "the row is refused", "`ydb.sidecar.ingest.rows`"},
		{"batches of a stream under way", "ingest.window", "", "the stream is not read", "`ydb.sidecar.ingest.flights`"},
	}},
	{"Sessions and the queue", []limit{
		{"sessions of a pool on the nodes", "pool.max", "", "callers wait in the queue", "`db.client.connection.pending_requests`"},
		{"sessions of all pools together", "wire.max_server_sessions", "",
			"callers wait; pools with idle sessions give some up", "`db.client.connection.pending_requests`"},
		{"callers in the queue of a pool", "pool.queue", "", "`QUEUE_FULL`", "`ydb.sidecar.pool.refused`"},
		{"time in the queue", "pool.queue_age", "ns", "`SHED_DELAY`", "`ydb.sidecar.pool.shed`"},
		{"sessions being opened on one node", "pool.create_burst", "", "further ones wait; four times as many in all",
			"`ydb.sidecar.pool.paced`"},
		{"calls open on one node", "routing.max_calls_per_node", "", "further ones go to other nodes, or are rejected",
			"`ydb.sidecar.node.calls`"},
		{"retries of all calls together, per call", "retry.share", "",
			"the failure is told; and `retry.per_second` on top of that", "`ydb.sidecar.retry.decisions`"},
		{"sessions of SDKs", "wire.max_virtual_sessions", "",
			"the oldest that was never used ends, if it is 0.1 s old; else one of the connection that has most; " +
				"else one without a stream that was not used for a minute; else the new one is OVERLOADED",
			"`ydb.sidecar.virtual.sessions`"},
		{"names of apps told apart", "apps.max", "", "the app is `other`", "`ydb.sidecar.app.served`"},
	}},
	{"Identities", identityLimits},
	{"Nodes and what is remembered", []limit{
		{"nodes of a list that is discovered", "../cluster/cluster.go MaxNodes", "", "each sidecar uses some at random",
			"`ydb.sidecar.discovery.left_out`"},
		{"probes under way", "../pessimize/probe.go maxProbes", "",
			"half for lost nodes, half for others; suspects and returning nodes first", "`ydb.sidecar.health.probes`"},
		{"nodes with histograms of their own", "../hop/done.go maxSeries", "",
			"counted without `ydb.node.id`, first those without a call for 3 minutes; a quarter is for calls that failed",
			""},
		{"nodes in the history of the page", "../history/history.go maxNodes", "", "those with bad signs are kept", ""},
		{"events", "../admin/events.go maxEvents", "", "the oldest are forgotten", ""},
		{"streams of events", "../admin/events.go maxStreams", "", "503", ""},
		{"lines of the access log a second", "log.access_rate", "", "counted, not written", "`ydb.sidecar.log.suppressed`"},
		{"lines of the log a second, of one HTTP server, about connections that break the rules of HTTP/2 or TLS",
			"../audit/lines.go Rate", "", "counted in the next line (`errors_without_a_line`)", ""},
		{"streams of xDS clients", "xds.max_streams", "", "RESOURCE_EXHAUSTED", "`ydb.sidecar.xds.refused`"},
		{"a message of an xDS client", "../xds/server.go maxRequest", "B", "the stream ends", ""},
		{"a file with a token", "../config/secret.go MaxToken", "B", "it is not read", ""},
		{"a file with the tokens of apps", "../config/secret.go MaxTokens", "B", "it is not read", ""},
		{"an answer of a provider of tokens", "../upstream/providers.go maxTokenReply", "B", "cut off: it is no token", ""},
	}},
}

// boundsReference is the section "Bounds".
func boundsReference(t *testing.T, instruments map[string]bool) string {
	t.Helper()
	c := Default()
	settings, err := config.Bind(&c) // the retired ones, too: their values still bound what they did
	if err != nil {
		t.Fatal(err)
	}
	defaults := map[string]string{}
	for _, s := range settings.List() {
		defaults[s.Name] = s.Default
	}
	codes := regexp.MustCompile("`([A-Z_]+)`")
	var b strings.Builder
	for _, group := range limits {
		fmt.Fprintf(&b, "\n### %s\n\n| of what | bound | beyond it | shown by |\n|---|---|---|---|\n", group.title)
		for _, l := range group.rows {
			if l.what == "" || l.beyond == "" {
				t.Errorf("a bound of %q lacks a text: %+v", group.title, l)
			}
			for _, m := range codes.FindAllStringSubmatch(l.beyond, -1) {
				if !slices.ContainsFunc(facade.Codes(), func(c facade.Code) bool { return c.Name == m[1] }) {
					t.Errorf("bounds_test.go has %s, which is no error code", m[1])
				}
			}
			for name := range strings.SplitSeq(l.shown, ", ") {
				if name = strings.Trim(name, "`"); name != "" && !instruments[name] {
					t.Errorf("bounds_test.go has %s, which nobody measures", name)
				}
			}
			bound := ""
			switch value, ok := defaults[l.where]; {
			case !ok:
				bound = fixedBound(t, l)
			case retired[l.where] != "":
				bound = value
			default:
				bound = "`" + l.where + "`: " + value
			}
			row(&b, l.what, bound, l.beyond, l.shown)
		}
	}
	return b.String()
}

// fixedBound is a number that no setting has.
func fixedBound(t *testing.T, l limit) string {
	t.Helper()
	if name, ok := strings.CutPrefix(l.where, "h2."); ok {
		field := reflect.ValueOf(h2.Default()).FieldByName(name)
		if !field.IsValid() {
			t.Fatalf("h2.Config has no field %s", name)
		}
		if field.CanUint() {
			return inUnit(int64(field.Uint()), l.unit)
		}
		return inUnit(field.Int(), l.unit)
	}
	path, name, _ := strings.Cut(l.where, " ")
	return inUnit(constantOf(t, path, name), l.unit)
}

// constantOf reads a constant of another package, which may not be exported.
func constantOf(t *testing.T, path, name string) int64 {
	t.Helper()
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, code, 0)
	if err != nil {
		t.Fatal(err)
	}
	var value int64
	found := false
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, ident := range spec.Names {
			if ident.Name != name || i >= len(spec.Values) {
				continue
			}
			text := string(code[files.Position(spec.Values[i].Pos()).Offset:files.Position(spec.Values[i].End()).Offset])
			text = strings.NewReplacer("time.Second", "1000000000", "time.Minute", "60000000000").Replace(text)
			got, err := types.Eval(token.NewFileSet(), nil, token.NoPos, text)
			if err != nil {
				t.Fatalf("%s of %s: %v", name, path, err)
			}
			value, found = constant.Int64Val(constant.ToInt(got.Value))
		}
		return true
	})
	if !found {
		t.Fatalf("%s has no constant %s", path, name)
	}
	return value
}

func inUnit(n int64, unit string) string {
	switch unit {
	case "ns":
		return strings.NewReplacer("m0s", "m").Replace(time.Duration(n).String())
	case "B":
		switch {
		case n >= 1<<20 && n%(1<<20) == 0:
			return fmt.Sprintf("%d MiB", n>>20)
		case n >= 1e6 && n%1e6 == 0:
			return fmt.Sprintf("%d MB", n/1e6)
		case n >= 1<<10 && n%(1<<10) == 0:
			return fmt.Sprintf("%d KiB", n>>10)
		}
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprint(n)
}
