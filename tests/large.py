"""Sessions that are larger than the memory that may be taken, each in a process of its own.

`large.py URL make COUNT ATTACHMENTS SIZE`, `… export ID DIR`, `… import DIR`, `… page ID` and
`… append SIZE` print a line of JSON: what came out, and how many bytes the peak was above the
start, as the system sees it and, where TRACE is set, as Python does. An append starts when the
entry is made, and so has its text in memory already.
"""

import json
import os
import random
import subprocess
import sys
import tracemalloc
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from turnkeep import Message, MessageEntry, SQLStore, Thinking, Tokens, ToolCall
from turnkeep.calls import Call, Scope
from turnkeep.dialect import Mode
from turnkeep.history import Attachment
from turnkeep.history_rows import to_rows
from turnkeep.limits import Limits
from turnkeep.sql import create
from turnkeep.transcript import Said, new_header

TEXT = "It was a bright cold day in April, and the clocks were striking „thirteen“.\n" * 24


def messages(count: int, attachments: int, size: int) -> Iterator[Message]:
    """A conversation of messages of about 2 kB, with bytes of that *size* here and there."""
    rng = random.Random(1)
    every = max(1, count // max(1, attachments))
    for number in range(count):
        has = number % every == 0 and number // every < attachments
        data = (Attachment("image/png", f"{number}.png", rng.randbytes(size)),) if has else ()
        name, answered = f"{number:022x}", f"call_{number - 1:020x}"
        if number % 4 == 1:
            call = ToolCall(f"call_{number:020x}", "read", {"path": "/a", "text": TEXT})
            yield Message(
                id=name,
                role="assistant",
                content="",
                tool_calls=(call,),
                model_id="some-model",
                thinking=Thinking("Hm.", "c2ln"),
                tokens=Tokens(number, 5, 3),
                attachments=data,
            )
        elif number % 4 == 2:
            yield Message(
                id=name, role="tool", content=TEXT, tool_call_id=answered, attachments=data
            )
        else:
            role = "user" if number % 4 == 0 else "assistant"
            yield Message(id=name, role=role, content=TEXT, attachments=data)


def make(store: SQLStore, count: str, attachments: str, size: str) -> str:
    """Make a session in the store, by the parts of the library that take one message at a time."""
    header = new_header(Said(), cwd="/w", id="large")
    rows = to_rows(messages(int(count), int(attachments), int(size)), None, Limits())
    session = Scope("", Limits()).session("large")
    store._runner.run(
        Call(Mode.WRITE, lambda c: create(c, session, header, rows, replace=True), lambda _: None)
    )
    return "large"


def page(store: SQLStore, session: str) -> int:
    """Read a session page by page; how many messages it has."""
    count = 0
    after: int | None = None
    while count == 0 or after is not None:
        page = store.page(session, after=after)
        count += sum(isinstance(e, MessageEntry) and bool(e.message) for e in page.entries)
        after = page.next_after
    return count


def attached(size: str) -> MessageEntry:
    """An entry whose message has an attachment of that size."""
    data = b64encode(random.Random(1).randbytes(int(size))).decode()
    return MessageEntry({"role": "user", "files": [{"media_type": "image/png", "data": data}]})


def resident(which: str) -> int:
    """How many bytes of memory this process has (VmRSS), or had at the most (VmHWM)."""
    line = next(
        s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(which)
    )
    return int(line.split()[1]) * 1024


def peak(work: Callable[[], Any]) -> dict[str, Any]:
    """What *work* gives, and the peak of the memory above the start."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    start = resident("VmRSS")
    if "TRACE" in os.environ:
        tracemalloc.start()
    out = work()
    traced = tracemalloc.get_traced_memory()[1] if "TRACE" in os.environ else None
    return {"out": str(out), "resident": resident("VmHWM") - start, "traced": traced}


def main(url: str, what: str, *arguments: str) -> None:
    with SQLStore(url) as store:
        store.list()  # all that happens once
        works: dict[str, Callable[..., Any]] = {
            "make": lambda *given: make(store, *given),
            "export": store.export_folder,
            "import": lambda folder: store.import_folder(
                folder, cwd="/w", id="again", replace=True
            ),
            "page": lambda session: page(store, session),
            "append": lambda entry: store.append("large", entry),
        }
        given = [attached(*arguments)] if what == "append" else arguments
        print(json.dumps(peak(lambda: works[what](*given))))


def measured(url: str, *arguments: str | Path, trace: bool = False) -> dict[str, Any]:
    """What a process of its own tells of one step, run by `main`."""
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, url, *arguments],
        env=os.environ | ({"TRACE": "1"} if trace else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(*arguments, found)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
