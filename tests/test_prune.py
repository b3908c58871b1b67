"""What goes when a store is pruned, and what stays, whatever happens meanwhile."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine

from conftest import ALSO_POOLED, Backend
from contention import header, said
from inspection import EMPTY, counts, in_use, raw
from retaining import (
    CWDS,
    NOON,
    POOL,
    Past,
    age,
    aged,
    gone,
    own_namespace,
    pasts,
    remember,
    with_files,
)
from turnkeep import InvalidArgument, Pruned, SQLStore, UnknownSession, sql_delete, sql_retention
from turnkeep.database import Database
from turnkeep.dialect.sqlite import Sqlite
from turnkeep.tables import Utc

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sqlite, "turn", 0.0)


def bounds(monkeypatch: pytest.MonkeyPatch, rows: int, size: int = 1 << 40) -> None:
    monkeypatch.setattr(sql_retention, "ROWS", rows)
    monkeypatch.setattr(sql_retention, "BYTES", size)


def ids(store: SQLStore) -> list[str]:
    """The sessions that are there, the last changed first."""
    return [header.id for header in store.list()]


def is_sound(store: SQLStore) -> bool:
    return list(store.verify()) == []


# What goes


@settings(max_examples=60)
@given(
    pasts=pasts,
    older_than=st.none() | st.integers(-1, 5),
    keep_last=st.none() | st.integers(0, 6),
    cwd=st.none() | st.sampled_from([*CWDS, "/nobody's"]),
    rows=st.sampled_from([1, 3, 1000]),
    size=st.sampled_from([1, 3000, 1 << 40]),
)
def test_what_is_old_and_not_among_the_last_goes_and_nothing_else(
    shared_store: SQLStore,
    pasts: list[Past],
    older_than: int | None,
    keep_last: int | None,
    cwd: str | None,
    rows: int,
    size: int,
) -> None:
    """Whatever the batches; and it is counted, beforehand too, to the byte."""
    store = own_namespace(shared_store)
    remember(store, pasts)
    newest_first = sorted(pasts, key=lambda p: (p.minutes, p.id.encode()), reverse=True)
    looked_at = [past for past in newest_first if cwd in (None, past.cwd)]
    going = [
        past
        for place, past in enumerate(looked_at)
        if (older_than is None or past.minutes < older_than)
        and (keep_last is None or place >= keep_last)
    ]
    kept = [past for past in newest_first if past not in going]
    which: dict[str, Any] = {"keep_last": keep_last, "cwd": cwd}
    which["older_than"] = None if older_than is None else NOON + older_than * MINUTE
    if older_than is None and keep_last is None:
        with pytest.raises(InvalidArgument):
            store.prune(**which)
        return
    with pytest.MonkeyPatch.context() as patch:
        bounds(patch, rows, size)
        assert store.prune(dry_run=True, **which) == gone(pasts, kept)
        assert ids(store) == [past.id for past in newest_first]
        assert store.prune(**which) == gone(pasts, kept)
    assert ids(store) == [past.id for past in kept]
    for past in kept:
        assert store.read(past.id) == [past.header, *past.entries]
    assert is_sound(store)
    assert store.prune(**which) == Pruned()
    store.erase_namespace()


def test_an_age_is_counted_from_now_and_an_instant_in_any_zone(store: SQLStore) -> None:
    remember(store, [aged(0), aged(1), aged(2)])
    india = timezone(timedelta(hours=5, minutes=30))
    assert store.prune(older_than=(NOON + MINUTE).astimezone(india)).sessions == 1
    ago = datetime.now(UTC) - (NOON + 1.5 * MINUTE)
    assert store.prune(older_than=ago, dry_run=True).sessions == 1
    assert store.prune(older_than=ago + timedelta(days=1)) == Pruned()
    store.append("new", header("new"))
    assert store.prune(older_than=ago - timedelta(days=1)).sessions == 2
    assert ids(store) == ["new"]
    assert store.prune(older_than=timedelta(0)).sessions == 1


@pytest.mark.parametrize(
    ("older_than", "sessions"),
    [
        (datetime.min.replace(tzinfo=UTC), 0),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), 0),
        (datetime.max.replace(tzinfo=UTC), 1),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), 1),
        (timedelta.max, 0),
        (timedelta(days=2000 * 366), 0),
    ],
)
def test_the_ends_of_time_are_times_too(
    store: SQLStore, older_than: datetime | timedelta, sessions: int
) -> None:
    remember(store, [aged(0)])
    assert store.prune(older_than=older_than, dry_run=True).sessions == sessions
    assert store.prune(older_than=older_than).sessions == sessions


def test_by_the_clock_of_the_server(postgres_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which `updated` is set by: what this machine's says doesn't matter."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Wrong":
            return cls(2999, 1, 1, tzinfo=tz)

    with SQLStore(postgres_url, migrate=True) as store:
        store.append("s", header("s"))
        for module in ("retention", "sql_retention", "dialect.postgres"):
            monkeypatch.setattr(f"turnkeep.{module}.datetime", Wrong)
        assert store.prune(older_than=timedelta(hours=1)) == Pruned()
        assert store.prune(older_than=timedelta(0)).sessions == 1


def test_only_this_namespace_is_looked_at(store: SQLStore) -> None:
    names = ["", "other", "third"]
    old, new = with_files(aged(0), POOL[0]), aged(1)
    for name in names:
        remember(store.with_namespace(name), [old, new])
    other = store.with_namespace("other")
    assert other.prune(keep_last=1, dry_run=True) == gone([old], [])
    assert other.prune(keep_last=1) == gone([old], [])
    assert [len(store.with_namespace(name).list()) for name in names] == [2, 1, 2]
    assert store.read("s0")[2] == said("look", POOL[0])
    assert all(is_sound(store.with_namespace(name)) for name in names)


def test_a_blob_goes_with_the_last_session_that_has_it(store: SQLStore) -> None:
    shared, own = POOL[1], POOL[2]
    remember(store, [with_files(aged(i), shared, *[own] * (i == 0)) for i in range(3)])
    assert store.prune(keep_last=2).bytes == aged(0).payload + with_files(
        aged(0), shared, own
    ).payload - aged(0).payload + len(own)
    assert counts(store)["blobs"] == 1
    assert store.prune(keep_last=1).sessions == 1
    assert counts(store)["blobs"] == 1
    last = store.prune(keep_last=0)
    assert last == Pruned(1, 3, with_files(aged(2), shared).payload + len(shared))
    assert counts(store) == EMPTY


BAD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a cwd only": {"cwd": "/a"},
    "a naive datetime": {"older_than": datetime(2999, 1, 1)},  # noqa: DTZ001
    "a date": {"older_than": datetime(2999, 1, 1, tzinfo=UTC).date()},
    "a number of days": {"older_than": 90},
    "a text": {"older_than": "90d"},
    "a negative age": {"older_than": timedelta(microseconds=-1)},
    "a negative number": {"keep_last": -1},
    "a truth": {"keep_last": True},
    "a float": {"keep_last": 1.0},
    "a cwd of bytes": {"keep_last": 0, "cwd": b"/a"},
    "a dry run of None": {"keep_last": 0, "dry_run": None},
    "progress that is none": {"keep_last": 0, "progress": 5},
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_meant_is_refused_before_anything_goes(store: SQLStore, name: str) -> None:
    remember(store, [aged(0)])
    with pytest.raises(InvalidArgument) as caught:
        store.prune(**BAD[name])
    assert caught.value.argument in {*BAD[name], "older_than"}
    assert ids(store) == ["s0"]


@pytest.mark.parametrize("cwd", ["a\0b", "\ud800", "/A", "/a/", "/b"])
def test_a_directory_that_no_session_has_loses_nothing(store: SQLStore, cwd: str) -> None:
    remember(store, [aged(0)])
    for dry_run in (True, False):
        assert store.prune(keep_last=0, cwd=cwd, dry_run=dry_run) == Pruned()
    assert ids(store) == ["s0"]


def test_a_dry_run_writes_nothing(store: SQLStore) -> None:
    remember(store, [with_files(aged(i), POOL[i % 3]) for i in range(5)])
    before = {table: raw(store, f"SELECT * FROM turnkeep_{table}") for table in EMPTY}
    called: list[Pruned] = []
    found = store.prune(keep_last=1, dry_run=True, progress=called.append)
    assert {table: raw(store, f"SELECT * FROM turnkeep_{table}") for table in EMPTY} == before
    assert called == []
    assert store.prune(keep_last=1) == found


# In batches


def batches(store: SQLStore, **which: Any) -> list[tuple[int, int]]:
    """How many sessions and entries each batch took."""
    steps = [Pruned()]
    assert store.prune(progress=steps.append, **which) == steps[-1]
    return [(b.sessions - a.sessions, b.entries - a.entries) for a, b in pairwise(steps)]


def test_a_batch_is_bounded_by_rows_and_a_larger_session_is_one_alone(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds(monkeypatch, rows=10)
    sizes = [1, 3, 4, 30, 2, 2, 9, 1]
    remember(store, [aged(i, entries=size - 1) for i, size in enumerate(sizes)])
    taken = batches(store, keep_last=0)
    assert taken == [(3, 8), (1, 30), (2, 4), (2, 10)]
    remember(store, [with_files(aged(i, entries=0), *[POOL[0]] * 4) for i in range(4)])
    assert batches(store, keep_last=0) == [(1, 2), (1, 2), (1, 2), (1, 2)]  # 6 rows each


def test_a_batch_is_bounded_by_bytes_with_the_attachments(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds(monkeypatch, rows=1000, size=4000)
    remember(store, [with_files(aged(i, entries=0), POOL[2]) for i in range(4)])
    assert batches(store, keep_last=0) == [(1, 2)] * 4  # 2500 bytes each, though stored once
    remember(store, [aged(i, entries=20) for i in range(4)])
    size = aged(0, entries=20).payload
    bounds(monkeypatch, rows=1000, size=2 * size)
    assert batches(store, keep_last=0) == [(2, 42)] * 2


def test_the_oldest_go_first(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, rows=1)
    remember(store, [aged(i) for i in (3, 1, 4, 0, 2)])
    left: list[list[str]] = []
    store.prune(keep_last=1, progress=lambda _: left.append(ids(store)))
    assert left == [["s4", "s3", "s2", "s1"][: 4 - i] for i in range(4)]


def test_more_sessions_than_a_statement_takes_at_once_go_too(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_retention, "AT_ONCE", 2)
    remember(store, [aged(i) for i in range(5)])
    assert batches(store, keep_last=0) == [(2, 4), (2, 4), (1, 2)]


def test_nothing_is_held_while_progress_is_told(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds(monkeypatch, rows=1)
    store = backend.store()
    remember(store, [aged(i) for i in range(3)])
    held: list[int] = []

    def told(_: Pruned) -> None:
        held.append(in_use(store))
        store.append("s9", header("s9"))

    store.prune(older_than=NOON + 5 * MINUTE, progress=told)
    assert held == [0, 0, 0]
    assert ids(store) == ["s9"]


def test_between_batches_others_get_their_turn_where_a_write_keeps_them_out(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the batch took, and as long as it takes for all to look again at the least."""
    monkeypatch.setattr(Sqlite, "turn", 0.025)
    bounds(monkeypatch, rows=1)
    store = backend.store()
    remember(store, [aged(i) for i in range(4)])
    slept: list[float] = []
    monkeypatch.setattr(Database, "_sleep", lambda _, seconds: slept.append(seconds))
    store.prune(keep_last=0)
    if backend.is_postgres:
        assert slept == []
    else:
        assert len(slept) == 3
        assert min(slept) >= 0.025
        take = sql_retention.take

        def long(*arguments: Any, **options: Any) -> sql_retention.Taken:
            taken = take(*arguments, **options)
            return taken._replace(since=taken.since - 1000)

        monkeypatch.setattr(sql_retention, "take", long)
        remember(store, [aged(i) for i in range(2)])
        store.prune(keep_last=0)
        assert 1000 < slept[-1] < 2000


