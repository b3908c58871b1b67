"""The doors of values: histories, entries, and messages of every dialect. See `laws`."""

import copy
import json
import pickle
import random
import re
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from laws import (
    ENTRIES,
    FIELDS,
    HEADER,
    HISTORIES,
    MESSAGES,
    REFUSED,
    SHOWN,
    Door,
    assert_comes_back,
    assert_is_sound,
    assert_is_whole,
    is_marked,
    opened,
)
from messages import CONVERSATION, NOT_LIFTED, WORDS
from mutation import JSON, MARK, PYTHON, marked, mutated_bytes, mutated_value
from turnkeep import (
    Attachment,
    Entry,
    History,
    Message,
    MessageEntry,
    Snapshot,
    Thinking,
    Tokens,
    ToolCall,
    UnknownEntry,
    trace,
)
from turnkeep.entries import Recorded
from turnkeep.lifting import base64_text, lift, put_back
from turnkeep.snapshot import heal
from turnkeep.titles import title_of
from turnkeep.transcript import to_history


class HistoryText(Door):
    """`History.parse`, of text and of bytes."""

    texts: ClassVar[list[bytes]] = [h.to_json().encode() for h in HISTORIES]
    texts += [json.dumps(h.to_dict()).encode() for h in HISTORIES]
    keys = sorted({*re.findall(r'"([a-z_0-9]+)":', texts[0].decode())} | {"file"})

    def draw(self, rng: random.Random) -> bytes:
        """A text, in which few things are not as they should be."""
        if rng.random() < 0.6:
            return mutated_bytes(rng, rng.choice(self.texts), self.texts)
        raw = mutated_value(rng, rng.choice(HISTORIES).to_dict(), JSON, self.keys)
        dumped = json.dumps(raw, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2)))
        return dumped.encode("utf-8", "surrogatepass")

    def __call__(self, rng: random.Random) -> bool:
        drawn = self.draw(rng)
        given: str | bytes = drawn
        if rng.random() < 0.3:
            given = drawn.decode("utf-8", rng.choice(("surrogateescape", "replace", "ignore")))
        history = opened(partial(History.parse, given), given)
        if history is not REFUSED:
            assert_is_whole(history)
        return history is not REFUSED


