"""The async store: the contract on each async driver, and what only an event loop can do to it."""

import asyncio
import base64
import contextlib
import gc
import inspect
import itertools
import logging
import random
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
import sqlalchemy
from sqlalchemy import (
    URL,
    AsyncAdaptedQueuePool,
    Engine,
    NullPool,
    create_engine,
    event,
    text,
)
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import forking
from poolers import as_a_host_says
from servers import PostgresServer
from turnkeep import (
    AsyncLoader,
    AsyncSession,
    AsyncSQLStore,
    AsyncStore,
    Conflict,
    Entry,
    Header,
    History,
    InvalidArgument,
    Loader,
    Message,
    MessageEntry,
    SchemaError,
    Session,
    SQLStore,
    Store,
    Unavailable,
    UnknownSession,
)
from turnkeep.testing import Blocking, StoreContract

T = TypeVar("T")

_numbers = itertools.count()

DRIVERS = {
    "aiosqlite": "sqlite+aiosqlite",
    "psycopg": "postgresql+psycopg_async",
    "asyncpg": "postgresql+asyncpg",
}
POOLED = ["pooled psycopg", "pooled asyncpg"]
"""The same through a pooler. It has the contract in each run, the rest in a long one."""

ALL = [*DRIVERS, *(pytest.param(name, marks=pytest.mark.slow) for name in POOLED)]


class Place:
    """A database for one async driver, and a namespace in it."""

    def __init__(self, driver: str, url: URL, namespace: str = "") -> None:
        self.driver = driver
        self.url = url
        self.namespace = namespace

    def engine(self, **options: Any) -> AsyncEngine:
        """An engine as a host would make it, but that SQLite doesn't wait for the disk."""
        url, arguments = as_a_host_says(self.url)
        given = (
            {"poolclass": AsyncAdaptedQueuePool} | arguments | options
        )  # not the default before 2.0.38
        engine = create_async_engine(url, **given)
        if self.driver == "aiosqlite":

            @event.listens_for(engine.sync_engine, "connect")
            def set_up(connection: Any, _: object) -> None:
                cursor = connection.cursor()
                cursor.execute("PRAGMA synchronous = OFF")
                cursor.close()

        return engine

    def store(self, target: AsyncEngine | None = None, **options: Any) -> AsyncSQLStore:
        """A store of its own engine, or of *target*, which makes the tables at first use."""
        given: dict[str, Any] = {"namespace": self.namespace, "migrate": True} | options
        return AsyncSQLStore(target or self.url, **given)

    @property
    def sync_url(self) -> URL:
        is_file = self.driver == "aiosqlite"
        return self.url.set(drivername="sqlite" if is_file else "postgresql+psycopg")

    def sync_store(self, target: Engine | None = None, **options: Any) -> SQLStore:
        return SQLStore(target or self.sync_url, namespace=self.namespace, **options)


@contextmanager
def open_place(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """An empty database."""
    driver = kind.removeprefix("pooled ")
    if driver == "aiosqlite":
        yield Place(driver, URL.create(DRIVERS[driver], database=str(folder / "chats.db")))
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = f"async_{next(_numbers)}"
    url = server.create_database(name)
    if kind in POOLED:
        url = request.getfixturevalue("pooler").opened(url)
    yield Place(driver, url.set(drivername=DRIVERS[driver]))
    server.drop_database(name)


@pytest.fixture(scope="module", params=ALL)
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A database for each driver, with the tables."""
    with open_place(request.param, tmp_path_factory.mktemp("async"), request) as place:
        with place.sync_store() as store:
            store.upgrade()
        yield place


@pytest.fixture
def place(database: Place) -> Place:
    """A new namespace in it."""
    return Place(database.driver, database.url, f"test {next(_numbers)}")


@pytest.fixture(params=ALL)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty database for each driver."""
    with open_place(request.param, tmp_path, request) as place:
        yield place


@pytest.fixture(params=ALL[1:])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty database on a server, for each driver."""
    with open_place(request.param, tmp_path, request) as place:
        yield place


_complaints: list[object] = []
_runs: list[object] = []


@pytest.fixture(autouse=True)
def _no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Drivers, pools and loops tell what went wrong behind everyone, some when it is collected."""
    _complaints.clear()
    yield
    if _runs:
        gc.collect()
        _runs.clear()
    told = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert told + _complaints == []


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    """What there is before these tests need not be collected after each of them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run *main* on a loop of its own."""
    _runs.append(main)
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: _complaints.append(context))
        return runner.run(main())


