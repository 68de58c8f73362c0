"""Values of YQL types as Python's, and back. The documentation of types has the JSON form of each."""

from __future__ import annotations

import base64
import json
import math
import re
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

Convert = Optional[Callable[[Any], Any]]  # None: the value is right as it is


class Typed(NamedTuple):
    """A parameter with its YQL type: ``Typed("Decimal(22,9)", "1.5")``."""

    type: str
    value: Any


class Json(NamedTuple):
    """A parameter of the type Json: ``Json({"a": 1})``. Results have the text of the document."""

    value: Any


class Variant(NamedTuple):
    """A value of a Variant: its member (a name, or a number in a Variant over a Tuple) and what it holds."""

    member: Union[str, int]
    value: Any


# From Python.

_SPECIAL = (bytes, Decimal, date, timedelta, uuid.UUID, Typed, Json)  # JSON has nothing for them; a datetime is a date


def to_json(value: Any) -> Any:
    """A value in the JSON form of its type."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Typed):
        return to_json(value.value)
    if isinstance(value, Variant):
        if isinstance(value.member, int):
            return {"index": value.member, "value": to_json(value.value)}
        return {value.member: to_json(value.value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_json(item) for key, item in value.items()}
        return [[to_json(key), to_json(item)] for key, item in value.items()]  # a Dict
    text = to_text(value)
    if text is not None:
        return text
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    raise TypeError(f"no YQL value for {type(value).__name__}")


def to_text(value: Any) -> Optional[str]:
    """The text of a value whose type has one: dates, decimals and the like. None for others."""
    if isinstance(value, Json):
        return json.dumps(value.value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else "nan" if value.is_nan() else "inf" if value > 0 else "-inf"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone, and YDB keeps UTC: give it one, such as timezone.utc")
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _interval_text(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    return None


def _interval_text(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    clock = ((value.seconds // 3600, "H"), (value.seconds // 60 % 60, "M"), (value.seconds % 60, "S"))
    day = "".join(f"{count}{unit}" for count, unit in clock if count)
    if value.microseconds:
        day = day.rstrip("S") if value.seconds % 60 else day + "0"
        day += f".{value.microseconds:06d}".rstrip("0") + "S"
    whole = f"{value.days}D" if value.days else ""
    return f"{sign}P{whole}" + (f"T{day}" if day else "" if whole else "T0S")


def parameter(name: str, value: Any, declared: Mapping[str, str]) -> Tuple[str, Any]:
    """The type that must go with a parameter, and its value. "": the plain rule or a DECLARE gives the type."""
    if isinstance(value, Typed):
        return value.type, value.value
    known = declared.get(name.lstrip("$"))
    if known is None:
        return (type_of(value) if _needs_type(value) else ""), value
    if isinstance(value, (bytes, bytearray)) and not re.search(r"String|Bytes|Yson|\bpg", known, re.I):
        raise TypeError(f"parameter {name} is {known}, and bytes are a String: decode them")
    return "", value


_DECLARE = re.compile(r"\bDECLARE\s+\$(\w+)\s+AS\s+([^;]+)", re.IGNORECASE)


@lru_cache(maxsize=1024)
def declared_in(sql: str) -> Mapping[str, str]:
    """The parameters that a text declares, with their types."""
    return dict(_DECLARE.findall(sql))


def _needs_type(value: Any) -> bool:
    """Reports whether JSON loses the type of a value."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, _SPECIAL):
        return True
    if isinstance(value, Mapping):
        return value.keys() == {"type", "value"} or any(map(_needs_type, value.values()))
    return isinstance(value, (list, tuple)) and not isinstance(value, Variant) and any(map(_needs_type, value))


def type_of(value: Any) -> str:
    """The YQL type of a value by its Python type."""
    for python, name in (
        (bool, "Bool"), (float, "Double"), (str, "Utf8"), (bytes, "String"), (Decimal, "Decimal(22,9)"), (datetime, "Timestamp"),
        (date, "Date"), (timedelta, "Interval"), (uuid.UUID, "Uuid"), (Json, "Json"),
    ):  # fmt: skip
        if isinstance(value, python):
            return name
    if isinstance(value, int):
        return "Int64" if -(1 << 63) <= value < 1 << 63 else "Uint64"
    if isinstance(value, Typed):
        return value.type
    if isinstance(value, Mapping):
        return "Struct<" + ",".join(f"`{name}`:{type_of(item)}" for name, item in value.items()) + ">"
    if isinstance(value, (list, tuple)):
        kinds = {type_of(item) for item in value if item is not None}
        if kinds == {"Int64", "Double"}:
            kinds = {"Double"}
        if len(kinds) == 1:
            kind = kinds.pop()
            return f"List<Optional<{kind}>>" if None in value else f"List<{kind}>"
    raise ValueError(f"the type of {value!r} is not certain: write DECLARE in the statement, or use types or Typed")


# To Python.


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else base64.b64decode(value)


def _either(value: Any) -> Any:
    """Yson and PostgreSQL types: text, or bytes where that is no text."""
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def _date(text: str) -> Union[date, str]:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text  # a year that Python's dates do not have


def _datetime(text: str) -> Union[datetime, str]:
    whole, _, fraction = text.rstrip("Z").partition(".")
    try:
        moment = datetime.fromisoformat(whole)
    except ValueError:
        return text
    return moment.replace(microsecond=int(fraction.ljust(6, "0") or 0), tzinfo=timezone.utc)


