"""From a URL to an engine that a store owns.

URLs come in the spellings that people and hosting platforms use: `postgres://` and `postgresql://`
mean psycopg 3, and a driver of the other kind, asyncpg for a sync store, is replaced by the one
that serves. A URL may hold a password, so no error repeats any of it, nor has in its chain one that
does.

The options behind the `?` go to the driver: for Postgres the parameters of libpq's connection
strings (`sslmode`, `connect_timeout`, `options`, `application_name`, …), for SQLite `timeout`, and
with `uri=true` those of its file URIs (`mode=ro`, `immutable=1`, …). One more is
`prepare_threshold`, psycopg's: after how many runs a statement is prepared on the server. `none` is
never, which a pooler needs that gives each transaction another server connection:
`postgresql://user:password@pooler/app?prepare_threshold=none`. asyncpg takes `none` too; with a
number, or without, it prepares all.
"""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar, cast

import platformdirs
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy import exc as sa_exc

from turnkeep import logs
from turnkeep.dialect import DIALECTS
from turnkeep.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:  # importing it needs greenlet, and takes long
    from sqlalchemy.ext.asyncio import AsyncEngine

AnyEngine = TypeVar("AnyEngine", Engine, "AsyncEngine")

DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "postgresql+psycopg_async": "postgresql+psycopg",
    "sqlite": "sqlite+pysqlite",
    "sqlite+aiosqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
}
"""The driver that a sync store uses for each scheme of a URL."""

ASYNC_DRIVERS = {
    scheme: scheme if scheme == "postgresql+asyncpg" else driver.replace("psycopg", "psycopg_async")
    for scheme, driver in DRIVERS.items()
}
"""The driver that an async store uses for each scheme of a URL: SQLite's own in threads."""


def default_url() -> str | URL:
    """The database where none is named: TURNKEEP_URL, else a SQLite file of the user's.

    The file lies in the user's data directory, which is made so that nobody else can read it.

    Raises:
        Unavailable: that directory can't be made.
    """
    if url := os.environ.get("TURNKEEP_URL"):
        return url
    folder = platformdirs.user_data_path("turnkeep", appauthor=False)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        raise Unavailable("the user's data directory can't be made: set TURNKEEP_URL") from None
    return URL.create("sqlite", database=str(folder / "turnkeep.db"))


def parse_url(given: str | URL, drivers: Mapping[str, str] = DRIVERS) -> URL:
    """The URL that *given* means, with one of the *drivers*.

    Raises:
        InvalidArgument: it is no URL of a database that turnkeep works with.
    """
    url = _read(given)
    if url is None:
        raise InvalidArgument(
            "url",
            "is a URL such as sqlite:///chats.db or postgresql://user:password@host/name, "
            "or a SQLAlchemy Engine: an AsyncEngine for AsyncSQLStore",
        )
    if url.drivername.startswith("postgresql+psycopg2"):
        raise InvalidArgument("url", "psycopg2 is not supported: write postgresql+psycopg://")
    if url.drivername not in DRIVERS:
        raise InvalidArgument(
            "url", "this database or driver is not supported: SQLite and Postgres are"
        )
    if url.get_backend_name() == "sqlite":
        if url.username or url.password or url.host or url.port:
            raise InvalidArgument(
                "url", "has three slashes before the path of a SQLite file, four if it is absolute"
            )
    elif _has_bare_at(given, url):
        # What follows it would be taken for the host, and the driver logs those.
        raise InvalidArgument("url", "has more than one @: in the user and password it is %40")
    return url.set(drivername=drivers[url.drivername])


def open_engine(given: str | URL, *, timeout: float) -> Engine:
    """An engine for *given*, set up for a store that owns it.

    Args:
        given: the URL.
        timeout: seconds to wait for a connection, and on SQLite for the lock.

    Raises:
        InvalidArgument: the URL is none that works here, or its driver is not installed.
    """
    return _open(create_engine, parse_url(given), timeout, "turnkeep[postgres]")


def open_async_engine(given: str | URL, *, timeout: float) -> "AsyncEngine":
    """As `open_engine`, for an async store on a server."""
    url = parse_url(given, ASYNC_DRIVERS)
    try:
        import_module("greenlet")
    except ImportError:
        fault = "greenlet is not installed: pip install 'turnkeep[async]'"
        raise InvalidArgument("url", fault) from None
    from sqlalchemy.ext.asyncio import create_async_engine

    driver = url.get_driver_name()
    package = "turnkeep[async,postgres]" if driver == "psycopg_async" else driver
    return _open(create_async_engine, url, timeout, package)


def _open(create: Callable[..., AnyEngine], url: URL, timeout: float, package: str) -> AnyEngine:
    dialect = DIALECTS[url.get_backend_name()]
    try:
        url, options = dialect.engine_arguments(url, timeout)
        # Parameters are message content: SQLAlchemy would put them into its errors and logs.
        names = {"logging_name": logs.NAME, "pool_logging_name": logs.NAME}
        engine = create(url, hide_parameters=True, **names, **options)
    except InvalidArgument:
        raise
    except ImportError:
        fault = f"its driver is not installed: pip install '{package}'"
    except (sa_exc.ArgumentError, TypeError, ValueError):
        fault = "SQLAlchemy can't use it: look at its path and options"
    else:
        sync = cast("Engine", getattr(engine, "sync_engine", engine))
        logs.hide(sync)
        dialect.configure(sync, timeout)
        return engine
    raise InvalidArgument("url", fault)


def check_timeout(timeout: float) -> None:
    """Raise InvalidArgument unless *timeout* is a number of seconds."""
    if type(timeout) not in (int, float) or not 0 <= timeout < 1e6:
        raise InvalidArgument("timeout", "is a number of seconds, from 0 up")


def _read(given: str | URL) -> URL | None:
    """None where *given* is no URL: the error that says so may quote it."""
    try:
        return make_url(given)
    except (sa_exc.ArgumentError, ValueError, TypeError, AttributeError):
        return None


def _has_bare_at(given: str | URL, url: URL) -> bool:
    place = given.partition("?")[0] if isinstance(given, str) else ""
    return place.count("@") > 1 or "@" in (url.host or "")
