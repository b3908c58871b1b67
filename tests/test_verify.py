"""`verify` finds each kind of damage, in its place, and nothing where there is none."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from click.testing import CliRunner
from sqlalchemy import URL, Table, create_engine

from conftest import Backend
from contention import header, said
from inspection import counts, in_use, raw
from servers import wait_for
from turnkeep import (
    AsyncSQLStore,
    Finding,
    MessageEntry,
    ModelEntry,
    Orphans,
    SQLStore,
    TurnkeepError,
    sql_verify,
    verification,
)
from turnkeep.cli.commands import turnkeep as cli
from turnkeep.dialect.sqlite import Sqlite
from turnkeep.dialect.statements import AT_ONCE
from turnkeep.tables import TABLES, blobs, sessions

SECRET = "hush-4711"
A, B, C = (letter * 100 for letter in (b"a", b"b", b"c"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of two rows, so that each table takes several."""
    monkeypatch.setattr(sql_verify, "AT_ONCE", 2)


def fill(store: SQLStore) -> None:
    """Two sessions in the namespace, and one in another, which shares bytes with them."""
    store.append("s1", header("s1", title=SECRET))
    store.extend(
        "s1",
        [
            said(f"{SECRET} 1", recorded_at="2026-11-30T12:00:01Z"),
            said(f"{SECRET} 2", A, B, recorded_at="2026-11-30T12:00:02Z"),
            ModelEntry("m2"),
            said(f"{SECRET} 3", A, recorded_at="2026-11-30T12:00:03Z"),
        ],
        idempotency_keys=["k1", "k2", None, None],
    )
    store.append("s2", header("s2"))
    store.append("s2", said("hello", B, recorded_at="2025-11-30T12:00:00Z"))
    other = store.with_namespace("other")
    other.extend("s1", [header("s1"), said("theirs", A, C)])


def verified(store: SQLStore) -> list[Finding]:
    findings = list(store.verify())
    for finding in findings:
        assert SECRET not in str(finding)
        assert str(finding).startswith(f"{finding.table}: ")
    return findings


@pytest.mark.parametrize("at_once", [1, 2, 500])
def test_what_the_store_wrote_is_sound(
    backend: Backend, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_verify, "AT_ONCE", at_once)
    store = backend.store()
    assert verified(store) == []
    fill(store)
    assert verified(store) == []
    store.delete("s1")
    assert verified(store) == []
    assert verified(store.with_namespace("other")) == []
    assert verified(store.with_namespace("nobody's")) == []


