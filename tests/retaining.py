"""Sessions with a past: what a namespace holds, as the tests know it, and what it comes to."""

import itertools
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from sqlalchemy import update

from contention import said
from turnkeep import Header, Limits, MessageEntry, Pruned, SQLStore
from turnkeep.rows import to_row
from turnkeep.tables import sessions

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = [b"one" * 10, b"two" * 100, b"three" * 500]
CWDS = ["/a", "/b", ""]

_numbers = itertools.count()


@dataclass(frozen=True)
class Past:
    """A session: where, how many minutes after noon it was last changed, and what it says."""

    id: str
    cwd: str
    minutes: int
    entries: tuple[MessageEntry, ...] = ()

    @property
    def header(self) -> Header:
        return Header(id=self.id, cwd=self.cwd, created_at="2026-01-01T00:00:00Z", model="m")

    @property
    def updated(self) -> datetime:
        return NOON + timedelta(minutes=self.minutes)

    @property
    def payload(self) -> int:
        """The bytes of its entries as they are stored."""
        texts = [self.header.payload]
        texts += [to_row(entry, "$", Limits()).payload for entry in self.entries]
        return sum(len(text.encode()) for text in texts)

    @property
    def blobs(self) -> dict[bytes, int]:
        """The sizes of its attachments."""
        return dict(self.places)

    @property
    def places(self) -> list[tuple[bytes, int]]:
        """Its attachments in each place."""
        rows = [to_row(entry, "$", Limits()) for entry in self.entries]
        return [(each.digest, len(each.data)) for row in rows for each in row.attachments]


def own_namespace(store: SQLStore) -> SQLStore:
    """The store in a namespace that no other test has."""
    return store.with_namespace(f"own {next(_numbers)}")


def remember(store: SQLStore, pasts: list[Past]) -> None:
    """Write the sessions, with the past that they have."""
    for past in pasts:
        store.extend(past.id, [past.header, *past.entries])
        age(store, past)


def age(store: SQLStore, past: Past) -> None:
    """Set the time of its last change back."""
    with store._database.engine.begin() as connection:
        connection.execute(
            update(sessions)
            .where(sessions.c.namespace == store._scope.namespace, sessions.c.id == past.id)
            .values(updated_at=past.updated)
        )


def gone(pasts: list[Past], kept: list[Past]) -> Pruned:
    """What it comes to where of *pasts* those that are not *kept* go."""
    went = [past for past in pasts if past not in kept]
    blobs = {digest: size for past in went for digest, size in past.blobs.items()}
    still = {digest for past in kept for digest in past.blobs}
    return Pruned(
        len(went),
        sum(1 + len(past.entries) for past in went),
        sum(past.payload for past in went)
        + sum(size for digest, size in blobs.items() if digest not in still),
    )


def aged(minutes: int, id: str | None = None, *, cwd: str = "/a", entries: int = 1) -> Past:
    """A session of that age."""
    return Past(id or f"s{minutes}", cwd, minutes, tuple(said(f"{i}") for i in range(entries)))


def with_files(past: Past, *files: bytes) -> Past:
    """It with one more entry, which has *files*."""
    return replace(past, entries=(*past.entries, said("look", *files)))


_entries = st.builds(
    lambda text, files: said(text, *files),
    st.sampled_from(["", "a", "é" * 50, "\U0001f600", "long " * 200]),
    st.lists(st.sampled_from(POOL), max_size=3),
)
pasts = st.lists(
    st.builds(
        Past,
        st.sampled_from(["a", "B", "ä", "\U0001f600", "\uffff", *map(str, range(12))]),
        st.sampled_from(CWDS),
        st.integers(0, 4),
        st.lists(_entries, max_size=3).map(tuple),
    ),
    max_size=10,
    unique_by=lambda past: past.id,
)
