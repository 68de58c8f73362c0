"""Values: what Python's become, and what becomes Python's."""

import datetime
import decimal
import math
import unittest
import uuid

from ydb_sidecar import Json, Typed, Variant
from ydb_sidecar._result import Column, Names
from ydb_sidecar._values import converter, declared_in, parameter, to_json, type_of

UTC = datetime.timezone.utc
SOME = uuid.UUID("5ca32c22-841b-11e8-adc0-fa7ae01bbebc")

# YQL type, its JSON form, Python's value. Each is read, and written back to the same JSON unless the type says otherwise.
VALUES = [
    ("Bool", True, True),
    ("Int8", -128, -128),
    ("Uint64", 18446744073709551615, 18446744073709551615),
    ("Double", 0.5, 0.5),
    ("Decimal(22,9)", "1.5", decimal.Decimal("1.5")),
    ("Utf8", "text", "text"),
    ("Json", '{"a":1}', '{"a":1}'),
    ("Uuid", str(SOME), SOME),
    ("Date", "2024-01-31", datetime.date(2024, 1, 31)),
    ("Datetime", "2024-01-31T10:00:00Z", datetime.datetime(2024, 1, 31, 10, tzinfo=UTC)),
    ("Timestamp", "2024-01-31T10:00:00.123456Z", datetime.datetime(2024, 1, 31, 10, 0, 0, 123456, UTC)),
    ("Interval", "PT1.5S", datetime.timedelta(seconds=1.5)),
    ("Interval", "-PT1S", datetime.timedelta(seconds=-1)),
    ("Interval", "P1DT2H3M4.5S", datetime.timedelta(1, 7384, 500000)),
    ("Interval", "PT0S", datetime.timedelta()),
    ("Interval64", "P106751616D", datetime.timedelta(106751616)),
    ("Interval", "PT1H0.5S", datetime.timedelta(0, 3600, 500000)),
    ("TzDate", "2024-01-31,Europe/Moscow", "2024-01-31,Europe/Moscow"),
    ("Date32", "-144168-01-01", "-144168-01-01"),
    ("Timestamp64", "+148107-12-31T00:00:00Z", "+148107-12-31T00:00:00Z"),
    ("Optional<Int32>", None, None),
    ("Optional<Date>", "2024-01-31", datetime.date(2024, 1, 31)),
    ("Optional<Optional<Uuid>>", [None], [None]),
    ("Optional<Optional<Uuid>>", [str(SOME)], [SOME]),
    ("List<Uuid>", [str(SOME)], [SOME]),
    ("List<Optional<Utf8>>", ["a", None], ["a", None]),
    ("Tuple<Int32,Uuid>", [1, str(SOME)], (1, SOME)),
    ("Struct<a:Int32,b:Optional<Uuid>>", {"a": 1, "b": None}, {"a": 1, "b": None}),
    ("Struct<`first name`:Uuid,'x':Int32>", {"first name": str(SOME), "x": 1}, {"first name": SOME, "x": 1}),
    ("Dict<Uint64,Utf8>", [[1, "a"]], {1: "a"}),
    ("Dict<Struct<a:Int32>,Utf8>", [[{"a": 1}, "a"]], [({"a": 1}, "a")]),
    ("Variant<num:Int32,txt:Utf8>", {"txt": "a"}, Variant("txt", "a")),
    ("Variant<Int32,Uuid>", {"index": 1, "value": str(SOME)}, Variant(1, SOME)),
    ("Tagged<Uuid,'tag'>", str(SOME), SOME),
    ("Void", None, None),
    ("EmptyList", [], []),
    ("pgint4", "5", "5"),
]


class Values(unittest.TestCase):
    def test_are_read_and_written_back(self):
        for yql, json, value in VALUES:
            with self.subTest(yql, json=json):
                self.assertEqual(Names([Column("v", yql)]).row([json]), {"v": value})
                if not yql.startswith("Dict<Struct"):
                    self.assertEqual(to_json(value), json)

    def test_of_one_way(self):
        self.assertEqual(converter("String")("AP8="), b"\x00\xff")
        self.assertEqual(to_json(b"\x00\xff"), {"base64": "AP8="})
        self.assertEqual(converter("Set<Utf8>")(["a", "b"]), {"a", "b"})
        self.assertIsInstance(converter("Double")(5), float)
        self.assertTrue(math.isnan(converter("Float")("NaN")))
        self.assertEqual([to_json(one) for one in (math.nan, math.inf, -math.inf)], ["NaN", "Infinity", "-Infinity"])
        self.assertEqual(converter("pgbytea")({"base64": "AP8="}), b"\x00\xff")
        self.assertEqual(to_json(decimal.Decimal("1E-9")), "0.000000001")
        self.assertEqual(to_json(Json({"a": [1]})), '{"a":[1]}')
        moscow = datetime.timezone(datetime.timedelta(hours=3))
        self.assertEqual(to_json(datetime.datetime(2024, 1, 31, 13, tzinfo=moscow)), "2024-01-31T10:00:00Z")
        with self.assertRaisesRegex(ValueError, "time zone"):
            to_json(datetime.datetime(2024, 1, 31))
        with self.assertRaises(TypeError):
            to_json(object())

    def test_have_types_where_json_has_none(self):
        for value, kind in (
            (1, ""), ("a", ""), (1.5, ""), ([1, 2], ""), ({"a": 1}, ""), (None, ""), (b"a", "String"),
            (decimal.Decimal(1), "Decimal(22,9)"),
            (datetime.date(2024, 1, 1), "Date"), (datetime.datetime(2024, 1, 1, tzinfo=UTC), "Timestamp"), (SOME, "Uuid"),
            (datetime.timedelta(1), "Interval"), (Json(1), "Json"), (math.nan, "Double"), ([b"a", None], "List<Optional<String>>"),
            ([{"id": 1, "at": datetime.date(2024, 1, 1)}], "List<Struct<`id`:Int64,`at`:Date>>"), (Typed("Int16", 5), "Int16"),
            ({"type": "a", "value": 1}, "Struct<`type`:Utf8,`value`:Int64>"),
        ):  # fmt: skip
            with self.subTest(value=value):
                self.assertEqual(parameter("p", value, {})[0], kind)
        self.assertEqual(type_of(1 << 63), "Uint64")
        for unclear in ([b"a", "a"], [None, b""][:1] + [[]], {"a": None, "b": b""}):
            with self.subTest(value=unclear), self.assertRaises(ValueError):
                type_of(unclear)

    def test_have_the_types_that_the_statement_declares(self):
        known = declared_in("declare $a as Optional<String>; DECLARE $b AS Utf8;\nSELECT $a, $b, $c")
        self.assertEqual(known, {"a": "Optional<String>", "b": "Utf8"})
        self.assertEqual(parameter("$a", b"x", known), ("", b"x"))
        with self.assertRaisesRegex(TypeError, "decode"):
            parameter("b", b"x", known)

    def test_columns_of_one_name(self):
        names = Names([Column(name, "Int32") for name in ("a", "a", "a_2", "a", "b")])
        self.assertEqual(names.keys, ["a", "a_3", "a_2", "a_4", "b"])
        row = names.row([1, 2, 3, 4, 5])
        self.assertEqual((row.a, row.a_3, row["b"]), (1, 2, 5))
        with self.assertRaisesRegex(AttributeError, "no column 'c'"):
            _ = row.c


if __name__ == "__main__":
    unittest.main()
