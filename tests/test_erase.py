"""Erasing a namespace leaves no row of it, in any table, and nothing of any other is touched."""

import threading
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import URL, Table, create_engine, func, select

from conftest import Backend
from contention import header, said
from inspection import EMPTY, counts, raw
from retaining import POOL, Past, aged, gone, remember, with_files
from servers import wait_for
from turnkeep import (
    NotErased,
    Pruned,
    SQLStore,
    TurnkeepError,
    sql_retention,
)
from turnkeep.dialect.sqlite import Sqlite
from turnkeep.tables import TABLES, metadata

EVERYONE = [with_files(aged(i), POOL[i % 3], POOL[0]) for i in range(6)]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sqlite, "turn", 0.0)


def rows(store: SQLStore) -> dict[str, int]:
    """How many rows of the store's namespace each table of ours has, those of the future too."""
    namespace = store._scope.namespace
    with store._database.engine.connect() as connection:
        return {
            name: connection.execute(
                select(func.count()).select_from(table).where(table.c.namespace == namespace)
            ).scalar_one()
            for name, table in metadata.tables.items()
        }


def nothing(store: SQLStore) -> bool:
    return not any(rows(store).values())


@pytest.mark.parametrize("bound", [1, 5, 2000])
def test_no_table_has_a_row_of_it_and_the_others_are_as_before(
    store: SQLStore, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they have the same ids and the same bytes."""
    monkeypatch.setattr(sql_retention, "ROWS", bound)
    names = ["", "gone", "gone too"]
    for name in names:
        remember(store.with_namespace(name), EVERYONE)
    before = {name: rows(store.with_namespace(name)) for name in names}
    steps: list[Pruned] = []
    assert store.with_namespace("gone").erase_namespace(progress=steps.append) == gone(EVERYONE, [])
    assert steps[-1] == gone(EVERYONE, [])
    assert nothing(store.with_namespace("gone"))
    assert store.namespaces() == ["", "gone too"]
    for name in ("", "gone too"):
        other = store.with_namespace(name)
        assert rows(other) == before[name]
        assert list(other.verify()) == []
        for past in EVERYONE:
            assert other.read(past.id) == [past.header, *past.entries]
    assert store.erase_namespace() == gone(EVERYONE, [])
    assert store.namespaces() == ["gone too"]
    assert store.erase_namespace() == Pruned()


def test_an_erased_namespace_can_be_used_again(store: SQLStore) -> None:
    remember(store, EVERYONE)
    store.erase_namespace()
    remember(store, EVERYONE[:2])
    assert store.read("s0") == [EVERYONE[0].header, *EVERYONE[0].entries]
    assert list(store.verify()) == []


DAMAGE = {
    "entries without a session": "DELETE FROM turnkeep_sessions WHERE id <> 's1'",
    "attachments without an entry": "DELETE FROM turnkeep_entries WHERE session_id <> 's1'",
    "blobs without an attachment": "DELETE FROM turnkeep_attachments",
    "sessions without entries": "DELETE FROM turnkeep_entries WHERE session_id = 's2'",
    "attachments without a blob": "DELETE FROM turnkeep_blobs WHERE size < 100",
    "a time that is none": "UPDATE turnkeep_sessions SET updated_at = '{no_time}'",
    "a last position that lies": "UPDATE turnkeep_sessions SET last_position = -7",
    "payloads that are none": "UPDATE turnkeep_entries SET payload = '{{'",
    "all but sessions": "DELETE FROM turnkeep_sessions",
}


@pytest.mark.parametrize("bound", [1, 2000])
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_belongs_to_nothing_goes_too(
    server_or_file: Backend, damage: str, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_retention, "ROWS", bound)
    store = server_or_file.store()
    other = store.with_namespace("other")
    for each in (store, other):
        remember(each, EVERYONE)
    before = rows(other)
    statement = DAMAGE[damage].format(no_time="infinity" if server_or_file.is_postgres else "x")
    where = " AND" if "WHERE" in statement else " WHERE"
    raw(store, f"{statement}{where} namespace = ''")
    there = rows(store)
    pruned = store.erase_namespace()
    assert nothing(store)
    assert rows(other) == before
    assert list(other.verify()) == []
    assert pruned.sessions == there["turnkeep_sessions"]
    assert pruned.entries == there["turnkeep_entries"]


NOTHING = [
    "UPDATE turnkeep_sessions SET id = '' WHERE id = 's1' AND namespace = ''",
    "UPDATE turnkeep_entries SET session_id = '' WHERE session_id = 's1' AND namespace = ''",
    (
        "UPDATE turnkeep_entries SET session_id = '', position = -9"
        " WHERE session_id = 's2' AND position = 1 AND namespace = ''"
    ),
    (
        "UPDATE turnkeep_attachments SET session_id = '', position = -9, ordinal = -9"
        " WHERE session_id = 's2' AND ordinal = 0 AND namespace = ''"
    ),
    "INSERT INTO turnkeep_blobs (namespace, digest, size, data) VALUES ('', :none, 0, :none)",
]


@pytest.mark.parametrize("bound", [1, 2000])
def test_what_sorts_before_all_else_goes_too(
    store: SQLStore, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_retention, "ROWS", bound)
    remember(store, EVERYONE)
    for statement in NOTHING:
        raw(store, statement, **({"none": b""} if ":none" in statement else {}))
    there = rows(store)
    pruned = store.erase_namespace()
    assert nothing(store)
    assert pruned.sessions == there["turnkeep_sessions"]
    assert pruned.entries == there["turnkeep_entries"]


ODD = ["CAST(x'ff' AS TEXT)", "x'ff'", "x'7331'", "'a'", "-5", "1.5", "''"]
COLUMNS = [
    (table, column)
    for table in TABLES
    for column in table.columns.keys()  # noqa: SIM118 (no dict)
    if column != "namespace"
]


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{t}.{c}" for t, c in COLUMNS])
def test_whatever_a_column_holds_all_goes(
    sqlite_url: URL, table: Table, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes any value for any column, and its driver no text that is no UTF-8."""
    monkeypatch.setattr(sql_retention, "ROWS", 2)
    one = f"SELECT min(rowid) + 1 FROM {table} WHERE namespace = ''"
    with SQLStore(sqlite_url) as store:
        other = store.with_namespace("other")
        remember(other, EVERYONE[:3])
        before = rows(other)
        for value in ODD:
            remember(store, EVERYONE[:3])
            raw(store, f"UPDATE {table} SET {column} = {value} WHERE rowid = ({one})")
            there = rows(store)
            pruned = store.erase_namespace()
            assert nothing(store)
            assert pruned.sessions == there["turnkeep_sessions"]
            assert pruned.entries == there["turnkeep_entries"]
            assert rows(other) == before
        assert list(other.verify()) == []


@pytest.mark.parametrize("value", ["CAST(x'ff' AS TEXT)", "x'61'"])
def test_a_session_with_a_digest_that_is_none_can_be_deleted(sqlite_url: URL, value: str) -> None:
    with SQLStore(sqlite_url) as store:
        remember(store, EVERYONE[:3])
        one = "session_id = 's1' AND ordinal = 0"
        raw(store, f"UPDATE turnkeep_attachments SET digest = {value} WHERE {one}")
        assert store.delete("s1")
        assert [header.id for header in store.list()] == ["s2", "s0"]


@pytest.mark.parametrize("value", ["CAST(x'ff' AS TEXT)", "x'7331'", "''"])
def test_a_session_whose_id_is_none_goes_with_all_that_it_has(sqlite_url: URL, value: str) -> None:
    """And that it has is counted; one of the same letters is another."""
    with SQLStore(sqlite_url) as store:
        remember(store, EVERYONE[:3])
        columns = {"sessions": "id", "entries": "session_id", "attachments": "session_id"}
        for table, column in columns.items():
            raw(store, f"UPDATE turnkeep_{table} SET {column} = {value} WHERE {column} = 's2'")
        if value != "''":
            found = {(each.table, each.reason) for each in store.verify()}
            assert found == {
                ("sessions", "its id is no text in UTF-8"),
                ("entries", "its session's id is no text in UTF-8"),
                ("attachments", "its session's id is no text in UTF-8"),
            }
        assert store.erase_namespace() == gone(EVERYONE[:3], [])
        assert nothing(store)


def test_bytes_of_what_belongs_to_nothing_are_counted_too(store: SQLStore) -> None:
    remember(store, EVERYONE)
    raw(store, "DELETE FROM turnkeep_sessions")
    whole = gone(EVERYONE, [])
    assert store.erase_namespace() == Pruned(0, whole.entries, whole.bytes)


def test_a_batch_of_what_belongs_to_nothing_is_bounded(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(store, EVERYONE)
    raw(store, "DELETE FROM turnkeep_sessions")
    steps = [Pruned()]
    monkeypatch.setattr(sql_retention, "ROWS", 4)
    store.erase_namespace(progress=steps.append)
    entries = [b.entries - a.entries for a, b in pairwise(steps)]
    assert entries[:6] == [4, 4, 4, 4, 2, 0]
    remember(store, EVERYONE)
    raw(store, "DELETE FROM turnkeep_sessions")
    monkeypatch.setattr(sql_retention, "BYTES", 1)
    steps = [Pruned()]
    store.erase_namespace(progress=steps.append)
    entries = [b.entries - a.entries for a, b in pairwise(steps)]
    assert entries[:19] == [*[1] * 18, 0]


def test_the_proof_looks_into_every_table_that_we_have() -> None:
    assert [column.name for column in sql_retention.LEFT.selected_columns] == [
        table.name for table in metadata.sorted_tables
    ]
    assert all("namespace" in table.c for table in metadata.sorted_tables)


class Rival:
    """A writer who begins a session whenever the eraser has looked for the last time."""

    def __init__(self, store: SQLStore, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.began = 0
        look = sql_retention.look

        def looking(*arguments: Any, **options: Any) -> Any:
            found = look(*arguments, **options)
            if not found and self.began < times:
                self.began += 1
                id = f"s{self.began}"
                store.extend(id, [header(id), said("still here", POOL[0])])
            return found

        monkeypatch.setattr(sql_retention, "look", looking)


def test_it_is_said_when_writers_are_faster(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what they wrote is whole; what was there at the beginning is gone."""
    store, other = server_or_file.store(namespace="n"), server_or_file.store(namespace="n")
    remember(store, [with_files(aged(0), POOL[1])])
    rival = Rival(other, monkeypatch, times=1000)
    with pytest.raises(NotErased) as caught:
        store.erase_namespace()
    assert caught.value.namespace == "n"
    assert {*caught.value.tables} == {name for name, count in rows(store).items() if count}
    assert str(caught.value).startswith("namespace 'n' has rows in turnkeep_")
    assert isinstance(caught.value, TurnkeepError)
    last = f"s{rival.began}"
    assert [found.id for found in store.list()] == [last]
    assert store.read(last) == [header(last), said("still here", POOL[0])]
    assert list(store.verify()) == []


def test_a_writer_who_is_faster_once_is_caught_up_with(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = server_or_file.store(), server_or_file.store()
    remember(store, EVERYONE)
    Rival(other, monkeypatch, times=1)
    assert store.erase_namespace().sessions == len(EVERYONE) + 1
    assert nothing(store)


def test_a_session_that_is_appended_to_meanwhile_goes_and_is_counted_as_it_was(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = server_or_file.store(), server_or_file.store()
    remember(store, EVERYONE)
    look = sql_retention.look

    def looking(*arguments: Any, **options: Any) -> Any:
        found = look(*arguments, **options)
        monkeypatch.setattr(sql_retention, "look", look)
        other.append("s1", said("too late", POOL[2]))
        return found

    monkeypatch.setattr(sql_retention, "look", looking)
    more = Past("s1", "/a", 1, (*EVERYONE[1].entries, said("too late", POOL[2])))
    assert store.erase_namespace() == gone([*EVERYONE[:1], more, *EVERYONE[2:]], [])
    assert nothing(store)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_it_waits_for_who_is_writing(postgres_url: URL, commits: bool) -> None:
    engine = create_engine(postgres_url)
    with SQLStore(postgres_url, migrate=True) as store:
        remember(store, EVERYONE)
        erased: list[Pruned] = []
        with engine.connect() as connection:
            store.using(connection).append("s1", said("on its way", POOL[2]))
            eraser = threading.Thread(target=lambda: erased.append(store.erase_namespace()))
            eraser.start()
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_for(lambda: bool(raw(store, waiting)), "nobody waits")
            connection.commit() if commits else connection.rollback()
        eraser.join()
        assert [each.entries for each in erased] == [18 + commits]
        assert counts(store) == EMPTY
    engine.dispose()


def test_in_the_apps_transaction_it_is_undone_with_it(server_or_file: Backend) -> None:
    store = server_or_file.store()
    remember(store, EVERYONE)
    with server_or_file.engine().connect() as connection:
        assert store.using(connection).erase_namespace() == gone(EVERYONE, [])
        connection.rollback()
    assert len(store.list()) == 6
    assert list(store.verify()) == []