_INTERVAL = re.compile(r"(-?)P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d+))?S)?)?")


def _interval(text: str) -> Union[timedelta, str]:
    parts = _INTERVAL.fullmatch(text)
    if parts is None:
        return text
    sign, weeks, days, hours, minutes, seconds, fraction = parts.groups(default="0")
    length = timedelta(
        weeks=int(weeks), days=int(days), hours=int(hours), minutes=int(minutes), seconds=int(seconds),
        microseconds=int(fraction.ljust(6, "0")),
    )  # fmt: skip
    return -length if sign == "-" else length


_SCALARS: Dict[str, Convert] = {
    "float": float, "double": float, "decimal": Decimal, "dynumber": Decimal, "string": _bytes, "yson": _either,
    "uuid": uuid.UUID, "date": _date, "date32": _date, "datetime": _datetime, "datetime64": _datetime, "timestamp": _datetime,
    "timestamp64": _datetime, "interval": _interval, "interval64": _interval,
}  # fmt: skip


@lru_cache(maxsize=4096)
def converter(yql: str) -> Convert:
    """What makes Python's value of the JSON form of a type."""
    convert, _, rest = _type(yql)
    if rest.strip():
        raise ValueError(f"not a YQL type: {yql!r}")
    return convert


_NAME = re.compile(r"\s*(\w+)\s*")


def _type(text: str) -> Tuple[Convert, bool, str]:
    """Reads a type from the front of a text. Returns whether its values may be null, and what is left, too."""
    found = _NAME.match(text)
    if found is None:
        raise ValueError(f"not a YQL type: {text!r}")
    name, rest = found[1].lower(), text[found.end() :]
    if rest.startswith("("):  # Decimal(22,9), Pg(16385)
        rest = rest[rest.index(")") + 1 :]
    names: List[str] = []
    items: List[Convert] = []
    if rest.startswith("<"):
        names, items, nulls, rest = _arguments(rest[1:])
        if name == "optional" and nulls[0]:
            return _nested(items), True, rest  # a list of one, or null
    if name in _COMPOUND:
        return _COMPOUND[name](names, items), name == "optional", rest
    if name.startswith(("pg", "_pg")):
        return _either, True, rest
    return _SCALARS.get(name), name in ("void", "null"), rest


def _arguments(rest: str) -> Tuple[List[str], List[Convert], List[bool], str]:
    """Reads what stands in angle brackets: names, types, and which of them may be null."""
    names: List[str] = []
    items: List[Convert] = []
    nulls: List[bool] = []
    rest = rest.lstrip()
    while not rest.startswith(">"):
        label = re.match(r"\s*(?:`((?:[^`\\]|\\.)*)`|'((?:[^'\\]|\\.)*)'|(\w+))\s*:", rest)
        if label is not None:
            names.append(re.sub(r"\\(.)", r"\1", next(part for part in label.groups() if part is not None)))
            rest = rest[label.end() :]
        if rest.lstrip().startswith(("'", "`")):  # the tag of a Tagged
            rest = re.sub(r"^\s*(?:'[^']*'|`[^`]*`)\s*", "", rest)
        else:
            item, null, rest = _type(rest)
            items.append(item)
            nulls.append(null)
        rest = rest.lstrip()
        if rest.startswith(","):
            rest = rest[1:].lstrip()
        elif not rest.startswith(">"):
            raise ValueError(f"not a YQL type: {rest!r}")
    return names, items, nulls, rest[1:].lstrip()


def _apply(convert: Convert, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _optional(names: Sequence[str], items: Sequence[Convert]) -> Convert:
    return items[0]  # null is passed by


def _nested(items: Sequence[Convert]) -> Callable[[Any], Any]:
    inner = items[0]
    return lambda value: [_apply(inner, item) for item in value]


def _list(names: Sequence[str], items: Sequence[Convert]) -> Convert:
    return None if items[0] is None else _nested(items)


def _tuple(names: Sequence[str], items: Sequence[Convert]) -> Convert:
    return lambda value: tuple(_apply(item, one) for item, one in zip(items, value))


def _struct(names: Sequence[str], items: Sequence[Convert]) -> Convert:
    members = dict(zip(names, items))
    return lambda value: {name: _apply(members.get(name), item) for name, item in value.items()}


def _dict(names: Sequence[str], items: Sequence[Convert]) -> Convert:
    key, item = items

    def convert(value: Any) -> Any:
        pairs = [(_apply(key, one), _apply(item, other)) for one, other in value]
        try:
            return dict(pairs)
        except TypeError:
            return pairs  # keys that Python cannot hash

    return convert


def _set(names: Sequence[str], items: Sequence[Convert]) -> Convert:
    def convert(value: Any) -> Any:
        all_items = [_apply(items[0], item) for item in value]
        try:
            return set(all_items)
        except TypeError:
            return all_items

    return convert


def _variant(names: Sequence[str], items: Sequence[Convert]) -> Convert:
    if not names:
        return lambda value: Variant(value["index"], _apply(items[value["index"]], value["value"]))
    members = dict(zip(names, items))

    def convert(value: Any) -> Any:
        ((name, item),) = value.items()
        return Variant(name, _apply(members.get(name), item))

    return convert


_COMPOUND: Dict[str, Callable[[Sequence[str], Sequence[Convert]], Convert]] = {
    "optional": _optional, "list": _list, "tuple": _tuple, "struct": _struct, "dict": _dict, "set": _set, "variant": _variant,
    "tagged": _optional,
}  # fmt: skip
