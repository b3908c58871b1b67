"""What each method of a store does, said once for the sync and the async store.

A Call is made where the method is called: its arguments are checked then, before a connection is
asked for. It holds one piece of work on a connection, and what is made of its result when the
connection is free again.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection

from turnkeep import dialect, rows, sql
from turnkeep.dialect import Mode, Parameters
from turnkeep.dialect.statements import as_bytes
from turnkeep.entries import Entry, Header, MessageEntry, key_fault
from turnkeep.errors import Corrupt, InvalidArgument, UnknownSession
from turnkeep.history import History
from turnkeep.history_rows import to_rows
from turnkeep.limits import Limits, check_limits
from turnkeep.payload import is_storable
from turnkeep.plans import Request
from turnkeep.transcript import Said, new_header, to_history

T = TypeVar("T")

MAX_NUMBER = (1 << 62) - 1
"""Positions and counts above this are taken for this: the databases' integers end at twice as much.
"""


class Call(NamedTuple, Generic[T]):
    """One call of a method.

    *work* is None where the answer is known without the database. What *finish* finds to be
    `Corrupt` after several reads may have changed between them: it is read once more, in one
    snapshot. *pause* is for how many seconds others have their turn before it, where a write keeps
    them out; in the app's own transaction there are no others.
    """

    mode: Mode
    work: Callable[[Connection], Any] | None
    finish: Callable[[Any], T]
    pause: float = 0.0


@dataclass(frozen=True)
class Page:
    """A part of a session, oldest entry first.

    `next_after` is the position to go on from, forwards, and None at the end; `next_before` is that
    for going backwards, and None at the beginning. An empty page has neither.
    """

    entries: list[Entry]
    next_after: int | None
    next_before: int | None


@dataclass(frozen=True)
class AttachmentInfo:
    """An attachment of a session without its bytes: where it is, and what.

    `mime` and `filename` are those that the message says, None where it says none, or has a NUL, an
    unpaired surrogate or more than 1,000 characters there. `size` is in bytes, `digest` is the
    sha256 of the bytes in hex.
    """

    position: int
    mime: str | None = field(repr=False)
    filename: str | None = field(repr=False)
    size: int
    digest: str


@dataclass(frozen=True)
class Scope:
    """Where a store works, and within what limits."""

    namespace: str
    limits: Limits

    def __post_init__(self) -> None:
        check_limits(self.limits)
        is_empty = type(self.namespace) is str and not self.namespace
        if not is_empty and (fault := key_fault(self.namespace)):
            raise InvalidArgument("namespace", fault)

    def session(self, id: str) -> Parameters:
        """The parameters by which statements find a session."""
        return {"ns": self.namespace, "sid": id}


def append(
    scope: Scope, id: str, entry: Entry, idempotency_key: str | None, expected_position: int | None
) -> Call[int]:
    """Append one entry."""
    keys = None if idempotency_key is None else [idempotency_key]
    return _write(scope, id, [entry], keys, expected_position)


def extend(
    scope: Scope,
    id: str,
    entries: Iterable[Entry],
    idempotency_keys: Sequence[str | None] | None,
    expected_position: int | None,
) -> Call[int]:
    """Append several entries, all or none."""
    try:
        each = iter(entries)
    except TypeError:
        what = type(entries).__qualname__
        raise InvalidArgument("entries", f"is an iterable of entries, not {what}") from None
    given = list(each)
    if given:
        return _write(scope, id, given, idempotency_keys, expected_position)
    rows.to_batch(id, [], idempotency_keys, scope.limits)
    expected = optional("expected_position", expected_position)
    work = partial(sql.last_position, session=scope.session(id), expected=expected)
    return Call(Mode.READ, work, int)


def read(scope: Scope, id: str, *, attachments: bool) -> Call[list[Entry]]:
    """Read a session."""
    work = partial(sql.read, session=scope.session(id), data=attachments)
    return _of_session(id, Mode.READ, work, partial(_entries, id=id, data=attachments), [])


def tail(scope: Scope, id: str, count: int, *, attachments: bool) -> Call[list[Entry]]:
    """Read the newest entries."""
    wanted = _number("count", count)
    work = partial(sql.tail, session=scope.session(id), count=wanted, data=attachments)
    return _of_session(id, Mode.READ, work, partial(_entries, id=id, data=attachments), [])


def page(
    scope: Scope, id: str, after: int | None, before: int | None, limit: int, *, attachments: bool
) -> Call[Page]:
    """Read a part of a session."""
    if after is not None and before is not None:
        raise InvalidArgument("before", "goes without after: a page lies behind or in front of one")
    if _number("limit", limit) == 0:
        raise InvalidArgument("limit", "is at least 1")
    work = partial(
        sql.page,
        session=scope.session(id),
        after=optional("after", after),
        before=optional("before", before),
        limit=_number("limit", limit),
        data=attachments,
    )
    return _of_session(
        id, Mode.READ, work, partial(_page, id=id, data=attachments), Page([], None, None)
    )


def get(scope: Scope, id: str) -> Call[Header | None]:
    """Get a session's header."""
    work = partial(sql.get, session=scope.session(id))
    return _of_session(id, Mode.READ, work, _header, None)


