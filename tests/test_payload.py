"""Exact JSON: what is decoded equals what was encoded, and what JSON can't hold is refused."""

import collections
import enum
import json
import re
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from histories import containers, texts, values
from turnkeep.errors import InvalidEntry
from turnkeep.payload import (
    MAX_DEPTH,
    MAX_DIGITS,
    Json,
    decode,
    decode_document,
    encode,
    encode_again,
    is_storable,
    join_surrogates,
    layout,
)

T = TypeVar("T")

LARGEST = 10**MAX_DIGITS - 1
NOT_A_NUMBER = float("nan")
CYCLE: list[Any] = [{"a": 1}]
CYCLE[0]["b"] = [0, CYCLE]

NUMBERS = [None, False, True, 0, 1, 0.0, -0.0, 1.0, 10**16, 1e16, 2**64, 2.0**64]
STRINGS = ["", "0", "null", "\N{GRINNING FACE}", "\ud83d", "\ude00", "\\ud83d", "\0", "\x7f"]

# Small values that are like one another in all but what counts.
alike = st.recursive(
    st.sampled_from(NUMBERS) | st.sampled_from(STRINGS),
    lambda children: (
        st.lists(children, max_size=2)
        | st.dictionaries(st.sampled_from(["", "a", "b", "\0", "\ud83d"]), children, max_size=2)
    ),
    max_leaves=3,
)
pairs = texts.map(join_surrogates) | st.characters(min_codepoint=0x10000)
with_pairs = st.recursive(pairs, containers, max_leaves=6)


class Text(str):
    """Not exactly a str."""

    __slots__ = ()


class Number(int):
    """Not exactly an int."""


class Fraction(float):
    """Not exactly a float."""


class Items(list[Any]):
    """Not exactly a list."""


class Fields(dict[str, Any]):
    """Not exactly a dict."""


class Colour(enum.Enum):
    RED = "red"


class Level(enum.StrEnum):
    HIGH = "high"


class Rank(enum.IntEnum):
    ONE = 1


class Struct(msgspec.Struct):
    """What msgspec itself would encode."""

    a: int = 1


def same(one: object, other: object) -> bool:
    """Whether two JSON values are equal, types, signs of zero and the order of keys included."""
    return repr(one) == repr(other)


def joined(value: Json) -> Json:
    """*value* with each surrogate pair that stands as two code points as one."""
    if isinstance(value, str):
        return re.sub(
            "([\ud800-\udbff])([\udc00-\udfff])",
            lambda pair: chr(0x10000 + (ord(pair[1]) - 0xD800) * 0x400 + ord(pair[2]) - 0xDC00),
            value,
        )
    if isinstance(value, list):
        return [joined(item) for item in value]
    if isinstance(value, dict):
        return {str(joined(key)): joined(item) for key, item in value.items()}
    return value


def split(value: Json) -> Json:
    """*value* with each character outside the basic plane as two code points."""
    if isinstance(value, str):
        units = value.encode("utf-16-le", "surrogatepass")
        return "".join(chr(units[i] + 256 * units[i + 1]) for i in range(0, len(units), 2))
    if isinstance(value, list):
        return [split(item) for item in value]
    if isinstance(value, dict):
        return {str(split(key)): split(item) for key, item in value.items()}
    return value


def nested(levels: int, innermost: Any = None) -> Any:
    """*levels* lists and objects inside one another, around *innermost* if there is one."""
    value = innermost
    for level in range(levels):
        empty = value is None
        value = ([] if empty else [value]) if level % 2 else ({} if empty else {"x": value})
    return value


def shared(times: int, levels: int, innermost: Any = 0) -> Any:
    """Lists that each hold the next one *times* over, so that few objects are many values."""
    value = innermost
    for _ in range(levels):
        value = [value] * times
    return value


def deep_down(frames: int, work: Callable[[], T]) -> T:
    """What *work* gives where only so many frames are left to the interpreter."""
    used, frame = 0, sys._getframe()
    while frame.f_back is not None:
        used, frame = used + 1, frame.f_back

    def descend(more: int) -> T:
        return descend(more - 1) if more else work()

    return descend(sys.getrecursionlimit() - used - frames)


@given(values)
@example([-0.0, 0.0, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, 2.0, 123456789012345680.0])
@example([2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, LARGEST, -LARGEST])
@example({"b": 1, "a": {"z": [], "y": {}, "": ""}, "aa": [{}, [[]]]})
@example(["\0", "\x7f", "\u2028\u2029", "\ufffe\uffff", "\ud83d", "\ude00\ud83d", '"\\/', "\x1b"])
@example({"\0": 1, "\ud83d": {"\ude00": "\N{GRINNING FACE}"}, "\u2028": 2})
def test_what_is_decoded_is_what_was_encoded(value: Json) -> None:
    text = encode(joined(value))
    assert same(decode(text), joined(value))
    assert same(json.loads(text), joined(value)), "the text means to others what it means to us"


