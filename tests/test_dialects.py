"""Each framework's messages say what its table says, and nothing is lost without a word."""

import base64
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from messages import PDF, PNG, WAV, b64
from turnkeep import Header, HistoryError, MessageEntry
from turnkeep.history import Attachment, History, Message, Thinking, Tokens, ToolCall
from turnkeep.message_dialects import anthropic, openai_chat, openai_responses, riffer
from turnkeep.message_dialects.riffer import write
from turnkeep.transcript import to_history

HEADER = Header(id="s1", cwd="/w", created_at="2026-11-30T12:00:00.123Z", model="")
PLACE = "01a22c53827b"  # the milliseconds of that time
PNG_URI = "data:image/png;base64," + b64(PNG)


def exported(*messages: dict[str, Any], lossy: list[str] | None = None) -> tuple[Message, ...]:
    """The messages of the history of a session of these."""
    return to_history("s1", [HEADER, *map(MessageEntry, messages)], lossy).messages


def minted(message: Message, number: int) -> bool:
    return message.id.startswith(f"{PLACE}{number:06x}") and len(message.id) == 22


def same(found: tuple[Message, ...], *expected: Message) -> None:
    """They are those, where an id of `?` is one that was made for the place."""
    assert [
        replace(m, id="?") if e.id == "?" and minted(m, i) else m
        for i, (m, e) in enumerate(zip(found, expected, strict=True))
    ] == list(expected)


def test_a_conversation_of_riffers() -> None:
    found = exported(
        {
            "role": "user",
            "content": "What is on the picture?",
            "id": "m1",
            "files": [
                {"media_type": "image/png", "data": b64(PNG), "filename": "a.png"},
                {"media_type": "text/plain", "data": "", "sha256": "0" * 64},
            ],
        },
        {
            "role": "assistant",
            "content": "",
            "id": "m2",
            "tool_calls": [
                {"call_id": "c1", "name": "describe", "arguments": '{"file":"a.png","n":1.0}'},
                {"call_id": "c2", "name": "now", "arguments": ""},
            ],
            "reasoning": [
                {"type": "text", "text": "I look.", "signature": "c2ln", "id": "r", "format": "x"}
            ],
            "token_usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_write_tokens": 0,
                "cache_read_tokens": 7,
                "cost": 0.01,
            },
            "finish_reason": "tool_calls",
        },
        {"role": "tool", "content": "noon", "tool_call_id": "c2", "name": "now"},
        {
            "role": "tool",
            "content": "failed",
            "tool_call_id": "c1",
            "name": "describe",
            "error": "failed",
            "error_type": "timeout",
        },
        {
            "role": "assistant",
            "content": "A smile.",
            "reasoning": [
                {"type": "summary", "text": "One."},
                {"type": "text", "text": ""},
                {"type": "summary", "text": "Two."},
                {"type": "encrypted", "data": "ZW5j"},
            ],
            "structured_output": {"a": 1},
        },
        {
            "role": "assistant",
            "content": "Bye.",
            "reasoning": [{"type": "encrypted", "data": "ZW5j", "id": "rs_1"}],
            "token_usage": {"input_tokens": 3, "output_tokens": 2},
        },
    )
    same(
        found,
        Message(
            id="m1",
            role="user",
            content="What is on the picture?",
            attachments=(Attachment("image/png", "a.png", PNG), Attachment("text/plain", "", b"")),
        ),
        Message(
            id="m2",
            role="assistant",
            content="",
            tool_calls=(
                ToolCall("c1", "describe", {"file": "a.png", "n": 1.0}),
                ToolCall("c2", "now", {}),
            ),
            thinking=Thinking("I look.", "c2ln"),
            tokens=Tokens(10, 5, 7, 0),
        ),
        Message(id="?", role="tool", content="noon", tool_call_id="c2"),
        Message(id="?", role="tool", content="failed", tool_call_id="c1"),
        # Whose text the encrypted part belongs to is not known.
        Message(id="?", role="assistant", content="A smile.", thinking=Thinking("One.\n\nTwo.")),
        Message(
            id="?",
            role="assistant",
            content="Bye.",
            thinking=Thinking(None, "ZW5j"),
            tokens=Tokens(3, 2),
        ),
    )


