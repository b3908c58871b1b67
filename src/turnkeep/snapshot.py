"""The fold of a session's entries to what an app needs to go on, and the healing of its messages.

What is stored is what happened, a turn that was cut off included. What goes to a model must be
sendable: providers demand one result for each tool call, right after the message that made it. So
the snapshot's messages are healed, each time they are made, and never written back.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Self, cast

from turnkeep import payload as json
from turnkeep.entries import Entry, MessageEntry, ModelEntry, ReasoningEntry, SkillEntry
from turnkeep.errors import InvalidArgument
from turnkeep.payload import JsonObject

INTERRUPTED = "Tool call interrupted before completion."
"""The content of the result that a call without any is given."""


@dataclass(frozen=True)
class Snapshot:
    """How a session stands.

    Attributes:
        id: the session's.
        messages: all of them in order, healed: what goes to a model.
        model: that of the last switch; None where none was made.
        reasoning: the level of the last switch; None where none was made.
        skills: the names of the skills that the model activated, in order.
    """

    id: str
    messages: list[JsonObject] = field(default_factory=list, repr=False)
    model: str | None = None
    reasoning: str | None = None
    skills: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, id: str, entries: Iterable[Entry]) -> Self:
        """The fold of *entries*: the last switches win, skills add up, unknown entries are passed
        over.
        """
        messages: list[JsonObject] = []
        skills: list[str] = []
        model = reasoning = None
        for entry in entries:
            if isinstance(entry, MessageEntry):
                messages.append(entry.message)
            elif isinstance(entry, ModelEntry):
                model = entry.model
            elif isinstance(entry, ReasoningEntry):
                reasoning = entry.reasoning
            elif isinstance(entry, SkillEntry):
                skills.append(entry.skill)
        return cls(id, heal(messages), model, reasoning, skills)

    def to_dict(self) -> JsonObject:
        """A JSON-safe dict of its own, from which `from_dict` makes an equal Snapshot."""
        raw: JsonObject = {name: getattr(self, name) for name in _FIELDS}
        # What an entry took lies two levels deeper here.
        return cast("JsonObject", json.decode(json.encode_again(raw)))

    @classmethod
    def from_dict(cls, raw: JsonObject) -> Self:
        """The Snapshot that gave *raw* as its `to_dict`.

        Raises:
            InvalidArgument: *raw* is not that.
        """
        given: JsonObject = {}
        messages = raw.get("messages") if type(raw) is dict else None
        if type(messages) is list:
            try:
                for each in messages:
                    json.encode(each)
                json.encode({name: raw[name] for name in raw if name != "messages"})
                given = cast("JsonObject", json.decode(json.encode_again(raw)))
            except ValueError:  # what JSON can't hold
                given = {}
        snapshot = cls(**given) if given.keys() == _FIELDS.keys() else None  # type: ignore[arg-type]
        if snapshot is None or not snapshot._is_sound():
            raise InvalidArgument("raw", "is not what a Snapshot's to_dict() gives")
        return snapshot

    def _is_sound(self) -> bool:
        """Whether all fields are of their types."""
        optional = [text for text in (self.model, self.reasoning) if text is not None]
        return (
            _is_list_of(str, [self.id, *optional])
            and _is_list_of(str, self.skills)
            and _is_list_of(dict, self.messages)
        )


_FIELDS = {field.name: field for field in fields(Snapshot)}


def _is_list_of(kind: type, given: object) -> bool:
    return isinstance(given, list) and all(isinstance(item, kind) for item in given)


@dataclass
class _Call:
    """A tool call, and its result once it is found."""

    id: str
    interrupted: JsonObject
    result: JsonObject | None = None


def heal(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """*messages* such that each tool call is answered once, right after the message that made it.

    A result belongs to the nearest call of its id before it, since ids may come again in later
    turns; of several in one message, to the first that has none. The first result of a call moves
    up to it, a further one is left out, and so is a result without a call. A call without any gets
    one that says so. Knows the shapes of riffer and OpenAI chat; messages of other dialects stay as
    they are. Linear in the number of messages.
    """
    kept: list[tuple[JsonObject, list[_Call]]] = []
    waiting: dict[str, list[_Call]] = {}  # of the last message with calls of that id, last first
    for message in messages:
        if message.get("role") == "tool" and "tool_call_id" in message:
            name = message["tool_call_id"]
            if isinstance(name, str) and waiting.get(name):
                waiting[name].pop().result = message
            continue
        calls = [*_calls(message)]
        kept.append((message, calls))
        waiting |= {call.id: [] for call in calls}
        for call in reversed(calls):
            waiting[call.id].append(call)
    healed: list[JsonObject] = []
    for message, calls in kept:
        healed.append(message)
        healed += [call.result or call.interrupted for call in calls]
    return healed


def _calls(message: JsonObject) -> Iterator[_Call]:
    """The tool calls of an assistant's message, with the answer that each gets if it has none."""
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):
        return
    for call in calls:
        if not isinstance(call, dict):
            continue
        is_riffers = "call_id" in call
        name = call.get("call_id" if is_riffers else "id")
        if not isinstance(name, str):
            continue
        answer: JsonObject = {"role": "tool", "content": INTERRUPTED, "tool_call_id": name}
        if is_riffers:  # OpenAI refuses a message that has more
            answer |= {"name": call.get("name"), "error": INTERRUPTED, "error_type": "interrupted"}
        yield _Call(name, answer)
