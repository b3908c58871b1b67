"""Histories for the tests: hypothesis strategies for every value, and one that is written out."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import strategies as st

import turnkeep.history
from turnkeep.history import Attachment, History, Message, Thinking, Tokens, ToolCall
from turnkeep.payload import Json, JsonObject, join_surrogates

# Unpaired surrogates and NUL included: a history keeps what models and tools have written.
texts = st.text(st.characters(exclude_categories=()), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-(10**40), 10**40) | floats | texts
)
keys = texts.map(join_surrogates)


def containers(children: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Lists and objects of *children*."""
    lists: st.SearchStrategy[Json] = st.lists(children, max_size=4)
    return lists | st.dictionaries(keys, children, max_size=4)


values: st.SearchStrategy[Json] = st.recursive(scalars, containers, max_leaves=10)
arguments: st.SearchStrategy[JsonObject] = st.dictionaries(keys, values, max_size=4)

media_types = st.sampled_from(["image/png", "text/plain; charset=utf-8", "", "x/y"]) | texts
filenames = st.sampled_from(["a.PNG", "notes.tar.gz", "../../x.sh", "/etc/hostname", ""]) | texts
attachments = st.builds(Attachment, media_types, filenames, st.binary(max_size=50))
thinkings = st.builds(Thinking, text=st.none() | texts, signature=st.none() | texts)
counts = st.none() | st.integers(0, 10**30)
tokens = st.builds(Tokens, counts, counts, counts, counts, counts)
# Few ids, so that calls share some and results come late, twice or not at all.
call_ids = st.sampled_from(["a", "b", "c", ""])
tool_calls = st.builds(ToolCall, call_ids, texts, arguments)


@st.composite
def histories(draw: st.DrawFn, max_size: int = 8) -> History:
    """Valid histories, in which each tool message answers a call that was made before it."""
    called: list[str] = []
    messages: list[Message] = []
    ids = draw(st.lists(texts.filter(bool), max_size=max_size, unique_by=join_surrogates))
    for name in ids:
        roles = ["user", "assistant"] + ["tool", "tool"] * bool(called)
        role = draw(st.sampled_from(roles))
        calls = draw(st.lists(tool_calls, max_size=3)) if role == "assistant" else []
        messages.append(
            Message(
                id=name,
                role=role,
                content=draw(texts),
                kind=draw(st.sampled_from(History.KINDS)),
                attachments=tuple(draw(st.lists(attachments, max_size=2))),
                tool_calls=tuple(calls),
                tool_call_id=draw(st.sampled_from(called)) if role == "tool" else None,
                model_id=draw(st.none() | texts),
                thinking=draw(st.none() | thinkings),
                tokens=draw(st.none() | tokens),
            )
        )
        called += [call.id for call in calls]
    return History(messages=tuple(messages))


def python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """A process of its own that runs *code*, in which a test may fork or which it may kill."""
    found = (Path(turnkeep.history.__file__).parents[1], Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, found))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def user(name: str, content: str = "hello", **fields: object) -> Message:
    """A user's message."""
    return Message(id=name, role="user", content=content, **fields)  # type: ignore[arg-type]


def call(name: str, *ids: str, **fields: object) -> Message:
    """An assistant's message that calls a tool once for each of *ids*."""
    calls = tuple(ToolCall(each, "search", {"q": each}) for each in ids)
    return Message(id=name, role="assistant", content="", tool_calls=calls, **fields)  # type: ignore[arg-type]


def result(name: str, answered: str, content: str = "found", **fields: object) -> Message:
    """A tool's message that answers the call *answered*."""
    return Message(id=name, role="tool", content=content, tool_call_id=answered, **fields)  # type: ignore[arg-type]


def full(seed: bytes = b"one") -> History:
    """A history in which every field is set somewhere; another *seed* gives other attachments."""
    odd: JsonObject = {
        "path": "/a",
        "b": [1, 1.0, True, None, -0.0, 10**30, 1e16],
        "aa": {"z": {}, "y": []},
    }
    picture = Attachment("image/png", "Bild ü.PNG", seed * 100)
    return History(
        messages=(
            user("1", "hello \ud83d\ude00 ü \u2028 \0", attachments=(picture,)),
            user("2", "a skill", kind="reference"),
            Message(
                id="3",
                role="assistant",
                content="I look.",
                tool_calls=(ToolCall("a", "search", odd), ToolCall("b", "read", {})),
                model_id="some-model",
                thinking=Thinking("half a pair: \ud83d", "c2lnbmF0dXJl"),
                tokens=Tokens(12, 3, 0, None, 2),
            ),
            result("4", "b", attachments=(picture, Attachment("text/plain", "empty", b""))),
            result("5", "a", attachments=(Attachment("application/json", "x", seed + b"{}"),)),
            Message(id="6", role="assistant", content="", thinking=Thinking(), tokens=Tokens()),
        )
    )