IN_1 = "namespace = '' AND session_id = 's1'"
DAMAGE: dict[str, tuple[str, Sequence[tuple[str, str | None, int | None, str]]]] = {
    "a gap": (
        f"DELETE FROM turnkeep_entries WHERE {IN_1} AND position = 3",
        [("entries", "s1", 4, "the one before it is at 2")],
    ),
    "the header missing": (
        f"DELETE FROM turnkeep_entries WHERE {IN_1} AND position = 0",
        [("entries", "s1", 1, "there is none before it")],
    ),
    "the newest entry missing": (
        f"DELETE FROM turnkeep_entries WHERE {IN_1} AND position = 4",
        [
            ("attachments", "s1", 4, "its entry is missing"),
            ("sessions", "s1", None, "last_position is 4, and the newest entry is at 3"),
            ("sessions", "s1", None, "last_recorded_at is not that of"),
        ],
    ),
    "no entries": (
        "DELETE FROM turnkeep_entries WHERE namespace = '' AND session_id = 's2'",
        [
            ("attachments", "s2", 1, "its entry is missing"),
            ("sessions", "s2", None, "has no entries"),
        ],
    ),
    "no session": (
        "DELETE FROM turnkeep_sessions WHERE namespace = '' AND id = 's2'",
        [
            ("entries", "s2", 0, "its session is missing"),
            ("entries", "s2", 1, "its session is missing"),
        ],
    ),
    "last_position behind": (
        "UPDATE turnkeep_sessions SET last_position = 3 WHERE namespace = '' AND id = 's1'",
        [("sessions", "s1", None, "last_position is 3, and the newest entry is at 4")],
    ),
    "last_recorded_at": (
        "UPDATE turnkeep_sessions SET last_recorded_at = '' WHERE namespace = '' AND id = 's1'",
        [("sessions", "s1", None, "last_recorded_at is not that of")],
    ),
    "updated_at ahead": (
        (
            "UPDATE turnkeep_sessions SET updated_at = '2999-01-01T00:00:00.000000Z'"
            " WHERE namespace = '' AND id = 's1'"
        ),
        [("sessions", "s1", None, "updated_at lies in the future")],
    ),
    "another title": (
        "UPDATE turnkeep_sessions SET title = 'x' WHERE namespace = '' AND id = 's1'",
        [("sessions", "s1", None, "its columns are not those of its header")],
    ),
    "no model": (
        "UPDATE turnkeep_sessions SET created_at = 'x' WHERE namespace = '' AND id = 's1'",
        [("sessions", "s1", None, "its columns make no header: $.created_at")],
    ),
    "another directory": (
        (
            "UPDATE turnkeep_sessions SET cwd_digest = (SELECT digest FROM turnkeep_blobs LIMIT 1)"
            " WHERE namespace = '' AND id = 's1'"
        ),
        [("sessions", "s1", None, "cwd_digest is not that of its cwd")],
    ),
    "the order of the times": (
        (
            f"UPDATE turnkeep_entries SET recorded_at = '2026-11-30T11:00:00.000Z'"
            f" WHERE {IN_1} AND position = 2"
        ),
        [("entries", "s1", 2, "recorded_at lies before that of the entry before")],
    ),
    "a time": (
        (
            f"UPDATE turnkeep_entries SET recorded_at = '2026-11-30T12:00:02' WHERE {IN_1}"
            " AND position = 2"
        ),
        [("entries", "s1", 2, "can't be decoded")],
    ),
    "a header in between": (
        f"UPDATE turnkeep_entries SET type = 'header' WHERE {IN_1} AND position = 3",
        [("entries", "s1", 3, "is a header, and not first")],
    ),
    "no header in front": (
        f"UPDATE turnkeep_entries SET type = 'model' WHERE {IN_1} AND position = 0",
        [("entries", "s1", 0, "is first, and no header")],
    ),
    "a payload": (
        f"UPDATE turnkeep_entries SET payload = '{{\"message\":' WHERE {IN_1} AND position = 1",
        [("entries", "s1", 1, "can't be decoded")],
    ),
    "an empty key": (
        f"UPDATE turnkeep_entries SET idempotency_key = '' WHERE {IN_1} AND position = 1",
        [("entries", "s1", 1, "its idempotency key is empty")],
    ),
    "the count of attachments": (
        f"UPDATE turnkeep_entries SET attachments = 0 WHERE {IN_1} AND position = 2",
        [("entries", "s1", 2, "has 2 of its 0 attachments")],
    ),
    "an attachment missing": (
        f"DELETE FROM turnkeep_attachments WHERE {IN_1} AND position = 2 AND ordinal = 0",
        [("entries", "s1", 2, "has 1 of its 2 attachments")],
    ),
    "the place of an attachment": (
        (
            f'UPDATE turnkeep_attachments SET path = \'["message","gone"]\' WHERE {IN_1}'
            " AND position = 4"
        ),
        [("entries", "s1", 4, "can't be decoded")],
    ),
    "a place that is none": (
        f"UPDATE turnkeep_attachments SET path = '7' WHERE {IN_1} AND position = 4",
        [("entries", "s1", 4, "can't be decoded")],
    ),
    "a place of several lines": (
        (
            f"UPDATE turnkeep_attachments SET path = path || '\n[\"message\"]' WHERE {IN_1}"
            " AND position = 4"
        ),
        [("entries", "s1", 4, "the place of an attachment is damaged")],
    ),
    "one place twice": (
        (
            "UPDATE turnkeep_attachments SET path = (SELECT path FROM turnkeep_attachments"
            f" WHERE {IN_1} AND position = 4) WHERE {IN_1} AND position = 2"
        ),
        [("entries", "s1", 2, "two of its attachments have one place")],
    ),
    "a blob missing": (
        (
            "DELETE FROM turnkeep_blobs WHERE namespace = '' AND digest ="
            f" (SELECT digest FROM turnkeep_attachments WHERE {IN_1} AND position = 4)"
        ),
        [
            ("attachments", "s1", 2, "its blob is missing"),
            ("attachments", "s1", 4, "its blob is missing"),
        ],
    ),
    "other bytes": (
        (
            "UPDATE turnkeep_blobs SET data = (SELECT data FROM turnkeep_blobs WHERE namespace = ''"
            " AND digest <> (SELECT digest FROM turnkeep_attachments"
            f" WHERE {IN_1} AND position = 4)) WHERE namespace = '' AND digest ="
            f" (SELECT digest FROM turnkeep_attachments WHERE {IN_1} AND position = 4)"
        ),
        [("blobs", None, None, "its bytes have another digest")],
    ),
    "another size": (
        (
            "UPDATE turnkeep_blobs SET size = 99 WHERE namespace = '' AND digest ="
            f" (SELECT digest FROM turnkeep_attachments WHERE {IN_1} AND position = 4)"
        ),
        [("blobs", None, None, "has 100 bytes, and says 99")],
    ),
    "a blob of nobody's": (
        (
            "DELETE FROM turnkeep_attachments WHERE namespace = '' AND digest ="
            f" (SELECT digest FROM turnkeep_attachments WHERE {IN_1} AND position = 4)"
        ),
        [
            ("blobs", None, None, "no attachment names it"),
            ("entries", "s1", 2, "has 1 of its 2 attachments"),
            ("entries", "s1", 4, "has 0 of its 1 attachments"),
        ],
    ),
}


