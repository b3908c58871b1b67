"""All doors, how the inputs of a fuzz are dealt out to them, and what is told of it. See `laws`."""

from collections.abc import Iterator, Sequence
from typing import Any

from file_doors import HistoryFolder, JSONLFiles
from laws import Door
from store_doors import Arguments, Rows
from value_doors import (
    EntryDict,
    EntryValues,
    HistoryDict,
    HistoryText,
    HistoryValues,
    Lifting,
    Messages,
)

DOORS: dict[type[Door], int] = {
    HistoryText: 230,
    HistoryDict: 150,
    HistoryFolder: 50,
    HistoryValues: 100,
    EntryDict: 120,
    EntryValues: 100,
    Messages: 100,
    Lifting: 70,
    JSONLFiles: 50,
    Arguments: 20,
    Rows: 10,
}
"""The doors, and how many of a thousand inputs each gets."""


def fuzz_table(told: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines that say what was told of the inputs, door by door."""
    yield f"fuzz of seed {told[0]['seed']}: {sum(t['inputs'] for t in told):,} inputs"
    for name in [door.__name__ for door in DOORS]:
        parts = [t for t in told if t["door"] == name]
        if parts:
            inputs, accepted = (sum(t[key] for t in parts) for key in ("inputs", "accepted"))
            seconds, number = max(t["slowest"] for t in parts)
            memory = max(t["memory"] for t in parts) // 1_000_000
            counts = f"{inputs:9,} inputs, {accepted:8,} accepted, {inputs - accepted:8,} refused"
            slow = f"slowest {seconds * 1000:5.0f} ms of CPU (input {number})"
            yield f"  {name:14}{counts}; {slow}; process {memory} MB"
