"""Every statement on sessions and entries, as functions of a Connection: what goes in and out are
values.

A function is one piece of work. It neither begins nor commits, and may be run again from its start
when its transaction was undone (`Again`). A write that finds no row looks why and says so by a
typed error. What the two databases do differently is in `dialect`; entries are made of rows, and
rows of entries, in `rows`, outside the transaction.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.types import BigInteger

from turnkeep import dialect
from turnkeep.dialect import Again, AttachmentRow, Parameters, Row
from turnkeep.dialect.statements import (
    AT_ONCE,
    IN_SESSION,
    INSERT_ENTRY,
    KEY,
    NS,
    SID,
    Instant,
    Lines,
    Raw,
    as_bytes,
    chunks,
    first_portion,
    portions,
)
from turnkeep.entries import Header
from turnkeep.errors import Conflict, Corrupt, SessionExists, UnknownSession
from turnkeep.prepared import Prepared
from turnkeep.sql_delete import IN_BLOBS, drop_blobs
from turnkeep.tables import Utc, attachments, blobs, entries, sessions, utc_text

PORTION = 4 << 20
"""How many bytes are read or written at once, where a session may be larger than the memory."""

BATCH = 64 << 20
"""How many characters of entries one statement is given at the most, if they are not those of one:
Postgres takes a message of 1 GiB, and has several copies of it in memory.
"""

ROW = 1000
"""What a row counts for there besides its longest text."""

ALL = 1 << 62
"""A limit that limits nothing."""

IN_ENTRIES = (entries.c.namespace == NS, entries.c.session_id == SID)
IN_ATTACHMENTS = (attachments.c.namespace == NS, attachments.c.session_id == SID)
FIRST, LAST = (bindparam(name, type_=BigInteger) for name in ("first", "last"))
COUNT = bindparam("count", type_=BigInteger)
ZERO: ColumnElement[int] = literal_column("0")


class Batch(NamedTuple):
    """Entries as they are written: a header that begins the session, if there is one, and the rows
    that follow.
    """

    header: Header | None
    header_key: str | None
    rows: Sequence[Row]
    lifts: bool
    """Whether bytes were lifted out of any of them."""


class Place(NamedTuple):
    """Where bytes were lifted from."""

    path: str
    digest: bytes


class FoundRow(NamedTuple):
    """A row of an entry."""

    position: int
    type: str
    recorded_at: str | None
    attachments: int
    payload: str
    lifted: str | None

    @property
    def places(self) -> list[Place]:
        """What was lifted out of it."""
        if self.lifted is None:
            return []
        return [Place(line[64:], bytes.fromhex(line[:64])) for line in self.lifted.split("\n")]


class Found(NamedTuple):
    """Rows of one session, oldest first; the blobs that they name by digest, where they were asked
    for.
    """

    rows: Sequence[Sequence[Any]]
    """As the driver gave them, each with the fields of a FoundRow."""
    blobs: Mapping[bytes, bytes] = MappingProxyType({})
    last_position: int | None = None

    @property
    def named(self) -> list[FoundRow]:
        """The rows as such, which takes longer than all else that is done to the rows of a read."""
        return list(map(FoundRow._make, self.rows))


# A row tells itself what was lifted out of it: between two statements a session can be deleted and
# begun anew, and one's bytes would be put into the other's messages.
LIFTED = case(
    (
        entries.c.attachments > ZERO,
        select(Lines(attachments.c.digest, attachments.c.path))
        .where(
            attachments.c.namespace == entries.c.namespace,
            attachments.c.session_id == entries.c.session_id,
            attachments.c.position == entries.c.position,
        )
        .correlate(entries)
        .scalar_subquery(),
    )
)
COLUMNS = (
    entries.c.position,
    entries.c.type,
    entries.c.recorded_at,
    entries.c.attachments,
    entries.c.payload,
    LIFTED,
)
LAST_POSITION = select(sessions.c.last_position).where(*IN_SESSION).scalar_subquery()
OLDEST_FIRST, NEWEST_FIRST = entries.c.position, entries.c.position.desc()

READ = Prepared(select(*COLUMNS).where(*IN_ENTRIES).order_by(OLDEST_FIRST))
TAIL = Prepared(
    select(*COLUMNS)
    .where(*IN_ENTRIES, entries.c.position > ZERO)
    .order_by(NEWEST_FIRST)
    .limit(COUNT)
)
AFTER = Prepared(
    select(*COLUMNS, LAST_POSITION)
    .where(*IN_ENTRIES, entries.c.position >= FIRST)
    .order_by(OLDEST_FIRST)
    .limit(COUNT)
)
BEFORE = Prepared(
    select(*COLUMNS, LAST_POSITION)
    .where(*IN_ENTRIES, entries.c.position <= LAST)
    .order_by(NEWEST_FIRST)
    .limit(COUNT)
)
IN_SPAN = (*IN_ATTACHMENTS, attachments.c.position >= FIRST, attachments.c.position <= LAST)
BLOBS = Prepared(
    select(blobs.c.digest, blobs.c.data).where(
        blobs.c.namespace == NS, blobs.c.digest.in_(select(attachments.c.digest).where(*IN_SPAN))
    ),
    binary_result=True,
)

STATE = Prepared(select(sessions.c.last_position).where(*IN_SESSION))
LOCKED_STATE = Prepared(select(sessions.c.last_position).where(*IN_SESSION).with_for_update())
HEADER_PAYLOAD = select(entries.c.payload).where(*IN_ENTRIES, entries.c.position == ZERO)
KEYS = bindparam("keys", expanding=True, type_=entries.c.idempotency_key.type)
KNOWN_KEY = Prepared(
    select(entries.c.idempotency_key, entries.c.position).where(
        *IN_ENTRIES, entries.c.idempotency_key == KEY
    )
)
KNOWN = select(entries.c.idempotency_key, entries.c.position).where(
    *IN_ENTRIES, entries.c.idempotency_key.in_(KEYS)
)
STORED = Prepared(
    select(*COLUMNS)
    .where(*IN_ENTRIES, entries.c.position >= FIRST, entries.c.position <= LAST)
    .order_by(OLDEST_FIRST)
)
# By characters, since that is what both databases have; it is what the text takes in memory, too.
SIZES = Prepared(
    select(
        entries.c.position,
        func.length(entries.c.payload),
        case(
            (
                entries.c.attachments > ZERO,
                select(func.sum(blobs.c.size))
                .where(
                    blobs.c.namespace == attachments.c.namespace,
                    blobs.c.digest == attachments.c.digest,
                    attachments.c.namespace == entries.c.namespace,
                    attachments.c.session_id == entries.c.session_id,
                    attachments.c.position == entries.c.position,
                )
                .correlate(entries)
                .scalar_subquery(),
            )
        ),
    )
    .where(*IN_ENTRIES, entries.c.position >= FIRST, entries.c.position <= LAST)
    .order_by(OLDEST_FIRST)
    .limit(COUNT)
)
MESSAGES = Prepared(
    select(func.count()).where(
        *IN_ENTRIES,
        entries.c.type == literal_column("'message'"),
        entries.c.position <= LAST,
    )
)

KNOWN_BLOBS = select(blobs.c.digest).where(*IN_BLOBS)
DELETE_ATTACHMENTS = Prepared(
    delete(attachments).where(*IN_ATTACHMENTS).returning(Raw(attachments.c.digest))
)
DELETE_ENTRIES = Prepared(delete(entries).where(*IN_ENTRIES))
DELETE_SESSION = Prepared(delete(sessions).where(*IN_SESSION))

HEADER_COLUMNS = (
    sessions.c.schema_version,
    sessions.c.id,
    sessions.c.cwd,
    sessions.c.created_at,
    sessions.c.model,
    sessions.c.riffer_rig_version,
    sessions.c.riffer_version,
    sessions.c.title,
    Instant(sessions.c.updated_at),
    sessions.c.last_position,
)
GET = Prepared(select(*HEADER_COLUMNS).where(*IN_SESSION))
CWD = sessions.c.cwd_digest == bindparam("cwd_digest", type_=sessions.c.cwd_digest.type)
OLDER = tuple_(sessions.c.updated_at, sessions.c.id) < tuple_(
    bindparam("updated", type_=Utc), bindparam("id", type_=sessions.c.id.type)
)
LIST = {
    (of_cwd, older): Prepared(
        select(*HEADER_COLUMNS)
        .where(sessions.c.namespace == NS, *[CWD] * of_cwd, *[OLDER] * older)
        .order_by(sessions.c.updated_at.desc(), sessions.c.id.desc())
        .limit(COUNT)
    )
    for of_cwd in (False, True)
    for older in (False, True)
}
ATTACHMENTS = (
    select(
        attachments.c.position,
        attachments.c.mime,
        attachments.c.filename,
        blobs.c.size,
        attachments.c.digest,
    )
    .join(
        blobs,
        (blobs.c.namespace == attachments.c.namespace) & (blobs.c.digest == attachments.c.digest),
    )
    .where(*IN_ATTACHMENTS)
    .order_by(attachments.c.position, attachments.c.ordinal)
)


def write(connection: Connection, session: Parameters, batch: Batch, expected: int | None) -> int:
    """Write *batch* behind what the session has; the position of its last entry."""
    rows = batch.rows
    if batch.header is not None:
        first = Row("header", batch.header_key, None, batch.header.payload, ())
        if _begin(connection, session, batch.header, first):
            if expected is not None:
                raise Conflict(_id(session), f"expected position {expected}, but it is new")
        elif first.key and (settled := _settled(connection, session, [first, *rows])) is not None:
            return settled
        if not rows:
            if expected is not None:
                _expect(connection, session, expected)
            return 0
    if len(rows) == 1:
        last = dialect.of(connection).append(connection, session, rows[0], expected)
    else:
        if any(row.key for row in rows):
            # The session's lock makes the look and the write one step; a single append has it in
            # its statement.
            LOCKED_STATE.fetch(connection, session)
            if (settled := _settled(connection, session, rows)) is not None:
                return settled
        last = _extend(connection, session, rows, expected)
    if last is None:
        return _why_not(connection, session, rows, expected)
    if batch.lifts:
        _attach(connection, session, last - len(rows) + 1, rows)
    return last


def takes_several(rows: Sequence[Row]) -> bool:
    """Whether `write` needs more than one statement for the entries themselves."""
    return len(rows) > 1 and sum(ROW + len(row.payload) for row in rows) > BATCH


def create(
    connection: Connection,
    session: Parameters,
    header: Header,
    rows: Iterable[Row],
    *,
    replace: bool,
) -> None:
    """Make a session that is not there, or that gives way, of *rows*, of which a few are taken at a
    time.
    """
    if replace:
        delete_session(connection, session)
    first = Row("header", None, None, header.payload, ())
    if not _insert_session(connection, session, header, first):
        if replace:
            raise Again("the session was begun anew meanwhile")
        raise SessionExists(_id(session))
    for some in portions(rows, PORTION, _with_attachments, AT_ONCE):
        lifts = any(row.attachments for row in some)
        write(connection, session, Batch(None, None, some, lifts), None)


def last_position(connection: Connection, session: Parameters, expected: int | None) -> int:
    """The position of the session's newest entry, which is to be *expected*."""
    return _expect(connection, session, expected)


