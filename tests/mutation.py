"""Inputs that nobody meant: valid ones with a few random changes, in their bytes or their values.

A change is drawn from a `random.Random`, so that an input is known by its seed. What is changed is
a copy, and most of it stays valid: an input that is wrong all over gets no further than the first
check.
"""

import enum
import random
import re
import uuid
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NoReturn

from turnkeep.history import Attachment, Tokens, ToolCall

MARK = "Pssst!"
"""Stands in every text that says something: no error may show it."""

_MARKED = {
    *("content", "text", "name", "filename", "file_name", "display_name", "title", "thinking"),
    *("signature", "model", "model_id", "id", "tool_call_id", "call_id", "tool_use_id", "refusal"),
    *("reasoning_content", "input", "cwd", "reasoning", "skill"),
}
_MARKED_BELOW = ("arguments", "input", "data")

SIGNS = [
    "\0", "\ud83d", "\ude00", "\ud83d\ude00", "\u2028", "\ufeff", "\u202e", "\u0301", "\x7f",
    "\x85", "\x1b", "\n", "\r", " ", "é", "\N{GRINNING FACE}", "\U0010ffff", "\uffff", '"', "\\",
    "/", "../", "%00", "%", "=", "==", "-_", ",", ":", ";base64,", "data:", "data:a/b;base64,",
    "{}", "[]", "0", "Z", "+25:00", "T", "'", "--", "$", "~", "*", "\N{ARABIC-INDIC DIGIT ONE}",
]  # fmt: skip
"""Texts that mean something somewhere."""

FRAGMENTS = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-", b"0", b"-0", b"-0.0", b"1.0", b"2", b"1E+2",
    b"9" * 5000, b"9223372036854775808", b"1e400000", b"null", b"true", b"{}", b"[]", b'""', b'"',
    b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\ud83d", b"\\ude00", b"\\ud83d\\ude00",
    b"\\u0000", b"\\u", b"\\x", b"\x00", b"\xff", b"\xed\xa0\xbd", b"\xed\xb8\x80", b"\xc0\xaf",
    b"\xf0\x9f\x98", b"\xef\xbb\xbf", b"\xff\xfe", b"[" * 300, b'{"x":' * 300,
    b"[" * 2000 + b"]" * 2000, b"[" * 10_000, b'"attachments/../../etc/passwd"', b'"/etc/passwd"',
    b'"file"', b'"data"', b'"sha256"', b'"id"', b'"type"', b'"message"', b'"header"',
    b'"recorded_at"', b'"tool"', b'"a"', b'"x":1,', b'"version":2,', b'"messages":[],',
    b'"type":"model",', b'"message":{},', b" ", b"\n", b"\r\n", b"\r", b"\x0b", b"\xe2\x80\xa8",
    b"=", b"AA==", b"//8=", b"{}\n", b"[]\n", b'{"type":"model","model":"x"}\n', b'{"type":"x"}',
    b'"data:a/b;base64,AA=="', b'"mime":"a/b",', b'"turnkeep":{"attachments":[{}]},', b"1" * 400,
    b"2026-11-30T12:00:00Z",
]  # fmt: skip
"""What is put between, or in the place of, a text's own tokens."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9.]+|true|false|null|[][{}:,]', re.DOTALL)


def mutated_bytes(rng: random.Random, text: bytes, others: Sequence[bytes] = ()) -> bytes:
    """*text* with a few random changes, of single bits up to whole parts; parts of *others* too."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 1, 1, 2, 10, 100)))
        match rng.randrange(9):
            case 0:
                text = text[:at] + bytes([rng.randrange(256)]) + text[end:]
            case 1 if at < len(text):
                text = text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :]
            case 2:
                text = text[:at] + rng.choice(FRAGMENTS) + text[at:]
            case 3:
                text = text[:at] + text[end:]
            case 4:
                text = text[:end] + text[at:]
            case 5:
                text = text[:at]
            case 6 if others:
                other = rng.choice(others)
                text = text[:at] + other[rng.randrange(len(other) + 1) :][: rng.choice((20, 2000))]
                text += rng.choice((b"", other[-rng.randrange(1, 50) :]))
            case _ if found := list(_TOKEN.finditer(text)):
                token = rng.choice(found)
                other = rng.choice(FRAGMENTS) if rng.random() < 0.5 else rng.choice(found)[0]
                text = text[: token.start()] + other + text[token.end() :]
    return text


class Text(str):
    """Not exactly a str."""

    __slots__ = ()


class Number(int):
    """Not exactly an int."""


class Fields(dict[str, Any]):
    """Not exactly a dict."""


class Items(list[Any]):
    """Not exactly a list."""


class Level(enum.StrEnum):
    HIGH = "high"


class Rank(enum.IntEnum):
    ONE = 1


class Untouchable:
    """Fails where it is looked at."""

    def _fail(self, *_: object) -> NoReturn:
        raise RuntimeError(f"{MARK} was looked at")

    __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __str__ = __repr__ = _fail
    __getitem__ = __contains__ = __int__ = __float__ = __lt__ = __index__ = _fail


def nested(levels: int, innermost: Any = None) -> Any:
    """So many lists and objects inside one another, around *innermost*."""
    value = innermost
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


def shared() -> Any:
    """Few lists, which are many values: each holds the next one many times over."""
    value: Any = MARK
    for _ in range(60):
        value = [value, value, value]
    return value


def cycle() -> Any:
    """A list that holds itself."""
    value: list[Any] = [{}]
    value[0]["x"] = value
    return value


