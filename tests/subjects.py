"""A store whose sessions tell a secret wherever they can, on each driver, all that one can do to
it, and what is done to its database meanwhile.
"""

import itertools
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

from inspection import renew
from leaks import SECRET, Watch, unwatched
from turnkeep import (
    AsyncSQLStore,
    Attachment,
    Header,
    History,
    Message,
    MessageEntry,
    ModelEntry,
    SQLStore,
    TurnkeepError,
    UnknownEntry,
)
from turnkeep.testing import Blocking

DRIVERS = {
    "pysqlite": "sqlite+pysqlite",
    "aiosqlite": "sqlite+aiosqlite",
    "psycopg": "postgresql+psycopg",
    "psycopg_async": "postgresql+psycopg_async",
    "asyncpg": "postgresql+asyncpg",
}
_LONG = {
    name: pytest.param(name, marks=pytest.mark.slow)
    for name in ("aiosqlite", "psycopg_async", "asyncpg")
}
ON_SQLITE = ("pysqlite", _LONG["aiosqlite"])
ON_POSTGRES = ("psycopg", _LONG["psycopg_async"], _LONG["asyncpg"])
ASYNC = (_LONG["aiosqlite"], _LONG["psycopg_async"], "asyncpg")
"""What tests are run on: in their short form on a sync driver of each database, where there is one,
since the logic is the same.
"""

TABLES = ("sessions", "entries", "blobs", "attachments")
_numbers = itertools.count()


def header(id: str, title: str = SECRET) -> Header:
    """A header that tells the secret."""
    return Header(id=id, cwd="/w", created_at="2026-11-30T12:00:00Z", model=SECRET, title=title)


def said(more: str = "", *, picture: bool = False) -> MessageEntry:
    """A message that tells it, and perhaps a picture of it."""
    message: dict[str, Any] = {"role": "user", "content": SECRET + more}
    if picture:
        data = b64encode(SECRET.encode() * 3 + more.encode()).decode()
        message["files"] = [{"media_type": "image/png", "data": data, "filename": SECRET}]
    return MessageEntry(message)


PICTURE = Attachment("image/png", SECRET, SECRET.encode() * 2)
HISTORY = History(messages=(Message(id="1", role="user", content=SECRET, attachments=(PICTURE,)),))


class Subject:
    """A store, for sync callers whatever it is, and a second way to its database."""

    def __init__(self, driver: str, url: URL, folder: Path, *, borrowed: bool = False) -> None:
        self.driver = driver
        self.folder = folder
        self.is_postgres = driver not in ("pysqlite", "aiosqlite")
        self.is_async = driver in ("aiosqlite", "psycopg_async", "asyncpg")
        self.url = url.set(drivername=DRIVERS[driver])
        sync = "psycopg" if self.is_postgres else "pysqlite"
        self.sync_url = url.set(drivername=DRIVERS[sync])
        self.admin = create_engine(self.sync_url)
        self.rebuild()
        self.store: Any = self.open(borrowed=borrowed)
        HISTORY.save(folder / "history")

    def open(self, url: URL | None = None, *, borrowed: bool = False, **options: Any) -> Any:
        """A store, by URL or on an engine as a host makes it."""
        target: Any = url or self.url
        if not self.is_async:
            return SQLStore(create_engine(target) if borrowed else target, **options)
        engine = create_async_engine(target) if borrowed else target
        return Blocking(lambda: AsyncSQLStore(engine, **options))

    @property
    def engine(self) -> Any:
        """The store's."""
        return self.store._database.engine

    def rebuild(self) -> None:
        """Make all tables anew."""
        with unwatched(), self.admin.begin() as connection:
            if self.is_postgres:
                connection.exec_driver_sql("DROP SCHEMA public CASCADE")
                connection.exec_driver_sql("CREATE SCHEMA public")
            else:
                tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
                for (name,) in connection.exec_driver_sql(tables).all():
                    connection.exec_driver_sql(f"DROP TABLE {name}")
                connection.exec_driver_sql("CREATE TABLE past (x)")
        with unwatched(), SQLStore(self.admin) as store:
            store.upgrade()

    @contextmanager
    def aside(self) -> Iterator[Connection]:
        """A transaction of the host's, past all triggers, of which nothing is logged."""
        with unwatched(), self.admin.begin() as connection:
            if self.is_postgres:
                connection.exec_driver_sql("SET session_replication_role = replica")
            else:  # our own triggers look whether this row is there
                connection.exec_driver_sql("INSERT INTO past VALUES (1)")
            yield connection
            if not self.is_postgres:
                connection.exec_driver_sql("DELETE FROM past")

    def run(self, *statements: str) -> None:
        """Do something to the database."""
        with self.aside() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def seed(self) -> None:
        """Begin anew, with one session."""
        entries = [header("s"), said("one"), said("two", picture=True), said("three")]
        with self.aside() as connection:
            for table in reversed(TABLES):
                connection.exec_driver_sql(f"DELETE FROM turnkeep_{table}")
            store = SQLStore(self.admin).using(connection)
            store.extend("s", entries, idempotency_keys=[None, "k1", None, "k3"])

    def renew(self) -> None:
        """Let the store's next call have a new connection."""
        if self.is_async:
            self.store._run(greenlet_spawn, self.engine.dispose)
        else:
            renew(self.store)
            self.engine.dispose()

    def close(self) -> None:
        """End all connections."""
        self.renew()
        self.store.close()
        self.admin.dispose()


