"""Where a call's work goes: how many functions it calls, and whose they are.

Counts are the same on every machine and under any load. After a wait for a disk or a server the
processor finds little of a program in its caches, so that what a call takes goes with how many
functions it runs through, more than with what these do.
"""

import cProfile
import pstats
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import sqlalchemy

import turnkeep
from benchmarks.databases import SIDES, Side, open_side
from benchmarks.operations import OPERATIONS
from benchmarks.report import Result
from benchmarks.timing import WARM_UP, Contender

PROFILED = ("append 1 KB", "read 1,000", "tail(20)", "list(50)", "attach 1 MB, known")
CALLS = 20
OWNERS = {
    "turnkeep": Path(turnkeep.__file__).parent,
    "SQLAlchemy": Path(sqlalchemy.__file__).parent,
    "msgspec": Path(msgspec.__file__).parent,
}


def profiles() -> Iterator[Result]:
    """The functions that a call calls, of the bare driver and of the store, by the sync drivers."""
    for database, driver in SIDES:
        if (database, driver) in (("Postgres", "psycopg"), ("SQLite FULL", "sqlite3")):
            with open_side(database, driver) as side:
                for operation in OPERATIONS:
                    if operation.name in PROFILED:
                        bare, ours = operation.contenders(side)
                        about = {"database": database, "operation": operation.name}
                        yield about | {"bare": calls(side, bare), "ours": calls(side, ours)}


def calls(side: Side, contender: Contender) -> dict[str, float]:
    """How many functions one call of it calls, by whose they are."""
    side.timer(contender.call, contender.inputs(WARM_UP))
    inputs = contender.inputs(CALLS)
    profile = cProfile.Profile()
    profile.enable()
    side.timer(contender.call, inputs)
    profile.disable()
    found: Counter[str] = Counter()
    for (file, _, name), (_, count, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        found[_owner(file, name)] += count
    return {owner: count / CALLS for owner, count in found.most_common()}


def _owner(file: str, name: str) -> str:
    for owner, folder in OWNERS.items():
        if Path(file).is_relative_to(folder) or f"{owner}." in name:
            return owner
    if "psycopg" in file:
        return "driver"
    return "driver" if "sqlite3" in name or "psycopg" in name else "Python"


def table(found: list[Result]) -> str:
    """The counts: of the bare driver in all, and of the store by whose they are."""
    owners = ("driver", "SQLAlchemy", "turnkeep", "msgspec", "Python")
    lines = [
        f"| | bare driver | turnkeep, in all | {' | '.join(f'of it {o}' for o in owners)} |",
        f"|---|---:|---:{'|---:' * len(owners)}|",
    ]
    for each in found:
        ours = each["ours"]
        counts = [sum(each["bare"].values()), sum(ours.values()), *(ours.get(o, 0) for o in owners)]
        cells = " | ".join(f"{count:,.0f}" for count in counts)
        lines.append(f"| {each['database']}, {each['operation']} | {cells} |")
    return "\n".join(lines)
