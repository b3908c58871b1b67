"""Finding sessions, and making them live: the one thing of this library that an agent holds.

A Loader belongs to a directory. It needs no more of a store than the four methods, and uses more
where that is the store's own. What a session is for the app, `build` says; without it, it is the
Session itself. The sync and the async loader follow the same plans (see `plans`).
"""

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast, overload

from turnkeep.async_store import AsyncSQLStore
from turnkeep.engine import default_url
from turnkeep.entries import Entry, Header, ModelEntry
from turnkeep.errors import InvalidArgument
from turnkeep.jsonl import JSONLStore
from turnkeep.payload import is_storable
from turnkeep.plans import AWAITED, NOT_AWAITED, Plan, drive, drive_async
from turnkeep.protocols import AsyncStore, Headers, Store
from turnkeep.recorder import Recorder, check_model
from turnkeep.session import AsyncSession, Session
from turnkeep.store import SQLStore

R = TypeVar("R")
"""What an app makes of a session."""


class _Default(Enum):
    DATABASE = "the default database"


DEFAULT: Final = _Default.DATABASE
"""Where no store is named: the database of `default_url()`."""

_METHODS = ("append", "read", "list", "delete")
_NEVER = datetime.min.replace(tzinfo=UTC)


class Plans:
    """What a loader does, for a sync and an async store alike.

    Args:
        cwd: the directory.
        store: the store, or None, which saves and finds nothing.
        is_async: whether its methods are to be awaited.
    """

    def __init__(self, cwd: str | os.PathLike[str], store: object, *, is_async: bool) -> None:
        self.cwd = os.path.abspath(cwd)  # noqa: PTH100 (Path leaves .. in it)
        if not is_storable(self.cwd):
            raise InvalidArgument("cwd", "holds a NUL or an unpaired surrogate")
        missing = [name for name in _METHODS if not callable(getattr(store, name, None))]
        if store is not None and missing:
            raise InvalidArgument("store", f"has no method {missing[0]}: a SQLStore is one")
        # Of what wraps a store it can't be told before a method was called: see `plans`.
        if is_async and isinstance(store, SQLStore | JSONLStore):
            raise InvalidArgument("store", NOT_AWAITED)
        if not is_async and inspect.iscoroutinefunction(getattr(store, "append", None)):
            raise InvalidArgument("store", AWAITED)
        self._saves = store is not None
        self._at_once = _extends(type(store))
        self._limits = getattr(type(store), "list", None) in (SQLStore.list, AsyncSQLStore.list)

    def start(self, model: str) -> Recorder:
        """A new session."""
        return Recorder(self.cwd, check_model(model), saves=self._saves, at_once=self._at_once)

    def resume(self, id: str) -> Plan[Recorder | None]:
        """Session *id*, wherever it was begun."""
        entries: list[Entry] = []
        if self._saves:
            entries = yield lambda store: store.read(id)
        if not entries:
            return None
        models = [entry.model for entry in entries if isinstance(entry, Header | ModelEntry)]
        return Recorder(
            self.cwd,
            models[-1] if models else None,
            id=id,
            entries=entries,
            saves=True,
            at_once=self._at_once,
        )

    def continue_(self) -> Plan[Recorder | None]:
        """The session of this directory that changed last."""
        headers = yield from self.list(all=False, limit={"limit": 1} if self._limits else {})
        return (yield from self.resume(headers[0].id)) if headers else None

    def list(self, *, all: bool, limit: dict[str, int] | None = None) -> Plan[Headers]:
        """The headers of this directory's sessions, or of every directory's, newest first whatever
        the store's order.
        """
        headers: Iterable[Header] = []
        if self._saves:
            cwd = None if all else self.cwd
            headers = yield lambda store: store.list(cwd, **limit or {})
        return sorted(headers, key=lambda h: (h.updated or _NEVER, h.id), reverse=True)

    def delete(self, id: str) -> Plan[None]:
        """Remove session *id*."""
        if self._saves:
            yield lambda store: store.delete(id)


