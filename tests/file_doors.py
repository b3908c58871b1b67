"""The doors of files, which others may have changed. See `laws`."""

import json
import os
import random
import re
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from laws import (
    ENTRIES,
    HEADER,
    HISTORIES,
    REFUSED,
    Door,
    Logged,
    assert_is_sound,
    assert_shows_nothing,
    opened,
)
from mutation import mutated_bytes
from turnkeep import (
    Entry,
    Header,
    History,
    HistoryError,
    JSONLStore,
    SessionExists,
    UnknownSession,
    history_stream,
    json_stream,
)
from turnkeep.entries import Recorded, recorded_at
from turnkeep.folder import FolderReader
from value_doors import HistoryText


class HistoryFolder(Door):
    """`History.load`, and the same folder read in portions, which must give the same."""

    duplicates = (b'"messages":[],', b'"version":2,', b'"messages":{"a":[1]},', b'"x":[{"y":[]}],')

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.text = HistoryText(folder / "unused")
        self.saved = HISTORIES[0].save(folder / "history")
        self.other = HISTORIES[1].save(folder / "other")
        self.good = (self.saved / "history.json").read_bytes()
        self.texts = [
            self.good,
            self.good,
            self.text.texts[0],
            json.dumps(json.loads(self.good)).encode(),
        ]
        self.attachments = self.saved / "attachments"

    def __call__(self, rng: random.Random) -> bool:
        given = rng.choice(self.texts)
        if rng.random() < 0.2:
            given = self.doubled(rng, given)
        if rng.random() < 0.7:
            given = mutated_bytes(rng, given, self.texts)
        (self.saved / "history.json").write_bytes(given)
        spoilt = rng.random() < 0.2
        if spoilt:
            self.spoil(rng)
        try:
            history = self.loaded(given, rng.choice((1, 50, 5000)))
            if history is not REFUSED and rng.random() < 0.1:
                assert History.load(history.save(self.folder / "again")) == history
        finally:
            if spoilt:
                self.repair()
        return history is not REFUSED

    def doubled(self, rng: random.Random, given: bytes) -> bytes:
        """The text with a key once more, at the beginning or the end of some object."""
        at = rng.choice([m.end() for m in re.finditer(rb"\A{|\]\s*(?=})", given)])
        extra = rng.choice(self.duplicates)
        return (
            given[:at] + (extra if given[at - 1 : at] == b"{" else b"," + extra[:-1]) + given[at:]
        )

    def loaded(self, given: bytes, least: int) -> Any:
        """What `load` gives; what is read in portions of *least* bytes says the same."""
        history, said = REFUSED, ""
        try:
            history = History.load(self.saved)
        except HistoryError as error:
            assert_shows_nothing(error, given)
            said = str(error)
        before, json_stream._LEAST = json_stream._LEAST, least
        try:
            with FolderReader(self.saved) as reader:
                known = history_stream.survey(reader, str)
                read = tuple(history_stream.messages(reader, known))
        except HistoryError as error:
            assert_shows_nothing(error, given)
            here = str(error)
            if "is not valid JSON" in said:
                said, here = said.partition(" JSON: ")[0], here.partition(" JSON: ")[0]
        else:
            here = ""
            assert known.said.count == len(read)
            assert history is REFUSED or read == history.messages  # type: ignore[attr-defined]
        finally:
            json_stream._LEAST = before
        assert here == said
        return history

    def spoil(self, rng: random.Random) -> None:
        """Change what lies beside the history."""
        file = rng.choice(sorted(self.attachments.iterdir()))
        data = file.read_bytes()
        match rng.randrange(8):
            case 0:
                shutil.move(self.attachments, self.saved / "elsewhere")
            case 1:
                shutil.move(self.attachments, self.saved / "elsewhere")
                self.attachments.symlink_to(self.other / "attachments")
            case 2:
                file.rename(file.with_name("x"))
            case 3:
                file.unlink()
                rng.choice(
                    (file.mkdir, partial(os.mkfifo, file), partial(file.symlink_to, self.good))
                )()
            case _:
                file.write_bytes(mutated_bytes(rng, data))

    def repair(self) -> None:
        """Put everything back."""
        shutil.rmtree(self.saved)
        HISTORIES[0].save(self.saved)


class JSONLFiles(Door):
    """A file of JSONLStore that others have changed."""

    lines: ClassVar[list[bytes]] = [
        json.dumps(entry.to_dict()).encode() + b"\n" for entry in ENTRIES
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / ".riffer" / "sessions" / "w" / "s.jsonl"
        self.file.parent.mkdir(parents=True)
        self.store = JSONLStore(folder)
        self.copies = JSONLStore(folder / "copies")
        self.logged = Logged("turnkeep.jsonl")

    def __call__(self, rng: random.Random) -> bool:
        lines = [self.lines[0], *rng.choices(self.lines[1:], k=rng.choice((0, 1, 3, 6)))]
        given = mutated_bytes(rng, b"".join(lines), self.lines)
        self.file.write_bytes(given)
        fresh = JSONLStore(self.folder)
        store = rng.choice((self.store, fresh))
        entries = opened(partial(store.read, "s"))
        assert fresh.read("s") == entries
        first = entries[0] if entries else None
        is_listed = isinstance(first, Header) and first.id == "s"
        assert store.list() == ([first] if is_listed else [])
        for entry in entries:
            assert_is_sound(entry)
        self.append(rng, store, entries)
        if is_listed and rng.random() < 0.3:
            self.copy(entries)
        if rng.random() < 0.2:
            assert store.delete("s")
            assert fresh.read("s") == store.read("s") == store.list() == []
        self.logged.assert_shows_nothing()
        return len(entries) >= len(lines)

    def close(self) -> None:
        self.logged.close()

    def append(self, rng: random.Random, store: JSONLStore, entries: list[Entry]) -> None:
        """To what is there more is added behind it."""
        entry = rng.choice(ENTRIES)
        try:
            position = store.append("s", entry)
        except UnknownSession:
            assert entries == []
            assert entry != HEADER
        except SessionExists:
            assert entry == HEADER != entries[0]
        else:
            is_known = entry == HEADER and entries != []
            assert position == (0 if is_known else len(entries))
            added = [] if is_known else [raised(entry, entries)]
            assert store.read("s") == [*entries, *added]

    def copy(self, entries: list[Entry]) -> None:
        """What was read is written, by another store, to the same."""
        self.copies.delete("s")
        there: list[Entry] = []
        for entry in entries:
            if isinstance(entry, Header) and there:
                continue
            there.append(raised(entry, there))
            assert self.copies.append("s", entry) == len(there) - 1
        assert self.copies.read("s") == there


def raised(entry: Entry, before: Iterable[Entry]) -> Entry:
    """*entry* as a session has it behind those *before*."""
    latest = max((recorded_at(other) or "" for other in before), default="")
    return entry.recorded_later(latest) if isinstance(entry, Recorded) and latest else entry
