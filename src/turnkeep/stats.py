"""What `stats` gives, said once for the sync and the async store."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from turnkeep import sql_stats
from turnkeep.calls import Call, Scope, of_all
from turnkeep.dialect import Mode
from turnkeep.sql_stats import Directory


@dataclass(frozen=True)
class Usage:
    """How much some sessions hold.

    `entries` counts the headers too, and `bytes` is what their payloads take in UTF-8, without the
    attachments. `attachments` counts the places in messages where one stands, `attachment_bytes` is
    what they would take if each place had bytes of its own (as bytes, not as base64), and
    `stored_bytes` what they take, each once. `oldest` and `newest` are the first and the last
    change of a session; None where there is no session.
    """

    sessions: int
    entries: int
    bytes: int
    attachments: int
    attachment_bytes: int
    stored_bytes: int
    oldest: datetime | None
    newest: datetime | None

    @property
    def saved_bytes(self) -> int:
        """What sharing saves: the bytes of attachments that need not be stored again."""
        return self.attachment_bytes - self.stored_bytes


@dataclass(frozen=True)
class DirectoryUsage(Usage):
    """How much the sessions of the directory `cwd` hold.

    An attachment that other directories have too counts in full in each of them, so together they
    may have more `stored_bytes` than the whole.
    """

    cwd: str


@dataclass(frozen=True)
class Stats(Usage):
    """How much all sessions hold, and those of each directory: those that take most first, of equal
    ones in the order of their names.
    """

    by_cwd: list[DirectoryUsage]


def stats(scope: Scope) -> Call[Stats]:
    """Measure a namespace."""
    work = of_all(scope.namespace, partial(sql_stats.measure, namespace=scope.namespace))
    return Call(Mode.SNAPSHOT, work, _stats)


def _stats(found: tuple[Sequence[Directory], int]) -> Stats:
    directories, stored = found
    oldest = [each.oldest for each in directories if each.oldest is not None]
    newest = [each.newest for each in directories if each.newest is not None]
    return Stats(
        sessions=sum(each.sessions for each in directories),
        entries=sum(each.entries for each in directories),
        bytes=sum(each.bytes for each in directories),
        attachments=sum(each.attachments for each in directories),
        attachment_bytes=sum(each.attachment_bytes for each in directories),
        stored_bytes=stored,
        oldest=min(oldest, default=None),
        newest=max(newest, default=None),
        by_cwd=[
            DirectoryUsage(**each._asdict())
            for each in sorted(directories, key=lambda d: (-d.bytes - d.stored_bytes, d.cwd))
        ],
    )
