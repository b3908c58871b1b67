"""An async store that opened SQLite by URL runs its calls in threads: what becomes of them when
their callers leave, when they wait for one another, and when loop, store or process end.
"""

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from contention import WAIT_SECONDS, header, said
from turnkeep import (
    AsyncSQLStore,
    InvalidArgument,
    SQLStore,
    Unavailable,
    sql_retention,
    threaded_database,
)
from turnkeep.calls import Call
from turnkeep.dialect import Mode
from turnkeep.dialect.sqlite import Sqlite

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
INSERT = "INSERT INTO turnkeep_blobs VALUES ('', randomblob(32), 1, x'00')"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with one session."""
    path = tmp_path / "chats.db"
    with SQLStore(f"sqlite:///{path}") as store:
        store.append("s", header("s"))
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another holds the write lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.close()


@asynccontextmanager
async def opened(path: Path, options: str = "", timeout: float = 1000) -> AsyncIterator[Any]:
    """A store that waits for ever, as tests go; but a test ends."""
    async with asyncio.timeout(WAIT_SECONDS):
        store = AsyncSQLStore(f"sqlite:///{path}{options}", timeout=timeout)
        try:
            yield store
        finally:
            await store.close()


def texts(path: Path) -> list[str]:
    with SQLStore(f"sqlite:///{path}") as store:
        return [entry.message["content"] for entry in store.tail("s", 1000)]  # type: ignore[attr-defined]


async def left(task: asyncio.Task[Any]) -> None:
    """Cancel *task*, which ends at once."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def begun(store: Any, call: Any) -> asyncio.Task[Any]:
    """A task of *call*, which has come to a thread."""
    task = asyncio.create_task(call)
    await asyncio.sleep(0.05)
    assert not task.done()
    assert store._database.under_way
    return task


# ------------------------------------------------------------------------- callers who leave


def test_a_call_that_waits_for_its_turn_is_never_begun_when_its_caller_leaves(path: Path) -> None:
    ran: list[int] = []

    async def main() -> None:
        async with opened(path) as store:
            with locked(path):
                first = await begun(store, store.append("s", said("first")))
                second = await begun(store, store.append("s", said("second")))
                third = await begun(store, store.append("s", said("third")))
                await left(second)
                database = store._database
                for number in range(3):
                    call = database._hand_over(database._writer, ran.append, number)
                    task = await begun(store, call)
                    if number != 1:
                        await left(task)
            assert [await first, await third] == [1, 2]

    asyncio.run(main())
    assert texts(path) == ["first", "third"]
    assert ran == [1]


def test_a_call_that_waits_for_the_lock_gives_up_when_its_caller_leaves(path: Path) -> None:
    async def main() -> None:
        with locked(path):
            async with opened(path) as store:
                await left(await begun(store, store.append("s", said("never"))))
                while store._database.under_way:
                    await asyncio.sleep(0.001)
                await left(await begun(store, store.append("s", said("nor this"))))
            # The store was closed, though the lock is still held.

    asyncio.run(main())
    assert texts(path) == []


def test_a_call_that_waits_for_a_connection_gives_up_when_its_caller_leaves(tmp_path: Path) -> None:
    """To be switched to the write-ahead log, a file must be free."""
    path = tmp_path / "other.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    async def main() -> None:
        async with opened(path) as store:
            await left(await begun(store, store.list()))
            await left(await begun(store, store.append("s", said("never"))))
            while store._database.under_way:
                await asyncio.sleep(0.001)

    asyncio.run(main())
    other.close()


def test_what_waits_when_its_loop_is_closed_gives_up(path: Path) -> None:
    """So that another loop, which closes the store, does not wait for it."""
    store = AsyncSQLStore(f"sqlite:///{path}", timeout=1000)
    loop = asyncio.new_event_loop()
    with locked(path):
        calls = [store.append("s", said("never")) for _ in range(2)]
        tasks = [loop.run_until_complete(begun(store, call)) for call in calls]
        loop.close()

        async def close() -> None:
            async with asyncio.timeout(WAIT_SECONDS):
                while store._database.under_way:
                    await asyncio.sleep(0.001)
                await store.close()

        asyncio.run(close())
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    assert texts(path) == []