def as_told(finding: Finding) -> tuple[object, ...]:
    return (finding.table, finding.session or "", finding.position or 0, finding.reason)


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_damage_is_found_where_it_is_and_nothing_else(
    server_or_file: Backend, damage: str, small: None
) -> None:
    statement, wanted = DAMAGE[damage]
    store = server_or_file.store()
    fill(store)
    raw(store, statement)
    before = counts(store)
    findings = sorted(verified(store), key=as_told)
    assert [(f.table, f.session, f.position) for f in findings] == [w[:3] for w in wanted]
    for finding, (*_, reason) in zip(findings, wanted, strict=True):
        assert finding.reason.startswith(reason)
    assert verified(store.with_namespace("other")) == []
    assert counts(store) == before


@pytest.mark.parametrize(
    ("stored", "error"),
    [("x'7bff7d'", "position 1"), ("CAST(x'7bff7d' AS TEXT)", "turnkeep db verify")],
)
def test_text_that_is_no_utf8_is_a_finding(sqlite_url: URL, stored: str, error: str) -> None:
    with SQLStore(sqlite_url) as store:
        fill(store)
        raw(store, f"UPDATE turnkeep_entries SET payload = {stored} WHERE {IN_1} AND position = 1")
        [finding] = verified(store)
        assert (finding.position, finding.reason) == (1, "its payload is no text in UTF-8")
        with pytest.raises(TurnkeepError, match=error) as failure:
            store.read("s1")
        assert failure.value.__context__ is None or failure.value.__suppress_context__


IN_TEXT = {
    "sessions": ("cwd", "title", "model", "created_at", "updated_at", "last_recorded_at"),
    "entries": ("type", "recorded_at", "idempotency_key"),
    "attachments": ("path", "mime", "filename"),
}


@pytest.mark.parametrize("value", ["CAST(x'61ff' AS TEXT)", "x'61'"])
@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column) for table, columns in IN_TEXT.items() for column in columns],
)
def test_what_is_no_text_in_a_column_of_texts_is_a_finding(
    sqlite_url: URL, table: str, column: str, value: str
) -> None:
    with SQLStore(sqlite_url) as store:
        fill(store)
        where = (
            IN_1.replace("session_id", "id") if table == "sessions" else f"{IN_1} AND position = 2"
        )
        raw(store, f"UPDATE turnkeep_{table} SET {column} = {value} WHERE {where}")
        # The place of an attachment is looked at where its entry is.
        wanted = "entries" if column == "path" else table
        assert (wanted, "s1") in {(f.table, f.session) for f in verified(store)}


