"""Messages as JSON: dicts checked on the way in, dicts and text on the way out.

These are the parts that a History and a stream of a hundred thousand messages have in common: each
function knows one message, its place (`messages[3]`, with which its errors begin) and a function
that reads or writes the bytes of an attachment, and keeps nothing. What its fields must be is
checked by the value; here stands what only JSON brings up: shapes, missing keys, base64.

Keys that aren't known are ignored at every level, so that a file of a newer version can be read.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TypeAlias, TypeVar

from turnkeep import payload
from turnkeep.errors import HistoryError
from turnkeep.folder import ATTACHMENTS_DIR
from turnkeep.message import Attachment, Message, Thinking, Tokens, ToolCall
from turnkeep.payload import Json, JsonObject

Read: TypeAlias = Callable[[str], tuple[bytes, str]]
"""What gives the bytes of an attachment's file and their digest: `FolderReader.attachment`."""

Write: TypeAlias = Callable[[Attachment], JsonObject]
"""What gives an attachment's dict: `inline` or `by_file`."""

Value = TypeVar("Value")

_MESSAGE = tuple(field.name for field in fields(Message))
_TOOL_CALL = ("id", "name", "arguments")
_THINKING = tuple(field.name for field in fields(Thinking))
_TOKENS = tuple(field.name for field in fields(Tokens))


