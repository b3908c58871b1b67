"""The values of a history: what they accept, when they are equal, and how they are repaired."""

import copy
import dataclasses
import pickle
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histories import (
    arguments,
    attachments,
    call,
    full,
    histories,
    python,
    result,
    texts,
    tokens,
    user,
)
from turnkeep.errors import HistoryError
from turnkeep.history import Attachment, History, Message, Thinking, Tokens, ToolCall

PICTURE = Attachment("image/png", "a.png", b"\x89PNG")
CALL = ToolCall("c", "search", {})
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


class Text(str):
    """Not exactly a str."""

    __slots__ = ()


class Subclass(Attachment):
    """Not exactly an Attachment."""


def message(**fields: Any) -> Message:
    return Message(**({"id": "m", "role": "user", "content": ""} | fields))


def nested(levels: int) -> dict[str, Any]:
    """A dict of so many levels, itself included."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"x": value}
    assert isinstance(value, dict)
    return value


def deep(levels: int, work: Callable[[], object]) -> object:
    """What *work* gives where the caller stands so many frames deep."""
    return deep(levels - 1, work) if levels else work()


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: message(id=""), "id: "),
    (lambda: message(id=None), "id: "),
    (lambda: message(id=Text("m")), "id: "),
    (lambda: message(role="system"), "role: "),
    (lambda: message(role="User"), "role: "),
    (lambda: message(role=["user"]), "role: "),
    (lambda: message(content=None), "content: "),
    (lambda: message(content=b""), "content: "),
    (lambda: message(kind=None), "kind: "),
    (lambda: message(kind="assistant"), "kind: "),
    (lambda: message(attachments=None), "attachments: "),
    (lambda: message(attachments=iter([PICTURE])), "attachments: "),
    (lambda: message(attachments=(PICTURE, b"")), "attachments[1]: "),
    (lambda: message(attachments=(Subclass("", "", b""),)), "attachments[0]: "),
    (lambda: message(role="assistant", tool_calls=({},)), "tool_calls[0]: "),
    (lambda: message(tool_calls=(CALL,)), "tool_calls: "),
    (lambda: message(role="tool", tool_call_id="c", tool_calls=(CALL,)), "tool_calls: "),
    (lambda: message(role="tool"), "tool_call_id: "),
    (lambda: message(role="tool", tool_call_id=1), "tool_call_id: "),
    (lambda: message(tool_call_id="c"), "tool_call_id: "),
    (lambda: message(role="assistant", tool_call_id="c"), "tool_call_id: "),
    (lambda: message(model_id=1), "model_id: "),
    (lambda: message(thinking="hm"), "thinking: "),
    (lambda: message(tokens={"input": 1}), "tokens: "),
    (lambda: ToolCall(1, "f", {}), "id: "),  # type: ignore[arg-type]
    (lambda: ToolCall("c", None, {}), "name: "),  # type: ignore[arg-type]
    (lambda: ToolCall("c", "f", None), "arguments: "),  # type: ignore[arg-type]
    (lambda: ToolCall("c", "f", "{}"), "arguments: "),  # type: ignore[arg-type]
    (lambda: ToolCall("c", "f", []), "arguments: "),  # type: ignore[arg-type]
    (lambda: ToolCall("c", "f", {"x": [0, float("nan")]}), "arguments.x[1]: "),
    (lambda: ToolCall("c", "f", {"x": float("-inf")}), "arguments.x: "),
    (lambda: ToolCall("c", "f", {"x": b""}), "arguments.x: "),  # type: ignore[dict-item]
    (lambda: ToolCall("c", "f", {"x": (1,)}), "arguments.x: "),  # type: ignore[dict-item]
    (lambda: ToolCall("c", "f", {"x": {1: "a", "1": "b"}}), "arguments.x: "),  # type: ignore[dict-item]
    (lambda: ToolCall("c", "f", {"x": Text()}), "arguments.x: "),
    (lambda: ToolCall("c", "f", {"x": 10**4300}), "arguments.x: "),
    (lambda: ToolCall("c", "f", {"x": CYCLE}), "arguments.x"),
    (lambda: ToolCall("c", "f", nested(201)), "arguments.x.x"),
    (lambda: Thinking(1), "text: "),  # type: ignore[arg-type]
    (lambda: Thinking("", b""), "signature: "),  # type: ignore[arg-type]
    (lambda: Tokens(-1), "input: "),
    (lambda: Tokens(output=True), "output: "),
    (lambda: Tokens(cached=1.0), "cached: "),  # type: ignore[arg-type]
    (lambda: Tokens(cache_creation="1"), "cache_creation: "),  # type: ignore[arg-type]
    (lambda: Tokens(thinking=10**4300), "thinking: "),
    (lambda: Attachment(None, "", b""), "mime: "),  # type: ignore[arg-type]
    (lambda: Attachment("", 1, b""), "filename: "),  # type: ignore[arg-type]
    (lambda: Attachment("", "", "text"), "bytes: "),  # type: ignore[arg-type]
    (lambda: Attachment("", "", 5), "bytes: "),  # type: ignore[arg-type]
    (lambda: Attachment("", "", None), "bytes: "),  # type: ignore[arg-type]
    (lambda: History(2), "version: 2 is newer"),
    (lambda: History(10**5000), "version: of more than 64 bits is newer"),
    (lambda: History(0), "version: "),
    (lambda: History(True), "version: "),
    (lambda: History(1.0), "version: "),  # type: ignore[arg-type]
    (lambda: History(None), "version: "),  # type: ignore[arg-type]
    (lambda: History(messages=None), "messages: "),  # type: ignore[arg-type]
    (lambda: History(messages=(user("1"), {})), "messages[1]: "),  # type: ignore[arg-type]
    (
        lambda: History(messages=(user("1"), user("2"), user("1"), user("2"), user("1"))),
        "messages[2].id: is the id of messages[0] too",
    ),
    (
        lambda: History(messages=(result("1", "a"), call("2", "a"), result("3", "b"))),
        "messages[0].tool_call_id: ",
    ),
    (lambda: History(messages=(call("1", "a"), result("2", "b"))), "messages[1].tool_call_id: "),
]


@pytest.mark.parametrize(("make", "place"), REFUSED)
def test_a_value_that_breaks_a_rule_is_not_made_and_the_error_begins_with_its_place(
    make: Callable[[], object], place: str
) -> None:
    with pytest.raises(HistoryError) as caught:
        make()
    assert str(caught.value).startswith(place)


def test_what_is_legal_and_looks_odd_is_accepted() -> None:
    message(role="assistant", tool_calls=(ToolCall("", "", {}),))
    message(role="assistant", tool_calls=(CALL, CALL))
    message(role="assistant", kind="reference", thinking=Thinking(), tokens=Tokens())
    message(attachments=[PICTURE])
    Tokens(0, 10**4300 - 1)
    ToolCall("c", "f", {"x": 1 - 10**4300, "y": nested(199)})
    ToolCall("c", "f", nested(200))
    twice = History(messages=(call("1", "a"), result("2", "a"), result("3", "a"), call("4", "a")))
    later = History(messages=(call("1", "a"), user("2"), call("3"), result("4", "a")))
    assert len(twice.messages) == len(later.messages) == 4


def test_two_ids_that_are_one_in_json_are_one() -> None:
    with pytest.raises(HistoryError, match=r"^messages\[1\]\.id: "):
        History(messages=(user("\ud83d\ude00"), user("\U0001f600")))


def test_fields_and_values_cannot_be_changed() -> None:
    history = full()
    assistant = history.messages[2]
    parts = (history, assistant, assistant.thinking, assistant.tokens, *assistant.tool_calls)
    for value in (*parts, PICTURE):
        assert dataclasses.is_dataclass(value)
        for field in (*dataclasses.fields(value), *dataclasses.fields(Message)):
            with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
                setattr(value, field.name, "x")
    assert history == full()


def test_lists_become_tuples_and_buffers_become_bytes() -> None:
    buffer = bytearray(b"abcdef")
    owned = Attachment("", "", buffer)
    view = Attachment("", "", memoryview(buffer)[::2])
    buffer[:] = b"......"
    assert (owned.bytes, view.bytes) == (b"abcdef", b"ace")
    assert type(owned.bytes) is type(view.bytes) is bytes
    made = message(role="assistant", attachments=[PICTURE], tool_calls=[CALL])
    assert (made.attachments, made.tool_calls) == ((PICTURE,), (CALL,))
    listed = [made]
    history = History(messages=listed)  # type: ignore[arg-type]
    listed.clear()
    assert history.messages == (made,)


def test_no_change_of_a_dict_reaches_the_arguments() -> None:
    given: dict[str, Any] = {"list": [1]}
    made = ToolCall("c", "f", given)
    given["list"].append(2)
    read: Any = made.arguments
    read["list"].append(3)
    assert made.arguments == {"list": [1]}


@given(arguments)
def test_arguments_come_back_with_types_signs_and_key_order(value: dict[str, Any]) -> None:
    made = ToolCall("c", "f", value).arguments
    assert repr(made) == repr(ToolCall("c", "f", made).arguments)
    assert repr(made) == repr(_joined(value))


def _joined(value: Any) -> Any:
    """*value* with the surrogate pairs in it joined, as by one who knows nothing of the library."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if isinstance(value, list):
        return [_joined(item) for item in value]
    if isinstance(value, dict):
        return {_joined(key): _joined(item) for key, item in value.items()}
    return value


