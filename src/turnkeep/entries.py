"""What a session consists of: a Header, then messages, switches and skills, as frozen values.

An entry is its class, its `recorded_at` and its `payload`, the canonical JSON text of its other
fields; equality and hash are the text's, so key order counts and `1`, `1.0` and `True` differ.
Entries validate when they are made: one that exists can be stored. A MessageEntry keeps the text,
not the caller's dict, and hands out a dict of its own each time. What a store finds and doesn't
know, an unknown type or a known one in another shape, becomes an UnknownEntry, which is kept and
handed on untouched.

The types and fields are those of riffer-rig's session stores, so its JSONL files read and write the
same.
"""

from collections.abc import Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from datetime import UTC, datetime
from typing import NoReturn, Self, TypeVar, cast

from turnkeep import payload as json
from turnkeep.errors import InvalidEntry
from turnkeep.payload import Json, JsonObject

MAX_KEY_BYTES = 255
"""How long an id, a namespace, an idempotency key or an entry's type may be, in bytes of UTF-8."""

AnyEntry = TypeVar("AnyEntry", bound="Entry")


class Entry:
    """The base of all entries: `Entry.from_dict` reads any of them."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The name of the entry's class in JSON."""
        return _TYPES[self.__class__]

    @property
    def payload(self) -> str:
        """The fields but `type` and `recorded_at`: the canonical JSON text of one object."""
        raise NotImplementedError  # each class has its own

    def to_dict(self) -> JsonObject:
        """A JSON-safe dict of its own: `type` first, then the fields, `recorded_at` last where it
        is set.
        """
        raw: JsonObject = {"type": self.type, **_object(self.payload)}
        if (stamp := recorded_at(self)) is not None:
            raw["recorded_at"] = stamp
        return raw

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Self:
        """The entry that `to_dict` gave as *raw*: `Entry` takes every type, another class its own
        only.

        Raises:
            InvalidEntry: *raw* is not in the shape of its type; names the place.
        """
        if type(raw) is not dict:
            raise InvalidEntry("$", "an entry is a JSON object")
        given = dict(raw)
        kind = check_key(given.pop("type", None), "$.type")
        entry = _from_fields(_CLASSES.get(kind, UnknownEntry), kind, given)
        if not isinstance(entry, cls):
            raise InvalidEntry("$.type", f"{kind!r} is not the type of a {cls.__name__}")
        return entry

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        return (self.__class__, self.type, self.payload, recorded_at(self))

    def __repr__(self) -> str:
        return f"<{self.__class__.__name__} {json.size(self.payload)} bytes>"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


class Recorded(Entry):
    """What all entries but the Header have: the time at which they happened."""

    __slots__ = ()
    recorded_at: str | None
    """UTC to the millisecond, `2026-11-30T12:00:00.000Z`, or None where it isn't known.

    Another spelling of the instant is brought to this form when the entry is made; a time without a
    zone is refused.
    """

    def recorded_later(self, than: str) -> Self:
        """The same entry, recorded *than* or later: a store raises times to the session's last one.

        An entry of an unknown time, and one that is later already, stay as they are.
        """
        if self.recorded_at is None or self.recorded_at >= than:
            return self
        return cast("Self", found({**self.to_dict(), "recorded_at": than}))

    @property
    def recorded_time(self) -> datetime | None:
        """`recorded_at` as an aware datetime in UTC, or None."""
        return None if self.recorded_at is None else datetime.fromisoformat(self.recorded_at)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Header(Entry):
    """The first entry of a session, and the only one of its kind there.

    `cwd` is the directory that the session belongs to, kept and compared exactly as given.
    `created_at` is ISO 8601 UTC: `2026-11-30T12:00:00Z`, with milliseconds where there are any.
    None of the texts holds a NUL or an unpaired surrogate.

    A header that a store hands out says besides how its session stands, which is no part of
    `to_dict`, equality or hash: `updated`, when the session last changed (an aware datetime), and
    `last_position`, the position of its newest entry.

    Raises:
        InvalidEntry: a field is not of its type, or a text that the databases can't hold.
    """

    schema_version: int = 1
    id: str
    cwd: str
    created_at: str
    model: str
    riffer_rig_version: str = ""
    riffer_version: str = ""
    title: str = ""
    updated: datetime | None = field(default=None, metadata={"stamped": True})
    last_position: int | None = field(default=None, metadata={"stamped": True})

    def __post_init__(self) -> None:
        check_key(self.id, "$.id")
        version = self.schema_version
        if type(version) is not int or not 0 < version < 1 << 31:
            raise InvalidEntry("$.schema_version", "is a whole number from 1 up")
        for name in ("cwd", "model", "riffer_rig_version", "riffer_version", "title"):
            value = getattr(self, name)
            if type(value) is str and value.isascii() and "\0" not in value:
                continue
            value = _text(value, f"$.{name}")
            if not json.is_storable(value):
                raise InvalidEntry(f"$.{name}", "holds a NUL or an unpaired surrogate: remove it")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "created_at", _instant(self.created_at, "$.created_at"))

    @property
    def payload(self) -> str:
        """The fields but `type` as canonical JSON text."""
        return json.encode({f.name: getattr(self, f.name) for f in fields(self) if not f.metadata})

    def __repr__(self) -> str:
        return f"<Header {self.id!r}, {json.size(self.payload)} bytes>"