def decode(text: str | bytes, name: str = "history") -> Json:
    """The value of JSON *text*, after a UTF-8 byte order mark if there is one.

    Raises:
        HistoryError: "*name* is not valid JSON", and why.
    """
    try:
        if isinstance(text, bytes):
            text = str(text, "utf-8")
        return payload.decode_document(text.removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 at byte {error.start}"
    except ValueError as error:
        reason = str(error)
    raise HistoryError(f"{name} is not valid JSON: {reason}")


def layout(messages: Iterable[JsonObject]) -> Iterator[str]:
    """The text of the history of these *messages*, in pieces, which always encode to UTF-8."""
    count = 0
    yield LAYOUT_BEGIN
    for count, message in enumerate(messages, 1):
        yield layout_message(message, count)
    yield layout_end(count)


LAYOUT_BEGIN = '{\n  "version": 1,\n  "messages": ['
"""The text of a history in front of the first message."""


def layout_message(message: JsonObject, number: int) -> str:
    """The text of the message of this *number*, from 1 up."""
    between = ",\n    " if number > 1 else "\n    "
    return between + payload.layout(message).replace("\n", "\n    ")


def layout_end(count: int) -> str:
    """The text behind the last of so many messages."""
    return "\n  ]\n}" if count else "]\n}"


def message_to_dict(message: Message, write: Write) -> JsonObject:
    """The fields of the message as a JSON-safe dict, without what is as usual: its defaults."""
    raw: JsonObject = {"id": message.id, "role": message.role, "content": message.content}
    if message.kind != "user":
        raw["kind"] = message.kind
    if message.attachments:
        raw["attachments"] = [write(attachment) for attachment in message.attachments]
    if message.tool_calls:
        raw["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        raw["tool_call_id"] = message.tool_call_id
    if message.model_id is not None:
        raw["model_id"] = message.model_id
    if message.thinking is not None:
        raw["thinking"] = _reported(message.thinking)
    if message.tokens is not None:
        raw["tokens"] = _reported(message.tokens)
    return raw


def inline(attachment: Attachment) -> JsonObject:
    """The attachment with its bytes in base64."""
    data = base64.b64encode(attachment.bytes).decode()
    return {"mime": attachment.mime, "filename": attachment.filename, "data": data}


def by_file(attachment: Attachment) -> JsonObject:
    """The attachment with the name of its file and the digest of its bytes."""
    return {
        "mime": attachment.mime,
        "filename": attachment.filename,
        "file": f"{ATTACHMENTS_DIR}/{attachment.stored_name}",
        "sha256": attachment.digest,
    }


def message_from_dict(raw: Json, at: str, read: Read | None = None) -> Message:
    """The message of the dict *raw*, which stands at the place *at*.

    *read* gives the bytes of attachments that are kept as files; without it these are refused.

    Raises:
        HistoryError: it is no message, or an attachment's bytes can't be had; names the place.
    """
    found = known_keys(raw, at, _MESSAGE, required=3)
    if "attachments" in found:
        attachments = _items(found["attachments"], f"{at}.attachments")
        found["attachments"] = [_attachment(item, place, read) for item, place in attachments]
    if "tool_calls" in found:
        calls = _items(found["tool_calls"], f"{at}.tool_calls")
        found["tool_calls"] = [
            _build(ToolCall, known_keys(item, place, _TOOL_CALL, required=3), place)
            for item, place in calls
        ]
    for name, kind, known in (("thinking", Thinking, _THINKING), ("tokens", Tokens, _TOKENS)):
        if (value := found.get(name)) is not None:
            place = f"{at}.{name}"
            found[name] = _build(kind, known_keys(value, place, known), place)
    return _build(Message, found, at)


def _attachment(raw: object, at: str, read: Read | None) -> Attachment:
    found = known_keys(raw, at, ("mime", "filename", "data", "file", "sha256"), required=2)
    shown = {"mime": found["mime"], "filename": found["filename"]}
    if ("data" in found) is ("file" in found):
        raise HistoryError(f"{at}: has exactly one of data and file")
    if "data" in found:
        data = _base64(_text(found["data"], f"{at}.data"), f"{at}.data")
        attachment = _build(Attachment, shown | {"bytes": data}, at)
    elif read is None:
        raise HistoryError(f"{at}.file: the bytes are in a folder: read this with History.load")
    else:
        file = _text(found["file"], f"{at}.file")
        if "sha256" not in found:
            raise HistoryError(f"{at}.sha256: is missing: a file is not read without it")
        try:
            data, digest = read(file)
        except HistoryError as error:
            raise HistoryError(f"{at}.file: {error}") from None
        attachment = _build(Attachment._of, shown | {"data": data, "digest": digest}, at)
    if "sha256" in found and _text(found["sha256"], f"{at}.sha256") != attachment.digest:
        source = found.get("file", "data")
        raise HistoryError(f"{at}.sha256: is not the digest of {source}: the bytes have changed")
    return attachment


def _base64(text: str, at: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        data = b""
    # Decoders let stray bits pass: texts that differ would then be the same bytes.
    if base64.b64encode(data).decode() != text:
        raise HistoryError(f"{at}: is no canonical base64 (RFC 4648, standard alphabet, padded)")
    return data


def known_keys(
    raw: object, at: str, known: tuple[str, ...], *, required: int = 0
) -> dict[str, object]:
    """What the object *raw* has of the *known* keys, of which the first so many are *required*.

    Raises:
        HistoryError: it is no JSON object, or lacks a key; names the place.
    """
    if type(raw) is not dict:
        raise HistoryError(f"{at}: is a JSON object (a dict), not {type(raw).__name__}")
    for key in raw:
        if type(key) is not str:
            raise HistoryError(f"{at}: a key is of type {type(key).__name__}: JSON's keys are str")
    for name in known[:required]:
        if name not in raw:
            raise HistoryError(f"{at}.{name}: is missing")
    return {name: raw[name] for name in known if name in raw}


def _items(raw: object, at: str) -> Iterator[tuple[object, str]]:
    """The items of the list *raw*, each with its place."""
    if type(raw) is not list:
        raise HistoryError(f"{at}: is a list, not {type(raw).__name__}")
    return ((item, f"{at}[{index}]") for index, item in enumerate(raw))


def _text(raw: object, at: str) -> str:
    if type(raw) is not str:
        raise HistoryError(f"{at}: is a str, not {type(raw).__name__}")
    return raw


def _build(make: Callable[..., Value], fields: Mapping[str, object], at: str) -> Value:
    """What *make* makes of *fields*; its errors begin with the name of a field of *at*."""
    try:
        return make(**fields)
    except HistoryError as error:
        raise HistoryError(f"{at}.{error}") from None


def _reported(value: Thinking | Tokens) -> JsonObject:
    """The fields of *value* that are set."""
    named = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: item for name, item in named if item is not None}