def header(id: str = "s1", **fields: Any) -> Header:
    given = {"id": id, "cwd": "/w", "created_at": "2026-11-30T12:00:00Z", "model": "m"}
    return Header(**(given | fields))


def message(content: str) -> MessageEntry:
    return MessageEntry({"role": "user", "content": content})


def picture(content: str) -> MessageEntry:
    data = base64.b64encode(content.encode() * 100).decode()
    files = [{"media_type": "image/png", "data": data}]
    return MessageEntry({"role": "user", "content": "", "files": files})


# ------------------------------------------------------------------------------- the contract


BORROWED = {"borrowed": "psycopg", "borrowed aiosqlite": "aiosqlite"}


@pytest.fixture(scope="module", params=[*DRIVERS, *POOLED, "memory", *BORROWED])
def blocking(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Blocking]:
    """A store for each driver, one in memory, and those on a host's engine, for sync callers."""
    kind = {"memory": "aiosqlite", **BORROWED}.get(request.param, request.param)
    with open_place(kind, tmp_path_factory.mktemp("async"), request) as place:
        if request.param in BORROWED:
            engine = place.engine()

            async def make() -> AsyncSQLStore:
                return AsyncSQLStore(engine, migrate=True)

            with Blocking(make) as store:
                yield store
                store._run(engine.dispose)
        else:
            url: Any = "sqlite://" if request.param == "memory" else place.url
            with Blocking(lambda: AsyncSQLStore(url, migrate=True)) as store:
                yield store


class TestAsyncSQLStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, blocking: Blocking) -> None:
        self.store = blocking

    def make_store(self) -> Store:
        store: Store = self.store.with_namespace(f"law {next(_numbers)}")
        return store


PAIRS = [
    (SQLStore, AsyncSQLStore),
    (Store, AsyncStore),
    (Loader, AsyncLoader),
    (Session, AsyncSession),
]
NOT_AWAITED = {"with_namespace", "using", "verify"}


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda cls: cls.__name__)
def test_async_classes_have_the_methods_and_signatures_of_the_sync_ones(
    sync: type, asynchronous: type
) -> None:
    def signatures(cls: type) -> dict[str, object]:
        found: dict[str, object] = {}
        for name in ["__init__", *(name for name in dir(cls) if not name.startswith("_"))]:
            member = inspect.getattr_static(cls, name)
            if isinstance(member, property):
                found[name] = "property"
            elif callable(member):
                told = str(inspect.signature(member)).replace("'", "")
                bare = re.sub(r"\b(?:\w+\.)+(?=\w)", "", told)  # without modules
                found[name] = re.sub(r"\bAsync(?=[A-Z])", "", bare)
        return found

    assert signatures(sync) == signatures(asynchronous)
    for name, found in signatures(sync).items():
        if name != "__init__" and found != "property" and sync is not Store:
            awaited = inspect.iscoroutinefunction(getattr(asynchronous, name))
            assert awaited is (name not in NOT_AWAITED), name


