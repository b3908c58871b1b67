"""The statements of `verification`, as functions of a Connection: rows a portion at a time, read so
that nothing is believed of them.

Each portion is of one state of the database (SNAPSHOT) and tells all that its rows are judged by,
so a session that changes between two portions can't be mixed with itself. What names other rows is
held against them here, whatever the database enforces.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    func,
    select,
    tuple_,
    union_all,
)

from turnkeep.dialect.statements import AT_ONCE, NS, ONE, Instant, Lines, Raw, has
from turnkeep.prepared import Prepared
from turnkeep.sql import COUNT, IN_ENTRIES, PORTION, ZERO
from turnkeep.tables import TABLES, attachments, blobs, entries, sessions

START: tuple[object, ...] = ("", -1, -1)
"""A place in front of every row: no session's id is empty."""


class SessionRow(NamedTuple):
    """A session's row, and what its entries say of the same."""

    id: str
    header: Mapping[str, Any]
    """The columns that repeat the header."""
    cwd_digest: Any
    updated_at: Any
    last_position: Any
    last_recorded_at: Any
    payload: Any
    """That of entry 0."""
    newest: Any
    """The position of the newest entry."""
    latest: Any
    """The `recorded_at` of the newest entry that has one."""


class EntryRow(NamedTuple):
    """A row of an entry, and what was lifted out of it by the account of the attachments."""

    session: str
    position: Any
    type: Any
    recorded_at: Any
    attachments: Any
    payload: Any
    idempotency_key: Any
    has_session: bool
    lifted: Any


class EntryRows(NamedTuple):
    """Rows of entries in order, and how the session of the first stood in front of it."""

    rows: Sequence[EntryRow]
    previous: Any
    """The position of the entry before, -1 where there is none."""
    latest: Any
    """The `recorded_at` of the newest entry before that has one, or the empty text."""


class AttachmentRow(NamedTuple):
    """An attachment, and whether what it names is there."""

    session: str
    position: int
    ordinal: int
    digest: Any
    mime: Any
    filename: Any
    has_entry: bool
    has_blob: bool


class BlobRow(NamedTuple):
    """A blob, and whether an attachment names it."""

    digest: bytes
    size: Any
    data: bytes
    is_used: bool


def _behind(*columns: ColumnElement[Any]) -> ColumnElement[bool]:
    names = ("session", "position", "ordinal")
    return tuple_(*columns) > tuple_(
        *(bindparam(name, type_=c.type) for name, c in zip(names, columns, strict=False))
    )


_HEADER = (
    "schema_version",
    "id",
    "cwd",
    "created_at",
    "model",
    "riffer_rig_version",
    "riffer_version",
    "title",
)
_RAW = {
    name: sessions.c[name] if name in ("id", "schema_version") else Raw(sessions.c[name])
    for name in _HEADER
}
_OF_SESSION = (entries.c.namespace == sessions.c.namespace, entries.c.session_id == sessions.c.id)
_SESSIONS = Prepared(
    select(
        *_RAW.values(),
        sessions.c.cwd_digest,
        Raw(Instant(sessions.c.updated_at)),
        sessions.c.last_position,
        Raw(sessions.c.last_recorded_at),
        select(Raw(entries.c.payload))
        .where(*_OF_SESSION, entries.c.position == ZERO)
        .correlate(sessions)
        .scalar_subquery(),
        select(func.max(entries.c.position))
        .where(*_OF_SESSION)
        .correlate(sessions)
        .scalar_subquery(),
        select(Raw(entries.c.recorded_at))
        .where(*_OF_SESSION, entries.c.recorded_at.is_not(None))
        .order_by(entries.c.position.desc())
        .limit(ONE)
        .correlate(sessions)
        .scalar_subquery(),
    )
    .where(sessions.c.namespace == NS, _behind(sessions.c.id))
    .order_by(sessions.c.id)
    .limit(COUNT)
)

_NEXT_ENTRIES = (entries.c.namespace == NS, _behind(entries.c.session_id, entries.c.position))
_ENTRY_ORDER = (entries.c.session_id, entries.c.position)
_ENTRY_SIZES = Prepared(
    select(func.length(entries.c.payload))
    .where(*_NEXT_ENTRIES)
    .order_by(*_ENTRY_ORDER)
    .limit(COUNT)
)
_ENTRIES = Prepared(
    select(
        entries.c.session_id,
        entries.c.position,
        Raw(entries.c.type),
        Raw(entries.c.recorded_at),
        entries.c.attachments,
        Raw(entries.c.payload),
        Raw(entries.c.idempotency_key),
        has(sessions, *_OF_SESSION),
        select(Raw(Lines(attachments.c.digest, attachments.c.path)))
        .where(
            attachments.c.namespace == entries.c.namespace,
            attachments.c.session_id == entries.c.session_id,
            attachments.c.position == entries.c.position,
        )
        .correlate(entries)
        .scalar_subquery(),
    )
    .where(*_NEXT_ENTRIES)
    .order_by(*_ENTRY_ORDER)
    .limit(COUNT)
)
_BEFORE = (*IN_ENTRIES, entries.c.position < bindparam("first", type_=entries.c.position.type))
_NEWEST_BEFORE = (
    Prepared(select(func.max(entries.c.position)).where(*_BEFORE)),
    Prepared(
        select(Raw(entries.c.recorded_at))
        .where(*_BEFORE, entries.c.recorded_at.is_not(None))
        .order_by(entries.c.position.desc())
        .limit(ONE)
    ),
)

