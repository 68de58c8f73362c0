//go:build steps

package yql

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/stepcount"
)

// Texts of statements and values take steps in proportion to their bytes.
func TestStepsOfTexts(t *testing.T) {
	statements := map[string]func(n int) []byte{
		"declarations":         stepcount.Of("", "DECLARE $a AS Uint64; ", "SELECT $a"),
		"one wide declaration": stepcount.Of("DECLARE $a AS Tuple<", "Int8??,", "Int8>; SELECT $a"),
		"nested declaration":   stepcount.Of("", "DECLARE $a AS "+strings.Repeat("List<", 60)+"Int8"+strings.Repeat(">", 60)+";", ""),
		"open comment":         stepcount.Of("SELECT 1 ", "/*", ""),
		"comments":             stepcount.Of("SELECT 1 ", "/**/", ""),
		"line comments":        stepcount.Of("SELECT 1 ", "--\n", ""),
		"open quotes":          stepcount.Of("SELECT ", "'\\'", ""),
		"long quotes":          stepcount.Of("SELECT ", "@@a@", ""),
		"back quotes":          stepcount.Of("SELECT ", "``", ""),
		"brackets":             stepcount.Of("SELECT ", "(", ""),
		"closing brackets":     stepcount.Of("SELECT ", "())", ""),
		"values":               stepcount.Of("VALUES ", "($a,$b),", "(1)"),
		"nested values":        stepcount.Of("", "VALUES (", ""),
		"columns":              stepcount.Of("UPSERT INTO t (", "a,", "b) VALUES ($a)"),
		"many statements":      stepcount.Of("", "SELECT $a;", ""),
		"inserts":              stepcount.Of("", "INSERT INTO t (a) VALUES ($a);", ""),
		"named":                stepcount.Of("", "$x = SELECT $y;", "SELECT * FROM $x"),
		"defines":              stepcount.Of("", "DEFINE ACTION $a() AS ", ""),
		"words":                stepcount.Of("SELECT ", "create temp table select commit ", ""),
		"dollars":              stepcount.Of("SELECT ", "$", ""),
		"numbers":              stepcount.Of("SELECT ", "1.e5 ", ""),
		"pragmas":              stepcount.Of("--!syntax_pg\n", "$1 ", ""),
		"high bytes":           stepcount.Of("SELECT ", "\xff\xfe", ""),
	}
	for name, read := range map[string]struct {
		most float64
		f    func(text string)
	}{
		"declarations": {35, func(text string) { _, _ = Declarations(text) }},
		"effects":      {55, func(text string) { EffectsOf(text) }},
		"uses":         {80, func(text string) { Uses(text) }},
		"normal form":  {90, func(text string) { AppendNormal(nil, text) }},
		"tables":       {80, func(text string) { _, _ = Tables(text) }},
	} {
		stepcount.Reader{Name: name, Most: read.most, Read: func(b []byte) { read.f(string(b)) }, Texts: statements}.Check(t)
	}
	stepcount.Reader{Name: "types", Most: 25, Read: func(b []byte) { _, _ = ParseType(string(b)) }, Texts: map[string]func(n int) []byte{
		"tuple":    stepcount.Of("Tuple<", "Int8,", "Int8>"),
		"options":  stepcount.Of("Tuple<", "Int8??????,", "Int8>"),
		"deep":     stepcount.Nested("List<", "Int8", ">"),
		"struct":   stepcount.Numbered("Struct<", "a%d:Int8,", "z:Int8>"),
		"variants": stepcount.Of("Tuple<", "Variant<Int8,Utf8>,", "Int8>"),
		"words":    stepcount.Of("", "decimal", ""),
	}}.Check(t)
}

// So do values of JSON.
func TestStepsOfJSON(t *testing.T) {
	texts := map[string]func(n int) []byte{
		"numbers":         stepcount.Of("[", "1,", "1]"),
		"fractions":       stepcount.Of("[", "0.1e-5,", "1]"),
		"one long number": stepcount.Of("", "9", ""),
		"texts":           stepcount.Of("[", `"\u0041\ud83d\ude00",`, `""]`),
		"one text":        stepcount.Of(`"`, `\\`, `"`),
		"objects":         stepcount.Of("[", `{"a":null},`, "null]"),
		"members":         stepcount.Numbered("{", `"a%d":1,`, `"z":1}`),
		"same members":    stepcount.Of("{", `"a":1,`, `"a":2}`),
		"deep":            stepcount.Nested("[", "1", "]"),
		"typed":           stepcount.Of("[", `{"type":"Uint64","value":1},`, "null]"),
		"spaces":          stepcount.Of("[", " \n\t", "]"),
		"open":            stepcount.Of("", `{"a":`, ""),
		"mixed":           stepcount.Of("[", `1,null,"a",[],`, "1]"),
	}
	list, err := ParseType("List<Optional<Int64>>")
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(t, []string{"id", "a", "n"}, "Uint64", "Optional<Utf8>", "Optional<Int32>")
	for name, read := range map[string]struct {
		most float64
		f    func(text []byte)
	}{
		"inferred":   {60, func(text []byte) { _, _ = InferJSON(text) }},
		"parameters": {110, func(text []byte) { _, _ = ParamJSON(text, nil) }},
		"by a type":  {70, func(text []byte) { _, _ = ParseJSON(text, list) }},
		"typed":      {10, func(text []byte) { TypedJSON(text) }},
		"a member":   {35, func(text []byte) { _, _, _ = Member(text, "rows") }},
		"items":      {35, func(text []byte) { _ = Items(text, func([]byte) error { return nil }) }},
		"a row":      {40, func(text []byte) { var c Cells; _ = rows.JSON(text, &c) }},
	} {
		stepcount.Reader{Name: name, Most: read.most, Read: read.f, Texts: texts}.Check(t)
	}
}

// And messages with rows.
func TestStepsOfMessages(t *testing.T) {
	rows := rowsOf(t, []string{"id", "name"}, "Uint64", "Optional<Utf8>")
	texts := stepcount.Messages()
	texts["columns"] = stepcount.Of("", "\x0a\x08\x0a\x02id\x12\x02\x18\x01", "")

	var fields func(message []byte, depth int)
	fields = func(message []byte, depth int) {
		for _, inner := range Fields(message) {
			if depth < 10 {
				fields(inner, depth+1)
			}
		}
	}
	for name, read := range map[string]struct {
		most float64
		f    func(text []byte)
	}{
		"fields": {6, func(text []byte) {
			for range Fields(text) {
			}
		}},
		"fields in fields": {8, func(text []byte) { fields(text, 0) }},
		"a row of columns": {10, func(text []byte) { var c Cells; _ = rows.Named(text, &c) }},
	} {
		stepcount.Reader{Name: name, Most: read.most, Read: read.f, Texts: texts}.Check(t)
	}
}

// rowsOf reads rows with columns of such types.
func rowsOf(t *testing.T, names []string, types ...string) *Rows {
	t.Helper()
	var all []*Ydb.Type
	for _, name := range types {
		typ, err := ParseType(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, typ)
	}
	return NewRows(names, all)
}
