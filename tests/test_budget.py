"""What each call costs, in statements and round trips: it is asserted, since times can't be.

A table says it for both databases, and holds for all drivers, sync and async.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from contention import header, said
from histories import user
from servers import PostgresServer
from turnkeep import AsyncSQLStore, History, ModelEntry, SQLStore
from turnkeep.testing import Blocking
from wire import Watched, relayed, traced

Call = Callable[[Any, int], object]
"""A call on a store, which is given a number that no call before had: the last position of s."""

TIME = "2026-11-30T12:00:00Z"
BATCH = [said("x"), ModelEntry("y"), said("z", recorded_at=TIME)]


HISTORY = History(messages=(user("1", "x"), user("2", "y")))
"""It has no bytes, and is written as one portion."""


class Cost(NamedTuple):
    """What a call is to cost."""

    call: Call
    postgres: str
    """The statements there, each by its first word, and a round trip for each."""
    sqlite: str
    before: Call = lambda _, __: None
    """What has to happen first, and is not counted."""


def begin(session: str, *, files: tuple[bytes, ...] = ()) -> Call:
    """Begin a session of that name and a number."""
    return lambda s, n: s.extend(f"{session}{n}", [header(f"{session}{n}"), said("x", *files)])


INSERT = "BEGIN UPDATE INSERT COMMIT"
COSTS: dict[str, Cost] = {
    "append": Cost(lambda s, _: s.append("s", said("x")), "INSERT", INSERT),
    "append at a time": Cost(
        lambda s, _: s.append("s", said("x", recorded_at=TIME)), "INSERT", INSERT
    ),
    "append with a key": Cost(
        lambda s, n: s.append("s", said("x"), idempotency_key=f"{n}"), "INSERT", INSERT
    ),
    "append with a position": Cost(
        lambda s, n: s.append("s", said("x"), expected_position=n), "INSERT", INSERT
    ),
    "append with both": Cost(
        lambda s, n: s.append("s", said("x"), expected_position=n, idempotency_key=f"{n}"),
        "INSERT",
        INSERT,
    ),
    "append with a known key": Cost(
        lambda s, _: s.append("s", said("x"), idempotency_key="known"),
        "INSERT SELECT SELECT SELECT",
        "BEGIN UPDATE SELECT SELECT SELECT COMMIT",
    ),
    "append of a header": Cost(
        lambda s, n: s.append(f"new{n}", header(f"new{n}")),
        "BEGIN INSERT INSERT COMMIT",
        "BEGIN INSERT INSERT COMMIT",
    ),
    "append of a known header": Cost(
        lambda s, _: s.append("s", header("s")),
        "BEGIN INSERT SELECT SELECT COMMIT",
        "BEGIN INSERT SELECT SELECT COMMIT",
    ),
    "append of new bytes": Cost(
        lambda s, n: s.append("s", said("x", b"%d" % n)),
        "BEGIN INSERT SELECT INSERT INSERT COMMIT",
        "BEGIN UPDATE INSERT SELECT INSERT INSERT COMMIT",
    ),
    "append of known bytes": Cost(
        lambda s, _: s.append("s", said("x", b"known")),
        "BEGIN INSERT SELECT INSERT COMMIT",
        "BEGIN UPDATE INSERT SELECT INSERT COMMIT",
    ),
    "append of many known bytes": Cost(
        lambda s, _: s.append("s", said("x", b"known", b"known", b"known too")),
        "BEGIN INSERT SELECT INSERT COMMIT",
        "BEGIN UPDATE INSERT SELECT INSERT INSERT INSERT COMMIT",
    ),
    "extend by none": Cost(lambda s, _: s.extend("s", []), "SELECT", "SELECT"),
    "extend by one": Cost(lambda s, _: s.extend("s", [said("x")]), "INSERT", INSERT),
    "extend": Cost(
        lambda s, _: s.extend("s", BATCH),
        "INSERT",
        "BEGIN SELECT UPDATE INSERT INSERT INSERT COMMIT",
    ),
    "extend with a position": Cost(
        lambda s, n: s.extend("s", BATCH, expected_position=n),
        "INSERT",
        "BEGIN SELECT UPDATE INSERT INSERT INSERT COMMIT",
    ),
    "extend with keys": Cost(
        lambda s, n: s.extend("s", BATCH, idempotency_keys=[f"{n}", None, f"{n} too"]),
        "BEGIN SELECT SELECT INSERT COMMIT",
        "BEGIN SELECT SELECT SELECT UPDATE INSERT INSERT INSERT COMMIT",
    ),
    "extend of a new session": Cost(
        lambda s, n: s.extend(f"more{n}", [header(f"more{n}"), *BATCH]),
        "BEGIN INSERT INSERT INSERT COMMIT",
        "BEGIN INSERT INSERT SELECT UPDATE INSERT INSERT INSERT COMMIT",
    ),
    "read": Cost(lambda s, _: s.read("plain"), "SELECT", "SELECT"),
    "read of nothing": Cost(lambda s, _: s.read("nobody"), "SELECT", "SELECT"),
    "read of bytes": Cost(lambda s, _: s.read("files"), "SELECT SELECT", "SELECT SELECT"),
    "read without bytes": Cost(lambda s, _: s.read("files", attachments=False), "SELECT", "SELECT"),
    "tail": Cost(lambda s, _: s.tail("plain", 20), "SELECT", "SELECT"),
    "tail of bytes": Cost(lambda s, _: s.tail("files", 20), "SELECT SELECT", "SELECT SELECT"),
    "page": Cost(lambda s, _: s.page("plain", limit=10), "SELECT", "SELECT"),
    "page after": Cost(lambda s, _: s.page("plain", after=2, limit=10), "SELECT", "SELECT"),
    "page before": Cost(lambda s, _: s.page("plain", before=3, limit=10), "SELECT", "SELECT"),
    "get": Cost(lambda s, _: s.get("s"), "SELECT", "SELECT"),
    "list": Cost(lambda s, _: s.list(), "SELECT", "SELECT"),
    "list of a cwd": Cost(lambda s, _: s.list("/w", limit=50), "SELECT", "SELECT"),
    "attachments": Cost(lambda s, _: s.attachments("files"), "SELECT", "SELECT"),
    "delete of nothing": Cost(
        lambda s, _: s.delete("nobody"), "BEGIN SELECT COMMIT", "BEGIN SELECT COMMIT"
    ),
    "delete": Cost(
        lambda s, n: s.delete(f"d{n}"),
        "BEGIN SELECT DELETE DELETE DELETE COMMIT",
        "BEGIN SELECT DELETE DELETE DELETE COMMIT",
        begin("d"),
    ),
    "delete with bytes": Cost(
        lambda s, n: s.delete(f"e{n}"),
        "BEGIN SELECT DELETE DELETE DELETE SELECT DELETE COMMIT",
        "BEGIN SELECT DELETE DELETE DELETE SELECT DELETE COMMIT",
        begin("e", files=(b"one", b"two")),
    ),
    "export of a history": Cost(
        lambda s, _: s.export_history("files"), "SELECT SELECT", "SELECT SELECT"
    ),
    "import of a history": Cost(
        lambda s, n: s.import_history(HISTORY, cwd="/w", id=f"h{n}"),
        "BEGIN INSERT INSERT INSERT COMMIT",
        "BEGIN INSERT INSERT SELECT UPDATE INSERT INSERT COMMIT",
    ),
}
DRIVERS = {
    "psycopg": "postgresql+psycopg",
    "psycopg_async": "postgresql+psycopg_async",
    "asyncpg": "postgresql+asyncpg",
    "sqlite3": "sqlite+pysqlite",
    "aiosqlite": "sqlite+aiosqlite",
}
OF_HOSTS = [f"{driver} of a host" for driver in DRIVERS]


@pytest.fixture(params=[*DRIVERS, *OF_HOSTS])
def watchable(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Watched, bool]]:
    """A store by each driver, by URL or on an engine of a host's, what its database is told, and
    whether that is Postgres.
    """
    driver, _, host = request.param.partition(" of ")
    scheme = DRIVERS[driver]
    is_async = driver in ("psycopg_async", "asyncpg", "aiosqlite")
    with ExitStack() as stack:
        seen = Watched()
        if is_postgres := scheme.startswith("postgresql"):
            server: PostgresServer = request.getfixturevalue("postgres")
            seen = relay = stack.enter_context(relayed(server.port))
            url = relay.url(request.getfixturevalue("postgres_url"))
            plain = {"ssl": "disable"} if driver == "asyncpg" else {"sslmode": "disable"}
            url = url.set(query=plain)
        else:
            url = request.getfixturevalue("sqlite_url")
        url = url.set(drivername=scheme)
        engine: Any = (create_async_engine if is_async else create_engine)(url) if host else url
        make: Any = AsyncSQLStore if is_async else SQLStore
        opened = (
            Blocking(lambda: make(engine, migrate=True)) if is_async else make(engine, migrate=True)
        )
        store = stack.enter_context(opened)
        if host:
            stack.callback(partial(store._run, engine.dispose) if is_async else engine.dispose)
        if not is_postgres:
            seen = traced(store._database.engine)
        store.extend(
            "s", [header("s"), *[said("x")] * 3], idempotency_keys=[None, "known", None, None]
        )
        store.extend("plain", [header("plain"), *[said("x")] * 30])
        store.extend("files", [header("files"), said("x", b"known"), said("y", b"known too")])
        yield store, seen, is_postgres


def test_a_call_costs_what_the_table_says(watchable: tuple[Any, Watched, bool]) -> None:
    store, seen, is_postgres = watchable
    found, wanted = {}, {}
    for name, cost in COSTS.items():
        for _ in range(7):  # psycopg prepares what it ran five times
            last = store.append("s", said("x"))
            cost.before(store, last)
            seen.take()
            cost.call(store, last)
            verbs, trips = seen.take()
        found[name] = (" ".join(verbs), trips)
        statements = cost.postgres if is_postgres else cost.sqlite
        wanted[name] = (statements, len(statements.split()) if is_postgres else 0)
    assert found == wanted
