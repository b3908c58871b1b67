"""What a History consists of: messages and their parts, as frozen values.

Values are equal, and hash alike, exactly when their JSON texts are. So each field holds one exact
type in one form: text with its surrogate pairs joined, whole numbers that are no bools, a tuple,
bytes; and a tool call's arguments as their canonical JSON text, which no change of the caller's
dict reaches and in which key order counts and `1`, `1.0` and `True` differ. A value checks itself
when it is made, so one that exists is valid. Its HistoryError begins with the name of the field at
fault: who builds it as a part of something larger puts the way to it in front. No repr shows any
content.
"""

import hashlib
import re
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Self, TypeAlias, TypeVar, cast

from turnkeep import payload
from turnkeep.errors import HistoryError, InvalidEntry
from turnkeep.payload import JsonObject

ROLES = ("user", "assistant", "tool")
KINDS = ("user", "reference")

Part = TypeVar("Part")
Bytes: TypeAlias = bytes  # in Attachment the name means a field
BytesLike: TypeAlias = bytes | bytearray | memoryview

_EXTENSION = re.compile(r"\.[A-Za-z0-9]{1,10}\Z")
_EXTENSION_OF = {
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "audio/mpeg": ".mp3",
    "audio/wav": ".wav",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
    "video/mp4": ".mp4",
}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Attachment:
    """Bytes inside a message, with their media type and the name that the model was shown.

    The bytes are held, never a handle to a file that may go; a bytearray or a memoryview is copied.

    Raises:
        HistoryError: a field is not of its type.
    """

    mime: str
    filename: str
    bytes: Bytes
    digest: str = field(init=False, compare=False)
    """The SHA-256 of the bytes, in lowercase hex."""

    def __init__(self, mime: str, filename: str, bytes: BytesLike) -> None:
        if not isinstance(bytes, BytesLike):
            raise HistoryError(f"bytes: is bytes, not {_name(bytes)}")
        data = Bytes(bytes)
        self._set(mime, filename, data, hashlib.sha256(data).hexdigest())

    @classmethod
    def _of(cls, mime: str, filename: str, data: Bytes, digest: str) -> Self:
        """The attachment of *data*, whose *digest* is known: it costs more than all the rest."""
        attachment = cls.__new__(cls)
        attachment._set(mime, filename, data, digest)
        return attachment

    def _set(self, mime: str, filename: str, data: Bytes, digest: str) -> None:
        put = partial(object.__setattr__, self)
        put("mime", _text(mime, "mime"))
        put("filename", _text(filename, "filename"))
        put("bytes", data)
        put("digest", digest)

    @property
    def stored_name(self) -> str:
        """The name of its file: the digest, and the extension of the filename or the media type.

        It is lowercase ASCII, so that it is one and the same file on every file system. Nothing but
        a short extension is taken from the filename, which anybody may have chosen.
        """
        if found := _EXTENSION.search(self.filename):
            return self.digest + found[0].lower()
        return self.digest + _EXTENSION_OF.get(self.mime.partition(";")[0].strip().lower(), "")

    def __repr__(self) -> str:
        return f"<Attachment {self.digest[:8]}, {len(self.bytes)} bytes>"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ToolCall:
    """The call of a tool by the assistant.

    Its `id` is the provider's own: the tool message that answers repeats it. *arguments* is a JSON
    object, any dict of exact JSON values, nested up to 200 levels.

    Raises:
        HistoryError: a field is not of its type, or *arguments* holds what JSON can't; names the
            place in it.
    """

    id: str
    name: str
    _arguments: str = field(init=False)

    def __init__(self, id: str, name: str, arguments: JsonObject) -> None:
        put = partial(object.__setattr__, self)
        put("id", _text(id, "id"))
        put("name", _text(name, "name"))
        if type(arguments) is not dict:
            raise HistoryError(f"arguments: is a JSON object (a dict), not {_name(arguments)}")
        put("_arguments", _json(arguments, "arguments"))

    @property
    def arguments(self) -> JsonObject:
        """What the tool is called with: a new dict each time, whose changes reach nothing else."""
        return cast("JsonObject", payload.decode(self._arguments))

    def __repr__(self) -> str:
        return f"<ToolCall, {payload.size(self._arguments)} bytes of arguments>"


