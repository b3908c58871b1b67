"""Whatever comes in by a door gives a value that is sound, or an error of ours: see `doors`.

An input is made from the seed, its door and its number alone. FUZZ sets how many there are in all,
FUZZ_SEED the seed, and FUZZ_INPUT the number of a single one, to see it again.
"""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest

from doors import DOORS
from laws import Door

TOTAL = int(os.environ.get("FUZZ", "10000"))
SEED = os.environ.get("FUZZ_SEED", "1")
AT_ONCE = 10_000
"""How many inputs a test takes, at the most."""
HUNG_SECONDS = 60
KINDS = 10
"""After how many kinds of fault it is enough."""


def portions() -> Iterator[tuple[type[Door], range]]:
    """The doors, each with numbers of inputs that it gets; a large share in several parts."""
    for door, share in DOORS.items():
        if "FUZZ_INPUT" in os.environ:
            only = int(os.environ["FUZZ_INPUT"])
            yield door, range(only, only + 1)
            continue
        count = TOTAL * share // sum(DOORS.values())
        for start in range(0, count, AT_ONCE):
            yield door, range(start, min(count, start + AT_ONCE))


PORTIONS = list(portions())


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No `fsync`: nothing of this is to outlast a power failure, and half of the time would be for
    that. And an alarm that raises, so that one knows which input hangs.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)
    before = signal.signal(signal.SIGALRM, _hangs)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Hangs(BaseException):
    """Nobody who handles errors takes it for one."""


def _hangs(*_: object) -> NoReturn:
    raise Hangs(f"no end after {HUNG_SECONDS} s")


@pytest.mark.parametrize(
    ("door", "numbers"), PORTIONS, ids=[f"{d.__name__}-{n.start}" for d, n in PORTIONS]
)
def test_whatever_comes_in_gives_a_sound_value_or_an_error_of_ours(
    door: type[Door],
    numbers: range,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    opened = door(tmp_path / "door")
    accepted = 0
    slowest = (0.0, -1)
    faults: dict[object, BaseException] = {}
    try:
        for number in numbers:
            start = time.process_time()
            signal.alarm(HUNG_SECONDS)
            try:
                accepted += opened(Random(f"{SEED} {door.__name__} {number}"))
            except (Exception, Hangs) as error:  # noqa: BLE001 (whatever it is, it is the finding)
                error.add_note(f"FUZZ_SEED={SEED} FUZZ_INPUT={number} pytest -k {door.__name__}")
                faults.setdefault(_kind(error), error)
                if len(faults) == KINDS or isinstance(error, Hangs):
                    break
            slowest = max(slowest, (time.process_time() - start, number))
    finally:
        opened.close()
    told = {
        "door": door.__name__,
        "inputs": len(numbers),
        "accepted": accepted,
        "slowest": slowest,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seed": SEED,
    }
    record_property("fuzz", told)
    if faults:
        raise BaseExceptionGroup(f"{len(faults)} kinds of fault", list(faults.values()))
    # Else the changes were so rough that nothing got in, or so slight that all did.
    assert len(numbers) < 100 or len(numbers) // 50 < accepted < len(numbers)


def _kind(error: BaseException) -> object:
    """The same for errors that are raised at the same place."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return type(error), trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
