"""The way of a database to this version's tables: by many at once, past what others keep there, and
back.
"""

import asyncio
import logging
import multiprocessing
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import op
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, text

import migrating
from conftest import ALSO_POOLED, Backend
from contention import together
from migrating import ADD_COLUMN, FAIL, HANG, HEAD, REBUILD, begin, contents, tables, with_revision
from roles import Roles
from servers import postgres_from_debian, wait_for
from turnkeep import (
    InvalidArgument,
    MessageEntry,
    SchemaError,
    SQLStore,
    Unavailable,
    revisions,
    schema,
)
from turnkeep.tables import metadata

WORKERS = 8
OURS = {*metadata.tables, "turnkeep_version"}


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Processes which begin each call together."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=spawn,
        initializer=migrating.enlist,
        initargs=(spawn.Barrier(WORKERS),),
    ) as pool:
        yield pool


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The revisions of a later version, which adds a column."""
    return with_revision(
        tmp_path / "later", ADD_COLUMN, 'op.drop_column("turnkeep_sessions", "extra")'
    )


def results(futures: list[Future[Any]]) -> list[Any]:
    return [future.result(migrating.WAIT_SECONDS) for future in futures]


def host_engine(backend: Backend) -> Engine:
    """An engine of the host's; that of a database in memory is the one that it has."""
    return backend._shared or backend.engine()


def looked_at(backend: Backend, look: Callable[[Connection], Any] = contents) -> Any:
    """What *look* finds through an engine of the host's."""
    with host_engine(backend).connect() as connection:
        return look(connection)


def execute(backend: Backend, *statements: str) -> None:
    with host_engine(backend).begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


# Many at once


@ALSO_POOLED
@pytest.mark.parametrize("at_first", ["empty", "behind"])
def test_processes_upgrade_one_database_at_once(
    server_or_file: Backend, processes: ProcessPoolExecutor, later: Path, at_first: str
) -> None:
    if at_first == "behind":
        begin(server_or_file.store())
    calls = [processes.submit(migrating.upgrade, server_or_file.url, later) for _ in range(WORKERS)]
    assert results(calls) == ["later"] * WORKERS
    found = looked_at(server_or_file)
    assert {*found} == OURS
    assert found["turnkeep_version"][1] == ["('later',)"]
    assert len(found["turnkeep_entries"][1]) == (2 if at_first == "behind" else 0)


@ALSO_POOLED
def test_processes_use_one_empty_database_at_once(
    server_or_file: Backend, processes: ProcessPoolExecutor
) -> None:
    calls = [processes.submit(migrating.use, server_or_file.url, i) for i in range(WORKERS)]
    assert results(calls) == [1] * WORKERS
    store = server_or_file.store(migrate=False)
    assert {header.id for header in store.list()} == {f"s{i}" for i in range(WORKERS)}
    if not server_or_file.is_postgres:
        mode = looked_at(server_or_file, lambda c: c.scalar(text("PRAGMA journal_mode")))
        assert mode == "wal"


