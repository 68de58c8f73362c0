package contract

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

// The tables of the cases of the key-value API. They have names of their own
// and are made by the cases.
const (
	kvPlain   = "contract_kv_plain"   // key Uint64, value String, no version
	kvVersion = "contract_kv_version" // key Utf8, value Utf8, version
	kvPair    = "contract_kv_pair"    // two columns, value Json
)

// keyTypes are the types of keys with two ids each, and texts that are none.
var keyTypes = []struct {
	typ, id, other string
	bad            []string // over HTTP, whose text is strict
}{
	{"Bool", "true", "false", []string{"TRUE", "1", ""}},
	{"Int8", "-128", "127", []string{"128", "+1", "01", "1.0", "1e1", " 1", "-0", ""}},
	{"Int16", "-32768", "32767", []string{"32768"}},
	{"Int32", "-2147483648", "0", []string{"2147483648"}},
	{"Int64", "-9223372036854775808", "9223372036854775807", []string{"9223372036854775808"}},
	{"Uint8", "255", "0", []string{"256", "-1"}},
	{"Uint16", "65535", "0", []string{"65536"}},
	{"Uint32", "4294967295", "0", []string{"4294967296"}},
	{"Uint64", "18446744073709551615", "0", []string{"18446744073709551616", "0x1", "1_0"}},
	{"Date", "2024-02-29", "1970-01-01", []string{"2023-02-29", "19782"}},
	{"Datetime", "2024-02-29T12:30:45Z", "1970-01-01T00:00:00Z", []string{"2024-02-29", "1709209845"}},
	{"Timestamp", "2024-02-29T12:30:45.123456Z", "1970-01-01T00:00:00Z", []string{"2024-02-29T12:30:45.1234567Z"}},
	{"Interval", "-PT1.5S", "PT0S", []string{"1s", "P1M"}},
	{"Utf8", "a b&c=d/'`\"\\\n\u00fc", "", []string{"\xff"}},
	{"Uuid", "5ca32c22-841b-11e8-adc0-fa7ae01bbebc", "00000000-0000-0000-0000-000000000000",
		[]string{"5ca32c22841b11e8adc0fa7ae01bbebc", "{}"}},
	{"Decimal(22,9)", "-12345.000000001", "0", []string{"1e3", "+1", ".5", "0.0000000001"}},
	{"DyNumber", "123.5", "-1e5", []string{"x", ""}},
}

func keyTable(typ string) string {
	return "contract_kv_" + strings.ToLower(strings.TrimRight(strings.NewReplacer("(", "_", ",", "_").Replace(typ), ")"))
}

// KVTables is what kv.tables has to be for the cases of the key-value API, with tables in a
// directory of the database; "": in its root.
func KVTables(directory string) string {
	at := func(name, table string) string { return name + "=" + path.Join(directory, table) }
	tables := []string{
		at(kvPlain, kvPlain) + " key=id:Uint64 value=v:String max_value=64KiB",
		at("contract_kv_read", kvPlain) + " key=id:Uint64 value=v:String media=image/png read_only",
		at("contract_kv_wrong", kvPlain) + " key=id:Int64 value=v:String",
		at("contract_kv_none", kvPlain+"_none") + " key=id:Uint64 value=v:String",
		at(kvVersion, kvVersion) + " key=id:Utf8 value=v:Utf8 version=rev:Uint64",
		at(kvPair, kvPair) + " key=a:Uuid key=b:Timestamp value=doc:Json version=rev:Int64",
		at(keyTable("String"), keyTable("String")) + " key=id:String value=v:String",
	}
	for _, k := range keyTypes {
		tables = append(tables, fmt.Sprintf("%s key=id:%s value=v:String", at(keyTable(k.typ), keyTable(k.typ)), k.typ))
	}
	return strings.Join(tables, ",")
}