JSON: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: 1, lambda: -1, lambda: 2,
    lambda: 1.0, lambda: 0.0, lambda: -0.0, lambda: 1e16, lambda: 1e308, lambda: 5e-324,
    lambda: 2**31, lambda: 2**63 - 1, lambda: 2**63, lambda: 2**64, lambda: -(2**63) - 1,
    lambda: 10**30, lambda: 10**4300 - 1, lambda: "", lambda: "1", lambda: "x", lambda: MARK,
    lambda: MARK * 300, list, dict, lambda: [[]], lambda: [{}], lambda: {"": {}}, lambda: [None],
    lambda: {"x": None}, lambda: {"data": "QQ==", "mime": "a/b"}, lambda: "data:a/b;base64,QQ==",
    lambda: "attachments/../x", lambda: {"type": "text", "text": MARK}, lambda: {"url": MARK},
    lambda: nested(3), lambda: nested(150), lambda: nested(197), lambda: [MARK] * 300,
    lambda: {"\0": "\0", "\ud83d": "\ud83d"}, lambda: "{}", lambda: '{"x":1}', lambda: "[" * 300,
    lambda: "2026-11-30T12:00:00.000Z", lambda: "noon", lambda: "0001-01-01T00:00:00+23:59",
    lambda: "9999-12-31T23:59:59.999999-23:59", lambda: {"id": "c", "name": "f", "arguments": {}},
]  # fmt: skip
"""Values that JSON holds, and few expect."""

_OTHERS: list[Callable[[], Any]] = [
    tuple, set, object, Untouchable, lambda: (1,), lambda: b"x", lambda: bytearray(b"x"),
    lambda: memoryview(b"x"), lambda: 1j, lambda: 10**4300, lambda: -(10**5000),
    lambda: float("nan"), lambda: float("-inf"), lambda: {1: 2}, lambda: {None: 1, "None": 2},
    lambda: {b"x": 1}, lambda: {1.5: 1}, lambda: {("x",): 1}, lambda: {Text("x"): 1},
    lambda: {"\ud83d\ude00": 1, "\U0001f600": 2}, lambda: Tokens(1), lambda: ToolCall("c", "f", {}),
    lambda: Attachment("", "", b""), lambda: Attachment, lambda: nested(199), lambda: nested(201),
    lambda: nested(3000), cycle, lambda: Text(MARK), lambda: Number(1), lambda: Level.HIGH,
    lambda: Rank.ONE, lambda: Fields(x=1), lambda: Items([1]), lambda: UserDict(x=1),
    lambda: MappingProxyType({"x": 1}), lambda: Decimal(1), lambda: uuid.UUID(int=0),
    lambda: datetime(2026, 11, 30, tzinfo=UTC), lambda: RuntimeError(MARK), lambda: iter(()),
    lambda: range(3), lambda: print, lambda: ..., lambda: NotImplemented, lambda: frozenset([MARK]),
]  # fmt: skip
PYTHON = [*JSON, *_OTHERS] * 5 + [shared]  # which takes long to refuse, so it comes rarely
"""Values of any kind."""


KEYS: list[Any] = [None, True, 1, -1, 1.5, b"x", ("x",), Text("x"), Level.HIGH, Rank.ONE, object()]
"""Keys that no JSON object has."""


def mutated_value(
    rng: random.Random,
    value: Any,
    odd: Sequence[Callable[[], Any]] = PYTHON,
    words: Sequence[Any] = (),
) -> Any:
    """A copy of the dict or list *value* with a few random changes, wherever in it.

    What comes new is one of *odd*, or another part of *value*; a new key is one of *words*, or, but
    where *odd* is JSON, one that no JSON object has.
    """
    changed = copied(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(changed))
        if not places:
            break
        part, key = rng.choice(places)
        match rng.randrange(9):
            case 0:
                del part[key]
            case 1 if isinstance(part, list):
                part.append(part[key])
            case 1 | 2 if isinstance(part, dict):
                signs = SIGNS if odd is JSON or rng.random() < 0.5 else KEYS
                name = rng.choice(words if words and rng.random() < 0.7 else signs)
                part[name] = part.pop(key) if rng.random() < 0.5 else part[key]
            case 3:
                other, at = rng.choice(list(_places(value)))
                part[key] = copied(other[at])
            case 4:
                part[key] = nested(rng.choice((1, 1, 2, 50, 196)), part[key])
            case 5 | 6 if isinstance(part[key], str):
                part[key] = mutated_text(rng, part[key])
            case _:
                part[key] = rng.choice(odd)()
    return changed


def mutated_text(rng: random.Random, text: str) -> str:
    """*text* with a random change."""
    at = rng.randrange(len(text) + 1)
    sign = rng.choice(SIGNS)
    forms = (text[:at], text[at:], text + text, text.upper(), sign, text[:at] + text[at + 1 :])
    return rng.choice((*forms, *[text[:at] + sign + text[at:]] * 4))


def copied(value: Any) -> Any:
    """A copy of the dicts and lists in *value*, which is not deep."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if type(value) is list else value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """The places in dicts and lists in *value*: container and key. Of what is shared, one."""
    seen = {id(value)}
    around = [value]
    while around:
        part = around.pop()
        for key in list(part) if isinstance(part, dict) else range(len(part)):
            item = part[key]
            yield part, key
            if type(item) in (dict, list) and id(item) not in seen:
                seen.add(id(item))
                around.append(item)


def marked(value: Any, *, below: bool = False) -> Any:
    """A copy of *value* with a MARK in each text that says something."""
    if isinstance(value, str):
        return MARK + value if below else value
    if isinstance(value, list):
        return [marked(item, below=below) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        says = below or key in _MARKED or (key in _MARKED_BELOW and isinstance(item, dict))
        if isinstance(item, dict | list) and key in ("content", "name", "input", "text"):
            says = below or key == "input"
        found[key] = marked(item, below=says)
    return found
