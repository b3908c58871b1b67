"""The database behind an async store: `database`, on an event loop.

The sync logic runs on an async driver inside a greenlet, which is how SQLAlchemy does it too: where
it waits for the database, the loop goes on. Each call is a task of its own: a caller who is
cancelled leaves at once, while behind him the transaction is undone in peace, and the connection
brought back.

A pool belongs to one loop at a time, as what waits for it does. That of an owned engine is closed
at the end of its loop and made anew in the next; to a borrowed one the host sees.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.util import await_only, greenlet_spawn

from turnkeep.calls import Call
from turnkeep.database import Database, Joined
from turnkeep.errors import Unavailable

T = TypeVar("T")

BREATH = 0.0001
"""How many seconds the loop leaves to threads between two cancellations of one call."""


class AsyncDatabase(Database):
    """The sync engine that is inside an async one. What a Database does runs in `spawn`."""

    _is_async: ClassVar[bool] = True
    _loop: asyncio.AbstractEventLoop | None
    _guard: AsyncGenerator[None, None] | None
    _tasks: set[asyncio.Task[Any]]
    _working: set[asyncio.Task[Any]]
    _left: set[asyncio.Task[Any]]

    def __init__(
        self,
        engine: Engine,
        *,
        is_owned: bool,
        schema: str | None,
        migrate: bool | None,
        timeout: float,
    ) -> None:
        super().__init__(engine, is_owned=is_owned, schema=schema, migrate=migrate, timeout=timeout)
        self._belong_to_no_loop()

    async def do(self, call: Call[T]) -> T:
        """As `run`, awaited."""
        return await self.spawn(self.run, call)

    async def spawn(self, work: Callable[..., T], *args: Any) -> T:
        """Run *work* in a task of its own, which is cancelled, once, when the caller is."""
        await self._enter()
        task = asyncio.create_task(greenlet_spawn(work, *args))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            return await outlive(task)
        except asyncio.CancelledError:
            if not task.done():
                self._left.add(task)
            # In memory SQLAlchemy would drop the connection, and all data with it.
            if task in self._working and not task.cancelling() and not self.is_in_memory:
                task.cancel()
            raise

    async def aclose(self) -> None:
        """As `close`, when all calls have ended; it goes on when the caller is cancelled."""
        await self._enter()
        self._is_closed = True
        await outlive(asyncio.create_task(self._close()))

    @property
    def under_way(self) -> int:
        """How many calls have not ended, those too whose callers have left."""
        return len(self._tasks)

    async def _enter(self) -> None:
        """Make the pool that of the running loop."""
        loop = running_loop()
        if loop is self._loop or isinstance(self.engine.pool, NullPool):
            return
        with self._entry:
            if self._loop is not None and self._loop.is_running():
                raise Unavailable(
                    "the store is in use on another event loop: make one store for each loop"
                )
            if self._loop is not None and self._owns_pool:
                self.engine.dispose(close=False)  # what is left in it is of no use any more
            self._loop = loop
            self._guard = self._at_end(loop)
        await anext(self._guard)

    async def _at_end(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Close the pool at the end of *loop*: before it closes it ends the generators that it
        began, and nothing else can be waited for then.
        """
        try:
            yield
        finally:
            if self._loop is loop:
                await self._end()

    async def _close(self) -> None:
        guard, self._guard = self._guard, None
        await (self._end() if guard is None else guard.aclose())

    async def _end(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._owns_pool or self._is_closed:
            await greenlet_spawn(self._end_connections)

    def _begin_work(self) -> None:
        self._go_on()
        self._working.add(_current_task())

    def _end_work(self) -> None:
        self._working.discard(_current_task())

    def _go_on(self) -> None:
        """End a call whose caller has left while it could not be cancelled: a connection that is
        being made is made, and one that comes back comes back.
        """
        if _current_task() in self._left:
            raise asyncio.CancelledError

    def _forget(self, task: asyncio.Task[Any]) -> None:
        for tasks in (self._tasks, self._working, self._left):
            tasks.discard(task)

    def _connect(self) -> Connection:
        """Raises Unavailable where the pool, or the connection, is that of another loop."""
        try:
            connection = super()._connect()
        except RuntimeError:  # asyncio's, of what waits for the pool
            connection = None
        if connection is not None:
            driver = connection.connection.driver_connection
            # Those of the other drivers have none, and can be used on any loop.
            if getattr(driver, "_loop", None) in (None, asyncio.get_running_loop()):
                return connection
            connection.close()
        raise Unavailable(
            "the connections of the engine belong to another event loop: `await engine.dispose()` "
            "before a loop ends, or make the engine with NullPool"
        )

    def _sleep(self, seconds: float) -> None:
        self._go_on()
        await_only(asyncio.sleep(seconds))

    def _belong_to_no_loop(self) -> None:
        self._entry = threading.Lock()
        self._loop, self._guard = None, None
        self._tasks, self._working, self._left = set(), set(), set()

    def _leave_parent(self) -> None:
        super()._leave_parent()
        self._belong_to_no_loop()


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop at hand.

    Raises:
        Unavailable: there is none, or it is not one of asyncio's.
    """
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    raise Unavailable("an async store needs an event loop of asyncio, and none is running")


async def run_joined(joined: Joined, call: Call[T]) -> T:
    """Run *call*, on a connection of the app's, in a task of its own, which is cancelled, once,
    when the caller is: cancelled a second time, SQLAlchemy and aiosqlite would leave the connection
    neither open nor closed.
    """
    task: asyncio.Task[T] = asyncio.create_task(greenlet_spawn(joined.run, call))
    # In memory SQLAlchemy would drop the connection, and all data with it.
    return await see_through(task, _nothing if joined.is_in_memory else task.cancel)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def outlive(task: asyncio.Task[T]) -> T:
    """What *task* gives. When the caller is cancelled it goes on, and nobody misses its result."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        raise
    return task.result()


def _nothing() -> None:
    """Let it go on."""


async def see_through(task: asyncio.Task[T], cancel: Callable[[], object] = _nothing) -> T:
    """What *task* gives, which works on a connection of the app's. When the caller is cancelled,
    *cancel* is called, once, and he leaves when the task has ended, since the connection is his
    again then.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            if cancelled is None:
                cancel()
            else:
                # anyio cancels again and again, and would leave aiosqlite's thread no turn.
                time.sleep(BREATH)
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # which nobody misses
    try:
        raise cancelled
    finally:
        del cancelled, task  # else they and their tracebacks would hold one another, and a cursor
