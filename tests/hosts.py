"""Engines as hosts make them, what is done to a store on one, and how it is made to fail."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    NullPool,
    QueuePool,
    StaticPool,
    Table,
    Text,
    create_engine,
    event,
    func,
    select,
    text,
)
from sqlalchemy.orm import Session

from contention import header, said
from inspection import in_use
from turnkeep import ModelEntry, SQLStore, TurnkeepError, Unavailable

SECRET = "a part of a message"
TABLES = ("sessions", "entries", "blobs", "attachments")
notes = Table("notes", MetaData(), Column("id", Integer, primary_key=True), Column("text", Text))


def engine_with_listeners(begin: str) -> Callable[[URL], Engine]:
    """The recipe of SQLAlchemy's page on pysqlite: the driver begins nothing, a listener does."""

    def make(url: URL) -> Engine:
        engine = create_engine(url)

        @event.listens_for(engine, "connect")
        def leave_it_to_us(connection: Any, _: object) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def do_begin(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        return engine

    return make


def engine_with_pragmas(url: URL) -> Engine:
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _: object) -> None:
        for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = OFF"):
            connection.execute(f"PRAGMA {pragma}").close()

    return engine


def engine_with(**options: Any) -> Callable[[URL], Engine]:
    return lambda url: create_engine(url, **options)


def engine_of_options(level: str) -> Callable[[URL], Engine]:
    return lambda url: create_engine(url).execution_options(isolation_level=level)


IN_MEMORY = "in memory, "
SHARED = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
SQLITE_HOSTS: dict[str, Callable[[URL], Engine]] = {
    "defaults": create_engine,  # a rollback journal, and foreign keys that nobody enforces
    "AUTOCOMMIT": engine_with(isolation_level="AUTOCOMMIT"),
    "SERIALIZABLE": engine_with(isolation_level="SERIALIZABLE"),
    "BEGIN by a listener": engine_with_listeners("BEGIN"),
    "BEGIN IMMEDIATE by a listener": engine_with_listeners("BEGIN IMMEDIATE"),
    "no pool": engine_with(poolclass=NullPool),
    "pragmas": engine_with_pragmas,
    IN_MEMORY + "defaults": lambda _: create_engine("sqlite://"),
    IN_MEMORY + "one connection": lambda _: create_engine("sqlite://", **SHARED),
}
if sys.version_info >= (3, 12):
    SQLITE_HOSTS["PEP 249"] = engine_with(connect_args={"autocommit": False})
SERIAL = {"options": "-c default_transaction_isolation=serializable"}
POSTGRES_HOSTS: dict[str, Callable[[URL], Engine]] = {
    "defaults": create_engine,
    "AUTOCOMMIT": engine_with(isolation_level="AUTOCOMMIT"),
    "READ COMMITTED": engine_with(isolation_level="READ COMMITTED"),
    "REPEATABLE READ": engine_with(isolation_level="REPEATABLE READ"),
    "SERIALIZABLE": engine_with(isolation_level="SERIALIZABLE"),
    "SERIALIZABLE by options": engine_of_options("SERIALIZABLE"),
    "a server of SERIALIZABLE": engine_with(connect_args=SERIAL),
    "no pool": engine_with(poolclass=NullPool),
    "no reset": engine_with(pool_reset_on_return=None),
    "statements made by the client": engine_with(
        connect_args={"cursor_factory": psycopg.ClientCursor}
    ),
}
HOSTS = [("sqlite", name) for name in SQLITE_HOSTS] + [
    ("postgres", name) for name in POSTGRES_HOSTS
]


