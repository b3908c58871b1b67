"""Sessions that share attachments: whoever appends, reads and deletes at once, what is used stays.

On the two databases that several can use; what one alone sees is in `test_attachments`.
"""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, event, text

from conftest import Backend
from contention import header, said
from inspection import EMPTY, counts, orphans
from servers import wait_for
from turnkeep import (
    AsyncSQLStore,
    Entry,
    MessageEntry,
    SQLStore,
    Unavailable,
    UnknownSession,
    sql,
)
from turnkeep.database import TRIES
from turnkeep.prepared import Prepared
from turnkeep.testing import Blocking

A, B, C = b"first" * 50, b"second" * 50, b"third" * 50
looked = partial(said, "look")

READS: dict[str, Callable[[SQLStore], list[Entry]]] = {
    "read": lambda store: store.read("s"),
    "tail": lambda store: store.tail("s", 9),
    "page": lambda store: store.page("s").entries,
    "page before": lambda store: store.page("s", before=9).entries,
}


@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made anew"])
def test_a_reader_whom_a_delete_overtakes_sees_a_state_that_was(
    server_or_file: Backend, again: bool, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two statements: one's bytes never stand in the other's messages."""
    store, other = server_or_file.store(), server_or_file.store()
    new = [header("s"), looked(B), looked(B, A)]
    fetch, pending = Prepared.fetch, [True]

    def overtaken(self: Prepared, *arguments: Any) -> list[Any]:
        rows = fetch(self, *arguments)
        if pending and self in (sql.READ, sql.TAIL, sql.AFTER, sql.BEFORE):
            pending.clear()
            assert other.delete("s")
            if again:
                other.extend("s", new)
        return rows

    monkeypatch.setattr(Prepared, "fetch", overtaken)
    for name, read in READS.items():
        other.delete("s")
        other.extend("s", [header("s"), looked(A)])
        pending.append(True)
        if joined:
            with server_or_file.engine().connect() as connection:
                found = read(store.using(connection))
        else:
            found = read(store)
        assert not pending
        assert found == (new[name == "tail" :] if again else [])


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("first", ["delete", "append"])
def test_a_delete_and_an_append_of_the_same_bytes_wait_for_each_other(
    server_or_file: Backend, first: str, commits: bool
) -> None:
    """Whichever is first, and whether it stays or is undone: what is there then can be read."""
    store, host = server_or_file.store(), server_or_file.engine()
    store.extend("s1", [header("s1"), looked(A)])
    store.append("s2", header("s2"))
    calls: dict[str, Callable[[SQLStore], object]] = {
        "delete": lambda by: by.delete("s1"),
        "append": lambda by: by.append("s2", looked(A, B)),
    }
    second = "append" if first == "delete" else "delete"
    with ThreadPoolExecutor(1) as thread, host.connect() as connection:
        calls[first](store.using(connection))
        done = thread.submit(calls[second], store)
        if server_or_file.is_postgres:
            waiting = text("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
            with server_or_file.engine().connect() as observer:
                wait_for(lambda: bool(observer.execute(waiting).scalar()), "nobody waits")
        assert not done.done()
        connection.commit() if commits else connection.rollback()
        assert done.result() in (True, 1)
    appended = first == "delete" or commits
    deleted = first == "append" or commits
    assert store.read("s1") == ([] if deleted else [header("s1"), looked(A)])
    assert store.read("s2") == [header("s2"), *[looked(A, B)] * appended]
    assert orphans(store) == []
    assert counts(store)["blobs"] == (2 if appended else 0 if deleted else 1)


POOL = [bytes([65 + number]) * 4**number * 7 for number in range(6)]


class Sharers:
    """Threads that make, extend, read and delete sessions, whose attachments are the same few."""

    def __init__(self, store: SQLStore, rounds: int) -> None:
        self.store = store
        self.written: dict[str, dict[int, MessageEntry]] = {}
        self.gone: set[str] = set()
        self._rounds = iter(range(rounds))
        self._lock = threading.Lock()

    def run(self, seed: int) -> None:
        """Take rounds until there are none left."""
        choice = random.Random(seed)
        while True:
            with self._lock:
                number = next(self._rounds, None)
                living = sorted(set(self.written) - self.gone)
            if number is None:
                return
            if len(living) < 3 or choice.random() < 0.25:
                self._make(f"{seed}-{number}", choice)
            elif choice.random() < 0.4:
                self._append(choice.choice(living), choice)
            elif len(living) > 12 or choice.random() < 0.5:
                self._delete(choice.choice(living))
            else:
                self._read(choice.choice(living))

    def _make(self, id: str, choice: random.Random) -> None:
        entries = [self._message(choice) for _ in range(choice.randrange(1, 4))]
        assert self.store.extend(id, [header(id), *entries]) == len(entries)
        with self._lock:
            self.written[id] = dict(enumerate(entries, start=1))

    def _append(self, id: str, choice: random.Random) -> None:
        entry = self._message(choice)
        try:
            position = self.store.append(id, entry)
        except UnknownSession:
            with self._lock:
                assert id in self.gone
            return
        with self._lock:
            assert self.written[id].setdefault(position, entry) is entry

    def _delete(self, id: str) -> None:
        with self._lock:
            self.gone.add(id)
        self.store.delete(id)

    def _read(self, id: str) -> None:
        with self._lock:
            at_least = dict(self.written[id])
        entries = self.store.read(id)
        for entry in entries[1:]:
            assert isinstance(entry, MessageEntry)
            picks = str(entry.message["content"])
            assert entry == said(picks, *(POOL[int(pick)] for pick in picks))
        if entries:
            assert at_least.items() <= dict(enumerate(entries[1:], start=1)).items()
        else:
            with self._lock:
                assert id in self.gone

    def _message(self, choice: random.Random) -> MessageEntry:
        picks = [choice.randrange(len(POOL)) for _ in range(choice.randrange(4))]
        return said("".join(map(str, picks)), *(POOL[pick] for pick in picks))


def share(backend: Backend, rounds: int) -> None:
    store = backend.store()
    sharers = Sharers(store, rounds)
    with ThreadPoolExecutor(6) as threads:
        done = [threads.submit(sharers.run, seed) for seed in range(6)]
    for future in done:
        future.result()
    assert orphans(store) == []
    living = set(sharers.written) - sharers.gone
    assert {found.id for found in store.list()} == living
    for name in living:
        written = sharers.written[name]
        assert store.read(name) == [header(name), *(written[i + 1] for i in range(len(written)))]
    for name in living:
        assert store.delete(name)
    assert counts(store) == EMPTY


def test_sessions_that_share_attachments_keep_what_they_use(server_or_file: Backend) -> None:
    share(server_or_file, 400)


@pytest.mark.slow
def test_sessions_that_share_attachments_keep_what_they_use_for_long(
    server_or_file: Backend,
) -> None:
    share(server_or_file, 10_000)


@contextmanager
def overtaking(engine: Engine, by: SQLStore, data: bytes, times: int) -> Iterator[list[str]]:
    """Let *by* have *data* whenever one looks whether they are there, *times* often, and have
    them no more when the answer has come; the looks.
    """
    looks: list[str] = []

    def is_look(statement: str) -> bool:
        return "SELECT turnkeep_blobs.digest" in statement

    def look(*arguments: Any) -> None:
        if is_look(arguments[2]) and len(looks) < times:
            by.extend("overtaking", [header("overtaking"), looked(data)])

    def answered(*arguments: Any) -> None:
        if is_look(arguments[2]):
            looks.append(arguments[2])
            by.delete("overtaking")

    event.listen(engine, "before_cursor_execute", look)
    event.listen(engine, "after_cursor_execute", answered)
    yield looks
    event.remove(engine, "before_cursor_execute", look)
    event.remove(engine, "after_cursor_execute", answered)


WRITES: dict[str, Callable[[SQLStore, MessageEntry], object]] = {
    "append": lambda store, entry: store.append("s", entry),
    "append with a key": lambda store, entry: store.append("s", entry, idempotency_key="k"),
    "extend": lambda store, entry: store.extend("s", [entry]),
    "begin": lambda store, entry: [store.delete("s"), store.extend("s", [header("s"), entry])],
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "driver",
    [
        "psycopg",
        "psycopg in a transaction",
        pytest.param("psycopg_async", marks=pytest.mark.slow),
        "asyncpg",
    ],
)
def test_a_write_whose_bytes_a_delete_took_away_begins_anew(
    postgres_url: URL, driver: str, write: str
) -> None:
    """It looks which bytes are there, and does not hold them. A number of times that is no matter
    to the caller; then it is said, and nothing is written.
    """
    name, _, joined = driver.partition(" ")
    url = postgres_url.set(drivername=f"postgresql+{name}")
    with SQLStore(postgres_url) as by, ExitStack() as stack:
        by.upgrade()
        by.append("s", header("s"))
        store: Any = SQLStore(url) if name == "psycopg" else Blocking(lambda: AsyncSQLStore(url))
        stack.enter_context(store)
        engine = create_engine(url, poolclass=NullPool) if joined else store._database.engine

        def do(write: Callable[[SQLStore, MessageEntry], object], entry: MessageEntry) -> None:
            with engine.begin() if joined else nullcontext() as connection:
                write(store.using(connection) if joined else store, entry)

        with overtaking(engine, by, A, 3) as looks:
            do(WRITES[write], looked(B, A))
        assert len(looks) == 4
        assert by.read("s") == [header("s"), looked(B, A)]
        assert orphans(by) == []
        before = counts(by)
        with overtaking(engine, by, C, 100) as looks, pytest.raises(Unavailable, match="23503"):
            do(WRITES["append"], looked(C))
        assert len(looks) == TRIES
        assert counts(by) == before
