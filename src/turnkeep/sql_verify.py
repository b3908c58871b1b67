"""The statements of `verification`, as functions of a Connection: rows a portion at a time, read so
that nothing is believed of them.

Each portion is of one state of the database (SNAPSHOT) and tells all that its rows are judged by,
so a session that changes between two portions can't be mixed with itself. What names other rows is
held against them here, whatever the database enforces. A row tells what can be told of its key, and
its place has the key as it is stored.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select, union_all

from turnkeep.dialect.statements import (
    AT_ONCE,
    NS,
    OF_BLOB,
    OF_ENTRY,
    OF_SESSION,
    ONE,
    Instant,
    IsText,
    Lines,
    Raw,
    Stored,
    first_portion,
    has,
)
from turnkeep.prepared import Prepared
from turnkeep.sql import COUNT, PORTION, ZERO
from turnkeep.sql_walk import Keys, Place, Value, Walk
from turnkeep.tables import PREFIX, TABLES, attachments, blobs, entries, sessions


class SessionRow(NamedTuple):
    """A session's row, and what its entries say of the same."""

    place: Place
    id: Any
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

    session: Any
    position: Any
    type: Any
    recorded_at: Any
    attachments: Any
    payload: Any
    idempotency_key: Any
    has_session: bool
    lifted: Any
    place: Place = ()


class EntryRows(NamedTuple):
    """Rows of entries in order, and how the session of the first stood in front of it."""

    rows: Sequence[EntryRow]
    previous: Any
    """The position of the entry before, -1 where there is none."""
    latest: Any
    """The `recorded_at` of the newest entry before that has one, or the empty text."""


class AttachmentRow(NamedTuple):
    """An attachment, and whether what it names is there."""

    place: Place
    session: Any
    position: Any
    digest: Any
    mime: Any
    filename: Any
    has_entry: bool
    has_blob: bool


class BlobRow(NamedTuple):
    """A blob, and whether an attachment names it."""

    place: Place
    size: Any
    data: Any
    is_used: bool


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
_ID = Keys(sessions.c.id)
_SESSIONS = Walk(
    select(
        *_ID.stored,
        *(Raw(sessions.c[name]) for name in _HEADER),
        Raw(sessions.c.cwd_digest),
        Raw(Instant(sessions.c.updated_at)),
        Raw(sessions.c.last_position),
        Raw(sessions.c.last_recorded_at),
        select(Raw(entries.c.payload))
        .where(*OF_SESSION, entries.c.position == ZERO)
        .correlate(sessions)
        .scalar_subquery(),
        select(Raw(func.max(entries.c.position)))
        .where(*OF_SESSION)
        .correlate(sessions)
        .scalar_subquery(),
        select(Raw(entries.c.recorded_at))
        .where(*OF_SESSION, entries.c.recorded_at.is_not(None))
        .order_by(entries.c.position.desc())
        .limit(ONE)
        .correlate(sessions)
        .scalar_subquery(),
    )
    .where(sessions.c.namespace == NS)
    .order_by(sessions.c.id)
    .limit(COUNT),
    _ID,
)

_ENTRY_KEY = Keys(entries.c.session_id, entries.c.position)
_ENTRY_SIZES = Walk(
    select(func.length(entries.c.payload))
    .where(entries.c.namespace == NS)
    .order_by(*_ENTRY_KEY.columns)
    .limit(COUNT),
    _ENTRY_KEY,
)
_ENTRIES = Walk(
    select(
        *_ENTRY_KEY.stored,
        Raw(entries.c.type),
        Raw(entries.c.recorded_at),
        Raw(entries.c.attachments),
        Raw(entries.c.payload),
        Raw(entries.c.idempotency_key),
        has(sessions, *OF_SESSION),
        select(Raw(Lines(attachments.c.digest, attachments.c.path)))
        .where(*OF_ENTRY)
        .correlate(entries)
        .scalar_subquery(),
    )
    .where(entries.c.namespace == NS)
    .order_by(*_ENTRY_KEY.columns)
    .limit(COUNT),
    _ENTRY_KEY,
)
_SESSION, _POSITION = _ENTRY_KEY.given("first")
_BEFORE = (
    entries.c.namespace == NS,
    entries.c.session_id == _SESSION,
    entries.c.position < _POSITION,
)
_NEWEST_BEFORE = (
    Prepared(select(Raw(func.max(entries.c.position))).where(*_BEFORE)),
    Prepared(
        select(Raw(entries.c.recorded_at))
        .where(*_BEFORE, entries.c.recorded_at.is_not(None))
        .order_by(entries.c.position.desc())
        .limit(ONE)
    ),
)

_ATTACHMENT_KEY = Keys(attachments.c.session_id, attachments.c.position, attachments.c.ordinal)
_ATTACHMENTS = Walk(
    select(
        *_ATTACHMENT_KEY.stored,
        Raw(attachments.c.digest),
        Raw(attachments.c.mime),
        Raw(attachments.c.filename),
        has(entries, *OF_ENTRY),
        has(blobs, *OF_BLOB),
    )
    .where(attachments.c.namespace == NS)
    .order_by(*_ATTACHMENT_KEY.columns)
    .limit(COUNT),
    _ATTACHMENT_KEY,
)