def test_processes_go_on_when_the_one_that_migrates_is_killed(
    server_or_file: Backend, processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    hanging = with_revision(tmp_path / "hanging", HANG)
    spawn = multiprocessing.get_context("spawn")
    first = spawn.Process(target=migrating.hang, args=(server_or_file.url, hanging))
    first.start()
    try:
        wait_for((hanging / "versions" / "holds").exists, "no migration began")
        folder = revisions.migrations()
        calls = [
            processes.submit(migrating.upgrade, server_or_file.url, folder) for _ in range(WORKERS)
        ]
        if server_or_file.is_postgres:
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_for(
                lambda: looked_at(server_or_file, lambda c: c.scalar(text(waits))) == WORKERS,
                "not all wait for the lock",
            )
        assert not any(call.done() for call in calls)
    finally:
        first.kill()
        first.join()
    assert results(calls) == [HEAD] * WORKERS
    assert {*looked_at(server_or_file)} == OURS


def test_threads_upgrade_one_database_at_once(backend: Backend) -> None:
    store = backend.store(migrate=False)
    others = [backend.store(migrate=False) for _ in range(WORKERS // 2)]
    upgrades = [each.upgrade for each in (*others, *[store] * (WORKERS // 2))]
    assert together(*upgrades) == [None] * WORKERS
    assert store.revision() == HEAD
    begin(store)


def test_threads_upgrade_databases_of_their_own_at_once(tmp_path: Path) -> None:
    stores = [SQLStore(f"sqlite:///{tmp_path / str(i)}.db") for i in range(WORKERS)]
    assert together(*[store.upgrade for store in stores]) == [None] * WORKERS
    for store in stores:
        assert begin(store) == 1
        store.close()


def test_a_lock_that_stays_held_makes_the_database_unavailable(server_or_file: Backend) -> None:
    take = "BEGIN IMMEDIATE"
    if server_or_file.is_postgres:
        take = f"SELECT pg_advisory_lock({0x7475726E6B656570})"
    store = server_or_file.store(migrate=False, timeout=0.1)
    assert store.revision() is None  # has made the file
    engine = server_or_file.engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as holder:
        holder.execute(text(take))
        with pytest.raises(Unavailable, match="lock"):
            store.upgrade()
    engine.dispose()
    store.upgrade()


# The tables are what the models say


def test_the_migrations_make_what_the_models_say(server_or_file: Backend) -> None:
    server_or_file.store()
    execute(server_or_file, "CREATE TABLE sessions (id INTEGER)")

    def differences(connection: Connection) -> Any:
        options = {"include_name": schema.only_turnkeep, "version_table": "turnkeep_version"}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    assert looked_at(server_or_file, differences) == []


def test_the_migrations_make_what_a_sqlite_of_the_models_has(
    sqlite_url: URL, tmp_path: Path
) -> None:
    def statements(engine: Engine) -> set[str]:
        with engine.connect() as connection:
            found = connection.scalars(
                text("SELECT sql FROM sqlite_master WHERE tbl_name <> 'turnkeep_version'")
            )
            return {" ".join(sql.split()) for sql in found if sql is not None}

    migrated, made = create_engine(sqlite_url), create_engine(f"sqlite:///{tmp_path / 'made.db'}")
    SQLStore(migrated).upgrade()
    metadata.create_all(made)
    found = statements(made)
    assert statements(migrated) == found
    assert len(found) == len(metadata.tables) + 4
    assert sum("WHERE idempotency_key IS NOT NULL" in sql for sql in found) == 1
    for engine in (migrated, made):
        engine.dispose()


# What of columns, indexes and constraints no autogenerate compares.
CATALOG = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, l.collname
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  LEFT JOIN pg_collation l ON l.oid = a.attcollation
  WHERE c.relnamespace = to_regnamespace(:schema) AND c.relkind = 'r' AND a.attnum > 0
    AND c.relname <> 'turnkeep_version'
UNION ALL
SELECT tablename, indexname, replace(indexdef, schemaname, ''), NULL, NULL
  FROM pg_indexes WHERE schemaname = :schema AND tablename <> 'turnkeep_version'
UNION ALL
SELECT conrelid::regclass::text, conname, replace(pg_get_constraintdef(oid), :schema, ''),
    convalidated, NULL
  FROM pg_constraint WHERE connamespace = to_regnamespace(:schema) AND contype <> 'n'
    AND conname <> 'turnkeep_version_pkc'
"""


def test_the_migrations_make_what_a_postgres_of_the_models_has(postgres_url: URL) -> None:
    engine = create_engine(postgres_url)
    SQLStore(engine, schema="migrated").upgrade()
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA made"))
    made = engine.execution_options(schema_translate_map={None: "made"})
    metadata.create_all(made)

    def catalog(name: str) -> set[Any]:
        with engine.connect() as connection:
            rows = connection.execute(text(CATALOG), {"schema": name}).all()
        return {(str(row[0]).removeprefix(f"{name}."), *row[1:]) for row in rows}

    found = catalog("made")
    assert catalog("migrated") == found
    collations = {row[:2]: row[4] for row in found}
    for table, column in [
        ("turnkeep_sessions", "id"),
        ("turnkeep_entries", "idempotency_key"),
        ("turnkeep_attachments", "namespace"),
    ]:
        assert collations[table, column] == "C"
    keys = [row[2] for row in found if row[1] == "turnkeep_entries_key"]
    assert len(keys) == 1
    assert keys[0].startswith("CREATE UNIQUE INDEX")
    assert keys[0].endswith("WHERE (idempotency_key IS NOT NULL)")
    engine.dispose()


STORAGE = """
SELECT attname, attstorage::text, attcompression::text FROM pg_attribute
  WHERE attrelid = cast(:table AS regclass) AND attname IN ('data', 'payload')
"""


def storage(url: URL, schema: str = "public") -> list[tuple[str, str, str]]:
    """How blobs and payloads are stored."""
    engine = create_engine(url)
    quoted = engine.dialect.identifier_preparer.quote(schema).replace("%%", "%")
    with engine.connect() as connection:
        found = [
            tuple(row)
            for table in ("turnkeep_blobs", "turnkeep_entries")
            for row in connection.execute(text(STORAGE), {"table": f"{quoted}.{table}"})
        ]
    engine.dispose()
    return found


def test_blobs_are_stored_as_they_are(postgres_url: URL) -> None:
    with SQLStore(postgres_url) as store:
        store.upgrade()
    assert storage(postgres_url) == [("data", "e", ""), ("payload", "x", "")]


def test_payloads_are_compressed_by_lz4_where_it_is_built_in() -> None:
    with postgres_from_debian() as server:
        url = server.create_database("app")
        with SQLStore(url) as store:
            store.upgrade()
            begin(store)
        assert storage(url) == [("data", "e", ""), ("payload", "x", "l")]


# Older, newer, empty


def test_an_empty_database_is_refused_and_stays_empty(backend: Backend) -> None:
    if backend.is_memory:
        store = SQLStore(backend.url, migrate=False)
        engine = store._database.engine
    else:
        store, engine = backend.store(migrate=False), backend.engine()
    with pytest.raises(SchemaError, match=f"no turnkeep tables.*{HEAD}.*db upgrade"):
        store.list()
    with engine.connect() as connection:
        with pytest.raises(SchemaError, match=HEAD):
            begin(store.using(connection))
        assert tables(connection) == set()
    assert store.revision() is None
    store.close()


def test_a_newer_database_is_refused_and_left_as_it_is(backend: Backend) -> None:
    begin(backend.store())
    execute(backend, "UPDATE turnkeep_version SET version_num = 'ffffffffffff'")
    before = looked_at(backend)
    message = f"ffffffffffff.*{HEAD}.*upgrade the package"
    for migrate in (None, True, False):
        with SQLStore(backend._shared or backend.url, migrate=migrate) as store:
            with pytest.raises(SchemaError, match=message):
                store.append("s", MessageEntry({"role": "user", "content": "more"}))
            with pytest.raises(SchemaError, match=message):
                store.upgrade()
            with (
                host_engine(backend).connect() as connection,
                pytest.raises(SchemaError, match=message),
            ):
                store.using(connection).delete("s")
            assert store.revision() == "ffffffffffff"
    assert looked_at(backend) == before


def test_an_older_database_is_refused_until_it_is_upgraded(
    backend: Backend, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = backend.store()
    begin(old)
    before = old.read("s")
    monkeypatch.setattr(revisions, "migrations", lambda: later)
    store = backend.store(migrate=False)
    message = f"revision {HEAD}.*needs later.*db upgrade"
    with pytest.raises(SchemaError, match=message):
        store.read("s")
    with (
        host_engine(backend).connect() as connection,
        pytest.raises(SchemaError, match=message),
    ):
        store.using(connection).read("s")
    assert "extra" not in str(looked_at(backend)["turnkeep_sessions"])
    store.upgrade()
    assert store.revision() == "later"
    assert "extra" in str(looked_at(backend)["turnkeep_sessions"])
    assert store.read("s") == before
    assert store.append("s", MessageEntry({"role": "user", "content": "more"})) == 2


def test_a_store_that_may_migrate_upgrades_an_older_database_at_first_use(
    server_or_file: Backend, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(server_or_file.store())
    monkeypatch.setattr(revisions, "migrations", lambda: later)
    store = server_or_file.store(migrate=True)
    assert [header.id for header in store.list()] == ["s"]
    assert store.revision() == "later"


def test_a_version_table_of_several_rows_is_refused(backend: Backend) -> None:
    backend.store()
    execute(backend, "INSERT INTO turnkeep_version VALUES ('0000')")
    with pytest.raises(SchemaError, match="turnkeep_version has 2 rows"):
        backend.store(migrate=False).list()


# What others keep there


FOREIGN = ["sessions", "entries", "users", "alembic_version"]


def test_the_tables_of_others_are_neither_touched_nor_read(server_or_file: Backend) -> None:
    for name in FOREIGN:
        execute(
            server_or_file,
            f"CREATE TABLE {name} (version_num TEXT)",
            f"INSERT INTO {name} VALUES ('theirs')",
        )
    before = looked_at(server_or_file)
    statements: list[str] = []
    engine = server_or_file.engine()
    if server_or_file.is_postgres:
        user = "reads_no_foreign_table"
        execute(
            server_or_file,
            f"DROP ROLE IF EXISTS {user}",
            f"CREATE ROLE {user} LOGIN PASSWORD 'p'",
            f"GRANT ALL ON SCHEMA public TO {user}",
        )
        engine = create_engine(server_or_file.url.set(username=user, password="p"))
        with engine.connect() as connection, pytest.raises(Exception, match="denied"):
            connection.execute(text("SELECT * FROM sessions"))
    else:
        event.listen(engine, "connect", forbid_foreign_tables)
        with engine.connect() as connection, pytest.raises(Exception, match="prohibited"):
            connection.execute(text("SELECT * FROM sessions"))
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    store = SQLStore(engine, migrate=True)
    begin(store)
    assert [header.id for header in store.list()] == ["s"]
    assert store.delete("s")
    assert any("turnkeep_sessions" in statement for statement in statements)
    found = looked_at(server_or_file)
    assert {name: found[name] for name in FOREIGN} == before
    assert {*found} == {*FOREIGN, *OURS}
    engine.dispose()
    if server_or_file.is_postgres:
        execute(server_or_file, f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def forbid_foreign_tables(connection: Any, _: object) -> None:
    import sqlite3

    def judge(_: int, table: str | None, *__: object) -> int:
        return sqlite3.SQLITE_DENY if table in FOREIGN else sqlite3.SQLITE_OK

    connection.set_authorizer(judge)


@pytest.mark.parametrize("name", ["turnkeep_sessions", "turnkeep_attachments"])
@pytest.mark.parametrize("kind", ["TABLE {} (id INTEGER)", "VIEW {} AS SELECT 1 AS id"])
def test_a_foreign_table_of_our_name_is_never_adopted(
    server_or_file: Backend, name: str, kind: str
) -> None:
    execute(server_or_file, f"CREATE {kind.format(name)}")
    before = looked_at(server_or_file)
    for store in (server_or_file.store(migrate=False), server_or_file.store(migrate=True)):
        with pytest.raises(SchemaError, match=f"{name}.*no migration"):
            store.upgrade()
        with pytest.raises(SchemaError):
            begin(store)
    assert looked_at(server_or_file) == before


def test_a_foreign_version_table_of_our_name_is_a_schema_error(server_or_file: Backend) -> None:
    execute(server_or_file, "CREATE TABLE turnkeep_version (id INTEGER)")
    before = looked_at(server_or_file)
    for store in (server_or_file.store(migrate=False), server_or_file.store(migrate=True)):
        with pytest.raises(SchemaError):
            store.upgrade()
        with pytest.raises(SchemaError):
            store.list()
    assert looked_at(server_or_file) == before


def test_the_surroundings_stay_as_they_are(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    logging.getLogger("host.quiet").disabled = True
    logging.getLogger("host").setLevel(logging.ERROR)

    def surroundings() -> Any:
        loggers = [logging.getLogger(), *map(logging.getLogger, ["host", "host.quiet", "alembic"])]
        state = [
            (each.name, each.level, each.disabled, each.propagate, [*each.handlers])
            for each in loggers
        ]
        return state, logging.root.manager.disable, Path.cwd(), [*sys.path], dict(os.environ)

    before = surroundings()
    begin(server_or_file.store())
    assert surroundings() == before


# Schemas, roles and rights


NAMES = ['we"ird %x', "Ünï", "select", "a:b.c", "%(x)s", "$turnkeep$ ' \\", "x" * 63]


@pytest.mark.parametrize("name", NAMES)
def test_all_lies_in_the_schema_that_is_named(postgres_url: URL, name: str) -> None:
    with SQLStore(postgres_url, schema=name) as store, SQLStore(postgres_url) as plain:
        with pytest.raises(SchemaError, match="no turnkeep tables"):
            store.list()
        store.upgrade()
        assert store.revision() == HEAD
        picture = {"role": "user", "files": [{"media_type": "image/png", "data": "aGVsbG8="}]}
        entries = [MessageEntry(picture), MessageEntry({"role": "user", "content": "more"})]
        begin(store)
        assert store.extend("s", entries, idempotency_keys=["a", "b"]) == 3
        assert store.append("s", entries[1], idempotency_key="b") == 3
        assert store.read("s")[2:] == entries
        assert store.tail("s", 1) == entries[1:]
        assert store.page("s", limit=1).next_after == 0
        assert [header.id for header in store.list("/w", limit=1)] == ["s"]
        assert len(store.attachments("s")) == 1
        assert store.delete("s")
        assert plain.revision() is None
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        assert tables(connection, name) == OURS
        assert tables(connection) == set()
    engine.dispose()
    assert [row[1] for row in storage(postgres_url, name)] == ["e", "x"]


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32, "", "a\0b", "\ud800", "a[b", "a]b", "pg_x"])
def test_a_schema_that_none_can_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^schema: "):
        SQLStore("postgresql://user@nohost.invalid/app", schema=name)


def test_a_schema_is_refused_where_there_are_none(sqlite_url: URL) -> None:
    with pytest.raises(InvalidArgument, match="SQLite has no schemas"):
        SQLStore(sqlite_url, schema="x")


def test_schemas_lie_side_by_side(postgres_url: URL) -> None:
    engine = create_engine(postgres_url)
    stores = [SQLStore(engine, schema=name) for name in (None, "one", "two")]
    for number, store in enumerate(stores):
        assert [each.revision() for each in stores] == [HEAD] * number + [None] * (3 - number)
        store.upgrade()
        begin(store, f"s{number}")
    assert [[h.id for h in store.list()] for store in stores] == [["s0"], ["s1"], ["s2"]]
    with engine.connect() as connection:
        for name in ("public", "one", "two"):
            assert tables(connection, name) == OURS
    engine.dispose()


def test_a_schema_that_is_there_needs_no_right_to_make_one(roles: Roles) -> None:
    roles.run("CREATE SCHEMA given")
    url = roles.add("p", "GRANT ALL ON SCHEMA given TO {}")
    with SQLStore(url, schema="given") as store:
        store.upgrade()
        assert begin(store) == 1
    with SQLStore(url, schema="missing") as store:
        with pytest.raises(Unavailable, match=r"lacks a right.*42501"):
            store.upgrade()
        assert store.revision() is None


def test_missing_rights_are_a_typed_error(roles: Roles) -> None:
    with SQLStore(roles.add()) as store:
        with pytest.raises(Unavailable, match=r"lacks a right.*42501"):
            store.upgrade()
        with pytest.raises(SchemaError, match="no turnkeep tables"):
            store.list()


def test_the_search_path_of_a_role_says_where_the_tables_lie(roles: Roles) -> None:
    urls = []
    for name in ("mine", "yours"):
        roles.run(f"CREATE SCHEMA {name}")
        path = f"ALTER ROLE {{}} SET search_path = {name}, public"
        urls.append(roles.add("p", f"GRANT ALL ON SCHEMA {name} TO {{}}", path))
    for number, url in enumerate(urls):
        with SQLStore(url) as store:
            assert store.revision() is None
            store.upgrade()
            begin(store, f"s{number}")
            assert [header.id for header in store.list()] == [f"s{number}"]
    engine = create_engine(urls[0])
    with engine.connect() as connection:
        assert tables(connection, "mine") == tables(connection, "yours") == OURS
        assert tables(connection, "public") == set()
    engine.dispose()


def test_a_search_path_that_leads_nowhere_is_a_schema_error(roles: Roles) -> None:
    with (
        SQLStore(roles.add("p", "ALTER ROLE {} SET search_path = nowhere")) as store,
        pytest.raises(SchemaError, match="search_path"),
    ):
        store.upgrade()


def test_any_sign_may_be_in_the_password(roles: Roles) -> None:
    url = roles.add("p%40s@w:/#%(x)s ?&=+'\"\\ü", "GRANT ALL ON SCHEMA public TO {}")
    for given in (url, url.render_as_string(hide_password=False)):
        with SQLStore(given) as store:
            store.upgrade()
            assert store.revision() == HEAD


# Inside other things that run


def test_an_upgrade_works_inside_a_running_event_loop(server_or_file: Backend) -> None:
    async def main() -> int:
        return begin(server_or_file.store())

    assert asyncio.run(main()) == 1


def test_a_migration_of_somebody_elses_is_not_disturbed(backend: Backend) -> None:
    with host_engine(backend).connect() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            store = backend.store(migrate=False)
            with pytest.raises(SchemaError, match="upgrade_in_host"):
                store.upgrade()
            assert op.get_context() is context
    assert store.revision() in (None, HEAD if backend.is_memory else None)
    store.upgrade()


def test_a_first_use_inside_a_migration_of_somebody_elses_says_so_at_once(sqlite_url: URL) -> None:
    engine = create_engine(sqlite_url)
    with engine.connect() as connection, SQLStore(sqlite_url) as store:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # what an upgrade would wait for
        with (
            Operations.context(MigrationContext.configure(connection)),
            pytest.raises(SchemaError, match="a migration is running"),
        ):
            store.list()
        connection.exec_driver_sql("ROLLBACK")
        assert store.list() == []
    engine.dispose()


def test_a_migration_that_failed_is_no_running_one(backend: Backend) -> None:
    def fail() -> None:
        with (
            host_engine(backend).connect() as connection,
            Operations.context(MigrationContext.configure(connection)),
        ):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    begin(backend.store())


# A migration as a whole


def test_a_migration_that_fails_leaves_nothing(
    backend: Backend, tmp_path: Path, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = backend.store()
    begin(store)
    before = looked_at(backend)
    failing = with_revision(tmp_path / "failing", FAIL)
    monkeypatch.setattr(revisions, "migrations", lambda: failing)
    with pytest.raises(ZeroDivisionError):
        store.upgrade()
    assert looked_at(backend) == before
    with pytest.raises((NameError, AttributeError)):
        op.get_context()
    monkeypatch.setattr(revisions, "migrations", lambda: later)
    store.upgrade()
    assert store.revision() == "later"


def test_the_first_migration_is_all_or_nothing(
    server_or_file: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = with_revision(tmp_path / "failing", FAIL)
    monkeypatch.setattr(revisions, "migrations", lambda: failing)
    with pytest.raises(ZeroDivisionError):
        server_or_file.store(migrate=False).upgrade()
    assert looked_at(server_or_file, tables) == set()


@pytest.mark.parametrize("enforced", [None, 0, 1])
def test_a_rebuilt_table_takes_nothing_with_it(
    sqlite_url: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enforced: int | None
) -> None:
    """With foreign keys as the store sets them, and as a host leaves them or sets them."""
    target: URL | Engine = sqlite_url
    if enforced is not None:
        target = create_engine(sqlite_url, pool_size=1, max_overflow=0)
        pragma = f"PRAGMA foreign_keys = {enforced}"
        event.listen(target, "connect", lambda connection, _: connection.execute(pragma))
    store = SQLStore(target)
    store.upgrade()
    begin(store)
    before = store.read("s")
    rebuilding = with_revision(tmp_path / "rebuilding", REBUILD)
    monkeypatch.setattr(revisions, "migrations", lambda: rebuilding)
    store.upgrade()
    assert store.read("s") == before
    with store._database.engine.connect() as connection:
        found = connection.scalar(text("PRAGMA foreign_keys"))
        assert found == (1 if enforced is None else enforced)
        assert "extra" in {c["name"] for c in inspect(connection).get_columns("turnkeep_sessions")}
    assert store.append("s", MessageEntry({"role": "user", "content": "more"})) == 2
    store._database.engine.dispose()


def test_a_migration_that_would_leave_a_reference_open_is_undone(
    sqlite_url: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = with_revision(tmp_path / "careless", 'op.execute("DELETE FROM turnkeep_sessions")')
    with SQLStore(sqlite_url) as store:
        begin(store)
        monkeypatch.setattr(revisions, "migrations", lambda: careless)
        with pytest.raises(SchemaError, match="rows of turnkeep_entries"):
            store.upgrade()
        assert len(store.read("s")) == 2
        assert store.revision() == HEAD


def test_down_goes_only_where_nothing_is_lost(backend: Backend) -> None:
    store = backend.store()
    begin(store)
    before = looked_at(backend)

    def go_down(connection: Connection) -> None:
        with Operations.context(MigrationContext.configure(connection)):
            schema.downgrade_in_host()
        connection.commit()

    with pytest.raises(SchemaError, match=r"holds sessions|foreign keys are enforced"):
        looked_at(backend, go_down)
    assert looked_at(backend) == before
    store.delete("s")
    looked_at(backend, go_down)
    assert looked_at(backend, tables) == set()
    store.upgrade()
    assert begin(store) == 1


@pytest.mark.parametrize("journal", ["wal", "delete"])
@pytest.mark.parametrize("how", ["mode=ro", "immutable=1"])
def test_a_file_that_may_only_be_read_is_read(sqlite_url: URL, how: str, journal: str) -> None:
    with SQLStore(sqlite_url) as store:
        begin(store)
        written = store.read("s")
    with closing(sqlite3.connect(str(sqlite_url.database))) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
    with SQLStore(f"sqlite:///file:{sqlite_url.database}?{how}&uri=true") as store:
        assert store.read("s") == written
        assert [header.id for header in store.list()] == ["s"]
        with pytest.raises(Unavailable, match="may only be read"):
            store.append("s", MessageEntry({"role": "user", "content": "more"}))
        store.upgrade()
        assert store.revision() == HEAD