// kvCases is the contract of the key-value API; it needs KVTables.
var kvCases = []contractCase{
	{"kv_a_value_comes_back", kvValue},
	{"kv_conditions_without_versions", kvUnversioned},
	{"kv_versions", kvVersions},
	{"kv_one_of_many_conditional_puts_wins", kvRace},
	{"kv_every_key_type", kvEveryKey},
	{"kv_keys_of_bytes", kvBytes},
	{"kv_keys_of_two_columns", kvTwoColumns},
	{"kv_batch_get", kvBatch},
	{"kv_limits", kvLimits},
	{"kv_statuses_are_as_documented", kvStatuses},
	{"kv_fields_that_there_are_not", kvStrangeFields},
	{"kv_tables_that_are_not_open", kvClosed},
	{"kv_nothing_gets_into_a_statement", kvInjection},
}

// open makes a table for the length of a case.
func (t *test) open(name, columns string) {
	t.Helper()
	name = t.at(name)
	t.must("CREATE TABLE IF NOT EXISTS "+name+" ("+columns+")", nil)
	t.dropLater(name)
}

func (t *test) openPlain() { t.open(kvPlain, "id Uint64 NOT NULL, v String, PRIMARY KEY (id)") }

// put writes a value that has to be taken.
func (t *test) put(c KV, created bool) *KVReply {
	t.Helper()
	r, err := t.Put(t.ctx, c)
	if err != nil {
		t.Fatalf("put %v: %v", c.ID, err)
	}
	if r.Created != created {
		t.Errorf("put %v: created %v; want %v", c.ID, r.Created, created)
	}
	if !t.driven() && !strings.Contains(r.Timing, "hop;dur=") {
		t.Errorf("put %v: Server-Timing %q", c.ID, r.Timing)
	}
	return r
}

// got reads a value that has to be there.
func (t *test) got(c KV) *KVReply {
	t.Helper()
	r, err := t.Get(t.ctx, c)
	if err != nil {
		t.Fatalf("get %v: %v", c.ID, err)
	}
	return r
}

func (t *test) missing(c KV) {
	t.Helper()
	_, err := t.Get(t.ctx, c)
	if e := t.refused(err, "KEY_NOT_FOUND", false, false); e.Status != 404 {
		t.Errorf("status %d; want 404", e.Status)
	}
}

