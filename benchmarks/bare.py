"""The same work by hand: what one would write on the bare driver, who needs no store.

Each operation is a generator of the statements that it runs, and is sent their rows; a driver below
runs it on its one connection, which is held all the time, each statement on a fresh cursor. The
statements are those of the store, as text and with their parameters in place; what encodes and
decodes is msgspec. What the store does besides, and this does not: it looks whether the values are
exact, whether the connection is alive and the entry not too large, makes entries of rows, and tells
errors.
"""

from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import Dialect
from sqlalchemy.sql import ClauseElement

from turnkeep import sql
from turnkeep.dialect import DIALECTS
from turnkeep.dialect.statements import INSERT_ENTRY
from turnkeep.prepared import Prepared

Values: TypeAlias = Mapping[str, Any]
Request: TypeAlias = "tuple[Statement, Values | list[Values] | None]"
"""A statement, and its values: of several runs a list, None where it has no parameters."""
Plan: TypeAlias = Generator[Request, Any, Any]


class Statement(NamedTuple):
    """A text, and how its parameters are put in order: None where they go by name."""

    text: str
    order: Any = None
    binary: bool = False
    """Whether psycopg is to ask for its rows in binary."""
    gives_rows: bool = False

    def arranged(self, values: Values) -> Any:
        """*values* as the driver takes them."""
        return values if self.order is None else self.order(values)


def statement(source: Prepared | ClauseElement, dialect: Dialect, **several: int) -> Statement:
    """The text of one of the store's statements; *several* says how long a list of its is."""
    if isinstance(source, Prepared):
        compiled = source.compile(dialect)
        order = _in_order(compiled.order, compiled.given)
        return Statement(compiled.text, order, bool(compiled.options), compiled.gives_rows)
    made: Any = source.compile(dialect=dialect)
    given = {name: value for name, value in made.params.items() if value is not None}
    if several:
        lists = {name: [b""] * count for name, count in several.items()}
        made = made.construct_expanded_state(dict.fromkeys(made.params, "") | lists)
        return Statement(made.statement, _in_order(made.positiontup, {}), gives_rows=True)
    return Statement(str(made), _in_order(made.positiontup if made.positional else None, given))


def _in_order(names: Sequence[str] | None, given: Values) -> Any:
    if names is None:
        return None
    pick: Any = itemgetter(*names) if len(names) > 1 else lambda values: (values[names[0]],)
    added = {name: value for name, value in given.items() if name.startswith("param_")}
    return (lambda values: pick({**added, **values})) if added else pick


BEGIN = {
    "sqlite": Statement("BEGIN IMMEDIATE"),
    "postgresql": Statement("BEGIN ISOLATION LEVEL READ COMMITTED"),
}
COMMIT = Statement("COMMIT")


class Bare:
    """The operations on either database."""

    def __init__(self, dialect: Dialect) -> None:
        def of(source: Prepared | ClauseElement, **several: int) -> Statement:
            return statement(source, dialect, **several)

        own: Any = DIALECTS[dialect.name]
        self.begin = BEGIN[dialect.name]
        self.advance_or_append = of(own._append[False, False])
        self.read_all, self.newest = of(sql.READ), of(sql.TAIL)
        self.blobs = of(sql.BLOBS)
        self.headers = of(sql.LIST[True, False])
        self.lock = of(sql.LOCKED_STATE)
        self.deletes = [
            of(each) for each in (sql.DELETE_ATTACHMENTS, sql.DELETE_ENTRIES, sql.DELETE_SESSION)
        ]
        self.new_blob = of(own.new_blob)
        self.known_blob = of(sql.KNOWN_BLOBS, digests=1)
        self.attach_all = of(own._attach)
        self._own(own, of)

    def _own(self, own: Any, of: Any) -> None:
        raise NotImplementedError

    def append(self, session: str, message: Any) -> Plan:
        """Append a message."""
        raise NotImplementedError

    def _append(self, session: str, payload: str, attachments: int) -> Plan:
        raise NotImplementedError

    def _places(self, place: Values) -> Values:
        raise NotImplementedError

    def extend(self, session: str, messages: Sequence[Any]) -> Plan:
        """Append several messages."""
        raise NotImplementedError

    def read(self, session: str) -> Plan:
        """All messages."""
        rows = yield self.read_all, {"ns": "", "sid": session}
        return [msgspec.json.decode(row[4]) for row in rows]

    def tail(self, session: str, count: int) -> Plan:
        """The newest messages."""
        rows = yield self.newest, {"ns": "", "sid": session, "count": count}
        return [msgspec.json.decode(row[4]) for row in rows[::-1]]

    def list(self, cwd: str, limit: int) -> Plan:
        """The newest sessions."""
        values = {"ns": "", "cwd_digest": sha256(cwd.encode()).digest(), "count": limit}
        rows = yield self.headers, values
        return [tuple(row) for row in rows]

    def delete(self, session: str) -> Plan:
        """Delete a session that has no attachments."""
        values = {"ns": "", "sid": session}
        yield self.begin, None
        yield self.lock, values
        for each in self.deletes:
            yield each, values
        yield COMMIT, None

    def attach(self, session: str, message: Any) -> Plan:
        """Append a message with one attachment, which is put apart."""
        [file] = message["files"]
        data = msgspec.convert(file["data"], bytes)
        digest = sha256(data).digest()
        left = {**message, "files": [{**file, "data": ""}]}
        yield self.begin, None
        position = yield from self._append(session, _payload(left), 1)
        values = {"ns": "", "digest": digest, "digests_1": digest}
        if not (yield self.known_blob, values):
            yield self.new_blob, values | {"data": data, "size": len(data)}
        place = {
            "position": position,
            "ordinal": 0,
            "path": '["message","files",0,"data"]',
            "digest": digest,
            "mime": file["media_type"],
            "filename": None,
        }
        yield self.attach_all, {"ns": "", "sid": session, **self._places(place)}
        yield COMMIT, None

    def fetch(self, session: str) -> Plan:
        """All messages with their attachments, one in each."""
        rows = yield self.read_all, {"ns": "", "sid": session}
        found = yield self.blobs, {"ns": "", "sid": session, "first": 0, "last": 1 << 40}
        texts = {bytes(digest): msgspec.to_builtins(data) for digest, data in found}
        messages = [msgspec.json.decode(row[4]) for row in rows]
        for row, message in zip(rows, messages, strict=True):
            if row[5] is not None:
                message["message"]["files"][0]["data"] = texts[bytes.fromhex(row[5][:64])]
        return messages


