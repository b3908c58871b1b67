"""Many at once: threads that start together, and what the tests' child processes do.

A spawned process imports this module, so nothing in it needs pytest.
"""

import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy import URL

from turnkeep import Conflict, Entry, Header, MessageEntry, SQLStore

WAIT_SECONDS = 60
"""How long one waits for the others: more than any of them needs, so that a test ends."""

SESSION = "hot"


def header(id: str = SESSION, *, title: str = "") -> Header:
    """A session's header."""
    return Header(id=id, cwd="/w", created_at="2026-11-30T12:00:00Z", model="m", title=title)


def said(text: str, *files: bytes, recorded_at: str | None = None) -> MessageEntry:
    """A user's message with *files*, whose bytes are kept apart from it."""
    message: dict[str, Any] = {"role": "user", "content": text}
    if files:
        data = [b64encode(file).decode() for file in files]
        message["files"] = [{"media_type": "image/png", "data": each} for each in data]
    return MessageEntry(message, recorded_at=recorded_at)


def together(*calls: Callable[[], object]) -> list[Any]:
    """What each of *calls* returned or raised, which began at one moment, each in its thread."""
    outcomes: list[Any] = [TimeoutError("did not end") for _ in calls]
    start = threading.Barrier(len(calls))

    def run(number: int) -> None:
        try:
            start.wait(WAIT_SECONDS)
            outcomes[number] = calls[number]()
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            outcomes[number] = error

    threads = [
        threading.Thread(target=run, args=[number], daemon=True) for number in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    return outcomes


@dataclass(frozen=True)
class Write:
    """A call that returned: the entries that it was given, and the position of the last of them."""

    entries: Sequence[Entry]
    keys: Sequence[str | None]
    last: int

    @property
    def first(self) -> int:
        """The position of the first entry."""
        return self.last - len(self.entries) + 1

    @property
    def is_shared(self) -> bool:
        """Whether others send the same under the same key."""
        return any(key is not None and key.startswith("shared") for key in self.keys)


class Follower:
    """A reader that looks again and again, as a whole and from where it got to."""

    def __init__(self, store: SQLStore) -> None:
        self._store = store
        self.whole: list[Entry] = []
        self.followed: list[Entry] = []

    def look(self) -> None:
        before = self._store.get(SESSION)
        found = self._store.read(SESSION)
        after = self._store.get(SESSION)
        assert found[: len(self.whole)] == self.whole
        assert before is not None
        assert after is not None
        assert before.last_position is not None
        assert after.last_position is not None
        assert before.last_position < len(found) <= after.last_position + 1
        assert before.updated is not None
        assert after.updated is not None
        assert before.updated <= after.updated
        self.whole = found
        page = self._store.page(SESSION, after=len(self.followed) - 1 if self.followed else None)
        self.followed += page.entries

    def look_while(self, work: list["Future[list[Write]]"]) -> list[list[Write]]:
        """Look until *work* is done, and see the end of it too; what the workers wrote."""
        while wait(work, timeout=0.02).not_done:
            self.look()
        writes = [future.result() for future in work]
        for _ in range(1 + len(self._store.read(SESSION)) // 500):
            self.look()
        assert self.followed == self.whole
        return writes


_start: Any = None


def enlist(start: Any) -> None:
    """Keep the barrier at which the processes of a pool wait for one another."""
    global _start  # noqa: PLW0603 (a process of the pool is made for this)
    _start = start


def any_sort(writer: int, number: int) -> tuple[list[Entry], list[str | None]]:
    """The entries of a write to the session and their keys, the same ones each time it is asked.

    There are single ones and batches, with and without a key, some the same as other writers', with
    bytes that others have too, and times out of order.
    """
    chance = Random(writer << 32 | number)
    kind = chance.choice(["one", "one", "batch", "bytes", "key", "keys", "shared"])
    size = chance.randint(2, 4) if kind in ("batch", "keys") else 1
    name = f"{writer}.{number}"
    if kind == "shared":
        group = chance.randrange(8)
        name = f"shared {group}"
        size = 1 + group % 2
    files = [bytes([chance.randrange(3)]) * 1000] if kind == "bytes" else []
    entries: list[Entry] = [
        said(f"{name}.{i}", *files, recorded_at=_some_time(chance, number)) for i in range(size)
    ]
    is_keyed = kind in ("key", "keys", "shared")
    return entries, [f"{name}.{i}" if is_keyed else None for i in range(size)]


def write_all_sorts(url: URL, writer: int, count: int) -> list[Write]:
    """Make *count* writes of any sort; those with a key twice."""
    done: list[Write] = []
    with SQLStore(url) as store:
        store.get(SESSION)
        _start.wait(WAIT_SECONDS)
        for number in range(count):
            entries, keys = any_sort(writer, number)
            for _ in range(2 if keys[0] else 1):
                done.append(Write(entries, keys, send(store, entries, keys)))  # noqa: PERF401
    return done


def claim_positions(url: URL, writer: int, count: int) -> list[Write]:
    """Make *count* writes, each of them behind the last position that the writer saw."""
    done: list[Write] = []
    with SQLStore(url) as store:
        store.get(SESSION)
        _start.wait(WAIT_SECONDS)
        while len(done) < count:
            seen = store.get(SESSION)
            assert seen is not None
            expected = seen.last_position
            size = 1 + (writer + len(done)) % 2
            entries = [said(f"{writer}.{len(done)}.{i}") for i in range(size)]
            try:
                last = send(store, entries, [None] * size, expected)
            except Conflict:
                continue
            assert last - size == expected
            done.append(Write(entries, [None] * size, last))
    return done


def send(
    store: SQLStore,
    entries: Sequence[Entry],
    keys: Sequence[str | None],
    expected: int | None = None,
    *,
    session: str = SESSION,
) -> int:
    """Append one entry, or extend by several; the position of the last."""
    if len(entries) == 1:
        return store.append(
            session, entries[0], idempotency_key=keys[0], expected_position=expected
        )
    return store.extend(session, entries, idempotency_keys=keys, expected_position=expected)


def _some_time(chance: Random, number: int) -> str | None:
    if chance.random() < 0.3:
        return None
    begin = datetime(2026, 11, 30, tzinfo=UTC) + timedelta(minutes=number)
    return (begin + timedelta(minutes=chance.uniform(-60, 60))).isoformat()