# Values of which many are equal to Python, or nearly so, though their JSON texts differ.
numbers = st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, 10**16, 1e16])
strings = st.sampled_from(["", "1", "\ud83d", "\ud83d\ude00", "\U0001f600"])
parts = st.sampled_from([None, [], {}, [1], [1.0], {"a": 1, "b": 2}, {"b": 2, "a": 1}])
look_alikes = numbers | strings | parts
near = st.builds(
    lambda value, **fields: History(
        messages=(
            Message(
                role="assistant",
                content="",
                tool_calls=(ToolCall("c", "f", {"x": value}),),
                **fields,
            ),
        )
    ),
    look_alikes,
    id=st.sampled_from(["1", "2"]),
    thinking=st.sampled_from([None, Thinking(), Thinking("")]),
    tokens=st.sampled_from([None, Tokens(), Tokens(0)]),
    attachments=st.sampled_from([(), (PICTURE,), (Attachment("image/png", "a.png", b""),)]),
)


@given(near | histories(2), near | histories(2))
def test_values_are_equal_and_hash_alike_exactly_when_their_json_texts_are(
    one: History, other: History
) -> None:
    equal = one.to_json() == other.to_json()
    assert (one == other) is equal
    assert (hash(one) == hash(other)) is equal
    assert len({one, other, History.parse(other.to_json())}) == 2 - equal
    for left, right in zip(one.messages, other.messages, strict=False):
        alone = [History(messages=(m,)) for m in (left, right) if m.role != "tool"]
        if len(alone) == 2:
            assert (left == right) is (alone[0].to_json() == alone[1].to_json())