def test_the_rest_of_the_methods_do_what_the_sync_ones_do(blocking: Blocking) -> None:
    """What the contract doesn't know, in short: by the sync store it has tests of its own."""
    store = blocking.with_namespace("rest")
    entries = [header(), message("a"), picture("b"), message("c")]
    assert store.extend("s1", entries[:2], idempotency_keys=[None, "k"]) == 1
    assert store.append("s1", entries[1], idempotency_key="k") == 1
    with pytest.raises(Conflict):
        store.append("s1", message("other"), idempotency_key="k")
    with pytest.raises(Conflict):
        store.append("s1", message("d"), expected_position=0)
    assert store.extend("s1", entries[2:], expected_position=1) == 3
    assert store.tail("s1", 2) == entries[2:]
    page = store.page("s1", after=0, limit=2)
    assert (page.entries, page.next_after, page.next_before) == (entries[1:3], 2, 1)
    [info] = store.attachments("s1")
    assert (info.position, info.mime, info.size) == (2, "image/png", 100)
    found = store.get("s1")
    assert (found, found.last_position) == (entries[0], 3)
    assert store.list("/w", limit=1, before=found) == []
    history = store.export_history("s1")
    assert [m.content for m in history.messages] == ["a", "", "c"]
    assert store.import_history(history, cwd="/w", id="s2") == "s2"
    assert store.export_history("s2") == history
    assert [store.delete("s1"), store.delete("s1")] == [True, False]
    assert [h.id for h in store.list()] == ["s2"]
    assert store.revision() == "0001"
    store.upgrade()
    store.check()
    store.close()
    assert "s2" not in repr(store)


# ------------------------------------------------------------------------------ the host's own


@pytest.mark.parametrize("is_owned", [False, True], ids=["on its engine", "by URL"])
def test_the_apps_transaction_takes_the_store_with_it(place: Place, is_owned: bool) -> None:
    async def main() -> None:
        engine, app = place.engine(), f"app_{next(_numbers)}"
        store = place.store(None if is_owned else engine)
        await store.upgrade()
        async with engine.connect() as connection:
            async with connection.begin():
                await connection.execute(text(f"CREATE TABLE {app} (name text)"))
            for ends in (connection.rollback, connection.commit):
                await connection.execute(text(f"INSERT INTO {app} VALUES ('a')"))
                joined = store.using(connection)
                await joined.append("s1", header())
                with pytest.raises(UnknownSession):
                    await joined.append("s2", message("a"))
                await joined.append("s1", picture("b"))
                assert await joined.read("s1") == [header(), picture("b")]
                await ends()
                rows = (await connection.execute(text(f"SELECT * FROM {app}"))).all()
                assert bool(rows) is bool(await joined.read("s1"))
                await connection.commit()
            assert await joined.read("s1") == [header(), picture("b")]
            await joined.close()
            await connection.commit()
        with pytest.raises(InvalidArgument, match="has begun"):
            store.using(engine.connect())
        assert await store.read("s1") == [header(), picture("b")]
        await store.close()
        await engine.dispose()

    run(main)


def test_a_delete_on_the_host_s_engine_leaves_no_row(place: Place) -> None:
    """Whether or not its connections enforce foreign keys: on SQLite they don't, unless told."""

    async def main() -> list[int]:
        engine = place.engine()
        store = place.store(engine)
        await store.extend("s1", [header(), picture("a"), message("b"), picture("c")])
        assert await store.delete("s1")
        tables = ("sessions", "entries", "attachments", "blobs")
        left = "SELECT count(*) FROM turnkeep_{} WHERE namespace = :ns"
        async with engine.connect() as connection:
            found = [
                await connection.scalar(text(left.format(t)), {"ns": place.namespace})
                for t in tables
            ]
        await engine.dispose()
        return found

    assert run(main) == [0, 0, 0, 0]


def test_an_engine_of_the_other_kind_is_refused_by_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    sync, other = create_engine(url), create_async_engine(url.replace("sqlite", "sqlite+aiosqlite"))
    with pytest.raises(InvalidArgument, match="AsyncEngine"):
        AsyncSQLStore(sync)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="AsyncSQLStore takes it"):
        SQLStore(other.sync_engine)
    with pytest.raises(InvalidArgument, match="AsyncEngine"):
        SQLStore(other)  # type: ignore[arg-type]
    store = AsyncSQLStore(url)
    for connection in (None, sync.connect()):
        with connection or contextlib.nullcontext(), pytest.raises(InvalidArgument):
            store.using(connection)  # type: ignore[arg-type]
    sync.dispose()


def test_a_server_that_is_away_is_unavailable_and_no_password_is_told(place: Place) -> None:
    if place.driver == "aiosqlite":
        url = place.url.set(database="/no/such/folder/chats.db")
    else:
        url = place.url.set(port=1, password="hush")
    run(partial(refused, url))