Calls = Mapping[str, Callable[[Subject], object]]

WRITES: Calls = {
    "append": lambda s: s.store.append("s", said()),
    "append with a key": lambda s: s.store.append("s", said(), idempotency_key="k9"),
    "append with a picture": lambda s: s.store.append("s", said("new", picture=True)),
    "append with a known picture": lambda s: s.store.append("s", said("two", picture=True)),
    "extend": lambda s: s.store.extend(
        "s", [said(), ModelEntry(SECRET), UnknownEntry("x", {"y": SECRET})]
    ),
    "extend with keys": lambda s: s.store.extend(
        "s", [said(), said()], idempotency_keys=["a", "b"]
    ),
    "extend with pictures": lambda s: s.store.extend(
        "s", [said("new", picture=True), said("two", picture=True)]
    ),
    "begin": lambda s: s.store.append("new", header("new")),
    "begin with a batch": lambda s: s.store.extend(
        "new", [header("new"), said(), said("x", picture=True)]
    ),
    "import": lambda s: s.store.import_history(HISTORY, cwd="/w", title=SECRET),
    "replace": lambda s: s.store.import_history(HISTORY, cwd="/w", id="s", replace=True),
    "import a folder": lambda s: s.store.import_folder(s.folder / "history", cwd="/w"),
    "delete": lambda s: s.store.delete("s"),
    "prune": lambda s: s.store.prune(keep_last=0),
    "erase": lambda s: s.store.erase_namespace(),
}


def _verify(subject: Subject) -> object:
    if not subject.is_async:
        return list(subject.store.verify())

    async def verify() -> object:
        return [finding async for finding in subject.store._store.verify()]

    return subject.store._run(verify)


READS: Calls = {
    "read": lambda s: s.store.read("s"),
    "read without attachments": lambda s: s.store.read("s", attachments=False),
    "page": lambda s: s.store.page("s", limit=10),
    "page before": lambda s: s.store.page("s", before=3),
    "tail": lambda s: s.store.tail("s", 5),
    "get": lambda s: s.store.get("s"),
    "list": lambda s: s.store.list(),
    "list of a directory": lambda s: s.store.list("/w", limit=5),
    "attachments": lambda s: s.store.attachments("s"),
    "stats": lambda s: s.store.stats(),
    "export": lambda s: s.store.export_history("s"),
    "export a folder": lambda s: s.store.export_folder("s", s.folder / f"out {next(_numbers)}"),
    "append a known one": lambda s: s.store.append("s", said("one"), idempotency_key="k1"),
    "begin the same": lambda s: s.store.append("s", header("s")),
}
UPKEEP: Calls = {
    "verify": _verify,
    "collect orphans": lambda s: s.store.collect_orphans(),
    "namespaces": lambda s: s.store.namespaces(),
    "prune nothing": lambda s: s.store.prune(keep_last=9, cwd="/w", dry_run=True),
    "check": lambda s: s.store.check(),
    "revision": lambda s: s.store.revision(),
    "upgrade": lambda s: s.store.upgrade(),
}


