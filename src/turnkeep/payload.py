"""Exact JSON: what is decoded equals what was encoded, types and key order included.

A value is checked before it is encoded, because encoders coerce in silence: NaN becomes null, a
tuple a list, a UUID a string, the key 1 the key "1". Only exact JSON types pass, so decoding can
give back nothing else. Text is canonical: one value has one text. It is msgspec's (shortest floats,
no spaces, non-ASCII readable); a string with an unpaired surrogate has no UTF-8, so its whole value
is written escaped by the standard library, which also reads it. The check walks level by level and
the codecs are given a fresh stack when they run out of one, so no result depends on how deep the
caller stands.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar

import msgspec

from turnkeep.errors import InvalidEntry

P = ParamSpec("P")
T = TypeVar("T")

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
JsonObject: TypeAlias = dict[str, Json]

MAX_DEPTH = 200
"""How many lists and objects may stand inside one another."""

MAX_DIGITS = 4300
"""How many digits an integer may have: Python itself reads no more from text."""

_INT_BOUND = 10**MAX_DIGITS
_SMALL = 1 << 64
_SURROGATE = re.compile("[\ud800-\udfff]")
# Each value takes two bytes of text at least, so this many can't belong to an entry of a sane size:
# they come of a few lists that share their items many times over.
_MAX_VALUES = 1 << 25
_QUICK = 1 << 20


def encode(value: object, path: str = "$") -> str:
    """The canonical JSON text of *value*.

    A surrogate pair that stands as two code points is joined to the character that it means: JSON
    can't tell them apart.

    Raises:
        InvalidEntry: what JSON can't hold exactly is in it; names the place, as a path that begins
            with *path*.
    """
    if not _is_exact(value):
        _look_closely(value, path)
    try:
        return _with_stack(msgspec.json.encode, value).decode()
    except UnicodeEncodeError:
        pass  # and out of the handler: the error holds the text
    return encode_again(_joined(value, path))


def encode_payload(message: object) -> str:
    """As `encode`, the text of an object whose one key is "message", under which is *message*."""
    if not _is_exact(message):
        _look_closely(message, "$.message")
    try:
        return _with_stack(msgspec.json.encode, {"message": message}).decode()
    except UnicodeEncodeError:
        pass
    return encode_again({"message": _joined(message, "$.message")})


def encode_again(value: Json) -> str:
    """The canonical JSON text of a *value* that consists of what `encode` took.

    It isn't checked again, and may be nested a few levels deeper.
    """
    try:
        return _with_stack(msgspec.json.encode, value).decode()
    except UnicodeEncodeError:
        return _with_stack(json.dumps, value, separators=(",", ":"))


def decode(text: str) -> Json:
    """The value of JSON *text*; of a key that occurs twice the last one counts.

    Raises:
        ValueError: it is no JSON, nested too deep for the interpreter, or holds a number that
            Python can't.
    """
    try:
        try:
            return _with_stack(_msgspec_decode, text)
        except (msgspec.MsgspecError, UnicodeError):  # surrogates; and all that is really wrong
            return _with_stack(_json_decode, text)
    except RecursionError:
        raise ValueError("nested too deep") from None


class _Payload(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What the payload of a message's entry is."""

    message: dict[str, Any]


decode_payload = msgspec.json.Decoder(_Payload).decode
"""As `decode`, for the text of an object whose one key is "message", and its value an object.

Raises one of UNDECODED where the text is anything else, and where only `decode` can tell.
"""

UNDECODED = (msgspec.MsgspecError, UnicodeError, RecursionError)