def list_sessions(
    scope: Scope, cwd: str | None, limit: int | None, before: Header | None
) -> Call[list[Header]]:
    """List headers."""
    seen: tuple[datetime, str] | None = None
    if before is not None:
        updated = before.updated if isinstance(before, Header) else None
        with suppress(OverflowError):  # in a zone, the first and the last day have none in UTC
            if isinstance(updated, datetime) and updated.tzinfo is not None:
                seen = (updated.astimezone(UTC), before.id)
        if seen is None:
            raise InvalidArgument("before", "is a Header that list() gave, the last one seen")
    wanted = optional("limit", limit)
    if not is_possible_cwd(cwd) or wanted == 0:
        return Call(Mode.READ, None, lambda _: [])
    work = partial(sql.list_sessions, namespace=scope.namespace, cwd=cwd, limit=wanted, before=seen)
    return Call(Mode.READ, work, lambda found: list(map(rows.to_header, found)))


def delete(scope: Scope, id: str) -> Call[bool]:
    """Delete a session."""
    work = partial(sql.delete_session, session=scope.session(id))
    return _of_session(id, Mode.WRITE, work, bool, unknown=False)


def list_attachments(scope: Scope, id: str) -> Call[list[AttachmentInfo]]:
    """List a session's attachments."""
    work = partial(sql.list_attachments, session=scope.session(id))
    return _of_session(id, Mode.READ, work, _attachments, [])


def export_history(scope: Scope, id: str, lossy: list[str] | None) -> Call[History]:
    """Read a session as a History."""
    if key_fault(id):
        raise UnknownSession(id)
    work = partial(sql.read, session=scope.session(id), data=True)
    return Call(
        Mode.READ, work, lambda found: to_history(id, rows.from_rows(id, found, data=True), lossy)
    )


def import_history(
    scope: Scope, history: History, *, recorded_at: str | None, replace: bool, **header: Any
) -> Call[str]:
    """Make a session of a History."""
    if not isinstance(history, History):
        raise InvalidArgument("history", f"is a History, not {type(history).__qualname__}")
    said = Said()
    for message in history.messages:
        said.add(message)
    begin = new_header(said, **header)
    rows.to_batch(begin.id, [begin], None, scope.limits)
    MessageEntry({}, recorded_at)  # which checks the time, where there are no messages too
    made = list(to_rows(history.messages, recorded_at, scope.limits))
    session = scope.session(begin.id)
    work = partial(sql.create, session=session, header=begin, rows=made, replace=replace)
    return Call(Mode.WRITE, work, lambda _: begin.id)


def wanted(call: Call[Any]) -> Request:
    """What a plan wants of a runner: that it does what *call* asks."""
    return lambda runner: runner.run(call)


