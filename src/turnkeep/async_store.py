"""The async store: SQLStore's methods, awaited. What they do is in `calls`, said once for both; how
they run on an event loop, in `async_database`, and how in threads, in `threaded_database`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

from sqlalchemy import URL

from turnkeep import calls, retention, verification
from turnkeep.async_database import AsyncDatabase, run_joined, see_through
from turnkeep.calls import AttachmentInfo, Call, Page, Scope
from turnkeep.database import Joined, Runner
from turnkeep.dialect import DIALECTS
from turnkeep.engine import ASYNC_DRIVERS, check_timeout, open_async_engine, parse_url
from turnkeep.entries import Entry, Header
from turnkeep.errors import InvalidArgument
from turnkeep.folder import Dir
from turnkeep.folder_calls import Progress, export_folder, import_folder
from turnkeep.history import History
from turnkeep.limits import Limits
from turnkeep.plans import Plan, drive, drive_async
from turnkeep.protocols import Entries, Headers
from turnkeep.retention import Pruned, PruneProgress
from turnkeep.stats import Stats, stats
from turnkeep.threaded_database import ThreadedDatabase
from turnkeep.verification import Finding, Orphans, Verified

if TYPE_CHECKING:  # importing it needs greenlet, and takes long
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T")

Attachments: TypeAlias = list[AttachmentInfo]
Lossy: TypeAlias = list[str]
Names: TypeAlias = list[str]


class AsyncSQLStore:
    """Sessions in SQLite or Postgres, for asyncio: `SQLStore` with its methods awaited.

    A URL of Postgres means psycopg's async driver; `postgresql+asyncpg://` is asyncpg. One of
    SQLite needs nothing that Python hasn't: its calls run in threads. An AsyncEngine is borrowed.
    Cancelling a call leaves the pool whole, and its write entirely there or not at all; which of
    the two may show a moment later.

    A store on SQLite that was opened by URL serves any number of event loops. Another is used on
    one at a time: that which was opened by URL ends its connections with the loop, and goes on in
    the next one.

    ```python
    async with AsyncSQLStore("sqlite:///chats.db") as store:
        await store.append("s1", header)
        entries = await store.read("s1")
    ```

    Args:
        url_or_engine: a SQLAlchemy URL, or its text, or an AsyncEngine.
        namespace, schema, migrate, timeout, limits: as for `SQLStore`.
    """

    def __init__(
        self,
        url_or_engine: "str | URL | AsyncEngine",
        *,
        namespace: str = "",
        schema: str | None = None,
        migrate: bool | None = None,
        timeout: float = 30.0,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:
        check_timeout(timeout)
        scope = Scope(namespace, limits)
        self._database = _open(url_or_engine, schema=schema, migrate=migrate, timeout=timeout)
        self._scope = scope
        self._joined: Joined | None = None

    async def append(
        self,
        id: str,
        entry: Entry,
        *,
        idempotency_key: str | None = None,
        expected_position: int | None = None,
    ) -> int:
        """As `SQLStore.append`."""
        return await self._run(
            calls.append(self._scope, id, entry, idempotency_key, expected_position)
        )

    async def extend(
        self,
        id: str,
        entries: Iterable[Entry],
        *,
        idempotency_keys: Sequence[str | None] | None = None,
        expected_position: int | None = None,
    ) -> int:
        """As `SQLStore.extend`."""
        return await self._run(
            calls.extend(self._scope, id, entries, idempotency_keys, expected_position)
        )

    async def read(self, id: str, *, attachments: bool = True) -> Entries:
        """As `SQLStore.read`."""
        return await self._run(calls.read(self._scope, id, attachments=attachments))

    async def page(
        self,
        id: str,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int = 500,
        attachments: bool = True,
    ) -> Page:
        """As `SQLStore.page`."""
        return await self._run(
            calls.page(self._scope, id, after, before, limit, attachments=attachments)
        )

    async def tail(self, id: str, count: int, *, attachments: bool = True) -> Entries:
        """As `SQLStore.tail`."""
        return await self._run(calls.tail(self._scope, id, count, attachments=attachments))

    async def get(self, id: str) -> Header | None:
        """As `SQLStore.get`."""
        return await self._run(calls.get(self._scope, id))

    async def list(
        self, cwd: str | None = None, *, limit: int | None = None, before: Header | None = None
    ) -> Headers:
        """As `SQLStore.list`."""
        return await self._run(calls.list_sessions(self._scope, cwd, limit, before))

    async def delete(self, id: str) -> bool:
        """As `SQLStore.delete`."""
        return await self._run(calls.delete(self._scope, id))

    async def attachments(self, id: str) -> Attachments:
        """As `SQLStore.attachments`."""
        return await self._run(calls.list_attachments(self._scope, id))

    async def export_history(self, id: str, *, lossy: Lossy | None = None) -> History:
        """As `SQLStore.export_history`."""
        return await self._run(calls.export_history(self._scope, id, lossy))

    async def import_history(
        self,
        history: History,
        *,
        cwd: str,
        id: str | None = None,
        model: str | None = None,
        title: str | None = None,
        created_at: str | None = None,
        recorded_at: str | None = None,
        replace: bool = False,
    ) -> str:
        """As `SQLStore.import_history`."""
        call = calls.import_history(
            self._scope,
            history,
            cwd=cwd,
            id=id,
            model=model,
            title=title,
            created_at=created_at,
            recorded_at=recorded_at,
            replace=replace,
        )
        return await self._run(call)

    async def export_folder(
        self, id: str, dir: Dir, *, lossy: Lossy | None = None, progress: Progress | None = None
    ) -> Path:
        """As `SQLStore.export_folder`, in a thread, where *progress* is called too."""

        def export(runner: Runner) -> Path:
            with closing(export_folder(self._scope, id, dir, lossy, progress)) as plan:
                return drive(plan, runner)

        return await self._aside(export)

    async def import_folder(
        self,
        dir: Dir,
        *,
        cwd: str,
        id: str | None = None,
        model: str | None = None,
        title: str | None = None,
        created_at: str | None = None,
        recorded_at: str | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """As `SQLStore.import_folder`. *progress* is called in a thread while the folder is
        checked; while it is written, on the event loop, but in a thread on SQLite by URL.
        """

        def make(runner: Runner) -> str:
            call = import_folder(
                self._scope,
                dir,
                cwd=cwd,
                id=id,
                model=model,
                title=title,
                created_at=created_at,
                recorded_at=recorded_at,
                replace=replace,
                progress=progress,
            )
            return runner.run(call)

        return await self._aside(make)

    async def prune(
        self,
        *,
        older_than: datetime | timedelta | None = None,
        keep_last: int | None = None,
        cwd: str | None = None,
        dry_run: bool = False,
        progress: PruneProgress | None = None,
    ) -> Pruned:
        """As `SQLStore.prune`; when it is cancelled, what is gone stays gone. *progress* is called
        on the event loop.
        """
        plan = retention.prune(
            self._scope,
            older_than=older_than,
            keep_last=keep_last,
            cwd=cwd,
            dry_run=dry_run,
            progress=progress,
        )
        return await self._drive(plan)

    async def erase_namespace(self, *, progress: PruneProgress | None = None) -> Pruned:
        """As `SQLStore.erase_namespace`; *progress* is called on the event loop."""
        return await self._drive(retention.erase(self._scope, progress))

    async def stats(self) -> Stats:
        """As `SQLStore.stats`."""
        return await self._run(stats(self._scope))

    def with_namespace(self, namespace: str) -> "AsyncSQLStore":
        """As `SQLStore.with_namespace`; not awaited."""
        return self._like(Scope(namespace, self._scope.limits), self._joined)

    def using(self, connection: "AsyncConnection") -> "AsyncSQLStore":
        """As `SQLStore.using`, with an AsyncConnection; not awaited.

        A caller who is cancelled leaves when what ran on the connection has ended. It may cost the
        app the connection: SQLAlchemy closes one on which a statement is cancelled.
        """
        given = getattr(connection, "sync_connection", None)
        if given is None:
            raise InvalidArgument(
                "connection",
                "is a SQLAlchemy AsyncConnection that has begun: `async with engine.connect()`; "
                "of an ORM AsyncSession, `await session.connection()`",
            )
        return self._like(self._scope, Joined(self._database, given))

    async def namespaces(self) -> Names:
        """As `SQLStore.namespaces`."""
        return await self._run(verification.namespaces())

    async def verify(
        self, *, progress: Callable[[int], object] | None = None
    ) -> AsyncIterator[Finding]:
        """As `SQLStore.verify`, for `async for`."""
        calls.check_progress(progress, "a number")
        call: Call[Verified] | None = verification.verify(self._scope)
        seen = 0
        while call is not None:
            verified = await self._run(call)
            for finding in verified.findings:
                yield finding
            seen += verified.rows
            if progress is not None:
                progress(seen)
            call = verified.following

    async def collect_orphans(self) -> Orphans:
        """As `SQLStore.collect_orphans`."""
        return await self._drive(verification.collect_orphans(self._scope))

    async def upgrade(self, *, row_security: bool | None = None) -> None:
        """As `SQLStore.upgrade`."""
        await self._database.spawn(self._database.upgrade, row_security)

    async def revision(self) -> str | None:
        """As `SQLStore.revision`."""
        return await self._database.spawn(self._database.revision)

    async def check(self) -> None:
        """As `SQLStore.check`."""
        await self._database.spawn(self._database.check_schema)

    async def close(self) -> None:
        """As `SQLStore.close`, when all calls have ended."""
        if self._joined is None:
            await self._database.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        name = self._database.engine.dialect.name
        return f"<{type(self).__name__} on {name}, namespace {self._scope.namespace!r}>"

    async def _run(self, call: Call[T]) -> T:
        if self._joined is None:
            return await self._database.do(call)
        return await run_joined(self._joined, call)

    async def _drive(self, plan: Plan[T]) -> T:
        """Run *plan*, each of whose calls is awaited."""
        return await drive_async(plan, SimpleNamespace(run=self._run))

    async def _aside(self, work: Callable[[Runner], T]) -> T:
        """Do *work*, which reads or writes files, in a thread; the calls that it runs come here."""
        runner = _FromThread(self._run)
        if self._joined is not None:
            task = asyncio.create_task(asyncio.to_thread(work, runner))
            return await see_through(task, runner.cancel)
        try:
            return await asyncio.to_thread(work, runner)
        except asyncio.CancelledError:
            runner.cancel()
            raise

    def _like(self, scope: Scope, joined: Joined | None) -> "AsyncSQLStore":
        store = object.__new__(type(self))
        store._database, store._scope, store._joined = self._database, scope, joined
        return store


def _open(target: "str | URL | AsyncEngine", **options: Any) -> AsyncDatabase | ThreadedDatabase:
    """The database of a borrowed engine, or the one that a URL means."""
    if engine := getattr(target, "sync_engine", None):
        return AsyncDatabase(engine, is_owned=False, **options)
    url = parse_url(cast("str | URL", target), ASYNC_DRIVERS)
    if DIALECTS[url.get_backend_name()].in_threads:
        return ThreadedDatabase(url, **options)
    made = open_async_engine(url, timeout=options["timeout"])
    return AsyncDatabase(made.sync_engine, is_owned=True, **options)


class _FromThread:
    """Runs calls on the event loop for a thread; when cancelled, the one at hand and no further."""

    def __init__(self, run: Callable[[Call[Any]], Coroutine[Any, Any, Any]]) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def run(self, call: Call[T]) -> T:
        """What *call* gives; returns when it has ended, also where it was cancelled."""
        found: T = asyncio.run_coroutine_threadsafe(self._go(call), self._loop).result()
        return found

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _go(self, call: Call[T]) -> T:
        if self._is_cancelled:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        found: T = await self._run(call)
        return found


def is_joined(store: object) -> bool:
    """Whether *store* works on a connection of the app's, which two calls can't share."""
    return isinstance(store, AsyncSQLStore) and store._joined is not None
