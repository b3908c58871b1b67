"""Many sessions in a database at once: by statements of the database's own, past the store, since
that takes seconds where the store would take minutes.

What comes out is what the store would have written: `verify` finds nothing.
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Engine, insert, text

from contention import said
from turnkeep import Header, Limits, MessageEntry
from turnkeep.rows import to_row
from turnkeep.sql import cwd_digest
from turnkeep.tables import attachments, blobs

OLDEST = datetime(2020, 1, 1, tzinfo=UTC)
"""When the first one was last changed; each of the others a second after the one before."""

CWDS = [f"/w{number}" for number in range(10)]

SHARED = b"the same bytes in many sessions" * 20

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
SESSIONS = """
INSERT INTO turnkeep_sessions (namespace, id, schema_version, cwd, cwd_digest, created_at, model,
    riffer_rig_version, riffer_version, title, updated_at, last_position, last_recorded_at)
{numbers}
SELECT :ns, 's' || i, 1, '/w' || (i % 10), CASE i % 10 {digests} END, '2020-01-01T00:00:00Z', 'm',
    '', '', '', {updated}, :entries, '' FROM n
"""
HEADERS = """
INSERT INTO turnkeep_entries (namespace, session_id, position, type, attachments, payload)
{numbers}
SELECT :ns, 's' || i, 0, 'header', 0, replace(replace(:header, '@id', 's' || i), '@cwd',
    '/w' || (i % 10)) FROM n
"""
MESSAGES = """
INSERT INTO turnkeep_entries (namespace, session_id, position, type, attachments, payload)
{numbers}
SELECT :ns, 's' || i, :position, 'message',
    CASE WHEN :position = 1 AND i % 10 = 0 THEN 2 ELSE 0 END,
    CASE WHEN :position = 1 AND i % 10 = 0 THEN :lifted ELSE :payload END FROM n
"""
UPDATED = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%S', '2020-01-01', '+' || i || ' seconds') || '.000000Z'",
    "postgresql": "timestamptz '2020-01-01 00:00Z' + i * interval '1 second'",
}


def updated(number: int) -> datetime:
    """When session *number* was last changed."""
    return OLDEST + timedelta(seconds=number)


def own(number: int) -> bytes:
    """What session *number* has for itself, if it has attachments: each tenth has."""
    return b"%d" % number * 40


def make_many(
    engine: Engine, count: int, *, entries: int = 4, namespace: str = "", words: int = 40
) -> None:
    """Make the sessions s0, s1, … with a header and *entries* messages each."""
    with engine.connect() as connection:
        for first in range(0, count, 10_000):
            _make(connection, range(first, min(count, first + 10_000)), entries, namespace, words)
            connection.commit()
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE")
            connection.commit()


def _make(connection: Connection, these: range, entries: int, namespace: str, words: int) -> None:
    lifted = to_row(said("look", SHARED, own(0)), "$", Limits())
    values = {
        "ns": namespace,
        "entries": entries,
        "header": Header(
            id="@id", cwd="@cwd", created_at="2020-01-01T00:00:00Z", model="m"
        ).payload,
        "payload": MessageEntry({"role": "user", "content": "word " * words}).payload,
        "lifted": lifted.payload,
    }
    given = {
        "numbers": NUMBERS.format(first=these[0], last=these[-1]),
        "updated": UPDATED[connection.dialect.name],
        "digests": " ".join(f"WHEN {i} THEN :d{i}" for i in range(10)),
    }
    digests = {f"d{i}": cwd_digest(cwd) for i, cwd in enumerate(CWDS)}
    for statement in (SESSIONS, HEADERS):
        run = text(statement.format(**given))
        used = {**values, **digests}
        connection.execute(run, {name: used[name] for name in run._bindparams})
    for position in range(1, entries + 1):
        run = text(MESSAGES.format(**given))
        used = {**values, "position": position}
        connection.execute(run, {name: used[name] for name in run._bindparams})
    if entries:
        _attach(connection, these, namespace)


def _attach(connection: Connection, these: range, namespace: str) -> None:
    stored, placed = [], []
    for number in these:
        if number % 10 == 0:
            row = to_row(said("look", SHARED, own(number)), "$", Limits())
            for ordinal, each in enumerate(row.attachments):
                if ordinal == 1 or number == 0:
                    stored.append(
                        {
                            "namespace": namespace,
                            "digest": each.digest,
                            "size": len(each.data),
                            "data": each.data,
                        }
                    )
                placed.append(
                    {
                        "namespace": namespace,
                        "session_id": f"s{number}",
                        "position": 1,
                        "ordinal": ordinal,
                        "path": each.path,
                        "digest": each.digest,
                        "mime": each.mime,
                        "filename": each.filename,
                    }
                )
    if placed:
        connection.execute(insert(blobs), stored)
        connection.execute(insert(attachments), placed)
