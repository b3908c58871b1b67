"""The benchmarks compare like with like: what the bare driver does is what the store does."""

from collections.abc import Iterator

import pytest

from benchmarks.databases import SIDES, Side, open_side
from benchmarks.operations import OPERATIONS, message, picture
from turnkeep import MessageEntry

FAST = [op for op in OPERATIONS if "10,000" not in op.name and "GC" not in op.name]


LONG = {("Postgres", "psycopg_async"), ("Postgres", "asyncpg"), ("SQLite NORMAL", "sqlite3")}
"""Like others, so they are tried in the long form only."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(side, id=" by ".join(side), marks=[pytest.mark.slow] * (side in LONG))
        for side in SIDES
    ],
)
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    with open_side(*request.param) as side:
        yield side


@pytest.mark.parametrize("operation", FAST, ids=lambda op: op.name)
def test_all_contenders_can_be_called(side: Side, operation: object) -> None:
    assert isinstance(operation, type(OPERATIONS[0]))
    for contender in operation.contenders(side):
        assert side.timer(contender.call, contender.inputs(2)) > 0


def test_no_two_pictures_are_the_same() -> None:
    assert len({picture(seed, 9)["files"][0]["data"] for seed in range(-9, 9)}) == 18


def test_the_bare_driver_writes_and_reads_what_the_store_does(side: Side) -> None:
    for operation in FAST:
        if operation.name.startswith(("append 1 ", "extend", "attach 1 MB, known")):
            for contender in operation.contenders(side):
                side.timer(contender.call, contender.inputs(1))
    bare, ours = (side.keeper.tail(f"append 1000 {name}", 1) for name in ("bare", "ours"))
    assert bare == ours == [MessageEntry(message(1000))]
    bare, ours = (side.keeper.tail(f"extend {name}", 1000) for name in ("bare", "ours"))
    assert bare == ours == [MessageEntry(message(1000, seed)) for seed in range(1000)]
    bare, ours = (side.keeper.tail(f"again {name}", 1) for name in ("bare", "ours"))
    assert bare == ours == [MessageEntry(picture(-1))]
    assert list(side.keeper.verify()) == []
