"""The statements that both databases have, but for the names of two functions and the way to spell
an insert.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import product
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    FromClause,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.sql.dml import Update
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import BigInteger, Integer, Text

from turnkeep.dialect.base import Parameters, Row
from turnkeep.errors import Corrupt
from turnkeep.prepared import Prepared
from turnkeep.tables import Utc, attachments, blobs, entries, sessions

T = TypeVar("T")

AT_ONCE = 500
"""How many values one statement is given in a list: some builds of SQLite take no more than 999."""


class Instant(FunctionElement[datetime]):
    """A column of the type Utc as text, since the driver of Postgres can't read what a server, or a
    role, with another DateStyle than ISO writes.
    """

    inherit_cache = True
    type = Utc()


class Raw(FunctionElement[str]):
    """A column as it is stored: SQLite's driver ends the statement where text is no UTF-8.

    There text comes as its bytes, and a blob, which is none, as a number; in a column of bytes it
    is the text that comes as a number.
    """

    inherit_cache = True
    type = Text()


class Stored(FunctionElement[Any]):
    """A column of a key as it is stored, a text on SQLite as its bytes."""

    inherit_cache = True


class IsText(FunctionElement[int]):
    """Whether `Stored` gives a text as its bytes."""

    type = Integer()
    inherit_cache = True


class Given(FunctionElement[Any]):
    """What `Stored` and `IsText` gave, as a value of a statement."""

    inherit_cache = True


class Bytes(FunctionElement[int]):
    """How many bytes a text column holds, without reading the text where the database can tell."""

    type = BigInteger()
    inherit_cache = True


class Lines(FunctionElement[str]):
    """An aggregate of a column of bytes and one of texts: a line of hex digits and text for each
    row.
    """

    type = Text()
    inherit_cache = True


NS, SID, KEY = (bindparam(name, type_=Text) for name in ("ns", "sid", "key"))
RECORDED_AT = bindparam("recorded_at", type_=Text)
EXPECTED = bindparam("expected", type_=BigInteger)
ONE: ColumnElement[int] = literal_column("1")
NONE_YET: ColumnElement[str] = literal_column("''")

IN_SESSION = (sessions.c.namespace == NS, sessions.c.id == SID)
KEY_IS_KNOWN = exists().where(
    entries.c.namespace == NS, entries.c.session_id == SID, entries.c.idempotency_key == KEY
)
COLUMNS = [column.name for column in entries.columns]


def advance(greatest: Any, now: ColumnElement[Any], *, keyed: bool, expected: bool) -> Update:
    """Take the session's next position, and with it the lock that puts its writers in order."""
    statement = update(sessions).where(*IN_SESSION)
    if keyed:
        statement = statement.where(~KEY_IS_KNOWN)
    if expected:
        statement = statement.where(sessions.c.last_position == EXPECTED)
    return statement.values(
        last_position=sessions.c.last_position + ONE,
        updated_at=greatest(sessions.c.updated_at, now),
        last_recorded_at=greatest(
            sessions.c.last_recorded_at, func.coalesce(RECORDED_AT, NONE_YET)
        ),
    ).returning(sessions.c.last_position, sessions.c.last_recorded_at)


def advances(greatest: Any, now: ColumnElement[Any]) -> dict[tuple[bool, bool], Update]:
    """`advance` with and without a key and an expected position."""
    return {
        (keyed, expected): advance(greatest, now, keyed=keyed, expected=expected)
        for keyed, expected in product((False, True), repeat=2)
    }


def new_session(insert_into: Any, now: ColumnElement[Any]) -> Prepared:
    """Insert a session's row unless there is one."""
    given = {c.name: bindparam(c.name, type_=c.type) for c in sessions.columns}
    row = given | {"namespace": NS, "id": SID, "updated_at": now}
    statement = insert_into(sessions).values(row)
    return Prepared(statement.on_conflict_do_nothing().returning(sessions.c.id))


def new_blob(insert_into: Any) -> Prepared:
    """Insert a blob unless its digest is there."""
    given = {c.name: bindparam(c.name, type_=c.type) for c in blobs.columns} | {"namespace": NS}
    statement = insert_into(blobs).values(given)
    return Prepared(statement.on_conflict_do_nothing(), binary=["data"])


INSERT_ENTRY = Prepared(
    insert(entries).values(
        namespace=NS,
        session_id=SID,
        position=bindparam("position", type_=BigInteger),
        type=bindparam("type", type_=Text),
        idempotency_key=KEY,
        recorded_at=RECORDED_AT,
        attachments=bindparam("attachments", type_=Integer),
        payload=bindparam("payload", type_=Text),
    )
)


def counted(session: Parameters, position: object) -> int:
    """*position*, as it was counted in the session's row; SQLite holds what another put there.

    Raises:
        Corrupt: it is none.
    """
    if isinstance(position, int) and 0 <= position < 1 << 62:
        return position
    raise Corrupt(str(session["sid"]), 0, "$", "its last position can't be decoded")


OF_SESSION = (entries.c.namespace == sessions.c.namespace, entries.c.session_id == sessions.c.id)
"""Which entries a session has."""

OF_ENTRY = (
    attachments.c.namespace == entries.c.namespace,
    attachments.c.session_id == entries.c.session_id,
    attachments.c.position == entries.c.position,
)
"""Which attachments an entry has."""

OF_BLOB = (attachments.c.namespace == blobs.c.namespace, attachments.c.digest == blobs.c.digest)
"""Which attachments name a blob."""


def has(table: FromClause, *is_it: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether *table* has such a row: looked up for each row, where for an EXISTS Postgres may
    choose to read the whole table, again for each portion.
    """
    found = select(ONE).select_from(table).where(*is_it).limit(ONE)
    return found.scalar_subquery().is_not(None)


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """*values*, as many at a time as one statement takes."""
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


def portions(
    rows: Iterable[T], most: int, size_of: Callable[[T], int], count: int | None = None
) -> Iterator[list[T]]:
    """*rows*, up to *count* at a time which have the size *most* together, but one at least."""
    some: list[T] = []
    size = 0
    for row in rows:
        its_own = size_of(row)
        if some and (len(some) == count or size + its_own > most):
            yield some
            some, size = [], 0
        some.append(row)
        size += its_own
    if some:
        yield some


def first_portion(rows: Iterable[T], most: int, size_of: Callable[[T], int]) -> list[T]:
    """The first of *rows*, as many as have the size *most* together, but one at least."""
    return next(portions(rows, most, size_of), [])


def as_bytes(value: object) -> bytes:
    """The bytes in a column of them; none where SQLite holds a value of another type there."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""


def values_of(session: Parameters, row: Row) -> dict[str, object]:
    """The parameters of a statement that writes *row*, but for its position."""
    return {
        **session,
        "type": row.type,
        "key": row.key,
        "recorded_at": row.recorded_at,
        "attachments": len(row.attachments),
        "payload": row.payload,
    }
