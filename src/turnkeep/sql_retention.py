"""The statements by which many sessions go: `prune`, and `erase_namespace`.

They go in batches, each a short transaction. `look` walks an index from where the last batch ended
and reads, without a lock, which sessions come next and how large they are, so that a batch is
bounded by rows and by bytes; only a session that is larger by itself is a batch alone. `take` locks
those sessions, judges again under the lock, and deletes them.

What was written to since the beginning is another session now: an eraser takes it as it is, and a
pruner leaves it. That can't be told by its time, since a clock may be set back, and a transaction
takes the time long before it commits. So a pruner remembers how it found each session, in eight
bytes (`States`), and takes it in that state only.
"""

import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    bindparam,
    cast,
    delete,
    exists,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.types import BigInteger

from turnkeep import dialect
from turnkeep.dialect.statements import AT_ONCE, NS, OF_BLOB, ONE, Bytes, Instant, first_portion
from turnkeep.errors import Corrupt
from turnkeep.prepared import Prepared
from turnkeep.sql import COUNT, CWD, ZERO, cwd_digest
from turnkeep.sql_delete import SIDS, delete_sessions
from turnkeep.sql_walk import Keys, Place, Walk
from turnkeep.tables import Utc, attachments, blobs, entries, metadata, sessions

ROWS = 2_000
"""How many rows of entries and attachments a batch has at the most, unless it is one session."""

BYTES = 8 << 20
"""How many bytes of payloads and attachments a batch has at the most, unless it is one session."""


STATES_AT_ONCE = 10_000
"""How many rows are read at once of those that are remembered."""


class Key(NamedTuple):
    """A session's place among those of its namespace, by the time of its last change."""

    updated: datetime
    id: str


EARLIEST = datetime.min.replace(tzinfo=UTC)
"""Before all times of a session."""


class Which(NamedTuple):
    """Which sessions are looked at: those below a key, of one cwd or of all; without a key, every
    one of the namespace, in the order of the ids.
    """

    namespace: str
    cwd: str | None = None
    below: Key | None = None

    @property
    def values(self) -> dict[str, object]:
        """The parameters of its statements."""
        values: dict[str, object] = {"ns": self.namespace}
        if self.cwd is not None:
            values["cwd_digest"] = cwd_digest(self.cwd)
        if self.below is not None:
            values["below"], values["below_id"] = self.below
        return values


class Candidate(NamedTuple):
    """A session as it was when it was looked at: its rows, and their bytes with its attachments'.

    `payload` is the part of `bytes` that is not attachments'. `place` is that among all ids, where
    they are gone through in this order; there the id may be no text in UTF-8, and is looked up by
    its place.
    """

    key: Key
    last_position: int
    rows: int
    bytes: int
    payload: int
    place: Place = ()

    @property
    def is_odd(self) -> bool:
        """Whether its id is no text in UTF-8."""
        return bool(self.place) and self.place[0].text is None


class States:
    """Sessions as they were at one time, by a digest of what *rows* say of each."""

    def __init__(self, rows: Iterable[Sequence[object]]) -> None:
        self._digests = array("q", sorted(hash(tuple(row)) for row in rows))

    def __contains__(self, row: Sequence[object]) -> bool:
        digest = hash(tuple(row))
        place = bisect_left(self._digests, digest)
        return place < len(self._digests) and self._digests[place] == digest


class Settled(NamedTuple):
    """What a pruner settles at the beginning: below which key sessions go, and in which state."""

    below: Key
    states: States


class Taken(NamedTuple):
    """What a batch took away, and when it had its lock, by this process's clock."""

    sessions: int
    entries: int
    bytes: int
    since: float


KEY = (sessions.c.updated_at, sessions.c.id)
PLACE = bindparam("place", type_=BigInteger)
AFTER = tuple_(*KEY) > tuple_(
    bindparam("after", type_=Utc), bindparam("after_id", type_=sessions.c.id.type)
)
BELOW = tuple_(*KEY) < tuple_(
    bindparam("below", type_=Utc), bindparam("below_id", type_=sessions.c.id.type)
)
STATE = (Instant(sessions.c.updated_at), sessions.c.id, sessions.c.last_position)
BOTH = (False, True)


def _of(*, cwd: bool) -> list[ColumnElement[bool]]:
    return [sessions.c.namespace == NS, *[CWD] * cwd]


def _sum(column: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), literal_column("0"))


