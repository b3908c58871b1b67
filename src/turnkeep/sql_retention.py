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
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.types import BigInteger

from turnkeep import dialect
from turnkeep.dialect.statements import AT_ONCE, NS, Bytes, Instant
from turnkeep.errors import Corrupt
from turnkeep.sql import CWD, cwd_digest
from turnkeep.sql_delete import SIDS, delete_sessions
from turnkeep.tables import Utc, attachments, blobs, entries, sessions

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


FIRST = Key(datetime.min.replace(tzinfo=UTC), "")
"""Before all sessions: an id is not empty."""


class Walk(NamedTuple):
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

    `payload` is the part of `bytes` that is not attachments'.
    """

    key: Key
    last_position: int
    rows: int
    bytes: int
    payload: int


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
COUNT, PLACE = (bindparam(name, type_=BigInteger) for name in ("count", "place"))
AFTER_ID = bindparam("after_id", type_=sessions.c.id.type)
AFTER = tuple_(*KEY) > tuple_(bindparam("after", type_=Utc), AFTER_ID)
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
    cwd: select(*STATE).where(*_of(cwd=cwd), AFTER, BELOW).order_by(*KEY).limit(COUNT)
    for cwd in BOTH
}
SETTLE = {cwd: select(*STATE).where(*_of(cwd=cwd), BELOW) for cwd in BOTH}
LOOK_AT_ALL = (  # at no more than erasing needs: other columns may be damaged
    select(sessions.c.id, cast(sessions.c.last_position, BigInteger))
    .where(sessions.c.namespace == NS, sessions.c.id > AFTER_ID)
    .order_by(sessions.c.id)
    .limit(COUNT)
)
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
OF_BLOB = (attachments.c.namespace == blobs.c.namespace, attachments.c.digest == blobs.c.digest)
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
LOCK = select(sessions.c.id).where(*THESE).order_by(sessions.c.id).with_for_update()
LOCK_FREE = select(*STATE).where(*THESE).with_for_update(skip_locked=True)


def bound(
    connection: Connection,
    walk: Walk,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
) -> Key | None:
    """The key below which sessions go; None where none do.

    It is not later than the database's time: what is changed from now on comes to stand behind it,
    so that the walk ends, and it does not rise later.
    """
    if _nth(connection, walk, 0) is None:
        return None
    now = dialect.of(connection).now(connection)
    bounds = [Key(now, "")]
    if isinstance(older_than, timedelta):
        older_than = _earlier(now, older_than)
    if older_than is not None:
        bounds.append(Key(older_than, ""))
    if keep_last:
        last = _nth(connection, walk, keep_last - 1)
        if last is None:
            return None
        bounds.append(last)
    return min(bounds)


def settle(
    connection: Connection,
    walk: Walk,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
) -> Settled | None:
    """What goes, as it is now; None where nothing does."""
    below = bound(connection, walk, older_than, keep_last)
    if below is None:
        return None
    # One statement, so that it is one state at any isolation level, and read a part at a time.
    rows = connection.execute(
        SETTLE[walk.cwd is not None],
        walk._replace(below=below).values,
        execution_options={"yield_per": STATES_AT_ONCE},
    )
    return Settled(below, States(rows))


def look(connection: Connection, walk: Walk, after: Key) -> list[Candidate]:
    """The sessions that come behind *after* and make up a batch; none at the end."""
    values = walk.values | {"after": after.updated, "after_id": after.id, "count": AT_ONCE}
    if walk.below is None:
        rows = connection.execute(LOOK_AT_ALL, values)
        found = [Candidate(Key(after.updated, id), last, last + 1, 0, 0) for id, last in rows]
    else:
        rows = connection.execute(LOOK[walk.cwd is not None], values)
        counted = ((_key(at, id), dialect.counted({"sid": id}, last)) for at, id, last in rows)
        found = [Candidate(key, last, last + 1, 0, 0) for key, last in counted]
    # Cut before the sizes are asked for: those of sessions that don't come now would be too many.
    return _batch(_measured(connection, walk.namespace, _batch(found)))


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
        there_now = [each for each in batch if each.key.id in ids]
        taken = _measured(connection, namespace, there_now)
    deleted = delete_sessions(connection, namespace, [each.key.id for each in taken])
    size = sum(each.payload for each in taken) + deleted.blob_bytes
    return Taken(len(taken), deleted.entries, size, since)


def preview(connection: Connection, walk: Walk) -> tuple[int, int, int]:
    """How many sessions and entries would go, and how many bytes of payloads and blobs."""
    of_cwd, values = walk.cwd is not None, walk.values
    count = connection.execute(COUNT_SESSIONS[of_cwd], values).scalar_one()
    rows, payload = connection.execute(COUNT_ENTRIES[of_cwd], values).one()
    blob_bytes = connection.execute(COUNT_BLOBS[of_cwd], values).scalar_one()
    return count, rows, int(payload) + int(blob_bytes)


def _nth(connection: Connection, walk: Walk, place: int) -> Key | None:
    """The key of the session at *place*, counted from the newest."""
    found = connection.execute(NTH[walk.cwd is not None], walk.values | {"place": place}).first()
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
        return FIRST.updated


def _measured(
    connection: Connection, namespace: str, found: Sequence[Candidate]
) -> list[Candidate]:
    """The candidates with the sizes that they have now."""
    values = {"ns": namespace, "sids": [candidate.key.id for candidate in found]}
    sizes = {id: size for id, *size in connection.execute(MEASURE, values)} if found else {}
    measured = []
    for candidate in found:
        payload, attached, *rows = map(int, sizes.get(candidate.key.id, (0, 0, 0, 0)))
        measured.append(
            candidate._replace(rows=sum(rows), bytes=payload + attached, payload=payload)
        )
    return measured


def _batch(found: Iterable[Candidate]) -> list[Candidate]:
    """The first of *found*, as many as the bounds allow, but one at least."""
    batch: list[Candidate] = []
    rows = size = 0
    for candidate in found:
        rows += candidate.rows
        size += candidate.bytes
        if batch and (rows > ROWS or size > BYTES):
            break
        batch.append(candidate)
    return batch