class MessageEntry(Recorded):
    """One message: any JSON object, in any framework's dialect, which no store interprets or
    changes.

    It keeps the canonical JSON text of *message*: later changes of the dict don't reach it.

    Raises:
        InvalidEntry: *message* is no dict, or holds what JSON can't; names the place,
            `$.message.content[2]`.
    """

    __slots__ = ("_decoded", "_payload", "recorded_at")
    _decoded: JsonObject
    """The message, for the first who asks; it is there no more then."""
    _payload: str

    def __init__(self, message: Mapping[str, object], recorded_at: str | None = None) -> None:
        if type(message) is not dict:
            raise InvalidEntry("$.message", "a message is a dict of JSON values")
        _set_payload(self, json.encode_payload(message))
        _set_recorded_at(self, _stamp(recorded_at))

    @property
    def message(self) -> JsonObject:
        """The message as a plain dict, the caller's own: changing it changes nothing else."""
        try:
            decoded = self._decoded
            _delete_decoded(self)  # which succeeds once, also where two threads have come here
        except AttributeError:
            return _message_of(self._payload)
        return decoded

    @property
    def payload(self) -> str:
        """The message, as the one field of an object, in canonical JSON text."""
        return self._payload

    def __reduce__(self) -> tuple[object, ...]:
        return (MessageEntry, (self.message, self.recorded_at))

    def __repr__(self) -> str:
        role = _message_of(self._payload).get("role")
        known = f"{role}, " if role in ("user", "assistant", "tool", "system", "developer") else ""
        return f"<MessageEntry {known}{json.size(self.payload)} bytes>"


# What a read does for every row: the slots themselves are the quickest way past `__setattr__`.
_new = MessageEntry.__new__
_set_payload, _set_recorded_at, _set_decoded = (
    vars(MessageEntry)[slot].__set__ for slot in ("_payload", "recorded_at", "_decoded")
)
_delete_decoded = vars(MessageEntry)["_decoded"].__delete__


class _Named(Recorded):
    """An entry of one text, which is named as its type is."""

    __slots__ = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, self.type, _text(getattr(self, self.type), f"$.{self.type}"))
        object.__setattr__(self, "recorded_at", _stamp(self.recorded_at))

    @property
    def payload(self) -> str:
        """The text, as the one field of an object, in canonical JSON text."""
        return json.encode({self.type: getattr(self, self.type)})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ModelEntry(_Named):
    """From here on the session uses another model.

    Raises:
        InvalidEntry: *model* is no str.
    """

    model: str
    recorded_at: str | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReasoningEntry(_Named):
    """From here on the session uses another level of reasoning.

    Raises:
        InvalidEntry: *reasoning* is no str.
    """

    reasoning: str
    recorded_at: str | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SkillEntry(_Named):
    """The model activated a skill, which is named here.

    Raises:
        InvalidEntry: *skill* is no str.
    """

    skill: str
    recorded_at: str | None = None


