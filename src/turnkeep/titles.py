"""The title of a session: the first line of its first prompt, fit to be shown anywhere."""

import unicodedata
from itertools import dropwhile, islice

from turnkeep.payload import Json, JsonObject

MAX_LENGTH = 200
"""In code points."""

_BIDI = {
    "\u061c",
    "\u200e",
    "\u200f",
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
}
_ZWJ = "\u200d"
_BLANK = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\u2060\ufeff"


def title_of(message: JsonObject) -> str:
    """The title that *message* gives its session, `""` where it gives none.

    It is the first line of a user message's text that is not blank, without control characters,
    unpaired surrogates and marks that turn the direction of what follows, and at most 200 code
    points long. It is not cut before a combining mark, a variation selector or a zero-width joiner,
    nor after such a joiner. A message of kind `reference`, which the app put in, gives none.
    """
    own = message.get("turnkeep")
    kinds = (message.get("kind"), own.get("kind") if isinstance(own, dict) else None)
    if message.get("role") != "user" or "reference" in kinds:
        return ""
    for line in _text(message.get("content")).splitlines():
        # One character more than there is room for tells where to cut; a line may be megabytes.
        shown = dropwhile(_BLANK.__contains__, map(_shown, line))
        title = "".join(islice(filter(None, shown), MAX_LENGTH + 1)).rstrip(_BLANK)
        if any(unicodedata.category(character) not in ("Cf", "Zs") for character in title):
            return _cut(title)
    return ""


def _text(content: Json) -> str:
    """The text of a content, which is one or a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _shown(character: str) -> str:
    if character == "\t":
        return " "
    hidden = unicodedata.category(character) in ("Cc", "Cs") or character in _BIDI
    return "" if hidden else character


def _cut(title: str) -> str:
    end = MAX_LENGTH
    if len(title) > end:
        while end and (_joins(title[end]) or title[end - 1] == _ZWJ):
            end -= 1
    return title[:end].rstrip(_BLANK)


def _joins(character: str) -> bool:
    """Whether it is shown as a part of the one before; variation selectors are combining marks."""
    return character == _ZWJ or unicodedata.category(character).startswith("M")
