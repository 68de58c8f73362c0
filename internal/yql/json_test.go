package yql

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

func mustType(t testing.TB, name string) *Ydb.Type {
	t.Helper()
	typ, err := ParseType(name)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

// Every form that docs/reference/types.md promises: what is read, and how it is written.
func TestJSONForms(t *testing.T) {
	for _, c := range []struct{ typ, in, out string }{
		{"Bool", "true", "true"}, {"Bool", `"False"`, "false"},
		{"Int8", "-128", "-128"}, {"Int16", `"32767"`, "32767"}, {"Int32", "2147483647", "2147483647"},
		{"Uint8", "255", "255"}, {"Uint16", "65535", "65535"}, {"Uint32", "4294967295", "4294967295"},
		{"Int64", "-9223372036854775808", `"-9223372036854775808"`}, {"Int64", `"9223372036854775807"`, `"9223372036854775807"`},
		{"Uint64", "18446744073709551615", `"18446744073709551615"`}, {"Uint64", "9007199254740993", `"9007199254740993"`},
		{"Int64", "1.0", `"1"`}, {"Int64", "1e3", `"1000"`}, {"Int64", "12300e-2", `"123"`}, {"Int64", "-0", `"0"`},
		{"Int64", "0.0e5", `"0"`}, {"Uint64", "1.8446744073709551615e19", `"18446744073709551615"`}, {"Int64", `"+5"`, `"5"`},
		{"Int32", "0.00123e5", "123"},
		{"Float", "0.1", "0.1"}, {"Float", "16777217", "16777216"}, {"Double", "0.1", "0.1"}, {"Double", `"1e-7"`, "1e-07"},
		{"Double", "1e21", "1e+21"}, {"Double", "123456789012345680000", "123456789012345680000"}, {"Double", "5", "5"},
		{"Double", `"NaN"`, `"NaN"`}, {"Double", `"Infinity"`, `"Infinity"`}, {"Float", `"-inf"`, `"-Infinity"`},
		{"Float", `"nan"`, `"NaN"`},
		{"Decimal(22,9)", "1.50", `"1.5"`}, {"Decimal(22,9)", `"-0.000000001"`, `"-0.000000001"`}, {"Decimal(22,9)", "5", `"5"`},
		{"Decimal(22,9)", `"1e3"`, `"1000"`}, {"Decimal(22,9)", `"-inf"`, `"-inf"`},
		{"Decimal(22,9)", `"Infinity"`, `"inf"`}, {"Decimal(22,9)", `"NaN"`, `"nan"`},
		{"Decimal(35,0)", strings.Repeat("9", 35), `"` + strings.Repeat("9", 35) + `"`},
		{"Decimal(35,35)", "1e-35", `"0.` + strings.Repeat("0", 34) + `1"`},
		{"Decimal(22,9)", "1.5000000000", `"1.5"`}, {"Decimal(5,5)", "-.5e-1", ""}, {"Decimal(5,5)", `"-.5e-1"`, `"-0.05"`},
		{"DyNumber", `"-1.5e-30"`, `"-1.5e-30"`}, {"DyNumber", "12.5", `"12.5"`},
		{"String", `"AP/+"`, `"AP/+"`}, {"String", `"AP_-"`, `"AP/+"`}, {"String", `"YQ=="`, `"YQ=="`},
		{"String", `"YQ"`, `"YQ=="`}, {"String", `""`, `""`},
		{"String", `{"base64":"YQ=="}`, `"YQ=="`},
		{"Utf8", `"\u0041\ud83d\ude42\/\b"`, `"A🙂/\u0008"`}, {"Utf8", `"\"\\\n"`, `"\"\\\n"`},
		{"Json", `"{\"a\":1}"`, `"{\"a\":1}"`}, {"Json", `{"a": [1.50, null]}`, `"{\"a\": [1.50, null]}"`},
		{"JsonDocument", "[1]", `"[1]"`},
		{"Json", "5", `"5"`}, {"Json", "1.50e1", `"1.50e1"`}, {"Json", "true", `"true"`}, {"JsonDocument", "false", `"false"`},
		{"Json?", "-5", `"-5"`}, {"Json?", "null", "null"}, {"Json", `"null"`, `"null"`},
		{"Yson", `"{a=1}"`, `"{a=1}"`}, {"Yson", `{"base64":"/wA="}`, `{"base64":"/wA="}`},
		{"Uuid", `"5ca32c22-841b-11e8-adc0-fa7ae01bbebc"`, `"5ca32c22-841b-11e8-adc0-fa7ae01bbebc"`},
		{"Uuid", `"5CA32C22-841B-11E8-ADC0-FA7AE01BBEBC"`, `"5ca32c22-841b-11e8-adc0-fa7ae01bbebc"`},
		{"Date", `"1970-01-01"`, `"1970-01-01"`}, {"Date", `"2105-12-31"`, `"2105-12-31"`},
		{"Date", "19753", `"2024-01-31"`}, {"Date", `"2024-02-29"`, `"2024-02-29"`},
		{"Datetime", `"2024-01-31T10:00:00Z"`, `"2024-01-31T10:00:00Z"`},
		{"Datetime", `"2024-01-31T13:00:00+03:00"`, `"2024-01-31T10:00:00Z"`},
		{"Datetime", `"2024-01-31 10:00:00.000Z"`, `"2024-01-31T10:00:00Z"`}, {"Datetime", "0", `"1970-01-01T00:00:00Z"`},
		{"Timestamp", `"2024-01-31T10:00:00.5Z"`, `"2024-01-31T10:00:00.500Z"`},
		{"Timestamp", `"2024-01-31T10:00:00.000001-00:30"`, `"2024-01-31T10:30:00.000001Z"`},
		{"Timestamp", `"2024-01-31T10:00:00.123456000Z"`, `"2024-01-31T10:00:00.123456Z"`},
		{"Timestamp", "1", `"1970-01-01T00:00:00.000001Z"`},
		{"Interval", `"PT1.5S"`, `"PT1.5S"`}, {"Interval", `"-PT1S"`, `"-PT1S"`},
		{"Interval", `"P1W1DT25H61M0.000001S"`, `"P9DT2H1M0.000001S"`}, {"Interval", "0", `"PT0S"`},
		{"Interval", "-1500000", `"-PT1.5S"`}, {"Interval", `"P1D"`, `"P1D"`},
		{"Interval64", `"P106751616DT23H59M59.999999S"`, `"P106751616DT23H59M59.999999S"`},
		{"Date32", `"-144168-01-01"`, `"-144168-01-01"`}, {"Date32", `"+148107-12-31"`, `"+148107-12-31"`},
		{"Date32", `"0000-02-29"`, `"0000-02-29"`}, {"Date32", `"-0001-12-31"`, `"-000001-12-31"`},
		{"Datetime64", `"-144168-01-01T00:00:00Z"`, `"-144168-01-01T00:00:00Z"`},
		{"Timestamp64", `"+148107-12-31T23:59:59.999999Z"`, `"+148107-12-31T23:59:59.999999Z"`},
		{"Timestamp64", "-1", `"1969-12-31T23:59:59.999999Z"`},
		{"TzDate", `"2024-01-31,Europe/Moscow"`, `"2024-01-31,Europe/Moscow"`},
		{"TzTimestamp64", `"2024-01-31T10:00:00.1,Europe/Moscow"`, `"2024-01-31T10:00:00.1,Europe/Moscow"`},
		{"Optional<Int32>", "null", "null"}, {"Optional<Int32>", "5", "5"},
		{"Int32??", "null", "null"}, {"Int32??", "[null]", "[null]"}, {"Int32??", "[5]", "[5]"},
		{"Int32???", "[[5]]", "[[5]]"}, {"Int32???", "[null]", "[null]"}, {"Int32???", "[[null]]", "[[null]]"},
		{"Optional<Tagged<Optional<Int32>,t>>", "[5]", "[5]"}, {"Optional<Null>", "[null]", "[null]"},
		{"Optional<pgint4>", `["5"]`, `["5"]`}, {"Optional<pgint4>", "[null]", "[null]"},
		{"List<Int32>", " [ 1 , 2 ] ", "[1,2]"}, {"List<Int32>", "[]", "[]"}, {"Optional<List<Int32>>", "[]", "[]"},
		{"Tuple<Int32,Utf8>", `[1,"a"]`, `[1,"a"]`}, {"Tuple<>", "[]", "[]"},
		{"Struct<a:Int32,b:Utf8?>", `{"b":"x","a":1}`, `{"a":1,"b":"x"}`},
		{"Struct<a:Int32,b:Utf8?>", `{"a":1}`, `{"a":1,"b":null}`}, {"Struct<>", "{}", "{}"},
		{"Struct<a:Int8,b:Int8,c:Int8,d:Int8,e:Int8,f:Int8,g:Int8,h:Int8,i:Int8>",
			`{"i":9,"h":8,"g":7,"f":6,"e":5,"d":4,"c":3,"b":2,"a":1}`,
			`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9}`},
		{"Dict<Utf8,Int32>", `[["a",1],["b",2]]`, `[["a",1],["b",2]]`},
		{"Dict<Utf8,Int32>", `{"a":1,"b":2}`, `[["a",1],["b",2]]`}, {"Dict<Uint64,Int32>", `{"1":2}`, `[["1",2]]`},
		{"Dict<Tuple<Int32,Int32>,List<Int32>>", "[[[1,2],[3]]]", "[[[1,2],[3]]]"},
		{"Dict<String,Bool>", `{"YQ==":true}`, `[["YQ==",true]]`},
		{"Dict<Decimal(3,1),Bool>", `{"1.0":true}`, `[["1",true]]`},
		{"Set<Utf8>", `["a","b"]`, `["a","b"]`}, {"Set<Int32>", "[]", "[]"},
		{"Variant<Int32,Utf8>", `{"index":1,"value":"a"}`, `{"index":1,"value":"a"}`},
		{"Variant<Int32,Utf8>", `{"value":5,"index":0}`, `{"index":0,"value":5}`},
		{"Variant<num:Int32,txt:Utf8>", `{"txt":"a"}`, `{"txt":"a"}`},
		{"Variant<index:Int32,value:Utf8>", `{"value":"a"}`, `{"value":"a"}`},
		{"Tagged<Int32,'t'>", "5", "5"}, {"Void", "null", "null"}, {"Null", "null", "null"}, {"EmptyList", "[]", "[]"},
		{"EmptyDict", "{}", "[]"}, {"EmptyDict", "[]", "[]"},
		{"pgint4", `"5"`, `"5"`}, {"pgint4", "5", `"5"`}, {"pgbool", "true", `"true"`}, {"pgtext", "null", "null"},
		{"pgbytea", `{"base64":"/w=="}`, `{"base64":"/w=="}`},
	} {
		typ := mustType(t, c.typ)
		v, err := ParseJSON([]byte(c.in), typ)
		if c.out == "" {
			if err == nil {
				t.Errorf("%s: %s was read", c.typ, c.in)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %s: %v", c.typ, c.in, err)
			continue
		}
		out, err := AppendJSON([]byte("x"), v, typ, JSONOptions{})
		if err != nil || string(out) != "x"+c.out {
			t.Errorf("%s: %s came out as %s, %v; want %s", c.typ, c.in, out[1:], err, c.out)
		}
	}
}

func TestJSONIntegersCanBeNumbers(t *testing.T) {
	typ := mustType(t, "Tuple<Int64,Uint64,Int32,Decimal(5,1)>")
	v, err := ParseJSON([]byte(`["-1",18446744073709551615,3,4.5]`), typ)
	if err != nil {
		t.Fatal(err)
	}
	got, err := AppendJSON(nil, v, typ, JSONOptions{Ints: IntsAsNumbers})
	if want := `[-1,18446744073709551615,3,"4.5"]`; err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestBrokenJSONIsAnError(t *testing.T) {
	typ := mustType(t, "List<Json>")
	for _, in := range []string{
		"", " ", "[", "[1", `["a"`, `["a",`, `["a",]`, `["a" "b"]`, "[]]", "[] x", `[{"a"}]`, `[{"a":}]`, `[{"a":1,}]`,
		`[{a:1}]`, `[{"a":01}]`,
		`[{"a":-}]`, `[{"a":1.}]`, `[{"a":.5}]`, `[{"a":1e}]`, `[{"a":+1}]`, `[{"a":nul}]`, `[{"a":True}]`, `["\x"]`,
		`["\u12"]`, `["\u123g"]`, `["\ud800"]`,
		`["\ud800\u0041"]`, `["\udc00"]`, "[\"\x01\"]", "[\"\xff\"]", "[\"\\n\xff\"]", "[\"\\n\x01\"]", `["\n`,
		"[\"\xed\xa0\x80\"]", "[nul]",
		"[" + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "]",
	} {
		if v, err := ParseJSON([]byte(in), typ); err == nil {
			t.Errorf("%q was read as %v", in, v)
		}
		if typ, err := InferJSON([]byte(in)); err == nil {
			t.Errorf("%q has the type %s", in, FormatType(typ))
		}
	}
}

// Small inputs must not make large values: a struct of many optional members,
// each of which a pair of braces fills in, is the worst case.
func TestValuesAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		b.WriteString(",m" + strconv.Itoa(i) + ":Int32?")
	}
	typ := yqltest.List(mustType(t, "Struct<"+b.String()[1:]+">"))
	in := "[" + strings.Repeat("{},", 1000) + "{}]"
	_, err := ParseJSON([]byte(in), typ)
	if err == nil || !strings.HasSuffix(err.Error(), "more than 1048576 values in one") {
		t.Errorf("got %v", err)
	}
	most := short.Of(MaxValues, 1000)
	if v, err := parseJSON([]byte("["+strings.Repeat("1,", most-2)+"1]"), mustType(t, "List<Int8>"), most); err != nil {
		t.Errorf("%d values: %v", most, err)
	} else if len(v.Items) != most-1 {
		t.Errorf("%d items", len(v.Items))
	}
	if _, err := parseJSON([]byte("["+strings.Repeat("1,", most-1)+"1]"), mustType(t, "List<Int8>"), most); err == nil {
		t.Errorf("%d values are no error", most+1)
	}
}

func FuzzJSONValue(f *testing.F) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 4))
		typ := yqltest.Type(r, 3)
		if text, err := AppendJSON(nil, yqltest.Value(r, typ), typ, JSONOptions{}); err == nil {
			f.Add(FormatType(typ), text)
		}
	}
	f.Add("Timestamp64", []byte(`"-000001-02-29T24:60:60.1234567+23:59"`))
	f.Add("Interval64", []byte(`"-P1WT1.000001S"`))
	f.Add("Decimal(35,35)", []byte(`"-.1e-34"`))
	f.Fuzz(func(t *testing.T, name string, raw []byte) {
		if own, err := InferJSON(raw); err == nil {
			if !json.Valid(raw) {
				t.Fatalf("%q is no JSON", raw)
			}
			// A number may be too large for its type; no other fault is left.
			if _, err := ParseJSON(raw, own); err != nil && !strings.Contains(err.Error(), "out of range") {
				t.Fatalf("%q is %s by the plain rule, but: %v", raw, FormatType(own), err)
			}
		}
		if p, err := ParamJSON(raw, nil); err == nil && FormatType(p.GetType()) == "" {
			t.Fatalf("%q: a parameter without a type", raw)
		}
		typ, err := ParseType(name)
		if err != nil {
			return
		}
		v, err := ParseJSON(raw, typ)
		if err != nil {
			return
		}
		text, err := AppendJSON(nil, v, typ, JSONOptions{})
		if err != nil || !json.Valid(text) {
			t.Fatalf("%s: %q is %v, written as %q, %v", name, raw, v, text, err)
		}
		again, err := ParseJSON(text, typ)
		if err != nil || !proto.Equal(again, v) {
			t.Fatalf("%s: %q is %v, but its %q is %v, %v", name, raw, v, text, again, err)
		}
		form, err := ToValue(v, typ)
		if err != nil {
			t.Fatalf("%s: %q is %v: %v", name, raw, v, err)
		}
		if back, err := FromValue(form, typ); err != nil || !proto.Equal(back, v) {
			t.Fatalf("%s: %q is %v, but by way of %v it is %v, %v", name, raw, v, form, back, err)
		}
	})
}