@given(alike, alike)
@example(1, 1.0)
@example(0.0, -0.0)
@example({"a": 1, "b": 2}, {"b": 2, "a": 1})
@example(10**16, 1e16)
@example("\ud83d", "\\ud83d")
def test_equal_values_have_one_text_and_others_have_others(one: Json, other: Json) -> None:
    assert (encode(one) == encode(other)) == same(one, other)


@given(values)
def test_a_text_is_encoded_to_itself(value: Json) -> None:
    text = encode(joined(value))
    assert encode(decode(text)) == encode_again(decode(text)) == text


@given(with_pairs)
@example({"\ud83d": "\N{GRINNING FACE}"})
def test_a_surrogate_pair_is_the_character_it_means(value: Json) -> None:
    assert encode(split(value)) == encode(value)
    assert same(decode(encode(split(value))), value)


def test_text_stays_readable_and_compact() -> None:
    value: Json = {"ü": ["\u2028", "\N{GRINNING FACE}", 1e16, 1.0, None, True, {}, []]}
    assert encode(value) == '{"ü":["\u2028","\N{GRINNING FACE}",1e16,1.0,null,true,{},[]]}'
    assert encode(["ü", "\ud83d"]) == r'["\u00fc","\ud83d"]', "what has no UTF-8 is escaped"


