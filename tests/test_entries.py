"""Entries: what they take, what they give back, and what makes two of them equal."""

import copy
import json
import pickle
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from histories import arguments, keys, texts, values
from turnkeep import (
    Entry,
    Header,
    InvalidEntry,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    SkillEntry,
    SQLStore,
    UnknownEntry,
)
from turnkeep.entries import Recorded, found, from_row, recorded_at
from turnkeep.jsonl import JSONLStore
from turnkeep.payload import Json, JsonObject, decode, encode, join_surrogates

STAMP = "2026-11-30T12:00:00.000Z"
KNOWN = ["header", "message", "model", "reasoning", "skill"]
SECRET = "hush-4711"
HEADER: dict[str, Any] = {
    "id": "s",
    "cwd": "/w",
    "created_at": "2026-11-30T12:00:00Z",
    "model": "m",
}
RECORDED: list[Callable[..., Any]] = [
    lambda stamp: MessageEntry({"role": "user"}, stamp),
    lambda stamp: ModelEntry("m", stamp),
    lambda stamp: ReasoningEntry("high", stamp),
    lambda stamp: SkillEntry("s", stamp),
    lambda stamp: UnknownEntry("note", {"a": 1}, stamp),
]


class Text(str):
    """Not exactly a str."""

    __slots__ = ()


class Fields(dict[str, Any]):
    """Not exactly a dict."""


class Special(MessageEntry):
    """Not exactly a MessageEntry: no store could give it back."""


plain = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
ids = st.sampled_from(["s", "é", "e\u0301", "../x", "%", "'; drop table--", "x" * 255, "\u2028"])
walls = st.datetimes().filter(lambda at: at.date() not in (date.min, date.max))
instants = walls.map(lambda at: at.replace(tzinfo=UTC))
stamps = st.none() | instants.map(
    lambda at: at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
)
headers = st.builds(
    Header,
    schema_version=st.integers(1, 2**31 - 1),
    id=ids,
    cwd=plain,
    created_at=instants.map(datetime.isoformat),
    model=plain,
    riffer_rig_version=plain,
    riffer_version=plain,
    title=plain,
    updated=st.none() | instants,
    last_position=st.none() | st.integers(0, 9),
)
message_entries = st.builds(MessageEntry, arguments, stamps)
unknown_entries = st.builds(
    UnknownEntry,
    st.sampled_from(["note", "Message", "é", " ", "x" * 255]),
    arguments.map(lambda data: {k: v for k, v in data.items() if k not in ("type", "recorded_at")}),
    stamps,
)
entries: st.SearchStrategy[Entry] = st.one_of(
    headers,
    message_entries,
    st.builds(ModelEntry, texts, stamps),
    st.builds(ReasoningEntry, texts, stamps),
    st.builds(SkillEntry, texts, stamps),
    unknown_entries,
)


@st.composite
def records(draw: st.DrawFn) -> JsonObject:
    """Objects that are entries of a known type, nearly so, or of none."""
    kind = draw(st.sampled_from([*KNOWN, "note", "x" * 255]))
    raw = draw(entries).to_dict() if draw(st.booleans()) else draw(arguments)
    raw = {"type": kind, **{k: v for k, v in raw.items() if k != "type"}}
    for name in draw(st.lists(st.sampled_from([*KNOWN[1:], "id", "cwd", "recorded_at"]))):
        raw[name] = draw(values | stamps | st.sampled_from(["2026-11-30T13:00:00+01:00", {}]))
    if draw(st.booleans()) and len(raw) > 1:
        del raw[draw(st.sampled_from(sorted(set(raw) - {"type"})))]
    return raw


def same(one: object, other: object) -> bool:
    """Whether two values are equal, types and the order of keys included."""
    return repr(one) == repr(other)


def joined(value: JsonObject) -> Json:
    """*value* as an entry holds it: surrogate pairs that stand as two code points are one."""
    return decode(encode(value))


