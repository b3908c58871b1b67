"""PostgreSQL: a position is given out in one statement, without a transaction around it.

The update of the session's counter, whose row lock puts the writers in commit order, feeds the
insert. Where there is a transaction it says its isolation level itself, since the server's default,
or the host's, may be another.
"""

import math
import select as polling
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from datetime import datetime
from inspect import signature
from typing import Any, ClassVar, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Insert,
    bindparam,
    case,
    cast,
    event,
    func,
    insert,
    inspect,
    literal_column,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateSchema, ExecutableDDLElement
from sqlalchemy.sql.dml import Update
from sqlalchemy.types import BigInteger, Integer, Text

from turnkeep.dialect import pooler, rights, statements
from turnkeep.dialect.base import Again, AttachmentRow, Mode, Parameters, Row
from turnkeep.dialect.statements import (
    COLUMNS,
    EXPECTED,
    IN_SESSION,
    KEY,
    NS,
    RECORDED_AT,
    SID,
    advances,
    values_of,
)
from turnkeep.errors import InvalidArgument, SchemaError, TurnkeepError, Unavailable
from turnkeep.prepared import Prepared
from turnkeep.tables import attachments, entries, sessions

_FIELDS = AttachmentRow._fields

_READ_ONLY = "25006"
"""The SQLSTATE of a write in a transaction, or on a server, that only reads."""

# What comes back to the pool in autocommit has nothing to roll back; SQLAlchemy knows since 2.0.43.
_NO_ROLLBACK = dict.fromkeys(
    {"skip_autocommit_rollback"} & {*signature(DefaultDialect).parameters}, True
)

T = TypeVar("T")


def _inserted(advance: Update) -> Insert:
    """*advance* and the insert that it feeds, in one statement."""
    moved = advance.cte("moved")
    stamp = case((RECORDED_AT.is_not(None), moved.c.last_recorded_at))
    row = select(
        NS,
        SID,
        moved.c.last_position,
        bindparam("type", type_=Text),
        KEY,
        stamp,
        bindparam("attachments", type_=Integer),
        bindparam("payload", type_=Text),
    )
    return insert(entries).from_select(COLUMNS, row).returning(entries.c.position)


def _given(*names: str, place: str | None = None) -> Any:
    """A table out of arrays of texts, one for each of *names*, in the plural.

    About arrays of most other types asyncpg asks the server, and sets `jit` for its session
    meanwhile, which behind a pooler is everyone's.
    """
    arrays = (bindparam(f"{name}s", type_=ARRAY(Text)) for name in names)
    table = func.unnest(*arrays).table_valued(*names, with_ordinality=place)
    return table.render_derived("given")


def _extended(*, expected: bool) -> Insert:
    """Take the positions of a batch and insert it, out of arrays, in one statement."""
    # The clamp needs the time before this statement, which RETURNING doesn't give; and a condition
    # on the locked row must stand on what the lock read, or it is judged on the state before the
    # wait and writes nothing.
    held = (
        select(sessions.c.last_position, sessions.c.last_recorded_at)
        .where(*IN_SESSION)
        .with_for_update()
        .cte("held")
    )
    moved = (
        update(sessions)
        .where(
            *IN_SESSION,
            held.c.last_position == EXPECTED
            if expected
            else held.c.last_position >= literal_column("0"),
        )
        .values(
            last_position=held.c.last_position + bindparam("count", type_=BigInteger),
            updated_at=func.greatest(sessions.c.updated_at, func.clock_timestamp()),
            last_recorded_at=func.greatest(held.c.last_recorded_at, RECORDED_AT),
        )
        .returning(held.c.last_position.label("base"), held.c.last_recorded_at.label("floor"))
        .cte("moved")
    )
    given = _given("type", "key", "stamp", "count", "payload", place="place")
    stamp = case((given.c.stamp.is_not(None), func.greatest(given.c.stamp, moved.c.floor)))
    row = select(
        NS,
        SID,
        moved.c.base + given.c.place,
        given.c.type,
        given.c.key,
        stamp,
        cast(given.c.count, Integer),
        given.c.payload,
    ).select_from(moved.join(given, true()))
    return insert(entries).from_select(COLUMNS, row).returning(entries.c.position)