@pytest.mark.parametrize("what", ["password", "username", "database"])
def test_a_server_that_refuses_is_unavailable_and_no_password_is_told(
    server: Place, what: str
) -> None:
    given: dict[str, Any] = {"password": "hush", what: "hush"}
    run(partial(refused, server.url.set(**given)))


async def refused(url: URL) -> None:
    async with AsyncSQLStore(url, timeout=5) as store:
        with pytest.raises(Unavailable) as caught:
            await store.list()
        assert "hush" not in repr(caught.getrepr(style="long"))
        assert caught.value.__cause__ is caught.value.__context__ is None


def test_tables_that_are_not_there_are_a_schema_error(empty: Place) -> None:
    async def main() -> None:
        async with empty.store(migrate=False) as store:
            with pytest.raises(SchemaError, match="turnkeep db upgrade"):
                await store.list()
            assert await store.revision() is None

    run(main)


def test_a_connection_that_the_server_ended_is_replaced(server: Place) -> None:
    async def main() -> None:
        async with server.store() as store:
            await store.append("s1", header())
            with server.sync_store() as other, other._database.engine.connect() as connection:
                connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                )
            await asyncio.sleep(0.1)
            assert await store.append("s1", message("a")) == 1

    run(main)


# -------------------------------------------------------------------------------- one event loop


def test_many_tasks_may_use_an_empty_database_first(empty: Place) -> None:
    async def main() -> None:
        async with empty.store() as store:
            ids = [f"s{number:02}" for number in range(20)]
            await asyncio.gather(*[store.append(id, header(id)) for id in ids])
            assert sorted(h.id for h in await store.list()) == ids

    run(main)


def test_the_loop_goes_on_while_a_call_waits_for_a_lock(place: Place) -> None:
    async def main() -> None:
        async with place.store() as store:
            await store.append("s1", header())
            engine = place.engine()
            async with engine.connect() as connection:
                await place.store(engine).using(connection).append("s1", message("a"))
                waiting = asyncio.create_task(store.append("s1", message("b")))
                for _ in range(20):
                    await asyncio.sleep(0.001)
                assert not waiting.done()
                assert await store.read("s1") == [header()]
                await connection.commit()
            assert await waiting == 2
            await engine.dispose()

    run(main)


@pytest.mark.parametrize(
    ("kind", "way"), [("pool of 2", "timeout"), ("pool of 2", "scope"), ("owned", "scope")]
)
def test_a_cancelled_write_is_there_or_not_and_the_pool_is_whole(
    place: Place, kind: str, way: str
) -> None:
    outcomes: dict[int, bool] = {}
    span = 0.01  # follows what a write takes, so that about every other one is cancelled

    def session(number: int) -> list[Entry]:
        rest = [message("a")] if number % 2 else [picture(str(number)), message("a"), picture("b")]
        return [header(f"s{number}"), *rest]

    async def write(store: AsyncSQLStore, numbers: Iterator[int]) -> None:
        nonlocal span
        while [*outcomes.values()].count(False) < 50:
            number = next(numbers)
            entries = session(number)
            async with cancelled_after(random.uniform(0, span), way) as outcome:
                if number % 4 == 3:  # a write of a single statement, behind a session that is there
                    await store.append("single", message(f"s{number}"))
                else:
                    await store.extend(f"s{number}", entries)
            outcomes[number] = outcome.is_done
            span *= 0.9 if outcome.is_done else 1.1
            async with cancelled_after(random.uniform(0, span), way):
                await store.list()

    async def main() -> None:
        pool_of_2 = {"pool_size": 2, "max_overflow": 0}
        engine = place.engine(**pool_of_2) if kind == "pool of 2" else None
        store = place.store(engine)
        await store.append("single", header("single"))
        numbers = itertools.count()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(write(store, numbers))
        await settled(store)
        pool: Any = store._database.engine.pool
        assert pool.checkedout() == 0
        assert pool.checkedin() <= pool.size()
        found = await asyncio.gather(*[store.read(f"s{number}") for number in outcomes])
        single = {entry.message["content"] for entry in await store.tail("single", 10_000)}  # type: ignore[attr-defined]
        for (number, is_done), entries in zip(outcomes.items(), found, strict=True):
            if number % 4 == 3:
                assert not is_done or f"s{number}" in single
            else:
                assert entries == session(number) or (entries == [] and not is_done)
        assert len(single) == (await store.get("single")).last_position  # type: ignore[union-attr]
        await store.close()
        if engine is not None:
            await engine.dispose()

    run(main)