def delete_session(connection: Connection, session: Parameters) -> bool:
    """Delete the session, its entries, and the blobs that no other session has; whether there was
    one.
    """
    if not LOCKED_STATE.fetch(connection, session):
        return False
    digests = sorted({as_bytes(row[0]) for row in DELETE_ATTACHMENTS.fetch(connection, session)})
    DELETE_ENTRIES.fetch(connection, session)
    DELETE_SESSION.fetch(connection, session)
    drop_blobs(connection, str(session["ns"]), digests)
    return True


def read(connection: Connection, session: Parameters, *, data: bool) -> Found:
    """All rows of the session."""
    return _found(connection, session, READ.fetch(connection, session), data=data)


def tail(connection: Connection, session: Parameters, count: int, *, data: bool) -> Found:
    """The newest rows but the header's."""
    rows = TAIL.fetch(connection, {**session, "count": count})
    return _found(connection, session, rows[::-1], data=data)


def page(
    connection: Connection,
    session: Parameters,
    after: int | None,
    before: int | None,
    limit: int,
    *,
    data: bool,
) -> Found:
    """At most *limit* rows behind the position *after*, or, where *before* is given, in front of
    that.
    """
    if before is None:
        first = 0 if after is None else after + 1
        rows = AFTER.fetch(connection, {**session, "first": first, "count": limit})
    else:
        rows = BEFORE.fetch(connection, {**session, "last": before - 1, "count": limit})[::-1]
    last = rows[0][-1] if rows else None
    found = _found(connection, session, [row[:-1] for row in rows], data=data)
    return found._replace(last_position=last)