func kvValue(t *test) {
	t.openPlain()
	c := KV{Table: kvPlain, ID: []any{"18446744073709551615"}, Value: []byte("a\x00\xff")}
	t.missing(c)
	t.put(c, false) // nobody looked
	r := t.got(c)
	if !bytes.Equal(r.Value, c.Value) || r.Null || r.Version != "" || r.ContentType != "application/octet-stream" ||
		!t.driven() && !strings.Contains(r.Timing, "hop;dur=") {
		t.Errorf("got %+v", r)
	}
	if r := t.got(KV{Table: "contract_kv_read", ID: c.ID}); !bytes.Equal(r.Value, c.Value) || r.ContentType != "image/png" {
		t.Errorf("by its other name: %+v", r)
	}
	c.Value = nil
	t.put(c, false)
	if r := t.got(c); len(r.Value) != 0 || r.Null {
		t.Errorf("no bytes came back as %+v", r)
	}
	t.must("UPSERT INTO "+t.at(kvPlain)+" (id, v) VALUES (7, NULL)", nil)
	if r := t.got(KV{Table: kvPlain, ID: []any{"7"}}); r.Value != nil || !r.Null {
		t.Errorf("NULL came back as %+v", r)
	}
	for range 2 { // the second time there is nothing to delete
		if err := t.Delete(t.ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	t.missing(c)
}

func kvUnversioned(t *test) {
	t.openPlain()
	c := KV{Table: kvPlain, ID: []any{"1"}, Value: []byte("one")}
	failed := func(what string, c KV) {
		t.Helper()
		_, err := t.Put(t.ctx, c)
		if e := t.refused(err, "CONDITION_FAILED", false, false); e.Status != 412 {
			t.Errorf("%s: status %d; want 412", what, e.Status)
		}
	}
	with := func(match, none []string) KV { return KV{c.Table, c.ID, c.Value, match, none} }
	failed("a row that is not there", with([]string{"*"}, nil))
	t.put(with(nil, []string{"5"}), false) // no row has the version 5
	if err := t.Delete(t.ctx, c); err != nil {
		t.Fatal(err)
	}
	t.put(with(nil, []string{"*"}), true)
	failed("a row that is there", with(nil, []string{"*"}))
	t.put(with([]string{"*"}, nil), false)
	failed("a version", with([]string{"5"}, nil))
	failed("both", with([]string{"*"}, []string{"*"}))
	if r, err := t.Get(t.ctx, with(nil, []string{"*"})); err != nil || !r.NotModified {
		t.Errorf("get unless it is there: %+v, %v", r, err)
	}
	if r := t.got(with([]string{"*"}, nil)); r.NotModified || string(r.Value) != "one" {
		t.Errorf("get if it is there: %+v", r)
	}
	t.refused(t.Delete(t.ctx, with(nil, []string{"*"})), "CONDITION_FAILED", false, false)
	if err := t.Delete(t.ctx, with([]string{"*"}, nil)); err != nil {
		t.Fatal(err)
	}
	t.refused(t.Delete(t.ctx, with([]string{"*"}, nil)), "CONDITION_FAILED", false, false)
	_, err := t.Get(t.ctx, with([]string{"*"}, nil))
	t.refused(err, "CONDITION_FAILED", false, false)
}

func number64(t *test, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("version %q: %v", s, err)
	}
	return n
}

func kvVersions(t *test) {
	t.open(kvVersion, "id Utf8 NOT NULL, v Utf8, rev Uint64, PRIMARY KEY (id)")
	c := KV{Table: kvVersion, ID: []any{"k"}, Value: []byte("\u00fc")}
	with := func(match, none []string) KV { return KV{c.Table, c.ID, c.Value, match, none} }
	first := t.put(c, true).Version
	r := t.got(c)
	if r.Version != first || string(r.Value) != "\u00fc" || !strings.HasPrefix(r.ContentType, "text/plain") {
		t.Errorf("got %+v; want version %s", r, first)
	}
	second := t.put(c, false).Version
	if number64(t, second) != number64(t, first)+1 {
		t.Errorf("version %s follows %s", second, first)
	}
	_, err := t.Put(t.ctx, with([]string{first}, nil))
	t.refused(err, "CONDITION_FAILED", false, false)
	_, err = t.Put(t.ctx, with(nil, []string{first, second}))
	t.refused(err, "CONDITION_FAILED", false, false)
	_, err = t.Put(t.ctx, with(nil, []string{"*"}))
	t.refused(err, "CONDITION_FAILED", false, false)
	third := t.put(with([]string{first, second}, nil), false).Version
	if r, err := t.Get(t.ctx, with(nil, []string{third})); err != nil || !r.NotModified || r.Version != third || r.Value != nil {
		t.Errorf("unless version %s: %+v, %v", third, r, err)
	}
	if r := t.got(with(nil, []string{second})); r.NotModified || r.Version != third {
		t.Errorf("unless version %s: %+v", second, r)
	}
	_, err = t.Get(t.ctx, with([]string{second}, nil))
	t.refused(err, "CONDITION_FAILED", false, false)
	t.refused(t.Delete(t.ctx, with([]string{second}, nil)), "CONDITION_FAILED", false, false)
	if err := t.Delete(t.ctx, with([]string{third}, nil)); err != nil {
		t.Fatal(err)
	}
	t.missing(c)
	again := t.put(with(nil, []string{"*"}), true).Version
	if number64(t, again) <= number64(t, third) {
		t.Errorf("the row was made again with version %s; it had %s", again, third)
	}
	// A row that somebody else wrote.
	t.must("UPSERT INTO "+t.at(kvVersion)+" (id, v) VALUES ('other'u, 'x'u)", nil)
	other := KV{Table: kvVersion, ID: []any{"other"}, Value: []byte("y")}
	if r := t.got(other); r.Version != "" {
		t.Errorf("a row without a version has %q", r.Version)
	}
	if r := t.put(other, false); r.Version == "" {
		t.Error("a put gave no version")
	}
	t.must("UPSERT INTO "+t.at(kvVersion)+" (id, rev) VALUES ('other'u, 18446744073709551615ul)", nil)
	_, err = t.Put(t.ctx, other)
	t.refused(err, "BAD_REQUEST", false, false)
	c.Value = []byte("\xff")
	_, err = t.Put(t.ctx, c)
	t.refused(err, "BAD_REQUEST", false, false)
}

// kvRace: of several writers that have seen one version, one wins.
func kvRace(t *test) {
	t.open(kvVersion, "id Utf8 NOT NULL, v Utf8, rev Uint64, PRIMARY KEY (id)")
	c := KV{Table: kvVersion, ID: []any{"race"}, Value: []byte("0")}
	for round := range 3 {
		if round > 0 {
			c.Match = []string{t.got(KV{Table: c.Table, ID: c.ID}).Version}
		} else {
			c.NoneMatch = []string{"*"}
		}
		var mu sync.Mutex
		var won []string
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				one := c
				one.Value = []byte(strconv.Itoa(round*10 + i))
				r, err := t.Put(t.ctx, one)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, r.Version+" "+string(one.Value))
				} else if e, ok := err.(*Error); !ok || e.Code != "CONDITION_FAILED" && e.Code != "YDB_ABORTED" {
					t.Errorf("a loser was told %v", err)
				}
			})
		}
		all.Wait()
		r := t.got(KV{Table: c.Table, ID: c.ID})
		if len(won) != 1 || won[0] != r.Version+" "+string(r.Value) {
			t.Errorf("round %d: %q won, and the row is %s %s", round, won, r.Version, r.Value)
		}
		c.NoneMatch = nil
	}
}

