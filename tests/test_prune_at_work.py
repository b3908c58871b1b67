"""Pruning while others append: nobody loses what he was told is stored."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from conftest import Backend
from contention import WAIT_SECONDS
from many import make_many
from pruning import WRITERS, enlist, write_until_over
from turnkeep import Pruned, sql_retention


@dataclass
class Crew:
    """The writers' processes; *start* lets them and the pruner begin, *over* ends them."""

    pool: ProcessPoolExecutor
    start: Any
    over: Any


@pytest.fixture
def crew() -> Iterator[Crew]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["turnkeep", "psycopg", "sqlalchemy.dialects.postgresql"])
    start, over = context.Barrier(WRITERS + 1), context.Event()
    with ProcessPoolExecutor(
        WRITERS, mp_context=context, initializer=enlist, initargs=(start, over)
    ) as pool:
        yield Crew(pool, start, over)


@pytest.mark.parametrize(
    ("count", "rows"),
    [
        pytest.param(2_000, 250, id="short"),
        pytest.param(100_000, sql_retention.ROWS, id="long", marks=pytest.mark.slow),
    ],
)
def test_pruning_while_writers_append_loses_none_of_theirs(
    server_or_file: Backend, crew: Crew, monkeypatch: pytest.MonkeyPatch, count: int, rows: int
) -> None:
    monkeypatch.setattr(sql_retention, "ROWS", rows)
    store = server_or_file.store()
    make_many(server_or_file.engine(), count)
    work = [
        crew.pool.submit(write_until_over, server_or_file.url, i, count) for i in range(WRITERS)
    ]
    steps = [Pruned()]
    crew.start.wait(WAIT_SECONDS)
    try:
        pruned = store.prune(older_than=timedelta(days=1), progress=steps.append)
    finally:
        crew.over.set()
    writers = [future.result() for future in work]

    for before, after in pairwise(steps):
        assert after.entries - before.entries <= rows
    assert steps[-1] == pruned
    there = {place: entry for writer in writers for place, entry in writer.there.items()}
    old = {id for id, _ in there if id.startswith("s")}
    assert pruned.sessions + len(old) == count
    assert {header.id for header in store.list()} == old | {
        header.id for header in store.list("/w")
    }
    refused = set().union(*(writer.refused for writer in writers))
    assert not refused & {header.id for header in store.list()}
    for id in {id for id, _ in there}:
        session = store.read(id)
        mine = {position: entry for (other, position), entry in there.items() if other == id}
        assert {position: session[position] for position in mine} == mine
    assert list(store.verify()) == []
    print(
        f"{pruned}, {len(steps)} batches; {sum(writer.calls for writer in writers)} calls, the "
        f"longest {max(writer.longest for writer in writers):.3f} s; {len(old)} old ones stayed"
    )