def nested(levels: int) -> Any:
    """So many levels of objects."""
    value: JsonObject = {}
    for _ in range(levels - 1):
        value = {"x": value}
    return value


@given(entries)
@example(MessageEntry(nested(200), STAMP))
@example(UnknownEntry("note", {"recorded_at": "yesterday"}))
@example(UnknownEntry("note", {"recorded_at": None, "": {"type": "x"}}))
def test_from_dict_undoes_to_dict(entry: Entry) -> None:
    raw = entry.to_dict()
    assert next(iter(raw)) == "type"
    assert raw["type"] == entry.type
    if (stamp := recorded_at(entry)) is not None:
        assert list(raw.items())[-1] == ("recorded_at", stamp)
    for read in (
        Entry.from_dict(raw),
        type(entry).from_dict(raw),
        Entry.from_dict(json.loads(json.dumps(raw))),
        found(raw),
        from_row(entry.type, stamp, entry.payload),
    ):
        assert type(read) is type(entry)
        assert read == entry
        assert same(read.to_dict(), raw)
        assert read.payload == entry.payload


@given(entries)
def test_a_payload_is_canonical_json_of_the_fields(entry: Entry) -> None:
    fields = decode(entry.payload)
    assert isinstance(fields, dict)
    stamped = {"recorded_at": recorded_at(entry)} if recorded_at(entry) is not None else {}
    assert same({"type": entry.type, **fields, **stamped}, entry.to_dict())
    assert encode(fields) == entry.payload