func kvEveryKey(t *test) {
	for _, k := range keyTypes {
		table := keyTable(k.typ)
		t.open(table, "id "+k.typ+" NOT NULL, v String, PRIMARY KEY (id)")
		for _, id := range []string{k.id, k.other} {
			t.put(KV{Table: table, ID: []any{id}, Value: []byte(id)}, false)
		}
		for _, id := range []string{k.id, k.other} {
			if r := t.got(KV{Table: table, ID: []any{id}}); string(r.Value) != id {
				t.Errorf("%s %q: got %q", k.typ, id, r.Value)
			}
		}
		items, missing, err := t.BatchGet(t.ctx, table, [][]any{{k.other}, {k.id}, {k.other}}, false)
		if err != nil || len(missing) > 0 || len(items) != 3 {
			t.Errorf("%s: batch %v, missing %v, %v", k.typ, items, missing, err)
			continue
		}
		for i, want := range []string{k.other, k.id, k.other} {
			if string(items[i].Value) != want {
				t.Errorf("%s: item %d is %q; want %q", k.typ, i, items[i].Value, want)
			}
		}
		if err := t.Delete(t.ctx, KV{Table: table, ID: []any{k.id}}); err != nil {
			t.Errorf("%s: %v", k.typ, err)
		}
		t.missing(KV{Table: table, ID: []any{k.id}})
		if t.Client.Name() != "http" {
			continue
		}
		for _, bad := range k.bad {
			_, err := t.Get(t.ctx, KV{Table: table, ID: []any{bad}})
			t.refused(err, "BAD_REQUEST", false, false)
		}
	}
	for _, id := range [][]any{nil, {"1", "2"}} {
		_, err := t.Get(t.ctx, KV{Table: keyTable("Uint64"), ID: id})
		t.refused(err, "BAD_REQUEST", false, false)
	}
}

