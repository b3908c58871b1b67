"""The fold of a session, and the healing of its messages."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeep import (
    Header,
    InvalidArgument,
    Loader,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    SkillEntry,
    Snapshot,
    SQLStore,
    UnknownEntry,
)
from turnkeep.snapshot import INTERRUPTED, heal

Message = dict[str, Any]
HEADER = Header(id="s1", cwd="/w", created_at="2026-11-30T12:00:00Z", model="the header's")
USER: Message = {"role": "user", "content": "Go on"}


def asks(*ids: str, shape: str = "riffer") -> Message:
    """An assistant's message with calls of these ids."""
    if shape == "riffer":
        calls: list[Any] = [{"call_id": id, "name": f"do {id}", "arguments": "{}"} for id in ids]
    else:
        function = {"name": "do", "arguments": "{}"}
        calls = [{"id": id, "type": "function", "function": function} for id in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(id: str, content: str = "42") -> Message:
    return {"role": "tool", "content": content, "tool_call_id": id}


def interrupted(id: str, shape: str = "riffer") -> Message:
    """The result that a call without any is given, as the spec writes it."""
    answer = {"role": "tool", "content": INTERRUPTED, "tool_call_id": id}
    if shape == "riffer":
        answer |= {"name": f"do {id}", "error": INTERRUPTED, "error_type": "interrupted"}
    return answer


def test_the_text_of_an_interruption_is_that_of_riffer() -> None:
    assert INTERRUPTED == "Tool call interrupted before completion."


@pytest.mark.parametrize("shape", ["riffer", "openai"])
@pytest.mark.parametrize(
    ("stored", "sendable"),
    [
        # Killed between a call and its result, at the end and in the middle.
        ("AB a", "AB a !b"),
        ("AB a U", "AB a !b U"),
        ("AB U A", "AB !a !b U A !a"),
        # Results in the order of their completion, or behind what came in between.
        ("ABC c a b", "ABC a b c"),
        ("A U a", "A a U"),
        ("A B b a", "A a B b"),
        # The first of two results stands, wherever it is.
        ("A a a2", "A a"),
        ("A a U a2", "A a U"),
        # Ids that come again belong to the nearest call before.
        ("A a A a2", "A a A a2"),
        ("A a A", "A a A !a"),
        ("A A a", "A !a A a"),
        ("AA a a2", "AA a a2"),
        ("AA a a2 a", "AA a a2"),
        ("AA a", "AA a !a"),
        # No call, or none before.
        ("a U", "U"),
        ("a A a2", "A a2"),
        ("U b A", "U A !a"),
        ("", ""),
    ],
)
def test_each_call_is_answered_once_right_after_it(stored: str, sendable: str, shape: str) -> None:
    """A, B, C are calls in a message, a, b, c their results (a2 another one of a), U a user."""

    def read(text: str) -> Iterator[Message]:
        for word in text.split():
            if word == "U":
                yield USER
            elif word.isupper():
                yield asks(*word.lower(), shape=shape)
            elif word[0] == "!":
                yield interrupted(word[1], shape)
            else:
                yield result(word[0], word)

    assert heal(read(stored)) == [*read(sendable)]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "x"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
        {"type": "function_call", "call_id": "a", "name": "x", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "42"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": {}}}]},
        {"role": "tool", "tool_name": "x", "content": "42"},
        {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "a"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "x"}}]},
        {"role": "assistant", "tool_calls": "?"},
        {"role": "assistant", "tool_calls": [1, None, {}, {"call_id": 1}, {"id": None}]},
        {"role": "assistant", "tool_calls": None},
        {"role": ["tool"], "tool_call_id": "a"},
        {},
    ],
)
def test_messages_of_other_dialects_stay_as_they_are(message: Message) -> None:
    assert heal([message, USER, message]) == [message, USER, message]


@pytest.mark.parametrize("id", [None, 1, ["a"], {}])
def test_a_result_whose_id_is_none_is_an_orphan(id: object) -> None:
    calls = asks("None", "1")
    answers = [interrupted("None"), interrupted("1")]
    orphan: Message = {"role": "tool", "content": "", "tool_call_id": id}
    assert heal([calls, orphan]) == [calls, *answers]


IDS = st.sampled_from("abc")
MESSAGES = st.lists(
    st.one_of(
        st.builds(
            lambda ids, shape: asks(*ids, shape=shape),
            st.lists(IDS, max_size=3),
            st.sampled_from(["riffer", "openai"]),
        ),
        st.builds(result, IDS, st.text(max_size=3)),
        st.just(USER),
    ),
    max_size=14,
)