def test_what_a_cancelled_call_held_is_free_when_it_has_ended(place: Place) -> None:
    """Though nothing has been collected: a driver's cursor can be left in a frame."""

    async def delete(store: AsyncSQLStore) -> None:
        async with cancelled_after(random.uniform(0, 0.05), "scope"):
            for number in range(8):
                await store.delete(f"s{number}")

    async def main() -> None:
        engine = place.engine()
        store, other = place.store(engine), place.sync_store(timeout=5)
        await store.list()
        try:
            for turn in range(30):
                for number in range(8):
                    other.extend(f"s{number}", [header(f"s{number}"), picture("a"), picture("b")])
                if turn % 2:
                    async with engine.connect() as connection:
                        await delete(store.using(connection))
                    if sqlalchemy.__version__.startswith("2.0"):
                        gc.collect()  # a connection of the app's is in a cycle there
                else:
                    await delete(store)
                await settled(store)
                for number in range(8):
                    other.delete(f"s{number}")
        finally:
            other.close()
            await engine.dispose()

    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


WAYS = pytest.mark.parametrize("way", ["timeout", "scope"])


@WAYS
def test_a_cancelled_import_has_ended_when_the_app_has_its_connection_again(
    place: Place, tmp_path: Path, way: str
) -> None:
    """So the app's commit stores all of it or nothing."""
    folder = tmp_path / "history"
    said = [Message(id=f"{number}", role="user", content="x" * 1000) for number in range(500)]
    History(messages=tuple(said)).save(folder)

    async def main() -> None:
        engine = place.engine()
        store = place.store(engine)
        await store.list()
        for turn in range(20):
            async with engine.connect() as connection:
                await connection.begin()
                async with cancelled_after(random.uniform(0, 0.1), way) as outcome:
                    await store.using(connection).import_folder(folder, cwd="/w", id=f"s{turn}")
                assert asyncio.all_tasks() == {asyncio.current_task()}
                if not connection.invalidated:
                    await connection.commit()
            count = len(await store.read(f"s{turn}"))
            assert count == 501 or (count == 0 and not outcome.is_done)
        await engine.dispose()

    run(main)


@WAYS
def test_a_cancelled_call_of_a_session_has_ended_when_the_app_has_its_connection_again(
    place: Place, way: str
) -> None:
    async def main() -> None:
        engine = place.engine()
        store = place.store(engine)
        for _ in range(20):
            async with engine.connect() as connection:
                await connection.begin()
                session = await AsyncLoader("/w", store=store.using(connection)).start("small")
                async with cancelled_after(random.uniform(0, 0.01), way):
                    await session.add_message({"role": "user", "content": "x" * 100_000})
                assert asyncio.all_tasks() == {asyncio.current_task()}
                await connection.rollback()
        assert await store.list() == []
        await engine.dispose()

    run(main)


async def settled(store: AsyncSQLStore) -> None:
    """Wait for what goes on behind callers who were cancelled."""
    while store._database.under_way:
        await asyncio.sleep(0.001)


class Outcome:
    is_done = False


@asynccontextmanager
async def cancelled_after(seconds: float, way: str) -> AsyncIterator[Outcome]:
    """Cancel what runs inside after some *seconds*, as asyncio does it or as anyio does."""
    outcome = Outcome()
    if way == "scope":
        with anyio.move_on_after(seconds):
            yield outcome
            outcome.is_done = True
    else:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                yield outcome
                outcome.is_done = True


