"""Contenders in turns, in one process.

A round gives each contender a block of calls, in order and then in reverse (A B B A), so that what
drifts, the machine's other work most of all, falls on all of them alike. A ratio is that of the two
times within one round; what is reported is the median of the rounds' ratios, and their quartiles.
Absolute times are there to say what the ratios are of. What a call needs is made outside of the
time.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Protocol

BLOCK_SECONDS = 0.012
"""How long a block takes, about: short, since the machine's other work comes in bursts."""

LEAST_ROUNDS = 7
MOST_CALLS = 200
LEAST_CALLS, LONG_BLOCK_SECONDS = 5, 0.1
"""A block has so many calls, unless that takes too long: a single one would find the caches, and
the memory that comes with it, as another left them.
"""
WARM_UP = 12
"""How many calls come before: psycopg prepares a statement when it has run it five times."""


@dataclass(frozen=True)
class Contender:
    """One of those that are compared."""

    name: str
    call: Callable[[Any], Any]
    """The operation; what it gives is awaited where the timer is that of an event loop."""
    inputs: Callable[[int], Sequence[Any]]
    """What so many calls are given, one each."""
    timer: "Timer | None" = None
    """Its own, where it is another than that of the rest."""


class Timer(Protocol):
    """How long a block takes, in seconds."""

    def __call__(self, call: Callable[[Any], Any], inputs: Sequence[Any]) -> float:
        """Call it once with each of *inputs*."""


def on_this_thread(call: Callable[[Any], Any], inputs: Sequence[Any]) -> float:
    """The timer of what is not awaited."""
    begin = time.perf_counter()
    for given in inputs:
        call(given)
    return time.perf_counter() - begin


class OnLoop:
    """The timer of what is awaited, all of it on the one loop of *runner*."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def __call__(self, call: Callable[[Any], Any], inputs: Sequence[Any]) -> float:
        """Await it once with each of *inputs*."""
        return self._runner.run(self._timed(call, inputs))

    async def _timed(self, call: Callable[[Any], Any], inputs: Sequence[Any]) -> float:
        begin = time.perf_counter()
        for given in inputs:
            await call(given)
        return time.perf_counter() - begin


@dataclass
class Spread:
    """The middle half of some numbers."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread":
        """That of *numbers*, two at least."""
        low, _, high = quantiles(numbers, n=4, method="inclusive")
        return cls(low, median(numbers), high)


@dataclass
class Compared:
    """What became of a comparison."""

    seconds: dict[str, Spread]
    """What one call of each took."""
    ratios: dict[str, Spread]
    """Each to the first, round by round."""
    rounds: int
    calls: dict[str, int]
    """Of each in a block."""
    collected: bool
    """Whether the garbage collector ran when it liked; else it was off within a block."""
    notes: dict[str, Any] = field(default_factory=dict)


def compare(
    contenders: Sequence[Contender], timer: Timer, seconds: float, *, collected: bool = False
) -> Compared:
    """Let *contenders* call in turns for so many *seconds*; the first is the measure."""
    timers = {contender.name: contender.timer or timer for contender in contenders}
    calls = {}
    for contender in contenders:
        timers[contender.name](contender.call, contender.inputs(WARM_UP))
        took = timers[contender.name](contender.call, contender.inputs(3)) / 3
        fitting = round(BLOCK_SECONDS / took)
        least = min(LEAST_CALLS, round(LONG_BLOCK_SECONDS / took))
        calls[contender.name] = max(1, least, min(MOST_CALLS, fitting))
    spent: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    deadline = time.monotonic() + seconds
    rounds = 0
    while rounds < LEAST_ROUNDS or time.monotonic() < deadline:
        in_round = dict.fromkeys(spent, 0.0)
        for contender in (*contenders, *reversed(contenders)):
            inputs = contender.inputs(calls[contender.name])
            with _garbage(collected=collected):
                took = timers[contender.name](contender.call, inputs)
            in_round[contender.name] += took / (2 * len(inputs))
            del inputs
        for name, taken in in_round.items():
            spent[name].append(taken)
        rounds += 1
    measure = spent[contenders[0].name]
    return Compared(
        {name: Spread.of(times) for name, times in spent.items()},
        {
            name: Spread.of([mine / its for mine, its in zip(times, measure, strict=True)])
            for name, times in spent.items()
        },
        rounds,
        calls,
        collected,
    )


@contextmanager
def _garbage(*, collected: bool) -> Iterator[None]:
    """A block begins without garbage; within it the collector is on only where it is asked for."""
    gc.collect(0 if collected else 1)
    if not collected:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
