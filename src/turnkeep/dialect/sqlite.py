"""SQLite: it takes its one write lock first, and needs no cleverness after that.

A transaction that reads and then writes fails at once when another process wrote in between,
whatever the timeout: so a write is `BEGIN IMMEDIATE`. Transactions are begun and ended by
statements of our own, since neither the driver's way of doing so nor a host's listeners can be
known.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from sqlalchemy import URL, Connection, Engine, bindparam, event, func, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import QueuePool
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.types import BigInteger, LargeBinary, Text

from turnkeep.dialect import statements
from turnkeep.dialect.base import Again, AttachmentRow, Mode, Parameters, Row
from turnkeep.dialect.statements import (
    IN_SESSION,
    INSERT_ENTRY,
    NS,
    RECORDED_AT,
    SID,
    advances,
    counted,
    values_of,
)
from turnkeep.errors import Corrupt, InvalidArgument, SchemaError, TurnkeepError, Unavailable
from turnkeep.prepared import Prepared
from turnkeep.tables import attachments, metadata, sessions, utc_text

T = TypeVar("T")

_Begin: TypeAlias = Callable[[Connection, Callable[[Connection], T]], T]

_log = logging.getLogger("turnkeep")

NOW = bindparam("now", type_=Text)
_ANY_SESSION = select(sessions.c.id).limit(1)

_ARGUMENTS = {
    "cached_statements",
    "check_same_thread",
    "detect_types",
    "isolation_level",
    "timeout",
    "uri",
}
"""What SQLAlchemy hands from a URL to the driver; more are SQLite's own, in a file URI."""

_REFUSED = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
)
"""What is wrong with a statement, or a host's table, not with the database as a whole."""

_UNUSABLE = {
    sqlite3.SQLITE_CANTOPEN: "the file can't be opened: is it one, in a folder that is there?",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database",
    sqlite3.SQLITE_READONLY: "the database may only be read",
}


@compiles(statements.Lines, "sqlite")
def _lines(element: Any, compiler: Any, **options: Any) -> str:
    data, text = (compiler.process(column, **options) for column in element.clauses)
    return f"group_concat(hex({data}) || {text}, char(10))"