REFUSED = [
    (NOT_A_NUMBER, "nan is not JSON"),
    (float("inf"), "inf is not JSON"),
    (-float("inf"), "-inf is not JSON"),
    (LARGEST + 1, "more than 4300 digits"),
    (-LARGEST - 1, "more than 4300 digits"),
    (10**5000, "more than 4300 digits"),
    (b"bytes", "builtins.bytes is not a JSON type"),
    (bytearray(b"bytes"), "builtins.bytearray is not"),
    (memoryview(b"bytes"), "builtins.memoryview is not"),
    (datetime(2026, 1, 1, tzinfo=UTC), "datetime.datetime is not"),
    (uuid.UUID(int=1), "uuid.UUID is not"),
    (Decimal(1), "decimal.Decimal is not"),
    (PurePath("a"), "pathlib.Pure"),
    (Colour.RED, "Colour is not"),
    (Level.HIGH, "Level is not"),
    (Rank.ONE, "Rank is not"),
    ((1, 2), "builtins.tuple is not"),
    ({1, 2}, "builtins.set is not"),
    (frozenset[int](), "builtins.frozenset is not"),
    (range(2), "builtins.range is not"),
    (iter([1]), "builtins.list_iterator is not"),
    (1j, "builtins.complex is not"),
    (Text("a"), "Text is not"),
    (Number(1), "Number is not"),
    (Fraction(1), "Fraction is not"),
    (Items(), "Items is not"),
    (Fields(), "Fields is not"),
    (collections.OrderedDict(a=1), "collections.OrderedDict is not"),
    (Struct(), "Struct is not"),
    (msgspec.UNSET, "is not a JSON type"),
    (msgspec.Raw(b"1"), "msgspec.Raw is not"),
    (..., "builtins.ellipsis is not"),
    (object, "builtins.type is not"),
    ({1: "a", "1": "b"}, "a key is of type int"),
    ({True: "a"}, "a key is of type bool"),
    ({None: "a"}, "a key is of type NoneType"),
    ({1.0: "a"}, "a key is of type float"),
    ({b"a": "a"}, "a key is of type bytes"),
    ({("a",): "a"}, "a key is of type tuple"),
    ({Text("a"): "a"}, "a key is of type Text"),
    ({Level.HIGH: "a"}, "a key is of type Level"),
    ({"\ud83d\ude00": 1, "\N{GRINNING FACE}": 2}, "two keys are the same"),
    (shared(2, 60), "more values"),
    (shared(300_000, 3), "more values"),
    (nested(MAX_DEPTH + 1), "nested deeper than 200 levels"),
    (nested(100_000), "nested deeper than 200 levels"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_json_cannot_hold_is_refused(value: object, reason: str) -> None:
    """Not coerced, as encoders do with most of these; and with no more work than it is worth."""
    with pytest.raises(InvalidEntry, match=re.escape(reason)) as plain:
        encode(value)
    assert plain.value.path.startswith("$")
    with pytest.raises(InvalidEntry, match=re.escape(reason)) as inside:
        encode(["\ud83d", {"a": 1, "odd key": value}], "$.message")
    assert inside.value.path.startswith('$.message[1]["odd key"]') or "more values" in reason
    assert plain.value.__context__ is inside.value.__context__ is None  # which would hold the text
    with pytest.raises(InvalidEntry, match=re.escape(reason)):
        encode(shared(2, 60, value))


@given(values, st.data())
def test_the_first_fault_is_named(value: Json, data: st.DataObject) -> None:
    """Wherever faults stand, the path is that of the first one in the order of the text."""
    places: list[tuple[str, Any, Any]] = []

    def walk(path: str, item: Any) -> None:
        steps = item.items() if isinstance(item, dict) else enumerate(item)
        for key, child in steps:
            simple = isinstance(key, str) and re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key)
            below = f"{path}.{key}" if simple else f"{path}[{json.dumps(key)}]"
            places.append((below, item, key))
            if isinstance(child, list | dict):
                walk(below, child)

    root: list[Any] = [joined(value), {"a": {"b": 1}, "": [2]}]
    walk("$", root)
    chosen = data.draw(st.sets(st.integers(0, len(places) - 1), min_size=1, max_size=3))
    # From the last to the first, or a fault would take away the place of the next.
    for number in sorted(chosen, reverse=True):
        _, container, key = places[number]
        container[key] = data.draw(st.sampled_from([NOT_A_NUMBER, b"", (), 10**4300, {1: 1}]))
    with pytest.raises(InvalidEntry) as refused:
        encode(root)
    assert refused.value.path == places[min(chosen)][0]
    assert str(refused.value) == f"{refused.value.path}: {refused.value.reason}"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (CYCLE, "$[0].b[1]"),
        ({"a": [0, CYCLE]}, "$.a[1][0].b[1]"),
        ([nested(MAX_DEPTH, 1)], "$[0]" + "[0].x" * (MAX_DEPTH // 2 - 1) + "[0]"),
        ({"k" * 61: b""}, f'$["{"k" * 57}..."]'),
        ({"a b": {"\u00fc\n": b""}}, '$["a b"]["\\u00fc\\n"]'),
        ([[[]], {"x": {1: 2}}], "$[1].x"),
        ([[], {"a": [{"\ud83d\ude00": 1, "\N{GRINNING FACE}": 2}]}], "$[1].a[0]"),
    ],
)
def test_a_fault_is_named_by_the_path_that_leads_to_it(value: object, path: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        encode(value)
    assert refused.value.path == path


def test_what_is_shared_is_no_cycle() -> None:
    one: Json = {"a": [1, {}]}
    value = [one, [one, one], {"b": one}]
    assert same(decode(encode(value)), value)
    assert same(decode(encode(shared(2, 15))), shared(2, 15))
    wide = [list(range(1000))] * 1500  # more values than a quick look is for
    assert same(decode(encode(wide)), wide)
    with pytest.raises(InvalidEntry) as refused:
        encode([*wide, [0, NOT_A_NUMBER]])
    assert refused.value.path == "$[1500][1]"


@pytest.mark.parametrize("innermost", [None, 1, "\ud83d", LARGEST], ids=str)
@pytest.mark.parametrize("frames", [60, 150, 250, 500])
def test_no_result_depends_on_how_deep_the_caller_stands(frames: int, innermost: Any) -> None:
    value = nested(MAX_DEPTH, innermost)
    text = encode(value)
    assert deep_down(frames, lambda: encode(value)) == text
    assert deep_down(frames, lambda: layout(value)) == layout(value)
    assert deep_down(frames, lambda: encode(decode(text))) == text
    with pytest.raises(InvalidEntry, match="nested deeper"):
        deep_down(frames, lambda: encode([value]))
    with pytest.raises(ValueError, match="nested too deep"):
        deep_down(frames, lambda: decode("[" * 100_000 + "]" * 100_000))


@given(values, st.booleans(), st.sampled_from([None, 0, 2]))
def test_json_in_any_spelling_is_read(value: Json, escaped: bool, indent: int | None) -> None:
    text = json.dumps(joined(value), ensure_ascii=escaped, indent=indent)
    assert same(decode(text), joined(value))


@given(st.text('[]{}",:-+.eE0123456789 \t\n\0\\u"dDcC8/bn'), st.booleans())
@example("1e400", False)
@example("[1e400]", True)
@example("1" * 5000, True)
@example('{"a":1,"a":2}', False)
@example("[1,]", False)
@example('"\t"', False)
@example("01", False)
@example("\ufeff1", False)
@example("[" * 100_000, True)
def test_text_is_read_as_the_standard_has_it_or_is_a_value_error(text: str, odd: bool) -> None:
    """By both of the decoders: a surrogate leads to the second one."""
    if odd:
        text = f'["\\ud83d",{text}]'
    try:
        expected = json.loads(text, parse_float=_finite)
    except (ValueError, RecursionError):
        with pytest.raises(ValueError, match=r"(?s)."):
            decode(text)
    else:
        assert same(decode(text), expected)


def _finite(text: str) -> float:
    if abs(number := float(text)) == float("inf"):
        raise ValueError(text)
    return number


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}', '["\\ud83d", NaN]', ""])
def test_what_is_not_json_is_refused_on_reading(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a":[1e400]}', "$.a[0]"),
        ('{"a":[0,-1e400,NaN]}', "$.a[1]"),
        ('{"a":{"b":NaN}}', "$.a.b"),
        (f'{{"a":[1],"b":{"1" * 5000}}}', "$.b"),
        (f'["\\ud83d",-{"9" * 4301}]', "$[1]"),
    ],
)
def test_a_document_with_a_number_that_python_cannot_hold_tells_where(text: str, path: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        encode(decode_document(text))
    assert refused.value.path == path


@given(texts)
def test_storable_is_what_postgres_takes_as_text(text: str) -> None:
    assert is_storable(text) == ("\0" not in text and not re.search("[\ud800-\udfff]", text))