@dataclass(frozen=True, slots=True, repr=False)
class Thinking:
    """What the model thought, and the provider's signature of it.

    It goes back to the model that it came from, and to no other: hence a message's `model_id`.

    Raises:
        HistoryError: a field is no str.
    """

    text: str | None = None
    signature: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _optional(self.text, "text"))
        object.__setattr__(self, "signature", _optional(self.signature, "signature"))

    def __repr__(self) -> str:
        return f"<Thinking, {len(self.text or '')} characters>"


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """How many tokens a message took, as the provider reported it; None is what it did not report.

    Attributes:
        input: those that the model read.
        output: those that it wrote.
        cached: those that the provider read from its cache.
        cache_creation: those that it wrote to its cache.
        thinking: those that the model wrote as thinking.

    Raises:
        HistoryError: a field is no int, is negative, or has more than 4,300 digits.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_creation: int | None = None
    thinking: int | None = None

    def __post_init__(self) -> None:
        for name, count in self._reported():
            if type(count) is not int:
                raise HistoryError(f"{name}: is a whole number (an int), not {_name(count)}")
            if count < 0:
                raise HistoryError(f"{name}: is negative")
            _json(count, name)

    def _reported(self) -> list[tuple[str, int]]:
        named = ((f.name, getattr(self, f.name)) for f in fields(self))
        return [(name, count) for name, count in named if count is not None]

    def __repr__(self) -> str:
        shown = (
            f"{name}={count if count < 1 << 64 else '...'}" for name, count in self._reported()
        )
        return f"Tokens({', '.join(shown)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message:
    """One message of a conversation.

    Attributes:
        id: names it within its History, is not empty, and is shown to no provider.
        role: `user`, `assistant` or `tool`. The system prompt is no part of a history.
        content: the text; `""` is legal, for a turn that only calls tools.
        kind: `user`, or `reference` for text that the app put in on its own; providers see no
            difference.
        attachments: for any role, since the result of a tool may carry an image.
        tool_calls: the assistant's only.
        tool_call_id: which call a tool message answers: set on every one of these, and on no other.
        model_id: the model that produced it, where that is known.
        thinking: what that model thought.
        tokens: what the provider reported.

    Raises:
        HistoryError: a field is not of its type, or breaks its rule; names the field.
    """

    id: str
    role: str
    content: str
    kind: str = "user"
    attachments: tuple[Attachment, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    model_id: str | None = None
    thinking: Thinking | None = None
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)
        put("id", _text(self.id, "id"))
        if not self.id:
            raise HistoryError("id: is empty: History.mint_id() makes one")
        if _text(self.role, "role") not in ROLES:
            raise HistoryError("role: is user, assistant or tool: a system prompt is not kept")
        put("content", _text(self.content, "content"))
        if _text(self.kind, "kind") not in KINDS:
            raise HistoryError("kind: is user or reference")
        put("attachments", parts(self.attachments, Attachment, "attachments"))
        put("tool_calls", parts(self.tool_calls, ToolCall, "tool_calls"))
        if self.tool_calls and self.role != "assistant":
            raise HistoryError("tool_calls: stand on assistant messages only")
        put("tool_call_id", _optional(self.tool_call_id, "tool_call_id"))
        if self.tool_call_id is None and self.role == "tool":
            raise HistoryError(
                "tool_call_id: is missing: it names the call that this message answers"
            )
        if self.tool_call_id is not None and self.role != "tool":
            raise HistoryError("tool_call_id: stands on tool messages only")
        put("model_id", _optional(self.model_id, "model_id"))
        _check_optional(self.thinking, Thinking, "thinking")
        _check_optional(self.tokens, Tokens, "tokens")

    def __repr__(self) -> str:
        also = ((len(self.attachments), "attachments"), (len(self.tool_calls), "tool calls"))
        counts = "".join(f", {count} {what}" for count, what in also if count)
        return f"<Message {self.role}, {len(self.content)} characters{counts}>"


def parts(value: object, kind: type[Part], name: str) -> tuple[Part, ...]:
    """The values of class *kind* in the tuple or list *value*, the field *name*, as a tuple.

    Raises:
        HistoryError: it is no tuple or list, or another value is in it.
    """
    if type(value) not in (tuple, list):
        raise HistoryError(f"{name}: is a tuple or list, not {_name(value)}")
    for index, part in enumerate(cast("tuple[object, ...]", value)):
        if type(part) is not kind:
            raise HistoryError(f"{name}[{index}]: is a {kind.__name__}, not {_name(part)}")
    return tuple(cast("tuple[Part, ...]", value))


def _text(value: object, name: str) -> str:
    if type(value) is not str:
        raise HistoryError(f"{name}: is a str, not {_name(value)}")
    return value if value.isascii() else payload.join_surrogates(value)


def _json(value: object, name: str) -> str:
    try:
        return payload.encode(value, name)
    except InvalidEntry as error:
        raise HistoryError(str(error)) from None


def _optional(value: object, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _check_optional(value: object, kind: type, name: str) -> None:
    if value is not None and type(value) is not kind:
        raise HistoryError(f"{name}: is a {kind.__name__} or None, not {_name(value)}")


def _name(value: object) -> str:
    return type(value).__name__
