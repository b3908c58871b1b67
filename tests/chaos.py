"""Writers that go on whatever befalls their database, and the account of what they were told.

What a writer sends follows from who it is and the number of the write, so the account holds numbers
only: how many each has begun, and which were acknowledged, at which position. Afterwards it is held
against what is stored. What was acknowledged is there once, in its place. What was not is there
once, as a whole, or not at all; with a key it is sent until it is acknowledged.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import URL, create_engine

from attempts import attempt
from contention import SESSION, WAIT_SECONDS, Follower, header, said
from servers import wait_for
from turnkeep import AsyncSQLStore, Entry, MessageEntry, SQLStore, Unavailable
from turnkeep.testing import Blocking

DRIVERS = {
    "psycopg": "postgresql+psycopg",
    "borrowed": "postgresql+psycopg",
    "async psycopg": "postgresql+psycopg_async",
    "asyncpg": "postgresql+asyncpg",
}
"""The kinds of stores on Postgres; `borrowed` has an engine of the host's."""


@contextmanager
def opened(kind: str, url: URL, **options: Any) -> Iterator[Any]:
    """A store of this kind on a Postgres server, for sync callers."""
    at = url.set(drivername=DRIVERS[kind])
    if "async" in kind:
        with Blocking(lambda: AsyncSQLStore(at, **options)) as blocking:
            yield blocking
        return
    engine = create_engine(at) if kind == "borrowed" else None
    try:
        with SQLStore(engine or at, **options) as store:
            yield store
    finally:
        if engine is not None:
            engine.dispose()


class Account:
    """What writers began, and what they were told.

    Args:
        report: takes the sum of it all, when it is checked.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report
        self.begun: dict[int, int] = {}
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.refused: dict[int, int] = defaultdict(int)
        self._work: list[Future[None]] = []

    @contextmanager
    def writing(self, stores: Sequence[Any], *, writers: int = 8) -> Iterator[None]:
        """Have as many *writers*, each in its thread, on one of the *stores*, and a reader on each
        of these, who sees nothing change that was there.
        """
        is_over = threading.Event()
        for writer in range(writers):
            self.begun.setdefault(writer, 0)
        with ThreadPoolExecutor(writers + len(stores)) as pool:
            self._work = [
                pool.submit(self._write, stores[writer % len(stores)], writer, is_over)
                for writer in range(writers)
            ]
            self._work += [pool.submit(self._look, store, is_over) for store in stores]
            try:
                yield
            finally:
                is_over.set()
            for each in self._work:
                each.result(2 * WAIT_SECONDS)

    def suffer(
        self,
        store: SQLStore,
        fault: Callable[[], AbstractContextManager[object]],
        times: int,
        what: str,
    ) -> None:
        """Let *fault* befall *store* so many *times* under writers, and check it all.

        Each time, all writers go on when it is over; at the end all calls succeed at once.
        """
        store.append(SESSION, header())
        with self.writing([store]):
            for _ in range(times):
                self.wait_for_progress()
                with fault():
                    self.wait_for_refusals()
            self.wait_for_progress()
        self.check(store, f"{times} {what}")
        for _ in range(8):  # the pool gives its connections in turn
            store.append(SESSION, said("after"))

    def wait_for_progress(self, count: int = 2) -> None:
        """Return when each writer had so many more acknowledged."""
        before = self._done_by_each()

        def have_gone_on() -> bool:
            now = self._done_by_each()
            return all(now[writer] >= before[writer] + count for writer in [*self.begun])

        wait_for(have_gone_on, "not all writers have gone on")

    def wait_for_refusals(self, count: int = 2) -> None:
        """Return when so many more writes were refused."""
        before = self._refusals()
        wait_for(lambda: self._refusals() >= before + count, "the fault does no harm")

    def check(self, store: SQLStore, faults: str) -> None:
        """Hold what *store* has against what the writers were told.

        Args:
            store: one that reads the database without any fault.
            faults: what befell it: "20 restarts".
        """
        expected = self._by_session()
        lost, doubled, unclear, there = [], [], 0, 0
        for session in {SESSION, *expected, *(found.id for found in store.list())}:
            stored = [_content(entry) for entry in store.read(session)]
            places: dict[object, list[int]] = defaultdict(list)
            for place, content in enumerate(stored):
                places[content].append(place)
            doubled += [session] * (len(stored) - len(places))
            known = {_content(header())} if session == SESSION else set()
            for sent, is_deleted, last in expected[session]:
                known.update(sent)
                found = {last} if last is not None else set(places[sent[-1]])
                is_whole = all(stored[p - len(sent) + 1 : p + 1] == sent for p in found)
                if last is None:
                    unclear += 1
                    there += len(found)
                    assert is_whole, f"{session}: a part is there of {sent}"
                    assert found or not any(places[content] for content in sent)
                elif is_deleted == is_whole:
                    lost.append((session, last))
            assert set(stored) <= known
        self.report(
            f"{faults}, {len(self.acknowledged)} writes acknowledged, {self._refusals()} refused, "
            f"{unclear} never acknowledged of which {there} are there, "
            f"{len(lost)} lost, {len(doubled)} doubled"
        )
        assert (lost, doubled) == ([], [])
        assert list(store.verify()) == []

    def _by_session(self) -> dict[str, list[tuple[list[object], bool, int | None]]]:
        """What was sent to each session: the contents, whether they were deleted, and the position
        of the last that was acknowledged.
        """
        found = defaultdict(list)
        for writer, count in self.begun.items():
            for number in range(count):
                sent = attempt(writer, number)
                last = self.acknowledged.get((writer, number))
                contents = [_content(entry) for entry in sent.entries]
                found[sent.session].append((contents, sent.is_deleted, last))
        return found

    def _done_by_each(self) -> dict[int, int]:
        self._see_work()
        done: dict[int, int] = defaultdict(int)
        for writer, _ in list(self.acknowledged):
            done[writer] += 1
        return done

    def _refusals(self) -> int:
        self._see_work()
        return sum([*self.refused.values()])

    def _see_work(self) -> None:
        """Raise what ended a writer or reader: nothing but an error does before the end."""
        for each in self._work:
            if each.done():
                each.result()

    def _write(self, store: Any, writer: int, is_over: threading.Event) -> None:
        while not is_over.is_set():
            number = self.begun[writer]
            self.begun[writer] += 1
            self._send(store, writer, number)

    def _send(self, store: Any, writer: int, number: int) -> None:
        """Send what may be repeated till it is acknowledged, and all else once."""
        sent = attempt(writer, number)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                last = sent.send(store)
            except Unavailable as error:
                if error.__cause__ or error.__context__ or time.monotonic() > deadline:
                    raise
            else:
                self.acknowledged[writer, number] = last
                time.sleep(random.uniform(0, 0.01))  # SQLite's lock goes to whoever asks in time
                return
            self.refused[writer] += 1
            time.sleep(random.uniform(0, 0.02))
            if not sent.may_be_repeated:
                return

    def _look(self, store: Any, is_over: threading.Event) -> None:
        follower = Follower(store)
        while not is_over.wait(0.2):
            try:
                follower.look()
            except Unavailable as error:
                if error.__cause__ or error.__context__:
                    raise


def _content(entry: Entry) -> object:
    """What was appended: the store may raise its time."""
    return str(entry.message) if isinstance(entry, MessageEntry) else entry