class Host:
    """A host's engine, a store on it, and a second look at what is in the database."""

    def __init__(self, url: URL, make: Callable[[URL], Engine] | None = None) -> None:
        self.is_owned = make is None
        if make is None:
            self.store = SQLStore(url)
            self.engine = self.store._database.engine
        else:
            self.engine = make(url)
            self.store = SQLStore(self.engine)
        self.is_postgres = url.get_backend_name() == "postgresql"
        self.in_memory = not self.engine.url.database
        self._admin = self.engine if self.in_memory else create_engine(url)
        SQLStore(self._admin).upgrade()
        with self._admin.begin() as connection:
            notes.create(connection, checkfirst=True)
            for table in ("turnkeep_attachments", "turnkeep_blobs", "turnkeep_entries"):
                connection.exec_driver_sql(f"DELETE FROM {table}")
            connection.exec_driver_sql("DELETE FROM turnkeep_sessions")
            connection.exec_driver_sql("DELETE FROM notes")
        seed(self.store)

    def run(self, statement: str) -> None:
        """Run a statement in a transaction of its own."""
        with self._admin.begin() as connection:
            connection.exec_driver_sql(statement)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that our tables hold."""
        with self._admin.connect() as connection:
            return {
                table: sorted(
                    (
                        tuple(row)
                        for row in connection.execute(text(f"SELECT * FROM turnkeep_{table}"))
                    ),
                    key=repr,
                )
                for table in TABLES
            }

    def texts(self) -> list[str]:
        """The app's own rows."""
        with self._admin.connect() as connection:
            return [*connection.scalars(select(notes.c.text).order_by(notes.c.id))]

    def settings(self) -> dict[str, object]:
        """How the engine and its connections are set up."""
        pool = self.engine.pool
        with self.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            pragmas = "foreign_keys", "journal_mode", "synchronous", "busy_timeout"
            asked = (
                ["SHOW transaction_isolation", "SHOW search_path", "SHOW lock_timeout"]
                if self.is_postgres
                else [f"PRAGMA {pragma}" for pragma in pragmas]
            )
            return {
                "pool": (
                    id(pool),
                    type(pool),
                    pool.size() if isinstance(pool, QueuePool) else None,
                ),
                "options": dict(self.engine.get_execution_options()),
                "listeners": (len([*pool.dispatch.connect]), len([*self.engine.dispatch.begin])),
                "level": connection.get_isolation_level(),
                "driver": (getattr(driver, "autocommit", None), driver.row_factory),
                "asked": [connection.exec_driver_sql(each).scalar() for each in asked],
            }

    def assert_is_at_rest(self) -> None:
        """No connection is in use, and none is in a transaction."""
        if isinstance(self.engine.pool, QueuePool):
            assert in_use(self.store) == 0
        if self.in_memory:
            with self.engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                assert not driver.in_transaction
        elif self.is_postgres:
            count = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND state LIKE 'idle in transaction%'"
            )
            with self._admin.connect() as connection:
                assert connection.scalar(text(count)) == 0
        else:
            with self._admin.connect() as connection:
                connection.exec_driver_sql("PRAGMA busy_timeout = 0")
                connection.exec_driver_sql("BEGIN EXCLUSIVE")  # fails where anyone holds a lock

    def close(self) -> None:
        self.store.close()
        self.engine.dispose()
        self._admin.dispose()


def made_host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """The host that the fixture's parameter names, on an empty database."""
    kind, name = request.param
    if kind == "sqlite":
        url = request.getfixturevalue("sqlite_url")
        host = Host(url, SQLITE_HOSTS[name])
    else:
        url = request.getfixturevalue("server_database")
        host = Host(url, POSTGRES_HOSTS[name])
    yield host
    host.close()


def host_id(host: tuple[str, str]) -> str:
    """How pytest calls it."""
    return f"{host[0]}: {host[1]}"


# What a call does to the tables: the statement of it that is made to fail is named by them


@dataclass(frozen=True)
class Operation:
    """A call on a store that has the sessions of `seed`."""

    call: Callable[[SQLStore], object]
    result: object
    touches: tuple[str, ...]
    """Triggers that stop it: an event, a table, and which of its rows."""


