"""What `prune` and `erase_namespace` do, said once for the sync and the async store.

Each is a plan of many calls, so that others get their turn between two batches, and what is done
stays done when it is killed, cancelled, or ended by what *progress* raises.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection

from turnkeep import sql_orphans
from turnkeep import sql_retention as sql
from turnkeep.calls import Scope, ask, check_progress, is_possible_cwd, of_all, optional
from turnkeep.dialect import Mode
from turnkeep.errors import InvalidArgument, NotErased
from turnkeep.plans import Plan
from turnkeep.sql_orphans import OrphansOf, Swept
from turnkeep.sql_retention import Candidate, Key, Settled, States, Taken, Which
from turnkeep.sql_walk import Place

PASSES = 3
"""How often the whole namespace is gone through, where others begin sessions in it meanwhile."""


@dataclass(frozen=True)
class Pruned:
    """What went, or would go.

    `bytes` are those of the entries' payloads in UTF-8, and of the attachments that no other
    session has, each once.
    """

    sessions: int = 0
    entries: int = 0
    bytes: int = 0


PruneProgress: TypeAlias = Callable[[Pruned], object]
"""Is told what is gone so far."""


def prune(
    scope: Scope,
    *,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
    cwd: str | None,
    dry_run: bool,
    progress: PruneProgress | None,
) -> Plan[Pruned]:
    """Delete the sessions that are too old or too many; wants calls to be run."""
    since = _checked_age(older_than)
    kept = optional("keep_last", keep_last)
    if since is None and kept is None:
        raise InvalidArgument("older_than", "say older_than or keep_last, or both: all would go")
    if type(dry_run) is not bool:
        raise InvalidArgument("dry_run", f"is a bool, not {type(dry_run).__qualname__}")
    told = _Told(progress)
    if not is_possible_cwd(cwd):
        return Pruned()
    which = Which(scope.namespace, cwd)
    if dry_run:
        preview = partial(_preview, which=which, older_than=since, keep_last=kept)
        found: Pruned = yield ask(Mode.SNAPSHOT, of_all(scope.namespace, preview))
        return found
    work = partial(sql.settle, which=which, older_than=since, keep_last=kept)
    settled: Settled | None = yield ask(Mode.SNAPSHOT, of_all(scope.namespace, work, deletes=True))
    if settled is not None:
        yield from _take_all(which._replace(below=settled.below), told, settled.states)
    return told.pruned


def erase(scope: Scope, progress: PruneProgress | None) -> Plan[Pruned]:
    """Delete all that the namespace has; wants calls to be run."""
    told = _Told(progress)
    left: list[str] = []
    for _ in range(PASSES):
        yield from _take_all(Which(scope.namespace), told)
        for orphans in (sql_orphans.ENTRIES, sql_orphans.ATTACHMENTS, sql_orphans.BLOBS):
            note = partial(told.add_orphans, of_entries=orphans is sql_orphans.ENTRIES)
            yield from sweep(scope.namespace, orphans, note, told.pause)
        work = partial(sql.left, namespace=scope.namespace)
        left = yield ask(Mode.READ, of_all(scope.namespace, work))
        if not left:
            return told.pruned
    raise NotErased(scope.namespace, left)


def sweep(
    namespace: str,
    orphans: OrphansOf,
    note: Callable[[Swept], object] = lambda _: None,
    pause: float = 0.0,
) -> Plan[tuple[int, int]]:
    """Delete what a table has that belongs to nothing; how many rows, and how many bytes. *note* is
    told of each batch.
    """
    count = size = 0
    after: Place | None = None
    while True:
        here: Any = {"namespace": namespace, "orphans": orphans, "after": after}
        look = of_all(namespace, partial(sql_orphans.find, **here), deletes=True)
        places: list[Place] = yield ask(Mode.READ, look)
        if not places:
            return count, size
        work = partial(sql_orphans.drop, **here, places=places)
        swept: Swept = yield ask(Mode.WRITE, work, pause)
        pause = time.monotonic() - swept.since
        count += len(swept.sizes)
        size += sum(swept.sizes)
        note(swept)
        after = places[-1]


class _Told:
    """What is gone so far, and who wants to know.

    Attributes:
        pruned: what is gone.
        pause: for how many seconds others have their turn: as long as the last batch took.
    """

    def __init__(self, progress: PruneProgress | None) -> None:
        check_progress(progress, "a Pruned")
        self.pruned = Pruned()
        self.pause = 0.0
        self._progress = progress

    def add(self, taken: Taken) -> None:
        """Count what a batch took, which has just been committed."""
        self.pause = time.monotonic() - taken.since
        before = self.pruned
        self.pruned = Pruned(
            before.sessions + taken.sessions,
            before.entries + taken.entries,
            before.bytes + taken.bytes,
        )
        if self._progress is not None:
            self._progress(self.pruned)

    def add_orphans(self, swept: Swept, *, of_entries: bool) -> None:
        """Count what a batch of orphans took."""
        count = len(swept.sizes) if of_entries else 0
        self.add(Taken(0, count, sum(swept.sizes), swept.since))


def _take_all(which: Which, told: _Told, states: States | None = None) -> Plan[None]:
    after: Candidate | None = None
    while True:
        look = partial(sql.look, which=which, after=after)
        batch: list[Candidate] = yield ask(Mode.READ, of_all(which.namespace, look, deletes=True))
        if not batch:
            return
        work = partial(sql.take, namespace=which.namespace, batch=batch, states=states)
        told.add((yield ask(Mode.WRITE, work, told.pause)))
        after = batch[-1]


def _preview(
    connection: Connection,
    which: Which,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
) -> Pruned:
    below: Key | None = sql.bound(connection, which, older_than, keep_last)
    if below is None:
        return Pruned()
    return Pruned(*sql.preview(connection, which._replace(below=below)))


def _checked_age(older_than: datetime | timedelta | None) -> datetime | timedelta | None:
    if isinstance(older_than, datetime):
        if older_than.utcoffset() is None:
            raise InvalidArgument("older_than", "has no time zone: say datetime.now(UTC) - …")
        return _utc(older_than)
    if isinstance(older_than, timedelta):
        if older_than < timedelta(0):
            raise InvalidArgument("older_than", "is not negative")
    elif older_than is not None:
        what = type(older_than).__qualname__
        raise InvalidArgument("older_than", f"is a datetime with a zone or a timedelta, not {what}")
    return older_than


def _utc(instant: datetime) -> datetime:
    try:
        return instant.astimezone(UTC)
    except OverflowError:  # a year before 1 or after 9999 there
        is_early = instant.year == 1
        return sql.EARLIEST if is_early else datetime.max.replace(tzinfo=UTC)