EMPTY = [
    "UPDATE turnkeep_sessions SET id = '' WHERE id = 's2'",
    "UPDATE turnkeep_entries SET session_id = '', position = position - 3 WHERE session_id = 's2'",
    (
        "UPDATE turnkeep_attachments SET session_id = '', position = -7, ordinal = -7"
        " WHERE session_id = 's2'"
    ),
    (
        "INSERT INTO turnkeep_blobs (namespace, digest, size, data)"
        " VALUES ('', :nothing, 0, :nothing)"
    ),
]


def test_what_sorts_before_all_else_is_looked_at_too(backend: Backend, small: None) -> None:
    """An empty id, a position below 0, and an empty digest, which is an orphan as any other."""
    store = backend.store()
    fill(store)
    for statement in EMPTY:
        raw(store, statement, **({"nothing": b""} if ":nothing" in statement else {}))
    found = {(f.table, f.session, f.position, f.digest) for f in verified(store)}
    [digest] = {f.digest for f in verified(store) if f.table == "attachments"}
    assert found == {
        ("sessions", "", None, None),
        ("entries", "", -3, None),
        ("entries", "", -2, None),
        ("attachments", "", -7, digest),
        ("blobs", None, None, ""),
    }
    assert store.collect_orphans() == Orphans(attachments=1, blobs=1, bytes=0)
    assert {f.table for f in verified(store)} == {"sessions", "entries"}