def test_a_conversation_of_anthropics() -> None:
    found = exported(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Compare these."},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": b64(PNG)},
                },
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": b64(PDF)},
                    "title": "a.pdf",
                    "cache_control": {"type": "ephemeral"},
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"},
                },
                {"type": "text", "text": "In German."},
            ],
        },
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": [
                {"type": "thinking", "thinking": "Two files.", "signature": "c2ln"},
                {"type": "text", "text": "I read both."},
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"page": 1}},
                {"type": "tool_use", "id": "t2", "name": "read", "input": {"page": 2}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 100,
                "output_tokens": 20,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 50,
                "service_tier": "standard",
            },
        },
        {
            "id": "msg_2",
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [
                        {"type": "text", "text": "page two"},
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": b64(PNG),
                            },
                        },
                    ],
                },
                {"type": "text", "text": "Hurry!"},
                {"type": "tool_result", "tool_use_id": "t1", "content": "gone", "is_error": True},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "redacted_thinking", "data": "cmVk"},
                {"type": "text", "text": "They differ."},
                {"type": "tool_use", "id": "t3", "name": "done", "input": {}},
            ],
        },
        {
            "id": "msg_4",
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t3"}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "One.", "signature": "c2ln"},
                {"type": "thinking", "thinking": "Two.", "signature": "Z2lz"},
                {"type": "text", "text": "Bye."},
            ],
        },
    )
    same(
        found,
        Message(
            id="?",
            role="user",
            content="Compare these.\n\nIn German.",
            attachments=(
                Attachment("image/png", "", PNG),
                Attachment("application/pdf", "a.pdf", PDF),
                Attachment("text/plain", "", "Grüße".encode()),
            ),
        ),
        Message(
            id="msg_1",
            role="assistant",
            content="I read both.",
            tool_calls=(ToolCall("t1", "read", {"page": 1}), ToolCall("t2", "read", {"page": 2})),
            model_id="claude-x",
            thinking=Thinking("Two files.", "c2ln"),
            tokens=Tokens(100, 20, 0, 50),
        ),
        Message(
            id="?",
            role="tool",
            content="page two",
            tool_call_id="t2",
            attachments=(Attachment("image/png", "", PNG),),
        ),
        Message(id="?", role="tool", content="gone", tool_call_id="t1"),
        Message(id="msg_2", role="user", content="Hurry!"),
        Message(
            id="?",
            role="assistant",
            content="They differ.",
            tool_calls=(ToolCall("t3", "done", {}),),
            thinking=Thinking(None, "cmVk"),
        ),
        Message(id="msg_4", role="tool", content="", tool_call_id="t3"),
        Message(id="?", role="assistant", content="Bye.", thinking=Thinking("One.\n\nTwo.")),
    )


