"""Bytes out of a message, and back: what is stored as base64 in a message costs a third more, in
every copy of it.

A string is lifted when it is the base64 of some bytes, exactly as the standard writes it (RFC 4648
§4: padded, no line breaks, no stray bits), and says what it is: a whole `data:…;base64,` URI, or
the value of `data`, `base64` or `bytes` beside a media type, or the `data` of an `input_audio`
beside its `format`. That one rule covers the messages of riffer, Anthropic, OpenAI, Gemini,
LangChain and MCP. What stood before the base64 stays in the payload; where it stood is kept as a
path beside it, not as a marker in the message, so that nothing a user writes can be taken for one.
What is lifted is put back to the same text, since only text that its bytes reproduce is lifted.

A path, a media type and a name stand in the database once for each attachment, where the message
may have them once for thousands: so what has a longer path than any framework's stays where it is,
and a longer media type or name is not noted beside the bytes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

import msgspec

from turnkeep import payload as json
from turnkeep.payload import Json, JsonObject

Path: TypeAlias = tuple[str | int, ...]

BYTES_KEYS = ("data", "base64", "bytes")
MEDIA_TYPE_KEYS = ("mime", "media_type", "mime_type", "mimeType")
NAME_KEYS = ("filename", "file_name", "name", "display_name")

MAX_PATH = 10_000
"""How many characters the path of what is lifted may have, as it is stored."""

MAX_NOTE = 1000
"""How many characters a media type or a name may have to be noted."""

# Text without this holds nothing to lift, which is told much faster than by a walk: a string that
# begins a data URI, or one under such a key. It is certain, since canonical JSON has no spaces and
# escapes the quotes inside a string.
_HINT = re.compile(rf'"(?:data:|(?:{"|".join(BYTES_KEYS)})":")')
# Possessive, or a long text that only begins like one would be tried at each of its characters.
_DATA_URI = re.compile(r"data:([^;,]*+)[^,]*;base64,")


class Lifted(NamedTuple):
    """Bytes that stood in a payload."""

    path: str
    """Where: a JSON array, ASCII only, of the keys and indexes that lead there."""
    data: bytes
    digest: bytes
    """The sha256 of the data."""
    mime: str | None
    filename: str | None


def lift(payload: str) -> tuple[str, tuple[Lifted, ...]]:
    """The canonical text of *payload* without the bytes in it, and the bytes."""
    if _HINT.search(payload) is None:
        return payload, ()
    value: Any = json.decode(payload)
    lifted, stays = [], []
    for path, parent, key, prefix, text, mime in _candidates(value):
        way = _short_path(path)
        data = None if way is None else _decoded(text)
        if way is None or data is None:
            continue
        stays.append((parent, key, prefix))
        beside = parent if isinstance(parent, dict) else {}
        name = next((beside[k] for k in NAME_KEYS if k in beside), None)
        lifted.append(Lifted(way, data, sha256(data).digest(), _plain(mime), _plain(name)))
    for parent, key, prefix in stays:  # only now: what is beside a text tells what it is
        parent[key] = prefix
    return (json.encode_again(value), tuple(lifted)) if lifted else (payload, ())


def put_back(payload: str, texts: Iterable[tuple[str, str]]) -> tuple[str, Json]:
    """The canonical text of *payload* with each text put behind what stands at its path, and its
    value.

    Raises:
        ValueError: the payload is no JSON, or has no string at a path; names the path.
    """
    value = with_texts(payload, texts)
    return json.encode_again(value), value


def with_texts(payload: str, texts: Iterable[tuple[str, str]]) -> Json:
    """The value of what `put_back` gives."""
    value: Any = json.decode(payload)
    for path, text in texts:
        at = value
        steps: Any = json.decode(path)
        try:
            for step in steps[:-1]:
                at = at[step]
            before = at[steps[-1]]
        except (LookupError, TypeError):
            before = None
        if not (isinstance(before, str) and isinstance(at, dict | list)):
            raise ValueError(f"holds no place for the attachment of path {path}")
        at[steps[-1]] = before + text
    return value  # type: ignore[no-any-return]


def _short_path(path: Sequence[str | int]) -> str | None:
    """A path as it is stored; None where that is too long, which is not tried."""
    if sum(len(step) for step in path if isinstance(step, str)) > MAX_PATH:
        return None
    text = json.ascii_text(list(path))
    return text if len(text) <= MAX_PATH else None


def base64_text(data: bytes) -> str:
    """The base64 that was lifted as *data*."""
    return msgspec.to_builtins(data)  # type: ignore[no-any-return]


def _candidates(value: JsonObject) -> Iterator[tuple[Path, Any, str | int, str, str, str]]:
    """What may be lifted, in the order of the text: path, container, key there, what stays, the
    base64, the media type.
    """
    around: list[tuple[Path, Any, Iterator[tuple[Any, Any]]]] = [((), value, iter(value.items()))]
    while around:
        path, container, items = around[-1]
        for key, item in items:
            if isinstance(item, dict | list):
                below = item.items() if isinstance(item, dict) else enumerate(item)
                around.append(((*path, key), item, iter(below)))
                break
            if isinstance(item, str):
                uri = _DATA_URI.match(item)
                mime = uri[1] if uri else _media_type(path, container, key)
                if mime is not None:
                    prefix = uri[0] if uri else ""
                    yield (*path, key), container, key, prefix, item[len(prefix) :], mime
        else:
            around.pop()


def _media_type(path: Path, container: Any, key: str | int) -> str | None:
    """The media type that makes the string under *key* bytes; None where there is none."""
    if key not in BYTES_KEYS or not isinstance(container, dict):
        return None
    for name in MEDIA_TYPE_KEYS:
        mime = container.get(name)
        if isinstance(mime, str) and "/" in mime:
            return mime
    form = container.get("format")
    if key == "data" and path[-1:] == ("input_audio",) and isinstance(form, str):
        return f"audio/{form}"
    return None


def _decoded(text: str) -> bytes | None:
    """The bytes whose base64 is exactly *text*; None where there are none."""
    try:
        data = msgspec.convert(text, bytes)  # in a fifth of the time of the standard library's
    except (msgspec.ValidationError, UnicodeError):
        return None
    # A strict decoder still takes stray bits in the last four characters: those are encoded anew to
    # tell.
    rest = data[len(data) - (len(data) % 3 or 3) :] if data else b""
    return (
        data if text.endswith(base64_text(rest)) and len(text) == (len(data) + 2) // 3 * 4 else None
    )


def _plain(text: Json) -> str | None:
    """*text* where a column can hold it: it is for people, the message has it exactly."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_NOTE:
        return None
    return text if json.is_storable(text) else None
