"""What the writers of the chaos tests send, which follows from who it is and the write's number.

A process that is to be killed imports this module, so it needs little, and nothing of pytest.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL

from contention import SESSION, any_sort, header, said, send
from turnkeep import Entry, SQLStore

ASIDE = 8
"""Each so many writes one is a session of its own; every other of those is deleted again."""


@dataclass(frozen=True)
class Attempt:
    """What is written at once, and to which session."""

    session: str
    entries: Sequence[Entry]
    keys: Sequence[str | None]
    is_deleted: bool = False

    @property
    def may_be_repeated(self) -> bool:
        """Whether it has a key."""
        return self.keys[0] is not None

    def send(self, store: Any) -> int:
        """Write it, and delete it where it is to be; its last position."""
        last = send(store, self.entries, self.keys, session=self.session)
        if self.is_deleted:
            store.delete(self.session)
        return last


def attempt(writer: int, number: int) -> Attempt:
    """What *writer* sends as that of this *number*."""
    if number % ASIDE:
        return Attempt(SESSION, *any_sort(writer, number))
    id = f"{writer}.{number}"
    shared = bytes([writer % 3]) * 1000
    entries = [header(id), said(id, shared, id.encode() * 100)]
    return Attempt(id, entries, [None, None], is_deleted=number % (2 * ASIDE) == 0)


def write_till_killed(url: URL, writer: int, first: int, told: Any) -> None:
    """Write from number *first* on, and send on *told* which were acknowledged, and where."""
    with SQLStore(url) as store:
        for number in itertools.count(first):
            told.send((number, attempt(writer, number).send(store)))
