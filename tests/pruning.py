"""What the writers do that go on while somebody prunes.

Each is a process, which imports this module and has no pytest.
"""

import time
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from sqlalchemy import URL

from contention import WAIT_SECONDS, header, said
from many import SHARED, own
from turnkeep import MessageEntry, SQLStore, UnknownSession

WRITERS = 8


@dataclass
class Written:
    """What one writer did.

    Attributes:
        there: the entries that it was told are stored, by session and position.
        refused: the sessions that it was told are not there.
        longest: how many seconds it waited for a call at the most.
        calls: how many it made.
    """

    there: dict[tuple[str, int], MessageEntry]
    refused: set[str]
    longest: float = 0.0
    calls: int = 0


_start: Any = None
_over: Any = None


def enlist(start: Any, over: Any) -> None:
    """Keep the barrier at which all begin, and the event at which they end."""
    global _start, _over
    _start, _over = start, over


def write_until_over(url: URL, writer: int, count: int) -> Written:
    """Begin sessions, and append to these and to any of the *count* old ones, some of them with
    bytes that old ones have too.
    """
    chance = Random(writer)
    written = Written({}, set())
    with SQLStore(url) as store:
        mine = [f"w{writer}"]
        store.append(mine[0], header(mine[0]))
        _start.wait(WAIT_SECONDS)
        while not _over.wait(chance.uniform(0, 0.04)):  # at full speed they starve each other
            written.calls += 1
            if chance.random() < 0.05:
                mine.append(f"w{writer}.{written.calls}")
                _timed(written, partial(store.append, mine[-1], header(mine[-1])))
                continue
            is_old = chance.random() < 0.5
            id = f"s{chance.randrange(count)}" if is_old else chance.choice(mine)
            files = [SHARED, own(10 * chance.randrange(count // 10))] * (chance.random() < 0.3)
            entry = said(f"{writer}.{written.calls}", *files)
            try:
                place = _timed(written, partial(store.append, id, entry))
            except UnknownSession:
                assert is_old
                written.refused.add(id)
            else:
                written.there[id, place] = entry
    return written


def _timed(written: Written, call: Any) -> int:
    since = time.monotonic()
    try:
        place: int = call()
        return place
    finally:
        written.longest = max(written.longest, time.monotonic() - since)