class BarePostgres(Bare):
    """One statement for an append, or for many."""

    def _own(self, own: Any, of: Any) -> None:
        self.extend_all = of(own._extend[False])

    def append(self, session: str, message: Any) -> Plan:
        """One statement."""
        return self._append(session, _payload(message), 0)

    def _append(self, session: str, payload: str, attachments: int) -> Plan:
        values = {
            "ns": "",
            "sid": session,
            "type": "message",
            "key": None,
            "recorded_at": None,
            "attachments": attachments,
            "payload": payload,
        }
        [[position]] = yield self.advance_or_append, values
        return position

    def extend(self, session: str, messages: Sequence[Any]) -> Plan:
        """One statement."""
        count = len(messages)
        values = {
            "ns": "",
            "sid": session,
            "count": count,
            "recorded_at": "",
            "types": ["message"] * count,
            "keys": [None] * count,
            "stamps": [None] * count,
            "counts": ["0"] * count,
            "payloads": [_payload(message) for message in messages],
        }
        yield self.extend_all, values

    def _places(self, place: Values) -> Values:
        texts = {**place, "digest": place["digest"].hex()}
        return {f"{k}s": [None if v is None else str(v)] for k, v in texts.items()}


class BareSqlite(Bare):
    """One transaction of an update and the inserts."""

    def _own(self, own: Any, of: Any) -> None:
        self.insert = of(INSERT_ENTRY)
        self.state, self.move = of(own._state), of(own._move)

    def append(self, session: str, message: Any) -> Plan:
        """A transaction of two statements."""
        yield self.begin, None
        yield from self._append(session, _payload(message), 0)
        yield COMMIT, None

    def _append(self, session: str, payload: str, attachments: int) -> Plan:
        values = {"ns": "", "sid": session, "recorded_at": None, "now": _now()}
        [[position, _]] = yield self.advance_or_append, values
        yield (
            self.insert,
            values
            | {
                "position": position,
                "type": "message",
                "key": None,
                "attachments": attachments,
                "payload": payload,
            },
        )
        return position

    def extend(self, session: str, messages: Sequence[Any]) -> Plan:
        """A transaction of a look, an update and many inserts."""
        values = {"ns": "", "sid": session, "recorded_at": None, "now": _now()}
        yield self.begin, None
        [[last, latest]] = yield self.state, values
        yield self.move, values | {"position": last + len(messages), "recorded_at": latest}
        rows: list[Values] = [
            {
                **values,
                "position": position,
                "type": "message",
                "key": None,
                "attachments": 0,
                "payload": _payload(message),
            }
            for position, message in enumerate(messages, last + 1)
        ]
        yield self.insert, rows
        yield COMMIT, None

    def _places(self, place: Values) -> Values:
        return place


def _payload(message: Any) -> str:
    return msgspec.json.encode({"message": message}).decode()


def _now() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
