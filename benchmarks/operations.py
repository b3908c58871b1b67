"""What is measured: each operation as the store's method, and by hand on the bare driver."""

import itertools
import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import turnkeep
from benchmarks.databases import Side
from benchmarks.timing import Contender
from turnkeep import Entry, Header, History, MessageEntry

WORDS = [
    f"{a}{b}"
    for a in ("lo", "ve", "na", "tir", "os", "quem", "a", "bu", "sel", "i")
    for b in ("rem", "ta", "mus", "", "ne", "ria", "dolor", "t", "ca", "lis")
]
CWD = "/home/you/project"
MEGABYTE = 1_000_000

Message = dict[str, Any]


def text(size: int, seed: int = 0) -> str:
    """Words of so many characters."""
    rng = random.Random(seed)
    words = ""
    while len(words) < size:
        words += " ".join(rng.choices(WORDS, k=max(2, size // 6))) + " "
    return words[:size]


def message(size: int, seed: int = 0) -> Message:
    """An assistant's message of about so many bytes of JSON, with a tool call in it."""
    arguments = {"path": "/src/turnkeep/sql.py", "lines": [1, 80], "follow": False}
    frame = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call_{seed:08d}", "name": "read", "arguments": arguments}],
    }
    return frame | {"content": text(max(0, size - 170), seed)}


def picture(seed: int, size: int = MEGABYTE) -> Message:
    """A user's message with an attachment of so many bytes, of which no two seeds have the same."""
    data = b64encode(random.Random(f"picture {seed}").randbytes(size)).decode()
    return {
        "role": "user",
        "content": "What is this?",
        "files": [{"media_type": "image/png", "data": data}],
    }


def header(id: str, cwd: str = CWD) -> Header:
    """A session's header."""
    return Header(id=id, cwd=cwd, created_at="2026-11-30T12:00:00Z", model="small")


@dataclass(frozen=True)
class Operation:
    """A thing that a store does."""

    name: str
    contenders: Callable[[Side], Sequence[Contender]]
    """The bare driver comes first, with which the others are compared."""
    collected: bool = False


def _nothing(count: int) -> Sequence[None]:
    return [None] * count


def _pair(
    bare: Callable[[Any], Any],
    ours: Callable[[Any], Any],
    inputs: Callable[[int], Sequence[Any]] = _nothing,
) -> list[Contender]:
    return [Contender("bare", bare, inputs), Contender("ours", ours, inputs)]


def _append(size: int, side: Side) -> list[Contender]:
    given = message(size)
    for name in ("bare", "ours"):
        side.keeper.append(f"append {size} {name}", header(f"append {size} {name}"))
    mine, other = (f"append {size} {name}" for name in ("ours", "bare"))
    return _pair(
        lambda _: side.run(side.bare.append(other, given)),
        lambda _: side.store.append(mine, MessageEntry(given)),
    )


def _extend(count: int, side: Side) -> list[Contender]:
    given = [message(1000, seed) for seed in range(count)]
    for name in ("bare", "ours"):
        side.keeper.append(f"extend {name}", header(f"extend {name}"))
    return _pair(
        lambda _: side.run(side.bare.extend("extend bare", given)),
        lambda _: side.store.extend("extend ours", map(MessageEntry, given)),
    )


def _long_session(side: Side, count: int) -> str:
    """The session of so many messages of 1 KB, made where it isn't there."""
    name = f"{count} messages"
    if side.keeper.get(name) is None:
        side.keeper.append(name, header(name))
        for start in range(0, count, 500):
            some = [MessageEntry(message(1000, start + i)) for i in range(min(500, count - start))]
            side.keeper.extend(name, some)
    return name


def _read(count: int, side: Side) -> list[Contender]:
    session = _long_session(side, count)
    return _pair(lambda _: side.run(side.bare.read(session)), lambda _: side.store.read(session))


def _tail(count: int, side: Side) -> list[Contender]:
    session = _long_session(side, 1000)
    return _pair(
        lambda _: side.run(side.bare.tail(session, count)),
        lambda _: side.store.tail(session, count),
    )


def _list(count: int, side: Side) -> list[Contender]:
    for number in range(500):
        name = f"listed {number}"
        if side.keeper.get(name) is None:
            side.keeper.append(name, header(name, "/listed"))
    return _pair(
        lambda _: side.run(side.bare.list("/listed", count)),
        lambda _: side.store.list("/listed", limit=count),
    )


def _delete(count: int, side: Side) -> list[Contender]:
    names = (f"short {number}" for number in itertools.count())
    entries: list[Entry] = [MessageEntry(message(1000, seed)) for seed in range(count)]

    def inputs(calls: int) -> Sequence[str]:
        made = list(itertools.islice(names, calls))
        for name in made:
            side.keeper.extend(name, [header(name), *entries])
        return made

    return _pair(lambda name: side.run(side.bare.delete(name)), side.store.delete, inputs)


def _attach_new(side: Side) -> list[Contender]:
    for name in ("bare", "ours"):
        side.keeper.append(f"new {name}", header(f"new {name}"))
    seeds = itertools.count()

    def inputs(calls: int) -> Sequence[Message]:
        return [picture(next(seeds)) for _ in range(calls)]

    return _pair(
        lambda given: side.run(side.bare.attach("new bare", given)),
        lambda given: side.store.append("new ours", MessageEntry(given)),
        inputs,
    )


def _attach_again(side: Side) -> list[Contender]:
    known = picture(-1)
    for name in ("bare", "ours"):
        side.keeper.extend(f"again {name}", [header(f"again {name}"), MessageEntry(known)])
    return _pair(
        lambda _: side.run(side.bare.attach("again bare", known)),
        lambda _: side.store.append("again ours", MessageEntry(known)),
    )


def _attach_both(side: Side) -> list[Contender]:
    """The store with itself: bytes that it has, against bytes that are new to it."""
    known = picture(-2)
    side.keeper.extend("both", [header("both"), MessageEntry(known)])
    seeds = (-3 - number for number in itertools.count())
    return [
        Contender(
            "new",
            lambda given: side.store.append("both", MessageEntry(given)),
            lambda calls: [picture(next(seeds)) for _ in range(calls)],
        ),
        Contender("again", lambda _: side.store.append("both", MessageEntry(known)), _nothing),
    ]


def _read_attachments(count: int, side: Side) -> list[Contender]:
    session = "pictures"
    if side.keeper.get(session) is None:
        entries: list[Entry] = [MessageEntry(picture(-1000 - seed)) for seed in range(count)]
        side.keeper.extend(session, [header(session), *entries])
    return _pair(lambda _: side.run(side.bare.fetch(session)), lambda _: side.store.read(session))


def _history(count: int) -> History:
    """A conversation of so many messages."""
    each = tuple(
        turnkeep.Message(
            id=f"{number:032x}",
            role="assistant" if number % 2 else "user",
            content=text(850, number),
        )
        for number in range(count)
    )
    return History(1, each)


def _export(count: int, side: Side) -> list[Contender]:
    session = side.keeper.import_history(_history(count), cwd=CWD)
    return _pair(
        lambda _: side.run(side.bare.read(session)),
        lambda _: side.store.export_history(session),
    )


def _import(count: int, side: Side) -> list[Contender]:
    history = _history(count)
    made = side.keeper.read(side.keeper.import_history(history, cwd=CWD))
    given = [entry.message for entry in made if isinstance(entry, MessageEntry)]
    side.keeper.append("import bare", header("import bare"))
    return _pair(
        lambda _: side.run(side.bare.extend("import bare", given)),
        lambda _: side.store.import_history(history, cwd=CWD),
    )


OPERATIONS = (
    *(
        Operation(f"append {size / 1000:g} KB", partial(_append, size))
        for size in (200, 1000, 20_000, 200_000)
    ),
    Operation("extend by 1,000", partial(_extend, 1000)),
    *(Operation(f"read {count:,}", partial(_read, count)) for count in (100, 1000, 10_000)),
    Operation("read 1,000, GC on", partial(_read, 1000), collected=True),
    Operation("tail(20)", partial(_tail, 20)),
    Operation("list(50)", partial(_list, 50)),
    Operation("delete of 100", partial(_delete, 100)),
    Operation("attach 1 MB, new", _attach_new),
    Operation("attach 1 MB, known", _attach_again),
    Operation("attach 1 MB, known to new", _attach_both),
    Operation("read 5 MB of attachments", partial(_read_attachments, 5)),
    Operation("export 1,000", partial(_export, 1000)),
    Operation("import 1,000", partial(_import, 1000)),
)
