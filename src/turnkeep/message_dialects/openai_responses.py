"""OpenAI's Responses items, of which several adjacent ones make up one turn of the assistant.

| History | OpenAI Responses |
|---|---|
| id | that of the turn's first item |
| content | input_text, output_text and refusal, with a blank line between them |
| attachments | the data of input_image and input_file |
| tool_calls | function_call: `call_id`, `name`, `arguments`; a custom_tool_call's `input` becomes `{"input": …}` |
| a tool message | function_call_output and custom_tool_call_output: `call_id`, `output` |
| thinking | reasoning: `summary` and `content`; `encrypted_content` is the signature |
"""

from turnkeep.message import Thinking
from turnkeep.message_dialects.draft import (
    BLANK_LINE,
    Draft,
    Losses,
    data_uri,
    file_data,
    kind_of,
    objects,
    text_of,
    texts_of,
    tool_call,
    types_of,
)
from turnkeep.payload import Json, JsonObject

_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ITS_OWN = {"input_text", "output_text", "input_image", "input_file"}
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def read(message: JsonObject, losses: Losses) -> list[Draft] | None:
    """The draft of an item, none for a system prompt; None where *message* is no item."""
    kind = message.get("type")
    draft = Draft("assistant", text_of(message.get("id")), continues=True)
    call, name = message.get("call_id"), message.get("name")
    if kind == "message" or (
        kind is None and _ITS_OWN.intersection(types_of(message.get("content")))
    ):
        return _message(draft, message, losses)
    if kind == "function_call":
        draft.tool_calls += tool_call(call, name, message.get("arguments"), losses)
    elif kind == "custom_tool_call":
        draft.tool_calls += tool_call(call, name, {"input": message.get("input")}, losses)
    elif kind == "reasoning":
        draft.thoughts.append(_thought(message, losses))
    elif kind in _OUTPUTS:
        draft = Draft("tool", draft.id, tool_call_id=text_of(call))
        _take(draft, message.get("output"), losses)
    else:
        return None
    return [draft]


def _message(draft: Draft, message: JsonObject, losses: Losses) -> list[Draft] | None:
    role = message.get("role")
    if role in ("system", "developer"):
        return []
    if role not in ("user", "assistant"):
        return None
    draft.role, draft.continues = str(role), role == "assistant"
    _take(draft, message.get("content"), losses)
    return [draft]


def _take(draft: Draft, content: Json, losses: Losses) -> None:
    """Add what the content of a message, or the output of a call, says."""
    if isinstance(content, str):
        draft.texts.append(content)
        return
    for part in objects(content, "a part", losses):
        kind = part.get("type")
        if kind in _TEXTS:
            draft.texts += texts_of(part.get("text"), losses)
        elif kind == "refusal":
            draft.texts += texts_of(part.get("refusal"), losses)
        elif kind == "input_image":
            draft.attachments += data_uri(part.get("image_url"), None, losses, "an image")
        elif kind == "input_file":
            draft.attachments += file_data(part.get("file_data"), part.get("filename"), losses)
        else:
            losses.add(f"a part of {kind_of(part)}")


def _thought(message: JsonObject, losses: Losses) -> Thinking:
    """The thought of an item of reasoning."""
    texts: list[str] = []
    for key in ("summary", "content"):
        for part in objects(message.get(key), "a part of the reasoning", losses):
            texts += texts_of(part.get("text"), losses)
    text = BLANK_LINE.join(filter(None, texts))
    return Thinking(text or None, text_of(message.get("encrypted_content")))
