"""Messages for the tests: in the shapes that frameworks give them, and any that hypothesis finds.

What is lifted out of a message is told here once more, in another way than the library does it.
"""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from hypothesis import strategies as st

from histories import full, texts, values
from turnkeep.message_dialects.riffer import write
from turnkeep.payload import Json, JsonObject, join_surrogates

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(255))
WAV = b"RIFF" + bytes(40)
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"


def b64(data: bytes) -> str:
    """The base64 of *data*, as the standard writes it."""
    return base64.b64encode(data).decode()


class Shape(NamedTuple):
    """A message in the shape that a framework gives it, and what is lifted out of it."""

    name: str
    message: JsonObject
    lifted: list[tuple[str | None, str | None, bytes]]
    """Media type, name and bytes, in the order of the text."""


def _block(*blocks: Json) -> JsonObject:
    return {"role": "user", "content": list(blocks)}


SHAPES = [
    Shape(
        "riffer",
        {
            "role": "user",
            "content": "look",
            "files": [
                {"media_type": "image/png", "data": b64(PNG), "filename": "a.png"},
                {"media_type": "image/png", "url": "https://example.org/b.png"},
                {"media_type": "text/plain", "data": "", "sha256": sha256(b"").hexdigest()},
            ],
        },
        [("image/png", "a.png", PNG), ("text/plain", None, b"")],
    ),
    Shape(
        "pikuri",
        {
            "id": "1",
            "role": "tool",
            "content": "",
            "attachments": [{"mime": "application/pdf", "filename": "ü.pdf", "data": b64(PDF)}],
            "tool_call_id": "a",
        },
        [("application/pdf", "ü.pdf", PDF)],
    ),
    Shape(
        "anthropic source",
        _block(
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": b64(PNG)},
            },
            {
                "type": "tool_result",
                "tool_use_id": "a",
                "content": [
                    {
                        "type": "document",
                        "source": {
                            "type": "base64",
                            "media_type": "application/pdf",
                            "data": b64(PDF),
                        },
                        "title": "a.pdf",
                    }
                ],
            },
        ),
        [("image/png", None, PNG), ("application/pdf", None, PDF)],
    ),
    Shape(
        "openai image_url",
        _block(
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64(PNG)}},
            {"type": "input_image", "image_url": "data:image/png;base64," + b64(PNG)},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        ),
        [("image/png", None, PNG), ("image/png", None, PNG)],
    ),
    Shape(
        "openai input_audio",
        _block({"type": "input_audio", "input_audio": {"data": b64(WAV), "format": "wav"}}),
        [("audio/wav", None, WAV)],
    ),
    Shape(
        "openai file_data",
        _block(
            {
                "type": "file",
                "file": {
                    "filename": "a.pdf",
                    "file_data": "data:application/pdf;base64," + b64(PDF),
                },
            }
        ),
        [("application/pdf", "a.pdf", PDF)],
    ),
    Shape(
        "gemini inline_data",
        {
            "role": "user",
            "parts": [
                {"text": "look"},
                {
                    "inline_data": {
                        "mime_type": "image/png",
                        "data": b64(PNG),
                        "display_name": "a.png",
                    }
                },
                {"inlineData": {"mimeType": "audio/wav", "data": b64(WAV)}},
            ],
        },
        [("image/png", "a.png", PNG), ("audio/wav", None, WAV)],
    ),
    Shape(
        "langchain",
        _block(
            {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": b64(PNG)},
            {"type": "image", "base64": b64(PNG), "mime_type": "image/png"},
            {"type": "media", "mime_type": "application/pdf", "data": b64(PDF)},
        ),
        [("image/png", None, PNG), ("image/png", None, PNG), ("application/pdf", None, PDF)],
    ),
    Shape(
        "mcp",
        {
            "role": "tool",
            "content": [
                {"type": "image", "data": b64(PNG), "mimeType": "image/png"},
                {"type": "audio", "data": b64(WAV), "mimeType": "audio/wav"},
            ],
        },
        [("image/png", None, PNG), ("audio/wav", None, WAV)],
    ),
    Shape(
        "bytes beside a media type",
        {"file": {"bytes": b64(PDF), "mime": "application/pdf", "file_name": "a.pdf"}},
        [("application/pdf", "a.pdf", PDF)],
    ),
    Shape(
        "a data URI anywhere",
        {
            "list": ["data:;base64," + b64(WAV), "name", "filename"],
            "name": "data:text/plain;charset=utf-8;base64,",
            "\0": {"": "data:image/svg+xml;a=b;base64," + b64(PDF), "name": "x\0y"},
        },
        [
            (None, None, WAV),
            ("text/plain", "data:text/plain;charset=utf-8;base64,", b""),
            ("image/svg+xml", None, PDF),
        ],
    ),
]