def test_a_conversation_of_openais_chat() -> None:
    found = exported(
        {"role": "system", "content": "You are kind."},
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Listen and look."},
                {"type": "image_url", "image_url": {"url": PNG_URI, "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": b64(WAV), "format": "wav"}},
                {
                    "type": "file",
                    "file": {
                        "filename": "a.pdf",
                        "file_data": "data:application/pdf;base64," + b64(PDF),
                    },
                },
                {"type": "text", "text": "Thanks."},
            ],
            "name": "Ann",
        },
        {
            "id": "chatcmpl-1",
            "model": "gpt-x",
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "reasoning_content": "Both at once.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "hear", "arguments": '{"seconds": 3}'},
                },
                {"id": "c2", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}},
                {"id": "c3", "type": "function", "function": {"name": "see", "arguments": ""}},
            ],
            "usage": {
                "prompt_tokens": 90,
                "completion_tokens": 30,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 10},
            },
        },
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "1"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a bell"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "A bell."},
                {"type": "refusal", "refusal": "No more."},
            ],
        },
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": "Bye.", "model": "gpt-y", "id": "chatcmpl-2"},
    )
    same(
        found,
        Message(
            id="?",
            role="user",
            content="Listen and look.\n\nThanks.",
            attachments=(
                Attachment("image/png", "", PNG),
                Attachment("audio/wav", "", WAV),
                Attachment("application/pdf", "a.pdf", PDF),
            ),
        ),
        Message(
            id="chatcmpl-1",
            role="assistant",
            content="",
            tool_calls=(
                ToolCall("c1", "hear", {"seconds": 3}),
                ToolCall("c2", "sql", {"input": "SELECT 1"}),
                ToolCall("c3", "see", {}),
            ),
            model_id="gpt-x",
            thinking=Thinking("Both at once."),
            tokens=Tokens(90, 30, 64, None, 10),
        ),
        Message(id="?", role="tool", content="1", tool_call_id="c2"),
        Message(id="?", role="tool", content="a bell", tool_call_id="c1"),
        Message(id="?", role="assistant", content="A bell.\n\nNo more."),
        Message(id="?", role="assistant", content="No."),
        Message(id="chatcmpl-2", role="assistant", content="Bye.", model_id="gpt-y"),
    )


def test_a_conversation_of_openais_responses() -> None:
    found = exported(
        {"type": "message", "role": "system", "content": "You are kind."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": PNG_URI, "detail": "auto"},
                {
                    "type": "input_file",
                    "filename": "a.pdf",
                    "file_data": "data:application/pdf;base64," + b64(PDF),
                },
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Look first."}],
            "content": [{"type": "reasoning_text", "text": "In depth."}],
            "encrypted_content": "ZW5j",
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "look",
            "arguments": '{"at":"left"}',
        },
        {
            "type": "custom_tool_call",
            "id": "ct_1",
            "call_id": "c2",
            "name": "sql",
            "input": "SELECT",
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "1"},
        {
            "type": "function_call_output",
            "id": "out_1",
            "call_id": "c1",
            "output": [
                {"type": "input_text", "text": "a cat"},
                {"type": "input_image", "image_url": PNG_URI},
            ],
        },
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {
            "type": "message",
            "id": "msg_2",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "A cat."},
                {"type": "refusal", "refusal": "No more."},
            ],
        },
        {"role": "user", "content": "Thanks!"},
        {"type": "function_call", "call_id": "c3", "name": "bye", "arguments": ""},
        {"type": "function_call", "id": "fc_4", "call_id": "c4", "name": "bye", "arguments": "{}"},
    )
    same(
        found,
        Message(
            id="?",
            role="user",
            content="What is this?",
            attachments=(
                Attachment("image/png", "", PNG),
                Attachment("application/pdf", "a.pdf", PDF),
            ),
        ),
        Message(
            id="rs_1",
            role="assistant",
            content="I look.",
            tool_calls=(
                ToolCall("c1", "look", {"at": "left"}),
                ToolCall("c2", "sql", {"input": "SELECT"}),
            ),
            thinking=Thinking("Look first.\n\nIn depth.", "ZW5j"),
        ),
        Message(id="?", role="tool", content="1", tool_call_id="c2"),
        Message(
            id="out_1",
            role="tool",
            content="a cat",
            tool_call_id="c1",
            attachments=(Attachment("image/png", "", PNG),),
        ),
        Message(id="rs_2", role="assistant", content="A cat.\n\nNo more."),
        Message(id="?", role="user", content="Thanks!"),
        Message(
            id="?",
            role="assistant",
            content="",
            tool_calls=(ToolCall("c3", "bye", {}), ToolCall("c4", "bye", {})),
        ),
    )


def _user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "x"}, *blocks]}


def _source(**source: Any) -> dict[str, Any]:
    return _user({"type": "image", "source": source})


