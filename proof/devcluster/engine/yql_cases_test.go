package engine

import "fmt"

const docHead = `# YQL of the development cluster

This page is written by the test that runs its examples: what stands here works, and what does not stand here answers
` + "`GENERIC_ERROR`" + ` with an issue that names the construct, its row and its column. The results show the columns with their types and then the
rows. The examples run on two tables:

` + "```sql\n" + sample + ";\n\n" + sampleRows + ";\n```\n" + `
What differs from a real server, on purpose or for lack of need:

- A parameter that is declared and not used may be missing; a warning says so.
- One partition, one replica: stale and online reads see the newest data; an ASYNC index is kept like a SYNC one; settings of partitions and ` + "`WITH (...)`" + ` have no effect, but ` + "`KEY_BLOOM_FILTER`" + ` is described.
- Statements of one text see what the statements before them wrote. A named expression is computed once, where it is first used.
- ` + "`Digest::NumericHash`" + ` is a hash of this cluster.
- ` + "`IN`" + ` follows the ANSI rules for NULL. ` + "`NOT`" + ` binds weaker than comparisons, as in SQL.
- Bounds: 1 MiB of text, 100 levels of nesting, 256 MiB of rows kept by one execution (sorting, grouping, joins), 128 MiB of writes of one transaction.
- Conflicts: a serializable transaction remembers the keys and ranges it read (more than 20,000 single keys of one table: the whole table); a table changed by DDL ends the transactions that touched it.
`

// bomb is a text whose value doubles thirty times.
func bomb(first, next string) string {
	for i := range 30 {
		first += "; " + fmt.Sprintf(next, i+1, i, i)
	}
	return first + "; SELECT $x30"
}