class UnknownEntry(Recorded):
    """What a newer version or another tool wrote: kept and handed on as it is, ignored by all who
    interpret entries.

    *data* holds the record's other fields. A `recorded_at` in another form than ours stays there,
    untouched.

    Raises:
        InvalidEntry: *type* can't be stored, *data* is no dict or holds what JSON can't, or another
            class of entry is the one for this record.
    """

    __slots__ = ("_kind", "_text", "recorded_at")
    _kind: str
    _text: str

    def __init__(
        self, type: str, data: Mapping[str, object], recorded_at: str | None = None
    ) -> None:
        kind = check_key(type, "$.type")
        if data.__class__ is not dict:
            raise InvalidEntry("$", "the fields of an entry are a dict")
        text = json.encode(data)
        if "type" in data:
            raise InvalidEntry("$.type", "stands in the data too: give it as the type alone")
        if "recorded_at" in data and (recorded_at is not None or _is_stamp(data["recorded_at"])):
            raise InvalidEntry("$.recorded_at", "stands in the data: give it as recorded_at alone")
        if kind in _CLASSES and _is_known(kind, _object(text), _stamp(recorded_at)):
            raise InvalidEntry("$.type", f"this is a {_CLASSES[kind].__name__}: make one")
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "recorded_at", _stamp(recorded_at))

    @property
    def type(self) -> str:
        """What the record calls itself."""
        return self._kind

    @property
    def data(self) -> JsonObject:
        """The record's fields but `type` and `recorded_at`, in a dict that is the caller's own."""
        return _object(self._text)

    @property
    def payload(self) -> str:
        """The data as canonical JSON text."""
        return self._text

    def __reduce__(self) -> tuple[object, ...]:
        return (UnknownEntry, (self._kind, self.data, self.recorded_at))

    def __repr__(self) -> str:
        return f"<UnknownEntry {self._kind!r}, {json.size(self._text)} bytes>"


_CLASSES: dict[str, type[Entry]] = {
    "header": Header,
    "message": MessageEntry,
    "model": ModelEntry,
    "reasoning": ReasoningEntry,
    "skill": SkillEntry,
}
_TYPES = {cls: kind for kind, cls in _CLASSES.items()}
_HEADER = {f.name: f.default is MISSING for f in fields(Header) if not f.metadata}


def found(raw: JsonObject) -> Entry:
    """The entry of a record that a store found: an UnknownEntry where its type, or its shape, is
    not known.

    Raises:
        InvalidEntry: the record is not one of an entry at all: its type is no text, or it is nested
            too deep.
    """
    try:
        return Entry.from_dict(raw)
    except InvalidEntry:
        given = dict(raw)
        return _unknown(check_key(given.pop("type", None), "$.type"), given)


def from_row(kind: str, stamp: str | None, text: str, value: Json = None) -> Entry:
    """The entry whose `type`, `recorded_at` and `payload` these are, as a database holds them;
    *value* is that of the payload where it is known, and becomes the entry's.

    Raises:
        ValueError: they are not what was written.
    """
    if stamp is not None:
        # Python takes weeks for a date too, and any sign for the T.
        if len(stamp) != 24 or stamp[-1] != "Z" or stamp[7:22:3] != "-T::.":
            raise ValueError("recorded_at is not in its form")
        datetime.fromisoformat(stamp)  # a ValueError too where it is no time
    if type(text) is not str:
        raise ValueError("the payload is no text")
    message = None
    if kind == "message" and text.startswith('{"message":{'):
        if type(value) is dict:
            message = value.get("message") if len(value) == 1 else None
        else:
            try:
                message = json.decode_payload(text).message
            except json.UNDECODED:
                message = None
    if type(message) is dict:
        entry = _new(MessageEntry)
        _set_payload(entry, text)
        _set_recorded_at(entry, stamp)
        _set_decoded(entry, message)
        return entry
    value = _object(text)
    return found({"type": kind, **value} | ({} if stamp is None else {"recorded_at": stamp}))


def recorded_at(entry: Entry) -> str | None:
    """The entry's `recorded_at`; a header has none."""
    return entry.recorded_at if isinstance(entry, Recorded) else None


def key_fault(key: object) -> str | None:
    """Why *key* can't be an id, a namespace, an idempotency key or a type; None where it can."""
    if type(key) is not str:
        return f"is a str, not {type(key).__qualname__}"
    if not key:
        return "is empty"
    if key.isascii() and len(key) <= MAX_KEY_BYTES and "\0" not in key:
        return None
    if not json.is_storable(key):
        return "holds a NUL or an unpaired surrogate"
    if json.size(key) > MAX_KEY_BYTES:
        return f"is longer than {MAX_KEY_BYTES} bytes of UTF-8"
    return None


