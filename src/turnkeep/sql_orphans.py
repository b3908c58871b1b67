"""What belongs to nothing: entries without a session, attachments without an entry, and blobs
without an attachment, as damage leaves them, or other hands. And the proof that nothing is left.

They are found by walking the primary key from where the last batch ended, without a lock, since
where all is sound that reads through a whole table. Each batch is a range of it, in a transaction
of its own, which judges again.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    bindparam,
    delete,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.types import BigInteger

from turnkeep import sql_retention
from turnkeep.dialect.statements import NS, ONE, Bytes, has
from turnkeep.sql_delete import IS_UNUSED, SIZE, drop_blobs
from turnkeep.tables import attachments, blobs, entries, metadata, sessions

Place: TypeAlias = tuple[Any, ...]
"""A row's primary key behind the namespace."""

COUNT = bindparam("count", type_=BigInteger)


class Orphans:
    """Those of a table.

    Args:
        table: the table.
        first: a place before all its rows.
        are: the condition that they meet.
        size: how many bytes of content a row holds.
    """

    def __init__(
        self, table: Table, first: Place, are: ColumnElement[bool], size: ColumnElement[int]
    ) -> None:
        self.table = table
        self.first = first
        key = [column for column in table.primary_key if column.name != "namespace"]
        self._names = [column.name for column in key]
        after, last = (
            tuple_(*(bindparam(f"{name}_{c.name}", type_=c.type) for c in key))
            for name in ("after", "last")
        )
        place = tuple_(*key)
        here = (table.c.namespace == NS, place > after)
        self.find = select(*key, size).where(*here, are).order_by(*key).limit(COUNT)
        self.drop = delete(table).where(*here, place <= last, are).returning(size)

    def values(self, name: str, place: Place) -> dict[str, object]:
        """The parameters that say where *name*, `after` or `last`, is."""
        return {f"{name}_{c}": value for c, value in zip(self._names, place, strict=True)}


ENTRIES = Orphans(
    entries,
    ("", -1),
    ~has(
        sessions,
        sessions.c.namespace == entries.c.namespace,
        sessions.c.id == entries.c.session_id,
    ),
    Bytes(entries.c.payload),
)
ATTACHMENTS = Orphans(
    attachments,
    ("", -1, -1),
    ~has(
        entries,
        entries.c.namespace == attachments.c.namespace,
        entries.c.session_id == attachments.c.session_id,
        entries.c.position == attachments.c.position,
    ),
    literal_column("0"),
)
BLOBS = Orphans(blobs, (b"",), IS_UNUSED, SIZE)


def _first_of(table: Table) -> ColumnElement[int]:
    """Looked up by the key: for an EXISTS Postgres may choose to read the whole table."""
    first = select(ONE).where(table.c.namespace == NS).order_by(*table.primary_key).limit(ONE)
    return first.scalar_subquery()


LEFT = select(*(_first_of(table).label(table.name) for table in metadata.sorted_tables))
"""Of every table that we have, those of later versions too."""


class Swept(NamedTuple):
    """What a batch took away: the size of each row; and when it had its lock, by this process's
    clock.
    """

    sizes: list[int]
    since: float


def find(connection: Connection, namespace: str, orphans: Orphans, after: Place) -> list[Place]:
    """Where the orphans behind *after* are, as many as a batch may have."""
    values = {"ns": namespace, "count": sql_retention.ROWS, **orphans.values("after", after)}
    return _bounded(
        (tuple(place), size) for *place, size in connection.execute(orphans.find, values)
    )


def drop(
    connection: Connection, namespace: str, orphans: Orphans, after: Place, places: Sequence[Place]
) -> Swept:
    """Delete the orphans at *places*, which come behind *after*, where they are still that."""
    since = time.monotonic()
    if orphans is BLOBS:
        return Swept(drop_blobs(connection, namespace, [digest for (digest,) in places]), since)
    span = {**orphans.values("after", after), **orphans.values("last", places[-1])}
    dropped = connection.execute(orphans.drop, {"ns": namespace, **span})
    return Swept(list(dropped.scalars()), since)


def left(connection: Connection, namespace: str) -> list[str]:
    """The tables that hold a row of the namespace."""
    found = connection.execute(LEFT, {"ns": namespace}).mappings().one()
    return [name for name, is_there in found.items() if is_there]


def _bounded(rows: Iterable[tuple[Place, int]]) -> list[Place]:
    """The places of the first of *rows*, as many as the bound of bytes allows, but one at least."""
    places: list[Place] = []
    total = 0
    for place, size in rows:
        total += size
        if places and total > sql_retention.BYTES:
            break
        places.append(place)
    return places