@pytest.mark.parametrize("way_of_connection", ["from the server", "to the pool"])
def test_a_connection_on_its_way_is_not_stopped_by_a_cancelled_caller(
    place: Place, way_of_connection: str
) -> None:
    async def main() -> None:
        engine = place.engine(pool_size=1, max_overflow=0)
        stopped, may_go_on = asyncio.Event(), asyncio.Event()
        may_go_on.set()

        async def pass_by(_: object) -> None:
            stopped.set()
            await may_go_on.wait()

        name = "connect" if way_of_connection == "from the server" else "reset"

        @event.listens_for(engine.sync_engine, name)
        def on_its_way(connection: Any, *_: object) -> None:
            connection.run_async(pass_by)

        made: list[object] = []
        event.listen(engine.sync_engine, "connect", lambda connection, _: made.append(connection))
        store = place.store(engine)
        await store.list()
        if name == "connect":
            await engine.dispose()
        may_go_on.clear()
        stopped.clear()
        writing = asyncio.create_task(store.append("s1", header()))
        await stopped.wait()
        writing.cancel()
        await asyncio.wait([writing])
        assert writing.cancelled()
        may_go_on.set()
        await settled(store)
        pool: Any = engine.pool
        assert (pool.checkedout(), pool.checkedin()) == (0, 1)
        assert await store.read("s1") == ([] if name == "connect" else [header()])
        assert len(made) == (2 if name == "connect" else 1)
        await engine.dispose()

    run(main)


@pytest.mark.parametrize("whose", ["ours", "a host's", "a host's connection"])
def test_a_database_in_memory_outlives_cancelled_calls(whose: str, tmp_path: Path) -> None:
    async def main() -> None:
        engine = create_async_engine("sqlite+aiosqlite://")
        target: Any = "sqlite://" if whose == "ours" else engine
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            store = await stack.enter_async_context(AsyncSQLStore(target, migrate=True))
            await store.upgrade()
            if whose == "a host's connection":
                connection = await stack.enter_async_context(engine.connect())
                store = AsyncSQLStore(f"sqlite:///{tmp_path / 'other.db'}").using(connection)
            await store.append("s1", header())
            calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
                store.list,
                lambda: store.delete("s2"),
                lambda: store.append("s1", message("a")),
            ]
            for call in calls:
                for turns in range(12):
                    task = asyncio.create_task(call())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
            entries = await store.read("s1")
            assert entries == [header(), *[message("a")] * (len(entries) - 1)]

    run(main)


def test_close_waits_for_the_calls_even_when_it_is_cancelled(place: Place) -> None:
    async def main() -> None:
        store = place.store()
        await store.append("s1", header())
        calls = [asyncio.create_task(store.append("s1", message("a"))) for _ in range(8)]
        await asyncio.sleep(0)
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with store:
                pass
        assert scope.cancelled_caught
        await asyncio.wait(calls)
        await store.close()
        with pytest.raises(Unavailable, match="closed"):
            await store.read("s1")
        with pytest.raises(Unavailable, match="closed"):
            await store.with_namespace("other").read("s1")
        async with place.store() as again:
            done = [call for call in calls if call.exception() is None]
            assert len(await again.read("s1")) == 1 + len(done)

    run(main)