def calls_of(message: Message) -> list[str]:
    return [call.get("call_id", call.get("id")) for call in message.get("tool_calls", [])]


def answered_by(messages: list[Message]) -> dict[tuple[int, int], Message]:
    """The results by the call that they answer: its message's place, and its own there.

    Found the slow way, from each result backwards.
    """
    answers: dict[tuple[int, int], Message] = {}
    for place, message in enumerate(messages):
        if message["role"] != "tool":
            continue
        id = message["tool_call_id"]
        before = [p for p in range(place) if id in calls_of(messages[p])]
        if before:
            calls = calls_of(messages[before[-1]])
            for number, call in enumerate(calls):
                if call == id and (before[-1], number) not in answers:
                    answers[before[-1], number] = message
                    break
    return answers


@given(MESSAGES)
def test_what_goes_to_a_model_is_sendable_and_complete(messages: list[Message]) -> None:
    before = json.dumps(messages)
    answers = answered_by(messages)
    expected: list[Message] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            continue
        expected.append(message)
        for number, call in enumerate(message.get("tool_calls", [])):
            shape = "riffer" if "call_id" in call else "openai"
            id = calls_of(message)[number]
            expected.append(answers.get((place, number)) or interrupted(id, shape))
    healed = heal(messages)
    assert healed == expected
    assert heal(healed) == healed
    assert json.dumps(messages) == before


@settings(max_examples=40)
@given(MESSAGES)
def test_a_snapshot_changes_nothing_in_the_store(messages: list[Message]) -> None:
    with SQLStore("sqlite://") as store:
        stored = [HEADER, *map(MessageEntry, messages)]
        store.extend("s1", stored)
        session = Loader("/w", store=store).resume("s1")
        assert session is not None
        snapshot = session.snapshot
        assert snapshot.messages == heal(messages)
        for message in snapshot.messages:
            message["changed"] = True
        assert session.snapshot.messages == heal(messages)
        assert store.read("s1") == stored
        assert store.list()[0].last_position == len(messages)


def test_the_fold_keeps_the_last_switches_and_all_skills() -> None:
    entries = [HEADER, UnknownEntry("label", {"label": "x"})]
    assert Snapshot.of("s1", entries) == Snapshot("s1")
    entries += [
        *(ModelEntry("m1"), ReasoningEntry("high"), SkillEntry("b"), MessageEntry(USER)),
        *(ModelEntry("m2"), SkillEntry("a"), ReasoningEntry("low"), SkillEntry("b")),
    ]
    snapshot = Snapshot.of("s1", entries)
    assert snapshot == Snapshot("s1", [USER], "m2", "low", ["b", "a", "b"])
    assert "Go on" not in repr(snapshot)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.builds(
        Snapshot,
        st.text(min_size=1),
        st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=3),
        st.none() | st.text(),
        st.none() | st.text(),
        st.lists(st.text(), max_size=3),
    )
)
def test_a_snapshot_survives_json_both_ways(snapshot: Snapshot) -> None:
    raw = snapshot.to_dict()
    assert Snapshot.from_dict(json.loads(json.dumps(raw))) == snapshot
    raw["messages"] += [{}]  # type: ignore[operator]
    raw["skills"] += ["x"]  # type: ignore[operator]
    assert len(snapshot.messages) == len(snapshot.to_dict()["messages"])  # type: ignore[arg-type]
    assert list(raw) == ["id", "messages", "model", "reasoning", "skills"]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("id", [None, 1]),
        ("messages", [None, {}, [1], ["a"], "ab", (), ({},), ..., [{"a": float("nan")}]]),
        ("model", [0, False, [], 1]),
        ("reasoning", [0, False, [], 1]),
        ("skills", [None, {}, [1], "ab"]),
        ("more", [1]),
    ],
)
def test_what_no_snapshot_gave_is_refused(field: str, values: list[object]) -> None:
    raw: Any = Snapshot("s1").to_dict()
    for value in values:
        with pytest.raises(InvalidArgument, match=r"^raw: "):
            Snapshot.from_dict(raw | {field: value})
    for name in raw:
        with pytest.raises(InvalidArgument, match=r"^raw: "):
            Snapshot.from_dict({key: value for key, value in raw.items() if key != name})
    others: list[Any] = [None, [], "s1", 1]
    for other in others:
        with pytest.raises(InvalidArgument, match=r"^raw: "):
            Snapshot.from_dict(other)
