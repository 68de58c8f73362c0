package engine

import "fmt"

// sectionsOfValues is what values are written and computed with.
var sectionsOfValues = []section{
	{"Literals", "An integer is Int32, or Int64, or Uint64 if it must be. Strings know C escapes.", []construct{
		{"integers", "SELECT 1, 3000000000, 10000000000000000000, 0x1F, 0b11, 0o17, 1u, 1l, 1ul, 1s, 1us, 1t, 1ut", nil, "column0 Int32, column1 Int64, column2 Uint64, column3 Int32, column4 Int32, column5 Int32, column6 Uint32, column7 Int64, column8 Uint64, column9 Int16, column10 Uint16, column11 Int8, column12 Uint8: (1, 3000000000, 10000000000000000000, 31, 3, 15, 1, 1, 1, 1, 1, 1, 1)"},
		{"numbers with a fraction", "SELECT 1.5, 1.5f, 1e3, -2.5", nil, "column0 Double, column1 Float, column2 Double, column3 Double: (1.5, 1.5, 1000, -2.5)"},
		{"strings", `SELECT 'a', "b\n", 'c'u, '[1]'j, '<a=1>[]'y, 'd''e'`, nil, `column0 String, column1 String, column2 Utf8, column3 Json, column4 Yson, column5 String: ("a", "b\n", "c", "[1]", "<a=1>[]", "d'e")`},
		{"multi-line strings", "SELECT @@a'b@@, @@c@@u", nil, `column0 String, column1 Utf8: ("a'b", "c")`},
		{"truth and NULL", "SELECT true, FALSE, NULL", nil, "column0 Bool, column1 Bool, column2 Null: (true, false, NULL)"},
		{"dates and times", `SELECT Date("2020-02-29"), Datetime("2020-01-01T10:00:00Z"), Timestamp("2020-01-01T10:00:00.5Z"), Interval("P1DT2H3M4.5S")`, nil, "column0 Date, column1 Datetime, column2 Timestamp, column3 Interval: (2020-02-29, 2020-01-01T10:00:00Z, 2020-01-01T10:00:00.500000Z, P1DT2H3M4.500000S)"},
		{"wide dates and times", `SELECT Date32("1900-01-01"), Datetime64("1900-01-01T00:00:00Z"), Timestamp64("1900-01-01T00:00:00.000001Z"), Interval64("-P1000D")`, nil, "column0 Date32, column1 Datetime64, column2 Timestamp64, column3 Interval64: (1900-01-01, 1900-01-01T00:00:00Z, 1900-01-01T00:00:00.000001Z, -P1000D)"},
		{"times with a zone", `SELECT TzDate("2020-01-01,Europe/Moscow"), TzDatetime("2020-01-01T10:00:00,GMT"), TzTimestamp("2020-01-01T10:00:00.5,GMT")`, nil, `column0 TzDate, column1 TzDatetime, column2 TzTimestamp: ("2020-01-01,Europe/Moscow", "2020-01-01T10:00:00,GMT", "2020-01-01T10:00:00.5,GMT")`},
		{"other types by name", `SELECT Uuid("6E73B41C-4EDE-4D08-9CFB-B7462D9E498B"), Decimal("-1.50", 22, 9), Json("{}"), JsonDocument("[1]"), DyNumber("1e10"), Uint8("7"), Bool("true"), Utf8("x")`, nil, `column0 Uuid, column1 Decimal(22,9), column2 Json, column3 JsonDocument, column4 DyNumber, column5 Uint8, column6 Bool, column7 Utf8: (6e73b41c-4ede-4d08-9cfb-b7462d9e498b, -1.5, "{}", "[1]", "1e10", 7, true, "x")`},
		{"special decimals", `SELECT Decimal("inf", 22, 9), Decimal("-inf", 22, 9), Decimal("nan", 22, 9), Decimal("1.0000000005", 22, 9)`, nil, "column0 Decimal(22,9), column1 Decimal(22,9), column2 Decimal(22,9), column3 Decimal(22,9): (inf, -inf, nan, 1)"},
		{"lists, tuples, structs", "SELECT [1, 2l], (1, 'a'), <|b: 1, a: NULL|>, (1,), []", nil, `column0 List<Int64>, column1 Tuple<Int32,String>, column2 Struct<a:Null,b:Int32>, column3 Tuple<Int32>, column4 EmptyList: ([1, 2], (1, "a"), <|a: NULL, b: 1|>, (1), [])`},
		{"empty values of a type", "SELECT Nothing(Int32?), Nothing(List<Utf8>?)", nil, "column0 Optional<Int32>, column1 Optional<List<Utf8>>: (NULL, NULL)"},
		{"# out of range", "SELECT 300ut", nil, "GENERIC_ERROR: 1:8: 300 is out of the range of Uint8"},
		{"# bad suffix", "SELECT 1zz", nil, "GENERIC_ERROR: 1:8: unknown suffix 'zz' of a number"},
		{"# bad date", "SELECT\n  Date('2020-13-01')", nil, "GENERIC_ERROR: 2:8: Invalid value \"2020-13-01\" for type Date: not a text of type Date"},
		{"# open string", "SELECT 'abc", nil, "GENERIC_ERROR: 1:8: literal without an end"},
	}},
	{"Parameters and names", "A parameter may be of every type. The table service needs DECLARE; the query service takes the type that comes with the value.", []construct{
		{"DECLARE", "DECLARE $id AS Uint64; SELECT $id", []string{"$id = 5ul"}, "column0 Uint64: (5)"},
		{"inferred parameters", "SELECT $a, $b AS b", []string{"$a = 'x'u", "$b = [1]"}, `column0 Utf8, b List<Int32>: ("x", [1])`},
		{"types in DECLARE", "DECLARE $a AS List<Struct<x: Int32?, 'y z': Tuple<Decimal(22,9), Dict<Utf8, Bytes>>>>; SELECT $a", []string{"$a = CAST([] AS List<Struct<x:Int32?,'y z':Tuple<Decimal(22,9),Dict<Utf8,Bytes>>>>)"}, "column0 List<Struct<x:Optional<Int32>,'y z':Tuple<Decimal(22,9),Dict<Utf8,String>>>>: ([])"},
		{"an Optional parameter may be missing", "DECLARE $a AS Int32?; SELECT $a", nil, "column0 Optional<Int32>: (NULL)"},
		{"names in backticks", "DECLARE $`my id` AS Uint64; SELECT $`my id`, $`x` AS x", []string{"$my id = 5ul", "$x = 'a'u"}, `column0 Uint64, x Utf8: (5, "a")`},
		{"named expressions", "$x = 1 + 1; $y = $x * 10; SELECT $x, $y", nil, "column0 Int32, column1 Int32: (2, 20)"},
		{"named queries", "$q = (SELECT id FROM series WHERE id < 3); $n = SELECT COUNT(*) FROM $q; SELECT * FROM $q; SELECT $n AS n", nil, "id Uint64: (1) (2) | n Optional<Uint64>: (2)"},
		{"PRAGMA TablePathPrefix", `PRAGMA TablePathPrefix("/local"); SELECT COUNT(*) AS n FROM series`, nil, "n Uint64: (3)"},
		{"names of tables", "SELECT COUNT(*) AS n FROM `/local/series`; SELECT COUNT(*) AS n FROM `series`", nil, "n Uint64: (3) | n Uint64: (3)"},
		{"comments", "SELECT 1 /* one */ -- and only", nil, "column0 Int32: (1)"},
		{"# syntax mark", "--!syntax_v1\nSELECT 1", nil, "column0 Int32: (1)"},
		{"# missing", "DECLARE $a AS Int32; SELECT $a", nil, "BAD_REQUEST: Missing value for parameter: $a"},
		{"# other type", "DECLARE $a AS Int32; SELECT $a", []string{"$a = 1u"}, "BAD_REQUEST: Parameter $a type mismatch, expected: Int32, actual: Uint32"},
		{"# unknown", "SELECT $nope", nil, "GENERIC_ERROR: 1:8: Unknown name: $nope"},
		{"# unknown pragma", "PRAGMA Foo", nil, "GENERIC_ERROR: 1:1: Unknown pragma: Foo"},
		{"# unknown type", "DECLARE $a AS Foo", nil, "GENERIC_ERROR: 1:15: unknown type: 'Foo'"},
		{"# a string is no table", `SELECT 1 FROM "series"`, nil, "GENERIC_ERROR: 1:15: String literal can not be used here"},
		{"# empty", " ; ", nil, ""},
	}},
	{"Operators", "Integers of two widths meet in the wider one, of one width in the unsigned one; they wrap around. NULL makes NULL.", []construct{
		{"arithmetic", "SELECT 1 + 2l, 7 / 2, 7 % 4, 1.5 * 2, -(1), 1 / 0, 7 / 2.0", nil, "column0 Int64, column1 Optional<Int32>, column2 Optional<Int32>, column3 Double, column4 Int32, column5 Optional<Int32>, column6 Double: (3, 3, 3, 3, -1, NULL, 3.5)"},
		{"comparison", "SELECT 1 = 1ul, 1 != 2, 1 <> 1, 1 < 2.5, -1 < 1ul, 'a' <= 'b'u, 3 >= 4, 1 == 1, NULL = 1, (1, 2) < (1, 3)", nil, "column0 Bool, column1 Bool, column2 Bool, column3 Bool, column4 Bool, column5 Bool, column6 Bool, column7 Bool, column8 Optional<Bool>, column9 Bool: (true, true, false, true, true, true, false, true, NULL, true)"},
		{"AND, OR, NOT", "SELECT true AND NULL, false AND NULL, true OR NULL, NOT true, NOT 1 = 2", nil, "column0 Optional<Bool>, column1 Optional<Bool>, column2 Optional<Bool>, column3 Bool, column4 Bool: (NULL, false, true, false, true)"},
		{"IS NULL", "SELECT NULL IS NULL, 1 IS NOT NULL", nil, "column0 Bool, column1 Bool: (true, true)"},
		{"BETWEEN", "SELECT 2 BETWEEN 1 AND 3, 2 NOT BETWEEN 1 AND 3", nil, "column0 Bool, column1 Bool: (true, false)"},
		{"IN with a list", "SELECT 1 IN (1, 2), 3 IN [1, 2], 3 NOT IN (1, 2), NULL IN (1), 1 IN (2, NULL), -1 IN (18446744073709551615ul), 1 IN ()", nil, "column0 Bool, column1 Bool, column2 Bool, column3 Optional<Bool>, column4 Optional<Bool>, column5 Bool, column6 Bool: (true, false, true, NULL, NULL, false, false)"},
		{"IN with a parameter", "SELECT id FROM series WHERE id IN $ids", []string{"$ids = [1ul, 3ul, 9ul]"}, "id Uint64: (1) (3)"},
		{"IN with tuples", "SELECT title FROM episodes WHERE (series, season, episode) IN ((1, 1, 2), (2, 1, 1))", nil, `title Optional<Utf8>: ("Calamity Jen") ("Minimum Viable Product")`},
		{"COALESCE", "SELECT COALESCE(NULL, 1), COALESCE(Nothing(Utf8?), 'x'u), COALESCE(NULL, Nothing(Int32?))", nil, `column0 Int32, column1 Utf8, column2 Optional<Int32>: (1, "x", NULL)`},
		{"# types that do not meet", "SELECT 1 +\n 'a'", nil, "GENERIC_ERROR: 1:10: Cannot apply + to Int32 and String"},
		{"# compare", "SELECT 1 = 'a'", nil, "GENERIC_ERROR: 1:10: Cannot compare Int32 and String"},
		{"# truth", "SELECT 1 AND true", nil, "GENERIC_ERROR: 1:8: Expected Bool, but got: Int32"},
		{"# wrap", "SELECT 255ut + 1ut, 127t + 1t, 2147483647 + 1", nil, "column0 Uint8, column1 Int8, column2 Int32: (0, -128, -2147483648)"},
		{"# the smallest number has no opposite", "SELECT CAST(-128 AS Int8) / CAST(-1 AS Int8), (-9223372036854775807l - 1l) / -1l, (-9223372036854775807l - 1l) % -1l", nil, "column0 Optional<Int8>, column1 Optional<Int64>, column2 Optional<Int64>: (NULL, NULL, 0)"},
		{"# precedence", "SELECT 1 + 2 * 3, 1 < 2 = true, 2 - 1 - 1, -1 + 2, 1 = 1 OR 1 = 1 AND false", nil, "column0 Int32, column1 Bool, column2 Int32, column3 Int32, column4 Bool: (7, true, 0, 1, true)"},
	}},
	{"CAST", "A cast that can fail gives an Optional, NULL when it does.", []construct{
		{"between numbers", "SELECT CAST(1 AS Uint8), CAST(300l AS Uint8), CAST(1.9 AS Int32), CAST(1u AS Double), CAST(1u AS Int64)", nil, "column0 Uint8, column1 Optional<Uint8>, column2 Optional<Int32>, column3 Double, column4 Int64: (1, NULL, 1, 1, 1)"},
		{"from texts", "SELECT CAST('12' AS Int64), CAST('x' AS Int64), CAST('2020-01-01' AS Date), CAST('1.25' AS Decimal(22,9)), CAST('{}' AS Json), CAST('a' AS Utf8), CAST('true' AS Bool)", nil, `column0 Optional<Int64>, column1 Optional<Int64>, column2 Optional<Date>, column3 Optional<Decimal(22,9)>, column4 Optional<Json>, column5 Optional<Utf8>, column6 Optional<Bool>: (12, NULL, 2020-01-01, 1.25, "{}", "a", true)`},
		{"to texts", `SELECT CAST(1 AS Utf8), CAST(1.5 AS String), CAST(Date("2020-01-01") AS Utf8), CAST(Timestamp("2020-01-01T00:00:00Z") AS Utf8), CAST(Interval("PT1S") AS Text), CAST('b'u AS Bytes), CAST(Uuid("6e73b41c-4ede-4d08-9cfb-b7462d9e498b") AS Utf8)`, nil, `column0 Utf8, column1 String, column2 Utf8, column3 Utf8, column4 Utf8, column5 String, column6 Utf8: ("1", "1.5", "2020-01-01", "2020-01-01T00:00:00Z", "PT1S", "b", "6e73b41c-4ede-4d08-9cfb-b7462d9e498b")`},
		{"between dates", `SELECT CAST(Date("2020-01-02") AS Timestamp), CAST(Timestamp("2020-01-02T03:04:05Z") AS Date), CAST(1577836800u AS Datetime)`, nil, `column0 Timestamp, column1 Date, column2 Optional<Datetime>: (2020-01-02T00:00:00Z, 2020-01-02, 2020-01-01T00:00:00Z)`},
		{"of NULL and to Optional", "SELECT CAST(NULL AS Utf8), CAST(1 AS Int64?), CAST(CAST('1' AS Int32) AS Int64)", nil, "column0 Optional<Utf8>, column1 Optional<Int64>, column2 Optional<Int64>: (NULL, 1, 1)"},
		{"# impossible", "SELECT CAST([1] AS Int32)", nil, "GENERIC_ERROR: 1:8: Cannot cast type List<Int32> into Int32"},
	}},
	{"Functions", "", []construct{
		{"Digest::NumericHash", "SELECT Digest::NumericHash(1ul) = Digest::NumericHash(1ul), Digest::NumericHash(1ul) = Digest::NumericHash(2ul)", nil, "column0 Bool, column1 Bool: (true, false)"},
		{"Unwrap", "SELECT Unwrap(rating) AS rating FROM series WHERE id = 1", nil, "rating Double: (8.5)"},
		{"# too many", bomb("$x0 = [1, 2]", "$x%d = ($x%d, $x%d)"), nil, "GENERIC_ERROR: 1:308: Type of more than 64 levels or 1048576 bytes"},
		{"# too many values", bomb("$x0 = [1, 2]", "$x%d = [$x%d, $x%d]"), nil, "PRECONDITION_FAILED: 1:371: The value becomes larger than 67108864 bytes"},
		{"# unwrap of nothing", "SELECT Unwrap($x)", []string{"$x = Nothing(Int32?)"}, "PRECONDITION_FAILED: 1:8: Failed to unwrap empty optional"},
		{"# unknown", "SELECT 1, Foo::Bar(1)", nil, "GENERIC_ERROR: 1:11: Unknown function: Foo::Bar (or outside of the supported subset of YQL)"},
		{"# arguments", "SELECT Digest::NumericHash(1, 2)", nil, "GENERIC_ERROR: 1:8: Digest::NumericHash takes 1 to 1 arguments, but got 2"},
	}},
}

// bomb is a text whose value doubles thirty times.
func bomb(first, next string) string {
	for i := range 30 {
		first += "; " + fmt.Sprintf(next, i+1, i, i)
	}
	return first + "; SELECT $x30"
}
