"""A pooler before Postgres, such as PgBouncer, which gives each transaction another connection to
the server.

Nothing of ours outlives its transaction, but for what the drivers do by themselves: they prepare
statements. Each client numbers its own, so on another connection to the server the name that it
gave to a SELECT may be another client's DELETE, which nobody notices where both take the same
parameters. So behind a pooler nothing is prepared, unless the URL asks for it.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from uuid import uuid4

from sqlalchemy import URL, Connection

from turnkeep.errors import InvalidArgument

OPTION = "prepare_threshold"

_KEY = "turnkeep behind a pooler"
_NOTHING = nullcontext()

# A statement without a name asyncpg sends anew each time, together with its values, and no pooler
# parts the two.
_ASYNCPG_NEVER: Mapping[str, Any] = {
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
    "prepared_statement_name_func": lambda: "",
}
# All others it prepares beforehand. By a name that nobody else has, a connection that doesn't know
# it refuses, and runs nothing else. (The cache is asyncpg's own, whose names are numbers;
# SQLAlchemy's is another.)
_ASYNCPG_NAMES: Mapping[str, Any] = {
    "statement_cache_size": 0,
    "prepared_statement_name_func": lambda: f"turnkeep_{uuid4().hex}",
}


def threshold(url: URL) -> Mapping[str, int | None]:
    """What *url* says about preparing, as an argument of psycopg's, which takes no text.

    Raises:
        InvalidArgument: it is neither a number nor none.
    """
    if OPTION not in url.query:
        return {}
    given = url.query[OPTION]
    if isinstance(given, str) and given.isascii() and given.isdigit():
        return {OPTION: int(given)}
    if isinstance(given, str) and given.lower() == "none":
        return {OPTION: None}
    raise InvalidArgument("url", f"has a {OPTION} that is neither a number nor none")


def asyncpg_arguments(url: URL) -> Mapping[str, Any]:
    """The same as arguments of asyncpg's and of SQLAlchemy's for it. It knows only always and
    never.
    """
    given = threshold(url)
    return _ASYNCPG_NEVER if given and given[OPTION] is None else _ASYNCPG_NAMES


def unprepared(connection: Connection) -> AbstractContextManager[None]:
    """Have psycopg prepare nothing on *connection* meanwhile, where a pooler is in between.

    It asks once for each connection of the driver's. An engine whose URL says a number may prepare.
    """
    is_mixed: bool | None = connection.info.get(_KEY)
    if is_mixed is False:
        return _NOTHING
    driver: Any = connection.connection.driver_connection
    if getattr(driver, OPTION, None) is None:  # it is turned off, or the driver is another
        return _NOTHING
    if is_mixed is None:
        is_mixed = OPTION not in connection.engine.url.query and _is_pooled(connection, driver)
        connection.info[_KEY] = is_mixed
    return _turned_off(driver) if is_mixed else _NOTHING


@contextmanager
def _turned_off(driver: Any) -> Iterator[None]:
    before, driver.prepare_threshold = driver.prepare_threshold, None
    try:
        yield
    finally:
        driver.prepare_threshold = before


def _is_pooled(connection: Connection, driver: Any) -> bool:
    """Whether the process that serves is another than the one that was told at the connect: there a
    pooler makes up a number.
    """
    cursor = connection.connection.cursor()
    try:
        with _turned_off(driver):
            cursor.execute("SELECT pg_catalog.pg_backend_pid()")
            [(pid,)] = cursor.fetchall()
    finally:
        cursor.close()
    return bool(pid != driver.info.backend_pid)