def test_to_dict_is_as_upstream_writes_it() -> None:
    header = Header(**HEADER, updated=datetime.now(UTC), last_position=3)
    assert list(header.to_dict().items()) == [
        ("type", "header"),
        ("schema_version", 1),
        ("id", "s"),
        ("cwd", "/w"),
        ("created_at", "2026-11-30T12:00:00Z"),
        ("model", "m"),
        ("riffer_rig_version", ""),
        ("riffer_version", ""),
        ("title", ""),
    ]
    assert [make(STAMP).to_dict() for make in RECORDED] == [
        {"type": "message", "message": {"role": "user"}, "recorded_at": STAMP},
        {"type": "model", "model": "m", "recorded_at": STAMP},
        {"type": "reasoning", "reasoning": "high", "recorded_at": STAMP},
        {"type": "skill", "skill": "s", "recorded_at": STAMP},
        {"type": "note", "a": 1, "recorded_at": STAMP},
    ]
    assert all("recorded_at" not in make(None).to_dict() for make in RECORDED)


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ([], "$"),
        (None, "$"),
        (Fields(type="model", model="m"), "$"),
        ({}, "$.type"),
        ({"type": None}, "$.type"),
        ({"type": 1}, "$.type"),
        ({"type": ""}, "$.type"),
        ({"type": "a\0"}, "$.type"),
        ({"type": "\ud83d"}, "$.type"),
        ({"type": "x" * 256}, "$.type"),
        ({"type": Text("model"), "model": "m"}, "$.type"),
        ({"type": "model"}, "$.model"),
        ({"type": "model", "model": 1}, "$.model"),
        ({"type": "model", "model": None}, "$.model"),
        ({"type": "model", "model": Text("m")}, "$.model"),
        ({"type": "model", "model": "m", "level": 1}, "$.level"),
        ({"type": "model", "model": "m", "odd key": 1}, '$["odd key"]'),
        ({"type": "model", "model": "m", "recorded_at": 5}, "$.recorded_at"),
        ({"type": "model", "model": "m", "recorded_at": "2026-11-30T12:00:00"}, "$.recorded_at"),
        ({"type": "model", "model": "m", None: 1}, "$"),
        ({"type": "model", "model": "m", b"x": 1}, "$"),
        ({"type": "model"} | {Text("model"): "m"}, "$"),
        ({"type": "header", **HEADER} | {1.5: 1}, "$"),
        ({"type": "note", None: 1}, "$"),
        ({"type": "reasoning", "reasoning": ["high"]}, "$.reasoning"),
        ({"type": "skill", "skill": {}}, "$.skill"),
        ({"type": "message", "message": "hello"}, "$.message"),
        ({"type": "message", "message": [{}]}, "$.message"),
        ({"type": "message", "message": Fields()}, "$.message"),
        ({"type": "message", "message": {"x": [0, float("nan")]}}, "$.message.x[1]"),
        ({"type": "message", "message": {"x": {1: 2}}}, "$.message.x"),
        ({"type": "message", "message": nested(201)}, "$.message" + ".x" * 200),
        ({"type": "note", "x": [float("inf")]}, "$.x[0]"),
        ({"type": "note", "x": b""}, "$.x"),
        ({"type": "header", **HEADER, "updated": "2026-11-30T12:00:00Z"}, "$.updated"),
        ({"type": "header", **HEADER, "last_position": 1}, "$.last_position"),
        ({"type": "header", **HEADER, "recorded_at": STAMP}, "$.recorded_at"),
        ({"type": "header", **HEADER, "schema_version": "1"}, "$.schema_version"),
        ({"type": "header", **HEADER, "schema_version": True}, "$.schema_version"),
        ({"type": "header", **HEADER, "schema_version": 0}, "$.schema_version"),
        ({"type": "header", **HEADER, "schema_version": 2**31}, "$.schema_version"),
        ({"type": "header", **HEADER, "id": "x" * 256}, "$.id"),
        ({"type": "header", **HEADER, "id": "é" * 128}, "$.id"),
        ({"type": "header", **HEADER, "id": ""}, "$.id"),
        ({"type": "header", **HEADER, "id": "a\0"}, "$.id"),
        ({"type": "header", **HEADER, "cwd": "a\0"}, "$.cwd"),
        ({"type": "header", **HEADER, "cwd": None}, "$.cwd"),
        ({"type": "header", **HEADER, "title": "\ud83d"}, "$.title"),
        ({"type": "header", **HEADER, "model": 1}, "$.model"),
        ({"type": "header", **HEADER, "created_at": "2026-11-30"}, "$.created_at"),
        ({"type": "header", **{k: v for k, v in HEADER.items() if k != "cwd"}}, "$.cwd"),
    ],
)
def test_a_bad_shape_is_refused_by_its_place(raw: Any, path: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        Entry.from_dict(raw)
    assert refused.value.path == path


def test_a_class_reads_its_own_type_only() -> None:
    with pytest.raises(InvalidEntry, match=r"\$.type: 'message' is not the type of a ModelEntry"):
        ModelEntry.from_dict({"type": "message", "message": {}})
    with pytest.raises(InvalidEntry, match="not the type of a Header"):
        Header.from_dict({"type": "note"})


@given(
    walls,
    st.integers(-24 * 3600 + 1, 24 * 3600 - 1),
    st.sampled_from("T "),
)
@example(datetime.fromisoformat("2026-11-30T12:00:00.999999"), 0, "T")
def test_any_spelling_of_an_instant_becomes_one(wall: datetime, offset: int, between: str) -> None:
    at = wall.replace(tzinfo=timezone(timedelta(seconds=offset)))
    given_as = at.isoformat(between)
    entry = ModelEntry("m", given_as)
    stamp = entry.recorded_at
    assert stamp is not None
    assert len(stamp) == len(STAMP)
    assert stamp.endswith("Z")
    assert entry.recorded_time == at - timedelta(microseconds=at.microsecond % 1000)
    assert entry.recorded_time.tzinfo is UTC
    assert ModelEntry("m", stamp) == entry, "once in this form, it stays"
    assert Header(**HEADER | {"created_at": given_as}).created_at == (
        stamp if at.microsecond >= 1000 else stamp[:-5] + "Z"
    )


@given(instants, instants)
def test_times_as_text_are_in_the_order_of_time(one: datetime, other: datetime) -> None:
    """The stores compare them so."""
    first, second = ModelEntry("m", one.isoformat()), ModelEntry("m", other.isoformat())
    assert first.recorded_time is not None
    assert second.recorded_time is not None
    assert first.recorded_at is not None
    assert second.recorded_at is not None
    earlier = first.recorded_time < second.recorded_time
    assert (first.recorded_at < second.recorded_at) == earlier


@pytest.mark.parametrize(
    ("given_as", "becomes"),
    [
        ("2026-11-30T12:00:00Z", STAMP),
        ("2026-11-30T13:00:00+01:00", STAMP),
        ("2026-11-30T12:00:00.000999Z", STAMP),
        ("20261130T120000Z", STAMP),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
@pytest.mark.parametrize("make", RECORDED)
def test_recorded_at_is_brought_to_one_form(
    make: Callable[..., Any], given_as: str, becomes: str
) -> None:
    assert make(given_as).recorded_at == becomes
    assert make(None).recorded_at is make(None).recorded_time is None


BAD_TIMES = [
    ("2026-11-30T12:00:00", "has no zone"),
    ("2026-11-30", "has no zone"),
    ("0001-01-01T00:00:00", "has no zone"),
    ("9999-12-31T23:59:59", "has no zone"),
    ("0001-01-01T00:00:00+00:01", "no ISO 8601 time"),
    ("9999-12-31T23:59:59-00:01", "no ISO 8601 time"),
    ("10000-01-01T00:00:00Z", "no ISO 8601 time"),
    ("", "no ISO 8601 time"),
    ("now", "no ISO 8601 time"),
    ("1764504000", "no ISO 8601 time"),
    ("2026-11-30T12:00:00Z\0", "no ISO 8601 time"),
    ("2026-11-30T12:00:60Z", "no ISO 8601 time"),
    ("2026-11-30\ud83d12:00:00Zx", "no ISO 8601 time"),
    (1764504000, "is a str, not int"),
    (datetime(2026, 11, 30, tzinfo=UTC), "is a str, not datetime"),
    (Text(STAMP), "is a str, not Text"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_TIMES)
@pytest.mark.parametrize("make", RECORDED)
def test_a_time_that_is_none_is_refused(make: Callable[..., Any], bad: Any, reason: str) -> None:
    with pytest.raises(InvalidEntry, match=reason) as refused:
        make(bad)
    assert refused.value.path == "$.recorded_at"
    with pytest.raises(InvalidEntry, match=reason) as refused:
        Header(**HEADER | {"created_at": bad})
    assert refused.value.path == "$.created_at"
    # Python's own error shows the text, and would be the context of ours.
    assert refused.value.__context__ is None


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_the_machine_s_time_zone_means_nothing(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        entry = ModelEntry("m", "2026-11-30T13:00:00+01:00")
        with pytest.raises(InvalidEntry, match="has no zone"):
            ModelEntry("m", "2026-11-30T12:00:00")
    time.tzset()
    assert entry.recorded_at == STAMP


@given(entries)
def test_entries_are_frozen(entry: Entry) -> None:
    before = entry.to_dict(), hash(entry)
    for name in (
        "model",
        "recorded_at",
        "message",
        "id",
        "data",
        "type",
        "payload",
        "new",
        "_text",
    ):
        # A dataclass with slots says TypeError of names that aren't its fields (CPython 90562).
        with pytest.raises((FrozenInstanceError, TypeError)):
            setattr(entry, name, "x")
        with pytest.raises((FrozenInstanceError, TypeError)):
            delattr(entry, name)
    assert (entry.to_dict(), hash(entry)) == before
    assert not hasattr(entry, "__dict__")


def test_fields_say_that_they_are_frozen() -> None:
    for entry, name in [
        (Header(**HEADER), "id"),
        (MessageEntry({}), "recorded_at"),
        (ModelEntry("m"), "model"),
        (ReasoningEntry("m"), "recorded_at"),
        (SkillEntry("m"), "skill"),
        (UnknownEntry("note", {}), "recorded_at"),
    ]:
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(entry, name, "x")
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(entry, name)


def _change(value: Any) -> None:
    """Change all of a JSON object in place."""
    for item in list(value.values()) if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            _change(item)
    if isinstance(value, dict):
        value["new"] = 1
    else:
        value.append(1)


@given(arguments)
def test_nobody_else_s_dict_reaches_an_entry(data: JsonObject) -> None:
    """Not the one it was made of, nor one that it gave out, made here or by a store."""
    data = {k: v for k, v in data.items() if k not in ("type", "recorded_at")}
    raw: JsonObject = {"type": "note", "message": copy.deepcopy(data)}
    made: list[Any] = [
        MessageEntry(data),
        UnknownEntry("note", data),
        found(raw),
        from_row("message", None, MessageEntry(data).payload),
        from_row("note", None, UnknownEntry("note", data).payload),
    ]
    before = [(entry.to_dict(), entry.payload, hash(entry)) for entry in made]
    inside: list[JsonObject] = [data, data, {"message": data}, data, data]
    inside = copy.deepcopy(inside)
    _change(data)
    _change(raw["message"])
    for entry, original in zip(made, inside, strict=True):
        for _ in range(3):
            given_out = entry.message if isinstance(entry, MessageEntry) else entry.data
            assert same(given_out, joined(original))
            _change(given_out)
            _change(entry.to_dict())
    assert same([(entry.to_dict(), entry.payload, hash(entry)) for entry in made], before)


@given(entries, entries)
@example(MessageEntry({"a": 1}), MessageEntry({"a": 1.0}))
@example(MessageEntry({"a": 1}), MessageEntry({"a": True}))
@example(MessageEntry({"a": 0.0}), MessageEntry({"a": -0.0}))
@example(MessageEntry({"a": 1, "b": 2}), MessageEntry({"b": 2, "a": 1}))
@example(MessageEntry({}), MessageEntry({}, STAMP))
@example(ModelEntry("m"), SkillEntry("m"))
@example(ModelEntry("m"), UnknownEntry("Model", {"model": "m"}))
@example(MessageEntry({"x": "\ud83d\ude00"}), MessageEntry({"x": "\N{GRINNING FACE}"}))
@example(ModelEntry("\ud83d\ude00"), ModelEntry("\N{GRINNING FACE}"))
@example(ModelEntry("\ud83d"), ModelEntry("\ud83d"))
@example(Header(**HEADER), Header(**HEADER, last_position=3, updated=datetime.now(UTC)))
def test_entries_are_equal_when_their_json_is(one: Entry, other: Entry) -> None:
    equal = type(one) is type(other) and same(one.to_dict(), other.to_dict())
    assert (one == other) == (other == one) == equal
    assert (one != other) == (not equal)
    assert len({one, other}) == (1 if equal else 2)
    assert one != one.to_dict()


@given(entries)
def test_copies_are_equal_and_their_own(entry: Entry) -> None:
    pickles = [
        pickle.loads(pickle.dumps(entry, protocol))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    ]
    for other in (copy.copy(entry), copy.deepcopy(entry), *pickles):
        assert type(other) is type(entry)
        assert other == entry
        assert hash(other) == hash(entry)
        if isinstance(entry, Header) and isinstance(other, Header):
            assert (other.updated, other.last_position) == (entry.updated, entry.last_position)


def test_a_header_can_be_made_of_another() -> None:
    header = Header(**HEADER, last_position=3)
    assert replace(header, title="new") == Header(**HEADER, title="new")
    with pytest.raises(InvalidEntry):
        replace(header, title="\0")


@given(keys, values)
def test_no_repr_shows_content(key: str, value: Json) -> None:
    content: JsonObject = {SECRET: key, "role": [SECRET], "content": [SECRET, value]}
    for entry, shown in [
        (MessageEntry(content), "<MessageEntry "),
        (MessageEntry({"role": SECRET}), "<MessageEntry "),
        (MessageEntry({"role": "tool", "content": SECRET}), "<MessageEntry tool, "),
        (ModelEntry(SECRET), "<ModelEntry "),
        (ReasoningEntry(SECRET), "<ReasoningEntry "),
        (SkillEntry(SECRET, STAMP), "<SkillEntry "),
        (UnknownEntry("note", content), "<UnknownEntry 'note', "),
        (Header(**HEADER | {"title": SECRET, "cwd": SECRET}), "<Header 's', "),
    ]:
        for text in (repr(entry), str(entry), f"{entry}", repr([entry])):
            assert shown in text
            assert f"{len(entry.payload.encode())} bytes>" in text
            assert SECRET not in text
            assert len(text) < 80


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("note", {"type": "note"}), "$.type"),
        (("note", {"a": 1, "recorded_at": STAMP}), "$.recorded_at"),
        (("note", {"recorded_at": "yesterday"}, STAMP), "$.recorded_at"),
        (("note", {"a": {1}}), "$.a"),
        (("note", nested(201)), "$" + ".x" * 200),
        (("note", []), "$"),
        (("note", Fields()), "$"),
        (("", {}), "$.type"),
        ((1, {}), "$.type"),
        (("message", {"message": {}}), "$.type"),
        (("message", {"message": {}}, STAMP), "$.type"),
        (("message", {"message": {}, "recorded_at": "2026-11-30T13:00:00+01:00"}), "$.type"),
        (("model", {"model": "m"}), "$.type"),
        (("header", HEADER), "$.type"),
    ],
)
def test_an_unknown_entry_is_not_one_that_is_known(arguments: Any, path: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        UnknownEntry(*arguments)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("kind", "data", "stamp"),
    [
        ("message", {"message": "hello"}, STAMP),
        ("message", {"message": {}, "more": 1}, None),
        ("message", {}, None),
        ("model", {"model": "m", "recorded_at": "2026-11-30T12:00:00"}, None),
        ("model", {"model": 1, "recorded_at": None}, None),
        ("header", {**HEADER, "version": 2}, None),
        ("header", HEADER, STAMP),
    ],
)
def test_a_known_type_in_another_shape_is_an_unknown_entry(
    kind: str, data: JsonObject, stamp: str | None
) -> None:
    entry = UnknownEntry(kind, data, stamp)
    raw = entry.to_dict()
    assert found(raw) == from_row(kind, stamp, entry.payload) == entry
    assert (entry.type, entry.data, entry.recorded_at) == (kind, data, stamp)
    with pytest.raises(InvalidEntry):
        Entry.from_dict(raw)


@given(records())
@example({"recorded_at": STAMP, "type": "note", "b": 1, "a": 2})
@example({"type": "message", "message": {"x": 1}, "recorded_at": 5})
@example({"type": "header", **HEADER, "recorded_at": STAMP})
def test_what_a_store_finds_is_kept_as_it_is(raw: JsonObject) -> None:
    """Whatever its type and shape are: known if `from_dict` knows it, else untouched."""
    entry = found(raw)
    again = entry.to_dict()
    try:
        assert Entry.from_dict(raw) == entry
    except InvalidEntry:
        assert type(entry) is UnknownEntry
    if type(entry) is UnknownEntry:
        stamp = {"recorded_at": raw["recorded_at"]} if recorded_at(entry) else {}
        others = {k: v for k, v in raw.items() if k != "type" and k not in stamp}
        expected = {"type": raw["type"], **others, **stamp}
        assert same(again, decode(encode(expected)))
    assert found(again) == entry
    assert from_row(entry.type, recorded_at(entry), entry.payload) == entry


@pytest.mark.parametrize("raw", [{}, {"type": 1}, {"type": ""}, {"type": "x", "y": nested(200)}])
def test_what_is_no_entry_at_all_is_not_found(raw: JsonObject) -> None:
    with pytest.raises(InvalidEntry):
        found(raw)


@given(
    st.sampled_from([*KNOWN, "note", "", "\0"]),
    st.none() | st.just(STAMP) | st.text(max_size=3),
    st.text('{}[]":,amesg01 \\', max_size=12)
    | values.map(json.dumps)
    | arguments.map(lambda value: json.dumps({"message": value}))
    | arguments.map(lambda value: json.dumps({"message": value}, separators=(",", ":"))),
)
def test_a_row_is_an_entry_or_a_value_error(kind: str, stamp: str | None, text: str) -> None:
    try:
        entry = from_row(kind, stamp, text)
    except ValueError:
        return
    fields = decode(text)
    assert isinstance(fields, dict)
    raw = entry.to_dict()
    assert raw.pop("type") == kind
    assert raw.pop("recorded_at", None) in (stamp, fields.get("recorded_at"))
    fields.pop("recorded_at", None)
    if isinstance(entry, UnknownEntry | MessageEntry):
        assert same(raw, decode(encode(fields)))
    assert same(found(entry.to_dict()).to_dict(), entry.to_dict())


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-11-30U12:00:00.000Z",
        "2026-11-30 12:00:00.000Z",
        "2026-11-30T12:00:00,000Z",
        "2026-W48-1T12:00:00.000Z",
        "20261130T120000.00000000",
        "2026-11-30T12:00:00.0000",
        "2026-11-30T12:00:60.000Z",
        "2026-11-31T12:00:00.000Z",
        "2026-11-30T12:00:00.00Z ",
    ],
)
def test_a_time_that_is_not_as_we_write_it_makes_no_row(stamp: str) -> None:
    for kind, text in [("message", '{"message":{}}'), ("note", "{}"), ("model", '{"model":"m"}')]:
        assert recorded_at(from_row(kind, STAMP, text)) == STAMP
        with pytest.raises(ValueError, match=r"."):
            from_row(kind, stamp, text)