def test_folders_are_written_and_read_beside_the_loop(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        threads: list[int] = []

        def note(done: int, total: int | None) -> None:
            threads.append(threading.get_ident())

        async with place.store() as store:
            entries = [header(), *[picture(str(number)) for number in range(40)]]
            await store.extend("s1", entries)
            folder = await store.export_folder("s1", tmp_path / "folder", progress=note)
            assert threads
            assert threading.get_ident() not in threads
            history = await store.export_history("s1")
            assert History.load(folder) == history
            id = await store.import_folder(folder, cwd="/w", progress=note)
            assert await store.export_history(id) == history
            # A caller who is cancelled, be it at the first look or later, leaves nothing half done.
            for turns in range(20):
                target = tmp_path / f"cancelled {turns}"
                calls: list[Coroutine[Any, Any, object]] = [
                    store.export_folder("s1", target),
                    store.import_folder(folder, cwd="/cancelled", id=f"c{turns}"),
                ]
                for call in calls:
                    task = asyncio.create_task(call)
                    for _ in range(turns):
                        await asyncio.sleep(0.0005)
                    task.cancel()
                    await asyncio.wait([task])
            await asyncio.get_running_loop().shutdown_default_executor()
            await settled(store)
            pool: Any = store._database.engine.pool
            assert pool.checkedout() == 0
            for found in await store.list("/cancelled"):
                assert await store.export_history(found.id) == history

    run(main)
    for target in tmp_path.glob("cancelled *"):
        if (target / "history.json").exists():
            assert len(History.load(target).messages) == 40


def test_sync_and_async_calls_work_in_a_running_loop(empty: Place) -> None:
    async def main() -> None:
        with empty.sync_store() as sync:
            sync.upgrade()
            sync.append("s1", header())
            async with empty.store(migrate=False) as store:
                await store.upgrade()
                assert await store.read("s1") == sync.read("s1") == [header()]

    run(main)


# -------------------------------------------------------------------------- several event loops


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_store_goes_on_in_the_next_event_loop(place: Place, ends: str) -> None:
    store = place.store()

    async def use(number: int) -> None:
        await asyncio.gather(*[store.append(f"s{number}", header(f"s{number}")) for _ in range(20)])
        assert len(await store.list()) == number + 1

    if ends == "well":
        for number in range(3):
            run(lambda: use(number))  # noqa: B023 (called at once)
        run(store.close)
        return
    with warnings.catch_warnings():
        # Who closes a loop with connections on it is told so by their drivers.
        warnings.simplefilter("ignore", ResourceWarning)
        for number in range(3):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(use(number))
            loop.close()
        gc.collect()
        run(store.close)
        gc.collect()


@pytest.mark.parametrize("server", ["psycopg", "asyncpg"], indirect=True)
def test_a_loop_that_ends_leaves_no_connection_behind(server: Place) -> None:
    """Nor a warning about one: those are errors here."""
    store = server.store()
    run(store.list)
    with server.sync_store() as other, other._database.engine.connect() as connection:
        query = text(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        deadline = time.monotonic() + 30
        while connection.scalar(query):
            assert time.monotonic() < deadline


def test_a_database_in_memory_goes_on_in_the_next_event_loop() -> None:
    store = AsyncSQLStore("sqlite://")

    async def use(number: int) -> None:
        await asyncio.gather(*[store.append(f"s{number}", header(f"s{number}")) for _ in range(20)])
        assert len(await store.list()) == number + 1

    for number in range(3):
        run(lambda: use(number))  # noqa: B023 (called at once)
    run(store.close)


def test_a_store_whose_loop_died_in_the_middle_of_a_call_goes_on(place: Place) -> None:
    store = place.store(timeout=1000)
    run(lambda: store.append("s1", header()))
    url, arguments = as_a_host_says(place.sync_url)
    engine = create_engine(url, **arguments)
    with engine.connect() as connection:
        place.sync_store(engine).using(connection).append("s1", message("a"))

        async def use() -> None:
            await store.list()
            waiting = asyncio.create_task(store.append("s1", message("b")))
            await asyncio.sleep(0.05)
            assert not waiting.done()

        run(use)
        connection.commit()
    engine.dispose()
    run(lambda: store.append("s2", header("s2")))
    # What lost its client in the middle of a statement may have come to its end on the server.
    assert run(lambda: store.read("s1"))[:2] == [header(), message("a")]
    run(store.close)


@pytest.mark.parametrize("host", ["disposes", "has no pool"])
def test_a_borrowed_engine_that_its_host_looks_after_works_in_the_next_loop(
    place: Place, host: str
) -> None:
    engine = place.engine(**({"poolclass": NullPool} if host == "has no pool" else {}))
    store = place.store(engine)

    async def use(number: int) -> None:
        await asyncio.gather(*[store.append(f"s{number}", header(f"s{number}")) for _ in range(6)])
        assert len(await store.list()) == number + 1
        if host == "disposes":
            await engine.dispose()

    for number in range(3):
        run(lambda: use(number))  # noqa: B023 (called at once)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # by drivers, of what is forgotten here
def test_a_borrowed_engine_of_another_loop_works_or_says_what_to_do(place: Place) -> None:
    engine = place.engine()
    store = place.store(engine)

    async def use(times: int) -> None:
        await asyncio.gather(*[store.append("s1", header()) for _ in range(times)])

    def told(times: int) -> str:
        try:
            run(lambda: use(times))
        except Unavailable as error:
            return str(error)
        return ""

    assert told(20) == ""  # as many connections as the pool has, and some who wait for one
    # asyncpg's connections know their loop, the others' don't mind; but who waits for a pool does.
    assert ("`await engine.dispose()` before a loop" in told(1)) is (place.driver == "asyncpg")
    assert "`await engine.dispose()` before a loop" in told(20)
    engine.sync_engine.dispose(close=False)
    assert told(20) == ""
    engine.sync_engine.dispose(close=False)
    gc.collect()


def test_threads_each_with_a_loop_share_an_engine_without_a_pool(place: Place) -> None:
    store = place.store(place.engine(poolclass=NullPool))
    run(lambda: store.append("s1", header()))

    async def use(thread: int) -> None:
        for number in range(3):
            await store.append("s1", message(f"{thread} {number}"))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda thread: run(lambda: use(thread)), range(16)))
    assert len(run(lambda: store.read("s1"))) == 49