def portion(
    connection: Connection, session: Parameters, first: int, last: int, *, data: bool
) -> Found:
    """The first rows of the positions *first* to *last*, as many as are a PORTION together with
    their attachments, but one at least.
    """
    span = {**session, "first": first, "last": last, "count": AT_ONCE}
    sizes = SIZES.fetch(connection, span)
    some = first_portion(sizes, PORTION, lambda row: row[1] + int(row[2] or 0))
    if not some:
        return Found([])
    rows = STORED.fetch(connection, {**span, "last": some[-1][0]})
    return _found(connection, session, rows, data=data)


def count_messages(connection: Connection, session: Parameters, last: int) -> int:
    """How many entries up to the position *last* are messages."""
    return int(MESSAGES.fetch(connection, {**session, "last": last})[0][0])


def get(connection: Connection, session: Parameters) -> Sequence[Any] | None:
    """The fields of the session's header, as the driver gives them; None where there is no such
    session.
    """
    found = GET.fetch(connection, session)
    return found[0] if found else None


def list_sessions(
    connection: Connection,
    namespace: str,
    cwd: str | None,
    limit: int | None,
    before: tuple[datetime, str] | None,
) -> Sequence[Sequence[Any]]:
    """The fields of the headers, newest first, of one cwd or of all, from behind *before* on."""
    values: dict[str, object] = {"ns": namespace, "count": ALL if limit is None else limit}
    if cwd is not None:
        values["cwd_digest"] = cwd_digest(cwd)
    if before is not None:
        updated, values["id"] = before
        values["updated"] = dialect.of(connection).instant(updated)
    return LIST[cwd is not None, before is not None].fetch(connection, values)