def test_a_call_that_waits_for_the_lock_gives_up_when_the_store_is_closed(path: Path) -> None:
    async def main() -> None:
        with locked(path):
            async with opened(path) as store:
                calls = [store.append("s", said("never")) for _ in range(3)]
                tasks = [await begun(store, call) for call in calls]
            for task in tasks:
                with pytest.raises(Unavailable, match="closed"):
                    await task

    asyncio.run(main())
    assert texts(path) == []


def endless_statement(connection: Any) -> None:
    connection.exec_driver_sql(INSERT)
    connection.exec_driver_sql(ENDLESS)


def endless_statements(connection: Any) -> None:
    while True:
        connection.exec_driver_sql(INSERT)


@pytest.mark.parametrize("mode", [Mode.READ, Mode.WRITE, Mode.APPEND, Mode.MIGRATION])
@pytest.mark.parametrize("work", [endless_statement, endless_statements])
@pytest.mark.parametrize("is_file", [True, False], ids=["in a file", "in memory"])
def test_what_takes_long_is_ended_and_undone_when_its_caller_leaves(
    work: Callable[[Any], None], mode: Mode, is_file: bool, path: Path
) -> None:
    async def main() -> None:
        name = path if is_file else ":memory:"
        async with opened(name) as store:  # type: ignore[arg-type]
            assert await store.list() or not is_file
            wait_for = work
            if mode is Mode.READ:
                wait_for = lambda connection: connection.exec_driver_sql(ENDLESS)  # noqa: E731
            await left(await begun(store, store._run(Call(mode, wait_for, bool))))
            assert await store._run(Call(Mode.READ, blobs, int)) == 0
            await store.extend("t", [header("t"), said("t", b"bytes")])
            assert await store.delete("t")
            pool = store._database.engine.pool
            assert (pool.checkedout(), await store.list() != []) == (0, is_file)

    def blobs(connection: Any) -> Any:
        return connection.exec_driver_sql("SELECT count(*) FROM turnkeep_blobs").scalar()

    asyncio.run(main())


def test_a_connection_is_as_it_was_after_a_migration_that_was_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its foreign keys are off meanwhile: what turns them on again is not ended too, though SQLite
    asks at each step.
    """
    monkeypatch.setattr(threaded_database, "STEPS", 1)

    async def main() -> None:
        async with opened(path) as store:
            await left(
                await begun(store, store._run(Call(Mode.MIGRATION, endless_statement, bool)))
            )
            while store._database.under_way:
                await asyncio.sleep(0.001)
            engine = store._database.engine
            assert engine.pool.checkedin() > 0
            held = [engine.connect() for _ in range(engine.pool.checkedin())]
            for connection in held:
                assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
                connection.close()

    asyncio.run(main())


def test_calls_on_a_database_in_memory_wait_for_one_another() -> None:
    may_end = threading.Event()

    async def main() -> None:
        async with opened(Path(":memory:")) as store:
            await store.append("s", header("s"))
            work = Call(Mode.WRITE, lambda _: may_end.wait(WAIT_SECONDS), bool)
            holding = await begun(store, store._run(work))
            waiting = [await begun(store, store.read("s")) for _ in range(6)]
            may_end.set()
            assert await holding
            assert [len(found) for found in await asyncio.gather(*waiting)] == [1] * 6

    asyncio.run(main())


def test_close_waits_for_what_goes_on(path: Path) -> None:
    """Python's own work can't be stopped, and it is on a connection of the store's."""
    ends: list[str] = []
    has_begun = threading.Event()

    def work(_: object) -> None:
        has_begun.set()
        time.sleep(0.2)
        ends.append("work")

    async def main() -> None:
        async with opened(path) as store:
            task = asyncio.create_task(store._run(Call(Mode.READ, work, bool)))
            while not has_begun.is_set():
                await asyncio.sleep(0.001)
            await left(task)
            assert ends == []
        ends.append("close")

    asyncio.run(main())
    assert ends == ["work", "close"]