def test_a_second_loop_at_the_same_time_is_told_to_use_a_store_of_its_own(server: Place) -> None:
    store = server.store()
    run(lambda: store.append("s1", header()))

    async def use() -> int:
        for _ in range(3):
            await store.append("s1", message("a"))
        return 3

    def attempt(_: int) -> int:
        try:
            return run(use)
        except Unavailable as error:
            assert "make one store for each loop" in str(error)  # noqa: PT017
            return 0

    async def main() -> None:
        await store.list()
        with ThreadPoolExecutor(16) as threads:
            refused = [asyncio.wrap_future(threads.submit(attempt, n)) for n in range(16)]
            assert sum(await asyncio.gather(*refused)) == 0
        assert await store.read("s1") == [header()]

    run(main)
    with ThreadPoolExecutor(16) as threads:
        done = sum(threads.map(attempt, range(16)))
    found = len(run(lambda: store.read("s1"))) - 1
    assert done > 0
    assert found >= done
    run(store.close)


@pytest.mark.parametrize("name", ["{}/chats.db", ""])
def test_one_store_of_sqlite_serves_many_loops_at_the_same_time(name: str, tmp_path: Path) -> None:
    store = AsyncSQLStore(f"sqlite:///{name.format(tmp_path)}")
    run(lambda: store.append("s1", header()))

    async def use(thread: int) -> None:
        for number in range(3):
            await store.append("s1", message(f"{thread} {number}"))
            await store.read("s1")

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda thread: run(lambda: use(thread)), range(16)))
    said = {entry.message["content"] for entry in run(lambda: store.tail("s1", 1000))}  # type: ignore[attr-defined]
    assert said == {f"{thread} {number}" for thread in range(16) for number in range(3)}
    run(store.close)


def test_without_a_loop_a_store_says_that_it_needs_one(tmp_path: Path) -> None:
    store = AsyncSQLStore(f"sqlite:///{tmp_path / 'chats.db'}").with_namespace("a")
    with pytest.raises(Unavailable, match="needs an event loop of asyncio"):
        store.read("s1").send(None)


# -------------------------------------------------------------------------------------- forks


def test_a_store_is_used_on_both_sides_of_a_fork_or_says_what_to_do(place: Place) -> None:
    kinds = [
        kind
        for kind in forking.KINDS
        if ("async" in kind or place.driver != "asyncpg")
        and ("memory" not in kind or place.driver == "aiosqlite")
    ]
    arguments = [place.url.render_as_string(hide_password=False), place.namespace, *kinds]
    done = subprocess.run(
        [sys.executable, forking.__file__, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.stdout.splitlines(), done.returncode) == (kinds, 0), done.stderr