def ask(mode: Mode, work: Callable[[Connection], Any], pause: float = 0.0) -> Request:
    """What a plan wants of a runner: what *work* gives, as it is."""
    return wanted(Call(mode, work, _as_it_is, pause))


def of_all(
    namespace: str | None, work: Callable[[Connection], T], *, deletes: bool = False
) -> Callable[[Connection], T]:
    """*work* that speaks of all rows of *namespace*, or of the database for None, which raises
    Unavailable where the role may not see them, or not delete them.
    """
    return partial(_of_all, namespace=namespace, work=work, deletes=deletes)


def is_possible_cwd(cwd: str | None) -> bool:
    """Whether a session can have it, or it is None, for all."""
    if cwd is not None and type(cwd) is not str:
        raise InvalidArgument("cwd", f"is a str or None, not {type(cwd).__qualname__}")
    return cwd is None or is_storable(cwd)


def optional(name: str, value: int | None) -> int | None:
    """A count or a position, or none, which the argument *name* is."""
    return None if value is None else _number(name, value)


def check_progress(progress: object, told: str) -> None:
    """Nothing, if *progress* is None or may be called with what it is *told*.

    Raises:
        InvalidArgument: it is something else.
    """
    if progress is not None and not callable(progress):
        raise InvalidArgument("progress", f"is a function of {told}, or None")


def _of_all(
    connection: Connection,
    namespace: str | None,
    work: Callable[[Connection], T],
    *,
    deletes: bool,
) -> T:
    dialect.of(connection).check_whole(connection, namespace, deletes=deletes)
    return work(connection)


def _write(
    scope: Scope,
    id: str,
    entries: Sequence[Entry],
    keys: Sequence[str | None] | None,
    expected_position: int | None,
) -> Call[int]:
    batch = rows.to_batch(id, entries, keys, scope.limits)
    expected = optional("expected_position", expected_position)
    several = (
        batch.header is not None
        or batch.lifts
        or (len(batch.rows) > 1 and any(row.key for row in batch.rows))
        or sql.takes_several(batch.rows)
    )
    work = partial(sql.write, session=scope.session(id), batch=batch, expected=expected)
    return Call(Mode.WRITE if several else Mode.APPEND, work, int)


def _of_session(
    id: str, mode: Mode, work: Callable[[Connection], Any], finish: Callable[[Any], T], unknown: T
) -> Call[T]:
    """A call that answers *unknown* for an id that no session can have."""
    return Call(mode, None, lambda _: unknown) if key_fault(id) else Call(mode, work, finish)


def _entries(found: sql.Found, *, id: str, data: bool) -> list[Entry]:
    return rows.from_rows(id, found, data=data)


def _page(found: sql.Found, *, id: str, data: bool) -> Page:
    entries = rows.from_rows(id, found, data=data)
    if not entries:
        return Page([], None, None)
    first, last, of_all = found.rows[0][0], found.rows[-1][0], found.last_position
    if not all(isinstance(each, int) for each in (first, last, 0 if of_all is None else of_all)):
        raise Corrupt(id, 0, "$", "a position can't be decoded")
    at_end = of_all is None or last >= of_all
    return Page(entries, None if at_end else last, first if first > 0 else None)


def _header(row: Sequence[Any] | None) -> Header | None:
    return None if row is None else rows.to_header(row)


def _attachments(found: Sequence[Any]) -> list[AttachmentInfo]:
    return [
        AttachmentInfo(position, mime, filename, size, as_bytes(digest).hex())
        for position, mime, filename, size, digest in found
    ]


def _as_it_is(found: Any) -> Any:
    return found


def _number(name: str, value: int) -> int:
    """A count or a position."""
    if type(value) is not int:
        raise InvalidArgument(name, f"is an int, not {type(value).__qualname__}")
    if value < 0:
        raise InvalidArgument(name, "is not negative")
    return min(value, MAX_NUMBER)