class HistoryDict(Door):
    """`History.from_dict`, alone and with a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for history in HISTORIES:
            history.save(folder)

    def __call__(self, rng: random.Random) -> bool:
        inline = rng.random() < 0.7
        raw = rng.choice(HISTORIES).to_dict(inline_attachments=inline)
        raw = mutated_value(rng, raw, PYTHON, HistoryText.keys)
        folder = None if inline and rng.random() < 0.5 else self.folder
        history = opened(partial(History.from_dict, raw, folder))
        if history is not REFUSED:
            assert_is_whole(history)
        return history is not REFUSED


class HistoryValues(Door):
    """The constructors of a History and its parts."""

    parts: ClassVar[list[Any]] = [part for h in HISTORIES for part in [h, *h.messages]]
    parts += [
        part
        for m in HISTORIES[0].messages
        for part in [
            *m.attachments,
            *m.tool_calls,
            m.thinking or Thinking(MARK, MARK),
            m.tokens or Tokens(1),
        ]
    ]
    call = Message(id="call", role="assistant", content="", tool_calls=(ToolCall("x", "f", {}),))

    def __call__(self, rng: random.Random) -> bool:
        part = rng.choice(self.parts)
        given = {f.name: getattr(part, f.name) for f in fields(part) if f.init}
        if isinstance(part, Attachment):
            given = {"mime": part.mime, "filename": part.filename, "bytes": part.bytes}
        elif isinstance(part, ToolCall):
            given = {"id": part.id, "name": part.name, "arguments": part.arguments}
        given = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
        changed = mutated_value(rng, given, PYTHON)
        made = opened(lambda: type(part)(**{k: changed.get(k, given[k]) for k in given}))
        if made is REFUSED:
            return False
        assert made == pickle.loads(pickle.dumps(made)) == copy.deepcopy(made)
        assert MARK not in repr(made)
        history = opened(partial(self.history, made))
        if history is not REFUSED:
            assert_is_whole(history)
        return True

    def history(self, part: Any) -> History:
        """A history with *part* somewhere in it."""
        if isinstance(part, History):
            return part
        if isinstance(part, Attachment):
            part = Message(id="1", role="user", content="", attachments=(part,))
        elif isinstance(part, ToolCall):
            part = Message(id="1", role="assistant", content="", tool_calls=(part,))
        elif isinstance(part, Thinking):
            part = Message(id="1", role="assistant", content="", thinking=part)
        elif isinstance(part, Tokens):
            part = Message(id="1", role="assistant", content="", tokens=part)
        before = [replace(self.call, tool_calls=(ToolCall(part.tool_call_id or "", "f", {}),))]
        return History(messages=(*before, part))


class EntryDict(Door):
    """`Entry.from_dict`, and that of each kind of entry."""

    def __call__(self, rng: random.Random) -> bool:
        entry = rng.choice(ENTRIES)
        raw = mutated_value(rng, entry.to_dict(), rng.choice((JSON, PYTHON)), FIELDS)
        cls = rng.choice((Entry, Entry, type(entry)))
        kind = raw.get("type")
        made = opened(partial(cls.from_dict, raw), SHOWN if is_marked(kind) else "")
        if made is not REFUSED:
            assert isinstance(made, cls)
            assert Entry.from_dict(made.to_dict()) == made
            assert_is_sound(made)
        return made is not REFUSED


class EntryValues(Door):
    """The constructors of entries."""

    def __call__(self, rng: random.Random) -> bool:
        entry = rng.choice(ENTRIES)
        given: dict[str, Any] = entry.to_dict()
        del given["type"]
        if isinstance(entry, UnknownEntry):
            given = {"type": entry.type, "data": entry.data, "recorded_at": entry.recorded_at}
        changed = mutated_value(rng, given, PYTHON, FIELDS)
        given = {k: changed.get(k, given[k]) for k in given}
        made = opened(lambda: type(entry)(**given))
        if made is not REFUSED:
            assert_is_sound(made)
        return made is not REFUSED


class Messages(Door):
    """Sessions of messages in all dialects: exported, imported, healed, traced."""

    def __call__(self, rng: random.Random) -> bool:
        entries: list[Entry] = [HEADER]
        for message in rng.choices(MESSAGES, k=rng.choice((1, 1, 2, 3, 6))):
            raw = mutated_value(rng, message, JSON, WORDS) if rng.random() < 0.7 else message
            if (made := opened(partial(MessageEntry, raw))) is REFUSED:
                return False
            entries.append(made)
        if rng.random() < 0.2:
            entries.insert(rng.randrange(len(entries) + 1), rng.choice(ENTRIES))
        losses: list[str] = []
        history = to_history("s", entries, losses)  # with a list nothing is refused
        assert_is_whole(history)
        assert not any(MARK in loss for loss in losses)
        assert to_history("s", entries, []) == history
        strict = opened(partial(to_history, "s", entries, None))
        assert strict is REFUSED if losses else strict == history
        snapshot = Snapshot.of("s", entries)
        assert heal(snapshot.messages) == snapshot.messages
        assert Snapshot.from_dict(snapshot.to_dict()) == snapshot
        recorded = [entry for entry in entries if isinstance(entry, Recorded)]
        assert [step.entry for turn in trace(entries) for step in turn.steps] == recorded
        for entry in entries:
            if isinstance(entry, MessageEntry):
                title_of(entry.message).encode()
        return strict is not REFUSED


class Lifting(Door):
    """Bytes out of messages and back; at places that others have written too."""

    messages: ClassVar[list[Any]] = [marked(m) for m in (*CONVERSATION, *NOT_LIFTED)]

    def __call__(self, rng: random.Random) -> bool:
        raw = mutated_value(rng, rng.choice(self.messages), JSON, WORDS)
        entry = opened(partial(MessageEntry, raw))
        if entry is REFUSED:
            return False
        assert_comes_back(entry.payload)
        stays, lifted = lift(entry.payload)
        places = [(item.path, base64_text(item.data)) for item in lifted] or [('["message"]', "")]
        paths = [str(mutated_bytes(rng, path.encode()), errors="replace") for path, _ in places]
        with suppress(ValueError):
            put_back(stays, [(path, data) for path, (_, data) in zip(paths, places, strict=True)])
        return bool(lifted)