ODD = ["CAST(x'ff' AS TEXT)", "x'ff'", "x'61'", "'a'", "-5", "1.5", "''"]
COLUMNS = [
    (table, column)
    for table in TABLES
    for column in table.columns.keys()  # noqa: SIM118 (no dict)
    if column != "namespace"
]


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{t}.{c}" for t, c in COLUMNS])
def test_whatever_a_column_holds_all_rows_are_looked_at(
    sqlite_url: URL, table: Table, column: str, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes any value for any column, and its driver no text that is no UTF-8. In a key it
    is a finding, wherever it sorts to.
    """
    monkeypatch.setattr(Sqlite, "turn", 0.0)
    name = table.name.removeprefix("turnkeep_")
    key = "id" if table is sessions else "digest" if table is blobs else "session_id"
    is_key = column in table.primary_key
    damages = ["a payload", "another size", "another title", "an attachment missing"]
    wanted = {(place[0], place[2]) for damage in damages for place in DAMAGE[damage][1]}
    one = f"SELECT rowid FROM {table} WHERE namespace = '' ORDER BY {key} DESC, 1 DESC LIMIT 1"
    with SQLStore(sqlite_url) as store:
        for value in ODD:
            fill(store)
            for damage in damages:
                raw(store, DAMAGE[damage][0])
            before = verified(store)
            raw(store, f"UPDATE {table} SET {column} = {value} WHERE rowid = ({one})")
            found = verified(store)
            assert {(f.table, f.position) for f in found} >= wanted
            if is_key and (column, value) != ("ordinal", "-5"):
                assert name in {f.table for f in {*found} - {*before}}
            store.collect_orphans()
            verified(store)
            for each in TABLES:
                raw(store, f"DELETE FROM {each}")


LONG = "n" * 300
NO_NAMES = {"blob": "x'61'", "no UTF-8": "CAST(x'61ff' AS TEXT)", "long": f"'{LONG}'"}


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_namespace_that_can_be_none_is_a_finding_and_the_others_are_looked_at(
    server_or_file: Backend, name: str
) -> None:
    if server_or_file.is_postgres and name != "long":
        return
    store = server_or_file.store()
    fill(store)
    store.with_namespace("z").append("s", header("s"))
    damage = "attachments SET namespace = {} WHERE session_id = 's2'"
    raw(store, f"UPDATE turnkeep_{damage}".format(NO_NAMES[name]))
    assert store.namespaces() == ["", "other", "z"]
    names, [finding] = store._runner.run(verification.survey())
    assert names == store.namespaces()
    assert str(finding).startswith("attachments: its namespace ")
    url = server_or_file.url.render_as_string(hide_password=False)
    runner = CliRunner()
    failed = runner.invoke(cli, ["db", "--url", url, "verify"])
    assert failed.exit_code == 1
    assert failed.stdout.startswith(f"{finding}\nnamespace '': ")
    collected = runner.invoke(cli, ["db", "--url", url, "collect-orphans"])
    assert collected.exit_code == 0
    assert collected.stdout.startswith(f"left: {finding}\nnamespace ''")
    assert "namespace 'z'" in collected.stdout

    async def ask() -> list[str]:
        async with AsyncSQLStore(server_or_file.url, migrate=False) as waiting:
            return await waiting.namespaces()

    assert asyncio.run(ask()) == names


def test_all_findings_are_told_however_many_they_are(backend: Backend) -> None:
    store = backend.store()
    store.append("s1", header("s1"))
    many = 2 * AT_ONCE
    store.extend("s1", [said(str(i)) for i in range(many)])
    raw(store, "UPDATE turnkeep_entries SET payload = 'x' WHERE position > 0")
    findings = verified(store)
    assert [finding.position for finding in findings] == list(range(1, many + 1))


def test_progress_counts_every_row(backend: Backend, small: None) -> None:
    store = backend.store()
    fill(store)
    seen: list[int] = []
    assert list(store.verify(progress=seen.append)) == []
    assert seen == sorted(seen)
    # Two sessions, seven entries, four attachments, two blobs.
    assert seen[-1] == 2 + 7 + 4 + 2


def test_a_session_that_is_begun_anew_in_between_is_no_finding(
    backend: Backend, small: None
) -> None:
    """Between any two portions: what was read of the old session is not held against the new."""
    store = backend.store()
    numbers = iter(range(1000))
    times = ["2026-11-30T12:00:00Z", "2025-11-30T12:00:00Z"]

    def anew(_: int = 0) -> None:
        number = next(numbers)
        for id in ("s0", "s1", "s2"):
            store.delete(id)
            store.append(id, header(id, title=str(number)))
            entries = [said(str(i), A, recorded_at=times[number % 2]) for i in range(number % 7)]
            store.extend(id, entries)

    for _ in range(7):
        anew()
        assert list(store.verify(progress=anew)) == []


def test_a_portion_is_of_one_state(
    server_or_file: Backend, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its rows and what they are judged by, the session is begun anew."""
    store, other = server_or_file.store(), server_or_file.store()
    make = sql_verify.EntryRow
    numbers = iter(range(1000))

    def anew(*row: object) -> object:
        number = next(numbers)
        other.delete("s1")
        time = f"{2026 - number % 2}-11-30T12:00:00Z"
        other.extend("s1", [header("s1"), *(said(str(i), recorded_at=time) for i in range(5))])
        return make(*row)  # type: ignore[arg-type]

    monkeypatch.setattr(sql_verify, "EntryRow", anew)
    for _ in range(3):
        anew(*make._fields)
        assert list(store.verify()) == []


def test_an_orphan_that_is_being_used_again_is_left(postgres_url: URL) -> None:
    engine = create_engine(postgres_url)
    with SQLStore(postgres_url, migrate=True) as store, engine.connect() as connection:
        store.extend("s1", [header("s1"), said("a", A), said("b", B)])
        raw(store, "DELETE FROM turnkeep_attachments")
        raw(store, "DELETE FROM turnkeep_entries")
        raw(store, "DELETE FROM turnkeep_sessions")
        store.using(connection).extend("s2", [header("s2"), said("again", A)])
        collecting = threading.Thread(target=lambda: found.append(store.collect_orphans()))
        found: list[Orphans] = []
        collecting.start()
        wait_for(lambda: bool(waiting(store)), "nobody waits")
        connection.commit()
        collecting.join()
        assert found == [Orphans(0, 1, 100)]
        assert store.read("s2")[1] == said("again", A)
        assert verified(store) == []
    engine.dispose()


def waiting(store: SQLStore) -> list[object]:
    return raw(store, "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


def test_beside_writers_there_is_no_finding(server_or_file: Backend, small: None) -> None:
    store = server_or_file.store()
    fill(store)
    end = threading.Event()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            while not end.is_set():
                id = f"s{number}"
                store.delete(id)
                store.append(id, header(id))
                store.extend(id, [said("a", A), said("b", B, C)])
                store.append(id, said("c", C, recorded_at="2026-11-30T12:00:00Z"))
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            failures.append(error)

    writers = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for writer in writers:
        writer.start()
    try:
        rounds = [list(store.verify()) for _ in range(20)]
    finally:
        end.set()
        for writer in writers:
            writer.join()
    assert failures == []
    assert rounds == [[]] * 20
    assert verified(store) == []


def test_orphans_are_removed_when_asked_and_nothing_else(backend: Backend, small: None) -> None:
    store = backend.store()
    fill(store)
    sound = counts(store)
    kept = store.read("s1")
    assert store.collect_orphans() == Orphans(0, 0, 0)
    assert counts(store) == sound
    store.extend("s3", [header("s3"), *(said(str(i), bytes([i]) * 10, A) for i in range(5))])
    raw(store, "DELETE FROM turnkeep_sessions WHERE id = 's3'")
    raw(store, "DELETE FROM turnkeep_entries WHERE session_id = 's3'")
    other = store.with_namespace("other")
    assert len(verified(store)) == 10
    assert other.collect_orphans() == Orphans(0, 0, 0)
    # Five blobs of its own, which the next step finds, since nothing names them any more.
    assert store.collect_orphans() == Orphans(attachments=10, blobs=5, bytes=50)
    assert verified(store) == []
    assert counts(store) == sound
    assert store.read("s1") == kept


def test_namespaces_are_those_with_a_row_in_any_table(backend: Backend) -> None:
    store = backend.store()
    assert store.namespaces() == []
    names = ["", "A", "a", "a b", "z", "é", "\U0001f600"]
    for name in reversed(names):
        store.with_namespace(name).extend("s", [header("s"), said("x", A)])
    assert store.namespaces() == names
    for table, name in [("sessions", "A"), ("entries", "a"), ("attachments", "z")]:
        # What is left of this namespace is in the other tables.
        raw(store, f"DELETE FROM turnkeep_{table} WHERE namespace = '{name}'")
    for table in ("sessions", "entries", "attachments"):
        raw(store, f"DELETE FROM turnkeep_{table} WHERE namespace = 'é'")
    assert store.namespaces() == names
    raw(store, "DELETE FROM turnkeep_blobs WHERE namespace = 'é'")
    assert store.namespaces() == [name for name in names if name != "é"]


def test_the_async_store_finds_and_mends_the_same(server_or_file: Backend, small: None) -> None:
    store = server_or_file.store()
    fill(store)
    raw(store, "DELETE FROM turnkeep_attachments WHERE session_id = 's2'")
    raw(store, "UPDATE turnkeep_blobs SET size = 7 WHERE namespace = 'other'")
    raw(store, "DELETE FROM turnkeep_sessions WHERE namespace = 'other'")

    async def look() -> None:
        async with AsyncSQLStore(server_or_file.url, migrate=False) as waiting:
            assert await waiting.namespaces() == ["", "other"]
            for name in ("", "other"):
                seen: list[int] = []
                there = waiting.with_namespace(name)
                findings = [finding async for finding in there.verify(progress=seen.append)]
                assert findings == verified(store.with_namespace(name))
                assert findings
                assert seen
            raw(store, "DELETE FROM turnkeep_attachments WHERE session_id = 's1'")
            assert await waiting.collect_orphans() == Orphans(0, 2, 200)
            assert await waiting.collect_orphans() == Orphans(0, 0, 0)

    asyncio.run(look())


def test_an_end_in_the_middle_leaves_no_connection_out(
    server_or_file: Backend, small: None
) -> None:
    store = server_or_file.store()
    fill(store)
    raw(store, "UPDATE turnkeep_entries SET payload = 'x'")
    findings = store.verify()
    next(findings)
    assert in_use(store) == 0
    del findings


def test_a_message_is_not_told_in_a_finding() -> None:
    entry = MessageEntry({"role": "user", "content": SECRET})
    row = sql_verify.EntryRow("s", 3, "message", None, 2, entry.payload + "x", None, False, None)
    found = sql_verify.EntryRows([row], 0, "")
    findings = list(verification._judge_entries(found))
    assert len(findings) == 3
    assert SECRET not in repr(findings)