def _export_odd(subject: Subject) -> object:
    subject.store.append("s", MessageEntry({"role": SECRET, "content": SECRET}))
    return subject.store.export_history("s")


REFUSED: Calls = {
    "another header": lambda s: s.store.append("s", header("s", f"{SECRET}!")),
    "another under a known key": lambda s: s.store.append("s", said("x"), idempotency_key="k1"),
    "some known keys": lambda s: s.store.extend(
        "s", [said("one"), said("x")], idempotency_keys=["k1", "k2"]
    ),
    "another position": lambda s: s.store.append("s", said(), expected_position=1),
    "an unknown session": lambda s: s.store.extend("none", [said(picture=True)]),
    "a known session": lambda s: s.store.import_history(HISTORY, cwd="/w", id="s"),
    "no history": _export_odd,
    "a key of its own": lambda s: s.store.append("s", said(), idempotency_key=""),
    "a header in between": lambda s: s.store.extend("s", [said(), header("s")]),
}


def try_all(subject: Subject, watch: Watch, calls: Calls, why: str) -> int:
    """Make each of *calls* on a session that is as it was; how many failed."""
    subject.seed()
    return try_on(subject, watch, calls, why, renew=True)


def try_on(subject: Subject, watch: Watch, calls: Calls, why: str, *, renew: bool = False) -> int:
    """Make each of *calls*; how many failed.

    What they raise, and the repr of what they give, is looked at. Only errors of ours may come.

    Args:
        subject: the store.
        watch: what looks.
        calls: the calls.
        why: what is wrong with the database.
        renew: whether what a call did is undone before the next.
    """
    failed = 0
    for name, call in calls.items():
        try:
            found = call(subject)
        except TurnkeepError as error:
            failed += 1
            watch.error(f"{why}: {name}", error)
        except Exception as error:  # noqa: BLE001 (told at the end, with all others)
            watch.found[f"{why}: {name}: not ours"] = repr(error)
        else:
            watch.look(f"{why}: {name}", [repr(found)])
            if renew:
                subject.seed()
    return failed


@contextmanager
def triggers(subject: Subject, body: str, when: str = "BEFORE") -> Iterator[None]:
    """What a host's triggers on all our tables do; in *body*, `what` is the row as text."""
    each = [f"turnkeep_{table}" for table in TABLES]
    if subject.is_postgres:
        subject.run(
            "CREATE FUNCTION leak() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE what text := "
            "CASE WHEN TG_OP = 'DELETE' THEN OLD::text ELSE NEW::text END; BEGIN "
            f"{body}; RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END; END $$",
            *(
                f"CREATE TRIGGER leak {when} INSERT OR UPDATE OR DELETE ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION leak()"
                for table in each
            ),
        )
        end = ["DROP FUNCTION leak CASCADE"]
    else:
        events = [(table, event) for table in each for event in ("INSERT", "UPDATE", "DELETE")]
        subject.run(
            *(
                f"CREATE TRIGGER leak_{event}_{table} {when} {event} ON {table} "
                f"WHEN NOT EXISTS (SELECT 1 FROM past) BEGIN {body}; END"
                for table, event in events
            )
        )
        end = [f"DROP TRIGGER leak_{event}_{table}" for table, event in events]
    try:
        yield
    finally:
        subject.run(*end)