def _call(**call: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x", "tool_calls": [call]}


def _riffers(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": "x", **fields}


ORPHAN = "a result without a call before it"
NO_OBJECT = "a tool call whose arguments are no JSON object"
UNKNOWN = "a message in no known dialect"
NOT_OURS = "what is not that of a history"
NO_BASE64 = "is no canonical base64 (RFC 4648, standard alphabet, padded)"
NO_ID = "a tool call without an id or a name"

LOSSES: list[tuple[dict[str, Any], list[str]]] = [
    # Files with only a URL, or with bytes that can't be had.
    (_riffers(files=[{"media_type": "a/b", "url": "https://x"}]), ["a file that is only a URL"]),
    (_riffers(files=[{"media_type": "a/b"}]), ["a file without its bytes"]),
    (_riffers(files=[{"media_type": "a/b", "data": "%"}]), ["a file without its bytes"]),
    (_riffers(files=[{"media_type": "a/b", "data": "A"}]), ["a file without its bytes"]),
    (_riffers(files=["a", None]), ["a file that is no object"] * 2),
    (_riffers(files="a"), ["a file that is no object"]),
    (_source(type="url", url="https://x"), ["an attachment that is only a URL"]),
    (_source(type="file", file_id="f"), ["a source of another type"]),
    (_source(type="base64", media_type="a/b", data=5), ["an attachment without its bytes"]),
    (_user({"type": "document", "source": None}), ["a source of another type"]),
    (_user({"type": "image_url", "image_url": {"url": "x:"}}), ["an image that is only a URL"]),
    (_user({"type": "image_url", "image_url": {}}), ["an image without its bytes"]),
    (_user({"type": "image_url", "image_url": "data:;base64,A"}), ["an image without its bytes"]),
    (_user({"type": "input_audio", "input_audio": {}}), ["a sound without its bytes"]),
    (_user({"type": "file", "file": {"file_id": "f"}}), ["a file without its bytes"]),
    (_user({"type": "input_image", "file_id": "f"}), ["an image without its bytes"]),
    (_user({"type": "input_file", "file_url": "https://x"}), ["a file without its bytes"]),
    (_user({"type": "input_file", "file_data": "https://x"}), ["a file that is only a URL"]),
    # Arguments that are no JSON object, and calls that are none.
    (_call(call_id="c", name="n", arguments="[1]"), [NO_OBJECT]),
    (_call(call_id="c", name="n", arguments='{"a":'), [NO_OBJECT]),
    (_call(call_id="c", name="n", arguments='{"a":NaN}'), [NO_OBJECT]),
    (_call(call_id="c", name="n", arguments="[" * 100_000), [NO_OBJECT]),
    (_call(call_id="c", name="n", arguments='{"a":' + "[" * 200 + "]" * 200 + "}"), [NO_OBJECT]),
    (_call(call_id="c", name="n"), [NO_OBJECT]),
    (_call(id="c", type="function", function={"name": "n", "arguments": "x"}), [NO_OBJECT]),
    (_call(id="c", type="function"), [NO_ID]),
    (_call(call_id=5, name="n", arguments=""), [NO_ID]),
    (_call(call_id="c", arguments=""), [NO_ID]),
    ({"role": "assistant", "content": "x", "tool_calls": ["c"]}, ["a tool call that is no object"]),
    (_riffers(tool_calls=[{"call_id": "c", "name": "n", "arguments": ""}]),
     ["tool calls in a message that is not the assistant's"]),
    (_user({"type": "tool_use", "id": "c", "name": "n", "input": {}}),
     ["tool calls in a message that is not the assistant's"]),
    # Blocks that have no place.
    (_user({"type": "video"}), ["a part of type 'video'"]),
    (_user({"type": "tool_use", "id": 1}, {"type": "search_result"}),
     [NO_ID, "a block of type 'search_result'"]),
    (_user({"type": "a secret\n"}), ["a part of no known type"]),
    (_user({"type": ["a"]}, "x"), ["a part that is no object", "a part of no known type"]),
    (_user({"type": "text", "text": 5}), ["a text that is no string"]),
    (_user({"type": "input_text"}), ["a text that is no string"]),
    (_user({"type": "input_text", "text": ""}, {"type": "input_video"}),
     ["a part of type 'input_video'"]),
    ({"type": "reasoning", "summary": [{"text": "x"}, 5]},
     ["a part of the reasoning that is no object"]),
    ({"role": "assistant", "content": "x", "reasoning": [{"type": "odd"}]},
     ["a part of the reasoning of type 'odd'"]),
    ({"role": "assistant", "content": "x", "function_call": {"name": "n"}},
     ["function_call, which has no place"]),
    ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, ["audio, which has no place"]),
    (_riffers(turnkeep={"kind": "odd"}), [f"{NOT_OURS} (turnkeep.kind: is user or reference)"]),
    (_riffers(turnkeep={"tokens": {"input": -1}}),
     [f"{NOT_OURS} (turnkeep.tokens.input: is negative)"]),
    (_riffers(turnkeep={"attachments": [{"mime": "", "filename": "", "data": "QQ"}]}),
     [f"{NOT_OURS} (turnkeep.attachments[0].data: {NO_BASE64})"]),
]  # fmt: skip


@pytest.mark.parametrize(("message", "losses"), LOSSES, ids=lambda value: str(value)[:60])
def test_what_has_no_place_is_an_error_or_noted_and_the_rest_stays(
    message: dict[str, Any], losses: list[str]
) -> None:
    lossy: list[str] = ["before"]
    [found] = exported(message, lossy=lossy)
    assert lossy == ["before", *(f"entry 1: {loss}" for loss in losses)]
    assert found.content == "x" or message.get("type") == "reasoning"
    with pytest.raises(HistoryError) as caught:
        exported(message)
    assert str(caught.value) == f"entry 1: {losses[0]}: pass lossy=[] to go on without it"


@pytest.mark.parametrize(
    ("message", "loss"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": "c", "name": "n"}, ORPHAN),
        ({"role": "tool", "content": "x"}, ORPHAN),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, ORPHAN),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}, ORPHAN),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, ORPHAN),
        ({}, UNKNOWN),
        ({"role": "user"}, UNKNOWN),
        ({"role": "user", "content": None}, UNKNOWN),
        ({"role": "user", "content": {"text": "x"}}, UNKNOWN),
        ({"role": "model", "parts": [{"text": "x"}]}, UNKNOWN),
        ({"role": ["user"], "content": "x"}, UNKNOWN),
        ({"role": "function", "name": "n", "content": "x"}, UNKNOWN),
        ({"type": "web_search_call", "id": "ws", "status": "completed"}, UNKNOWN),
        ({"type": "message", "role": "tool", "content": None}, UNKNOWN),
    ],
    ids=str,
)
def test_a_message_that_no_history_can_have_is_left_out(message: dict[str, Any], loss: str) -> None:
    lossy: list[str] = []
    around = {"role": "user", "content": "x"}
    found = exported(around, message, around, lossy=lossy)
    assert [m.content for m in found] == ["x", "x"]
    assert lossy == [f"entry 2: {loss}"]
    assert minted(found[1], 2 if loss == ORPHAN else 1)
    with pytest.raises(HistoryError, match=f"^entry 2: {loss}: "):
        exported(around, message)


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [("[1]", "[1]"), ("", {}), ([1], [1]), (None, None), ({"a": 1}, {"a": 1}), (0, 0), ("{", "{")],
)
def test_arguments_that_are_no_object_are_kept_as_an_input(arguments: Any, kept: Any) -> None:
    for message in (
        _call(call_id="c", name="n", arguments=arguments),
        _call(id="c", function={"name": "n", "arguments": arguments}),
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": arguments},
    ):
        [found] = exported(message, lossy=[])
        wanted = kept if isinstance(kept, dict) else {"input": kept}
        assert found.tool_calls == (ToolCall("c", "n", wanted),)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b64(b"\xfb\xff\xfe"), b"\xfb\xff\xfe"),
        ("-__-", b"\xfb\xff\xfe"),
        (base64.encodebytes(PNG).decode(), PNG),
        (b64(PNG).rstrip("="), PNG),
        ("", b""),
        ("QUJ=", b"AB"),  # bits that belong to no byte
    ],
)
def test_base64_is_read_in_every_spelling(data: str, found: bytes) -> None:
    uri = f"data:image/png;base64,{data}"
    for message in (
        _riffers(files=[{"media_type": "image/png", "data": data}]),
        _source(type="base64", media_type="image/png", data=data),
        _user({"type": "image_url", "image_url": {"url": uri}}),
        _user({"type": "input_image", "image_url": uri}),
        _user({"type": "file", "file": {"file_data": uri}}),
        _user({"type": "input_file", "file_data": uri}),
    ):
        assert exported(message)[0].attachments == (Attachment("image/png", "", found),)
    for bare in (
        _user({"type": "file", "file": {"file_data": data}}),
        _user({"type": "input_file", "file_data": data}),
    ):
        assert exported(bare)[0].attachments == (Attachment("", "", found),)