def list_attachments(connection: Connection, session: Parameters) -> Sequence[Any]:
    """What was lifted out of the session's entries: position, media type, name, size and digest."""
    return connection.execute(ATTACHMENTS, session).all()


def cwd_digest(cwd: str) -> bytes:
    """What a cwd is found by."""
    return hashlib.sha256(cwd.encode()).digest()


def _extend(
    connection: Connection, session: Parameters, rows: Sequence[Row], expected: int | None
) -> int | None:
    """Write *rows* by as few statements as take them; the last position, or None where they find no
    place.
    """
    last: int | None = None
    for some in portions(rows, BATCH, lambda row: ROW + len(row.payload)):
        before, last = last, None
        if len(some) == 1:
            last = dialect.of(connection).append(connection, session, some[0], before or expected)
        else:
            last = dialect.of(connection).extend(connection, session, some, before or expected)
        if last is None and before is not None:  # the first statement locked the session
            raise Again("the session changed in the middle of a transaction")
        if last is None:
            break
    return last


def _begin(connection: Connection, session: Parameters, header: Header, row: Row) -> bool:
    """Begin the session with *header*, whose row is *row*, unless it is there with the same one;
    whether it is new.
    """
    if _insert_session(connection, session, header, row):
        return True
    # Locked, since a delete before we are done would leave the rest without a session.
    if not LOCKED_STATE.fetch(connection, session):
        raise Again("the session was deleted meanwhile")
    stored = connection.execute(HEADER_PAYLOAD, session).scalar()
    if stored is None:
        raise Corrupt(_id(session), 0, "$", "the header is missing")
    if stored != header.payload:
        raise SessionExists(_id(session))
    return False


def _insert_session(connection: Connection, session: Parameters, header: Header, row: Row) -> bool:
    """Insert the session's row and that of its *header*, unless there is one; whether it is new."""
    values = {
        **session,
        "schema_version": header.schema_version,
        "cwd": header.cwd,
        "cwd_digest": cwd_digest(header.cwd),
        "created_at": header.created_at,
        "model": header.model,
        "riffer_rig_version": header.riffer_rig_version,
        "riffer_version": header.riffer_version,
        "title": header.title,
        "now": utc_text(datetime.now(UTC)),
        "last_position": 0,
        "last_recorded_at": "",
    }
    if not dialect.of(connection).new_session.fetch(connection, values):
        return False
    INSERT_ENTRY.fetch(connection, dialect.values_of(session, row) | {"position": 0})
    return True


def _why_not(
    connection: Connection, session: Parameters, rows: Sequence[Row], expected: int | None
) -> int:
    """Why *rows* found no place: they are there already, which is a success, or an error says what
    else.
    """
    if not STATE.fetch(connection, session):
        raise UnknownSession(_id(session))
    if (settled := _settled(connection, session, rows)) is not None:
        return settled
    _expect(connection, session, expected)
    raise Again("another writer came in between")