# ----------------------------------------------------------------- calls that wait for others


def test_reads_go_on_while_many_writes_wait_for_the_lock(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as store:
            with locked(path):
                calls = [store.append("s", said(str(number))) for number in range(20)]
                tasks = [asyncio.create_task(call) for call in calls]
                for _ in range(20):
                    assert len(await store.read("s")) == 1
                assert not any(task.done() for task in tasks)
            assert await asyncio.gather(*tasks) == list(range(1, 21))

    asyncio.run(main())
    assert texts(path) == [str(number) for number in range(20)]  # in the order of the calls


def test_many_who_wait_for_the_lock_wait_together(path: Path) -> None:
    """Each has the timeout, not each after the other."""

    async def main() -> None:
        with locked(path):
            async with opened(path, timeout=1) as store:
                calls = [store.append("s", said("never")) for _ in range(2 * WAIT_SECONDS)]
                told = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in told} == {Unavailable}
        assert all("locked by another" in str(e) or "kept this one" in str(e) for e in told)

    asyncio.run(main())
    assert texts(path) == []


def test_a_call_whose_turn_does_not_come_within_the_timeout_is_not_made(path: Path) -> None:
    may_end = threading.Event()

    async def main() -> None:
        async with opened(path, timeout=0.1) as store:
            await store.list()
            work = Call(Mode.WRITE, lambda _: may_end.wait(WAIT_SECONDS), bool)
            writing = await begun(store, store._run(work))
            with pytest.raises(Unavailable, match="other calls of this store"):
                await store.append("s", said("never"))
            assert len(await store.read("s")) == 1
            may_end.set()
            assert await writing

    asyncio.run(main())
    assert texts(path) == []


def test_the_timeout_of_a_url_counts_where_it_is_longer(path: Path) -> None:
    async def main() -> None:
        async with opened(path, "?timeout=1000", timeout=0) as store:
            with locked(path):
                waiting = await begun(store, store.append("s", said("a")))
                await asyncio.sleep(0.5)
                assert not waiting.done()
            assert await waiting == 1
        for options in ("", "?timeout=0.2"):
            with locked(path):
                async with opened(path, options, timeout=0) as store:
                    with pytest.raises(Unavailable, match="locked"):
                        await store.append("s", said("never"))

    asyncio.run(main())
    assert texts(path) == ["a"]
    for wrong in ("?timeout=soon", "?timeout=1&timeout=2"):
        with pytest.raises(InvalidArgument, match="options"):
            AsyncSQLStore(f"sqlite:///{path}{wrong}")