@compiles(statements.Raw, "sqlite")
def _raw(element: Any, compiler: Any, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    if isinstance(element.clauses.clauses[0].type, LargeBinary):
        return f"CASE typeof({column}) WHEN 'text' THEN 0 ELSE {column} END"
    return (
        f"CASE typeof({column}) WHEN 'text' THEN CAST({column} AS BLOB) WHEN 'blob' THEN 0"
        f" ELSE {column} END"
    )


@compiles(statements.Stored, "sqlite")
def _stored(element: Any, compiler: Any, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    return f"CASE typeof({column}) WHEN 'text' THEN CAST({column} AS BLOB) ELSE {column} END"


@compiles(statements.IsText, "sqlite")
def _is_text(element: Any, compiler: Any, **options: Any) -> str:
    return f"typeof({compiler.process(element.clauses, **options)}) = 'text'"


@compiles(statements.Given, "sqlite")
def _given(element: Any, compiler: Any, **options: Any) -> str:
    value, is_text = (compiler.process(given, **options) for given in element.clauses)
    again = compiler.process(element.clauses.clauses[0], **options)
    return f"CASE {is_text} WHEN 1 THEN CAST({value} AS TEXT) ELSE {again} END"


@compiles(statements.Instant, "sqlite")
def _instant(element: Any, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(statements.Bytes, "sqlite")
def _bytes(element: Any, compiler: Any, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    if sqlite3.sqlite_version_info >= (3, 43):
        return f"octet_length({column})"  # which doesn't read what lies on further pages
    return f"length(CAST({column} AS BLOB))"


class Sqlite:
    """SQLite 3.35 and newer."""

    migrates: ClassVar[bool] = True
    in_threads: ClassVar[bool] = True
    turn: ClassVar[float] = 0.1  # who waits for the lock looks again after so long at the most
    drivers: ClassVar[AbstractSet[str]] = {"pysqlite", "aiosqlite"}

    _append: ClassVar = {flags: Prepared(s) for flags, s in advances(func.max, NOW).items()}
    new_session: ClassVar[Prepared] = statements.new_session(sqlite.insert, NOW)
    new_blob: ClassVar[Prepared] = statements.new_blob(sqlite.insert)
    _attach = Prepared(
        insert(attachments).values(
            {name: bindparam(name) for name in AttachmentRow._fields}
            | {"namespace": NS, "session_id": SID}
        )
    )
    _state = Prepared(
        select(sessions.c.last_position, sessions.c.last_recorded_at).where(*IN_SESSION)
    )
    _move = Prepared(
        update(sessions)
        .where(*IN_SESSION)
        .values(
            last_position=bindparam("position", type_=BigInteger),
            updated_at=func.max(sessions.c.updated_at, NOW),
            last_recorded_at=RECORDED_AT,
        )
    )

    def options(self, connection: Connection, mode: Mode) -> dict[str, Any]:  # noqa: ARG002
        """None: transactions are begun by statements of our own."""
        return {}

    def errors(self, dbapi: Any) -> tuple[type[Exception], ...]:
        """The driver's."""
        return (dbapi.Error,)

    def check_schema(self, schema: str | None) -> None:
        """SQLite has none."""
        if schema is not None:
            raise InvalidArgument("schema", "SQLite has no schemas: leave it out")

    def engine_arguments(self, url: URL, timeout: float) -> tuple[URL, dict[str, Any]]:
        """A pool, which for a database in memory is one connection: each has a database of its own
        there.
        """
        query = url.query
        if "uri" not in query and {*query} - _ARGUMENTS:
            raise InvalidArgument(
                "url", "has an option that the driver of SQLite doesn't know, unless uri=true too"
            )
        options: dict[str, Any] = {"poolclass": QueuePool, "pool_timeout": timeout}
        if self.is_in_memory(url):
            options |= {"pool_size": 1, "max_overflow": 0}
        wait = {} if "timeout" in query else {"timeout": timeout}
        given = {**wait, "check_same_thread": False}
        return url, {**options, "isolation_level": "AUTOCOMMIT", "connect_args": given}

    def configure(self, engine: Engine, timeout: float) -> None:
        """Write-ahead log, so that readers and the writer don't wait for each other; no commit is
        lost in a power cut; a new file is its owner's alone.
        """
        if not self.is_in_memory(engine.url):

            @event.listens_for(engine, "do_connect")
            def create(_dialect: object, _record: object, args: Any, options: Any) -> None:
                _create_private(args[0], is_uri=bool(options.get("uri")))

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, _: object) -> None:
            cursor = connection.cursor()
            try:
                _set_wal(cursor, timeout)
                cursor.execute("PRAGMA synchronous = FULL")
                cursor.execute("PRAGMA foreign_keys = ON")
            finally:
                cursor.close()

    def run(  # the engine's own timeout is how long one waits for the lock
        self,
        connection: Connection,
        mode: Mode,
        timeout: float,  # noqa: ARG002
        work: Callable[[Connection], T],
    ) -> T:
        """By statements of ours."""
        if _in_transaction(connection) and not _is_never_outside(connection):
            # What SQLAlchemy does for a database in memory: ours would end what the host began.
            raise Unavailable(
                "the pool's only connection is in a transaction of the host's: join it by using()"
            )
        if mode is Mode.READ:
            return work(connection)
        if mode is Mode.APPEND:
            # It runs no statement by SQLAlchemy, which then need not know of the transaction.
            return _outside(connection, _writing, work)
        with connection.begin():
            if mode is Mode.MIGRATION:
                return _outside(connection, _migrating, work)
            return _outside(connection, _reading if mode is Mode.SNAPSHOT else _writing, work)

    def begin_migration(self, connection: Connection) -> None:
        """Take the write lock: left to itself, the driver would commit each table as it is made.

        In AUTOCOMMIT there is no commit that would end what is begun here.
        """
        if not _is_autocommit(connection):
            self.join(connection)

    def check_roles(self) -> None:
        """SQLite has none."""
        raise InvalidArgument("url", "SQLite has no roles: who may open the file may do anything")

    def row_security(self) -> Sequence[ExecutableDDLElement]:
        """SQLite has none."""
        fault = "SQLite has no roles: who may open the file sees all of it"
        raise InvalidArgument("row_security", fault)

    def secure_rows(self, connection: Connection, *, on: bool | None) -> None:  # noqa: ARG002
        """Nothing, where it is not to be on."""
        if on:
            self.row_security()

    def check_whole(self, connection: Connection, namespace: str | None, *, deletes: bool) -> None:
        """Nothing: who may open the file sees all of it."""

    def check_cascades(self, connection: Connection) -> None:
        """Only a host's connection can have foreign keys on here: ours has them off by now."""
        if _run(connection, "PRAGMA foreign_keys")[0][0] and connection.execute(_ANY_SESSION).all():
            raise SchemaError(
                "foreign keys are enforced on this connection, and a table that is rebuilt would "
                "lose what hangs on it: run PRAGMA foreign_keys = OFF before the migration begins"
            )

    def join(self, connection: Connection) -> None:
        """Begin what the driver has put off till the first write.

        A savepoint outside a transaction would be one itself, and its release a commit.
        """
        if not connection.in_transaction():
            connection.begin()
        if not _in_transaction(connection):
            if _is_autocommit(connection):
                # What the app wrote before this is committed, and would not share the fate of ours.
                raise InvalidArgument(
                    "connection", "is in AUTOCOMMIT: it has no transaction to join"
                )
            _run(connection, "BEGIN IMMEDIATE")

    def instant(self, value: datetime) -> object:
        """The text of one width that the column holds."""
        return utc_text(value)

    def is_autocommit(self, connection: Connection) -> bool:  # noqa: ARG002
        """Not to be told before the first write: a host may begin transactions by listeners."""
        return False

    def is_stale(self, connection: Connection) -> bool:  # noqa: ARG002
        """Never: there is no server."""
        return False

    def unprepared(self, connection: Connection) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing: what is prepared stays with its connection."""
        return nullcontext()

    def is_in_memory(self, url: URL) -> bool:
        """By its name, or the mode that a file URI asks for."""
        name = url.database or ":memory:"
        return (
            name == "file:"
            or ":memory:" in name
            or "mode=memory" in name
            or url.query.get("mode") == "memory"
        )

    def spoils(self, error: BaseException) -> bool:
        """When it may only read: opened while the file was read-only, it would stay so."""
        code = getattr(error, "sqlite_errorcode", None)
        return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_READONLY

    def now(self, connection: Connection) -> datetime:  # noqa: ARG002
        """By the clock of this machine."""
        return datetime.now(UTC)

    def append(
        self, connection: Connection, session: Parameters, row: Row, expected: int | None
    ) -> int | None:
        """One update and one insert under the write lock."""
        values = values_of(session, row) | {"expected": expected, "now": _now()}
        moved = self._append[row.key is not None, expected is not None].fetch(connection, values)
        if not moved:
            return None
        position, latest = _stands(session, *moved[0])
        stamp = None if row.recorded_at is None else latest
        INSERT_ENTRY.fetch(connection, values | {"position": position, "recorded_at": stamp})
        return position

    def extend(
        self, connection: Connection, session: Parameters, rows: Sequence[Row], expected: int | None
    ) -> int | None:
        """A look, an update and the inserts under the write lock."""
        state = self._state.fetch(connection, session)
        if not state or expected not in (None, state[0][0]):
            return None
        position, floor = _stands(session, *state[0])
        values = []
        for place, row in enumerate(rows, start=position + 1):
            if row.recorded_at is not None:
                floor = max(floor, row.recorded_at)
                row = row._replace(recorded_at=floor)  # noqa: PLW2901
            values.append(values_of(session, row) | {"position": place})
        last = position + len(rows)
        self._move.fetch(
            connection, {**session, "position": last, "recorded_at": floor, "now": _now()}
        )
        INSERT_ENTRY.run_many(connection, values)
        return last

    def attach(
        self, connection: Connection, session: Parameters, places: Sequence[AttachmentRow]
    ) -> None:
        """The inserts, one for each."""
        self._attach.run_many(connection, [{**session, **place._asdict()} for place in places])

    def translate(self, error: BaseException) -> Exception:
        """By SQLite's result codes."""
        cause = getattr(error, "orig", None) or error
        code = getattr(cause, "sqlite_errorcode", None)
        name = getattr(cause, "sqlite_errorname", None) or type(cause).__name__
        primary = code & 0xFF if isinstance(code, int) else None
        if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return Unavailable("another wrote since this transaction began to read: begin it anew")
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Again(f"the database is locked by another ({name})", locked=True)
        if primary == sqlite3.SQLITE_ERROR and str(cause).startswith("no such "):
            return SchemaError(
                "the database doesn't have the tables that this version needs: "
                "run `turnkeep db upgrade` or call the store's upgrade()"
            )
        if primary in _REFUSED:
            return TurnkeepError(f"the database refused a statement ({name})")
        if code is None and "decode to UTF-8" in str(cause):
            return TurnkeepError("a stored text is damaged: `turnkeep db verify` says which")
        reason = _UNUSABLE.get(primary or 0, "the database can't be used")
        return Unavailable(f"{reason} ({name})")


def _stands(session: Parameters, position: object, latest: object) -> tuple[int, str]:
    """The session's last position and latest time, where the row holds such."""
    if not isinstance(latest, str):
        raise Corrupt(str(session["sid"]), 0, "$", "its latest time can't be decoded")
    return counted(session, position), latest


def _create_private(name: str, *, is_uri: bool) -> None:
    """Make the file that SQLite is about to make, but so that nobody else can read it: SQLite lets
    everybody whom the umask lets. What it puts beside the file has the same rights.
    """
    if is_uri and name.startswith("file:"):
        parts = urlsplit(name)
        mode = parse_qs(parts.query).get("mode", ["rwc"])[-1]
        if mode != "rwc" or parts.netloc not in ("", "localhost"):
            return
        name = unquote(parts.path)
    # Where there is one, or none can be made, SQLite finds that out too.
    with suppress(OSError, ValueError):
        os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _set_wal(cursor: Any, timeout: float) -> None:
    """Switch the file to the write-ahead log, where it isn't: the switch needs the file alone, and
    ignores the timeout.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            cursor.execute("PRAGMA journal_mode")
            if cursor.fetchone()[0] in ("wal", "memory"):
                return
            cursor.execute("PRAGMA journal_mode = WAL")
            if cursor.fetchone()[0] != "wal":
                _log.warning(
                    "SQLite keeps a rollback journal here: readers and writers wait for each other"
                )
            return
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF
            if code == sqlite3.SQLITE_READONLY:  # then there is nobody to wait for either
                return
            if code != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _check_foreign_keys(connection: Connection) -> None:
    there = {name for (name,) in _run(connection, "SELECT name FROM sqlite_master")}
    for table in there & {*metadata.tables}:
        if _run(connection, f"PRAGMA foreign_key_check({table})"):
            raise SchemaError(f"the migration would leave rows of {table} without what they name")


def _outside(connection: Connection, begin: "_Begin[T]", work: Callable[[Connection], T]) -> T:
    """What *begin* makes of *work*, with the driver in no transaction but that."""
    if _in_transaction(connection):  # a listener of the host's began one, of its own kind
        _run(connection, "ROLLBACK")
    if not _is_never_outside(connection):
        return begin(connection, work)
    try:
        return begin(connection, work)
    finally:
        if not connection.invalidated:
            _run(connection, "BEGIN")  # for the driver to end


def _reading(connection: Connection, work: Callable[[Connection], T]) -> T:
    return _committed(connection, "BEGIN", work)


def _writing(connection: Connection, work: Callable[[Connection], T]) -> T:
    return _committed(connection, "BEGIN IMMEDIATE", work)


def _migrating(connection: Connection, work: Callable[[Connection], T]) -> T:
    """With foreign keys off, which SQLite allows between transactions only.

    Rebuilding a table drops the old one, which would delete all that hangs on it.
    """

    def checked(connection: Connection) -> T:
        done = work(connection)
        _check_foreign_keys(connection)
        return done

    before = _run(connection, "PRAGMA foreign_keys")[0][0]
    _run(connection, "PRAGMA foreign_keys = OFF")
    try:
        return _committed(connection, "BEGIN IMMEDIATE", checked)
    finally:
        if not connection.invalidated:
            _run(connection, f"PRAGMA foreign_keys = {before}")


def _committed(connection: Connection, begin: str, work: Callable[[Connection], T]) -> T:
    _run(connection, begin)
    try:
        done = work(connection)
        _run(connection, "COMMIT")
    except BaseException:
        # SQLAlchemy closes a connection on which a statement is cancelled.
        if not connection.invalidated and _in_transaction(connection):
            _run(connection, "ROLLBACK")
        raise
    return done


def _now() -> str:
    return utc_text(datetime.now(UTC))


def _in_transaction(connection: Connection) -> bool:
    """Whether the driver is in a transaction, which SQLAlchemy's connection can't tell."""
    driver: Any = connection.connection.driver_connection
    return bool(driver.in_transaction)


def _is_autocommit(connection: Connection) -> bool:
    """Whether the driver was told to begin nothing by itself."""
    driver: Any = connection.connection.driver_connection
    return driver.isolation_level is None or getattr(driver, "autocommit", None) is True


def _is_never_outside(connection: Connection) -> bool:
    """Whether the driver begins a transaction when it ends one, as Python 3.12 can be told to."""
    driver: Any = connection.connection.driver_connection
    return getattr(driver, "autocommit", None) is False


def _run(connection: Connection, statement: str) -> list[Any]:
    """Run a statement past SQLAlchemy, which would begin a transaction first."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []
    finally:
        cursor.close()
