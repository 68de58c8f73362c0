package kv

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// entryOf reads an entry of kv.tables.
func entryOf(t testing.TB, text string) Entry {
	t.Helper()
	var table Entry
	if err := table.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return table
}

const (
	onePlain     = "plain=t key=id:Uint64 value=v:String"
	oneVersioned = "versions=t key=id:Uint64 value=v:String version=rev:Uint64"
)

// description is what the database says of a table with the columns id, v and rev.
func description(t testing.TB) *Ydb_Table.DescribeTableResult {
	d := &Ydb_Table.DescribeTableResult{PrimaryKey: []string{"id"}}
	for _, c := range [][2]string{{"id", "Uint64"}, {"v", "Optional<String>"}, {"rev", "Optional<Uint64>"}} {
		typ, err := yql.ParseType(c[1])
		if err != nil {
			t.Fatal(err)
		}
		d.Columns = append(d.Columns, &Ydb_Table.ColumnMeta{Name: c[0], Type: typ})
	}
	return d
}

func TestKVTableText(t *testing.T) {
	for _, text := range []string{
		onePlain, oneVersioned,
		"a.b-c_1=/local/x.y/z-1 key=a:Uuid key=b:Decimal(22,9) value=v:Json version=r:Int64 media=text/html max_value=65536 read_only",
	} {
		back, err := entryOf(t, text).MarshalText()
		if err != nil || string(back) != text {
			t.Errorf("%q came back as %q, %v", text, back, err)
		}
	}
	for _, text := range []string{
		"", " ", "t", "=t key=id:Uint64 value=v:String", "t= key=id:Uint64 value=v:String", "key=id:Uint64 value=v:String",
		"t=t key=id:Uint64", "t=t value=v:String", "t=t key=id value=v:String", "t=t key=id: value=v:String",
		"t=t key=:Uint64 value=v:String",
		"t=t key=id:Nothing value=v:String", "t=t key=id:Double value=v:String", "t=t key=id:Optional<Uint64> value=v:String",
		"t=t key=id:Uint64 value=v:Int64", "t=t key=id:Uint64 value=v:Optional<String>", "t=t key=id:Uint64 value=v:String value=w:String",
		"t=t key=id:Uint64 value=id:String", "t=t key=id:Uint64 key=id:Utf8 value=v:String",
		"t=t key=id:Uint64 value=v:String version=v:Uint64",
		"t=t key=id:Uint64 value=v:String version=r:Int32", "t=t key=id:Uint64 value=v:String version=r:Uint64 version=s:Uint64",
		"t=t key=id:Uint64 value=v:String media=", "t=t key=id:Uint64 value=v:String media=a/b media=a/b",
		"t=t key=id:Uint64 value=v:String media=;",
		"t=t key=id:Uint64 value=v:String max_value=0", "t=t key=id:Uint64 value=v:String max_value=-1",
		"t=t key=id:Uint64 value=v:String max_value=2GiB",
		"t=t key=id:Uint64 value=v:String read_only=no", "t=t key=id:Uint64 value=v:String colour=red",
		"t=t key=id:Uint64 value=v:String x",
		// What could end a name in the text of a statement.
		"t=t` key=id:Uint64 value=v:String", "t=a`;DROP/**/TABLE/**/x;-- key=id:Uint64 value=v:String",
		"t=t\\ key=id:Uint64 value=v:String", "t=$t key=id:Uint64 value=v:String",
		"t=t key=i`d:Uint64 value=v:String", "t=t key=id:Uint64 value=v`:String",
		"t=t key=id:Uint64 value=v:String version=r`:Uint64", "t=t key=a.b:Uint64 value=v:String",
		"t=t key=id\u00fc:Uint64 value=v:String", "t=t\x00 key=id:Uint64 value=v:String",
		"t=\"t\" key=id:Uint64 value=v:String", "a:b=t key=id:Uint64 value=v:String",
	} {
		table := Entry{Name: "before"}
		if err := table.UnmarshalText([]byte(text)); err == nil || table.Name != "before" {
			t.Errorf("%q was taken: %v, %+v", text, err, table)
		}
	}
}