def test_a_data_uri_is_read_in_every_spelling() -> None:
    for uri, mime, data in [
        ("DATA:image/png;BASE64,QQ==", "image/png", b"A"),
        ("data:,a%20b", "", b"a b"),
        ("data:text/plain;a=b,Gr%C3%BC%C3%9Fe,", "text/plain;a=b", "Grüße,".encode()),
        ("data:text/plain;charset=utf-8;base64,QQ==", "text/plain;charset=utf-8", b"A"),
        ("data:,\ud83d", "", b"\xed\xa0\xbd"),
    ]:  # fmt: skip
        found = exported(_user({"type": "image_url", "image_url": {"url": uri}}))
        assert found[0].attachments == (Attachment(mime, "", data),)


def test_a_message_is_taken_for_what_it_is() -> None:
    """Where the shapes of two frameworks meet, nothing of either is lost."""
    usage = {"input_tokens": 1, "output_tokens": 2}
    found = exported(
        # A whole response of Anthropic's calls itself a message, as an item of OpenAI's does.
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}],
         "usage": usage, "model": "m"},
        {"role": "assistant", "content": "b", "stop_reason": "end_turn", "model": "m"},
        # Chat's calls, whatever the counts are called.
        {"role": "assistant", "content": "c", "usage": usage, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "n", "arguments": "{}"}}]},
        # A refusal among chat's parts makes it no item.
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "d"}], "model": "m"},
        # What has riffer's marks is riffer's.
        {"role": "assistant", "content": "e", "model": "m", "refusal": "x", "stop_reason": "x",
         "token_usage": usage, "reasoning": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"call_id": "c2", "name": "n", "arguments": ""}]},
        {"role": "user", "content": [{"type": "text", "text": "f"}], "turnkeep": {"kind": "odd"}},
    )  # fmt: skip
    same(
        found,
        Message(id="?", role="assistant", content="a", model_id="m", tokens=Tokens(1, 2)),
        Message(id="?", role="assistant", content="b", model_id="m"),
        Message(id="?", role="assistant", content="c", tool_calls=(ToolCall("c1", "n", {}),)),
        Message(id="?", role="assistant", content="d", model_id="m"),
        Message(id="?", role="assistant", content="e", thinking=Thinking("t"), tokens=Tokens(1, 2)),
        Message(id="?", role="assistant", content="", tool_calls=(ToolCall("c2", "n", {}),)),
        Message(id="?", role="user", content="f"),
    )


