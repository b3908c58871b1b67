"""What belongs to nothing: entries without a session, attachments without an entry, and blobs
without an attachment, as damage leaves them, or other hands.

They are found by walking the primary key from where the last batch ended, without a lock, since
where all is sound that reads through a whole table. Each batch is a range of it, in a transaction
of its own, which judges again.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, delete, select

from turnkeep import sql_retention
from turnkeep.dialect.statements import NS, OF_ENTRY, OF_SESSION, Bytes, first_portion, has
from turnkeep.sql import COUNT, ZERO
from turnkeep.sql_delete import IS_UNUSED, SIZE, drop_blobs
from turnkeep.sql_walk import Keys, Place, Walk
from turnkeep.tables import attachments, blobs, entries, sessions


class OrphansOf:
    """The orphans of a table.

    Args:
        table: the table.
        are: the condition that they meet.
        size: how many bytes of content a row holds.
    """

    def __init__(self, table: Table, are: ColumnElement[bool], size: ColumnElement[int]) -> None:
        self.table = table
        self.keys = Keys(*(column for column in table.primary_key if column.name != "namespace"))
        those = (table.c.namespace == NS, are)
        found = select(*self.keys.stored, size).where(*those).order_by(*self.keys.columns)
        dropped = delete(table).where(*those, self.keys.up_to()).returning(size)
        self.find = Walk(found.limit(COUNT), self.keys)
        self.drop = Walk(dropped, self.keys)


ENTRIES = OrphansOf(entries, ~has(sessions, *OF_SESSION), Bytes(entries.c.payload))
ATTACHMENTS = OrphansOf(attachments, ~has(entries, *OF_ENTRY), ZERO)
BLOBS = OrphansOf(blobs, IS_UNUSED, SIZE)


class Swept(NamedTuple):
    """What a batch took away: the size of each row; and when it had its lock, by this process's
    clock.
    """

    sizes: list[int]
    since: float


def find(
    connection: Connection, namespace: str, orphans: OrphansOf, after: Place | None
) -> list[Place]:
    """Where the orphans behind *after* are, as many as a batch may have: of rows, and of bytes, but
    one at least.
    """
    values = {"ns": namespace, "count": sql_retention.ROWS}
    found = map(orphans.keys.split, orphans.find.fetch(connection, values, after))
    return [place for place, _ in first_portion(found, sql_retention.BYTES, lambda row: row[1][0])]


def drop(
    connection: Connection,
    namespace: str,
    orphans: OrphansOf,
    after: Place | None,
    places: Sequence[Place],
) -> Swept:
    """Delete the orphans at *places*, which come behind *after*, where they are still that."""
    since = time.monotonic()
    digests = [digest for (key, *_) in places if (digest := key.data) is not None]
    # On SQLite other values may be digests; but there nobody comes between, so that none is locked.
    if orphans is BLOBS and len(digests) == len(places):
        return Swept(drop_blobs(connection, namespace, digests), since)
    values = {"ns": namespace, **orphans.keys.values(places[-1], "last")}
    return Swept([size for (size,) in orphans.drop.fetch(connection, values, after)], since)