NOT_LIFTED: list[JsonObject] = [
    {"content": b64(PNG)},
    {"data": b64(PNG)},
    {"mime": "image/png", "content": b64(PNG)},
    {"mime": "png", "data": b64(PNG)},
    {"mime": ["image/png"], "data": b64(PNG)},
    {"mime": "image/png", "data": [b64(PNG)]},
    {"mime": "image/png", "below": {"data": b64(PNG)}},
    {"mime": "image/png", "data": b64(PNG).rstrip("=")},
    {"mime": "image/png", "data": base64.encodebytes(PNG).decode()},
    {"mime": "image/png", "data": base64.urlsafe_b64encode(b"\xfb\xff\xfe").decode()},
    {"mime": "image/png", "data": "QUJ="},
    {"mime": "image/png", "data": "QUI=QUI="},
    {"mime": "image/png", "data": "QUI=\n"},
    {"mime": "image/png", "data": "QUI=="},
    {"mime": "image/png", "data": "=QUI"},
    {"mime": "image/png", "data": "\N{FULLWIDTH LATIN CAPITAL LETTER A}UI="},
    {"mime": "image/png", "data": "\ud83d"},
    {"type": "redacted_thinking", "data": b64(PNG)},
    {"input_audio": {"data": b64(WAV)}},
    {"input_audio": {"data": b64(WAV), "format": 1}},
    {"audio": {"data": b64(WAV), "format": "wav"}},
    {"input_audio": [{"data": b64(WAV), "format": "wav"}]},
    {"url": "data:image/png," + b64(PNG)},
    {"url": " data:image/png;base64," + b64(PNG)},
    {"url": "see data:image/png;base64," + b64(PNG)},
    {"url": "data:image/png;base64," + b64(PNG) + " "},
    {"data:image/png;base64," + b64(PNG): 1},
]