NO_ENTRIES = [
    Entry(),
    Recorded(),
    Special({}),
    MessageEntry,
    {"type": "message", "message": {}},
    {"role": "user"},
    "text",
    b"",
    None,
]


def test_what_is_no_entry_is_stored_nowhere(shared_store: SQLStore, tmp_path: Path) -> None:
    store = shared_store.with_namespace("no entries")
    for there in (store, JSONLStore(tmp_path)):
        there.append("s", Header(**HEADER))
        for wrong in NO_ENTRIES:
            with pytest.raises(InvalidEntry, match=r"^\$: is an Entry, not "):
                there.append("s", wrong)  # type: ignore[arg-type]
        assert there.read("s") == [Header(**HEADER)]
    for wrong in NO_ENTRIES:
        with pytest.raises(InvalidEntry, match=r"^\$\[1\]: is an Entry, not "):
            store.extend("s", [MessageEntry({}), wrong])  # type: ignore[list-item]
    assert store.read("s") == [Header(**HEADER)]
    assert store.append("s", MessageEntry({})) == 1


def test_a_text_s_pairs_of_surrogates_are_joined() -> None:
    assert ModelEntry("\ud83d\ude00").model == "\N{GRINNING FACE}"
    assert Header(**HEADER, title="\ud83d\ude00").title == "\N{GRINNING FACE}"
    assert MessageEntry({"\ud83d\ude00": 1}).message == {"\N{GRINNING FACE}": 1}
    assert join_surrogates("\ud83d\ude00\ud83d") == "\N{GRINNING FACE}\ud83d"