def decode_document(text: str) -> Json:
    """As `decode`, but a number that is too large does not end it, since it may stand where nobody
    looks.

    It comes as an infinity, or as an integer of too many digits: `encode` refuses either, and names
    its place.

    Raises:
        ValueError: it is no JSON, or nested too deep; an InvalidEntry where it holds NaN or
            Infinity as bare words.
    """
    try:
        try:
            return _with_stack(_msgspec_decode, text)
        except (msgspec.MsgspecError, UnicodeError):
            return _with_stack(_json_decode_document, text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def layout(value: Json) -> str:
    """The text of *value* in lines, indented by two spaces, in which no more than unpaired
    surrogates is escaped.

    It isn't checked again: *value* must consist of what `encode` took, but may be nested a few
    levels deeper.
    """
    try:
        return _with_stack(
            msgspec.json.format, _with_stack(msgspec.json.encode, value), indent=2
        ).decode()
    except UnicodeEncodeError:
        text = _with_stack(json.dumps, value, indent=2, ensure_ascii=False)
        return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def join_surrogates(text: str) -> str:
    """*text* with each surrogate pair that stands as two code points joined to one character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def is_storable(text: str) -> bool:
    """Whether a text column holds *text*: Postgres takes neither a NUL nor what has no UTF-8."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """*text* without what `is_storable` refuses."""
    return "".join(c for c in text if c != "\0" and not "\ud800" <= c <= "\udfff")


def ascii_text(value: Json) -> str:
    """The JSON text of *value* in ASCII, which any column holds."""
    return json.dumps(value, separators=(",", ":"))


def size(text: str) -> int:
    """The bytes that *text* takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def step(path: str, key: str | int) -> str:
    """*path* with one more step: `$.message`, `$.x[2]`, `$["odd key"]`; a long key is cut."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if len(key) > 60:
        key = key[:57] + "..."
    return f"{path}.{key}" if key.isidentifier() and key.isascii() else f"{path}[{json.dumps(key)}]"


def _msgspec_decode(text: str) -> Json:
    value: Json = msgspec.json.decode(text)
    return value


def _json_decode(text: str) -> Json:
    if isinstance(text, bytes):
        text = text.decode()  # the standard library would try UTF-16 and let surrogates pass
    value: Json = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    return value


def _json_decode_document(text: str) -> Json:
    words: list[str] = []

    def word(name: str) -> float:
        words.append(name)
        return float(name)

    value: Json = json.loads(text, parse_constant=word, parse_int=_bounded)
    if words:
        encode(value, "$")  # finds the place, but for one whose key occurs again later
        raise ValueError(f"{words[0]} is not JSON")
    return value


def _bounded(text: str) -> int:
    """The integer of *text*; the least that `encode` refuses stands for all that have too many
    digits.
    """
    return int(text) if len(text.lstrip("-")) <= MAX_DIGITS else _INT_BOUND


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _is_exact(value: object) -> bool:
    """Whether a quick look finds that JSON holds *value* exactly.

    Where it doesn't, a fault is in there, or only more values than this way of looking is good for.
    """
    level: list[Any] = [value]
    seen = 0
    for depth in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str or kind is bool or item is None:
                continue
            if kind is int:
                if not -_SMALL < item < _SMALL and not -_INT_BOUND < item < _INT_BOUND:
                    return False
            elif kind is float:
                if not math.isfinite(item):
                    return False
            elif kind is dict:
                for key in item:
                    if type(key) is not str:
                        return False
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
            else:
                return False
            if len(below) > _QUICK:
                return False
        if not below:
            # An empty container one level too deep leaves nothing below it, and is refused all the
            # same.
            return depth < MAX_DEPTH or not any(type(item) in (dict, list) for item in level)
        seen += len(below)
        if seen > _QUICK:
            return False
        level = below
    return False


@dataclass(slots=True)
class _Container:
    """A list or object that is being looked at, and what is known of it so far."""

    id: int
    items: Iterator[tuple[Any, Any]]
    key: Any = None
    """The key or index of the item at hand."""
    height: int = 1
    """How many levels it has, its own included."""
    values: int = 1
    """How many values its text has, itself included."""


def _look_closely(value: object, path: str) -> None:
    """Raise the first fault in *value*, in reading order, with its path.

    A container is looked at once, however often it occurs: a few lists that hold one another many
    times over would keep any other walk busy for ever.
    """
    known: dict[int, tuple[int, int]] = {}  # height and values of the containers without a fault
    around = [_Container(0, iter([(None, value)]))]

    def refuse(reason: str) -> NoReturn:
        raise InvalidEntry(reduce(step, (at.key for at in around[1:]), path), reason)

    while True:
        at = around[-1]
        for key, item in at.items:
            at.key = key
            height, values = 0, 1
            if type(item) is dict or type(item) is list:
                height, values = known.get(id(item), (MAX_DEPTH, 0))
                if not values or len(around) + height > MAX_DEPTH + 1:
                    if any(other.id == id(item) for other in around):
                        refuse("refers to itself")
                    if len(around) > MAX_DEPTH:
                        refuse(f"nested deeper than {MAX_DEPTH} levels")
                    if type(item) is dict and (fault := _fault_of_keys(item)):
                        refuse(fault)
                    items = item.items() if type(item) is dict else enumerate(item)
                    around.append(_Container(id(item), iter(items)))
                    break
            elif fault := _fault(item):
                refuse(fault)
            at.height = max(at.height, height + 1)
            at.values += values
        else:
            around.pop()
            known[at.id] = at.height, at.values
            if not around:
                break
            around[-1].height = max(around[-1].height, at.height + 1)
            around[-1].values += at.values
    if at.values > _MAX_VALUES:
        raise InvalidEntry(path, "more values than an entry can hold")


def _fault(item: Any) -> str | None:
    """Why JSON can't hold *item*, which is no container; None where it can."""
    kind = type(item)
    if kind is float and not math.isfinite(item):
        return f"{item} is not JSON: leave it out or write null or a string"
    if kind is int and not -_INT_BOUND < item < _INT_BOUND:
        return f"an integer of more than {MAX_DIGITS} digits"
    if kind in (str, bool, int, float) or item is None:
        return None
    return f"{kind.__module__}.{kind.__qualname__} is not a JSON type: convert it"


def _fault_of_keys(item: dict[Any, Any]) -> str | None:
    """Why the keys of *item* can't be those of a JSON object; None where they can."""
    for key in item:
        if type(key) is not str:
            return f"a key is of type {type(key).__qualname__}: JSON's keys are str"
    if len({join_surrogates(key) for key in item}) < len(item):
        return "two keys are the same once surrogate pairs are joined"
    return None


def _joined(value: object, path: str) -> Json:
    """*value*, in which surrogates stand, with the pairs joined."""

    def unique(pairs: list[tuple[str, Json]]) -> JsonObject:
        joined = dict(pairs)
        if len(joined) < len(pairs):
            _look_closely(value, path)  # tells the place
        return joined

    joined: Json = _with_stack(json.loads, _with_stack(json.dumps, value), object_pairs_hook=unique)
    return joined


def _with_stack(codec: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run *codec*; where the caller stands too deep for it, run it in a thread, whose stack is
    empty.
    """
    try:
        return codec(*args, **kwargs)
    except RecursionError:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(codec, *args, **kwargs).result()