_DIGEST = Keys(blobs.c.digest)
_BLOB_SIZES = Walk(
    select(func.length(blobs.c.data))
    .where(blobs.c.namespace == NS)
    .order_by(blobs.c.digest)
    .limit(COUNT),
    _DIGEST,
)
_BLOBS = Walk(
    select(*_DIGEST.stored, Raw(blobs.c.size), Raw(blobs.c.data), has(attachments, *OF_BLOB))
    .where(blobs.c.namespace == NS)
    .order_by(blobs.c.digest)
    .limit(COUNT),
    _DIGEST,
    binary_result=True,
)

# The least of each table, by its key: to list them all would read every row.
_NAMESPACE = [Keys(table.c.namespace) for table in TABLES]
_LEAST = [
    [
        select(func.min(key.columns[0]).label("name")).where(*[key.behind()] * behind).subquery()
        for key in _NAMESPACE
    ]
    for behind in (False, True)
]
_FIRST, _NEXT = (
    Prepared(union_all(*(select(Stored(least.c.name), IsText(least.c.name)) for least in each)))
    for each in _LEAST
)


def read_sessions(connection: Connection, namespace: str, after: Place | None) -> list[SessionRow]:
    """The next sessions' rows behind the place *after*."""
    rows = []
    for row in _SESSIONS.fetch(connection, {"ns": namespace, "count": AT_ONCE}, after):
        place, rest = _ID.split(row)
        header = dict(zip(_HEADER, rest, strict=False))
        rows.append(SessionRow(place, place[0].shown, header, *rest[len(_HEADER) :]))
    return rows


def read_entries(connection: Connection, namespace: str, after: Place | None) -> EntryRows:
    """The next entries' rows behind the place *after*, as many as are a PORTION, but one at
    least.
    """
    values: dict[str, object] = {"ns": namespace, "count": AT_ONCE}
    count = _portion(_ENTRY_SIZES.fetch(connection, values, after))
    found = []
    for row in _ENTRIES.fetch(connection, {**values, "count": count}, after):
        place, rest = _ENTRY_KEY.split(row)
        session, position = (key.shown for key in place)
        found.append(EntryRow(*(session, position, *rest, place)))
    if not found:
        return EntryRows([], -1, "")
    before = {"ns": namespace, **_ENTRY_KEY.values(found[0].place, "first")}
    (previous,), (latest,) = (
        next(iter(statement.fetch(connection, before)), (None,)) for statement in _NEWEST_BEFORE
    )
    return EntryRows(found, -1 if previous is None else previous, latest or "")


def read_attachments(
    connection: Connection, namespace: str, after: Place | None
) -> list[AttachmentRow]:
    """The next attachments' rows behind the place *after*."""
    rows = []
    for row in _ATTACHMENTS.fetch(connection, {"ns": namespace, "count": AT_ONCE}, after):
        place, rest = _ATTACHMENT_KEY.split(row)
        rows.append(AttachmentRow(place, place[0].shown, place[1].shown, *rest))
    return rows


def read_blobs(connection: Connection, namespace: str, after: Place | None) -> list[BlobRow]:
    """The next blobs behind the place *after*, as many as are a PORTION, but one at least."""
    values: dict[str, object] = {"ns": namespace, "count": AT_ONCE}
    count = _portion(_BLOB_SIZES.fetch(connection, values, after))
    rows = _BLOBS.fetch(connection, {**values, "count": count}, after)
    return [BlobRow(place, *rest) for place, rest in map(_DIGEST.split, rows)]


def namespaces(connection: Connection) -> list[tuple[str, Value]]:
    """What the tables have as namespaces, in the order of their bytes; each with the first of the
    tables that has it, without the prefix.
    """
    found: list[tuple[str, Value]] = []
    while True:
        statement = _NEXT if found else _FIRST
        values = _NAMESPACE[0].values((found[-1][1],) if found else None)
        least = map(Value._make, statement.fetch(connection, values))
        names = [
            (table.name.removeprefix(PREFIX), name)
            for table, name in zip(TABLES, least, strict=True)
            if name.stored is not None
        ]
        if not names:
            return found
        found.append(min(names, key=lambda each: _order(each[1])))


def _order(name: Value) -> tuple[bool, bytes]:
    """Where a namespace comes: texts by their bytes, and behind them, on SQLite, blobs."""
    is_text = isinstance(name.stored, str)
    stored = name.stored.encode() if is_text else bytes(name.stored)
    return not (is_text or name.is_text), stored


def _portion(sizes: Sequence[Sequence[Any]]) -> int:
    """How many of the rows of these *sizes* are a PORTION together, but one at least."""
    return max(1, len(first_portion(sizes, PORTION, lambda row: int(row[0] or 0))))
