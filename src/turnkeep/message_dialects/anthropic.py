"""Anthropic's messages, whose content is a list of blocks.

| History | Anthropic |
|---|---|
| id, model_id | `id`, `model` |
| content | the text blocks, with a blank line between them |
| attachments | image and document blocks with a source in base64, or a document of text |
| tool_calls | tool_use: `id`, `name`, `input` |
| a tool message | each tool_result of a user message, first; the rest is a user message |
| thinking | thinking: `thinking`, `signature`; redacted_thinking: `data` is the signature |
| tokens | `usage`: `input_tokens`, `output_tokens`, `cache_read_input_tokens`, `cache_creation_input_tokens` |
"""

from turnkeep.message import Attachment, Thinking
from turnkeep.message_dialects.draft import (
    Draft,
    Losses,
    attachment,
    dig,
    kind_of,
    objects,
    text_of,
    texts_of,
    tokens,
    tool_call,
    types_of,
)
from turnkeep.payload import Json, JsonObject

_ITS_OWN = {"tool_use", "tool_result", "thinking", "redacted_thinking", "document", "image"}


def read(message: JsonObject, losses: Losses) -> list[Draft] | None:
    """The drafts of an Anthropic message; None where *message* is none."""
    role, content, usage = (message.get(key) for key in ("role", "content", "usage"))
    is_response = "stop_reason" in message or dig(usage, "input_tokens") is not None
    is_its_own = is_response or bool(_ITS_OWN.intersection(types_of(content)))
    if role not in ("user", "assistant") or not is_its_own or "tool_calls" in message:
        return None
    draft = Draft(str(role), text_of(message.get("id")), model_id=text_of(message.get("model")))
    draft.tokens = tokens(
        {
            "input": dig(usage, "input_tokens"),
            "output": dig(usage, "output_tokens"),
            "cached": dig(usage, "cache_read_input_tokens"),
            "cache_creation": dig(usage, "cache_creation_input_tokens"),
        },
    )
    results = []
    for block in _blocks(content, "a block", losses):
        if block.get("type") == "tool_result":
            result = Draft("tool", tool_call_id=text_of(block.get("tool_use_id")))
            for part in _blocks(block.get("content"), "a block of a result", losses):
                _take(result, part, losses)
            results.append(result)
        else:
            _take(draft, block, losses)
    if results and draft.is_empty:
        results[0].id = draft.id
        return results
    return [*results, draft]


def _blocks(content: Json, what: str, losses: Losses) -> list[JsonObject]:
    """The blocks of a content, of which a str is one of text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return objects(content, what, losses)


def _take(draft: Draft, block: JsonObject, losses: Losses) -> None:
    """Add what one block says."""
    kind = block.get("type")
    if kind == "text":
        draft.texts += texts_of(block.get("text"), losses)
    elif kind in ("image", "document"):
        draft.attachments += _source(block, losses)
    elif kind == "tool_use":
        call = (block.get("id"), block.get("name"), block.get("input"))
        draft.tool_calls += tool_call(*call, losses)
    elif kind == "thinking":
        thought = Thinking(text_of(block.get("thinking")), text_of(block.get("signature")))
        draft.thoughts.append(thought)
    elif kind == "redacted_thinking":
        draft.thoughts.append(Thinking(signature=text_of(block.get("data"))))
    else:
        losses.add(f"a block of {kind_of(block)}")


def _source(block: JsonObject, losses: Losses) -> list[Attachment]:
    source, name = block.get("source"), block.get("title")
    kind, mime, data = (dig(source, key) for key in ("type", "media_type", "data"))
    if kind == "text" and isinstance(data, str):
        text = data.encode("utf-8", "surrogatepass")
        return [Attachment(text_of(mime) or "text/plain", text_of(name) or "", text)]
    if kind == "base64":
        return attachment(mime, name, data, losses)
    losses.add("an attachment that is only a URL" if kind == "url" else "a source of another type")
    return []
