"""Load for as long as one likes: sync and async writers, readers and deleters over many sessions.

Every writer also has a session of its own, which nobody deletes, and counts what the store
acknowledged there. At the end those sessions hold just that, `verify` finds nothing anywhere, no
call failed, and the memory of the last quarter is that of the second.

    python benchmarks/soak.py --seconds 600
    python benchmarks/soak.py --seconds 600 --url postgresql://user:password@host/empty_database

Without `--url` it runs on a SQLite file and on a PostgreSQL of its own, one after the other.
"""

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import URL, make_url

from turnkeep import AsyncSQLStore, Header, MessageEntry, SQLStore, UnknownSession

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from servers import postgres_from_wheel

FILES = [random.Random(number).randbytes(1 << 12) for number in range(32)]
"""What is attached: few, so that most are shared."""

KINDS = {
    "append": 8,
    "extend": 2,
    "attach": 1,
    "read": 1,
    "tail": 1,
    "page": 1,
    "list": 1,
    "delete": 1,
}
"""The calls, and how often each of them is made against the others."""


@dataclass(frozen=True)
class Load:
    """How much of what."""

    seconds: float
    sessions: int
    sync_writers: int
    async_writers: int


@dataclass
class Ledger:
    """What the store acknowledged, in all and to each writer in its own session, and refused."""

    done: Counter[str] = field(default_factory=Counter)
    own: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, counter: str, name: str) -> None:
        """Count one."""
        with self._lock:
            getattr(self, counter)[name] += 1