def check_entry(entry: object, path: str) -> None:
    """Nothing, if *entry* is of one of the classes here: no store could give back another.

    Raises:
        InvalidEntry: it is not.
    """
    if type(entry) in _TYPES or type(entry) is UnknownEntry:
        return
    what = type(entry).__qualname__
    raise InvalidEntry(path, f"is an Entry, not {what}: Entry.from_dict makes one")


def check_key(key: object, path: str) -> str:
    """*key*, if it can be one.

    Raises:
        InvalidEntry: it can't.
    """
    if fault := key_fault(key):
        raise InvalidEntry(path, fault)
    return cast("str", key)


def _from_fields(cls: type[AnyEntry], kind: str, given: JsonObject) -> AnyEntry:
    """The entry of class *cls* with exactly the fields *given*."""
    if cls is UnknownEntry:
        return _unknown(kind, given)  # type: ignore[return-value]
    known = _HEADER if cls is Header else {kind: True, "recorded_at": False}
    for name in given:
        if type(name) is not str:
            what = f"a key is of type {type(name).__qualname__}: JSON's keys are str"
            raise InvalidEntry("$", what)
        if name not in known:
            raise InvalidEntry(json.step("$", name), f"is no field of a {cls.__name__}")
    for name, required in known.items():
        if required and name not in given:
            raise InvalidEntry(f"$.{name}", "is missing")
    return cls(**given)


def _unknown(kind: str, given: JsonObject) -> UnknownEntry:
    """The UnknownEntry of a record's fields: a time in our own form is its `recorded_at`, another
    stays data.
    """
    data = dict(given)
    stamp = data.pop("recorded_at") if _is_stamp(data.get("recorded_at")) else None
    return UnknownEntry(kind, data, cast("str | None", stamp))


def _is_known(kind: str, data: JsonObject, stamp: str | None) -> bool:
    """Whether these fields make an entry of the known class of type *kind*."""
    given = dict(data) if stamp is None else {**data, "recorded_at": stamp}
    try:
        _from_fields(_CLASSES[kind], kind, given)
    except InvalidEntry:
        return False
    return True


def _message_of(payload: str) -> JsonObject:
    """The message of a MessageEntry's payload."""
    return cast("JsonObject", _object(payload)["message"])


def _object(text: str) -> JsonObject:
    """The JSON object of *text*; ValueError where it is none."""
    value = json.decode(text)
    if type(value) is not dict:
        raise ValueError("is no JSON object")
    return value


def _text(value: object, path: str) -> str:
    if type(value) is not str:
        raise InvalidEntry(path, f"is a str, not {type(value).__qualname__}")
    return json.join_surrogates(value)


def _stamp(value: object) -> str | None:
    return None if value is None else _instant(value, "$.recorded_at", "milliseconds")


def _is_stamp(value: object) -> bool:
    """Whether *value* is a time in the form that `recorded_at` has."""
    try:
        return value is not None and _stamp(value) == value
    except InvalidEntry:
        return False


def _instant(value: object, path: str, timespec: str = "auto") -> str:
    """An ISO 8601 time in UTC, as Python writes it with *timespec* but for the Z; "auto" is to the
    second or millisecond.
    """
    instant = _time(_text(value, path))
    if instant is None:
        raise InvalidEntry(path, "is no ISO 8601 time such as 2026-11-30T12:00:00.000Z")
    if instant.tzinfo is None:
        raise InvalidEntry(path, "has no zone: write it in UTC, 2026-11-30T12:00:00.000Z")
    if timespec == "auto":
        timespec = "milliseconds" if instant.microsecond >= 1000 else "seconds"
    return instant.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def _time(text: str) -> datetime | None:
    """The time that *text* says, in UTC where it names a zone; None where it says none."""
    if "\0" in text:  # where Python would stop reading
        return None
    try:
        given = datetime.fromisoformat(text)
        is_utc = given.tzinfo is None or given.tzinfo is UTC
        return given if is_utc else given.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
