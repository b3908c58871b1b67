"""The database behind an async store on a SQLite file, or on one in memory, that it opened by URL:
`database`, in threads.

SQLite works in the thread that asks it, so there is nothing to await but a thread. A whole call
goes over to one, runs there as a sync store runs it, and its result comes back: one way there and
back, where an async driver takes one for each statement. The threads belong to no event loop: one
store serves any number of them.

SQLite lets one write at a time, so there is one thread for writes, which take their turns in it in
the order of their calls; a few more read beside it. A database in memory is one connection, and has
one thread for all.

A caller who is cancelled leaves at once. Behind him his call is not begun if it still waits for its
turn; else it gives up where it waits for SQLite's lock, and SQLite is told to end a statement that
takes long, so that the transaction is undone. For the lock one waits in steps: SQLite can't be
stopped while it waits.
"""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from sqlalchemy import URL, Engine, event

from turnkeep.async_database import running_loop
from turnkeep.calls import Call
from turnkeep.database import Database
from turnkeep.dialect import Mode
from turnkeep.engine import open_engine
from turnkeep.errors import InvalidArgument, Unavailable

T = TypeVar("T")

READERS = 4
"""How many threads read. Most of what they do holds Python's own lock, so more would be no quicker;
with fewer, a few long reads would hold up all short ones. With that of the writes they are five: as
many connections as SQLAlchemy's pool keeps.
"""

LOOK = 0.1
"""How many seconds SQLite waits for its lock by itself: afterwards one looks whether the caller has
left, and lets it wait again.
"""

STEPS = 10_000
"""After how many steps of a statement SQLite asks whether to end it: after a millisecond or so."""

SOON = 1.0
"""How many seconds a call may wait for its turn at the least, however short the timeout: that is no
wait for a lock, and a thread needs a moment to begin.
"""


class ThreadedDatabase(Database):
    """An engine of our own, and the threads that use it."""

    def __init__(
        self, url: URL, *, schema: str | None, migrate: bool | None, timeout: float
    ) -> None:
        timeout = max(timeout, _timeout_of(url))
        engine = open_engine(url.difference_update_query(["timeout"]), timeout=LOOK)
        event.listen(engine, "connect", _watch)
        super().__init__(engine, is_owned=True, schema=schema, migrate=migrate, timeout=timeout)
        self._keeps = False  # what is in the pool ends with the store, though nobody close it
        self._hire()

    async def do(self, call: Call[T]) -> T:
        """As `run`, in a thread."""
        if call.work is None:
            return call.finish(None)
        if pause := self.pause(call):
            await asyncio.sleep(pause)  # here, since the thread would keep out the others
        is_read = call.mode in (Mode.READ, Mode.SNAPSHOT)
        return await self._hand_over(self._readers if is_read else self._writer, self.do_now, call)

    async def spawn(self, work: Callable[..., T], *args: Any) -> T:
        """Run *work* in a thread; it gives up when the caller is cancelled."""
        return await self._hand_over(self._readers, work, *args)

    async def aclose(self) -> None:
        """As `close`, when all calls have ended; it goes on when the caller is cancelled."""
        job = _Job(self._close)
        self._is_closed = True
        threading.Thread(target=job.run, name="turnkeep-close", daemon=True).start()
        await job.outcome()

    @property
    def under_way(self) -> int:
        """How many calls have not ended, those too whose callers have left."""
        return sum(threads.unfinished for threads in {self._writer, self._readers})

    async def _hand_over(self, threads: "_Threads", work: Callable[..., T], *args: Any) -> T:
        job = _Job(work, *args)
        threads.take(job)
        wait = max(self.timeout, SOON)
        kept = f"other calls of this store kept this one waiting for {wait:g} s"
        timer = job.loop.call_later(wait, job.withdraw, kept)
        try:
            return await job.outcome()  # type: ignore[no-any-return]
        except BaseException:
            job.leave()
            raise
        finally:
            timer.cancel()

    def _close(self) -> None:
        for threads in (self._writer, self._readers):
            threads.end()
        self._end_connections()

    def _begin_work(self) -> None:
        _give_up()

    def _sleep(self, seconds: float) -> None:
        _give_up()
        time.sleep(seconds)

    def _hire(self) -> None:
        self._writer = _Threads(1)
        self._readers = self._writer if self.is_in_memory else _Threads(READERS)
        # Nobody need close a store: when it is gone, or the process ends, what it has is let go.
        engine = self.engine if self._left_pool is None else None
        self._end = weakref.finalize(self, _let_go, engine, self._writer, self._readers)

    def _leave_parent(self) -> None:
        super()._leave_parent()
        self._end.detach()
        self._hire()  # the parent's threads are not in this process


