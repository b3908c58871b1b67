"""Where the time of a session went."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnkeep import Entry, Header, MessageEntry, ModelEntry, SkillEntry, Turn, trace

HEADER = Header(id="s1", cwd="/w", created_at="2026-11-30T11:00:00Z", model="m")
BEGIN = datetime(2026, 11, 30, 12, tzinfo=UTC)


def at(seconds: float | None) -> str | None:
    return None if seconds is None else (BEGIN + timedelta(seconds=seconds)).isoformat()


def said(role: str, seconds: float | None, **fields: Any) -> MessageEntry:
    return MessageEntry({"role": role, "content": "", **fields}, at(seconds))


def asked(seconds: float | None) -> MessageEntry:
    call = {"call_id": "c", "name": "x", "arguments": "{}"}
    return said("assistant", seconds, tool_calls=[call])


def result(seconds: float | None) -> MessageEntry:
    return said("tool", seconds, tool_call_id="c", name="x")


def seconds(turn: Turn) -> tuple[object, ...]:
    """A turn's times in seconds: offset, of the model, of the tools, and each step's two."""

    def of(time: timedelta | None) -> float | None:
        return None if time is None else time.total_seconds()

    steps = [(of(step.offset), of(step.gap)) for step in turn.steps]
    return of(turn.offset), of(turn.model_time), of(turn.tool_time), steps


def test_a_turn_tells_when_it_began_and_who_took_how_long() -> None:
    entries: list[Entry] = [
        HEADER,
        *(said("user", 0), asked(2), result(2.5), result(4), said("assistant", 7.25)),
        *(said("user", 60), ModelEntry("n", at(61)), said("assistant", 63)),
    ]
    first, second = trace(entries)
    assert [step.entry for step in first.steps] == entries[1:6]
    assert [step.entry for step in second.steps] == entries[6:]
    steps = [(0, None), (2, 2), (2.5, 0.5), (4, 1.5), (7.25, 3.25)]
    assert seconds(first) == (0, 5.25, 2, steps)
    assert seconds(second) == (60, 2, 0, [(0, 52.75), (1, 1), (3, 2)])


def test_what_is_not_known_stays_unknown_and_nothing_else_does() -> None:
    turns = trace(
        [
            *(said("user", 0), asked(None), result(3), said("assistant", 4)),
            *(said("user", None), said("assistant", 9), said("user", 10), said("assistant", 12)),
        ]
    )
    assert [seconds(turn) for turn in turns] == [
        (0, None, None, [(0, None), (None, None), (3, None), (4, 1)]),
        (None, None, 0, [(None, None), (None, None)]),
        (10, 2, 0, [(0, 1), (2, 2)]),
    ]
    assert [turn.offset for turn in trace([said("user", None), said("user", 1)])] == [None, None]


def test_what_comes_before_the_first_prompt_belongs_to_its_turn() -> None:
    entries = [HEADER, ModelEntry("n", at(0)), SkillEntry("x", at(1)), said("user", 3), asked(4)]
    assert [seconds(turn) for turn in trace(entries)] == [
        (0, 1, 0, [(0, None), (1, 1), (3, 2), (4, 1)])
    ]
    assert trace([HEADER]) == trace([]) == []
    assert [seconds(turn) for turn in trace([ModelEntry("n")])] == [(None, 0, 0, [(None, None)])]


def test_a_result_in_the_users_name_is_a_tools() -> None:
    """As Anthropic and OpenAI's Responses write it."""
    block = {"type": "tool_use", "id": "c", "name": "x", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "c", "content": "42"}
    item = {"type": "function_call", "call_id": "c", "name": "x", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "42"}
    anthropic = [
        *(said("user", 0), said("assistant", 1, content=[block])),
        *(said("user", 3, content=[answer]), said("assistant", 7, content="done")),
    ]
    responses = [
        said("user", 0),
        *(MessageEntry(raw, at(time)) for raw, time in ((item, 1), (output, 3))),
        said("assistant", 7),
    ]
    for entries in (anthropic, responses):
        [turn] = trace(entries)
        assert seconds(turn)[:3] == (0, 5, 2)


ROLES = {"u": "user", "a": "assistant", "t": "tool"}


@given(
    st.lists(st.tuples(st.sampled_from("uat"), st.none() | st.integers(0, 9)), min_size=1),
)
def test_times_add_up(steps: list[tuple[str, int | None]]) -> None:
    time = 0
    entries: list[Entry] = [HEADER]
    for role, gap in steps:
        time += gap or 0
        stamp = None if gap is None else time
        entries.append(result(stamp) if role == "t" else said(ROLES[role], stamp))
    turns = trace(entries)
    assert [step.entry for turn in turns for step in turn.steps] == entries[1:]
    assert all(turn.steps[0].entry.message["role"] == "user" for turn in turns[1:])  # type: ignore[attr-defined]
    if all(gap is not None for _, gap in steps):
        gaps = [step.gap for turn in turns for step in turn.steps]
        assert gaps[0] is None
        assert [gap.total_seconds() for gap in gaps[1:] if gap is not None] == [
            gap for _, gap in steps[1:]
        ]
        for role, spent in (("a", "model_time"), ("t", "tool_time")):
            total = sum((getattr(turn, spent) for turn in turns[1:]), timedelta())
            first = turns[0].steps
            wanted = sum(gap or 0 for r, gap in steps[len(first) :] if r == role)
            assert total.total_seconds() == wanted
        for turn in turns:
            for step in turn.steps:
                assert turn.offset is not None
                assert step.offset is not None
                since = step.entry.recorded_time - turns[0].steps[0].entry.recorded_time  # type: ignore[operator]
                assert turn.offset + step.offset == since
