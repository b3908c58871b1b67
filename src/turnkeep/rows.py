"""Entries to rows and rows to entries, outside any transaction: what is wrong with an entry is said
before one begins.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from turnkeep.dialect import Row
from turnkeep.entries import Entry, Header, check_entry, from_row, key_fault, recorded_at
from turnkeep.errors import Corrupt, InvalidArgument, InvalidEntry
from turnkeep.lifting import base64_text, put_back
from turnkeep.limits import Limits, dotted
from turnkeep.sql import Batch, Found, FoundRow, Place


def to_batch(
    session: str,
    entries: Sequence[Entry],
    keys: Sequence[str | None] | None,
    limits: Limits,
) -> Batch:
    """*entries* as they are written to *session*.

    Raises:
        InvalidArgument: the session's id or a key can't be one, or the keys don't go with the
            entries.
        InvalidEntry: an entry can't be stored, or not here; `$` is the entry, or `$[i]` one of
            several.
    """
    if fault := key_fault(session):
        raise InvalidArgument("id", fault)
    keys = _checked_keys(keys, len(entries))
    header: Header | None = None
    rows: list[Row] = []
    latest = ""
    lifts = False
    for i, entry in enumerate(entries):
        place = "$" if len(entries) == 1 else f"$[{i}]"
        check_entry(entry, place)
        if isinstance(entry, Header):
            if i > 0:
                raise InvalidEntry(place, "a Header comes first, and once")
            if entry.id != session:
                raise InvalidEntry(f"{place}.id", f"is not the id of the session, {session!r}")
            header = entry
            limits.check_payload(entry, entry.payload, place)
            continue
        row = to_row(entry, place, limits, keys[i], latest)
        latest = row.recorded_at or latest
        lifts = lifts or bool(row.attachments)
        rows.append(row)
    return Batch(header, keys[0] if header else None, rows, lifts)


def to_row(
    entry: Entry, place: str, limits: Limits, key: str | None = None, latest: str = ""
) -> Row:
    """*entry*, which is no Header, as it is written under *key*, and no earlier than *latest*;
    *place* is what errors call it.

    Raises:
        InvalidEntry: it is too large.
    """
    payload, attachments = limits.lifted(entry, place)
    stamp = recorded_at(entry)
    return Row(entry.type, key, stamp and max(stamp, latest), payload, attachments)


def from_rows(session: str, found: Found, *, data: bool) -> list[Entry]:
    """The entries that *found* holds; without *data* the digest stands where the bytes of an
    attachment were.

    Raises:
        Corrupt: a row is not what was written, or an attachment is not there or not as its digest
            says.
    """
    texts = texts_of(found)
    entries = []
    for row in found.rows:
        position, kind, stamp, attachments, payload, lifted = row
        try:
            value = None
            if attachments or lifted is not None:
                its_own = lifted_texts(session, FoundRow._make(row), texts, data=data)
                payload, value = put_back(payload, its_own)
            entries.append(from_row(kind, stamp, payload, value))
            continue
        except DAMAGED as error:
            reason = reason_of(error)
        raise Corrupt(session, position, "$", reason)
    return entries


DAMAGED = (ValueError, TypeError, AttributeError)
"""What decoding a row raises that is not as it was written; SQLite takes values of other types."""


def reason_of(error: Exception) -> str:
    """Why a row can't be decoded. Corrupt is raised outside of the handler, since *error* may hold
    a part of the row.
    """
    return error.reason if isinstance(error, InvalidEntry) else "can't be decoded"


def texts_of(found: Found) -> dict[bytes, str]:
    """The base64 of the blobs that are what their digest says."""
    return {
        digest: base64_text(blob)
        for digest, blob in found.blobs.items()
        if hashlib.sha256(blob).digest() == digest
    }


def lifted_texts(
    session: str, row: FoundRow, texts: Mapping[bytes, str], *, data: bool
) -> list[tuple[str, str]]:
    """What was lifted out of *row*, or without *data* its digest, with the path that it goes to.

    Raises:
        Corrupt: something is missing.
    """
    places: Sequence[Place] | None
    try:
        places = row.places
    except DAMAGED:
        places = None
    if places is None or not isinstance(row.attachments, int):
        raise Corrupt(session, row.position, "$", "the place of an attachment is damaged")
    if len(places) != row.attachments:
        reason = f"has {len(places)} of its {row.attachments} attachments"
        raise Corrupt(session, row.position, "$", reason)
    lifted = []
    for path, digest in places:
        if data and digest not in texts:
            reason = (
                f"the attachment of digest {digest.hex()} is missing, or its bytes are not those"
            )
            raise Corrupt(session, row.position, dotted(path), reason)
        lifted.append((path, texts[digest] if data else digest.hex()))
    return lifted


def to_header(row: Sequence[Any]) -> Header:
    """The header of a session's row.

    Raises:
        Corrupt: it is none.
    """
    version, id, cwd, created_at, model, rig, riffer, title, updated, last_position = row
    try:
        since = datetime.fromisoformat(updated)
    except (ValueError, TypeError):
        since = None
    if since is None or since.tzinfo is not UTC or type(last_position) is not int:
        raise Corrupt(id, 0, "$", "how the session stands can't be decoded")
    try:
        return Header(
            schema_version=version,
            id=id,
            cwd=cwd,
            created_at=created_at,
            model=model,
            riffer_rig_version=rig,
            riffer_version=riffer,
            title=title,
            updated=since,
            last_position=last_position,
        )
    except InvalidEntry as error:
        path, reason = error.path, error.reason
    raise Corrupt(id, 0, path, reason)


def _checked_keys(keys: Sequence[str | None] | None, count: int) -> Sequence[str | None]:
    if keys is None:
        return [None] * count
    if not isinstance(keys, Sequence) or isinstance(keys, str) or len(keys) != count:
        raise InvalidArgument("idempotency_keys", f"is a list of one for each entry: {count}")
    given = [key for key in keys if key is not None]
    for key in given:
        if fault := key_fault(key):
            raise InvalidArgument("idempotency_key", fault)
    if len(set(given)) < len(given):
        raise InvalidArgument("idempotency_keys", "one stands twice")
    return keys