def _attached() -> Insert:
    """Insert what was lifted out of entries, out of arrays, in their order."""
    given = _given(*_FIELDS)
    values: dict[str, Any] = {c: cast(given.c[c], attachments.c[c].type) for c in _FIELDS}
    values["digest"] = func.decode(given.c.digest, literal_column("'hex'"))
    row = select(NS, SID, *values.values())
    return insert(attachments).from_select(["namespace", "session_id", *_FIELDS], row)


@compiles(statements.Lines, "postgresql")
def _lines(element: Any, compiler: Any, **options: Any) -> str:
    data, text = (compiler.process(column, **options) for column in element.clauses)
    return f"string_agg(encode({data}, 'hex') || {text}, chr(10))"


@compiles(statements.Raw, "postgresql")
def _raw(element: Any, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(statements.Stored, "postgresql")
def _stored(element: Any, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(statements.IsText, "postgresql")
def _is_text(element: Any, compiler: Any, **options: Any) -> str:  # noqa: ARG001
    return "0"


@compiles(statements.Given, "postgresql")
def _as_given(element: Any, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses.clauses[0], **options))


@compiles(statements.Instant, "postgresql")
def _instant(element: Any, compiler: Any, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    return f"""to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


@compiles(statements.Bytes, "postgresql")
def _bytes(element: Any, compiler: Any, **options: Any) -> str:
    # Of a value that lies elsewhere, compressed or not, this reads the head only.
    return f"octet_length({compiler.process(element.clauses, **options)})"


_NOW = select(statements.Instant(func.clock_timestamp()))


class Postgres:
    """PostgreSQL 15 to 18, by psycopg 3 or asyncpg."""

    migrates: ClassVar[bool] = False
    in_threads: ClassVar[bool] = False
    turn: ClassVar[float] = 0.0
    drivers: ClassVar[AbstractSet[str]] = {"psycopg", "psycopg_async", "asyncpg"}

    _isolation: ClassVar = {
        Mode.READ: "AUTOCOMMIT",
        Mode.APPEND: "AUTOCOMMIT",
        Mode.SNAPSHOT: "REPEATABLE READ",
        Mode.WRITE: "READ COMMITTED",
        Mode.MIGRATION: "READ COMMITTED",
    }

    MIGRATION_LOCK = 0x7475726E6B656570  # "turnkeep"
    """The advisory lock that migrations hold till their commit."""

    new_session: ClassVar[Prepared] = statements.new_session(
        postgresql.insert, func.clock_timestamp()
    )
    new_blob: ClassVar[Prepared] = statements.new_blob(postgresql.insert)

    _append: ClassVar = {
        flags: Prepared(_inserted(s))
        for flags, s in advances(func.greatest, func.clock_timestamp()).items()
    }
    _extend: ClassVar = {
        expected: Prepared(
            _extended(expected=expected),
            binary=["types", "keys", "stamps", "counts", "payloads"],
        )
        for expected in (False, True)
    }

    _attach: ClassVar = Prepared(_attached(), binary=[f"{name}s" for name in _FIELDS])

    def options(self, connection: Connection, mode: Mode) -> dict[str, Any]:
        """The isolation level, which the driver says when it begins."""
        if (mode is Mode.READ or mode is Mode.APPEND) and self.is_autocommit(connection):
            return {}
        return {"isolation_level": self._isolation[mode]}

    def errors(self, dbapi: Any) -> tuple[type[Exception], ...]:
        """Asyncpg's own too, since some versions of SQLAlchemy let some of them pass."""
        asyncpg = getattr(dbapi, "asyncpg", None)
        if asyncpg is None:
            return (dbapi.Error,)
        own = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
        return (dbapi.Error, *own)

    def check_schema(self, schema: str | None) -> None:
        """A name of up to 63 bytes; SQLAlchemy's translate map takes no square brackets."""
        fault = None if schema is None else rights.name_fault(schema)
        if fault is None and schema is not None and {*"[]"} & {*schema}:
            fault = "holds a square bracket"
        if fault:
            raise InvalidArgument("schema", fault)

    def engine_arguments(self, url: URL, timeout: float) -> tuple[URL, dict[str, Any]]:
        """A connection commits each statement by itself unless a transaction is asked for."""
        options: dict[str, Any] = {
            "pool_timeout": timeout,
            "isolation_level": "AUTOCOMMIT",
            **_NO_ROLLBACK,
        }
        if url.get_driver_name() == "asyncpg":
            wait = {} if "timeout" in url.query else {"timeout": timeout}
            given = {**wait, **pooler.asyncpg_arguments(url)}
            bare = url.difference_update_query([pooler.OPTION])
            return bare, {**options, "connect_args": given}
        _check_options({*url.query} - {pooler.OPTION})
        wanted = {
            "client_encoding": "utf8",
            "connect_timeout": max(2, math.ceil(timeout)),  # libpq takes no less
            "fallback_application_name": "turnkeep",
        }
        given = {name: value for name, value in wanted.items() if name not in url.query}
        return url, {**options, "connect_args": {**given, **pooler.threshold(url)}}

    def configure(self, engine: Engine, timeout: float) -> None:  # noqa: ARG002
        """Nothing on the server: what is set on a connection does not survive a pooler before it.

        Notices are not taken: SQLAlchemy logs psycopg's, and a trigger of the host's may say in one
        what is in a row.
        """
        if engine.dialect.driver == "asyncpg":  # nobody listens to its
            return

        @event.listens_for(engine, "connect")
        def take_no_notice(_: object, record: Any) -> None:
            record.driver_connection.pgconn.notice_handler = None

    def run(
        self,
        connection: Connection,
        mode: Mode,
        timeout: float,
        work: Callable[[Connection], T],
    ) -> T:
        """By the driver, at the isolation level that the connection was given for *mode*."""
        if mode is Mode.READ or mode is Mode.APPEND:
            return work(connection)
        with connection.begin():
            if mode is Mode.MIGRATION:
                wait = {"wait": f"{round(timeout * 1000)}ms"}
                connection.execute(text("SELECT set_config('lock_timeout', :wait, true)"), wait)
                self.begin_migration(connection)
            return work(connection)

    def begin_migration(self, connection: Connection) -> None:
        """Wait for the other migrations, and only then let anyone look what is to be done."""
        connection.execute(
            text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": self.MIGRATION_LOCK}
        )
        schema = (connection.get_execution_options().get("schema_translate_map") or {}).get(None)
        if schema is not None and not inspect(connection).has_schema(schema):
            connection.execute(CreateSchema(schema))

    def check_roles(self) -> None:
        """There are."""

    def row_security(self) -> Sequence[ExecutableDDLElement]:
        """By policies."""
        return rights.row_security()

    def secure_rows(self, connection: Connection, *, on: bool | None) -> None:
        """Where it isn't so already: to look takes no lock."""
        rights.secure_rows(connection, on=on)

    def check_whole(self, connection: Connection, namespace: str | None, *, deletes: bool) -> None:
        """By the policies: what they hide from a statement it can't tell."""
        rights.check_whole(connection, namespace, deletes=deletes)

    def check_cascades(self, connection: Connection) -> None:
        """Nothing: no table is rebuilt here."""

    def join(self, connection: Connection) -> None:
        """The savepoint that follows begins what has not begun."""

    def instant(self, value: datetime) -> object:
        """The drivers take it as it is."""
        return value

    def is_autocommit(self, connection: Connection) -> bool:
        """Whether the driver was told to commit by itself."""
        return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))

    def is_stale(self, connection: Connection) -> bool:
        """Whether the server sent something that nobody asked for, as it does when it ends."""
        driver: Any = connection.connection.driver_connection
        if hasattr(driver, "is_closed"):  # asyncpg, which reads its socket all the time
            return bool(driver.is_closed())
        if driver.closed:
            return True
        poll = polling.poll()
        poll.register(driver.fileno(), polling.POLLIN)
        return bool(poll.poll(0))

    def unprepared(self, connection: Connection) -> AbstractContextManager[None]:
        """Nothing is prepared behind a pooler, which would mix it up."""
        return pooler.unprepared(connection)

    def is_in_memory(self, url: URL) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def spoils(self, error: BaseException) -> bool:
        """After one about a prepared statement, by a DISCARD ALL or a pooler; when it may only
        read, which another may not, as after a failover; and where the call was cancelled: what the
        server is asked to give up then may be over, and the next statement be hit.
        """
        return not isinstance(error, Exception) or (
            getattr(error, "sqlstate", None) in (*self._FORGOTTEN, _READ_ONLY)
        )

    def now(self, connection: Connection) -> datetime:
        """By the clock of the server."""
        return connection.execute(_NOW).scalar_one()

    def append(
        self, connection: Connection, session: Parameters, row: Row, expected: int | None
    ) -> int | None:
        """One statement."""
        values = values_of(session, row) | {"expected": expected}
        written = self._append[row.key is not None, expected is not None].fetch(connection, values)
        return int(written[0][0]) if written else None

    def extend(
        self, connection: Connection, session: Parameters, rows: Sequence[Row], expected: int | None
    ) -> int | None:
        """One statement."""
        stamps = [row.recorded_at for row in rows]
        values = {
            **session,
            "expected": expected,
            "count": len(rows),
            "recorded_at": max((stamp for stamp in stamps if stamp), default=""),
            "types": [row.type for row in rows],
            "keys": [row.key for row in rows],
            "stamps": stamps,
            "counts": [str(len(row.attachments)) for row in rows],
            "payloads": [row.payload for row in rows],
        }
        written = self._extend[expected is not None].fetch(connection, values)
        return max(int(position) for (position,) in written) if written else None

    def attach(
        self, connection: Connection, session: Parameters, places: Sequence[AttachmentRow]
    ) -> None:
        """One statement, in whose order the foreign keys are checked."""
        values = {
            "positions": [str(place.position) for place in places],
            "ordinals": [str(place.ordinal) for place in places],
            "paths": [place.path for place in places],
            "digests": [place.digest.hex() for place in places],
            "mimes": [place.mime for place in places],
            "filenames": [place.filename for place in places],
        }
        self._attach.fetch(connection, {**session, **values})

    _FORGOTTEN: ClassVar = dict.fromkeys(
        ("26000", "42P05"),
        "the server lost or mixed up prepared statements: behind a pooler, add "
        "?prepare_threshold=none to the URL",
    )
    _AGAIN: ClassVar = {"40001": "serialization failure", "40P01": "deadlock", **_FORGOTTEN}
    _RACES: ClassVar[Mapping[tuple[str, str | None], str]] = {
        ("23503", "turnkeep_attachments_blob_fkey"): "another deleted the same attachment",
        ("23505", "turnkeep_entries_key"): "another append has the same idempotency key",
    }
    _SCHEMA: ClassVar = {
        "3F000": "the schema doesn't exist, or the search_path names none that does",
        **dict.fromkeys(
            ("42P01", "42703"),
            "the database doesn't have the tables that this version needs: "
            "run `turnkeep db upgrade` or call the store's upgrade()",
        ),
    }
    _UNAVAILABLE: ClassVar = {
        "42501": "the role lacks a right that this needs, or the namespace is not its own",
        _READ_ONLY: "the database may only be read",
        **dict.fromkeys(("55P03", "57014"), "waited too long for a lock, or was cancelled"),
        **dict.fromkeys(
            ("08", "25", "28", "3D", "53", "54", "57", "58"), "the database refuses to serve"
        ),
    }

    def translate(self, error: BaseException) -> Exception:
        """By SQLSTATE, of which the first two signs are its class."""
        cause: Any = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None)
        if state is None:
            # No SQLSTATE: the driver lost the connection or got none. Its text may quote the URL.
            reason = (
                "the server can't be reached, or refused the user, the password or the database"
            )
            return Unavailable(f"{reason} ({type(cause).__name__})")
        if state in self._AGAIN:
            return Again(f"{self._AGAIN[state]} (SQLSTATE {state})")
        if race := self._RACES.get((state, _constraint(cause))):
            return Again(f"{race} (SQLSTATE {state})")
        if state in self._SCHEMA:
            return SchemaError(f"{self._SCHEMA[state]} (SQLSTATE {state})")
        reason = self._UNAVAILABLE.get(state) or self._UNAVAILABLE.get(state[:2], "")
        if reason:
            return Unavailable(f"{reason} (SQLSTATE {state})")
        return TurnkeepError(f"the database refused a statement (SQLSTATE {state})")


def _check_options(names: Iterable[str]) -> None:
    """Hold the names of a URL's options to those that libpq knows."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo

    try:
        make_conninfo(**dict.fromkeys(names, "1"))
    except (ProgrammingError, TypeError):
        known = False
    else:
        known = True
    if not known:
        raise InvalidArgument("url", "has an option that psycopg doesn't know")


def _constraint(error: Any) -> str | None:
    """The name of the constraint that *error* broke: psycopg says it in its diagnostics, asyncpg on
    the error.
    """
    diagnostics = getattr(error, "diag", None) or error.__cause__ or error
    name: str | None = getattr(diagnostics, "constraint_name", None)
    return name