// TestKVStatements holds the texts to what they were: a change makes each node compile anew.
func TestKVStatements(t *testing.T) {
	const k0, k2 = "DECLARE $k0 AS Uint64; ", "DECLARE $k0 AS Utf8; DECLARE $k1 AS Timestamp; "
	one, two := NewTable(entryOf(t, onePlain), "/local/t"),
		NewTable(entryOf(t, "x=x key=a:Utf8 key=b:Timestamp value=v:Json version=r:Int64"), "/local/x")
	for got, want := range map[string]string{
		one.get:      k0 + "SELECT `v` FROM `/local/t` WHERE `id` = $k0",
		one.look:     k0 + "SELECT `id` FROM `/local/t` WHERE `id` = $k0",
		one.put:      k0 + "DECLARE $value AS String; UPSERT INTO `/local/t` (`id`, `v`) VALUES ($k0, $value)",
		one.insert:   k0 + "DECLARE $value AS String; INSERT INTO `/local/t` (`id`, `v`) VALUES ($k0, $value)",
		one.remove:   k0 + "DELETE FROM `/local/t` ON SELECT $k0 AS `id`",
		one.batchGet: "DECLARE $keys AS List<Uint64>; SELECT `id`, `v` FROM `/local/t` WHERE `id` IN $keys",
		two.get:      k2 + "SELECT `v`, `r` FROM `/local/x` WHERE `a` = $k0 AND `b` = $k1",
		two.look:     k2 + "SELECT `r` FROM `/local/x` WHERE `a` = $k0 AND `b` = $k1",
		two.put: k2 +
			"DECLARE $value AS Json; DECLARE $version AS Int64; UPSERT INTO `/local/x` (`a`, `b`, `v`, `r`) VALUES " +
			"($k0, $k1, $value, $version)",
		two.remove:   k2 + "DELETE FROM `/local/x` ON SELECT $k0 AS `a`, $k1 AS `b`",
		two.batchGet: "DECLARE $keys AS List<Tuple<Utf8,Timestamp>>; SELECT `a`, `b`, `v`, `r` FROM `/local/x` WHERE (`a`, `b`) IN $keys",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestKVFits(t *testing.T) {
	entry := entryOf(t, oneVersioned)
	if err := entry.fits(description(t)); err != nil {
		t.Errorf("it does not fit: %v", err)
	}
	for what, change := range map[string]func(*Ydb_Table.DescribeTableResult){
		"another key":         func(d *Ydb_Table.DescribeTableResult) { d.PrimaryKey = []string{"v"} },
		"more columns in it":  func(d *Ydb_Table.DescribeTableResult) { d.PrimaryKey = []string{"id", "v"} },
		"another type of it":  func(d *Ydb_Table.DescribeTableResult) { d.Columns[0].Type = d.Columns[1].Type },
		"no value":            func(d *Ydb_Table.DescribeTableResult) { d.Columns[1].Name = "w" },
		"a value of a number": func(d *Ydb_Table.DescribeTableResult) { d.Columns[1].Type = d.Columns[2].Type },
		"a version of text":   func(d *Ydb_Table.DescribeTableResult) { d.Columns[2].Type = d.Columns[1].Type },
		"no columns":          func(d *Ydb_Table.DescribeTableResult) { d.Columns = nil },
	} {
		d := description(t)
		change(d)
		if entry.fits(d) == nil {
			t.Errorf("%s fits", what)
		}
	}
}

func FuzzKVTable(f *testing.F) {
	for _, text := range []string{onePlain, oneVersioned,
		"a=b key=c:Decimal(22,9) value=d:Json media=a/b max_value=1KiB read_only", "a=b` key=", "=", "a=b key=c:List<"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var entry, again Entry
		if entry.UnmarshalText([]byte(text)) != nil {
			return
		}
		shown, err := entry.MarshalText()
		if err == nil {
			err = again.UnmarshalText(shown)
		}
		if err != nil || NewTable(entry, "/local/"+entry.Path).put != NewTable(again, "/local/"+again.Path).put {
			t.Errorf("%q was taken, shown as %q and not the same: %v", text, shown, err)
		}
		// The names in a statement stand in backticks; nothing of the entry ends them.
		if n := strings.Count(NewTable(entry, "/local/"+entry.Path).get, "`"); n != 2*(len(entry.Key)+2+min(len(entry.Version.Name), 1)) {
			t.Errorf("%q makes %d backticks", text, n)
		}
	})
}
