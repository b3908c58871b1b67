"""What holds of whatever comes in by a door, and the valid values that inputs are made from.

A door draws an input of its kind, and says whether that gave a value. The law: it gives one of
which its own laws hold, what it writes reading back equal among them, or it raises an error of ours
that shows nothing of what a message says. All else that is raised or found is a fault.
"""

import copy
import json
import logging
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from histories import full
from messages import CONVERSATION, WORDS
from mutation import MARK, marked
from turnkeep import (
    Entry,
    Header,
    History,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    SkillEntry,
    TurnkeepError,
    UnknownEntry,
)
from turnkeep.entries import found, from_row, recorded_at
from turnkeep.lifting import base64_text, lift, put_back
from turnkeep.transcript import to_entries, to_history

STAMP = "2026-11-30T12:00:00.000Z"
HEADER = Header(id="s", cwd=f"/{MARK}", created_at=STAMP, model=MARK, title=MARK)
HISTORIES = [
    History.from_dict(marked(history.to_dict()))
    for history in (full(), full(b"two").repair_interrupted_tool_calls(), History())
]
MESSAGES: list[Any] = [marked(message) for message in CONVERSATION]
ENTRIES: list[Entry] = [
    HEADER,
    *(MessageEntry(message, STAMP) for message in MESSAGES),
    MessageEntry({}),
    ModelEntry(MARK, STAMP),
    ReasoningEntry(MARK),
    SkillEntry(MARK, STAMP),
    UnknownEntry("compaction", {"kept": [1, MARK], "data": {"mime": "a/b", "data": "QQ=="}}, STAMP),
    UnknownEntry("message", {"message": MARK, "recorded_at": "yesterday"}),
]
FIELDS = sorted({key for entry in ENTRIES for key in entry.to_dict()} | set(WORDS))
"""What an entry or a message may have as a key."""

REFUSED: Final = object()


def opened(call: Callable[[], Any], given: str | bytes = "") -> Any:
    """What *call* gives, or REFUSED where that is an error of ours, which shows nothing marked."""
    try:
        return call()
    except TurnkeepError as error:
        assert_shows_nothing(error, given)
        return REFUSED


def assert_shows_nothing(error: BaseException, given: str | bytes = "") -> None:
    """No mark is in *error* or behind it.

    Keys and names of files are shown, as parts of a place. So nothing can be told where a change
    made a key of a text that is marked, in the text that was *given*.
    """
    given = given if isinstance(given, str) else str(given, "utf-8", "replace")
    if re.search(rf'{MARK}[^"]*"\s*:', given):
        return
    link: BaseException | None = error
    while link is not None:
        for shown in (str(link), repr(link)):
            assert MARK not in re.sub(r"(\\?['\"]).*?\1 is no plain name", "", shown), shown
        link = link.__cause__ or link.__context__


SHOWN = f'"{MARK}":'
"""A text in which a mark stands where it may be shown."""


def is_marked(value: object) -> bool:
    """Whether *value* is a text with a mark: a type, an id or a key, which errors show."""
    return isinstance(value, str) and MARK in value


def assert_is_whole(history: History) -> None:
    """What *history* writes reads back equal, by each door."""
    written = history.to_json()
    again = History.parse(written.encode())
    assert again == History.parse(written) == History.from_dict(history.to_dict()) == history
    assert hash(again) == hash(history)
    repaired = history.repair_interrupted_tool_calls()
    assert repaired.repair_interrupted_tool_calls() is repaired
    assert to_history("s", [HEADER, *to_entries(history.messages, None)], None) == history
    assert MARK not in f"{history!r} {history.messages!r}"


def assert_is_sound(entry: Entry) -> None:
    """What *entry* writes reads back equal, by each door."""
    raw = entry.to_dict()
    assert found(raw) == found(json.loads(json.dumps(raw))) == entry
    assert from_row(entry.type, recorded_at(entry), entry.payload) == entry
    for same in (pickle.loads(pickle.dumps(entry)), copy.deepcopy(entry)):
        assert same == entry
        assert hash(same) == hash(entry)
    shown = repr(entry).replace(entry.type, "").replace(str(raw.get("id")), "")
    assert MARK not in shown
    assert_comes_back(entry.payload)


def assert_comes_back(payload: str) -> None:
    """What is lifted out of *payload* makes it again."""
    stays, lifted = lift(payload)
    texts = [(item.path, base64_text(item.data)) for item in lifted]
    assert put_back(stays, texts) == (payload, json.loads(payload))


class Logged(logging.Handler):
    """What the logger *name* is told, which goes nowhere else."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.records: list[str] = []
        self.logger = logging.getLogger(name)
        self.logger.addHandler(self)
        self.logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())

    def assert_shows_nothing(self) -> None:
        """No mark was in a record since this was asked last."""
        records, self.records = self.records, []
        assert not any(MARK in record for record in records), records

    def close(self) -> None:
        self.logger.propagate = True
        self.logger.removeHandler(self)
        super().close()


class Door:
    """A door. It may use *folder* as it likes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __call__(self, rng: random.Random) -> bool:
        """Try an input; whether it gave a value."""
        raise NotImplementedError

    def close(self) -> None:
        """Put back what was changed to use the door."""
