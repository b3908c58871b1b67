"""The headers, entries and values that the laws try: what stores were seen to change, or to mix.

A store that sorts the keys of objects, by text or by length, is found by the one law about that:
elsewhere they stand in an order that neither changes.
"""

from collections.abc import Sequence
from typing import Any

from turnkeep.entries import (
    Entry,
    Header,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    SkillEntry,
    UnknownEntry,
)
from turnkeep.payload import MAX_DEPTH, JsonObject

EARLY, LATE, LATER = (f"2026-11-30T12:00:0{second}.000Z" for second in (1, 5, 9))

# Each of these is another's under some folding, pattern, path or quoting, or is of a greatest size.
ODD_IDS = (
    *("a", "A", "ä", "a\u0308", "ß", "ss", "SS", "\ue000", "\U0001f600", "CON", "null", "None"),
    *("x", "x ", " x", "x\n", "x\t", "\u00adx", "\ufeffx", "x\x7f", "0", "00", "1", "1.0"),
    *("%", "_", "*", "?", "a%", "a_", "[ab]", '"', "a'b", "';drop--", "-a", "a:b", "a/b", "a\\b"),
    *("a%2Fb", "../a", ".", "..", ".a", "z" * 255, "z" * 254, "é" * 127),
)
IMPOSSIBLE_IDS = ("", "\0", "s1\0", "\ud83d", "z" * 256, "é" * 128, "z" * 10_000)

CWDS = (
    *("/", "/w", "/w/", "/w/app", "/W", "/w%", "/w_", "/%", "w", "C:\\w", "None", "/a'b"),
    *("/é", "/e\u0301", "", " /w", "/w ", "/w\n", "/" + "x" * 3000, "/" + "x" * 2999 + "y"),
)

WHOLE = (0, 1, -1, True, False, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30, -(10**400))
REAL = (0.0, -0.0, 1.0, 0.1, 1e16, 1e22, 1e100, 5e-324, 1.7976931348623157e308, 2.0**63)

NUL = ("\0", "a\0b", "\0\0", "\\u0000", "\\\0")
SURROGATES = ("\ud83d", "ab\ude00", "\ude00\ud83d", "\\ud83d", "ä\ud800\U0001f600")

_SIGNS = "ä a\u0308 \u2028\u2029\ufeff \U0001f600\U0001f468\u200d\U0001f469 \x01\x1b\x7f"
_ODD = f"{_SIGNS} \\ \" ' \\u0000 %s {{}} \r\n\t"

_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


def header(session: str = "s1", **fields: Any) -> Header:
    """A Header with some *fields* of its own."""
    given = {"id": session, "cwd": "/app", "created_at": "2026-11-30T12:00:00Z", "model": "m"}
    return Header(**(given | fields))


def message(content: str, stamp: str | None = None) -> MessageEntry:
    """A message of a user."""
    return MessageEntry({"role": "user", "text": content}, stamp)


def one_of_each() -> list[Entry]:
    """Entries of each class, with and without a time."""
    return [
        message("Hello"),
        MessageEntry({"ok": True, "role": "tool", "text": None}, EARLY),
        ModelEntry("größer", EARLY),
        ReasoningEntry("", EARLY),
        SkillEntry("a\nb", LATE),
        ModelEntry("n"),
    ]


def unknown_entries() -> list[Entry]:
    """Other types, and known ones in a shape that isn't theirs."""
    data: JsonObject = {"a": "ä", "b": [1, {"c": None}], "id": "s2", "position": 0}
    data["recorded_at"] = "noon"
    others = ("label", "Message", "unknown", "größe")
    known = ("header", "message", "model", "reasoning", "skill")
    timed = [UnknownEntry("label", {}, EARLY), UnknownEntry("model", {"model": 1}, LATE)]
    return [*(UnknownEntry(kind, data) for kind in (*others, *known)), *timed]


def odd_messages() -> list[Entry]:
    """Messages of no framework's: empty and nested containers, odd keys, every plain character."""
    nested: JsonObject = {"": {"": [[], {}, None, True, False, 0, ""]}, "a.b[0]": _ODD, _ODD: _ODD}
    record: JsonObject = {"id": "s2", "message": nested, "recorded_at": EARLY}
    blocks: JsonObject = {"content": [{"text": _ODD, "type": "text"}] * 3}
    given: list[JsonObject] = [{}, nested, record, blocks, {"type": "header"}, {"position": -1}]
    return [MessageEntry(one) for one in given]


def messages_with_bytes() -> list[Entry]:
    """Bytes as several frameworks carry them in messages, and texts that only look like such."""
    uri = f"data:image/png;base64,{_PNG}"
    texts = [_PNG, _PNG, "", "OikK\n", "OikK", "Oik=", "Oil=", "-__-", "+//+", "Oik"]
    sources: list[Any] = [{"data": text, "media_type": "image/png"} for text in texts]
    given: list[JsonObject] = [
        {"files": [{"data": _PNG, "filename": "a.png", "media_type": "image/png"}]},
        {"role": "user", "sources": sources},
        {"role": "user", "sources": [{"image_url": {"url": uri}}, [uri]]},
        {"input_audio": {"data": _PNG, "format": "wav"}},
        {"data": uri, "inline_data": {"data": _PNG, "mime_type": "a/b"}},
        {"": {"\ue000.[0]": {"base64": _PNG, "filename": 1, "mimeType": "a/b"}}},
    ]
    return [MessageEntry(one) for one in given]


def holding(texts: Sequence[str]) -> list[Entry]:
    """Entries that hold each of *texts*, as a value and as a key."""
    names = [kind(text) for text in texts for kind in (ModelEntry, ReasoningEntry, SkillEntry)]
    return [MessageEntry({"all": [*texts], "each": [{t: t} for t in texts]}), *names]


def ordered_keys() -> Entry:
    """A message whose keys stand in an order that no sorting gives."""
    keys = ("role", "bb", "a", "aa", "Z", "b", "10", "9")
    return MessageEntry({key: {k: [{"b": 1, "a": 2}] for k in reversed(keys)} for key in keys})


def deepest() -> list[Entry]:
    """Messages as deep as any may be, in lists and in objects."""
    lists: Any = []
    objects: Any = {}
    for _ in range(MAX_DEPTH - 2):
        lists, objects = [lists], {"k": objects}
    return [MessageEntry({"k": lists}), MessageEntry({"k": objects})]
