"""What the dialects make of a message before it is one of a History: a draft, whose parts may still
come from several places, and the losses on the way.
"""

import base64
import binascii
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from turnkeep import payload
from turnkeep.errors import HistoryError
from turnkeep.message import Attachment, Message, Thinking, Tokens, ToolCall
from turnkeep.payload import Json, JsonObject

BLANK_LINE = "\n\n"

_NAME = re.compile(r"[a-z_]{1,40}")


@dataclass
class Draft:
    """A message in the making."""

    role: str
    id: str | None = None
    texts: list[str] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    model_id: str | None = None
    thoughts: list[Thinking] = field(default_factory=list)
    tokens: Tokens | None = None
    own: dict[str, object] = field(default_factory=dict)
    """Fields of the message that are given as they are, and count for more than the others."""
    continues: bool = False
    """Whether it is one item of a turn, which the item before it, of the same kind, is part of."""
    at: str = ""
    """Its place, for errors."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is said in it."""
        return not (self.texts or self.attachments or self.tool_calls or self.thoughts)

    @property
    def content(self) -> str:
        """The texts, with a blank line between them."""
        return BLANK_LINE.join(filter(None, self.texts))

    @property
    def thinking(self) -> Thinking | None:
        """The thoughts as one; its signature stands only where no other text could be meant."""
        texts = [thought.text for thought in self.thoughts if thought.text]
        signed = [thought for thought in self.thoughts if thought.signature is not None]
        if not texts and not signed:
            return None
        is_certain = len(signed) == 1 and texts == [
            thought.text for thought in signed if thought.text
        ]
        return Thinking(
            BLANK_LINE.join(texts) if texts else None, signed[0].signature if is_certain else None
        )

    def take(self, other: "Draft") -> None:
        """Add the next item of the same turn."""
        self.texts += other.texts
        self.attachments += other.attachments
        self.tool_calls += other.tool_calls
        self.thoughts += other.thoughts

    def to_message(self, id: str) -> Message:
        """The message, which is to have this id.

        Raises:
            HistoryError: it is none, as a tool message without a call.
        """
        fields: dict[str, object] = {
            "attachments": tuple(self.attachments),
            "model_id": self.model_id,
            "thinking": self.thinking,
            "tokens": self.tokens,
        }
        return Message(
            id=id,
            role=self.role,
            content=self.content,
            tool_calls=tuple(self.tool_calls),
            tool_call_id=self.tool_call_id,
            **(fields | self.own),  # type: ignore[arg-type]
        )


class Losses:
    """What an export has no place for: an error, unless there is a list to take it.

    That list is the caller's, so it takes nothing before the export is done: `deliver` fills it.
    """

    def __init__(self, lossy: list[str] | None) -> None:
        self._lossy = lossy
        self._found: list[str] = []
        self.at = ""
        """The place of the message at hand."""

    def add(self, what: str) -> None:
        """Note that *what* is left out.

        Raises:
            HistoryError: nothing may be left out.
        """
        if self._lossy is None:
            raise HistoryError(f"{self.at}: {what}: pass lossy=[] to go on without it")
        self._found.append(f"{self.at}: {what}")

    def deliver(self) -> None:
        """Hand what was noted to the caller."""
        if self._lossy is not None:
            self._lossy += self._found
        self._found = []


def objects(value: Json, what: str, losses: Losses) -> list[JsonObject]:
    """The objects in the list *value*; what else is in it, or in its place, is a loss."""
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, dict):
            losses.add(f"{what} that is no object")
    return [item for item in items if isinstance(item, dict)]


def text_of(value: Json) -> str | None:
    """*value* if it is a text."""
    return value if isinstance(value, str) else None


def texts_of(value: Json, losses: Losses) -> list[str]:
    """The text *value*; nothing, and a loss, where it is none."""
    if isinstance(value, str):
        return [value]
    losses.add("a text that is no string")
    return []


def kind_of(block: JsonObject) -> str:
    """How to call a block that is of no known type: it may say anything there."""
    kind = block.get("type")
    return f"type {kind!r}" if isinstance(kind, str) and _NAME.fullmatch(kind) else "no known type"


def attachment(
    mime: Json, filename: Json, data: Json, losses: Losses, what: str = "an attachment"
) -> list[Attachment]:
    """The attachment whose base64 is *data*; nothing, and a loss, where that is none."""
    raw = decoded(data)
    if raw is None:
        losses.add(f"{what} without its bytes")
        return []
    return [Attachment(text_of(mime) or "", text_of(filename) or "", raw)]


def data_uri(uri: Json, filename: Json, losses: Losses, what: str) -> list[Attachment]:
    """The attachment of a `data:` URI; nothing, and a loss, where *uri* is another."""
    head, comma, data = (text_of(uri) or "").partition(",")
    scheme, _, mime = head.partition(":")
    if not comma or scheme.lower() != "data":
        losses.add(f"{what} without its bytes" if uri is None else f"{what} that is only a URL")
        return []
    if mime.lower().endswith(";base64"):
        return attachment(mime[: -len(";base64")], filename, data, losses, what)
    raw = unquote_to_bytes(data.encode("utf-8", "surrogatepass"))
    return [Attachment(mime, text_of(filename) or "", raw)]


def file_data(data: Json, filename: Json, losses: Losses) -> list[Attachment]:
    """The attachment of OpenAI's `file_data`, a `data:` URI that some write without its head."""
    if isinstance(data, str) and "," not in data and (raw := decoded(data)) is not None:
        return [Attachment("", text_of(filename) or "", raw)]
    return data_uri(data, filename, losses, "a file")


def decoded(data: Json) -> bytes | None:
    """The bytes of base64 of either alphabet, with or without line breaks and padding."""
    if not isinstance(data, str):
        return None
    try:
        return binascii.a2b_base64(data, strict_mode=True)  # makes no copy of the text
    except ValueError:
        plain = "".join(data.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return None


def tool_call(id: Json, name: Json, arguments: Json, losses: Losses) -> list[ToolCall]:
    """The call whose *arguments* are a JSON text or an object; nothing where it has no id or name.

    Arguments that are no object are kept as the `input` of one, which is a loss.
    """
    if not isinstance(id, str) or not isinstance(name, str):
        losses.add("a tool call without an id or a name")
        return []
    with suppress(ValueError, HistoryError):
        return [ToolCall(id, name, _object(arguments))]
    losses.add("a tool call whose arguments are no JSON object")
    return [ToolCall(id, name, {"input": arguments})]


def tokens(found: dict[str, Json]) -> Tokens | None:
    """The counts among *found*, or None where there are none; what is no count says nothing."""
    counts = {name: count for name, count in found.items() if type(count) is int and count >= 0}
    return Tokens(**counts) if counts else None


def dig(value: Json, *path: str) -> Json:
    """What lies at *path* in nested objects, or None."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def types_of(content: Json) -> Collection[str]:
    """The types of the blocks in a list of them."""
    blocks = content if isinstance(content, list) else []
    kinds = (block.get("type") for block in blocks if isinstance(block, dict))
    return {kind for kind in kinds if isinstance(kind, str)}


def _object(arguments: Json) -> JsonObject:
    if isinstance(arguments, str):
        arguments = payload.decode(arguments) if arguments else {}
    if not isinstance(arguments, dict):
        raise ValueError
    return arguments