def test_counts_that_are_none_are_not_taken() -> None:
    for odd in (True, 1.0, "1", -1, None, [1]):
        usage = {"input_tokens": odd, "output_tokens": 10**30}
        [found] = exported(_riffers(token_usage=usage))
        assert found.tokens == Tokens(output=10**30)
    nothing: list[Any] = [{}, {"input_tokens": "1"}, [], "x", None]
    for none in nothing:
        assert exported(_riffers(token_usage=none))[0].tokens is None


def test_an_ordinary_message_is_written_in_riffers_shape_alone() -> None:
    attachment = Attachment("image/png", "a.png", PNG)
    call = ToolCall("c1", "look", {"at": [1, 1.0, "\ud83d"]})
    message = Message(id="1", role="user", content="x", attachments=(attachment,))
    assert write(message, None) == {
        "role": "user",
        "content": "x",
        "id": "1",
        "files": [{"media_type": "image/png", "data": b64(PNG), "filename": "a.png"}],
    }
    answer = Message(
        id="2",
        role="assistant",
        content="",
        tool_calls=(call,),
        thinking=Thinking("t", "s"),
        tokens=Tokens(1, 2, 3, 4),
    )
    assert write(answer, None) == {
        "role": "assistant",
        "content": "",
        "id": "2",
        "tool_calls": [{"call_id": "c1", "name": "look", "arguments": '{"at":[1,1.0,"\\ud83d"]}'}],
        "reasoning": [{"type": "text", "text": "t", "signature": "s"}],
        "token_usage": {
            "input_tokens": 1,
            "output_tokens": 2,
            "cache_write_tokens": 4,
            "cache_read_tokens": 3,
        },
    }
    assert write(Message(id="3", role="tool", content="y", tool_call_id="c1"), "look") == {
        "role": "tool",
        "content": "y",
        "id": "3",
        "tool_call_id": "c1",
        "name": "look",
    }
    sealed = Message(id="4", role="assistant", content="", thinking=Thinking(None, "s"))
    assert write(sealed, None)["reasoning"] == [{"type": "encrypted", "data": "s"}]


