"""An async store, driven by code that is not: so that what is written once serves both kinds."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeAlias

from turnkeep.entries import Entry, Header

# In a class with a method of the name `list`, annotations can't say list[...].
Entries: TypeAlias = list[Entry]
Headers: TypeAlias = list[Header]


class Blocking:
    """An async store whose methods return when they are done, for the contract and other tests.

    All calls run on one event loop, in a thread of its own: so they can come from several threads,
    and then run concurrently, and from inside another loop, which they block. Attributes and plain
    methods are passed through; a store of the same class that a method gives comes wrapped.

    ```python
    with Blocking(lambda: AsyncSQLStore("sqlite:///chats.db")) as store:
        store.read("s1")
    ```

    Args:
        make: makes the async store, or is a coroutine function that does; called on the loop.
    """

    def __init__(self, make: Callable[[], object]) -> None:
        self._store: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = threading.Thread(
            target=self._loop.run_forever, name="turnkeep-blocking", daemon=True
        )
        self._thread.start()
        try:
            self._store = self._run(make)
        except BaseException:
            self._end()
            raise

    def append(self, id: str, entry: Entry, **options: Any) -> Any:
        """As the async store's."""
        return self._run(self._store.append, id, entry, **options)

    def read(self, id: str, **options: Any) -> Entries:
        """As the async store's."""
        found: Entries = self._run(self._store.read, id, **options)
        return found

    def list(self, cwd: str | None = None, **options: Any) -> Headers:
        """As the async store's."""
        found: Headers = self._run(self._store.list, cwd, **options)
        return found

    def delete(self, id: str) -> Any:
        """As the async store's."""
        return self._run(self._store.delete, id)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._run, found) if callable(found) else found

    def close(self) -> None:
        """Close the async store, where it has a `close`, and end the loop."""
        try:
            if hasattr(self._store, "close"):
                self._run(self._store.close)
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Callable[..., Any], *args: object, **options: Any) -> Any:
        async def run() -> Any:
            found = work(*args, **options)
            return await found if inspect.isawaitable(found) else found

        found = asyncio.run_coroutine_threadsafe(run(), self._loop).result()
        if self._store is None or type(found) is not type(self._store):
            return found
        other = object.__new__(type(self))
        other._store, other._loop, other._thread = found, self._loop, None
        return other

    def _end(self) -> None:
        """End the loop, if it is ours and has not ended."""
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = None