MOVED = "UPDATE sessions"
BATCH = [said("one"), said(SECRET), ModelEntry("three")]
BYTES = [said("one", b"known"), said(SECRET, b"new", b"known", b"newer")]
OPERATIONS: dict[str, Operation] = {
    "append": Operation(lambda s: s.append("s", said(SECRET)), 3, (MOVED, "INSERT entries")),
    "append with a key": Operation(
        lambda s: s.append("s", said(SECRET), idempotency_key="new", expected_position=2),
        3,
        (MOVED, "INSERT entries"),
    ),
    "append with bytes": Operation(
        lambda s: s.append("s", BYTES[1], idempotency_key="new"),
        3,
        (
            MOVED,
            "INSERT entries",
            "INSERT blobs",
            "INSERT blobs WHERE NEW.size = 5",
            "INSERT attachments",
            "INSERT attachments WHERE NEW.ordinal = 2",
        ),
    ),
    "extend": Operation(
        lambda s: s.extend("s", BATCH),
        5,
        (MOVED, "INSERT entries", "INSERT entries WHERE NEW.position = 5"),
    ),
    "extend with keys": Operation(
        lambda s: s.extend("s", BATCH, idempotency_keys=["a", None, "c"], expected_position=2),
        5,
        (MOVED, "INSERT entries", "INSERT entries WHERE NEW.position = 4"),
    ),
    "extend with bytes": Operation(
        lambda s: s.extend("s", BYTES),
        4,
        (
            MOVED,
            "INSERT entries WHERE NEW.position = 4",
            "INSERT blobs WHERE NEW.size = 5",
            "INSERT attachments WHERE NEW.position = 4",
        ),
    ),
    "begin": Operation(
        lambda s: s.append("new", header("new")), 0, ("INSERT sessions", "INSERT entries")
    ),
    "begin with a batch": Operation(
        lambda s: s.extend("new", [header("new"), *BYTES]),
        2,
        (
            "INSERT sessions",
            MOVED,
            "INSERT entries",
            "INSERT entries WHERE NEW.position = 2",
            "INSERT blobs",
            "INSERT attachments WHERE NEW.ordinal = 2",
        ),
    ),
    "delete": Operation(
        lambda s: s.delete("s"),
        True,
        ("DELETE attachments", "DELETE entries", "DELETE sessions", "DELETE blobs"),
    ),
}


SEEDED = [header("s"), said("x"), said("y", b"known", b"only here")]


def note(connection: Connection | Session, text: str = "app's") -> None:
    """A row of the app's."""
    taken = connection.scalar(select(func.max(notes.c.id))) or 0
    connection.execute(notes.insert().values(id=taken + 1, text=text))


def seed(store: SQLStore) -> None:
    """Begin two sessions anew, which have bytes in common."""
    for session in ("s", "other", "new"):
        store.delete(session)
    store.extend("s", SEEDED)
    store.extend("other", [header("other"), said("z", b"known")])


def assert_is_clean(error: BaseException) -> None:
    """Nothing of the driver's, and no message, is in *error* or behind it."""
    assert type(error).__module__ == "turnkeep.errors"
    assert error.__cause__ is None
    assert error.__context__ is None
    assert SECRET not in f"{error} {error!r}"
    assert "secret" not in f"{error} {error!r}"


@contextmanager
def failing(host: Host, fault: str, how: str) -> Iterator[None]:
    """Let the database fail at *fault*; *how* it does so is SQL of its kind."""
    at, _, which = fault.partition(" WHERE ")
    event_, table = at.split()
    name = f"ON turnkeep_{table}"
    when = f"WHEN ({which})" if which else ""
    if host.is_postgres:
        host.run(
            "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {how}; RETURN NEW; END $$"
        )
        host.run(
            f"CREATE TRIGGER fault BEFORE {event_} {name} FOR EACH ROW {when}"
            " EXECUTE FUNCTION fail()"
        )
    else:
        host.run(f"CREATE TRIGGER fault BEFORE {event_} {name} {when} BEGIN SELECT {how}; END")
    try:
        yield
    finally:
        host.run(f"DROP TRIGGER fault {name if host.is_postgres else ''}")


FAULTS = {
    True: {
        "RAISE EXCEPTION 'secret'": TurnkeepError,
        "PERFORM pg_terminate_backend(pg_backend_pid())": Unavailable,
    },
    False: {"RAISE(ABORT, 'secret')": TurnkeepError, "RAISE(ROLLBACK, 'secret')": TurnkeepError},
}
