"""How a live session records what happens, in whatever store it is given.

Nothing is written before the first message; then the header, what was waiting, and the message go
in together. What happens is stamped when it happens, never before what happened earlier. State and
logic are the same for a sync and an async store, and said once here, as `plans`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from turnkeep.entries import (
    Entry,
    Header,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    Recorded,
    SkillEntry,
    recorded_at,
)
from turnkeep.errors import InvalidArgument
from turnkeep.ids import new_session_id
from turnkeep.payload import is_storable
from turnkeep.plans import Plan
from turnkeep.snapshot import Snapshot
from turnkeep.titles import title_of

NOT_RECORDED = ("system", "developer")
"""The roles of messages that are no part of a session."""


def check_model(model: object) -> str:
    """*model*, if it can be the name of one.

    Raises:
        InvalidArgument: it can't.
    """
    if type(model) is not str or not is_storable(model):
        raise InvalidArgument("model", "is a str without NUL and unpaired surrogates")
    return model


class Recorder:
    """What a session is and was, and the plans that change it.

    Args:
        cwd: the directory of a session that is to begin.
        model: the model that it begins with; of a session that is resumed, the last one.
        id: None makes one.
        entries: those of a session that is resumed.
        saves: whether there is a store at all.
        at_once: whether the store can write several entries in one transaction.
    """

    def __init__(
        self,
        cwd: str,
        model: str | None,
        *,
        id: str | None = None,
        entries: Sequence[Entry] = (),
        saves: bool,
        at_once: bool,
    ) -> None:
        self.id = id or new_session_id()
        self.model = model
        self.reasoning: str | None = None
        self._cwd = cwd
        self._saves = saves
        self._at_once = at_once
        self._entries = list(entries)
        self._waiting: list[Recorded] = []
        self._unsure: Recorded | None = None
        self._latest = ""
        for entry in entries:
            if isinstance(entry, ReasoningEntry):
                self.reasoning = entry.reasoning
            self._latest = max(self._latest, recorded_at(entry) or "")

    @property
    def snapshot(self) -> Snapshot:
        """How the session stands now."""
        return Snapshot.of(self.id, [*self._entries, *self._waiting])

    def add_message(self, message: Mapping[str, object]) -> Plan[None]:
        """Record *message*, the first one behind the header and what waited for it."""
        entry = MessageEntry(message, self._now())
        return _nothing() if message.get("role") in NOT_RECORDED else self._write(entry)

    def switch_model(self, model: str) -> Plan[None]:
        """Record that another *model* is used."""
        return self._switch(ModelEntry(check_model(model), self._now()))

    def switch_reasoning(self, level: str) -> Plan[None]:
        """Record that another *level* of reasoning is used."""
        return self._switch(ReasoningEntry(level, self._now()))

    def activate_skill(self, name: str) -> Plan[None]:
        """Record that the model activated the skill *name*."""
        return self._switch(SkillEntry(name, self._now()))

    def _switch(self, entry: Recorded) -> Plan[None]:
        """Record *entry*, which before the first message waits for it."""
        is_there = yield from self._is_there(entry)
        if self._entries and not is_there:
            yield from self._write(entry)
        elif not is_there:
            self._waiting.append(entry)
        if isinstance(entry, ModelEntry):
            self.model = entry.model
        elif isinstance(entry, ReasoningEntry):
            self.reasoning = entry.reasoning

    def _write(self, entry: Recorded) -> Plan[None]:
        """Write *entry*, and in front of the first one the header and what waits."""
        if (yield from self._is_there(entry)):
            return
        entries: list[Entry] = [*self._waiting, entry]
        if not self._entries:
            entries.insert(0, self._header(entry))
        if self._saves:
            self._unsure = entry
            if self._at_once and len(entries) > 1:
                yield lambda store: store.extend(self.id, entries)
            else:
                for each in entries:
                    yield partial(_append, id=self.id, entry=each)
            self._unsure = None
        self._entries += entries
        self._waiting.clear()

    def _is_there(self, entry: Recorded) -> Plan[bool]:
        """Whether *entry* is the one whose write failed last, and is in the store nevertheless.

        Of what failed the store is asked first what is there. A session that is there no more stays
        begun, so that it doesn't begin again.
        """
        if self._unsure is None:
            return False
        found: list[Entry] = yield lambda store: store.read(self.id)
        tried, self._unsure = self._unsure, None
        # Others may have written too, and the same may have been recorded before: so it is there if
        # it is there once more than was known.
        more = _times(tried, found) > _times(tried, self._entries)
        if found:
            if not self._entries:
                self._waiting = self._waiting[len(found) - 1 :]
            self._entries = list(found)
        return more and _is_same(tried, entry)

    def _header(self, first: Recorded) -> Header:
        return Header(
            id=self.id,
            cwd=self._cwd,
            created_at=first.recorded_at or "",
            model=self.model or "",
            title=title_of(first.message) if isinstance(first, MessageEntry) else "",
        )

    def _now(self) -> str:
        """The time, but not before that of what was recorded last: clocks are set back."""
        now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
        self._latest = max(self._latest, now)
        return self._latest


def _append(store: Any, *, id: str, entry: Entry) -> Any:
    return store.append(id, entry)


def _nothing() -> Plan[None]:
    yield from ()


def _times(entry: Entry, entries: Sequence[Entry]) -> int:
    return sum(_is_same(entry, each) for each in entries)


def _is_same(one: Entry, other: Entry) -> bool:
    """Whether they are equal but for their times."""
    return (one.type, one.payload) == (other.type, other.payload)