NTH = {
    cwd: select(*STATE[:2])
    .where(*_of(cwd=cwd))
    .order_by(*(column.desc() for column in KEY))
    .offset(PLACE)
    .limit(literal_column("1"))
    for cwd in BOTH
}
LOOK = {
    (cwd, behind): select(*STATE)
    .where(*_of(cwd=cwd), BELOW, *[AFTER] * behind)
    .order_by(*KEY)
    .limit(COUNT)
    for cwd in BOTH
    for behind in BOTH
}
ID = Keys(sessions.c.id)
LOOK_AT_ALL = Walk(  # at no more than erasing needs: other columns may be damaged
    select(*ID.stored, cast(sessions.c.last_position, BigInteger))
    .where(sessions.c.namespace == NS)
    .order_by(sessions.c.id)
    .limit(COUNT),
    ID,
)
DELETE_ODD = {
    table.name: Prepared(
        delete(table).where(table.c.namespace == NS, column == ID.given("odd")[0]).returning(size)
    )
    for table, column, size in (
        (attachments, attachments.c.session_id, ZERO),
        (entries, entries.c.session_id, Bytes(entries.c.payload)),
        (sessions, sessions.c.id, ZERO),
    )
}
THESE = (sessions.c.namespace == NS, sessions.c.id.in_(SIDS))
IN_ENTRIES = (entries.c.namespace == NS, entries.c.session_id == sessions.c.id)
IN_ATTACHMENTS = (attachments.c.namespace == NS, attachments.c.session_id == sessions.c.id)
# Each looked up by itself, as in `has`: for a join Postgres may choose to read a whole table.
MEASURE = select(
    sessions.c.id,
    select(_sum(Bytes(entries.c.payload))).where(*IN_ENTRIES).scalar_subquery(),
    select(
        _sum(
            select(blobs.c.size)
            .where(blobs.c.namespace == NS, blobs.c.digest == attachments.c.digest)
            .scalar_subquery()
        )
    )
    .where(*IN_ATTACHMENTS)
    .scalar_subquery(),
    select(func.count()).where(*IN_ENTRIES).scalar_subquery(),
    select(func.count()).where(*IN_ATTACHMENTS).scalar_subquery(),
).where(*THESE)

COUNT_SESSIONS = {cwd: select(func.count()).where(*_of(cwd=cwd), BELOW) for cwd in BOTH}
COUNT_ENTRIES = {
    cwd: select(func.count(), _sum(Bytes(entries.c.payload))).where(
        *_of(cwd=cwd), BELOW, *IN_ENTRIES
    )
    for cwd in BOTH
}
COUNT_BLOBS = {
    cwd: select(_sum(blobs.c.size)).where(
        blobs.c.namespace == NS,
        exists().where(*OF_BLOB),
        ~exists().where(
            *OF_BLOB,
            ~exists().where(
                *_of(cwd=cwd),
                BELOW,
                sessions.c.namespace == attachments.c.namespace,
                sessions.c.id == attachments.c.session_id,
            ),
        ),
    )
    for cwd in BOTH
}


def _first_of(table: Table) -> ColumnElement[int]:
    """Looked up by the key: for an EXISTS Postgres may choose to read the whole table."""
    first = select(ONE).where(table.c.namespace == NS).order_by(*table.primary_key).limit(ONE)
    return first.scalar_subquery()


LEFT = select(*(_first_of(table).label(table.name) for table in metadata.sorted_tables))
"""Of every table that we have, those of later versions too."""

LOCK = select(sessions.c.id).where(*THESE).order_by(sessions.c.id).with_for_update()
LOCK_FREE = select(*STATE).where(*THESE).with_for_update(skip_locked=True)


def bound(
    connection: Connection,
    which: Which,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
) -> Key | None:
    """The key below which sessions go; None where none do.

    It is not later than the database's time: what is changed from now on comes to stand behind it,
    so that the walk ends, and it does not rise later.
    """
    if _nth(connection, which, 0) is None:
        return None
    now = dialect.of(connection).now(connection)
    bounds = [Key(now, "")]
    if isinstance(older_than, timedelta):
        older_than = _earlier(now, older_than)
    if older_than is not None:
        bounds.append(Key(older_than, ""))
    if keep_last:
        last = _nth(connection, which, keep_last - 1)
        if last is None:
            return None
        bounds.append(last)
    return min(bounds)


def settle(
    connection: Connection,
    which: Which,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
) -> Settled | None:
    """What goes, as it is now; None where nothing does."""
    below = bound(connection, which, older_than, keep_last)
    if below is None:
        return None
    return Settled(below, States(_states(connection, which._replace(below=below))))


def _states(connection: Connection, which: Which) -> Iterator[Sequence[Any]]:
    """What is remembered of each session, read a part at a time. Not by a cursor of the server's:
    psycopg's is left open where the call is cancelled.
    """
    values = which.values | {"count": STATES_AT_ONCE}
    is_behind = False
    while rows := connection.execute(LOOK[which.cwd is not None, is_behind], values).all():
        yield from rows
        values["after"], values["after_id"], _ = rows[-1]
        is_behind = True