func kvBytes(t *test) {
	table := keyTable("String")
	t.open(table, "id String NOT NULL, v String, PRIMARY KEY (id)")
	var all []byte
	for c := range 256 {
		all = append(all, byte(c))
	}
	for _, id := range [][]byte{all, {}, []byte("a+b c%20")} {
		t.put(KV{Table: table, ID: []any{id}, Value: id}, false)
		if r := t.got(KV{Table: table, ID: []any{id}}); !bytes.Equal(r.Value, id) {
			t.Errorf("%q: got %q", id, r.Value)
		}
	}
	items, missing, err := t.BatchGet(t.ctx, table, [][]any{{all}, {[]byte("\xff")}}, false)
	if err != nil || len(items) != 1 || !bytes.Equal(items[0].Value, all) || !slices.Equal(missing, []any{"/w=="}) {
		t.Errorf("batch: %v, missing %v, %v", items, missing, err)
	}
}

func kvTwoColumns(t *test) {
	t.open(kvPair, "a Uuid NOT NULL, b Timestamp NOT NULL, doc Json, rev Int64, PRIMARY KEY (a, b)")
	const u, v = "5ca32c22-841b-11e8-adc0-fa7ae01bbebc", "5ca32c22-841b-11e8-adc0-fa7ae01bbebd"
	id := func(a, b string) []any { return []any{a, b} }
	first, second := id(u, "2024-02-29T12:30:45Z"), id(v, "2024-02-29T12:30:45Z")
	t.put(KV{Table: kvPair, ID: first, Value: []byte(`{"n":1}`)}, true)
	made := t.put(KV{Table: kvPair, ID: second, Value: []byte(`[2]`)}, true)
	r := t.got(KV{Table: kvPair, ID: second})
	if string(r.Value) != "[2]" || r.ContentType != "application/json" || r.Version != made.Version {
		t.Errorf("got %+v", r)
	}
	t.missing(KV{Table: kvPair, ID: id(u, "2024-02-29T12:30:46Z")})
	items, missing, err := t.BatchGet(t.ctx, kvPair, [][]any{second, id(v, "1970-01-01T00:00:00Z"), first}, true)
	if err != nil || len(items) != 2 || string(items[0].Value) != "[2]" || string(items[1].Value) != `{"n":1}` ||
		items[0].Version != made.Version {
		t.Errorf("batch: %v, %v", items, err)
	}
	if diff := cmp.Diff([]any{id(v, "1970-01-01T00:00:00Z")}, missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	for _, bad := range [][]any{{u}, {u, "2024-02-29T12:30:45Z", "3"}, {"2024-02-29T12:30:45Z", u}} {
		_, err := t.Get(t.ctx, KV{Table: kvPair, ID: bad})
		t.refused(err, "BAD_REQUEST", false, false)
	}
	_, err = t.Put(t.ctx, KV{Table: kvPair, ID: first, Value: []byte("{")})
	t.refused(err, "BAD_REQUEST", false, false)
}

func kvBatch(t *test) {
	t.openPlain()
	for _, id := range []string{"1", "2", "3"} {
		t.put(KV{Table: kvPlain, ID: []any{id}, Value: []byte("v" + id)}, false)
	}
	t.must("UPSERT INTO "+t.at(kvPlain)+" (id, v) VALUES (4, NULL)", nil)
	items, missing, err := t.BatchGet(t.ctx, kvPlain, [][]any{{"3"}, {"9"}, {"1"}, {"3"}, {"4"}, {"8"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []KVItem{{ID: "3", Value: []byte("v3")}, {ID: "1", Value: []byte("v1")}, {ID: "3", Value: []byte("v3")}, {ID: "4", Null: true}}
	if diff := cmp.Diff(want, items); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	if !slices.Equal(missing, []any{"9", "8"}) {
		t.Errorf("missing %v; want 9 and 8", missing)
	}
	many := make([][]any, 101)
	for i := range many {
		many[i] = []any{strconv.Itoa(i)}
	}
	_, _, err = t.BatchGet(t.ctx, kvPlain, many, false)
	t.refused(err, "LIMIT_EXCEEDED", false, false)
	for _, ids := range [][][]any{nil, {{"x"}}, {{"1", "2"}}} {
		_, _, err = t.BatchGet(t.ctx, kvPlain, ids, false)
		t.refused(err, "BAD_REQUEST", false, false)
	}
}

func kvLimits(t *test) {
	t.openPlain()
	c := KV{Table: kvPlain, ID: []any{"1"}, Value: make([]byte, 64<<10)}
	t.put(c, false)
	c.Value = make([]byte, 64<<10+1)
	_, err := t.Put(t.ctx, c)
	if e := t.refused(err, "LIMIT_EXCEEDED", false, false); e.Status != 413 || !strings.Contains(e.Message, "max_value") {
		t.Errorf("%v; want 413 and the setting", e)
	}
	table := keyTable("String")
	t.open(table, "id String NOT NULL, v String, PRIMARY KEY (id)")
	_, err = t.Get(t.ctx, KV{Table: table, ID: []any{bytes.Repeat([]byte("k"), 1<<10+1)}})
	e := t.refused(err, "KEY_TOO_LARGE", false, false)
	if t.status(e, 400, codes.InvalidArgument); !strings.Contains(e.Message, "kv.max_id") {
		t.Errorf("%v; want the setting", e)
	}
}

func kvClosed(t *test) {
	t.openPlain()
	one := []any{"1"}
	for _, name := range []string{"none", "contract_kv_plai", "CONTRACT_KV_PLAIN", kvPlain + "` --",
		kvPlain + "; DROP TABLE x", "../" + kvPlain, "/local/" + kvPlain, "`" + kvPlain + "`", "\xff", kvPlain + "\x00"} {
		if t.Client.Name() == "grpc" && name == "\xff" {
			continue // no text of protobuf
		}
		_, err := t.Get(t.ctx, KV{Table: name, ID: one})
		t.refused(err, "TABLE_NOT_OPEN", false, false)
	}
	_, err := t.Put(t.ctx, KV{Table: "contract_kv_read", ID: one})
	e := t.refused(err, "TABLE_READ_ONLY", false, false)
	t.refused(t.Delete(t.ctx, KV{Table: "contract_kv_read", ID: one}), "TABLE_READ_ONLY", false, false)
	t.status(e, 405, codes.PermissionDenied)
	for _, name := range []string{"contract_kv_wrong", "contract_kv_none"} {
		for _, err := range []error{
			func() error { _, err := t.Get(t.ctx, KV{Table: name, ID: one}); return err }(),
			func() error { _, err := t.Put(t.ctx, KV{Table: name, ID: one}); return err }(),
			t.Delete(t.ctx, KV{Table: name, ID: one}),
			func() error { _, _, err := t.BatchGet(t.ctx, name, [][]any{one}, false); return err }(),
		} {
			t.status(t.refused(err, "TABLE_MISMATCH", false, false), 502, codes.FailedPrecondition)
		}
	}
}

func kvInjection(t *test) {
	table := keyTable("Utf8")
	t.open(table, "id Utf8 NOT NULL, v String, PRIMARY KEY (id)")
	var ids [][]any
	for _, text := range []string{
		"'; DROP TABLE " + table + "; --", "\"; DELETE FROM " + table + "; --", "`", "$k0", "' OR '1' = '1",
		"\\'; SELECT 1; --", "*/ DELETE FROM " + table + " /*", "@@", "NULL",
	} {
		t.put(KV{Table: table, ID: []any{text}, Value: []byte(text)}, false)
		ids = append(ids, []any{text})
	}
	items, missing, err := t.BatchGet(t.ctx, table, ids, false)
	if err != nil || len(missing) > 0 {
		t.Fatalf("missing %v, %v", missing, err)
	}
	for i, item := range items {
		if string(item.Value) != ids[i][0] {
			t.Errorf("%q has the value %q", ids[i][0], item.Value)
		}
	}
	if err := t.Delete(t.ctx, KV{Table: table, ID: []any{"' OR '1' = '1"}}); err != nil {
		t.Fatal(err)
	}
	t.rows("SELECT COUNT(*) FROM "+t.at(table), []any{strconv.Itoa(len(ids) - 1)})
}
