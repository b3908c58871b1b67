"""No error of ours, nothing behind it, and no log record tells a password or what a message says,
whatever goes wrong, on each driver.
"""

import asyncio
import itertools
import logging
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, event

from leaks import SECRET, watching
from servers import PostgresServer, free_port
from subjects import (
    ASYNC,
    ON_POSTGRES,
    ON_SQLITE,
    READS,
    REFUSED,
    UPKEEP,
    WRITES,
    Calls,
    Subject,
    said,
    triggers,
    try_all,
    try_on,
)
from turnkeep import MessageEntry, SQLStore, TurnkeepError

_numbers = itertools.count()
ALL = {**WRITES, **READS, **REFUSED, **UPKEEP}


@pytest.fixture(params=[*ON_SQLITE, *ON_POSTGRES])
def driver(request: pytest.FixtureRequest) -> str:
    driver: str = request.param
    return driver


SERVERS = pytest.mark.parametrize("driver", ON_POSTGRES, indirect=True)
FILES = pytest.mark.parametrize("driver", ON_SQLITE, indirect=True)
LOOPS = pytest.mark.parametrize("driver", ASYNC, indirect=True)


@pytest.fixture
def database(driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[URL]:
    """An empty one for the driver."""
    if driver in ("pysqlite", "aiosqlite"):
        yield URL.create("sqlite", database=str(tmp_path / "chats.db"))
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = f"leaks_{next(_numbers)}"
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture
def subject(driver: str, database: URL, tmp_path: Path) -> Iterator[Subject]:
    """A store that opened its database by URL."""
    subject = Subject(driver, database, tmp_path)
    yield subject
    subject.close()


@pytest.fixture
def guest(driver: str, database: URL, tmp_path: Path) -> Iterator[Subject]:
    """A store on an engine of the host's."""
    subject = Subject(driver, database, tmp_path, borrowed=True)
    yield subject
    subject.close()


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeep.database.TRIES", 2)


@pytest.mark.parametrize("driver", ["pysqlite"], indirect=True)
def test_every_method_is_tried(subject: Subject) -> None:
    names = {name for name in dir(SQLStore) if not name.startswith("_")}
    used: set[str] = set()

    class Noted:
        def __init__(self, store: Any) -> None:
            self.store = store

        def __getattr__(self, name: str) -> Any:
            used.add(name)
            return getattr(self.store, name)

    subject.store = Noted(subject.store)
    for call in ALL.values():
        subject.seed()
        with suppress(TurnkeepError):
            call(subject)
    subject.store = subject.store.store
    assert names - used == {"with_namespace", "using", "close"}


def test_what_goes_well_or_is_refused_is_not_told(subject: Subject) -> None:
    with watching() as watch:
        subject.renew()
        assert try_all(subject, watch, ALL, "") == len(REFUSED)
        assert "sqlalchemy.engine.Engine.turnkeep" in watch.loggers  # it was asked to log


# Each stands for one way to take an error: see `translate` of the dialect.
CODES = ("P0001", "23505", "40001", "26000", "42P01", "42501", "55P03", "53100", "08006")
ROW = "MESSAGE = what, DETAIL = what, HINT = what, COLUMN = left(what, 60)"
FAULTS = {
    True: [
        *(f"RAISE EXCEPTION USING {ROW}, ERRCODE = '{code}'" for code in CODES),
        f"RAISE EXCEPTION USING {ROW}, ERRCODE = '23505', CONSTRAINT = 'turnkeep_entries_key'",
        "PERFORM what::int",
        "RAISE NOTICE USING MESSAGE = what; PERFORM pg_terminate_backend(pg_backend_pid())",
        "PERFORM pg_terminate_backend(pg_backend_pid()); RAISE EXCEPTION USING MESSAGE = what",
    ],
    False: [f"SELECT RAISE({how}, '{SECRET}')" for how in ("ABORT", "FAIL", "ROLLBACK")],
}
NOTICES = [f"RAISE {level} USING {ROW}" for level in ("DEBUG", "LOG", "INFO", "NOTICE", "WARNING")]


def test_what_a_host_s_trigger_raises_is_left_behind(subject: Subject) -> None:
    with watching() as watch:
        for fault in FAULTS[subject.is_postgres]:
            with triggers(subject, fault):
                assert try_all(subject, watch, WRITES, fault) == len(WRITES)


def test_what_a_host_s_trigger_raises_is_left_behind_on_the_host_s_engine(guest: Subject) -> None:
    with watching(logging.WARNING) as watch:
        for fault in FAULTS[guest.is_postgres]:
            with triggers(guest, fault):
                assert try_all(guest, watch, WRITES, fault) == len(WRITES)


@SERVERS
def test_what_a_host_s_trigger_gives_notice_of_is_not_logged(subject: Subject) -> None:
    subject.run(f'ALTER DATABASE "{subject.url.database}" SET client_min_messages = debug1')
    subject.renew()
    with watching() as watch:
        for notice in NOTICES:
            with triggers(subject, notice):
                assert try_all(subject, watch, WRITES, notice) == 0


def test_a_connection_that_can_t_be_reset_tells_nothing_of_why_it_came_back(
    subject: Subject,
) -> None:
    _fails_to_reset(subject, logging.DEBUG)


def test_nor_does_one_of_the_host_s(guest: Subject) -> None:
    _fails_to_reset(guest, logging.WARNING)


def _fails_to_reset(subject: Subject, level: int) -> None:
    resets = itertools.count()

    def fail(*_: object) -> None:
        next(resets)
        raise subject.engine.dialect.loaded_dbapi.OperationalError("reset")

    subject.seed()
    event.listen(subject.engine.pool, "reset", fail)
    with watching(level) as watch, triggers(subject, FAULTS[subject.is_postgres][0]):
        assert try_all(subject, watch, WRITES, "") == len(WRITES)
        assert any(name.startswith("sqlalchemy.pool") for name in watch.loggers)
    assert next(resets) >= len(WRITES)


# A table that is no longer what it was: DETAIL lines, and errors of statements that read.
CHANGED = {
    "unique": ["CREATE UNIQUE INDEX odd ON turnkeep_sessions (title)"],
    "unique part": ["CREATE UNIQUE INDEX odd ON turnkeep_entries (substr(payload, 1, 60))"],
    "column gone": ["ALTER TABLE turnkeep_sessions DROP COLUMN title"],
    "column gone ": ["ALTER TABLE turnkeep_attachments DROP COLUMN filename"],
    "table gone": ["ALTER TABLE turnkeep_blobs RENAME TO odd"],
    "table gone ": ["ALTER TABLE turnkeep_entries RENAME TO odd"],
    "version gone": ["DELETE FROM turnkeep_version", "INSERT INTO turnkeep_version VALUES ('9')"],
}
CHANGED_ON_POSTGRES = {
    "check": ["ALTER TABLE turnkeep_entries ADD CHECK (payload NOT LIKE '%%hush%%') NOT VALID"],
    "check ": ["ALTER TABLE turnkeep_sessions ADD CHECK (title NOT LIKE '%%hush%%') NOT VALID"],
    "not null": [
        "ALTER TABLE turnkeep_entries ADD odd text",
        "ALTER TABLE turnkeep_entries ADD CHECK (odd IS NOT NULL) NOT VALID",
    ],
    "foreign key": [
        "CREATE TABLE odd (title text PRIMARY KEY)",
        "ALTER TABLE turnkeep_sessions ADD FOREIGN KEY (title) REFERENCES odd NOT VALID",
    ],
    "foreign key ": [
        "CREATE TABLE odd (payload text PRIMARY KEY)",
        "ALTER TABLE turnkeep_entries ADD FOREIGN KEY (payload) REFERENCES odd NOT VALID",
    ],
    "too long": ["ALTER TABLE turnkeep_sessions ALTER title TYPE varchar(5) USING 'x'"],
    "a number": [
        "ALTER TABLE turnkeep_sessions ALTER title TYPE int USING 1",
        "ALTER TABLE turnkeep_attachments ALTER filename TYPE int USING 1",
    ],
}


def _views(table: str, column: str, given: str) -> list[str]:
    """Let reading the *column* raise an error that tells what is in it."""
    columns = {
        "entries": "namespace, session_id, position, type, idempotency_key, recorded_at, "
        "attachments, payload",
        "blobs": "namespace, digest, size, data",
        "attachments": "namespace, session_id, position, ordinal, path, digest, mime, filename",
        "sessions": "namespace, id, schema_version, cwd, cwd_digest, created_at, model, "
        "riffer_rig_version, riffer_version, title, updated_at, last_position, last_recorded_at",
    }[table]
    telling = f"BEGIN RAISE EXCEPTION USING {ROW}; END"
    shown = columns.replace(column, f"tell({given})::{'bytea' if table == 'blobs' else 'text'}")
    return [
        f"CREATE FUNCTION tell(what text) RETURNS text LANGUAGE plpgsql AS $$ {telling} $$",
        f"ALTER TABLE turnkeep_{table} RENAME TO odd",
        f"CREATE VIEW turnkeep_{table} ({columns}) AS SELECT {shown} FROM odd",
    ]


VIEWS = {
    "read entries": _views("entries", "payload", "payload"),
    "read titles": _views("sessions", "title", "title"),
    "read bytes": _views("blobs", "data", "encode(data, 'escape')"),
    "read names": _views("attachments", "filename", "filename"),
}


def test_what_a_database_says_that_is_not_as_it_was_is_left_behind(subject: Subject) -> None:
    changes = CHANGED
    if subject.is_postgres:
        changes = CHANGED | CHANGED_ON_POSTGRES | VIEWS
    with watching() as watch:
        for change, statements in changes.items():
            subject.seed()
            subject.run(*statements)
            subject.renew()
            assert try_on(subject, watch, {**READS, **UPKEEP, **WRITES}, change), change
            subject.rebuild()


MESSAGE = '{"message":{"role":"user","content":"hush-4711-zz'
DAMAGE = {
    "no JSON": f"entries SET payload = '{SECRET}' WHERE position = 2",
    "cut JSON": f"entries SET payload = '{MESSAGE}' WHERE position = 2",
    "a surrogate": f"entries SET payload = '{MESSAGE}\\ud83d' WHERE position = 2",
    "two": f"entries SET payload = '{MESSAGE}\"}}}}{{' WHERE position = 2",
    "NaN": f'entries SET payload = \'{MESSAGE}","x":NaN}}}}\' WHERE position = 2',
    "a list": f"entries SET payload = '[\"{SECRET}\"]' WHERE position = 2",
    "a key twice": f'entries SET payload = \'{MESSAGE}"}},"message":1}}\' WHERE position = 1',
    "no place": f"entries SET payload = '{MESSAGE}\"}}}}' WHERE position = 2",
    "a place of a number": 'entries SET payload = \'{"message":{"files":[{"data":1}]}}\' '
    "WHERE position = 2",
    "the header": f'entries SET payload = \'{{"title":"{SECRET}"\' WHERE position = 0',
    "the type": "entries SET type = '' WHERE position = 1",
    "a long type": f"entries SET type = '{'x' * 300}' WHERE position = 1",
    "the time": f"entries SET recorded_at = '{SECRET}' WHERE position = 1",
    "a time": f"entries SET recorded_at = '{SECRET:Z<24}' WHERE position = 1",
    "the count": "entries SET attachments = 2 WHERE position = 2",
    "no count": "entries SET attachments = 1 WHERE position = 1",
    "begun": f"sessions SET created_at = '{SECRET}'",
    "the version": "sessions SET schema_version = 0",
    "a digest": "attachments SET digest = ''",
    "a path": f"attachments SET path = '{SECRET}'",
    "another path": f"attachments SET path = '[\"{SECRET}\"'",
    "no path": "attachments SET path = '7'",
    "bytes": f"blobs SET data = '{SECRET}'",
}
DAMAGE_ON_SQLITE = {
    "no UTF-8": f"entries SET payload = CAST(x'{SECRET.encode().hex()}ff' AS TEXT) "
    "WHERE position = 1",
    "bytes for text": f"entries SET payload = x'{SECRET.encode().hex()}' WHERE position = 1",
    "text for a number": f"entries SET attachments = '{SECRET}' WHERE position = 2",
    "the change": f"sessions SET updated_at = '{SECRET}'",
    "text for the position": f"sessions SET last_position = '{SECRET}'",
    "the version": f"sessions SET schema_version = '{SECRET}'",
    "text for bytes": f"attachments SET digest = '{SECRET}'",
    "title": f"sessions SET title = x'{SECRET.encode().hex()}'",
    "title no UTF-8": f"sessions SET title = CAST(x'{SECRET.encode().hex()}ff' AS TEXT)",
    "a path of bytes": f"attachments SET path = x'{SECRET.encode().hex()}'",
    "a time of bytes": f"entries SET recorded_at = x'{SECRET.encode().hex()}' WHERE position = 1",
}


def test_what_stands_in_a_damaged_row_is_not_told(subject: Subject) -> None:
    damages = DAMAGE if subject.is_postgres else DAMAGE | DAMAGE_ON_SQLITE
    with watching() as watch:
        for damage, update in damages.items():
            subject.seed()
            subject.run("UPDATE turnkeep_" + update)
            assert try_on(subject, watch, {**READS, **REFUSED}, damage) > len(REFUSED), damage


# A database that does not serve.


def _urls(subject: Subject) -> dict[str, URL]:
    url = subject.url
    if not subject.is_postgres:
        odd = subject.folder / "odd.db"
        odd.write_text(SECRET * 1000)
        return {
            "no database": url.set(database=str(odd)),
            "a folder": url.set(database=str(subject.folder)),
            "nowhere": url.set(database=str(subject.folder / "none" / "chats.db")),
            "read only": url.set(database=f"file:{url.database}").update_query_dict(
                {"mode": "ro", "uri": "true"}
            ),
        }
    return {
        "password": url.set(password=SECRET),
        "user": url.set(username="nobody", password=SECRET),
        "database": url.set(database="none"),
        "port": url.set(port=free_port()),
        "host": url.set(host="nohost.invalid"),
    }


def test_a_database_that_can_t_be_reached_is_told_without_the_password(subject: Subject) -> None:
    subject.seed()
    calls = {**WRITES, **READS, **UPKEEP}
    with watching() as watch:
        for why, url in _urls(subject).items():
            store, subject.store = subject.store, subject.open(url, timeout=1, migrate=False)
            failed = try_on(subject, watch, calls, why)
            watch.look(why, [repr(subject.store), repr(subject.engine), repr(subject.engine.pool)])
            subject.store.close()
            subject.store = store
            assert failed >= (len(WRITES) if why == "read only" else len(calls)), why


@SERVERS
def test_a_server_that_gives_up_half_way_is_told_without_the_row(subject: Subject) -> None:
    """The error says where in the host's trigger it was, in which statement; a notice, the row."""
    name = f'"{subject.url.database}"'
    slow = f"RAISE NOTICE USING {ROW}; EXECUTE format('SELECT pg_sleep(9), %%L', what)"
    for limit in ("statement_timeout", "transaction_timeout"):
        subject.seed()
        subject.run(f"ALTER DATABASE {name} SET {limit} = '30ms'")
        subject.renew()
        with watching() as watch, triggers(subject, slow):
            assert try_on(subject, watch, WRITES, limit) == len(WRITES)
        subject.run(f"ALTER DATABASE {name} RESET {limit}")


@FILES
def test_a_file_that_is_full_is_told_without_what_was_to_be_written(subject: Subject) -> None:
    subject.seed()
    with subject.aside() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()

    def set_up(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA max_page_count = {pages}")
        cursor.close()

    event.listen(subject.engine, "connect", set_up)
    subject.renew()
    large = MessageEntry({"role": "user", "content": SECRET * 10_000})
    calls: Calls = {
        "append": lambda s: s.store.append("s", large),
        "append with a picture": lambda s: s.store.append("s", said("x" * 100_000, picture=True)),
    }
    with watching() as watch:
        assert try_on(subject, watch, calls, "full") == len(calls)


@FILES
def test_a_file_that_is_locked_is_told_without_what_was_to_be_written(subject: Subject) -> None:
    subject.seed()
    store, subject.store = subject.store, subject.open(timeout=0.05)
    subject.store.get("s")
    with watching() as watch, closing(sqlite3.connect(str(subject.url.database))) as other:
        other.execute("BEGIN IMMEDIATE")
        assert try_on(subject, watch, WRITES, "locked") == len(WRITES)
        subject.store.close()
    subject.store = store


@FILES
def test_a_file_that_is_overwritten_is_told_without_what_is_in_it(subject: Subject) -> None:
    subject.seed()
    subject.renew()
    subject.admin.dispose()
    path = Path(str(subject.url.database))
    for begin in (0, 20, 4096):
        whole = path.read_bytes()
        path.write_bytes(whole[:begin] + (SECRET.encode() * len(whole))[: len(whole) - begin])
        with watching() as watch:
            assert try_on(subject, watch, READS, "overwritten") == len(READS)
        subject.renew()
        path.write_bytes(whole)


@LOOPS
def test_what_an_event_loop_complains_of_has_nothing_of_it(subject: Subject) -> None:
    loop = subject.store._loop

    def debug() -> None:
        loop.set_debug(True)
        loop.slow_callback_duration = 0

    subject.store._run(debug)
    with watching() as watch:
        assert try_all(subject, watch, ALL, "") == len(REFUSED)
        assert "asyncio" in watch.loggers


@LOOPS
def test_what_is_left_of_a_cancelled_call_tells_nothing(subject: Subject) -> None:
    subject.seed()
    chance = random.Random(1)

    async def cancel_many() -> list[object]:
        store = subject.store._store

        async def one(number: int) -> None:
            limit = chance.uniform(0, 0.05) if number % 4 else None
            async with asyncio.timeout(limit):
                await store.append("s", said(str(number), picture=number % 2 == 0))

        return await asyncio.gather(*map(one, range(100)), return_exceptions=True)

    raising = FAULTS[subject.is_postgres][0]
    if subject.is_postgres:
        raising = f"PERFORM pg_sleep(0.005); {raising}"
    with watching() as watch, triggers(subject, raising):
        outcomes = subject.store._run(cancel_many)
        subject.renew()
        for outcome in outcomes:
            assert isinstance(outcome, TimeoutError | TurnkeepError)
            watch.error("cancelled", outcome)
    assert {TimeoutError, TurnkeepError} <= {type(outcome) for outcome in outcomes}
