"""The databases and drivers that are measured: on each a store, and the bare driver beside it."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
from sqlalchemy import URL, create_engine, event

from benchmarks.bare import Bare, BarePostgres, BareSqlite
from benchmarks.drivers import (
    AsyncDriver,
    AsyncpgDriver,
    Run,
    SyncDriver,
    connect_asyncpg,
    connect_psycopg_async,
    conninfo,
)
from benchmarks.timing import OnLoop, Timer, on_this_thread
from servers import PostgresServer, postgres_from_wheel
from turnkeep import AsyncSQLStore, SQLStore

SHARED_BUFFERS = "256MB"


@dataclass(frozen=True)
class Side:
    """One database by one driver: the store on it, and the bare driver."""

    database: str
    driver: str
    store: Any
    """An SQLStore or an AsyncSQLStore."""
    keeper: SQLStore
    """A sync store on the same database, which makes what is measured."""
    bare: Bare
    run: Run
    timer: Timer


SIDES = (
    ("Postgres", "psycopg"),
    ("Postgres", "psycopg_async"),
    ("Postgres", "asyncpg"),
    ("SQLite FULL", "sqlite3"),
    ("SQLite NORMAL", "sqlite3"),
    ("SQLite FULL", "aiosqlite"),  # the bare driver: the async store uses sqlite3 in threads
)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server of our own, whose commits wait for the disk."""
    with postgres_from_wheel(fsync=True, settings={"shared_buffers": SHARED_BUFFERS}) as server:
        yield server


@contextmanager
def sqlite_url() -> Iterator[URL]:
    """A file that is not there yet."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-bench-") as home:
        yield URL.create("sqlite", database=str(Path(home) / "bench.db"))


@contextmanager
def open_bare(url: URL) -> Iterator[tuple[Bare, Run, str]]:
    """The bare sync driver on a database that has our tables, and what a commit of its has behind
    it.
    """
    dialect = create_engine(url).dialect
    if url.get_backend_name() == "postgresql":
        with psycopg.connect(**conninfo(url)) as connection:
            yield BarePostgres(dialect), SyncDriver(connection).run, "fsync"
        return
    with closing(sqlite3.connect(str(url.database), isolation_level=None)) as held:
        held.executescript("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
        yield BareSqlite(dialect), SyncDriver(held).run, "WAL, FULL"


@contextmanager
def open_side(database: str, driver: str) -> Iterator[Side]:
    """A side with an empty database."""
    with ExitStack() as stack:
        if database == "Postgres":
            url = stack.enter_context(postgres_server()).create_database("bench")
            keeper = stack.enter_context(SQLStore(url))
            keeper.upgrade()
            yield from _postgres(stack, driver, url, keeper)
        else:
            url = stack.enter_context(sqlite_url())
            yield from _sqlite(stack, database, driver, url)


def _postgres(stack: ExitStack, driver: str, url: URL, keeper: SQLStore) -> Iterator[Side]:
    if driver == "psycopg":
        connection = stack.enter_context(psycopg.connect(**conninfo(url)))
        bare = BarePostgres(keeper._database.engine.dialect)
        run = SyncDriver(connection).run
        yield Side("Postgres", driver, keeper, keeper, bare, run, on_this_thread)
        return
    runner = stack.enter_context(asyncio.Runner())
    store = AsyncSQLStore(url.set(drivername=f"postgresql+{driver}"))
    bare = BarePostgres(store._database.engine.dialect)
    connect = connect_asyncpg if driver == "asyncpg" else connect_psycopg_async
    held = runner.run(connect(url))
    own: Any = AsyncpgDriver(held) if driver == "asyncpg" else AsyncDriver(held)
    yield Side("Postgres", driver, store, keeper, bare, own.run, OnLoop(runner))
    runner.run(held.close())
    runner.run(store.close())


def _sqlite(stack: ExitStack, database: str, driver: str, url: URL) -> Iterator[Side]:
    level = database.split()[1]
    if level == "FULL":
        keeper = stack.enter_context(SQLStore(url))
    else:
        engine = create_engine(url)
        event.listen(engine, "connect", _less_durable)
        keeper = stack.enter_context(SQLStore(engine, migrate=True))
    keeper.list()
    pragmas = f"PRAGMA synchronous = {level}; PRAGMA foreign_keys = ON"
    bare = BareSqlite(keeper._database.engine.dialect)
    if driver == "sqlite3":
        held = sqlite3.connect(str(url.database), isolation_level=None)
        held.executescript(pragmas)
        yield Side(database, driver, keeper, keeper, bare, SyncDriver(held).run, on_this_thread)
        held.close()
        return
    runner = stack.enter_context(asyncio.Runner())
    store = AsyncSQLStore(url)

    async def connect() -> aiosqlite.Connection:
        connection = await aiosqlite.connect(str(url.database), isolation_level=None)
        await connection.executescript(pragmas)
        return connection

    awaited = runner.run(connect())
    run = AsyncDriver(awaited).run
    yield Side(database, driver, store, keeper, bare, run, OnLoop(runner))
    runner.run(awaited.close())
    runner.run(store.close())


def _less_durable(connection: Any, _: object) -> None:
    """A host's engine: no commit is lost when the process dies, a few when the machine does."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
