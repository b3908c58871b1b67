"""OpenAI's chat messages; system and developer messages are no part of a history.

| History | OpenAI chat |
|---|---|
| id, model_id | `id`, `model` |
| content | `content`, a str or text and refusal parts, with a blank line between them |
| attachments | image_url with a `data:` URI, input_audio, the `file_data` of a file |
| tool_calls | `id`, `function.name`, `function.arguments`; a custom tool's `input` becomes `{"input": …}` |
| a tool message | `tool_call_id`, `content` |
| thinking | `reasoning_content` |
| tokens | `usage`: `prompt_tokens`, `completion_tokens`, and in their details `cached_tokens`, `reasoning_tokens` |
"""

from turnkeep.message import ROLES, Thinking, ToolCall
from turnkeep.message_dialects.draft import (
    Draft,
    Losses,
    attachment,
    data_uri,
    dig,
    file_data,
    kind_of,
    objects,
    text_of,
    texts_of,
    tokens,
    tool_call,
)
from turnkeep.payload import Json, JsonObject

_SKIPPED = ("system", "developer")
_ITS_OWN = ("refusal", "reasoning_content", "function_call", "usage", "audio", "model")


def read(message: JsonObject, losses: Losses) -> list[Draft] | None:
    """The draft of a chat message, none for a system prompt; None where *message* is no such."""
    role, content, calls = (message.get(key) for key in ("role", "content", "tool_calls"))
    if role in _SKIPPED:
        return []
    its_own = (
        isinstance(content, list)
        or (content is None and role == "assistant")
        or any(message.get(key) is not None for key in _ITS_OWN)
        or any(isinstance(call, dict) and "call_id" not in call for call in _list(calls))
    )
    if role not in ROLES or not its_own:
        return None
    draft = Draft(str(role), text_of(message.get("id")), model_id=text_of(message.get("model")))
    parts: Json = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in objects(parts, "a part", losses):
        _take(draft, part, losses)
    if (refusal := message.get("refusal")) is not None:
        draft.texts += texts_of(refusal, losses)
    for call in objects(calls, "a tool call", losses):
        draft.tool_calls += _call(call, losses)
    for key in ("function_call", "audio"):
        if message.get(key) is not None:
            losses.add(f"{key}, which has no place")
    if role == "tool":
        draft.tool_call_id = text_of(message.get("tool_call_id"))
    draft.thoughts.append(Thinking(text_of(message.get("reasoning_content"))))
    usage = message.get("usage")
    draft.tokens = tokens(
        {
            "input": dig(usage, "prompt_tokens"),
            "output": dig(usage, "completion_tokens"),
            "cached": _detail(usage, "prompt_tokens_details", "cached_tokens"),
            "thinking": _detail(usage, "completion_tokens_details", "reasoning_tokens"),
        },
    )
    return [draft]


def _take(draft: Draft, part: JsonObject, losses: Losses) -> None:
    """Add what one part of the content says."""
    kind = part.get("type")
    if kind in ("text", "refusal"):
        draft.texts += texts_of(part.get(str(kind)), losses)
    elif kind == "image_url":
        image = part.get("image_url")
        url = image if isinstance(image, str) else dig(image, "url")
        draft.attachments += data_uri(url, None, losses, "an image")
    elif kind == "input_audio":
        sound = part.get("input_audio")
        mime = f"audio/{text_of(dig(sound, 'format')) or 'wav'}"
        draft.attachments += attachment(mime, None, dig(sound, "data"), losses, "a sound")
    elif kind == "file":
        file = part.get("file")
        draft.attachments += file_data(dig(file, "file_data"), dig(file, "filename"), losses)
    else:
        losses.add(f"a part of {kind_of(part)}")


def _call(call: JsonObject, losses: Losses) -> list[ToolCall]:
    if call.get("type") == "custom":
        given: JsonObject = {"input": dig(call, "custom", "input")}
        return tool_call(call.get("id"), dig(call, "custom", "name"), given, losses)
    name, arguments = dig(call, "function", "name"), dig(call, "function", "arguments")
    return tool_call(call.get("id"), name, arguments, losses)


def _detail(usage: Json, details: str, name: str) -> Json:
    """A count, which some providers give in the details and some beside the others."""
    nested = dig(usage, details, name)
    return dig(usage, name) if nested is None else nested


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
