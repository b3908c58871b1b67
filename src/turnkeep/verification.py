"""Whether what is stored can be what was written: each row of a namespace, held against the others.

It is a chain of calls, each of which reads a portion of one table, says what is wrong with it, and
which call follows. Nothing is held between two of them but a place in the table, so it works on any
size and beside writers, and no transaction is open for long. What a portion is judged by is read in
the same snapshot: a session that is deleted and begun anew in between is not a finding.

The tables come one after the other: sessions against their entries, entries in the order of their
positions, attachments, and blobs, whose bytes are digested anew.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from turnkeep import rows, sql_orphans, sql_verify
from turnkeep.calls import Call, Scope, of_all
from turnkeep.dialect import Mode
from turnkeep.dialect.statements import as_bytes
from turnkeep.entries import Header, key_fault
from turnkeep.errors import Corrupt, InvalidEntry
from turnkeep.plans import Plan
from turnkeep.retention import sweep
from turnkeep.sql import Found, FoundRow, cwd_digest
from turnkeep.sql_verify import AttachmentRow, BlobRow, EntryRow, EntryRows, SessionRow
from turnkeep.sql_walk import SHOWN, Place, Value

AHEAD = timedelta(days=1)
"""How far the clocks of this machine and the database may be apart."""


@dataclass(frozen=True)
class Finding:
    """Something stored that can't be what was written.

    `table` is its table's name without the prefix: sessions, entries, attachments or blobs.
    `session`, `position` and `digest` (in hex) say which row, None where they don't apply, and
    `reason` says what is wrong, without anything of a message's content. Where a key is no text in
    UTF-8, they have what stands for it.
    """

    table: str
    session: str | None
    position: int | None
    digest: str | None
    reason: str

    def __str__(self) -> str:
        place = [
            f"session {self.session!r}" if self.session is not None else "",
            f"position {self.position}" if self.position is not None else "",
            f"digest {self.digest}" if self.digest is not None else "",
        ]
        where = ", ".join(filter(None, place))
        return ": ".join(filter(None, [self.table, where, self.reason]))


@dataclass(frozen=True)
class Orphans:
    """What `collect_orphans` removed: attachments of no entry, blobs of no attachment, and the size
    of those blobs in bytes.
    """

    attachments: int
    blobs: int
    bytes: int


class Verified(NamedTuple):
    """What a portion gave: how many rows were looked at, what is wrong with them, and the call that
    goes on behind them, None at the end.
    """

    rows: int
    findings: list[Finding]
    following: "Call[Verified] | None"


def verify(scope: Scope) -> Call[Verified]:
    """The first of the calls that verify a namespace."""
    return _portion(scope, 0, None)


def collect_orphans(scope: Scope) -> Plan[Orphans]:
    """Remove what nobody can reach; wants calls to be run."""
    attached, _ = yield from sweep(scope.namespace, sql_orphans.ATTACHMENTS)
    count, size = yield from sweep(scope.namespace, sql_orphans.BLOBS)
    return Orphans(attached, count, size)


def namespaces() -> Call[list[str]]:
    """List the namespaces."""
    return Call(
        Mode.READ,
        of_all(None, sql_verify.namespaces),
        lambda found: _names(found)[0],
    )


def survey() -> Call[tuple[list[str], list[Finding]]]:
    """List the namespaces, and say which names that the tables have can be none: no store has
    these.
    """
    return Call(Mode.READ, of_all(None, sql_verify.namespaces), _names)


def _names(found: Iterable[tuple[str, Value]]) -> tuple[list[str], list[Finding]]:
    names, findings = [], []
    for table, name in found:
        fault = "is no text in UTF-8" if name.text is None else name.text and key_fault(name.text)
        if fault:
            reason = f"its namespace {str(name.shown)[:SHOWN]!r} can be none: {fault}"
            findings.append(Finding(table, None, None, None, reason))
        else:
            names.append(str(name.text))
    return names, findings


def _portion(scope: Scope, number: int, after: Place | None) -> Call[Verified]:
    """The call for the rows of the step *number* behind the place *after*."""
    step = _STEPS[number]

    def finish(found: Any) -> Verified:
        seen = found.rows if isinstance(found, EntryRows) else found
        following: Call[Verified] | None = None
        if seen:
            following = _portion(scope, number, seen[-1].place)
        elif number + 1 < len(_STEPS):
            following = _portion(scope, number + 1, None)
        return Verified(len(seen), list(step.judge(found)), following)

    work = partial(step.read, namespace=scope.namespace, after=after)
    return Call(Mode.SNAPSHOT, of_all(scope.namespace, work), finish)


def _judge_sessions(found: Iterable[SessionRow]) -> Iterator[Finding]:
    for row in found:
        for reason in _faults_of_session(row):
            yield Finding("sessions", row.id, None, None, reason)


def _faults_of_session(row: SessionRow) -> Iterator[str]:
    if row.place[0].text is None:
        yield "its id is no text in UTF-8"
        return
    last, newest = _readable(row.last_position), _readable(row.newest)
    if newest is None:
        yield "has no entries"
    elif last != newest:
        yield f"last_position is {last}, and the newest entry is at {newest}"
    if row.newest is not None and _readable(row.last_recorded_at) != _readable(row.latest or ""):
        yield "last_recorded_at is not that of the newest entry that has one"
    yield from _faults_of_time(_readable(row.updated_at))
    try:
        header = Header(**{name: _readable(stored) for name, stored in row.header.items()})
    except InvalidEntry as error:
        yield f"its columns make no header: {error.path} {error.reason}"
        return
    if as_bytes(row.cwd_digest) != cwd_digest(header.cwd):
        yield "cwd_digest is not that of its cwd: list(cwd) doesn't find it"
    if row.payload is not None and _text(row.payload) != header.payload:
        yield "its columns are not those of its header, the entry at 0"


def _faults_of_time(updated_at: object) -> Iterator[str]:
    try:
        said = datetime.fromisoformat(updated_at) if isinstance(updated_at, str) else None
        updated = said.astimezone(UTC) if said is not None and said.tzinfo else None
    except (ValueError, OverflowError):
        updated = None
    if updated is None:
        yield "updated_at is no time"
    elif updated > datetime.now(UTC) + AHEAD:
        yield "updated_at lies in the future: the session stays in front of the list"


def _judge_entries(found: EntryRows) -> Iterator[Finding]:
    previous, latest = _readable(found.previous), _readable(found.latest)
    latest = latest if isinstance(latest, str) else ""
    for before, stored in pairwise([None, *found.rows]):
        assert stored is not None
        row = stored._replace(
            type=_readable(stored.type),
            recorded_at=_readable(stored.recorded_at),
            attachments=_readable(stored.attachments),
            idempotency_key=_readable(stored.idempotency_key),
            lifted=_readable(stored.lifted),
        )
        if before is not None and before.session != row.session:
            previous, latest = -1, ""
        for reason in _faults_of_entry(row, previous, latest):
            yield Finding("entries", row.session, row.position, None, reason)
        previous = row.position
        latest = row.recorded_at if isinstance(row.recorded_at, str) else latest


def _faults_of_entry(row: EntryRow, previous: Any, latest: str) -> Iterator[str]:
    if row.place and row.place[0].text is None:
        yield "its session's id is no text in UTF-8"
    if not row.has_session:
        yield "its session is missing"
    if not (isinstance(previous, int) and row.position == previous + 1):
        yield "there is none before it" if previous == -1 else f"the one before it is at {previous}"
    if (row.type == "header") is not (row.position == 0):
        yield "is first, and no header" if row.position == 0 else "is a header, and not first"
    if isinstance(row.recorded_at, str) and row.recorded_at < latest:
        yield "recorded_at lies before that of the entry before"
    if row.idempotency_key is not None and (fault := key_fault(row.idempotency_key)):
        yield f"its idempotency key {fault}"
    yield from _faults_of_payload(row)


def _faults_of_payload(row: EntryRow) -> Iterator[str]:
    """What a reader would stumble over."""
    payload = _text(row.payload)
    if payload is None:
        yield "its payload is no text in UTF-8"
        return
    if not all(isinstance(text, str | None) for text in (row.type, row.recorded_at)):
        yield "its type or recorded_at is no text"
        return
    stored = FoundRow(row.position, row.type, row.recorded_at, row.attachments, payload, row.lifted)
    try:
        rows.from_rows(row.session, Found([stored]), data=False)
        if len({place.path for place in stored.places}) < len(stored.places):
            yield "two of its attachments have one place"
    except Corrupt as error:
        yield error.reason if error.path == "$" else f"{error.path}: {error.reason}"


def _judge_attachments(found: Iterable[AttachmentRow]) -> Iterator[Finding]:
    for row in found:
        digest = as_bytes(row.digest).hex()
        are_texts = all(t is None or _text(t) is not None for t in (row.mime, row.filename))
        reasons = [
            "its session's id is no text in UTF-8" if row.place[0].text is None else "",
            "its ordinal is no number" if not isinstance(row.place[2].stored, int) else "",
            "its entry is missing" if not row.has_entry else "",
            "its blob is missing" if not row.has_blob else "",
            "its media type or file name is no text in UTF-8" if not are_texts else "",
        ]
        for reason in filter(None, reasons):
            yield Finding("attachments", row.session, row.position, digest, reason)


def _judge_blobs(found: Iterable[BlobRow]) -> Iterator[Finding]:
    for row in found:
        digest, data, size = row.place[0].data, as_bytes(row.data), _readable(row.size)
        shown = str(row.place[0].shown) if digest is None else digest.hex()
        reasons = [
            "its digest is not of bytes" if digest is None else "",
            "no attachment names it" if not row.is_used else "",
            "its bytes have another digest" if hashlib.sha256(data).digest() != digest else "",
            f"has {len(data)} bytes, and says {size}" if len(data) != size else "",
        ]
        for reason in filter(None, reasons):
            yield Finding("blobs", None, None, shown, reason)


def _readable(stored: object) -> Any:
    """What is stored, as text where it is that."""
    text = _text(stored)
    return stored if text is None else text


def _text(stored: object) -> str | None:
    """What is stored as text; None where it isn't."""
    if isinstance(stored, str):
        return stored
    try:
        return bytes(stored).decode() if isinstance(stored, bytes | memoryview) else None
    except UnicodeDecodeError:
        return None


class _Step(NamedTuple):
    """A table: how its next rows are read, and what is wrong with them."""

    read: Callable[..., Any]
    judge: Callable[[Any], Iterator[Finding]]


_STEPS = (
    _Step(sql_verify.read_sessions, _judge_sessions),
    _Step(sql_verify.read_entries, _judge_entries),
    _Step(sql_verify.read_attachments, _judge_attachments),
    _Step(sql_verify.read_blobs, _judge_blobs),
)