var sections = []section{
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
	{"SELECT", "A star gives the columns by name. Unnamed columns are column0, column1 ... by their place.", []construct{
		{"columns, names, expressions", "SELECT id, title AS t, id * 2, s.rating FROM series AS s WHERE id = 1", nil, `id Uint64, t Optional<Utf8>, column2 Uint64, rating Optional<Double>: (1, "IT Crowd", 2, 8.5)`},
		{"star", "SELECT * FROM series WHERE id = 1", nil, `id Uint64, rating Optional<Double>, released Optional<Date>, title Optional<Utf8>: (1, 8.5, 2006-02-03, "IT Crowd")`},
		{"star of one table", "$o = (SELECT 1 AS one); SELECT s.* FROM series AS s JOIN $o AS o ON true WHERE s.id = 3", nil, "id Uint64, rating Optional<Double>, released Optional<Date>, title Optional<Utf8>: (3, NULL, NULL, NULL)"},
		{"WHERE", "SELECT id FROM series WHERE rating > 8.4 OR title IS NULL", nil, "id Uint64: (1) (3)"},
		{"ORDER BY", "SELECT episode, views FROM episodes WHERE series = 1 ORDER BY views DESC, title", nil, "episode Optional<Uint64>, views Optional<Int64>: (1, 100) (1, 70) (2, 50)"},
		{"ORDER BY an expression or an alias", "$ids = (SELECT CAST(id AS Int64) AS id FROM series); SELECT id, -id AS neg FROM $ids ORDER BY neg; SELECT id FROM series ORDER BY id % 2, id DESC", nil, "id Optional<Int64>, neg Optional<Int64>: (3, -3) (2, -2) (1, -1) | id Uint64: (2) (3) (1)"},
		{"LIMIT", "SELECT id FROM series ORDER BY id LIMIT 1; SELECT id FROM series ORDER BY id DESC LIMIT $n", []string{"$n = 2ul"}, "id Uint64: (1) | id Uint64: (3) (2)"},
		{"aggregates", "SELECT COUNT(*), COUNT(views), MIN(views), MAX(title), COALESCE(MAX(views), 0l) + 1l AS next FROM episodes", nil, `column0 Uint64, column1 Uint64, column2 Optional<Int64>, column3 Optional<Utf8>, next Int64: (4, 3, 50, "Yesterday's Jam", 101)`},
		{"aggregates of no rows", "SELECT COUNT(*), MIN(views) FROM episodes WHERE false", nil, "column0 Uint64, column1 Optional<Int64>: (0, NULL)"},
		{"# not aggregated", "SELECT title, COUNT(*) FROM series", nil, "GENERIC_ERROR: 1:8: Column `title` must either be a key column in GROUP BY or it should be used in aggregation function"},
		{"# outside: groups", "SELECT COUNT(*) FROM series GROUP BY id", nil, "GENERIC_ERROR: 1:29: GROUP is outside of the supported subset of YQL"},
		{"# outside: distinct rows", "SELECT DISTINCT id FROM series", nil, "GENERIC_ERROR: 1:8: DISTINCT is outside of the supported subset of YQL"},
		{"JOIN", "SELECT s.id AS id, e.title AS t FROM series AS s JOIN episodes AS e ON e.series = s.id AND e.season = 1 ORDER BY id, t", nil, `id Uint64, t Optional<Utf8>: (1, "Calamity Jen") (1, "Yesterday's Jam") (2, "Minimum Viable Product")`},
		{"LEFT JOIN", "SELECT s.id AS id, e.title AS t FROM series AS s LEFT JOIN episodes AS e ON e.series = s.id AND e.season = 1 WHERE s.id > 1 ORDER BY id", nil, `id Uint64, t Optional<Utf8>: (2, "Minimum Viable Product") (3, NULL)`},
		{"# a join without an equality", "SELECT a.id AS a, b.id AS b FROM series AS a LEFT JOIN series AS b ON a.id > b.id + 1ul ORDER BY a", nil, "a Uint64, b Optional<Uint64>: (1, NULL) (2, NULL) (3, 1)"},
		{"# a join: rows without a key", "SELECT a.k AS k, s.id AS id FROM AS_TABLE([<|k: CAST('1' AS Uint64)|>, <|k: Nothing(Uint64?)|>]) AS a LEFT JOIN series AS s ON s.id = a.k ORDER BY k", nil, "k Optional<Uint64>, id Optional<Uint64>: (NULL, NULL) (1, 1)"},
		{"# a join after a left join", "SELECT b.id AS b, e.episode AS e FROM series AS a LEFT JOIN series AS b ON a.id = b.id + 1ul JOIN episodes AS e ON e.series = b.id WHERE b.id = 2", nil, "b Optional<Uint64>, e Optional<Uint64>: (2, 1)"},
		{"# outside: joins of all rows", "SELECT 1 FROM series AS a CROSS JOIN series AS b", nil, "GENERIC_ERROR: 1:27: CROSS is outside of the supported subset of YQL"},
		{"VIEW of an index", "SELECT id FROM series VIEW by_title WHERE title = 'IT Crowd'; SELECT id FROM series VIEW by_title AS s ORDER BY title DESC LIMIT 1", nil, "id Uint64: (1) | id Uint64: (2)"},
		{"AS_TABLE", "SELECT a, b FROM AS_TABLE($rows) WHERE a > 1", []string{"$rows = [<|a: 1, b: 'x'|>, <|a: 2, b: 'y'|>]"}, `a Int32, b String: (2, "y")`},
		{"a query as a value", "SELECT id, (SELECT MAX(views) FROM episodes) AS top FROM series WHERE id = (SELECT MIN(series) FROM episodes)", nil, "id Uint64, top Optional<Int64>: (1, 100)"},
		{"UNION ALL", "SELECT 1 AS a, 'x' AS b UNION ALL SELECT 2l AS a ORDER BY a DESC", nil, `a Int64, b Optional<String>: (2, NULL) (1, "x")`},
		{"several statements", "SELECT 1; SELECT 2 AS b; SELECT id FROM series WHERE false", nil, "column0 Int32: (1) | b Int32: (2) | id Uint64:"},
		{"ranges of keys", "SELECT title FROM episodes WHERE series = 1 AND season >= 2; SELECT title FROM episodes WHERE series = 1 AND season = 1 AND episode = 2 OR series = 2", nil, `title Optional<Utf8>: ("The Work Outing") | title Optional<Utf8>: ("Calamity Jen") ("Minimum Viable Product")`},
		{"# no such column", "SELECT nope FROM series", nil, "GENERIC_ERROR: 1:8: Column nope is not in scope"},
		{"# no such table", "SELECT 1 FROM nope", nil, "SCHEME_ERROR: 1:15: Cannot find table 'db.[/local/nope]' because it does not exist or you do not have access permissions. Please check correctness of table path and user permissions."},
		{"# no such index", "SELECT 1 FROM series VIEW nope", nil, "GENERIC_ERROR: 1:27: Required global index not found, index name: nope"},
		{"# ambiguous", "SELECT id FROM series AS a JOIN series AS b ON true", nil, "GENERIC_ERROR: 1:8: Column reference is ambiguous: id"},
		{"# aggregate in WHERE", "SELECT 1 FROM series WHERE COUNT(*) > 1", nil, "GENERIC_ERROR: 1:28: Aggregation function COUNT cannot be used here"},
		{"# duplicate", "SELECT 1 AS a, 2 AS a", nil, "GENERIC_ERROR: 1:16: Duplicate column name: a"},
		{"# outside: window", "SELECT MAX(views) OVER w FROM episodes", nil, "GENERIC_ERROR: 1:19: OVER is outside of the supported subset of YQL"},
		{"# outside: flatten", "SELECT 1 FROM series FLATTEN BY title", nil, "GENERIC_ERROR: 1:22: FLATTEN is outside of the supported subset of YQL"},
		{"# outside: joins of any row", "SELECT 1 FROM series AS a LEFT ANY JOIN series AS b ON a.id = b.id", nil, "GENERIC_ERROR: 1:27: LEFT ANY is outside of the supported subset of YQL"},
		{"# syntax", "SELECT 1\nFROM series\n  WHERE AND", nil, "GENERIC_ERROR: 3:9: unexpected 'AND', expected an expression"},
		{"# statement", "GRANT ALL", nil, "GENERIC_ERROR: 1:1: GRANT is outside of the supported subset of YQL"},
	}},
	{"Changing rows", "What a statement writes, the transaction sees at once and others after its commit.", []construct{
		{"INSERT", "INSERT INTO series (id, title) VALUES (4, 'New'), (5, $t); SELECT id, title, rating FROM series WHERE id > 3", []string{"$t = 'p'u"}, `id Uint64, title Optional<Utf8>, rating Optional<Double>: (4, "New", NULL) (5, "p", NULL)`},
		{"INSERT of an existing key", "INSERT INTO series (id) VALUES (1)", nil, "PRECONDITION_FAILED: Constraint violated. Table: `/local/series`: Conflict with existing key."},
		{"UPSERT keeps other columns", "UPSERT INTO series (id, title) VALUES (1, 'Changed'), (9, 'New'); SELECT id, title, rating FROM series WHERE id IN (1, 9)", nil, `id Uint64, title Optional<Utf8>, rating Optional<Double>: (1, "Changed", 8.5) (9, "New", NULL)`},
		{"REPLACE does not", "REPLACE INTO series (id, title) VALUES (1, 'Changed'); SELECT id, title, rating FROM series WHERE id = 1", nil, `id Uint64, title Optional<Utf8>, rating Optional<Double>: (1, "Changed", NULL)`},
		{"from a SELECT, by name", "UPSERT INTO series SELECT Unwrap(series) AS id, title FROM episodes WHERE season = 1 AND episode = 1; SELECT id, title FROM series ORDER BY id", nil, `id Uint64, title Optional<Utf8>: (1, "Yesterday's Jam") (2, "Minimum Viable Product") (3, NULL)`},
		{"# an Optional into NOT NULL", "UPSERT INTO series SELECT series AS id, title FROM episodes", nil, "GENERIC_ERROR: 1:20: Can't set NULL or optional value to not null column: id. All not null columns should be initialized"},
		{"from a SELECT, by place", "INSERT INTO episodes (series, season, episode, views) SELECT id, 9ul, 1ul, 5l FROM series WHERE id = 1; SELECT views FROM episodes WHERE season = 9", nil, "views Optional<Int64>: (5)"},
		{"from AS_TABLE", "UPSERT INTO series SELECT id, title FROM AS_TABLE($rows); SELECT COUNT(*) AS n FROM series", []string{"$rows = [<|id: 7ul, title: 'a'u|>, <|id: 8ul, title: 'b'u|>]"}, "n Uint64: (5)"},
		{"UPDATE", "UPDATE episodes SET views = views + 1, title = 'x' WHERE series = 1 AND season = 1; SELECT views, title FROM episodes WHERE series = 1", nil, `views Optional<Int64>, title Optional<Utf8>: (101, "x") (51, "x") (70, "The Work Outing")`},
		{"UPDATE ON", "UPDATE series ON SELECT 1ul AS id, 'on'u AS title UNION ALL SELECT 99ul AS id, 'no'u AS title; SELECT id, title FROM series WHERE id IN (1, 99)", nil, `id Uint64, title Optional<Utf8>: (1, "on")`},
		{"DELETE", "DELETE FROM episodes WHERE views > 60 OR views IS NULL; SELECT title FROM episodes; DELETE FROM episodes; SELECT COUNT(*) AS n FROM episodes", nil, `title Optional<Utf8>: ("Calamity Jen") | n Uint64: (0)`},
		{"DELETE ON", "DELETE FROM series ON SELECT 1ul AS id; DELETE FROM series ON (id) VALUES (2); SELECT id FROM series", nil, "id Uint64: (3)"},
		{"an index follows", "UPDATE series SET title = 'Z' WHERE id = 1; SELECT id FROM series VIEW by_title WHERE title = 'Z'; SELECT id FROM series VIEW by_title WHERE title = 'IT Crowd'", nil, "id Uint64: (1) | id Uint64:"},
		{"# twice in one insert", "INSERT INTO series (id) VALUES (4), (4)", nil, "PRECONDITION_FAILED: Constraint violated. Table: `/local/series`: Conflict with existing key."},
		{"# no key", "UPSERT INTO series (title) VALUES ('a')", nil, "GENERIC_ERROR: 1:1: Missing key column in input: id for table: /local/series"},
		{"# wrong type", "UPSERT INTO series (id, title) VALUES (1, 5)", nil, "GENERIC_ERROR: 1:43: Failed to convert 'title': Int32 to Optional<Utf8>"},
		{"# negative literal", "UPSERT INTO series (id) VALUES (-1)", nil, "GENERIC_ERROR: 1:33: Failed to convert 'id': Int32 to Uint64"},
		{"# NULL for NOT NULL", "UPSERT INTO series (id) VALUES (NULL)", nil, "GENERIC_ERROR: 1:33: Can't set NULL or optional value to not null column: id. All not null columns should be initialized"},
		{"# unknown column", "UPSERT INTO series (id, nope) VALUES (1, 2)", nil, "GENERIC_ERROR: 1:25: No such column: nope in table /local/series"},
		{"# number of values", "UPSERT INTO series (id, title) VALUES (1)", nil, "GENERIC_ERROR: 1:40: VALUES has 1 values in a row, but 2 columns are named"},
		{"# key", "UPDATE series SET id = 5", nil, "GENERIC_ERROR: 1:19: Cannot update primary key column: id"},
		{"# insert or", "INSERT OR IGNORE INTO series (id) VALUES (1)", nil, "GENERIC_ERROR: 1:8: INSERT OR is outside of the supported subset of YQL"},
		{"# outside: returning", "DELETE FROM series RETURNING id", nil, "GENERIC_ERROR: 1:20: RETURNING is outside of the supported subset of YQL"},
	}},
	{"Schema", "Schema statements run without transaction control, alone or together, not mixed with others.", []construct{
		{"CREATE TABLE", "CREATE TABLE t (a Uint64 NOT NULL, b Utf8 NULL, c Decimal(22,9), d Text, PRIMARY KEY (a, b), INDEX i GLOBAL SYNC ON (c) COVER (d), INDEX j GLOBAL ASYNC ON (d)) WITH (AUTO_PARTITIONING_BY_LOAD = ENABLED, UNIFORM_PARTITIONS = 4)", nil, ""},
		{"KEY_BLOOM_FILTER", "CREATE TABLE t (a Uint64, PRIMARY KEY (a)) WITH (KEY_BLOOM_FILTER = ENABLED, UNIFORM_PARTITIONS = 2)", nil, ""},
		{"# bloom filter", "CREATE TABLE t (a Uint64, PRIMARY KEY (a)) WITH (KEY_BLOOM_FILTER = 1)", nil, "GENERIC_ERROR: 1:69: unexpected '1', expected 'ENABLED' or 'DISABLED'"},
		{"ALTER TABLE with a bloom filter", "ALTER TABLE series SET (KEY_BLOOM_FILTER = DISABLED)", nil, ""},
		{"IF NOT EXISTS", "CREATE TABLE IF NOT EXISTS series (x Int32, PRIMARY KEY (x))", nil, ""},
		{"DROP TABLE", "DROP TABLE series; DROP TABLE IF EXISTS series; DROP TABLE IF EXISTS nope", nil, ""},
		{"ALTER TABLE", "ALTER TABLE series ADD COLUMN extra Int32, SET (X = 1)", nil, ""},
		{"# exists", "CREATE TABLE series (x Int32, PRIMARY KEY (x))", nil, "SCHEME_ERROR: Check failed: path: '/local/series', error: path exist"},
		{"# no key", "CREATE TABLE t (x Int32)", nil, "GENERIC_ERROR: 1:1: CREATE TABLE needs a PRIMARY KEY"},
		{"# key column", "CREATE TABLE t (x Int32, PRIMARY KEY (y))", nil, "SCHEME_ERROR: Cannot create table /local/t: the primary key has the unknown column y"},
		{"# key type", "CREATE TABLE t (x Double, PRIMARY KEY (x))", nil, "SCHEME_ERROR: Cannot create table /local/t: column x of type Double cannot be part of the primary key"},
		{"# column type", "CREATE TABLE t (x List<Int32>, y Int32, PRIMARY KEY (y))", nil, "SCHEME_ERROR: Cannot create table /local/t: column x: type List<Int32> cannot be stored"},
		{"# missing", "DROP TABLE nope", nil, "SCHEME_ERROR: Path does not exist: /local/nope"},
		{"# mixed", "CREATE TABLE t (x Int32, PRIMARY KEY (x)); SELECT 1", nil, "GENERIC_ERROR: Queries with mixed data and scheme operations are not supported. Use separate queries for different types of operations."},
		{"# outside: unique", "CREATE TABLE t (x Int32, PRIMARY KEY (x), INDEX i GLOBAL UNIQUE ON (x))", nil, "GENERIC_ERROR: 1:58: UNIQUE is outside of the supported subset of YQL"},
		{"# outside: changefeed", "ALTER TABLE series ADD CHANGEFEED f WITH (MODE = 'UPDATES')", nil, "GENERIC_ERROR: 1:20: ALTER TABLE with ADD CHANGEFEED is outside of the supported subset of YQL"},
		{"# outside: an index for a table that is there", "ALTER TABLE series ADD INDEX i GLOBAL ON (released)", nil, "GENERIC_ERROR: 1:20: ALTER TABLE with ADD INDEX is outside of the supported subset of YQL"},
		{"# outside: columns that go", "ALTER TABLE series DROP COLUMN rating", nil, "GENERIC_ERROR: 1:20: unexpected 'DROP', expected 'ADD COLUMN' or 'SET'"},
		{"# outside: view", "CREATE VIEW v AS SELECT 1", nil, "GENERIC_ERROR: 1:8: VIEW is outside of the supported subset of YQL"},
	}},
}
