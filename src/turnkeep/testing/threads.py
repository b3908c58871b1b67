"""Laws of a store that several threads use at the same time."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from turnkeep.entries import Entry, Header, MessageEntry
from turnkeep.errors import SessionExists, UnknownSession
from turnkeep.testing.checks import Laws, begin, expect, listed_ids, needs, same, together
from turnkeep.testing.samples import EARLY, LATE, header, message

SESSIONS = ("s1", "s2", "s3", "s4", "s5")


class ThreadLaws(Laws):
    """Appends, beginnings, reads and deletes that meet."""

    @needs("threads")
    def test_threads_append_to_one_session(self) -> None:
        """Of many threads' appends to a session each is there once, each thread's in its order."""
        store = self.make_store()
        begin(store, "s1")

        def write(thread: int) -> None:
            for number in range(15):
                store.append("s1", message(f"{thread} {number}"))

        together([partial(write, thread) for thread in range(8)])
        found = [entry for entry in store.read("s1") if isinstance(entry, MessageEntry)]
        expect(len(found) == 120, f"120 appends made {len(found)} entries")
        contents = [str(entry.message["text"]).split() for entry in found]
        for thread in range(8):
            own = [int(number) for writer, number in contents if writer == str(thread)]
            expect(own == list(range(15)), f"a thread's 15 appends came as {own}")

    @needs("threads")
    def test_threads_begin_one_session(self) -> None:
        """Threads that begin one session with equal Headers all succeed, and it has one."""
        store = self.make_store()
        for session in SESSIONS:
            together([partial(store.append, session, header(session))] * 8)
            same(store.read(session), [header(session)], "a session that 8 threads began")
        expect(sorted(listed_ids(store)) == list(SESSIONS), "5 sessions are not listed once each")

    @needs("threads")
    def test_one_of_many_headers_begins_a_session(self) -> None:
        """Of threads that begin one session with different Headers one succeeds.

        The others raise SessionExists.
        """
        store = self.make_store()
        for session in SESSIONS:
            won: list[Header] = []

            def start(first: Header, won: list[Header] = won) -> None:
                with suppress(SessionExists):
                    store.append(first.id, first)
                    won.append(first)

            together([partial(start, header(session, title=f"t{i}")) for i in range(8)])
            expect(len(won) == 1, f"{len(won)} of 8 different headers began one session")
            same(store.read(session), won, "a session that 8 threads would begin")

    @needs("threads")
    def test_a_readers_prefix_never_changes(self) -> None:
        """What a reader has seen of a session stays in its place, while others append."""
        store = self.make_store()
        begin(store, "s1")
        ended = threading.Semaphore(0)

        def write(thread: int) -> None:
            try:
                for number in range(20):
                    stamp = LATE if number % 2 else EARLY
                    store.append("s1", message(f"{thread} {number}", stamp))
            finally:
                ended.release()

        def watch() -> None:
            seen: list[Entry] = []
            writing = 3
            while writing:
                writing -= ended.acquire(timeout=0.001)
                found = store.read("s1")
                same(found[: len(seen)], seen, "what a reader had seen")
                seen = found
            expect(len(seen) == 61, f"a header and 60 appends made {len(seen)} entries")

        works: list[Callable[[], None]] = [watch, *(partial(write, i) for i in range(3))]
        together(works)

    @needs("threads")
    def test_deletes_and_appends_may_race(self) -> None:
        """While some begin a session and append to it, another may delete it again and again.

        It is whole each time that it is read; an append that finds none raises UnknownSession.
        """
        store = self.make_store()

        def write(thread: int) -> None:
            for number in range(15):
                store.append("s1", header())
                with suppress(UnknownSession):
                    store.append("s1", message(f"{thread} {number}"))

        def delete() -> None:
            for _ in range(30):
                store.delete("s1")
                found = store.read("s1")
                headers = [entry for entry in found if isinstance(entry, Header)]
                same(headers, [header()] if found else [], "the headers of a session")
                same(found[:1], headers, "the beginning of a session")

        works: list[Callable[[], None]] = [delete, *(partial(write, i) for i in range(3))]
        together(works)
        store.delete("s1")
        same(store.read("s1"), [], "a session that was deleted last")
