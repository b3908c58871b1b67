"""What a database must do for the store, whichever of the two it is.

`sqlite` and `postgres` beside this module hold all that the two do differently; no other module
names a database.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.schema import ExecutableDDLElement

from turnkeep.lifting import Lifted
from turnkeep.prepared import Prepared

T = TypeVar("T")

Parameters = Mapping[str, object]


class Row(NamedTuple):
    """What an entry is in its table, but for its place there."""

    type: str
    key: str | None
    recorded_at: str | None
    payload: str
    attachments: tuple[Lifted, ...]


class AttachmentRow(NamedTuple):
    """What an attachment is in its table, but for its session."""

    position: int
    ordinal: int
    path: str
    digest: bytes
    mime: str | None
    filename: str | None


class Mode(Enum):
    """What a piece of work needs of its transaction."""

    READ = "reads, each of the state of its moment"
    SNAPSHOT = "reads of one state"
    APPEND = "writes, all or nothing, which are one statement where the database has such a one"
    WRITE = "writes, all or nothing, in several statements"
    MIGRATION = "writes, and no other migration at the same time"


class Again(Exception):
    """The transaction is undone for a reason that passes: run the work again from its start.

    It never reaches a caller.

    *locked*: others hold a lock, so the timeout bounds the tries; else a small number does.
    """

    def __init__(self, reason: str, *, locked: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.locked = locked


class Dialect(Protocol):
    """One of the two databases."""

    def options(self, connection: Connection, mode: Mode) -> dict[str, Any]:
        """The execution options that *connection* lacks for work of *mode*."""

    migrates: ClassVar[bool]
    """Whether a store that opened the database itself may upgrade it without being asked."""

    in_threads: ClassVar[bool]
    """Whether a database that an async store opened itself does the work in the thread that asks,
    so that there is no server to wait for.
    """

    drivers: ClassVar[AbstractSet[str]]
    """Those whose cursors and errors are known here, by SQLAlchemy's names."""

    turn: ClassVar[float]
    """For how many seconds at the least who writes much has to pause between two transactions, so
    that all others get their turn: they look now and then whether the database is free. 0 where a
    write keeps nobody out.
    """

    new_session: ClassVar[Prepared]
    """Inserts a session's row unless there is one; gives its id, or no row."""

    new_blob: ClassVar[Prepared]
    """Inserts a blob unless its digest is there."""

    def errors(self, dbapi: Any) -> tuple[type[Exception], ...]:
        """What the driver raises, whose module is *dbapi* to SQLAlchemy."""

    def check_schema(self, schema: str | None) -> None:
        """Raise InvalidArgument where *schema* can't be the name of one."""

    def engine_arguments(self, url: URL, timeout: float) -> tuple[URL, dict[str, Any]]:
        """What `create_engine` is given for an engine of our own: a URL and options."""

    def configure(self, engine: Engine, timeout: float) -> None:
        """Set up the connections of an engine of our own."""

    def run(
        self,
        connection: Connection,
        mode: Mode,
        timeout: float,
        work: Callable[[Connection], T],
    ) -> T:
        """Begin as *mode* asks, do *work*, commit, and give what it gave; undo all on an exception.

        In the mode APPEND no statement is run but by `Prepared`.
        """

    def begin_migration(self, connection: Connection) -> None:
        """Keep other migrations out till the transaction on *connection* ends, and make the schema
        that it names where there is none.
        """

    def check_roles(self) -> None:
        """Raise InvalidArgument where there are no roles to give rights to."""

    def row_security(self) -> Sequence[ExecutableDDLElement]:
        """The statements that turn row security on for every table, or InvalidArgument where there
        is none.
        """

    def secure_rows(self, connection: Connection, *, on: bool | None) -> None:
        """Turn row security on or off where it isn't; None is on for all tables where it is on for
        one.
        """

    def check_whole(self, connection: Connection, namespace: str | None, *, deletes: bool) -> None:
        """Raise Unavailable where the role on *connection* may not see all rows of *namespace*, or
        of all for None, or *deletes* and may not delete them.
        """

    def check_cascades(self, connection: Connection) -> None:
        """Raise SchemaError where a migration that rebuilds a table would lose what hangs on it."""

    def join(self, connection: Connection) -> None:
        """Make sure that the app's transaction on *connection* has begun, before something is
        written in it.
        """

    def instant(self, value: datetime) -> object:
        """An aware datetime as the driver takes it."""

    def is_autocommit(self, connection: Connection) -> bool:
        """Whether *connection* has no transactions that one could join."""

    def is_stale(self, connection: Connection) -> bool:
        """Whether the server ended the connection while it lay idle, as far as can be told without
        asking it.
        """

    def unprepared(self, connection: Connection) -> AbstractContextManager[None]:
        """Have the driver prepare no statements on *connection* meanwhile, where they would be
        mixed up with those of others.
        """

    def is_in_memory(self, url: URL) -> bool:
        """Whether the database of *url* lasts no longer than the connection to it."""

    def spoils(self, error: BaseException) -> bool:
        """Whether a connection is of no use after *error*, beyond those that are lost."""

    def now(self, connection: Connection) -> datetime:
        """The time by the clock that `updated_at` is set by."""

    def append(
        self, connection: Connection, session: Parameters, row: Row, expected: int | None
    ) -> int | None:
        """Write the next entry; its position, or None where there is no such session, the key is
        known, or the last position is not as expected.
        """

    def extend(
        self, connection: Connection, session: Parameters, rows: Sequence[Row], expected: int | None
    ) -> int | None:
        """Write the next entries, whose times rise; the last position, or None as `append`. Keys
        are taken for new.
        """

    def attach(
        self, connection: Connection, session: Parameters, places: Sequence[AttachmentRow]
    ) -> None:
        """Write what was lifted out of entries, in this order."""

    def translate(self, error: BaseException) -> Exception:
        """The TurnkeepError that the driver's *error* means, or Again. Its own text quotes values
        and is left behind.
        """