@given(look_alikes, look_alikes)
def test_tool_calls_are_equal_exactly_when_their_arguments_json_texts_are(
    one: Any, two: Any
) -> None:
    left, right = ToolCall("c", "f", {"x": one}), ToolCall("c", "f", {"x": two})
    equal = repr(_joined(one)) == repr(_joined(two))
    assert (left == right) is equal
    assert (hash(left) == hash(right)) is equal


@given(st.lists(attachments, max_size=6))
def test_a_stored_name_is_one_file_on_every_file_system(made: list[Attachment]) -> None:
    for attachment in made:
        digest, dot, extension = attachment.stored_name.partition(".")
        assert digest == attachment.digest
        assert (dot == ".") is (extension != "")
        assert len(extension) <= 10
        assert set(attachment.stored_name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.")


@pytest.mark.parametrize(
    ("mime", "filename", "extension"),
    [
        ("text/plain", "a.PnG", ".png"),
        ("text/plain", "a.tar.gz", ".gz"),
        ("text/plain", "a", ".txt"),
        ("Text/Plain; charset=utf-8", "", ".txt"),
        ("image/png", "a.", ".png"),
        ("image/png", "a.png\n", ".png"),
        ("x/y", "a.png\n", ""),
        ("x/y", "a.png/../b", ""),
        ("x/y", ".abcdefghij", ".abcdefghij"),
        ("x/y", ".abcdefghijk", ""),
        ("x/y", "a.\N{KELVIN SIGN}", ""),
        ("x/y", "a.\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", ""),
        ("x/y", "a.\ud83d", ""),
        ("x/y", "a.t\0t", ""),
    ],
)
def test_only_a_safe_extension_of_the_filename_reaches_the_disk(
    mime: str, filename: str, extension: str
) -> None:
    attachment = Attachment(mime, filename, b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert attachment.digest == digest
    assert attachment.stored_name == digest + extension
    assert attachment.filename == filename


@given(texts, texts, st.binary(max_size=9), arguments, tokens)
def test_values_survive_pickling_copying_and_replacing(
    text: str, other: str, data: bytes, given_arguments: dict[str, Any], used: Tokens
) -> None:
    values = (
        ToolCall(text, other, given_arguments),
        Attachment(text, other, data),
        Thinking(text, other),
        used,
        message(content=text, tokens=used, attachments=(Attachment(text, other, data),)),
    )
    for value in values:
        assert (
            pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == copy.copy(value) == value
        )
    assert dataclasses.replace(values[1], bytes=b"new") == Attachment(text, other, b"new")
    assert dataclasses.replace(values[1], bytes=b"new").digest != values[1].digest
    changed = dataclasses.replace(values[4], content="new")
    assert (changed.content, changed.tokens, changed == values[4]) == ("new", used, text == "new")


def test_no_repr_shows_content() -> None:
    secret = "s3cr3t"
    made = message(
        id=secret,
        role="assistant",
        content=secret,
        attachments=(Attachment(secret, secret, secret.encode()),),
        tool_calls=(ToolCall(secret, secret, {secret: secret}),),
        model_id=secret,
        thinking=Thinking(secret, secret),
        tokens=Tokens(12, 10**4000),
    )
    values = (*made.attachments, *made.tool_calls, made.thinking, made.tokens, made)
    shown = [repr(value) for value in (*values, History(messages=(made,)))]
    assert all(secret not in text and len(text) < 80 for text in shown), shown
    assert shown[0] == f"<Attachment {made.attachments[0].digest[:8]}, 6 bytes>"
    assert shown[-2] == "<Message assistant, 6 characters, 1 attachments, 1 tool calls>"


@pytest.mark.parametrize("levels", [0, 300, 700, 900])
def test_no_result_depends_on_how_deep_the_caller_stands(levels: int) -> None:
    assert sys.getrecursionlimit() == 1000

    def work() -> object:
        with pytest.raises(HistoryError, match="deeper than 200 levels"):
            ToolCall("c", "f", nested(201))
        made = History(
            messages=(message(role="assistant", tool_calls=[ToolCall("c", "f", nested(200))]),)
        )
        odd = History(
            messages=(
                message(content="\ud83d", role="assistant", tool_calls=made.messages[0].tool_calls),
            )
        )
        assert History.parse(made.to_json()) == made
        assert History.parse(odd.to_json()) == odd
        with pytest.raises(HistoryError, match="not valid JSON: nested too deep"):
            History.parse("[" * 100_000)
        return hash(made)

    frames = len(__import__("inspect").stack(0))
    deep(max(0, levels - frames), work)


# Ids


def test_ids_have_their_form_and_sort_as_they_were_minted_whatever_the_clock_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = time.time_ns() // 1_000_000
    ids = [History.mint_id() for _ in range(10)]
    start = int(ids[0][:12], 16)
    assert before <= start <= time.time_ns() // 1_000_000 + 5
    monkeypatch.setattr(time, "time_ns", lambda: (start + 1000) * 1_000_000)
    ids += [History.mint_id() for _ in range(140_000)]
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)
    ids += [History.mint_id() for _ in range(10)]
    monkeypatch.undo()
    ids += [History.mint_id() for _ in range(10)]
    assert all(len(name) == 22 and set(name) <= set("0123456789abcdef") for name in ids)
    assert all(one < other for one, other in pairwise(name[:16] for name in ids))
    counters = [int(name[12:16], 16) for name in ids]
    assert all(other == (one + 1) % 65536 for one, other in pairwise(counters))
    # Two wraps within the frozen millisecond, and not one step more of the clock than that.
    assert int(ids[140_009][:12], 16) - (start + 1000) <= 3


def test_ids_minted_by_many_threads_differ_and_sort_within_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minted: list[list[str]] = [[] for _ in range(8)]
    begin = threading.Barrier(8)
    clock = time.time_ns

    def yielding() -> int:
        time.sleep(0)  # so that threads meet within a mint, and not only between two
        return clock()

    def mint(into: list[str]) -> None:
        begin.wait()
        into += [History.mint_id() for _ in range(500)]

    monkeypatch.setattr(time, "time_ns", yielding)
    threads = [threading.Thread(target=mint, args=(into,)) for into in minted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(into == sorted(into) for into in minted)
    assert len({name[:16] for into in minted for name in into}) == 4000


FORK = """
import os, signal
from turnkeep.history import History, _mint
print(History.mint_id(), flush=True)
with _mint._lock:  # as if another thread were minting right now
    child = os.fork()
    if not child:
        signal.alarm(60)  # should the lock be held for ever
        print(*(History.mint_id() for _ in range(3)), flush=True)
        os._exit(0)
os.waitpid(child, 0)
print(History.mint_id())
"""


def test_a_forked_child_mints_with_a_lock_and_a_counter_of_its_own() -> None:
    with python(FORK) as process:
        before, first, second, third, after = process.communicate()[0].split()
    counters = [name[12:16] for name in (before, first, second, third, after)]
    assert counters == ["0000", "0000", "0001", "0002", "0001"]
    assert before < first


# Repair


def repaired(*messages: Message) -> list[str]:
    """What the repair makes of *messages*: ids, and for what it put in `+` and the call."""
    history = History(messages=messages)
    after = history.repair_interrupted_tool_calls()
    known = {m.id for m in messages}
    for each in after.messages:
        if each.id not in known:
            assert each.tool_call_id is not None
            made = Message(
                id=each.id,
                role="tool",
                content="[Tool execution was interrupted]",
                tool_call_id=each.tool_call_id,
            )
            assert each == made
    return [m.id if m.id in known else f"+{m.tool_call_id}" for m in after.messages]


def test_repair_puts_a_result_after_the_real_ones_for_each_call_without_one() -> None:
    first, ask = call("1", "a", "b", "c"), user("9")
    assert repaired(first) == ["1", "+a", "+b", "+c"]
    assert repaired(first, ask) == ["1", "+a", "+b", "+c", "9"]
    assert repaired(first, result("2", "b")) == ["1", "2", "+a", "+c"]
    assert repaired(first, result("2", "b"), ask) == ["1", "2", "+a", "+c", "9"]
    assert repaired(first, result("2", "c"), result("3", "a"), ask) == ["1", "2", "3", "+b", "9"]
    assert repaired(first, call("2", "d"), result("3", "d")) == ["1", "+a", "+b", "+c", "2", "3"]


def test_repair_does_not_count_a_result_outside_the_run_and_keeps_it() -> None:
    late = (call("1", "a"), user("2"), result("3", "a"))
    assert repaired(*late) == ["1", "+a", "2", "3"]
    assert repaired(call("1", "a"), call("2", "b"), result("3", "a")) == ["1", "+a", "2", "3", "+b"]
    turns = (call("1", "a"), result("2", "a"), call("3", "a"), user("4"))
    assert repaired(*turns) == ["1", "2", "3", "+a", "4"]


def test_repair_answers_an_id_once_and_gives_the_same_object_where_nothing_is_missing() -> None:
    assert repaired(call("1", "a", "a", "b")) == ["1", "+a", "+b"]
    whole = (
        History(),
        History(messages=(user("1"), call("2", "a", "b"), result("3", "b"), result("4", "a"))),
        History(messages=(call("1", "a"), result("2", "a"), result("3", "a"), user("4"))),
        History(messages=(call("1", "a", "a"), result("2", "a"))),
    )
    for history in whole:
        assert history.repair_interrupted_tool_calls() is history


@given(histories())
def test_after_repair_each_call_is_answered_in_its_run_and_nothing_was_dropped_or_moved(
    history: History,
) -> None:
    before = history.to_json()
    after = history.repair_interrupted_tool_calls()
    known = {m.id for m in history.messages}
    assert tuple(m for m in after.messages if m.id in known) == history.messages
    assert after.repair_interrupted_tool_calls() is after
    assert history.to_json() == before
    assert (after is history) is (after == history)
    for index, each in enumerate(after.messages):
        run: list[Message] = []
        for following in after.messages[index + 1 :]:
            if following.role != "tool":
                break
            run.append(following)
        answered = [m.tool_call_id for m in run]
        added = [m.tool_call_id for m in run if m.id not in known]
        if each.tool_calls:
            calls = list(dict.fromkeys(made.id for made in each.tool_calls))
            assert set(calls) <= set(answered)
            real = [m.tool_call_id for m in run if m.id in known]
            # Only what had no answer got one, once, after the real ones, in the order of the calls.
            assert added == [name for name in calls if name not in real]
            assert [m.tool_call_id for m in run] == real + added
    assert History.parse(after.to_json()) == after


def test_a_long_history_is_repaired_in_one_walk() -> None:
    """Looking from each call to the next user message, or for each result in a list, took hours."""
    ids = [str(number) for number in range(50_000)]
    run = tuple(result(f"r{name}", name) for name in ids[:-1])
    history = History(messages=(call("c", *ids), *run, user("u")))
    after = history.repair_interrupted_tool_calls()
    assert after.messages[-2].tool_call_id == ids[-1]
    assert len(after.messages) == len(history.messages) + 1