def test_others_have_their_turn_between_two_batches(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the same store too: the pause is none if it holds up the thread of the writes."""
    monkeypatch.setattr(Sqlite, "turn", 1000.0)
    monkeypatch.setattr(sql_retention, "ROWS", 1)

    async def main() -> None:
        async with opened(path) as store:
            for id in ("a", "b", "s"):
                await store.extend(id, [header(id), said("x")])
            pruning = asyncio.create_task(store.prune(keep_last=1))
            while len(await store.list()) == 3:
                await asyncio.sleep(0.001)
            assert await store.append("s", said("a")) == 2
            assert len(await store.list()) == 2
            await left(pruning)

    asyncio.run(main())
    assert texts(path) == ["x", "a"]


def test_there_are_no_more_connections_than_the_pool_keeps(path: Path) -> None:
    made: list[object] = []

    async def main() -> None:
        async with opened(path) as store:
            event.listen(store._database.engine, "connect", lambda *_: made.append(1))
            calls = [store.append("s", said("x")) for _ in range(50)]
            await asyncio.gather(*calls, *[store.read("s") for _ in range(50)])

    asyncio.run(main())
    assert 2 <= len(made) <= 5


def test_a_callback_in_a_thread_sees_the_caller_s_context(path: Path, tmp_path: Path) -> None:
    user: ContextVar[str] = ContextVar("user")
    seen: list[tuple[str, bool]] = []

    def note(_: int, total: int | None) -> None:
        seen.append((user.get(), total is None))

    async def main() -> None:
        user.set("me")
        async with opened(path) as store:
            await store.extend("t", [header("t"), *[said(str(number)) for number in range(20)]])
            folder = await store.export_folder("t", tmp_path / "folder")
            await store.import_folder(folder, cwd="/w", progress=note)

    asyncio.run(main())
    assert set(seen) == {("me", True), ("me", False)}


# -------------------------------------------------------------- the end of loop, store, process


def test_a_store_that_is_dropped_lets_its_threads_and_connections_go(path: Path) -> None:
    def ours() -> int:
        return sum(thread.name == "turnkeep" for thread in threading.enumerate())

    async def main(store: AsyncSQLStore) -> None:
        await asyncio.gather(*[store.read("s") for _ in range(8)], store.append("s", said("x")))

    gc.collect()
    before = ours()
    store = AsyncSQLStore(f"sqlite:///{path}")
    asyncio.run(main(store))
    assert ours() > before
    assert path.with_name("chats.db-wal").exists()
    del store
    deadline = time.monotonic() + WAIT_SECONDS
    while ours() > before or path.with_name("chats.db-wal").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)


PROGRAM = """
import asyncio, sqlite3, sys, threading
from turnkeep import AsyncSQLStore
from turnkeep.calls import Call
from turnkeep.dialect import Mode
from contention import header, said
from test_threaded_database import ENDLESS

path, way = sys.argv[1:]
store = AsyncSQLStore(f"sqlite:///{path}", timeout=1000)

async def begin(call):
    await store.append("s", said("x"))
    if call is not None:
        tasks.append(asyncio.create_task(call))
        while not store._database.under_way:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)

other = sqlite3.connect(path, isolation_level=None)
tasks = []
statement = Call(Mode.READ, lambda c: c.exec_driver_sql(ENDLESS), bool)
python = Call(Mode.READ, lambda _: threading.Event().wait(), bool)
loop = asyncio.new_event_loop()
if way == "nothing":
    loop.run_until_complete(begin(None))
elif way == "python":
    loop.run_until_complete(begin(store._run(python)))
elif way == "statement":
    loop.run_until_complete(begin(store._run(statement)))
else:
    loop.run_until_complete(store.list())
    other.execute("BEGIN IMMEDIATE")
    async def main():
        tasks.append(asyncio.create_task(store.append("s", said("never"))))
        await asyncio.sleep(0.05)
    loop.run_until_complete(main())
for task in tasks:
    assert not task.done()
    task._log_destroy_pending = False
loop.close()
print("closed")
"""


@pytest.mark.parametrize("way", ["nothing", "lock", "statement", "python"])
def test_the_process_ends_whatever_a_thread_does(way: str, path: Path) -> None:
    """Though loop and store end in the middle; nothing is complained of, and no log is left behind
    by those who do nothing.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(path), way],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert (done.stdout, done.stderr, done.returncode) == ("closed\n", "", 0)
    if way == "nothing":
        assert {each.name for each in path.parent.iterdir()} == {"chats.db"}
    assert texts(path) == ([] if way == "lock" else ["x"])


def test_a_closed_store_takes_no_call_and_can_be_closed_again(path: Path) -> None:
    async def main() -> None:
        store = AsyncSQLStore(f"sqlite:///{path}")
        await store.list()
        calls = [store.close, store.close, store.with_namespace("a").close]
        await asyncio.gather(*[call() for call in calls])
        for call in (store.list, store.revision, store.upgrade, partial(store.delete, "s")):
            with pytest.raises(Unavailable, match="closed"):
                await call()
        await store.close()

    asyncio.run(main())
