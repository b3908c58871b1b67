"""A live session, as the app that holds it sees it. What it records and how is in `recorder`."""

import asyncio
import threading
from collections.abc import Mapping

from turnkeep.async_database import outlive, see_through
from turnkeep.async_store import is_joined
from turnkeep.plans import Plan, drive, drive_async
from turnkeep.recorder import Recorder
from turnkeep.snapshot import Snapshot


class Session:
    """A live session, which a `Loader` made. Safe to use from several threads.

    What is recorded is in the store when the method returns; before the first message nothing is.
    When the store raises, the call can be made again: it records once, even where the store had
    written it nevertheless.

    Attributes:
        id: the session's.
    """

    def __init__(self, recorder: Recorder, store: object) -> None:
        self.id = recorder.id
        self._recorder = recorder
        self._store = store
        self._lock = threading.Lock()

    @property
    def snapshot(self) -> Snapshot:
        """How the session stands: its messages, healed, and the last switches."""
        with self._lock:
            return self._recorder.snapshot

    @property
    def model(self) -> str | None:
        """The model in use: that of the last switch, or that which the session began with."""
        return self._recorder.model

    @property
    def reasoning(self) -> str | None:
        """The level of reasoning that was last switched to; None where none was."""
        return self._recorder.reasoning

    def add_message(self, message: Mapping[str, object]) -> None:
        """Record *message*; a system or developer message is none of a session, and is passed over.

        Raises:
            InvalidEntry: *message* is not JSON; names the place. Nothing was written.
            UnknownSession: the session has been deleted meanwhile.
        """
        self._drive(self._recorder.add_message(message))

    def switch_model(self, model: str) -> None:
        """Record that another *model* is used from here on.

        Raises:
            InvalidArgument: *model* can't be the name of one.
            UnknownSession: as for `add_message`.
        """
        self._drive(self._recorder.switch_model(model))

    def switch_reasoning(self, level: str) -> None:
        """Record that another *level* of reasoning is used from here on.

        Raises:
            InvalidEntry: *level* is no str.
            UnknownSession: as for `add_message`.
        """
        self._drive(self._recorder.switch_reasoning(level))

    def activate_skill(self, name: str) -> None:
        """Record that the model activated the skill *name*.

        Raises:
            InvalidEntry: *name* is no str.
            UnknownSession: as for `add_message`.
        """
        self._drive(self._recorder.activate_skill(name))

    def _drive(self, plan: Plan[None]) -> None:
        with self._lock:
            drive(plan, self._store)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class AsyncSession:
    """A live session, which an `AsyncLoader` made: as `Session`, awaited.

    Safe to use from several tasks. A call that is cancelled goes on behind its caller, and records
    what happened; the next call waits for it. Where the store works on a connection of the app's
    (`using`), the caller waits too.

    Attributes:
        id: the session's.
    """

    def __init__(self, recorder: Recorder, store: object) -> None:
        self.id = recorder.id
        self._recorder = recorder
        self._store = store
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def snapshot(self) -> Snapshot:
        """As `Session.snapshot`."""
        return self._recorder.snapshot

    @property
    def model(self) -> str | None:
        """As `Session.model`."""
        return self._recorder.model

    @property
    def reasoning(self) -> str | None:
        """As `Session.reasoning`."""
        return self._recorder.reasoning

    async def add_message(self, message: Mapping[str, object]) -> None:
        """As `Session.add_message`."""
        await self._drive(self._recorder.add_message(message))

    async def switch_model(self, model: str) -> None:
        """As `Session.switch_model`."""
        await self._drive(self._recorder.switch_model(model))

    async def switch_reasoning(self, level: str) -> None:
        """As `Session.switch_reasoning`."""
        await self._drive(self._recorder.switch_reasoning(level))

    async def activate_skill(self, name: str) -> None:
        """As `Session.activate_skill`."""
        await self._drive(self._recorder.activate_skill(name))

    async def _drive(self, plan: Plan[None]) -> None:
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:  # a lock belongs to one loop
            self._lock = loop, asyncio.Lock()
        lock = self._lock[1]
        await lock.acquire()
        task = asyncio.create_task(drive_async(plan, self._store))
        task.add_done_callback(lambda _: lock.release())
        if is_joined(self._store):
            await see_through(task)
        else:
            await outlive(task)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"
