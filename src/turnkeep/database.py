"""The database behind one or more stores: its connections, its check at first use, and what becomes
of errors.

A store's method is one piece of work, a function of a Connection; `Database.run` gives it a
connection in the right transaction, commits, and runs it again where the database undid it.
`Joined.run` gives it the app's own connection, inside a savepoint. Both let only errors of ours
out: a driver's quote values, and nothing of them stays in the chain.
"""

import os
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, NullPool, Pool, QueuePool, StaticPool
from sqlalchemy import exc as sa_exc

from turnkeep.calls import Call
from turnkeep.dialect import DIALECTS, Again, Dialect, Mode
from turnkeep.errors import Corrupt, InvalidArgument, Unavailable

T = TypeVar("T")

TRIES = 10
"""How often work is run that the database undoes again and again."""

STALE = 20
"""How many dead connections of a pool are passed over: after a restart of the server all of them
are.
"""


class Runner(Protocol):
    """What a store runs its calls on."""

    def run(self, call: Call[T]) -> T:
        """Do what *call* asks, and give what it makes of it."""


class Database:
    """An engine, owned or borrowed, and the schema that our tables lie in."""

    # What knows Alembic is imported where it is first needed: that takes as long as all else here.

    _is_async: ClassVar[bool] = False

    def __init__(
        self,
        engine: Engine,
        *,
        is_owned: bool,
        schema: str | None,
        migrate: bool | None,
        timeout: float,
    ) -> None:
        self.timeout = timeout
        self.schema = schema
        self.engine = engine
        self._is_owned = is_owned
        name, driver = self.engine.dialect.name, self.engine.dialect.driver
        if name not in DIALECTS or driver not in DIALECTS[name].drivers:
            raise InvalidArgument(
                "engine",
                f"{name}+{driver} is not supported: SQLite and, by psycopg 3, Postgres are",
            )
        if self.engine.dialect.is_async != self._is_async:
            fault = "is no async one: SQLStore takes it"
            if self.engine.dialect.is_async:
                fault = "is an async one: AsyncSQLStore takes it"
            raise InvalidArgument("engine", fault)
        self.dialect: Dialect = DIALECTS[name]
        self.dialect.check_schema(schema)
        # Options of a connection: the engine's own stay as they are, and come first. On an engine
        # made of it they would come before those that the host gave to it, and lose.
        self._options = {} if schema is None else {"schema_translate_map": {None: schema}}
        self.errors: tuple[type[Exception], ...] = (
            sa_exc.DBAPIError,
            sa_exc.TimeoutError,
            *self.dialect.errors(self.engine.dialect.loaded_dbapi),
        )
        self._migrates = self._is_owned and self.dialect.migrates if migrate is None else migrate
        self._lock = threading.Lock()
        self._is_ready = False
        self._is_closed = False
        self._left_pool: Pool | None = None
        # A host's pool is the host's, an async one belongs to a loop, and in memory it is of one.
        self._keeps = self._owns_pool and not self._is_async
        self._kept: list[Connection] = []
        _databases.add(self)

    def run(self, call: Call[T]) -> T:
        """Do what *call* asks in a transaction, and commit; again from its start where the database
        undid it.
        """
        if call.work is None:
            return call.finish(None)
        if pause := self.pause(call):
            self._sleep(pause)
        return self.do_now(call)

    def pause(self, call: Call[Any]) -> float:
        """For how many seconds others have their turn before *call*."""
        return max(call.pause, self.dialect.turn) if call.pause and self.dialect.turn else 0.0

    def do_now(self, call: Call[T]) -> T:
        """As `run`, without the pause."""
        assert call.work is not None
        if not self._is_ready:
            self._make_ready()
        found = self._run(call.mode, call.work)
        try:
            return call.finish(found)
        except Corrupt:
            if call.mode is not Mode.READ:
                raise
        return call.finish(self._run(Mode.SNAPSHOT, call.work))

    def upgrade(self, row_security: bool | None = None) -> None:  # noqa: FBT001
        """Bring the database to the revision of this version."""
        from turnkeep import schema as schemas

        if row_security is not None and type(row_security) is not bool:
            raise InvalidArgument("row_security", "is True, False or None")
        if row_security:
            self.dialect.row_security()
        schemas.refuse_in_migration()
        self._run(Mode.MIGRATION, partial(schemas.upgrade, row_security=row_security))
        self._is_ready = True

    def revision(self) -> str | None:
        """The revision that the database is at, None where it has none of our tables."""
        from turnkeep import schema as schemas

        return self._run(Mode.READ, schemas.current)

    def check_schema(self) -> None:
        """Hold the database to this version, whatever was found before; never migrates."""
        from turnkeep import schema as schemas

        self._run(Mode.READ, schemas.check)

    def check(self, connection: Connection) -> None:
        """Hold the database that *connection* leads to to this version, once."""
        if not self._is_ready:
            from turnkeep import schema as schemas

            schemas.check(connection)
            self._is_ready = True

    def close(self) -> None:
        """End the connections of an owned engine; a borrowed one is left as it is."""
        self._is_closed = True
        self._end_connections()

    def _end_connections(self) -> None:
        if (kept := self._take_kept()) is not None:
            kept.close()
        if self._is_owned and self.engine.pool is not self._left_pool:
            self.engine.dispose()

    @property
    def _owns_pool(self) -> bool:
        """Whether its connections may be ended, and others take their place."""
        return self._is_owned and not self.is_in_memory

    @property
    def is_in_memory(self) -> bool:
        """Whether the data end with the connection."""
        return self.dialect.is_in_memory(self.engine.url)

    def translated(self, error: Exception) -> Exception:
        """What *error*, one of SQLAlchemy's or the driver's, means to a caller."""
        if isinstance(error, sa_exc.TimeoutError):
            return Unavailable(f"no connection of the pool came free within {self.timeout:g} s")
        return self.dialect.translate(error)

    def _make_ready(self) -> None:
        """Look once, for all threads, whether the tables are there, and see to it where that is
        allowed.
        """
        from turnkeep import schema as schemas

        with self._alone(self._lock):
            if self._is_ready:
                return
            if self._migrates and self.revision() != schemas.head():
                self.upgrade()
            self._run(Mode.READ, self.check)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @contextmanager
    def _alone(self, lock: threading.Lock) -> Iterator[None]:
        """Hold *lock*."""
        while not lock.acquire(blocking=False):
            self._sleep(0.002)  # in an event loop, who holds the lock may need this very thread
        try:
            yield
        finally:
            lock.release()

    def _run(self, mode: Mode, work: Callable[[Connection], T]) -> T:
        deadline = time.monotonic() + self.timeout
        tries = 0
        while True:
            try:
                return self._try(mode, work)
            except Again as again:
                tries += 1
                spent = time.monotonic() >= deadline if again.locked else tries >= TRIES
                failure = Unavailable(again.reason)
            if spent:
                raise failure
            if mode is Mode.APPEND:
                # By itself a statement runs at the isolation level that is the server's default,
                # and above READ COMMITTED whoever waited for a lock has lost: now it says its own.
                mode = Mode.WRITE
            self._sleep(random.uniform(0.001, 0.002 * 2 ** min(tries, 5)))  # noqa: S311

    def _try(self, mode: Mode, work: Callable[[Connection], T]) -> T:
        try:
            if (turn := _turn(self.engine.pool)) is None:
                return self._check_out(mode, work)
            with self._alone(turn):
                return self._check_out(mode, work)
        except self.errors as error:
            failure = self.translated(error)
        raise failure  # out here, so that the driver's error is no part of its chain

    def _check_out(self, mode: Mode, work: Callable[[Connection], T]) -> T:
        """Do *work* on a connection that is alive, as far as can be told without asking the
        server.
        """
        if self._is_closed:
            raise Unavailable("the store is closed")
        if self.engine.pool is self._left_pool:
            raise Unavailable(
                "a database in memory stays with the process that made it, and this is a fork"
                if self._is_owned
                else "this process is a fork, and the engine's connections are its parent's: "
                "call engine.dispose(close=False) first"
            )
        pool, connection = self.engine.pool, self._alive()
        try:
            outcome = self._transact(connection, mode, work)
        except BaseException:
            connection.close()
            raise
        if isinstance(outcome, _Failure):
            connection.close()
        else:
            self._give_back(connection)
        if self._is_closed and self._is_owned:
            pool.dispose()  # `close` has ended what was in it then
        if not isinstance(outcome, _Failure):
            return outcome
        try:
            raise outcome.error
        finally:
            del outcome  # else it and its traceback would hold one another

    def _alive(self) -> Connection:
        """A connection that is alive, as far as can be told without asking the server."""
        for _ in range(STALE):
            connection = self._take_kept() or self._connect()
            try:
                if not self.dialect.is_stale(connection):
                    return connection
                connection.invalidate()
            except BaseException:
                connection.close()
                raise
            connection.close()
        raise Unavailable("the server ends every connection")

    def _give_back(self, connection: Connection) -> None:
        """Keep *connection* for the next call, or give it back to its pool.

        To take one out of SQLAlchemy's pool and bring it back costs more than SQLite takes to
        append, and a third of what Postgres does. One is kept, and no more, since who waits for the
        pool sees only what comes back to it.
        """
        if not self._keeps or self._kept or self._is_closed:
            connection.close()
            return
        if connection.in_transaction():  # SQLAlchemy begins one for a read, which is over
            connection.rollback()
        self._kept.append(connection)
        if self._is_closed and (kept := self._take_kept()) is not None:
            kept.close()

    def _take_kept(self) -> Connection | None:
        """The connection that is kept, for the caller alone."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def _transact(
        self, connection: Connection, mode: Mode, work: Callable[[Connection], T]
    ) -> "T | _Failure":
        """Do *work* in the transaction that *mode* asks for.

        What it raises is given back: SQLAlchemy logs what goes wrong with the connection then,
        together with the error that is being handled, whose text quotes values.
        """
        options = self.dialect.options(connection, mode)
        if options or self._options:
            connection.execution_options(**self._options, **options)
        self._begin_work()
        try:
            with self.dialect.unprepared(connection):
                return self.dialect.run(connection, mode, self.timeout, work)
        except BaseException as error:  # noqa: BLE001 (raised when the connection is back)
            failure = _Failure(error)
        finally:
            self._end_work()
        if self._is_spoilt(connection, failure.error):
            connection.invalidate()  # it must not go back to the pool
        _let_go(failure.error)
        try:
            return failure
        finally:
            del failure  # as above

    def _begin_work(self) -> None:
        """From here on a call may be cancelled."""

    def _end_work(self) -> None:
        """From here on it may not be: a connection comes back to its pool, or is lost to it."""

    def _connect(self) -> Connection:
        """A connection of the pool."""
        try:
            return self.engine.connect()
        except TypeError:  # the drivers' answer to an option that they don't know
            fault = "has an option that the driver doesn't know"
            failure: Exception = InvalidArgument("url", fault)
        except OSError as error:  # asyncpg's, of the network
            failure = self.translated(error)
        raise failure

    def _is_spoilt(self, connection: Connection, error: BaseException) -> bool:
        """Whether *error* leaves *connection* of no use: SQLAlchemy only looks after cursors of its
        own.
        """
        cause = getattr(error, "orig", None) or error
        if connection.invalidated:
            return False
        if not isinstance(cause, self.engine.dialect.loaded_dbapi.Error):
            return self.dialect.spoils(cause)
        raw = connection.connection.dbapi_connection
        lost = self.engine.dialect.is_disconnect(cause, raw, None)
        return lost or (self.dialect.spoils(cause) and not self.is_in_memory)

    def _leave_parent(self) -> None:
        """Have nothing more to do with the connections of the process that this one is a fork of:
        what is sent on them, a goodbye too, would be taken for the parent's.
        """
        self._lock = threading.Lock()
        pool = self.engine.pool
        _left_connections.extend(self._kept)
        self._kept = []
        if self._owns_pool:
            _left_pools.append(pool)
            self.engine.dispose(close=False)
        elif not isinstance(pool, NullPool) and not _is_empty(pool):
            self._left_pool = pool


@dataclass(frozen=True, eq=False)
class _Failure:
    """What ended a piece of work."""

    error: BaseException


def _let_go(error: BaseException) -> None:
    """Where *error* ended a statement from outside, drop what the frames that it came through hold.

    There is the driver's cursor, which nobody closed: on SQLite it keeps the database locked for as
    long as it is there, even when its connection is closed.
    """
    if not isinstance(error, Exception):
        traceback.clear_frames(error.__traceback__)


_turns: WeakKeyDictionary[Pool, threading.Lock] = WeakKeyDictionary()


def _turn(pool: Pool) -> "threading.Lock | None":
    """What calls on *pool* wait for where it gives its one connection to several threads at once:
    there they would end each other's transactions.
    """
    return _turns.setdefault(pool, threading.Lock()) if isinstance(pool, StaticPool) else None


_databases: WeakSet[Database] = WeakSet()

_left_pools: list[Pool] = []
_left_connections: list[Connection] = []
"""Those of a parent, kept, since drivers close what nobody keeps."""


def _is_empty(pool: Pool) -> bool:
    return isinstance(pool, QueuePool) and pool.checkedin() + pool.checkedout() == 0


def _after_fork() -> None:
    _turns.clear()
    for database in list(_databases):
        database._leave_parent()


os.register_at_fork(after_in_child=_after_fork)


class Joined:
    """The app's own connection: what runs here is part of the app's transaction, which the app
    commits or not.
    """

    def __init__(self, database: Database, connection: Connection) -> None:
        if not isinstance(connection, Connection):
            raise InvalidArgument(
                "connection", "is a SQLAlchemy Connection; of an ORM Session, session.connection()"
            )
        if connection.closed:
            raise InvalidArgument("connection", "is closed")
        if connection.dialect.name != database.engine.dialect.name:
            raise InvalidArgument(
                "connection", "leads to another kind of database than the store's"
            )
        if not connection.invalidated and database.dialect.is_autocommit(connection):
            raise InvalidArgument("connection", "is in AUTOCOMMIT: it has no transaction to join")
        self._database = database
        self._connection = connection

    @property
    def is_in_memory(self) -> bool:
        """Whether the app's data end with its connection."""
        return self._database.dialect.is_in_memory(self._connection.engine.url)

    def run(self, call: Call[T]) -> T:
        """Do what *call* asks; a write in a savepoint, so that the app's transaction stays usable
        where it fails.
        """
        if call.work is None:
            return call.finish(None)
        found = self._run(call.mode, call.work)
        try:
            return call.finish(found)
        except Corrupt:
            if call.mode is not Mode.READ:
                raise
        return call.finish(self._run(call.mode, call.work))

    def _run(self, mode: Mode, work: Callable[[Connection], T]) -> T:
        for _ in range(TRIES):
            try:
                with self._schema():
                    return self._try(mode, work)
            except Again as again:
                failure: Exception = again
            except self._database.errors as error:
                failure = self._database.translated(error)
            except sa_exc.InvalidRequestError:
                failure = Unavailable("the app's connection or its transaction has ended")
            except BaseException as error:
                _let_go(error)
                raise
            if not isinstance(failure, Again) or failure.locked:  # the driver waited for the lock
                break
        raise Unavailable(failure.reason) if isinstance(failure, Again) else failure

    def _try(self, mode: Mode, work: Callable[[Connection], T]) -> T:
        dialect = self._database.dialect
        with dialect.unprepared(self._connection):
            self._database.check(self._connection)
            if mode in (Mode.READ, Mode.SNAPSHOT):
                return work(self._connection)
            dialect.join(self._connection)
            with self._connection.begin_nested():
                return work(self._connection)

    @contextmanager
    def _schema(self) -> Iterator[None]:
        """Our schema for our statements: options stay with a connection, and the app's statements
        are not ours.
        """
        if self._database.schema is None:
            yield
            return
        before: Any = self._connection.get_execution_options().get("schema_translate_map")
        self._connection.execution_options(schema_translate_map={None: self._database.schema})
        try:
            yield
        finally:
            self._connection.execution_options(schema_translate_map=before)
