"""Where the time of a session went, by the times at which its entries were recorded.

A model's time is that in front of its messages, a tool's that in front of its results; what is left
of a turn is the host's own, or the user's. An entry needn't say when it happened: whatever would
need to know it is None then, unknown, and never a guess.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from turnkeep import message_dialects
from turnkeep.entries import Entry, MessageEntry, Recorded
from turnkeep.message_dialects import Losses


@dataclass(frozen=True)
class Step:
    """An entry of a turn.

    Attributes:
        entry: the entry.
        offset: the time since the turn began; None is unknown.
        gap: the time since the entry before it, be it of an earlier turn; None is unknown, or
            there is none.
    """

    entry: Recorded
    offset: timedelta | None
    gap: timedelta | None


@dataclass(frozen=True)
class Turn:
    """A user's message and all that followed up to the next one.

    Attributes:
        offset: when it began, as the time since the session's first entry; None is unknown.
        steps: its entries, in order.
        model_time: the sum of the gaps before the assistant's messages; None where one is unknown.
        tool_time: the sum of the gaps before the results of tools; None where one is unknown.
    """

    offset: timedelta | None
    steps: tuple[Step, ...]
    model_time: timedelta | None
    tool_time: timedelta | None


def trace(entries: Iterable[Entry]) -> list[Turn]:
    """The turns of a session's *entries*, as `read` gives them, and their times.

    What stands before the first user message, such as a switch of the model, belongs to the first
    turn. Whose message one is says its dialect, so that a result in Anthropic's shape, which comes
    in the user's name, begins no turn.
    """
    turns: list[list[tuple[str, Recorded]]] = []
    has_prompt = False
    for entry in entries:
        if isinstance(entry, Recorded):
            role = _role(entry)
            if not turns or (role == "user" and has_prompt):
                turns.append([])
            has_prompt = has_prompt or role == "user"
            turns[-1].append((role, entry))
    traced: list[Turn] = []
    first = before = None
    for turn in turns:
        start = turn[0][1].recorded_time
        first = first if traced else start
        traced.append(_traced(turn, first, before))
        before = turn[-1][1].recorded_time
    return traced


def _traced(
    turn: list[tuple[str, Recorded]], first: datetime | None, before: datetime | None
) -> Turn:
    """A turn of a session whose first entry is of *first*, behind an entry of *before*."""
    start = turn[0][1].recorded_time
    steps = []
    times: dict[str, timedelta | None] = {"assistant": timedelta(), "tool": timedelta()}
    for role, entry in turn:
        at = entry.recorded_time
        gap = _since(before, at)
        steps.append(Step(entry, _since(start, at), gap))
        if role in times:
            spent = times[role]
            times[role] = None if spent is None or gap is None else spent + gap
        before = at
    return Turn(_since(first, start), tuple(steps), times["assistant"], times["tool"])


def _since(start: datetime | None, at: datetime | None) -> timedelta | None:
    return None if start is None or at is None else at - start


def _role(entry: Entry) -> str:
    """Whose message *entry* is; `""` where it is none, or in no known dialect."""
    if not isinstance(entry, MessageEntry):
        return ""
    message = entry.message
    drafts = message_dialects.read(message, Losses([]))
    return drafts[0].role if drafts else str(message.get("role", ""))