# Meanwhile


def meanwhile(monkeypatch: pytest.MonkeyPatch, event: Callable[[], object]) -> None:
    """Let *event* happen once, between a look and the batch."""
    look, pending = sql_retention.look, [event]

    # Before the transaction of the batch begins: on SQLite nobody else can write in it.
    def looking(*arguments: Any, **options: Any) -> Any:
        found = look(*arguments, **options)
        while found and pending:
            pending.pop()()
        return found

    monkeypatch.setattr(sql_retention, "look", looking)


@ALSO_POOLED
@pytest.mark.parametrize("keep_last", [None, 0, 1])
def test_a_session_that_is_appended_to_after_it_was_looked_at_stays(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch, keep_last: int | None
) -> None:
    store, other = server_or_file.store(), server_or_file.store()
    remember(store, [with_files(aged(i), POOL[0]) for i in range(3)])
    meanwhile(monkeypatch, lambda: other.append("s1", said("still here", POOL[1])))
    pruned = store.prune(older_than=datetime.max.replace(tzinfo=UTC), keep_last=keep_last)
    kept = ["s1", "s2"] if keep_last else ["s1"]
    assert sorted(ids(store)) == kept
    assert pruned.sessions == 3 - len(kept)
    assert store.read("s1")[-1] == said("still here", POOL[1])
    assert is_sound(store)


