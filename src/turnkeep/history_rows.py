"""A History's messages to rows, and rows to messages, with few copies of the bytes of attachments.

By way of entries they would be written as base64, and that as JSON, only to be read again a moment
later, and be in memory ten times over. So a message is written without them, and what is lifted
out of it is filled with them; and a message is read without being made to text first. What comes
out is the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from turnkeep import payload, rows
from turnkeep.dialect import Row
from turnkeep.entries import MessageEntry, from_row
from turnkeep.errors import Corrupt
from turnkeep.lifting import Lifted, with_texts
from turnkeep.limits import Limits
from turnkeep.message import Attachment, Message
from turnkeep.message_dialects.riffer import OWN
from turnkeep.payload import JsonObject
from turnkeep.sql import Found, FoundRow
from turnkeep.transcript import EntryWriter

_PLACES = (["files"], [OWN, "attachments"])
"""Where in a message of ours its attachments are, one behind the other."""


def to_rows(messages: Iterable[Message], recorded_at: str | None, limits: Limits) -> Iterator[Row]:
    """The rows of *messages*, of which one at a time is taken.

    Raises:
        InvalidEntry: one is too large; `$[i]` is the entry at the position i.
    """
    writer = EntryWriter(recorded_at)
    for position, message in enumerate(messages, 1):
        bare = message
        if message.attachments:
            bare = replace(message, attachments=tuple(map(_without_bytes, message.attachments)))
        row = rows.to_row(writer.entry_of(bare), f"$[{position}]", limits)
        lifted = tuple(_with_bytes(each, message) for each in row.attachments)
        limits.check_attachments(lifted, f"$[{position}]")
        yield row._replace(attachments=lifted)


def messages_of(session: str, found: Found) -> Iterator[tuple[int, JsonObject | None]]:
    """The message of each row, with its position; None where it is no message's.

    Raises:
        Corrupt: as `rows.from_rows`.
    """
    texts = rows.texts_of(found)
    for row in found.named:
        lifted = rows.lifted_texts(session, row, texts, data=True)
        try:
            message, reason = _message(row, lifted), None
        except rows.DAMAGED as error:
            message, reason = None, rows.reason_of(error)
        if reason is not None:
            raise Corrupt(session, row.position, "$", reason)
        yield row.position, message


def _message(row: FoundRow, lifted: Sequence[tuple[str, str]]) -> JsonObject | None:
    if not lifted or row.type != "message":
        entry = from_row(row.type, row.recorded_at, row.payload)
        return entry.message if isinstance(entry, MessageEntry) else None
    from_row(row.type, row.recorded_at, '{"message":{}}')  # looks at the time
    value: Any = with_texts(row.payload, lifted)
    message = value.get("message")
    return message if len(value) == 1 and type(message) is dict else None


def _without_bytes(attachment: Attachment) -> Attachment:
    """*attachment*, but for the bytes that will be lifted, as those beside a media type are."""
    return (
        Attachment(attachment.mime, attachment.filename, b"")
        if "/" in attachment.mime
        else attachment
    )


def _with_bytes(lifted: Lifted, message: Message) -> Lifted:
    """*lifted* with its bytes, if it is an attachment of *message*, not something in its text."""
    steps: Any = payload.decode(lifted.path)
    if steps[1:-2] not in _PLACES or steps[-1] != "data":
        return lifted
    attachment = message.attachments[steps[-2]]
    return lifted._replace(data=attachment.bytes, digest=bytes.fromhex(attachment.digest))
