"""The databases that the tests run on. A test that takes `backend` runs on each of them."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from sqlalchemy import URL, Engine, create_engine

from chaos import Account
from poolers import PgBouncer, as_a_host_says, pgbouncer_before
from roles import Roles, Tenancy
from servers import PostgresServer, postgres_from_wheel
from turnkeep import SQLStore

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_numbers = itertools.count()


class Backend:
    """An empty database of one kind, for one test, with stores on it and engines to look at it."""

    def __init__(self, name: str, url: URL, *, borrowed: bool) -> None:
        self.name = name
        self.url = url
        self.is_postgres = url.get_backend_name() == "postgresql"
        self._borrowed = borrowed
        self._stores: list[SQLStore] = []
        self._engines: list[Engine] = []
        self._shared: Engine | None = None

    def store(self, **options: Any) -> SQLStore:
        """A store on this database, whose tables are there."""
        if self.is_memory:
            # Two stores on a URL in memory are two databases.
            target: URL | Engine = self.url if self._shared is None else self._shared
        else:
            target = self.engine() if self._borrowed else self.url
        store = SQLStore(target, **options)
        if self.is_memory:
            self._shared = store._database.engine
        self._stores.append(store)
        if options.get("migrate") is None:
            store.upgrade()
        return store

    @property
    def is_memory(self) -> bool:
        return self.name == "memory"

    def engine(self, **options: Any) -> Engine:
        """An engine as a host would make it, with SQLAlchemy's defaults."""
        if self.is_memory:
            self.store()
            assert self._shared is not None
            return self._shared
        url, given = as_a_host_says(self.url)
        engine = create_engine(url, **(given | options))
        self._engines.append(engine)
        return engine

    def close(self) -> None:
        for store in self._stores:
            store.close()
        for engine in [*self._engines, *([self._shared] if self._shared else [])]:
            engine.dispose()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """PostgreSQL 18 from the wheel."""
    with postgres_from_wheel() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[URL]:
    """An empty database there."""
    name = f"test_{next(_numbers)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def pooler(postgres: PostgresServer) -> Iterator[PgBouncer]:
    """PgBouncer before it."""
    with pgbouncer_before(postgres) as pooler:
        yield pooler


@pytest.fixture
def pooled_url(pooler: PgBouncer, postgres_url: URL) -> URL:
    """The way to an empty database through the pooler, which has all its connections to it."""
    return pooler.opened(postgres_url)


@pytest.fixture
def roles(postgres_url: URL) -> Iterator[Roles]:
    """An empty database there, and roles that last as long."""
    made = Roles(postgres_url)
    yield made
    made.close()


@pytest.fixture
def tenancy(roles: Roles) -> Tenancy:
    """A database there with our tables under row security."""
    return Tenancy(roles)


@pytest.fixture(scope="module")
def server_database(postgres: PostgresServer) -> Iterator[URL]:
    """A database there for all tests of a module, which leave in it what they like."""
    name = f"module_{next(_numbers)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> URL:
    """A SQLite file that is not there yet."""
    return URL.create("sqlite", database=str(tmp_path / "chats.db"))


BACKENDS = ["sqlite", "memory", "borrowed", "postgres"]
ALSO_POOLED = pytest.mark.parametrize(
    "server_or_file", ["sqlite", "postgres", "pooler"], indirect=True
)
"""For tests with `server_or_file` that are to run through a pooler too."""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty database of each kind; `borrowed` is a SQLite engine of the host's."""
    yield from _backend(request)


@pytest.fixture(params=BACKENDS, scope="module")
def shared_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SQLStore]:
    """A store on each kind of database for all tests of a module: each takes its own namespace.

    A module whose tests are to run through a pooler too has a fixture of this name of its own.
    """
    yield from open_shared(request, tmp_path_factory)


def open_shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SQLStore]:
    """What `shared_store` is, for the kind of database that *request* has as its parameter."""
    name = request.param
    if name in ("postgres", "pooler"):
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.create_database(f"shared_{next(_numbers)}")
        if name == "pooler":
            url = request.getfixturevalue("pooler").opened(url)
    else:
        path = None if name == "memory" else str(tmp_path_factory.mktemp("shared") / "chats.db")
        url = URL.create("sqlite", database=path)
    backend = Backend(name, url, borrowed=name == "borrowed")
    yield backend.store()
    backend.close()
    if backend.is_postgres:
        server.drop_database(url.database or "")


@pytest.fixture(params=["sqlite", "postgres"])
def server_or_file(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty database that several processes can use."""
    yield from _backend(request)


@pytest.fixture
def account(record_property: Callable[[str, object], None]) -> Account:
    """What writers were told; its sum is printed behind the tests."""
    return Account(lambda told: record_property("chaos", told))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What the chaos tests and the fuzz counted."""
    told = [
        (name, report.nodeid.partition("::")[2], value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, value in report.user_properties
    ]
    chaos = sorted(f"{test}: {value}" for name, test, value in told if name == "chaos")
    fuzz = [value for name, _, value in told if name == "fuzz"]
    if fuzz:
        from doors import fuzz_table

        fuzz = list(fuzz_table(fuzz))
    for title, lines in (("chaos", chaos), ("fuzz", fuzz)):
        if lines:
            terminalreporter.section(title)
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def store(backend: Backend) -> SQLStore:
    """A store on an empty database of each kind."""
    return backend.store()


def _backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    name = request.param
    if name == "postgres":
        url = request.getfixturevalue("postgres_url")
    elif name == "pooler":
        url = request.getfixturevalue("pooled_url")
    elif name == "memory":
        url = URL.create("sqlite")
    else:
        url = request.getfixturevalue("sqlite_url")
    backend = Backend(name, url, borrowed=name == "borrowed")
    yield backend
    backend.close()
