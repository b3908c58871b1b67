"""Whether a call costs the same however much there is: sessions of 100 to 100,000 entries, and
databases of 1,000 to 1,000,000 sessions.

All sizes take turns, and the ratio is to the smallest. The databases are filled by SQL.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import URL, create_engine

from benchmarks.databases import postgres_server, sqlite_url
from benchmarks.operations import CWD, header, message
from benchmarks.timing import Compared, Contender, compare, on_this_thread
from turnkeep import MessageEntry, SQLStore, sql

ENTRIES = (100, 1_000, 10_000, 100_000)
SESSIONS = (1_000, 10_000, 100_000, 1_000_000)

SERIES = {
    "postgresql": "(SELECT n FROM generate_series(1, {count}) AS n) AS series",
    "sqlite": """(WITH RECURSIVE series (n) AS (
        SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < {count}) SELECT n FROM series)""",
}
INSTANT = {
    "postgresql": "timestamptz '2026-11-30 12:00Z' + n * interval '1 second'",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%S.000000Z', '2026-11-30', n || ' seconds')",
}
FILL_SESSIONS = """
    INSERT INTO turnkeep_sessions (namespace, id, schema_version, cwd, cwd_digest, created_at,
        model, riffer_rig_version, riffer_version, title, updated_at, last_position,
        last_recorded_at)
    SELECT '', 's' || n, 1, '{cwd}', {digest}, '2026-11-30T12:00:00Z', 'small', '', '',
        'A session', {instant}, 0, ''
    FROM {series}
"""
FILL_ENTRIES = """
    INSERT INTO turnkeep_entries (namespace, session_id, position, type, attachments, payload)
    SELECT '', {session}, {position}, 'message', 0, '{payload}' FROM {series}
"""
# The rows are right, so nobody need look whether each has its session; and the disk may wait.
HASTY = {
    "postgresql": ("SET session_replication_role = replica", "SET synchronous_commit = off"),
    "sqlite": ("PRAGMA synchronous = OFF", "PRAGMA foreign_keys = OFF"),
}


@dataclass(frozen=True)
class Growth:
    """How an operation's cost grows with what there is."""

    database: str
    operation: str
    of: str
    """What there is more and more of."""
    compared: Compared


Kind = Callable[[SQLStore, int], tuple[Callable[[Any], Any], Callable[[int], Sequence[Any]]]]


def measure(seconds: float, *, most: int) -> Iterator[Growth]:
    """All of it, up to so many entries in a session, and ten times as many sessions."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server())
        postgres = map(server.create_database, (f"growth{n}" for n in range(10)))
        files = (stack.enter_context(sqlite_url()) for _ in range(10))
        for database, urls in (("Postgres", postgres), ("SQLite FULL", files)):
            yield from _entries(database, next(urls), [n for n in ENTRIES if n <= most], seconds)
            yield from _sessions(database, urls, [n for n in SESSIONS if n <= 10 * most], seconds)


def _entries(database: str, url: URL, sizes: Sequence[int], seconds: float) -> Iterator[Growth]:
    with _store(url) as store:
        for size in sizes:
            store.append(_long(size), header(_long(size)))
            fill(url, entries=size, session=_long(size))
        calls: dict[str, Kind] = {
            "append": lambda store, size: _append(store, [_long(size)]),
            "tail(20)": lambda store, size: _tail(store, [_long(size)]),
            "page(20)": lambda store, size: (
                lambda _: store.page(_long(size), after=size // 2, limit=20),
                _nothing,
            ),
        }
        for name, kind in calls.items():
            contenders = [Contender(str(size), *kind(store, size)) for size in sizes]
            compared = compare(contenders, on_this_thread, seconds)
            yield Growth(database, name, "entries in the session", compared)


def _sessions(
    database: str, urls: Iterator[URL], sizes: Sequence[int], seconds: float
) -> Iterator[Growth]:
    with ExitStack() as stack:
        stores = {}
        for size, url in zip(sizes, urls, strict=False):
            stores[size] = stack.enter_context(_store(url))
            fill(url, sessions=size)
        calls: dict[str, Kind] = {
            "append": lambda store, _: _append(store, ["s7"]),
            "append anywhere": lambda store, size: _append(store, _some(size)),
            "tail(20)": lambda store, _: _tail(store, ["s7"]),
            "list(50)": lambda store, _: (lambda _: store.list(limit=50), _nothing),
            "list(50) of a cwd": lambda store, _: (lambda _: store.list(CWD, limit=50), _nothing),
        }
        for name, kind in calls.items():
            contenders = [Contender(str(size), *kind(stores[size], size)) for size in sizes]
            compared = compare(contenders, on_this_thread, seconds)
            yield Growth(database, name, "sessions", compared)


def fill(url: URL, *, sessions: int = 0, entries: int = 0, session: str = "") -> None:
    """Add so many sessions of one entry, or so many entries of 1 KB to *session*."""
    kind = url.get_backend_name()
    digest = sql.cwd_digest(CWD).hex()
    digest = f"decode('{digest}', 'hex')" if kind == "postgresql" else f"x'{digest}'"
    payload = MessageEntry(message(1000)).payload.replace("'", "''")
    engine = create_engine(url)
    with engine.connect() as connection:

        def run(statement: str, **values: Any) -> None:
            # Past SQLAlchemy, to which a colon or a percent sign in it would mean something.
            cursor = connection.connection.cursor()
            cursor.execute(statement.format(**values) if values else statement)
            cursor.close()

        for statement in HASTY[kind]:
            run(statement)
        connection.connection.commit()
        if sessions:
            series = SERIES[kind].format(count=sessions)
            run(FILL_SESSIONS, cwd=CWD, digest=digest, instant=INSTANT[kind], series=series)
            run(FILL_ENTRIES, session="'s' || n", position="0", payload="{}", series=series)
        if entries:
            series = SERIES[kind].format(count=entries)
            run(FILL_ENTRIES, session=f"'{session}'", position="n", payload=payload, series=series)
            run(
                "UPDATE turnkeep_sessions SET last_position = {entries} WHERE id = '{session}'",
                entries=entries,
                session=session,
            )
        connection.connection.commit()
        if kind == "postgresql":
            connection.connection.driver_connection.autocommit = True  # type: ignore[union-attr]
            run("VACUUM ANALYZE")
            run("CHECKPOINT")
        else:
            run("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()


@contextmanager
def _store(url: URL) -> Iterator[SQLStore]:
    with SQLStore(url) as store:
        store.upgrade()
        yield store


def _append(
    store: SQLStore, sessions: Sequence[str]
) -> tuple[Callable[[Any], Any], Callable[[int], Sequence[Any]]]:
    given = message(1000)
    return (
        lambda session: store.append(session, MessageEntry(given)),
        partial(_random, sessions=sessions),
    )


def _tail(
    store: SQLStore, sessions: Sequence[str]
) -> tuple[Callable[[Any], Any], Callable[[int], Sequence[Any]]]:
    return lambda session: store.tail(session, 20), partial(_random, sessions=sessions)


def _some(size: int) -> Sequence[str]:
    return [f"s{n}" for n in random.Random(size).choices(range(1, size + 1), k=min(size, 10_000))]


def _random(calls: int, sessions: Sequence[str]) -> Sequence[str]:
    return random.choices(sessions, k=calls)


def _nothing(calls: int) -> Sequence[None]:
    return [None] * calls


def _long(size: int) -> str:
    return f"long {size}"
