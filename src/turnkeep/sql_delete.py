"""Taking sessions away, with the blobs that no other session has: what `delete`, `prune` and
`erase_namespace` share.

The children are deleted by statements of their own, since a host's SQLite may not enforce foreign
keys. A blob goes by two statements: who appends the same bytes holds its row, so lock it, which
waits for them, and judge in a new statement by what is there after that.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, cast, delete, select

from turnkeep.dialect.statements import NS, OF_BLOB, Raw, as_bytes, chunks, has
from turnkeep.tables import attachments, blobs, entries, sessions

SIDS = bindparam("sids", expanding=True, type_=sessions.c.id.type)
DIGESTS = bindparam("digests", expanding=True, type_=blobs.c.digest.type)
IN_BLOBS = (blobs.c.namespace == NS, blobs.c.digest.in_(DIGESTS))
IS_UNUSED = ~has(attachments, *OF_BLOB)

DELETE_ATTACHMENTS = (
    delete(attachments)
    .where(attachments.c.namespace == NS, attachments.c.session_id.in_(SIDS))
    .returning(Raw(attachments.c.digest))
)
DELETE_ENTRIES = delete(entries).where(entries.c.namespace == NS, entries.c.session_id.in_(SIDS))
DELETE_SESSIONS = delete(sessions).where(sessions.c.namespace == NS, sessions.c.id.in_(SIDS))
LOCK_BLOBS = select(blobs.c.digest).where(*IN_BLOBS).order_by(blobs.c.digest).with_for_update()
SIZE = cast(blobs.c.size, BigInteger)  # a number: SQLite holds what another put there
DROP_BLOBS = delete(blobs).where(*IN_BLOBS, IS_UNUSED).returning(SIZE)


class Deleted(NamedTuple):
    """How many entries went, and how many bytes of blobs with them."""

    entries: int
    blob_bytes: int


def delete_sessions(connection: Connection, namespace: str, ids: Sequence[str]) -> Deleted:
    """Delete the sessions *ids*, which the caller has locked: their entries, and the blobs that no
    other session has.
    """
    count = 0
    digests: set[bytes] = set()
    for some in chunks(ids):
        values = {"ns": namespace, "sids": some}
        digests.update(map(as_bytes, connection.execute(DELETE_ATTACHMENTS, values).scalars()))
        count += connection.execute(DELETE_ENTRIES, values).rowcount
        connection.execute(DELETE_SESSIONS, values)
    return Deleted(count, sum(drop_blobs(connection, namespace, sorted(digests))))


def drop_blobs(connection: Connection, namespace: str, digests: Sequence[bytes]) -> list[int]:
    """Delete those of the blobs *digests*, which are in order, that nothing names; the sizes of
    those that went.
    """
    sizes: list[int] = []
    for some in chunks(digests):
        values = {"ns": namespace, "digests": some}
        connection.execute(LOCK_BLOBS, values).all()
        sizes += connection.execute(DROP_BLOBS, values).scalars()
    return sizes
