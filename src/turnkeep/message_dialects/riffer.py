"""Riffer's messages, the native dialect, which is written as well as read.

| History | riffer |
|---|---|
| id | `id` |
| content | `content`, a str |
| attachments | a user message's `files`: `media_type`, `data` in base64, `filename` |
| tool_calls | `call_id`, `name`, `arguments`: a JSON text, `""` for none |
| tool_call_id | `tool_call_id`; `name` is that of the call |
| thinking | `reasoning` of type text or summary: `text`, `signature`; encrypted: `data` is the signature |
| tokens | `token_usage`: `input_tokens`, `output_tokens`, `cache_read_tokens`, `cache_write_tokens` |

What a message of a History has beyond that (its kind and model, attachments of other roles, thinking
and tokens of another shape) is written in History's own JSON under one more key, `turnkeep`.
"""

from dataclasses import replace

from turnkeep import payload
from turnkeep.errors import HistoryError
from turnkeep.message import ROLES, Message, Thinking
from turnkeep.message_dialects.draft import (
    Draft,
    Losses,
    attachment,
    dig,
    kind_of,
    objects,
    text_of,
    tokens,
    tool_call,
)
from turnkeep.message_json import inline, message_from_dict, message_to_dict
from turnkeep.payload import Json, JsonObject

OWN = "turnkeep"
"""The key under which a message has fields in History's own JSON; null is the field's default."""

_OWN_FIELDS = ("kind", "attachments", "model_id", "thinking", "tokens")
_MARKS = ("files", "token_usage", OWN)


def is_marked(message: JsonObject) -> bool:
    """Whether *message* has a key that no other dialect has."""
    calls = message.get("tool_calls")
    return _is_riffers(message) and (
        any(key in message for key in _MARKS)
        or isinstance(message.get("reasoning"), list)
        or any("call_id" in call for call in _list(calls) if isinstance(call, dict))
    )


def read(message: JsonObject, losses: Losses) -> list[Draft] | None:
    """The draft of a riffer message; None where *message* is none."""
    if not _is_riffers(message):
        return None
    role, content = message.get("role"), message.get("content")
    draft = Draft(str(role), text_of(message.get("id")), [text_of(content) or ""])
    for file in objects(message.get("files"), "a file", losses):
        mime, name, data = (file.get(key) for key in ("media_type", "filename", "data"))
        if data is None and file.get("url") is not None:
            losses.add("a file that is only a URL")
        else:
            draft.attachments += attachment(mime, name, data, losses, "a file")
    for call in objects(message.get("tool_calls"), "a tool call", losses):
        given = (call.get("call_id"), call.get("name"), call.get("arguments"))
        draft.tool_calls += tool_call(*given, losses)
    for part in objects(message.get("reasoning"), "a part of the reasoning", losses):
        if part.get("type") == "encrypted":
            draft.thoughts.append(Thinking(signature=text_of(part.get("data"))))
        elif part.get("type") in ("text", "summary"):
            text, signature = text_of(part.get("text")), text_of(part.get("signature"))
            draft.thoughts.append(Thinking(text, signature))
        else:
            losses.add(f"a part of the reasoning of {kind_of(part)}")
    draft.tool_call_id = text_of(message.get("tool_call_id")) if role == "tool" else None
    usage = message.get("token_usage")
    draft.tokens = tokens(
        {
            "input": dig(usage, "input_tokens"),
            "output": dig(usage, "output_tokens"),
            "cached": dig(usage, "cache_read_tokens"),
            "cache_creation": dig(usage, "cache_write_tokens"),
        },
    )
    draft.own = _own(message.get(OWN), losses)
    return [draft]


def write(message: Message, called: str | None) -> JsonObject:
    """The riffer message of *message*; *called* is the name of the tool that it answers for."""
    raw: JsonObject = {"role": message.role, "content": message.content, "id": message.id}
    if message.role == "user" and message.attachments:
        raw["files"] = [
            {"media_type": given["mime"], "data": given["data"], "filename": given["filename"]}
            for given in map(inline, message.attachments)
        ]
    if message.tool_calls:
        raw["tool_calls"] = [
            {"call_id": call.id, "name": call.name, "arguments": payload.encode(call.arguments)}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        raw["tool_call_id"] = message.tool_call_id
        raw["name"] = called or ""
    if message.thinking is not None and (reasoning := _reasoning(message.thinking)):
        raw["reasoning"] = reasoning
    if message.tokens is not None:
        usage: JsonObject = {
            "input_tokens": message.tokens.input,
            "output_tokens": message.tokens.output,
            "cache_write_tokens": message.tokens.cache_creation,
            "cache_read_tokens": message.tokens.cached,
        }
        usage = {name: count for name, count in usage.items() if count is not None}
        if usage:
            raw["token_usage"] = usage
    if own := _what_is_not_in(raw, message):
        raw[OWN] = own
    return raw


def _what_is_not_in(raw: JsonObject, message: Message) -> JsonObject:
    """The fields of *message* that reading *raw* would not give back; null for none."""
    [draft] = read(raw, Losses(None)) or []
    read_back = draft.to_message(message.id)
    odd = [name for name in _OWN_FIELDS if getattr(read_back, name) != getattr(message, name)]
    if not odd:
        return {}
    # To write all attachments in base64 once more, for nothing, is what would take the time.
    wanted = message if "attachments" in odd else replace(message, attachments=())
    given = message_to_dict(wanted, inline)
    return {name: given.get(name) for name in odd}


def _is_riffers(message: JsonObject) -> bool:
    """Whether *message* has a role and a content of riffer's."""
    role, content = message.get("role"), message.get("content")
    return role in ROLES and (isinstance(content, str) or (content is None and role == "assistant"))


def _own(given: Json, losses: Losses) -> dict[str, object]:
    """The fields that stand under OWN."""
    if not isinstance(given, dict):
        return {}
    fields = {name: given[name] for name in _OWN_FIELDS if given.get(name) is not None}
    try:
        parsed = message_from_dict({"id": OWN, "role": "user", "content": "", **fields}, OWN)
    except HistoryError as error:
        losses.add(f"what is not that of a history ({error})")
        return {}
    return {name: getattr(parsed, name) for name in _OWN_FIELDS if name in given}


def _reasoning(thinking: Thinking) -> list[Json]:
    """The parts of the reasoning that say *thinking*."""
    if thinking.text is None:
        encrypted: JsonObject = {"type": "encrypted", "data": thinking.signature}
        return [] if thinking.signature is None else [encrypted]
    part: JsonObject = {"type": "text", "text": thinking.text}
    return [part if thinking.signature is None else {**part, "signature": thinking.signature}]


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