def main() -> None:
    """Run the load, and exit with 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--url", help="an empty database; its tables are made")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--sync-writers", type=int, default=32)
    parser.add_argument("--async-writers", type=int, default=200)
    given = parser.parse_args()
    load = Load(given.seconds, given.sessions, given.sync_writers, given.async_writers)
    faults = 0
    for url in _databases(given.url):
        faults += soak(url, load)
    sys.exit(1 if faults else 0)


def soak(url: URL, load: Load) -> int:
    """Run the load on the database of *url* and tell what came of it; the number of faults."""
    ledger = Ledger()
    with SQLStore(url, migrate=True, timeout=60) as store:
        store.upgrade()
        writers, waiting = (
            [Writer(f"{kind} {number}", load, ledger) for number in range(count)]
            for kind, count in (("sync", load.sync_writers), ("async", load.async_writers))
        )
        threads = [threading.Thread(target=writer.run, args=[store]) for writer in writers]
        threads.append(threading.Thread(target=_run_async, args=[url, waiting]))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            ledger.memory.append(_rss())
            time.sleep(min(1, load.seconds / 20))
        return _judge(store, load, ledger)


def _judge(store: SQLStore, load: Load, ledger: Ledger) -> int:
    findings = list(store.verify())
    lost = doubled = 0
    for id, count in ledger.own.items():
        said = Counter(
            str(entry.message["content"])
            for entry in store.read(id)
            if isinstance(entry, MessageEntry)
        )
        lost += sum(1 for number in range(count) if not said[str(number)])
        doubled += sum(times - 1 for times in said.values())
    quarter = len(ledger.memory) // 4
    second, last = ledger.memory[quarter : 2 * quarter], ledger.memory[-quarter:]
    early, late = median(second), median(last)
    calls = ledger.done.total()
    print(f"{store!r}: {load.seconds:g} s, {calls} calls, {calls / load.seconds:.0f} a second")
    print("  " + ", ".join(f"{kind} {count}" for kind, count in sorted(ledger.done.items())))
    print(f"  appends acknowledged {ledger.own.total()}, lost {lost}, doubled {doubled}")
    print(f"  memory {early / 1e6:.0f} MB in the second quarter, {late / 1e6:.0f} MB in the last")
    print(f"  errors {ledger.errors.total()}, findings of verify {len(findings)}")
    for line in [*ledger.errors, *findings][:20]:
        print(f"    {line}")
    faults = lost + doubled + ledger.errors.total() + len(findings)
    return faults + (late > 1.2 * early)


class Writer:
    """One who calls the store at random, and counts what it acknowledges; sync and async alike."""

    def __init__(self, name: str, load: Load, ledger: Ledger) -> None:
        self._own = name
        self._load = load
        self._ledger = ledger
        self._chance = random.Random(name)
        self._end = time.monotonic() + load.seconds

    def run(self, store: SQLStore) -> None:
        """Call a sync *store* till the end."""
        for kind, call in self._calls():
            with self._counting(kind):
                call(store)

    async def run_async(self, store: AsyncSQLStore) -> None:
        """Call an async *store* till the end."""
        for kind, call in self._calls():
            with self._counting(kind):
                await call(store)

    @contextmanager
    def _counting(self, kind: str) -> Iterator[None]:
        try:
            yield
        except UnknownSession:  # deleted meanwhile
            self._ledger.add("done", "unknown session")
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told at the end)
            self._ledger.add("errors", f"{kind}: {type(error).__name__}: {error}")
        else:
            self._ledger.add("done", kind)
            if kind == "own":
                self._ledger.add("own", self._own)

    def _calls(self) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        chance = self._chance
        yield "begin", self._begin(self._own)
        while time.monotonic() < self._end:
            yield "own", self._append_own()
            id = f"s{chance.randrange(self._load.sessions)}"
            yield "begin", self._begin(id)
            [kind] = chance.choices([*KINDS], [*KINDS.values()])
            yield kind, getattr(self, f"_{kind}")(id)

    def _begin(self, id: str) -> Callable[[Any], Any]:
        return lambda store: store.append(id, _header(id))

    def _append_own(self) -> Callable[[Any], Any]:
        number = str(self._ledger.own[self._own])
        return lambda store: store.append(self._own, _said(number), idempotency_key=f"k{number}")

    def _append(self, id: str) -> Callable[[Any], Any]:
        entry = _said("x" * self._chance.choice([20, 200, 2000]))
        return lambda store: store.append(id, entry)

    def _extend(self, id: str) -> Callable[[Any], Any]:
        entries = [_said(str(number)) for number in range(self._chance.randrange(1, 20))]
        return lambda store: store.extend(id, entries)

    def _attach(self, id: str) -> Callable[[Any], Any]:
        entry = _said("look", *self._chance.sample(FILES, self._chance.randrange(1, 4)))
        return lambda store: store.append(id, entry)

    def _read(self, id: str) -> Callable[[Any], Any]:
        return lambda store: store.read(id)

    def _tail(self, id: str) -> Callable[[Any], Any]:
        return lambda store: store.tail(id, 20)

    def _page(self, id: str) -> Callable[[Any], Any]:
        return lambda store: store.page(id, after=5, limit=10)

    def _list(self, id: str) -> Callable[[Any], Any]:
        return lambda store: store.list(f"/w/{id[-1]}", limit=50)

    def _delete(self, id: str) -> Callable[[Any], Any]:
        return lambda store: store.delete(id)


def _run_async(url: URL, writers: list[Writer]) -> None:
    async def run() -> None:
        async with AsyncSQLStore(url, timeout=60) as store:
            await asyncio.gather(*(writer.run_async(store) for writer in writers))

    asyncio.run(run())


def _header(id: str) -> Header:
    return Header(id=id, cwd=f"/w/{id[-1]}", created_at="2026-11-30T12:00:00Z", model="m")


def _said(text: str, *files: bytes) -> MessageEntry:
    message: dict[str, Any] = {"role": "user", "content": text}
    if files:
        data = [b64encode(file).decode() for file in files]
        message["files"] = [{"media_type": "image/png", "data": each} for each in data]
    return MessageEntry(message)


def _rss() -> int:
    """Bytes of memory that this process holds."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def _databases(url: str | None) -> Iterator[URL]:
    if url is not None:
        yield make_url(url)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield URL.create("sqlite", database=str(Path(folder) / "soak.db"))
    with postgres_from_wheel(fsync=True) as server:
        yield server.create_database("soak")


if __name__ == "__main__":
    main()