def test_it_stays_though_the_clock_stands_still(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = server_or_file.store(), server_or_file.store()
    remember(store, [aged(0), aged(1)])

    def append() -> None:
        other.append("s1", said("still here"))
        age(other, aged(1))

    meanwhile(monkeypatch, append)
    assert store.prune(keep_last=0).sessions == 1
    assert ids(store) == ["s1"]


def test_a_session_that_is_begun_anew_after_it_was_looked_at_stays(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = server_or_file.store(), server_or_file.store()
    remember(store, [aged(0), aged(1)])

    def begin_anew() -> None:
        other.delete("s0")
        other.append("s0", header("s0"))

    meanwhile(monkeypatch, begin_anew)
    assert store.prune(keep_last=0).sessions == 1
    assert store.read("s0") == [header("s0")]
    assert is_sound(store)


def test_one_that_is_deleted_after_it_was_looked_at_is_not_counted(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = server_or_file.store(), server_or_file.store()
    remember(store, [with_files(aged(i), POOL[2]) for i in range(2)])
    meanwhile(monkeypatch, lambda: other.delete("s0"))
    assert store.prune(keep_last=0) == gone([with_files(aged(1), POOL[2])], [])
    assert counts(store) == EMPTY


@pytest.mark.parametrize("keep_last", [0, 1, 2])
def test_what_others_change_or_begin_meanwhile_stays(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch, keep_last: int
) -> None:
    """What is kept was settled at the beginning: what comes to the front doesn't push it out."""
    bounds(monkeypatch, rows=2)
    remember(store, [aged(i) for i in range(8)])

    def told(pruned: Pruned) -> None:
        if pruned.sessions == 1:
            for number in (3, 5):
                store.append(f"s{number}", said("still here"))
            for number in range(3):
                store.append(f"new{number}", header(f"new{number}"))

    store.prune(keep_last=keep_last, progress=told)
    last = {f"s{7 - place}" for place in range(keep_last)}
    assert {*ids(store)} == {"s3", "s5", "new0", "new1", "new2"} | last


AHEAD = 100_000_000
"""So many minutes after noon is some lifetimes ahead of every clock."""


@pytest.mark.parametrize("keep_last", [0, 1])
def test_beside_a_session_that_is_dated_ahead_what_is_changed_meanwhile_stays(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch, keep_last: int
) -> None:
    """As a server whose clock was ahead leaves it: what is appended to it keeps its time."""
    bounds(monkeypatch, rows=1)
    remember(store, [*(aged(i) for i in range(4)), aged(AHEAD, "ahead"), aged(AHEAD, "ahead too")])

    def told(pruned: Pruned) -> None:
        if pruned.sessions == 1:
            for id in ("s2", "ahead"):
                store.append(id, said("still here"))
            store.append("new", header("new"))

    assert store.prune(keep_last=keep_last, dry_run=True).sessions == 4
    assert store.prune(keep_last=keep_last, progress=told).sessions == 3
    assert {*ids(store)} == {"ahead", "ahead too", "new", "s2"}


def test_a_session_that_is_dated_ahead_goes_when_its_time_is_past(store: SQLStore) -> None:
    remember(store, [aged(AHEAD, "ahead"), aged(1)])
    for older_than in (None, timedelta(0), datetime.max.replace(tzinfo=UTC)):
        for dry_run in (True, False):
            which: dict[str, Any] = {"older_than": older_than, "dry_run": dry_run}
            is_there = "s1" in ids(store)
            assert store.prune(keep_last=1, **which).sessions == is_there
    assert ids(store) == ["ahead"]
    assert store.prune(keep_last=0) == Pruned()
    age(store, aged(2, "ahead"))
    assert store.prune(keep_last=0).sessions == 1


@pytest.mark.parametrize("cwd", [None, "/a"])
@pytest.mark.parametrize("keep_last", [0, 1])
def test_a_session_dated_at_the_end_of_time_is_dated_ahead_too(
    store: SQLStore, keep_last: int, cwd: str | None
) -> None:
    remember(store, [aged(0), aged(1, "last")])
    last = Utc().process_bind_param(
        datetime.max.replace(tzinfo=UTC), store._database.engine.dialect
    )
    raw(store, "UPDATE turnkeep_sessions SET updated_at = :at WHERE id = 'last'", at=last)
    assert store.prune(keep_last=keep_last, cwd=cwd, dry_run=True).sessions == 1
    assert store.prune(keep_last=keep_last, cwd=cwd).sessions == 1
    assert ids(store) == ["last"]


@pytest.mark.parametrize("cwd", [None, "/a"])
@pytest.mark.parametrize("keep_last", [0, 1])
def test_what_is_changed_meanwhile_stays_whatever_the_clock_says(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch, keep_last: int, cwd: str | None
) -> None:
    """Its time lies among those that go, behind the place that the walk has come to: somebody's
    clock was set back, or he took the time long before his commit.
    """
    bounds(monkeypatch, rows=1)
    remember(store, [aged(i) for i in range(6)])

    def told(pruned: Pruned) -> None:
        if pruned.sessions == 1:
            remember(store, [aged(3, "new")])
            for number in (2, 4):
                store.append(f"s{number}", said("still here"))
                age(store, aged(4, f"s{number}"))

    goes = 4 - keep_last
    assert store.prune(keep_last=keep_last, cwd=cwd, progress=told).sessions == goes
    assert {*ids(store)} == {"s2", "s4", "new", *["s5"] * keep_last}
    assert is_sound(store)


@pytest.mark.parametrize("joins", [False, True])
def test_a_session_that_was_begun_before_and_is_committed_meanwhile_stays(
    postgres_url: Any, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    """Though its time lies before that of the last one that is kept; in the app's transaction, too,
    where each statement sees what others commit.
    """
    bounds(monkeypatch, rows=1)
    engine = create_engine(postgres_url, isolation_level="READ COMMITTED")
    with SQLStore(postgres_url, migrate=True) as store, engine.connect() as writing:
        remember(store, [aged(i) for i in range(3)])
        store.using(writing).append("s9", header("s9"))
        store.using(writing).append("s1", said("on its way"))
        store.append("s10", header("s10"))

        def told(pruned: Pruned) -> None:
            if pruned.sessions == 1:
                writing.commit()

        with engine.connect() as connection, connection.begin():
            pruning = store.using(connection) if joins else store
            assert pruning.prune(keep_last=1, progress=told).sessions == 2
        assert ids(store) == ["s10", "s1", "s9"]
        assert is_sound(store)
    engine.dispose()


def test_more_sessions_than_are_read_at_once_are_settled(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_retention, "STATES_AT_ONCE", 2)
    remember(store, [aged(i) for i in range(5)])
    assert store.prune(keep_last=0).sessions == 5


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_session_that_another_is_writing_is_passed_over(
    postgres_url: Any, commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits, and it can go next time."""
    bounds(monkeypatch, rows=1)
    impatient = postgres_url.update_query_dict({"options": "-c lock_timeout=5s"})
    with SQLStore(impatient, migrate=True) as store:
        remember(store, [aged(i) for i in range(3)])
        engine = create_engine(postgres_url)
        with engine.connect() as connection, connection.begin() as transaction:
            store.using(connection).append("s1", said("on its way"))
            assert store.prune(keep_last=0).sessions == 2
            assert ids(store) == ["s1"]
            transaction.commit() if commits else transaction.rollback()
        assert store.read("s1") == [aged(1).header, said("0"), *[said("on its way")] * commits]
        assert store.prune(older_than=NOON + 5 * MINUTE).sessions == (not commits)
        assert is_sound(store)
        engine.dispose()


def test_two_who_prune_at_once_share_the_work(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds(monkeypatch, rows=4)
    store, other = server_or_file.store(), server_or_file.store()
    all_of_them = [with_files(aged(i), POOL[i % 3]) for i in range(20)]
    remember(store, all_of_them)
    others: list[Pruned] = []

    def told(pruned: Pruned) -> None:
        if pruned.sessions == 5:
            others.append(other.prune(keep_last=5))

    mine = store.prune(keep_last=0, progress=told)
    assert mine.sessions + sum(each.sessions for each in others) == 20
    total = gone(all_of_them, [])
    assert mine.entries + others[0].entries == total.entries
    assert mine.bytes + others[0].bytes == total.bytes
    assert counts(store) == EMPTY


# An end in the middle


def test_what_progress_raises_ends_it_and_what_went_stays_gone(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds(monkeypatch, rows=1)
    remember(store, [with_files(aged(i), POOL[0]) for i in range(5)])

    def told(pruned: Pruned) -> None:
        if pruned.sessions == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.prune(keep_last=1, progress=told)
    assert ids(store) == ["s4", "s3", "s2"]
    assert is_sound(store)
    assert store.prune(keep_last=1).sessions == 2


def test_a_batch_that_fails_is_undone_as_a_whole(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds(monkeypatch, rows=4)
    remember(store, [with_files(aged(i), POOL[0]) for i in range(4)])
    delete, done = sql_delete.delete_sessions, []

    def fail(*arguments: Any) -> Any:
        found = delete(*arguments)
        done.append(found)
        if len(done) == 2:
            raise ZeroDivisionError
        return found

    monkeypatch.setattr("turnkeep.sql_retention.delete_sessions", fail)
    with pytest.raises(ZeroDivisionError):
        store.prune(keep_last=0)
    assert ids(store) == ["s3", "s2", "s1"]
    assert is_sound(store)
    assert store.read("s1")[2] == said("look", POOL[0])


KILLED = """
import os, signal, sys
from turnkeep import SQLStore, sql_delete, sql_retention
from turnkeep.dialect.sqlite import Sqlite

Sqlite.turn = 0.0
sql_retention.ROWS = 8
point, count = sys.argv[2], int(sys.argv[3])
where = sql_delete if point == "drop_blobs" else sql_retention
work = getattr(where, point)

def die(*arguments, **options):
    global count
    count -= 1
    if count < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return work(*arguments, **options)

setattr(where, point, die)
with SQLStore(sys.argv[1]) as store:
    store.prune(keep_last=1)
"""


@pytest.mark.parametrize("point", ["look", "take", "drop_blobs"])
def test_one_that_is_killed_leaves_whole_sessions_and_can_be_run_again(
    server_or_file: Backend, point: str
) -> None:
    """Wherever it was: before a batch, in front of its lock, and when all but the blobs is gone."""
    store = server_or_file.store()
    everyone = [with_files(aged(i), POOL[i % 3]) for i in range(9)]
    remember(store, everyone)
    url = server_or_file.url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, url, point, "2"], check=False, env=dict(os.environ)
    )
    assert done.returncode == -signal.SIGKILL
    there = ids(store)
    assert there == [f"s{i}" for i in range(8, 3, -1)]
    for past in everyone[4:]:
        assert store.read(past.id) == [past.header, *past.entries]
    assert is_sound(store)
    assert store.prune(keep_last=1).sessions == 4
    assert is_sound(store)


def test_in_the_apps_transaction_it_is_undone_with_it(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds(monkeypatch, rows=1)
    store = server_or_file.store()
    remember(store, [with_files(aged(i), POOL[0]) for i in range(3)])
    with server_or_file.engine().connect() as connection:
        joined = store.using(connection)
        assert joined.prune(keep_last=1).sessions == 2
        assert ids(joined) == ["s2"]
        connection.rollback()
        assert len(ids(store)) == 3
        assert joined.prune(keep_last=1).sessions == 2
        connection.commit()
    assert ids(store) == ["s2"]
    with pytest.raises(UnknownSession):
        store.append("s0", said("too late"))
    assert is_sound(store)


def test_a_host_that_enforces_no_foreign_keys_has_nothing_left(backend: Backend) -> None:
    store = backend.store()
    remember(store, [with_files(aged(i), POOL[0]) for i in range(3)])
    assert store.prune(keep_last=0).sessions == 3
    assert counts(store) == EMPTY


def test_the_time_of_a_change_is_kept_to_the_microsecond(store: SQLStore) -> None:
    """Or a session would be another at each look."""
    remember(store, [aged(0)])
    instant = NOON + timedelta(microseconds=123457)
    kind = Utc().process_bind_param(instant, store._database.engine.dialect)
    raw(store, "UPDATE turnkeep_sessions SET updated_at = :at", at=kind)
    assert store.prune(older_than=instant) == Pruned()
    assert store.prune(older_than=instant + timedelta(microseconds=1)).sessions == 1