_ATTACHMENT_KEY = (attachments.c.session_id, attachments.c.position, attachments.c.ordinal)
_OF_ENTRY = (
    entries.c.namespace == attachments.c.namespace,
    entries.c.session_id == attachments.c.session_id,
    entries.c.position == attachments.c.position,
)
_OF_BLOB = (blobs.c.namespace == attachments.c.namespace, blobs.c.digest == attachments.c.digest)
_ATTACHMENTS = Prepared(
    select(
        *_ATTACHMENT_KEY,
        attachments.c.digest,
        Raw(attachments.c.mime),
        Raw(attachments.c.filename),
        has(entries, *_OF_ENTRY),
        has(blobs, *_OF_BLOB),
    )
    .where(attachments.c.namespace == NS, _behind(*_ATTACHMENT_KEY))
    .order_by(*_ATTACHMENT_KEY)
    .limit(COUNT)
)

_NEXT_BLOBS = (
    blobs.c.namespace == NS,
    blobs.c.digest > bindparam("digest", type_=blobs.c.digest.type),
)
_BLOB_SIZES = Prepared(
    select(func.length(blobs.c.data)).where(*_NEXT_BLOBS).order_by(blobs.c.digest).limit(COUNT)
)
_BLOBS = Prepared(
    select(blobs.c.digest, blobs.c.size, blobs.c.data, has(attachments, *_OF_BLOB))
    .where(*_NEXT_BLOBS)
    .order_by(blobs.c.digest)
    .limit(COUNT),
    binary_result=True,
)

# The least of each table, by its key: to list them all would read every row.
_FIRST, _NEXT = (
    union_all(
        *(select(func.min(t.c.namespace)).where(*[t.c.namespace > NS] * behind) for t in TABLES)
    )
    for behind in (False, True)
)


def read_sessions(connection: Connection, namespace: str, after: Sequence[Any]) -> list[SessionRow]:
    """The next sessions' rows behind the id *after*[0]."""
    values = {"ns": namespace, "session": after[0], "count": AT_ONCE}
    columns = len(_HEADER)
    return [
        SessionRow(row[1], dict(zip(_HEADER, row[:columns], strict=True)), *row[columns:])
        for row in _SESSIONS.fetch(connection, values)
    ]


def read_entries(connection: Connection, namespace: str, after: Sequence[Any]) -> EntryRows:
    """The next entries' rows behind session and position *after*, as many as are a PORTION, but one
    at least.
    """
    values = {"ns": namespace, "session": after[0], "position": after[1], "count": AT_ONCE}
    count = _portion(_ENTRY_SIZES.fetch(connection, values))
    found = [EntryRow(*row) for row in _ENTRIES.fetch(connection, {**values, "count": count})]
    if not found:
        return EntryRows([], -1, "")
    before = {"ns": namespace, "sid": found[0].session, "first": found[0].position}
    (previous,), (latest,) = (
        next(iter(statement.fetch(connection, before)), (None,)) for statement in _NEWEST_BEFORE
    )
    return EntryRows(found, -1 if previous is None else previous, latest or "")


def read_attachments(
    connection: Connection, namespace: str, after: Sequence[Any]
) -> list[AttachmentRow]:
    """The next attachments' rows behind session, position and ordinal *after*."""
    session, position, ordinal = after
    values = {"ns": namespace, "session": session, "position": position, "ordinal": ordinal}
    found = _ATTACHMENTS.fetch(connection, {**values, "count": AT_ONCE})
    return [AttachmentRow(*row) for row in found]


def read_blobs(connection: Connection, namespace: str, after: Sequence[Any]) -> list[BlobRow]:
    """The next blobs behind the digest *after*[0], as many as are a PORTION, but one at least."""
    values = {"ns": namespace, "digest": after[0], "count": AT_ONCE}
    count = _portion(_BLOB_SIZES.fetch(connection, values))
    return [BlobRow(*row) for row in _BLOBS.fetch(connection, {**values, "count": count})]


def namespaces(connection: Connection) -> list[str]:
    """All namespaces that have a row in any table, in the order of their bytes."""
    found: list[str] = []
    while True:
        values, statement = ({"ns": found[-1]}, _NEXT) if found else ({}, _FIRST)
        names = [
            name for name in connection.execute(statement, values).scalars() if name is not None
        ]
        if not names:
            return found
        found.append(min(names, key=str.encode))


def _portion(sizes: Sequence[Sequence[Any]]) -> int:
    """How many of the rows of these *sizes* are a PORTION together, but one at least."""
    total, count = 0, 0
    for (size,) in sizes:
        total += int(size or 0)
        if total > PORTION:
            break
        count += 1
    return max(count, 1)