CONVERSATION: list[JsonObject] = [
    *(shape.message for shape in SHAPES),
    *(write(message, "n") for message in full().messages),
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]},
        {"type": "text", "text": "y"}]},
    {"type": "message", "id": "msg_1", "role": "assistant", "model": "m", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "QQ=="},
        {"type": "tool_use", "id": "a", "name": "n", "input": {"x": [1]}}],
     "stop_reason": "tool_use", "usage": {"input_tokens": 1, "cache_read_input_tokens": 2}},
    {"role": "assistant", "content": None, "reasoning_content": "t", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "n", "arguments": '{"x":1}'}},
        {"id": "b", "type": "custom", "custom": {"name": "n", "input": "x"}}],
     "usage": {"prompt_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 2}}},
    {"role": "tool", "tool_call_id": "a", "content": "x"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}],
     "encrypted_content": "ZW5j"},
    {"type": "function_call", "call_id": "a", "name": "n", "arguments": '{"x":1}'},
    {"type": "function_call_output", "call_id": "a", "output": [
        {"type": "input_image", "image_url": "data:image/png;base64,QQ=="}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    {"role": "system", "content": "x"},
]  # fmt: skip
WORDS = sorted({*re.findall(r'"([a-z_]{2,30})"', json.dumps(CONVERSATION))} | {"url", "odd"})
"""What a message in one of these shapes may have as a key, or as the type of a part."""


class Expected(NamedTuple):
    """What is to be lifted out of a message."""

    path: tuple[str | int, ...]
    prefix: str
    data: bytes


def expected(message: Json) -> list[Expected]:
    """What is to be lifted out of *message*, in the order of the text."""
    return list(_expected(message, ()))


def _expected(value: Json, path: tuple[str | int, ...]) -> Iterator[Expected]:
    if isinstance(value, str):
        return
    items: Sequence[tuple[Any, Json]] = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    for key, item in items:
        if isinstance(item, str):
            head, comma, tail = item.partition(",")
            if head.startswith("data:") and head.endswith(";base64") and comma:
                prefix, text = head + comma, tail
            elif isinstance(value, dict) and (_has_media_type(key, value) or _is_audio(path, key)):
                prefix, text = "", item
                if not _has_media_type(key, value) and not isinstance(value.get("format"), str):
                    continue
            else:
                continue
            if re.fullmatch("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3}={1,2})?", text):
                data = base64.b64decode(text + "==")
                if b64(data) == text:
                    yield Expected((*path, key), prefix, data)
        else:
            yield from _expected(item, (*path, key))


def _has_media_type(key: object, beside: JsonObject) -> bool:
    names = ("mime", "media_type", "mime_type", "mimeType")
    return key in ("data", "base64", "bytes") and any(
        "/" in str(beside.get(n)) for n in names if isinstance(beside.get(n), str)
    )


def _is_audio(path: tuple[str | int, ...], key: object) -> bool:
    return key == "data" and path != () and path[-1] == "input_audio"


def without_bytes(message: JsonObject) -> JsonObject:
    """*message* as it is read without attachments: the digest stands where the bytes were."""
    changed: Any = json.loads(json.dumps(message))
    for path, prefix, data in expected(message):
        at = changed
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = prefix + sha256(data).hexdigest()
    assert isinstance(changed, dict)
    return changed


@st.composite
def base64_texts(draw: st.DrawFn) -> str:
    """Base64, or nearly so, in the spellings in which it is met."""
    data = draw(st.binary(max_size=40) | st.sampled_from([PNG, WAV, b"", b"\xfb\xff\xfe" * 30]))
    text = b64(data)
    spellings = [
        text,
        text,
        text,
        text.rstrip("="),
        text + "=",
        text + "\n",
        " " + text,
        text.lower(),
        re.sub("[AQgw](=+)$", "B\\1", text),  # bits that belong to no byte
        b64(b"a") + text,
        text.replace("A", "\0"),
        base64.urlsafe_b64encode(data).decode(),
        base64.encodebytes(data).decode(),
        text + "\ud83d",
    ]
    return draw(st.sampled_from(spellings))


media_types = st.sampled_from(["image/png", "a/b", "/", "png", "", "a/\0", "\ud83d/x"])
prefixes = st.sampled_from(
    [
        "data:image/png;base64,",
        "data:;base64,",
        "data:text/plain;charset=utf-8;base64,",
        "data:a/b;base64;base64,",
        "data:a/b;\ud83d\0\n;base64,",
        "data:a/b;base64,data:a/b;base64,",
        "data:a,b;base64,",
        "data:image/png,",
        " data:image/png;base64,",
        "DATA:image/png;BASE64,",
        "data:a/b;base64",
    ]
)
data_uris = st.builds("{}{}".format, prefixes, base64_texts())
# What a library that marks its places in the message might take for its own mark.
markers: st.SearchStrategy[Json] = st.sampled_from(
    [
        sha256(PNG).hexdigest(),
        "sha256:" + sha256(PNG).hexdigest(),
        '["message","data"]',
        "data:;base64," + sha256(PNG).hexdigest(),
        "turnkeep",
    ]
) | st.sampled_from(
    [
        {"$ref": sha256(PNG).hexdigest()},
        {"turnkeep": {"digest": sha256(PNG).hexdigest(), "path": "$.message"}},
        {"__turnkeep__": 0, "data": sha256(PNG).hexdigest(), "mime": "image/png"},
    ]
)
names: st.SearchStrategy[Json] = texts.map(join_surrogates) | st.sampled_from(
    ["a.png", "a\0b", "../x", "", "\ud83d", None, 1, ["a"]]
)
_SPECIAL = ["data", "base64", "bytes", "mime", "media_type", "mime_type", "mimeType", "format"]
keys = st.sampled_from([*_SPECIAL, "input_audio", "filename", "name", "\0", "", "k" * 1000])


@st.composite
def holders(draw: st.DrawFn) -> Json:
    """An object that may hold bytes: under one of the keys, beside what tells a media type."""
    fields: list[tuple[str, Json]] = [
        (draw(st.sampled_from(["data", "base64", "bytes", "text"])), draw(base64_texts())),
        (draw(st.sampled_from(_SPECIAL[3:])), draw(media_types | st.none())),
    ]
    if draw(st.booleans()):
        name = draw(st.sampled_from(["filename", "file_name", "name", "display_name"]))
        fields.append((name, draw(names)))
    if draw(st.booleans()):
        fields.append((draw(keys), draw(data_uris)))
    holder: Json = dict(draw(st.permutations(fields)))
    around = draw(st.sampled_from([None, "input_audio", "source"]))
    return holder if around is None else {around: holder}


leaves = base64_texts() | data_uris | holders() | markers | values
trees: st.SearchStrategy[Json] = st.recursive(
    leaves,
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(keys | texts.map(join_surrogates), children, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def messages(draw: st.DrawFn) -> JsonObject:
    """Any JSON object, in which bytes stand in every way and place."""
    value = draw(trees)
    for key in draw(st.lists(keys, max_size=6)):  # deep, under keys of up to 1 kB
        value = [value] if key == "" else {key: value, "after": draw(base64_texts())}
    message: JsonObject = _plain({"role": "user", "content": value})
    return message


def _plain(message: Json) -> Any:
    """A copy with the surrogate pairs joined, as an entry holds it, where no object is shared."""
    if isinstance(message, str):
        return join_surrogates(message)
    if isinstance(message, list):
        return [_plain(item) for item in message]
    if isinstance(message, dict):
        return {join_surrogates(key): _plain(item) for key, item in message.items()}
    return message