def _let_go(engine: Engine | None, *threads: "_Threads") -> None:
    for each in threads:
        each.dismiss()
    if engine is not None:
        engine.dispose()


class _Threads:
    """Threads that do jobs in the order in which they come. Each starts when it is needed.

    They are daemons, which the end of the process doesn't wait for: a write that has not returned
    is undone then, as in a crash.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started: list[threading.Thread] = []
        self._is_ended = False
        self.unfinished = 0

    def take(self, job: "_Job") -> None:
        """Have *job* done."""
        with self._lock:
            if self._is_ended:
                raise Unavailable("the store is closed")
            if len(self._started) <= self.unfinished and len(self._started) < self._most:
                self._start()
            self.unfinished += 1
            self._jobs.put(job)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="turnkeep", daemon=True)
        with suppress(RuntimeError):  # there can be no more
            thread.start()
            self._started.append(thread)
        if not self._started:
            raise Unavailable("no thread can be started")

    def end(self) -> None:
        """Wait till all jobs are done; no other is taken."""
        with self._lock:
            self._is_ended = True
        self.dismiss()
        for thread in self._started:
            thread.join()

    def dismiss(self) -> None:
        """Let the threads end after the jobs that they have; safe wherever garbage is collected."""
        for _ in range(self._most):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # what it held is free while this waits
            with self._lock:
                self.unfinished -= 1


class _Job:
    """Work that goes to a thread, and comes back to the event loop that it was made on.

    What it gave never hangs on anything that the loop knows: in debug mode a loop logs that.
    """

    def __init__(self, work: Callable[..., Any], *args: Any) -> None:
        self.loop = running_loop()
        self._work: Callable[[], Any] | None = partial(copy_context().run, work, *args)
        self._ended = self.loop.create_future()
        self._begun = threading.Lock()  # held by who begins it, or by who withdraws it
        self._is_left = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it in this thread, unless nobody wants it any more."""
        if self.is_left or not self._begun.acquire(blocking=False):
            return
        _here.job = self
        assert self._work is not None
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 (raised where it is awaited)
            self._error = error
        finally:
            self._work = _here.job = None
        with suppress(RuntimeError):  # of a loop that is closed
            self.loop.call_soon_threadsafe(self._end)

    async def outcome(self) -> Any:
        """What it gives, or raises."""
        await self._ended
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # else it and its traceback would hold one another

    def withdraw(self, reason: str) -> None:
        """Let it end in *reason* if it has not begun."""
        if self._begun.acquire(blocking=False):
            self._work, self._error = None, Unavailable(reason)
            self._end()

    def leave(self) -> None:
        """Nobody waits for it any more: have it not begin, or give up."""
        self._is_left = True

    @property
    def is_left(self) -> bool:
        """Whether it is to give up."""
        return self._is_left or self.loop.is_closed()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class _Here(threading.local):
    """What the thread at hand does."""

    job: _Job | None = None


_here = _Here()


def _give_up() -> None:
    """End the job of this thread if nobody waits for it."""
    if _here.job is not None and _here.job.is_left:
        raise asyncio.CancelledError


def _watch(connection: Any, _: object) -> None:
    """Have SQLite ask now and then whether to end a statement."""
    connection.set_progress_handler(_ends_statement, STEPS)


def _ends_statement() -> bool:
    return _here.job is not None and _here.job.is_left


def _timeout_of(url: URL) -> float:
    """The seconds that *url* itself would have one wait for the lock."""
    try:
        return float(url.query.get("timeout", 0))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        fault = "SQLAlchemy can't use it: look at its path and options"
    raise InvalidArgument("url", fault)