def test_only_what_riffers_shape_lacks_is_written_beside_it() -> None:
    attachment = Attachment("", "", b"")
    message = Message(
        id="1",
        role="assistant",
        content="x",
        kind="reference",
        attachments=(attachment,),
        model_id="m",
        thinking=Thinking("", None),
        tokens=Tokens(1, thinking=2),
    )
    raw = write(message, None)
    assert raw["turnkeep"] == {
        "kind": "reference",
        "attachments": [{"mime": "", "filename": "", "data": ""}],
        "model_id": "m",
        "thinking": {"text": ""},
        "tokens": {"input": 1, "thinking": 2},
    }
    assert exported(raw) == (message,)
    assert "turnkeep" not in write(replace(message, kind="user", attachments=(), model_id=None,
                                           thinking=None, tokens=Tokens(1)), None)  # fmt: skip
    assert History(messages=exported(write(message, None))) == History(messages=(message,))


def test_what_another_wrote_under_our_key_is_not_taken_for_more_than_it_is() -> None:
    others = {"id": "x", "role": "tool", "content": "y", "tool_calls": 5, "unknown": []}
    owns: list[Any] = ["x", 5, None, [], {}, others]
    for own in owns:
        assert exported(_riffers(id="1", turnkeep=own)) == (
            Message(id="1", role="user", content="x"),
        )
    odd = {"kind": None, "attachments": None, "thinking": None, "tokens": None, "model_id": None}
    raw = _riffers(id="1", files=[{"data": ""}], token_usage={"input_tokens": 1}, turnkeep=odd)
    assert exported(raw) == (Message(id="1", role="user", content="x"),)


@pytest.mark.parametrize("dialect", [anthropic, openai_chat, openai_responses, riffer])
def test_the_table_of_each_dialect_is_on_the_page_about_histories(dialect: ModuleType) -> None:
    page = (Path(__file__).parents[1] / "docs" / "history.md").read_text()
    table = [line for line in (dialect.__doc__ or "").splitlines() if line.startswith("|")]
    assert len(table) > 5
    assert "\n".join(table) in page