class Loader(Generic[R]):
    """Starts, continues and resumes the sessions of a directory.

    ```python
    loader = Loader("/home/you/project", store=SQLStore("sqlite:///chats.db"))
    session = loader.continue_() or loader.start("small-model")
    session.add_message({"role": "user", "content": "Hello"})
    ```

    Args:
        cwd: the directory. It is made absolute by its text alone, as `os.path.abspath` does; a
            relative one counts from the current directory, now.
        store: where sessions are saved: any object with the four methods of `Store`. Without it,
            the default database (TURNKEEP_URL, else a SQLite file of the user's); None saves and
            finds nothing.
        build: makes of a Session, and of the options that a method was given, what this method
            returns: an app's own runtime. Without it that is the Session.

    Raises:
        InvalidArgument: *cwd* can't be stored, *store* is none or an async one, or the default
            database can't be used.
    """

    @overload
    def __init__(
        self: "Loader[Session]",
        cwd: str | os.PathLike[str],
        *,
        store: Store | _Default | None = DEFAULT,
        build: None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        cwd: str | os.PathLike[str],
        *,
        store: Store | _Default | None = DEFAULT,
        build: Callable[..., R],
    ) -> None: ...

    def __init__(
        self,
        cwd: str | os.PathLike[str],
        *,
        store: Store | _Default | None = DEFAULT,
        build: Callable[..., Any] | None = None,
    ) -> None:
        self._own = SQLStore(default_url()) if store is DEFAULT else None
        self._store = self._own or store
        self._plans = Plans(cwd, self._store, is_async=False)
        self._build = build

    @property
    def cwd(self) -> str:
        """The directory, as an absolute path."""
        return self._plans.cwd

    def start(self, model: str, **options: object) -> R:
        """A new session, which is saved with its first message.

        Args:
            model: the model that it begins with.
            options: for *build*.

        Raises:
            InvalidArgument: *model* can't be the name of one.
        """
        return self._built(self._plans.start(model), options)

    def continue_(self, **options: object) -> R | None:
        """The session of this directory that changed last, or None; of equal times the highest id.

        Args:
            options: for *build*.
        """
        recorder = drive(self._plans.continue_(), self._store)
        return None if recorder is None else self._built(recorder, options)

    def resume(self, id: str, **options: object) -> R | None:
        """Session *id*, in whichever directory it was begun, or None where there is none.

        Args:
            id: the session.
            options: for *build*.
        """
        recorder = drive(self._plans.resume(id), self._store)
        return None if recorder is None else self._built(recorder, options)

    def list(self, *, all: bool = False) -> Headers:
        """The headers of this directory's sessions, most recently changed first; with *all*, of
        every directory's.
        """
        return drive(self._plans.list(all=all), self._store)

    def delete(self, id: str) -> None:
        """Remove session *id*; nothing happens where there is none."""
        drive(self._plans.delete(id), self._store)

    def close(self) -> None:
        """Close the default database, if it was opened here; a store that was given stays open."""
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.cwd}>"

    def _built(self, recorder: Recorder, options: dict[str, object]) -> R:
        session = Session(recorder, self._store)
        return cast("R", session if self._build is None else self._build(session, **options))


class AsyncLoader(Generic[R]):
    """As `Loader`, over an async store: the methods are awaited.

    ```python
    loader = AsyncLoader("/home/you/project", store=AsyncSQLStore("sqlite:///chats.db"))
    session = await loader.continue_() or await loader.start("small-model")
    await session.add_message({"role": "user", "content": "Hello"})
    ```

    Args:
        cwd: as for `Loader`.
        store: any object with the four methods of `AsyncStore`; else as for `Loader`.
        build: as for `Loader`; may be a coroutine function.
    """

    @overload
    def __init__(
        self: "AsyncLoader[AsyncSession]",
        cwd: str | os.PathLike[str],
        *,
        store: AsyncStore | _Default | None = DEFAULT,
        build: None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        cwd: str | os.PathLike[str],
        *,
        store: AsyncStore | _Default | None = DEFAULT,
        build: Callable[..., Awaitable[R]],
    ) -> None: ...

    @overload
    def __init__(
        self,
        cwd: str | os.PathLike[str],
        *,
        store: AsyncStore | _Default | None = DEFAULT,
        build: Callable[..., R],
    ) -> None: ...

    def __init__(
        self,
        cwd: str | os.PathLike[str],
        *,
        store: AsyncStore | _Default | None = DEFAULT,
        build: Callable[..., Any] | None = None,
    ) -> None:
        self._own = AsyncSQLStore(default_url()) if store is DEFAULT else None
        self._store = self._own or store
        self._plans = Plans(cwd, self._store, is_async=True)
        self._build = build

    @property
    def cwd(self) -> str:
        """The directory, as an absolute path."""
        return self._plans.cwd

    async def start(self, model: str, **options: object) -> R:
        """As `Loader.start`."""
        return await self._built(self._plans.start(model), options)

    async def continue_(self, **options: object) -> R | None:
        """As `Loader.continue_`."""
        recorder = await drive_async(self._plans.continue_(), self._store)
        return None if recorder is None else await self._built(recorder, options)

    async def resume(self, id: str, **options: object) -> R | None:
        """As `Loader.resume`."""
        recorder = await drive_async(self._plans.resume(id), self._store)
        return None if recorder is None else await self._built(recorder, options)

    async def list(self, *, all: bool = False) -> Headers:
        """As `Loader.list`."""
        return await drive_async(self._plans.list(all=all), self._store)

    async def delete(self, id: str) -> None:
        """As `Loader.delete`."""
        await drive_async(self._plans.delete(id), self._store)

    async def close(self) -> None:
        """As `Loader.close`."""
        if self._own is not None:
            await self._own.close()

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
        return f"<{type(self).__name__} of {self.cwd}>"

    async def _built(self, recorder: Recorder, options: dict[str, object]) -> R:
        session = AsyncSession(recorder, self._store)
        built: Any = session if self._build is None else self._build(session, **options)
        return cast("R", await built if inspect.isawaitable(built) else built)


def _extends(store: type) -> bool:
    """Whether a class of stores has an `extend` that does all which its `append` does.

    What wraps a store and changes `append` may have the other's `extend` by inheritance, or by
    `__getattr__`, which isn't looked at here.
    """
    for cls in store.__mro__:
        if "extend" in vars(cls):
            return True
        if "append" in vars(cls):
            return False
    return False
