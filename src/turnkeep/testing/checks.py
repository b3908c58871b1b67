"""What the laws are written with: checks that say what they found, and work in several threads.

They raise AssertionError themselves. The `assert` statement is left out by `python -O`, and tells
little in a module whose asserts pytest does not rewrite.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from itertools import zip_longest
from typing import ClassVar, TypeVar

from turnkeep.entries import Entry, Header, MessageEntry
from turnkeep.errors import TurnkeepError
from turnkeep.protocols import Store
from turnkeep.testing.samples import header

T = TypeVar("T")

CAPABILITIES = {
    "any_id": "every id of 1 to 255 bytes of UTF-8 without NUL is taken, not only plain ones",
    "deep": "a message may be nested 200 levels deep",
    "key_order": "objects keep the order of their keys",
    "large": "a message may be of 4 MB",
    "nul": "text may hold NUL",
    "numbers": "numbers keep type and value: 10**30, 1, 1.0, -0.0, 1e16",
    "surrogates": "text may hold unpaired surrogates",
    "threads": "threads may use one store at the same time",
    "unknown_entries": "entries of types that this version doesn't know are kept as they are",
}
"""What a store may be without, by the names that `without` takes."""

NEEDS: dict[str, str] = {}
"""The capability that a law needs, by the law's name; most need none."""

TYPED = (TurnkeepError, LookupError, TypeError, ValueError)
"""What may come of an argument that can't be right, where no law says more."""


class Laws:
    """Some of the laws of a store: each is a method, and begins with an empty store."""

    without: ClassVar[Collection[str]] = ()
    tick: ClassVar[float] = 0.02

    def make_store(self) -> Store:
        """An empty store, another one each time."""
        raise NotImplementedError("give a make_store() that makes an empty store")


def needs(capability: str) -> Callable[[T], T]:
    """The law holds only for a store that has *capability*."""

    def mark(law: T) -> T:
        NEEDS[law.__name__] = capability  # type: ignore[attr-defined]
        return law

    return mark


def expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 (reads as an assertion does)
    """Hold something to be true."""
    if not holds:
        raise AssertionError(otherwise)


def same(found: Sequence[Entry], wanted: Sequence[Entry], what: str) -> None:
    """Hold *found* to be a list of entries that equal *wanted*, to the types of all values."""
    expect(isinstance(found, list), f"{what}: is a {type(found).__name__}, not a list")
    for place, (entry, other) in enumerate(zip_longest(found, wanted)):
        there, expected = exact(entry), exact(other)
        # An entry hands out its values anew each time: what the second look gives counts too.
        if entry != other or there != expected or exact(entry) != expected:
            pairs = enumerate(zip_longest(there, expected))
            start = max(0, next((i for i, (a, b) in pairs if a != b), 0) - 40)
            raise AssertionError(
                f"{what}: {len(found)} entries, {len(wanted)} wanted; they differ at {place}, where"
                f" (from its sign {start} on) stands\n  {there[start : start + 120]}\n"
                f"in place of\n  {expected[start : start + 120]}"
            )


def exact(entry: Entry | None) -> str:
    """All that an entry hands out, as text in which 1, 1.0 and True differ."""
    if not isinstance(entry, Entry):
        return f"{type(entry).__name__} {entry!r}"
    given = entry.to_dict()
    if isinstance(entry, MessageEntry):
        given["message"] = entry.message
    return f"{type(entry).__name__} {given}"


def begin(store: Store, session: str, *entries: Entry) -> None:
    """Begin *session*, and append *entries*."""
    for entry in (header(session), *entries):
        store.append(session, entry)


def returned(store: Store, entries: Sequence[Entry]) -> None:
    """Hold *store* to give back *entries* as they were appended."""
    begin(store, "s1", *entries)
    same(store.read("s1"), [header(), *entries], "what is read")


@contextmanager
def refused(store: Store, kinds: tuple[type[Exception], ...], what: str) -> Iterator[None]:
    """Hold what runs inside to raise one of *kinds*, and to change nothing."""
    before = state(store)
    try:
        yield
    except kinds:
        pass
    except Exception as error:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise AssertionError(f"{what}: raises {type(error).__name__}, not {names}") from error
    else:
        raise AssertionError(f"{what}: is not refused")
    expect(state(store) == before, f"{what}: is refused, but changed something")


def state(store: Store) -> object:
    """What *store* lists and holds; of two sessions also where it doesn't list them."""
    listed = [(found.updated, found) for found in store.list()]
    sessions = {"s1", "s2", *(found.id for _, found in listed)}
    return listed, {name: [exact(entry) for entry in store.read(name)] for name in sessions}


def updated(store: Store, session: str) -> datetime:
    """The `updated` of a session as it is listed."""
    found = {listed.id: listed.updated for listed in store.list()}.get(session)
    if not isinstance(found, datetime) or found.utcoffset() is None:
        raise AssertionError(f"`updated` is {found!r}, not a datetime with a zone")
    return found


def listed_ids(store: Store, cwd: str | None = None) -> list[str]:
    """The ids of the sessions in the order of the list."""
    found = store.list(cwd)
    expect(all(isinstance(h, Header) for h in found), "the list holds more than Headers")
    return [h.id for h in found]


def together(works: Sequence[Callable[[], T]]) -> list[T]:
    """Do all *works* at the same time, each in a thread: what came of them, or an exception."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], T]) -> T:
        start.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result() for future in [threads.submit(run, work) for work in works]]
