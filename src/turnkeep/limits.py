"""How large what is stored may be: said here, before a database is asked, so that it is the same on
both and in files, and an error that names the place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from turnkeep import payload as json
from turnkeep.entries import Entry, Header
from turnkeep.errors import InvalidArgument, InvalidEntry
from turnkeep.lifting import Lifted, lift

MAX_BYTES = 500 << 20
"""What `entry`, `header` and `attachment` may be raised to.

SQLite holds 1,000,000,000 bytes in a value or a row, Postgres 1 GiB in a value and in a message to
or from it. But its text form of bytes, and of text that is all backslashes, is twice as long, and
some drivers and `pg_dump` have no other.
"""

MAX_COUNT = 10_000
"""How many attachments an entry may have: their places come out of the database as one value."""

_MOST = {"attachments": 1 << 40}


@dataclass(frozen=True)
class Limits:
    """How large what a store takes may be, in bytes: what is larger is an InvalidEntry, and isn't
    written.

    ```python
    store = SQLStore("sqlite:///chats.db", limits=Limits(entry=1 << 20, attachment=10 << 20))
    ```

    They are looked at when something is written. What is there is read, whatever its size, and in
    memory takes several times as much: see docs/security.md.

    `entry`, `attachment` and `header` may be up to 524,288,000 (500 MiB), which both databases can
    hold, hand over and dump. What can't be set: an entry has up to 10,000 attachments, its lists
    and objects stand in one another up to 200 levels deep, and its integers have up to 4,300
    digits; an id, a namespace, an idempotency key and the type of an entry have 1 to 255 bytes of
    UTF-8 (a namespace may be empty).

    Raises:
        InvalidArgument: one is no int, below 1, or above what it may be; names both.
    """

    entry: int = 64 << 20
    """An entry's JSON in UTF-8, without the attachments that are kept apart."""
    attachment: int = 256 << 20
    """One attachment."""
    attachments: int = 1 << 30
    """All attachments of an entry together: one that occurs twice counts twice, since it comes back
    twice."""
    header: int = 1 << 20
    """A Header's JSON in UTF-8, unless `entry` is less: a listing reads whole headers."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            given, most = getattr(self, name), _MOST.get(name, MAX_BYTES)
            if type(given) is not int or not 1 <= given <= most:
                reason = f"is a whole number of bytes from 1 to {most}"
                raise InvalidArgument(f"limits.{name}", reason)

    def lifted(self, entry: Entry, place: str) -> tuple[str, tuple[Lifted, ...]]:
        """What `lift` makes of *entry*, if none of it is too large; *place* is what errors call it.

        Raises:
            InvalidEntry: something is.
        """
        payload, attachments = lift(entry.payload)
        self.check_payload(entry, payload, place)
        self.check_attachments(attachments, place)
        return payload, attachments

    def check_payload(self, entry: Entry, payload: str, place: str) -> None:
        """Nothing, if the *payload* of *entry* is not too large.

        Raises:
            InvalidEntry: it is.
        """
        what, limit = "an entry", self.entry
        if isinstance(entry, Header):
            what, limit = "a header", min(self.header, self.entry)
        size = json.size(payload)
        if size > limit:
            raise InvalidEntry(place, f"{what} of {size} bytes: the limit is {limit}")

    def check_attachments(self, attachments: Sequence[Lifted], place: str) -> None:
        """Nothing, if none of *attachments* is too large, nor all together, nor are there too many.

        Raises:
            InvalidEntry: one is, or they are.
        """
        if len(attachments) > MAX_COUNT:
            reason = f"an entry of {len(attachments)} attachments: the limit is {MAX_COUNT}"
            raise InvalidEntry(place, reason)
        total = 0
        for lifted in attachments:
            total += len(lifted.data)
            fault = self.fault_of_attachment(len(lifted.data), total)
            if fault is not None:
                raise InvalidEntry(dotted(lifted.path, place), fault)

    def fault_of_attachment(self, size: int, total: int) -> str | None:
        """What is wrong with an attachment of *size* bytes, with which the entry has *total* bytes
        of them; None where nothing is.
        """
        if size > self.attachment:
            return f"an attachment of {size} bytes: the limit is {self.attachment}"
        if total > self.attachments:
            return f"{total} bytes of attachments in one entry: the limit is {self.attachments}"
        return None


def check_limits(limits: object) -> Limits:
    """*limits*, if they are some.

    Raises:
        InvalidArgument: they are not.
    """
    if not isinstance(limits, Limits):
        raise InvalidArgument("limits", f"is Limits, not {type(limits).__qualname__}")
    return limits


def dotted(path: str, place: str = "$") -> str:
    """A stored path, as errors write it; *place* is where it begins."""
    at = place
    try:
        for step in json.decode(path):  # type: ignore[union-attr]
            at = json.step(at, step)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return place
    return at
