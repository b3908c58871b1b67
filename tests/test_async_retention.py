"""Pruning, erasing and counting on an event loop: as the sync store does it, and cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL

from contention import header, said
from inspection import EMPTY, counts
from retaining import NOON, POOL, age, aged, gone, remember, with_files
from turnkeep import AsyncSQLStore, InvalidArgument, NotErased, Pruned, SQLStore, sql_retention
from turnkeep.dialect.sqlite import Sqlite

DRIVERS = ["aiosqlite", "psycopg_async", "asyncpg"]
EVERYONE = [with_files(aged(i), POOL[i % 3]) for i in range(8)]


class Two:
    """A database, seen by a sync store and by an async one."""

    def __init__(self, url: URL, driver: str) -> None:
        self.sync = SQLStore(url, migrate=True)
        self.sync.upgrade()
        self._url = url.set(drivername=f"{url.get_backend_name()}+{driver}")

    def run(self, main: Callable[[AsyncSQLStore], Coroutine[Any, Any, Any]]) -> Any:
        """What *main* gives, which is given the async one on a loop of its own."""

        async def run() -> Any:
            async with AsyncSQLStore(self._url, migrate=False) as store:
                return await main(store)

        return asyncio.run(run())


@pytest.fixture(params=DRIVERS)
def two(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Sqlite, "turn", 0.0)
    kind = "sqlite_url" if request.param == "aiosqlite" else "postgres_url"
    two = Two(request.getfixturevalue(kind), request.param)
    yield two
    two.sync.close()


def test_it_counts_prunes_and_erases_as_the_sync_store_does(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_retention, "ROWS", 8)
    remember(two.sync, EVERYONE)
    remember(two.sync.with_namespace("other"), EVERYONE)

    async def main(store: AsyncSQLStore) -> None:
        assert await store.stats() == two.sync.stats()
        wanted = two.sync.prune(older_than=timedelta(days=1), keep_last=3, dry_run=True)
        steps: list[Pruned] = []
        which: dict[str, Any] = {"older_than": timedelta(days=1), "keep_last": 3}
        assert await store.prune(dry_run=True, **which) == wanted == gone(EVERYONE, EVERYONE[5:])
        assert await store.prune(progress=steps.append, **which) == wanted
        assert steps[-1] == wanted
        assert len(steps) == 3
        assert [found.id for found in await store.list()] == ["s7", "s6", "s5"]
        assert await store.prune(older_than=NOON, cwd="/a") == Pruned()
        with pytest.raises(InvalidArgument):
            await store.prune()
        with pytest.raises(InvalidArgument):
            await store.prune(older_than=NOON.replace(tzinfo=None))
        assert await store.erase_namespace() == gone(EVERYONE[5:], [])
        assert (
            await store.with_namespace("other").stats() == two.sync.with_namespace("other").stats()
        )
        assert [finding async for finding in store.with_namespace("other").verify()] == []

    two.run(main)
    assert two.sync.namespaces() == ["other"]


def test_cancelled_it_leaves_whole_sessions_and_a_whole_pool(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment; and it can be run again."""
    monkeypatch.setattr(sql_retention, "ROWS", 1)

    async def main(store: AsyncSQLStore) -> None:
        await store.list()
        for turn in range(12):
            for past in EVERYONE:
                await store.extend(past.id, [past.header, *past.entries])
                age(two.sync, past)
            task = asyncio.create_task(store.prune(older_than=timedelta(days=1)))
            await asyncio.sleep(0.004 * turn)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
            while store._database.under_way:  # behind it the batch at hand goes on for a moment
                await asyncio.sleep(0.001)
            assert [finding async for finding in store.verify()] == []
            left = await store.list()
            assert (await store.prune(older_than=timedelta(days=1))).sessions == len(left)
            assert [finding async for finding in store.verify()] == []
        pool: Any = store._database.engine.pool
        assert pool.checkedout() == 0

    two.run(main)
    assert counts(two.sync) == EMPTY


def test_cancelled_between_two_batches_it_takes_no_further_one(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_retention, "ROWS", 1)
    remember(two.sync, EVERYONE)

    async def main(store: AsyncSQLStore) -> None:
        task: asyncio.Task[Pruned]

        def told(pruned: Pruned) -> None:
            if pruned.sessions == 3:
                task.cancel()

        task = asyncio.create_task(store.prune(keep_last=0, progress=told))
        with pytest.raises(asyncio.CancelledError):
            await task

    two.run(main)
    assert [found.id for found in two.sync.list()] == [f"s{i}" for i in (7, 6, 5, 4, 3)]
    assert list(two.sync.verify()) == []


def test_the_loop_goes_on_while_others_have_their_turn(sqlite_url: URL) -> None:
    """The pause between batches holds up nobody."""
    two = Two(sqlite_url, "aiosqlite")
    remember(two.sync, EVERYONE)

    async def main(store: AsyncSQLStore) -> int:
        done = False

        async def count() -> int:
            ticks = 0
            while not done:
                await asyncio.sleep(0.001)
                ticks += 1
            return ticks

        ticking = asyncio.create_task(count())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sql_retention, "ROWS", 1)
            await store.prune(keep_last=0)
        done = True
        return await ticking

    assert two.run(main) > 7
    two.sync.close()


def test_it_says_when_writers_are_faster(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    look = sql_retention.look
    numbers = iter(range(1000))

    def looking(*arguments: Any, **options: Any) -> Any:
        found = look(*arguments, **options)
        if not found:
            id = f"s{next(numbers)}"
            two.sync.extend(id, [header(id), said("still here")])
        return found

    monkeypatch.setattr(sql_retention, "look", looking)

    async def main(store: AsyncSQLStore) -> None:
        with pytest.raises(NotErased):
            await store.erase_namespace()

    two.run(main)
    assert list(two.sync.verify()) == []


def test_in_the_apps_transaction_it_is_undone_with_it(two: Two) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    remember(two.sync, EVERYONE)

    async def main(store: AsyncSQLStore) -> None:
        engine = create_async_engine(two._url)
        async with engine.connect() as connection:
            joined = store.using(connection)
            assert (await joined.prune(keep_last=2)).sessions == 6
            assert len(await joined.list()) == 2
            await connection.rollback()
        await engine.dispose()
        assert len(await store.list()) == 8

    two.run(main)
