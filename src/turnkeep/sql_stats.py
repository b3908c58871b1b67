"""How much a namespace holds, by directory: four statements, whatever the number of sessions.

Each goes once through what it counts, by the rows' lengths and the blobs' `size`: no blob is read,
and no payload that the database keeps apart from its row, where it can tell the length without.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, exists, func, select

from turnkeep.dialect.statements import NS, Bytes, Instant, as_bytes
from turnkeep.tables import attachments, blobs, entries, sessions

DIRECTORY = (sessions.c.cwd_digest, sessions.c.cwd)
SESSIONS = (
    select(
        *DIRECTORY,
        func.count(),
        Instant(func.min(sessions.c.updated_at)),
        Instant(func.max(sessions.c.updated_at)),
    )
    .where(sessions.c.namespace == NS)
    .group_by(*DIRECTORY)
)
ENTRIES = (
    select(sessions.c.cwd_digest, func.count(), func.sum(Bytes(entries.c.payload)))
    .where(
        sessions.c.namespace == NS,
        entries.c.namespace == NS,
        entries.c.session_id == sessions.c.id,
    )
    .group_by(sessions.c.cwd_digest)
)
USED = (
    select(sessions.c.cwd_digest, attachments.c.digest, func.count().label("times"))
    .where(
        sessions.c.namespace == NS,
        attachments.c.namespace == NS,
        attachments.c.session_id == sessions.c.id,
    )
    .group_by(sessions.c.cwd_digest, attachments.c.digest)
    .subquery("used")
)
ATTACHMENTS = (
    select(
        USED.c.cwd_digest,
        func.sum(USED.c.times),
        func.sum(USED.c.times * blobs.c.size),
        func.sum(blobs.c.size),
    )
    .where(blobs.c.namespace == NS, blobs.c.digest == USED.c.digest)
    .group_by(USED.c.cwd_digest)
)
STORED = select(func.sum(blobs.c.size)).where(
    blobs.c.namespace == NS,
    exists().where(attachments.c.namespace == NS, attachments.c.digest == blobs.c.digest),
)


class Directory(NamedTuple):
    """What the sessions of one directory hold."""

    cwd: str
    sessions: int
    oldest: datetime | None
    newest: datetime | None
    entries: int
    bytes: int
    attachments: int
    attachment_bytes: int
    stored_bytes: int


def measure(connection: Connection, namespace: str) -> tuple[Sequence[Directory], int]:
    """What each directory holds, and how many bytes the attachments of all of them take, each
    once.
    """
    values = {"ns": namespace}
    of_entries = {
        as_bytes(digest): (count, int(size or 0))
        for digest, count, size in connection.execute(ENTRIES, values)
    }
    of_attachments = {
        as_bytes(digest): (int(count), int(size or 0), int(stored or 0))
        for digest, count, size, stored in connection.execute(ATTACHMENTS, values)
    }
    directories = [
        Directory(
            str(cwd),
            count,
            oldest,
            newest,
            *of_entries.get(as_bytes(digest), (0, 0)),
            *of_attachments.get(as_bytes(digest), (0, 0, 0)),
        )
        for digest, cwd, count, oldest, newest in connection.execute(SESSIONS, values)
    ]
    return directories, int(connection.execute(STORED, values).scalar_one() or 0)