def look(connection: Connection, which: Which, after: Candidate | None) -> list[Candidate]:
    """The sessions that come behind *after*, or first, and make up a batch; none at the end."""
    values = which.values | {"count": AT_ONCE}
    if which.below is None:
        all_rows = LOOK_AT_ALL.fetch(connection, values, after.place if after else None)
        found = [
            Candidate(Key(EARLIEST, str(place[0].shown)), last, last + 1, 0, 0, place)
            for place, (last,) in map(ID.split, all_rows)
        ]
    else:
        if after is not None:
            values["after"], values["after_id"] = after.key
        rows = connection.execute(LOOK[which.cwd is not None, after is not None], values)
        counted = ((_key(at, id), dialect.counted({"sid": id}, last)) for at, id, last in rows)
        found = [Candidate(key, last, last + 1, 0, 0) for key, last in counted]
    # Cut before the sizes are asked for: those of sessions that don't come now would be too many.
    return _batch(_measured(connection, which.namespace, _batch(found)))


def take(
    connection: Connection, namespace: str, batch: Sequence[Candidate], states: States | None
) -> Taken:
    """Delete the sessions of *batch* and the blobs that no other session has.

    Where they are to be in one of *states*, those that somebody holds or has written to since are
    left out.
    """
    since = time.monotonic()
    values = {"ns": namespace, "sids": [candidate.key.id for candidate in batch]}
    if states is not None:
        there = {tuple(row) for row in connection.execute(LOCK_FREE, values) if row in states}
        taken = [each for each in batch if (*each.key, each.last_position) in there]
    else:
        ids = set(connection.execute(LOCK, values).scalars())
        there_now = [each for each in batch if not each.is_odd and each.key.id in ids]
        taken = _measured(connection, namespace, there_now)
    deleted = delete_sessions(connection, namespace, [each.key.id for each in taken])
    size = sum(each.payload for each in taken) + deleted.blob_bytes
    gone = Taken(len(taken), deleted.entries, size, since)
    for each in batch:
        if each.is_odd and states is None:
            gone = _without(connection, namespace, each.place, gone)
    return gone


def left(connection: Connection, namespace: str) -> list[str]:
    """The tables that hold a row of the namespace."""
    found = connection.execute(LEFT, {"ns": namespace}).mappings().one()
    return [name for name, is_there in found.items() if is_there]


def preview(connection: Connection, which: Which) -> tuple[int, int, int]:
    """How many sessions and entries would go, and how many bytes of payloads and blobs."""
    of_cwd, values = which.cwd is not None, which.values
    count = connection.execute(COUNT_SESSIONS[of_cwd], values).scalar_one()
    rows, payload = connection.execute(COUNT_ENTRIES[of_cwd], values).one()
    blob_bytes = connection.execute(COUNT_BLOBS[of_cwd], values).scalar_one()
    return count, rows, int(payload) + int(blob_bytes)


def _nth(connection: Connection, which: Which, place: int) -> Key | None:
    """The key of the session at *place*, counted from the newest."""
    found = connection.execute(NTH[which.cwd is not None], which.values | {"place": place}).first()
    return None if found is None else _key(*found)


def _key(updated: datetime | None, id: str) -> Key:
    """The key that two columns are.

    Raises:
        Corrupt: the time is none; SQLite holds what another put there.
    """
    if updated is None:
        raise Corrupt(id, 0, "$", "its time of change can't be decoded")
    return Key(updated, id)


def _earlier(now: datetime, span: timedelta) -> datetime:
    try:
        return now - span
    except OverflowError:
        return EARLIEST


def _without(connection: Connection, namespace: str, place: Place, gone: Taken) -> Taken:
    """What is *gone* with the session at *place*, on SQLite, whose attachments belong to nothing
    then.
    """
    values = {"ns": namespace, **ID.values(place, "odd")}
    sizes = {name: found.fetch(connection, values) for name, found in DELETE_ODD.items()}
    payloads = [int(size) for (size,) in sizes[entries.name]]
    return gone._replace(
        sessions=gone.sessions + len(sizes[sessions.name]),
        entries=gone.entries + len(payloads),
        bytes=gone.bytes + sum(payloads),
    )


def _measured(
    connection: Connection, namespace: str, found: Sequence[Candidate]
) -> list[Candidate]:
    """The candidates with the sizes that they have now, but those of odd ones."""
    ids = [candidate.key.id for candidate in found if not candidate.is_odd]
    values = {"ns": namespace, "sids": ids}
    sizes = {id: size for id, *size in connection.execute(MEASURE, values)} if ids else {}
    measured = []
    for candidate in found:
        if candidate.is_odd:
            measured.append(candidate)
            continue
        payload, attached, *rows = map(int, sizes.get(candidate.key.id, (0, 0, 0, 0)))
        measured.append(
            candidate._replace(rows=sum(rows), bytes=payload + attached, payload=payload)
        )
    return measured


def _batch(found: Iterable[Candidate]) -> list[Candidate]:
    """The first of *found*, as many as the bounds allow, but one at least."""
    of_rows = first_portion(found, ROWS, lambda candidate: candidate.rows)
    return first_portion(of_rows, BYTES, lambda candidate: candidate.bytes)