def _expect(connection: Connection, session: Parameters, expected: int | None) -> int:
    """The last position, which is to be *expected*."""
    state = STATE.fetch(connection, session)
    if not state:
        raise UnknownSession(_id(session))
    last = dialect.counted(session, state[0][0])
    if expected not in (None, last):
        raise Conflict(_id(session), f"expected position {expected}, but its last is {last}")
    return last


def _settled(connection: Connection, session: Parameters, rows: Sequence[Row]) -> int | None:
    """The last position of *rows* where they were written before under these keys; None where no
    key is known.
    """
    known = _known(connection, session, [row.key for row in rows if row.key is not None])
    if not known:
        return None
    first = next(known[row.key] - i for i, row in enumerate(rows) if row.key in known)
    for place, row in enumerate(rows, start=first):
        if row.key is not None and known.get(row.key) != place:
            raise Conflict(
                _id(session), f"idempotency key {row.key!r} is not where the others say it is"
            )
    last = first + len(rows) - 1
    span = {**session, "first": first, "last": last}
    stored = list(map(FoundRow._make, STORED.fetch(connection, span)))
    for place, row in enumerate(rows, start=first):
        there = stored[place - first] if place - first < len(stored) else None
        same = (
            there is not None
            and (there.position, there.type, there.payload) == (place, row.type, row.payload)
            and sorted(there.places) == sorted((a.path, a.digest) for a in row.attachments)
        )
        if not same:
            raise _other_entry(session, row.key or next(iter(known)))
    return last


def _known(connection: Connection, session: Parameters, keys: Sequence[str]) -> dict[str, int]:
    """The positions of those of *keys* that the session has."""
    if len(keys) == 1:
        return dict(map(tuple, KNOWN_KEY.fetch(connection, {**session, "key": keys[0]})))
    known: dict[str, int] = {}
    for some in chunks(keys):
        found = connection.execute(KNOWN, {**session, "keys": some})
        known.update((key, position) for key, position in found)
    return known


def _attach(connection: Connection, session: Parameters, first: int, rows: Sequence[Row]) -> None:
    """Store the bytes that were lifted out of *rows*, each once, and where they were.

    What is known is not locked, which would need the right to change it. The foreign key locks it,
    as the owner of the table, when a row that names it is inserted; where a delete came between, it
    refuses the row (`Again`).
    """
    data = {lifted.digest: lifted.data for row in rows for lifted in row.attachments}
    digests = sorted(data)  # in one order everywhere, so that nobody waits in a circle
    known: set[bytes] = set()
    for some in chunks(digests):
        known.update(connection.execute(KNOWN_BLOBS, {**session, "digests": some}).scalars())
    new_blob = dialect.of(connection).new_blob
    for digest in digests:
        if digest not in known:
            # Where another is inserting it, this waits for that one's end, and it is there after.
            size = len(data[digest])
            values = {**session, "digest": digest, "data": data[digest], "size": size}
            new_blob.fetch(connection, values)
    places = [
        AttachmentRow(position, ordinal, lifted.path, lifted.digest, lifted.mime, lifted.filename)
        for position, row in enumerate(rows, start=first)
        for ordinal, lifted in enumerate(row.attachments)
    ]
    places.sort(key=attrgetter("digest"))
    for some_places in portions(places, BATCH, lambda place: ROW + len(place.path)):
        dialect.of(connection).attach(connection, session, some_places)


def _found(
    connection: Connection, session: Parameters, rows: Sequence[Sequence[Any]], *, data: bool
) -> Found:
    """*rows* with the blobs that they name; where they name none, that costs no statement."""
    having = [row[0] for row in rows if row[3]]
    if not (data and having):
        return Found(rows)
    span = {**session, "first": having[0], "last": having[-1]}
    blobs = BLOBS.fetch(connection, span)
    return Found(rows, {as_bytes(digest): as_bytes(data) for digest, data in blobs})


def _other_entry(session: Parameters, key: str) -> Conflict:
    return Conflict(_id(session), f"idempotency key {key!r} names another entry")


def _id(session: Parameters) -> str:
    return str(session["sid"])


def _with_attachments(row: Row) -> int:
    return len(row.payload) + sum(len(lifted.data) for lifted in row.attachments)
