"""The rights of three roles: each may do what it is for, and nothing else, by the text that the
command line prints and the docs show.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import op
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from click.testing import CliRunner
from sqlalchemy import URL, create_engine

from contention import header, said
from migrating import ADD_COLUMN, with_revision
from roles import DRIVERS, Roles, connected, dump, printed, refusal, use_in_every_way
from servers import PostgresServer
from turnkeep import (
    InvalidArgument,
    SQLStore,
    Store,
    Unavailable,
    revisions,
    schema,
)
from turnkeep.cli.commands import turnkeep
from turnkeep.dialect import rights
from turnkeep.tables import VERSION_TABLE, metadata
from turnkeep.testing import StoreContract

PAGE = Path(__file__).parents[1] / "docs" / "rights.md"
NAMES = {"owner": "turnkeep_owner", "writer": "turnkeep_writer", "recorder": "turnkeep_recorder"}
TABLES = [*metadata.tables, VERSION_TABLE]
SECRET = "a part of a message"

_numbers = itertools.count()


class Installed:
    """Tables that an owner made, who is nobody special, in a schema of its own or in `public`; and
    a writer and a recorder.
    """

    def __init__(self, roles: Roles, schema: str | None = None) -> None:
        self.roles, self.schema = roles, schema
        number = next(_numbers)
        self.names = {kind: f'{kind} of "{number}" \' %s' for kind in NAMES}
        self.owner, self.writer, self.recorder = (
            roles.add(name=self.names[kind]) for kind in ("owner", "writer", "recorder")
        )
        if schema is not None:
            quoted = '"' + schema.replace('"', '""') + '"'
            roles.run(f"CREATE SCHEMA {quoted}")
        self.grant("owner", by=roles.url)
        with self.store(self.owner) as store:
            store.upgrade()
        self.grant("writer", "recorder")

    def grant(self, *kinds: str, by: URL | None = None) -> None:
        """Run the text that the command line prints for these roles, as the owner."""
        options = [part for kind in kinds for part in (f"--{kind}", self.names[kind])]
        self.roles.grants(*options, schema=self.schema, by=by or self.owner)

    def store(self, by: URL, **options: Any) -> SQLStore:
        return SQLStore(by, schema=self.schema, **options)

    def dump(self) -> dict[str, list[Any]]:
        return dump(self.roles.url, TABLES, self.schema or "public")


@pytest.fixture
def installed(roles: Roles) -> Installed:
    return Installed(roles)


@pytest.fixture(scope="module")
def lasting(postgres: PostgresServer, server_database: URL) -> Iterator[Installed]:
    """For all tests of the module: each takes its own namespace."""
    roles = Roles(server_database)
    yield Installed(roles, 'we"ird %x')
    roles.close()


# What they may


class TestTheWriter(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, lasting: Installed) -> Iterator[None]:
        with lasting.store(lasting.writer) as self.store:
            yield

    def make_store(self) -> Store:
        return self.store.with_namespace(f"writer {next(_numbers)}")


class RecordedByOne:
    """What a recorder writes and reads, and somebody else deletes."""

    def __init__(self, recorder: SQLStore, writer: SQLStore) -> None:
        self.append, self.read, self.list = recorder.append, recorder.read, recorder.list
        self.delete = writer.delete


class TestTheRecorder(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, lasting: Installed) -> Iterator[None]:
        with (
            lasting.store(lasting.recorder) as self.store,
            lasting.store(lasting.writer) as self.by,
        ):
            yield

    def make_store(self) -> Store:
        name = f"recorder {next(_numbers)}"
        return RecordedByOne(self.store.with_namespace(name), self.by.with_namespace(name))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("role", ["writer", "recorder"])
def test_a_role_may_append_and_read_in_every_way(
    installed: Installed, role: str, driver: str, tmp_path: Path
) -> None:
    with DRIVERS[driver](getattr(installed, role)) as store:
        use_in_every_way(store, tmp_path, deletes=role == "writer")
    found = installed.dump()
    left = TABLES if role == "recorder" else [VERSION_TABLE]
    assert [table for table in TABLES if found[table]] == left


def test_a_role_may_join_the_apps_transaction(installed: Installed) -> None:
    engine = create_engine(installed.recorder)
    store = SQLStore(engine)
    with engine.begin() as connection:
        store.using(connection).extend("s", [header("s"), said("x", b"bytes")])
        with pytest.raises(Unavailable, match="lacks a right"):
            store.using(connection).delete("s")
        assert store.using(connection).append("s", said("x", b"bytes")) == 2
    assert store.read("s") == [header("s"), said("x", b"bytes"), said("x", b"bytes")]
    engine.dispose()


def test_the_owner_migrates_and_the_others_go_on(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed.store(installed.writer) as store:
        store.extend("s", [header("s"), said("x")])
    later = with_revision(tmp_path / "later", ADD_COLUMN)
    monkeypatch.setattr(revisions, "migrations", lambda: later)
    for role in (installed.writer, installed.recorder):
        with (
            installed.store(role) as store,
            pytest.raises(Unavailable, match=r"lacks a right.*42501"),
        ):
            store.upgrade()
    with installed.store(installed.owner) as store:
        store.upgrade()
        assert store.revision() == "later"
    for role, position in ((installed.writer, 2), (installed.recorder, 3)):
        with installed.store(role) as store:
            store.upgrade()  # there is nothing to do
            assert store.append("s", said("y", b"bytes")) == position
            store.append("t", header("t"))


def test_the_owner_of_tables_that_another_made_takes_them_over(roles: Roles) -> None:
    """Run as it stands, with three names, on a database that the superuser set up."""
    with SQLStore(roles.url) as store:
        store.upgrade()
        store.append("s", header("s"))
    names = {kind: f"{kind}_{next(_numbers)}" for kind in NAMES}
    owner, writer, _ = (roles.add(name=name) for name in names.values())
    options = [part for kind, name in names.items() for part in (f"--{kind}", name)]
    for _ in range(2):
        roles.grants(*options)
    with SQLStore(owner) as store:
        store.upgrade(row_security=True)
    with SQLStore(writer) as store:
        assert store.delete("s")


# What they may not


DENIED: dict[str, list[str]] = {
    "recorder": [
        *(f"DELETE FROM {table}" for table in TABLES),
        "WITH gone AS (DELETE FROM turnkeep_entries RETURNING 1) SELECT * FROM gone",
        "UPDATE turnkeep_entries SET payload = '{}'",
        "UPDATE turnkeep_entries SET recorded_at = ''",
        "UPDATE turnkeep_entries SET idempotency_key = NULL",
        "UPDATE turnkeep_entries SET attachments = 0",
        "UPDATE turnkeep_attachments SET path = '[]'",
        "UPDATE turnkeep_attachments SET filename = NULL",
        "UPDATE turnkeep_blobs SET data = ''",
        "UPDATE turnkeep_blobs SET size = 0",
        "UPDATE turnkeep_sessions SET title = ''",
        "UPDATE turnkeep_sessions SET cwd = '', last_position = 0",
        "UPDATE turnkeep_sessions SET id = 'x'",
        "SELECT * FROM turnkeep_entries FOR UPDATE",
        "SELECT * FROM turnkeep_blobs FOR KEY SHARE",
        (
            "INSERT INTO turnkeep_entries SELECT * FROM turnkeep_entries"
            " ON CONFLICT (namespace, session_id, position) DO UPDATE SET payload = '{}'"
        ),
        (
            "MERGE INTO turnkeep_sessions t USING turnkeep_sessions s ON t.id = s.id"
            " WHEN MATCHED THEN DELETE"
        ),
        "BEGIN; LOCK TABLE turnkeep_entries IN ACCESS EXCLUSIVE MODE",
    ],
    "writer": [
        "UPDATE turnkeep_entries SET payload = '{}'",
        "UPDATE turnkeep_attachments SET path = '[]'",
        "UPDATE turnkeep_blobs SET data = ''",
        "UPDATE turnkeep_blobs SET digest = ''",
        "UPDATE turnkeep_sessions SET title = ''",
        "UPDATE turnkeep_sessions SET namespace = 'x'",
        "DELETE FROM turnkeep_version",
    ],
    "both": [
        *(f"TRUNCATE {table} CASCADE" for table in TABLES),
        "INSERT INTO turnkeep_version VALUES ('9999')",
        "UPDATE turnkeep_version SET version_num = '9999'",
        "CREATE TABLE turnkeep_more (id int)",
        (
            "CREATE TABLE more (namespace text, id text,"
            " FOREIGN KEY (namespace, id) REFERENCES turnkeep_sessions)"
        ),
        "CREATE VIEW more AS SELECT * FROM turnkeep_entries",
        "CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA more",
        "CREATE INDEX ON turnkeep_entries (type)",
        (
            "CREATE TRIGGER more BEFORE INSERT ON turnkeep_entries FOR EACH ROW"
            " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        ),
        "CREATE RULE more AS ON INSERT TO turnkeep_entries DO INSTEAD NOTHING",
        "CREATE POLICY more ON turnkeep_entries USING (true)",
        "ALTER TABLE turnkeep_entries ADD COLUMN more int",
        "ALTER TABLE turnkeep_entries DISABLE TRIGGER USER",
        "ALTER TABLE turnkeep_entries DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE turnkeep_entries OWNER TO CURRENT_USER",
        "ALTER TABLE turnkeep_attachments DROP CONSTRAINT turnkeep_attachments_blob_fkey",
        "DROP TABLE turnkeep_attachments",
        "COMMENT ON TABLE turnkeep_entries IS 'mine'",
        "SET session_replication_role = replica",
        "SET ROLE {owner}",
        "SET SESSION AUTHORIZATION {owner}",
    ],
}


@pytest.mark.parametrize("role", ["writer", "recorder"])
def test_a_role_is_refused_what_is_not_its_own(installed: Installed, role: str) -> None:
    with installed.store(installed.writer) as store:
        store.extend("s", [header("s"), said("x", b"bytes")])
    owner = '"' + installed.names["owner"].replace('"', '""') + '"'
    before = installed.dump()
    for statement in DENIED[role] + DENIED["both"]:
        with connected(getattr(installed, role)) as connection:
            refused = refusal(connection, statement.replace("{owner}", owner))
        assert refused == "42501", statement
    assert installed.dump() == before


COUNTERS = {"updated_at", "last_position", "last_recorded_at"}
RECORDER = {
    *((table, right) for table in metadata.tables for right in ("SELECT", "INSERT")),
    (VERSION_TABLE, "SELECT"),
    *(("turnkeep_sessions", f"UPDATE {column}") for column in COUNTERS),
}
WRITER = RECORDER | {
    *((table, "DELETE") for table in metadata.tables),
    ("turnkeep_blobs", "UPDATE size"),
}


def held(url: URL, role: str) -> set[tuple[str, str]]:
    """What *role* may do to each relation in the schema of our tables, whatever gives it the right,
    and to each column.
    """
    whole = [
        "SELECT",
        "INSERT",
        "UPDATE",
        "DELETE",
        "TRUNCATE",
        "REFERENCES",
        "TRIGGER",
        "MAINTAIN",
    ]
    with connected(url) as connection:
        schemas = "SELECT relnamespace FROM pg_class WHERE relname = 'turnkeep_version'"
        relations = connection.execute(
            f"SELECT oid, relname FROM pg_class WHERE relnamespace = ({schemas})"
            " AND relkind IN ('r', 'v', 'm', 'p', 'S')"
        ).fetchall()
        found = set()
        for oid, name in relations:
            for right in whole:
                asked = "SELECT has_table_privilege(%s, %s::oid, %s)"
                if connection.execute(asked, (role, oid, right)).fetchone() == (True,):
                    found.add((name, right))
            columns = connection.execute(
                "SELECT attname, attnum FROM pg_attribute WHERE attrelid = %s AND attnum > 0",
                (oid,),
            ).fetchall()
            for (column, number), right in itertools.product(columns, ("UPDATE", "REFERENCES")):
                asked = "SELECT has_column_privilege(%s, %s::oid, %s::int2, %s)"
                if connection.execute(asked, (role, oid, number, right)).fetchone() == (True,):
                    found.add((name, f"{right} {column}"))
        return found


def test_the_rights_are_these_and_no_others(roles: Roles) -> None:
    """Whatever there was before, and however often the text is run."""
    installed = Installed(roles)
    for _ in range(2):
        assert held(roles.url, installed.names["recorder"]) == RECORDER
        assert held(roles.url, installed.names["writer"]) == WRITER
        assert held(roles.url, "pg_read_all_stats") == set(), "nor has everybody any"
        names = [
            '"' + installed.names[kind].replace('"', '""') + '"' for kind in ("recorder", "writer")
        ]
        roles.run(
            "GRANT SELECT ON turnkeep_blobs TO PUBLIC",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {', '.join(names)}",
            f"GRANT UPDATE (title), REFERENCES (id) ON turnkeep_sessions TO {names[0]}",
        )
        assert held(roles.url, installed.names["recorder"]) > WRITER
        installed.grant("writer", "recorder")


def test_every_table_is_spoken_of() -> None:
    """A table that a revision brings is not forgotten."""
    assert {*rights.APPEND} == {*TABLES}
    assert {*rights.DELETE} == {*metadata.tables}


@pytest.mark.parametrize("driver", DRIVERS)
def test_what_a_recorder_is_refused_is_a_typed_error_and_changes_nothing(
    installed: Installed, driver: str
) -> None:
    with DRIVERS[driver](installed.recorder) as store:
        store.extend("s", [header("s"), said(SECRET, b"bytes")])
        before = installed.dump()
        history = store.export_history("s")
        calls: list[Callable[[], object]] = [
            lambda: store.delete("s"),
            lambda: store.import_history(history, cwd="/w", id="s", replace=True),
            lambda: store.prune(older_than=timedelta(0)),
            store.erase_namespace,
        ]
        for call in calls:
            with pytest.raises(Unavailable, match=r"lacks a right.*\(SQLSTATE 42501\)") as error:
                call()
            assert error.value.__cause__ is error.value.__context__ is None
            assert SECRET not in str(error.value)
        assert not store.delete("nobody")
        assert installed.dump() == before
        assert store.read("s") == [header("s"), said(SECRET, b"bytes")]


# The text


def test_the_page_shows_the_text() -> None:
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    options = ("--writer", NAMES["writer"], "--recorder", NAMES["recorder"])
    assert printed(*options) in blocks


def test_the_function_gives_what_the_command_prints() -> None:
    text = schema.grants(writer="w", recorder="r", owner="o", tenants="t", schema="s")
    options = ("--writer", "w", "--recorder", "r", "--owner", "o", "--tenants", "t")
    assert printed(*options, schema="s") == f"BEGIN;\n\n{text}\nCOMMIT;\n"


def test_it_may_be_run_in_a_transaction_of_the_hosts(roles: Roles) -> None:
    with SQLStore(roles.url) as store:
        store.upgrade()
    name = f"app_{next(_numbers)}"
    writer = roles.add(name=name)
    engine = create_engine(roles.url)
    with engine.connect() as connection:
        connection.exec_driver_sql(schema.grants(writer=name))
        connection.rollback()
        with SQLStore(writer) as store, pytest.raises(Unavailable, match="42501"):
            store.list()
        connection.exec_driver_sql(schema.grants(writer=name))
        connection.commit()
    with SQLStore(writer) as store:
        assert store.list() == []
    engine.dispose()


def test_alembic_runs_it_by_psycopg_as_one_statement(roles: Roles) -> None:
    """Where it takes what looks like a parameter for one."""
    kinds = "owner", "writer", "recorder", "tenants"
    names = {kind: f"{kind}_{next(_numbers)}" for kind in kinds}
    _, writer, _, _ = (roles.add(name=name) for name in names.values())
    engine = create_engine(roles.url)
    with SQLStore(engine) as store:
        store.upgrade(row_security=True)
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        op.execute(schema.grants(**names))
    engine.dispose()
    with SQLStore(writer) as store:
        assert store.append("s", header("s")) == 0


@pytest.mark.parametrize("kind", ["writer", "recorder", "tenants"])
def test_the_owner_of_a_table_is_given_no_lesser_role(roles: Roles, kind: str) -> None:
    """It would lose rights by which the database checks foreign keys."""
    name = f'owner "{next(_numbers)}" \' %s'
    owner = roles.add(name=name)
    roles.grants("--owner", name)
    with SQLStore(owner) as store:
        store.upgrade(row_security=True)
        for by in (owner, roles.url):
            refused = 'owns a table, and can be its owner only: ".*"'
            with pytest.raises(psycopg.errors.RaiseException, match=refused):
                roles.grants(f"--{kind}", name, by=by)
            assert store.extend("s", [header("s"), said("x", b"bytes")][by is not owner :])
            assert store.prune(keep_last=0, dry_run=True).sessions == 1
    for table in TABLES:
        other = roles.add()
        roles.run(f"ALTER TABLE {table} OWNER TO {other.username}")
        assert other.username is not None
        with pytest.raises(psycopg.errors.RaiseException, match=f"only: {other.username}\n"):
            roles.grants(f"--{kind}", other.username)
        roles.run(f"ALTER TABLE {table} OWNER TO CURRENT_USER")


BAD = ["", "x" * 64, "ü" * 32, "nu\0l", "half \ud800", "pg_monitor", "public", "none", 7, b"x"]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", ["owner", "writer", "recorder", "tenants"])
def test_what_can_be_no_role_is_refused(kind: str, name: Any) -> None:
    """In quotes too, `public` is everybody; and what is too long is cut to another's name."""
    with pytest.raises(InvalidArgument, match=f"^{kind}: "):
        schema.grants(**{kind: name})


def test_roles_are_named_and_differ() -> None:
    with pytest.raises(InvalidArgument, match=r"^writer: "):
        schema.grants()
    with pytest.raises(InvalidArgument, match=r"^recorder: .*rights add up"):
        schema.grants(writer="app", recorder="app")
    with pytest.raises(InvalidArgument, match=r"^schema: "):
        schema.grants(writer="app", schema="x" * 64)
    assert "PUBLIC" in schema.grants(writer="x" * 63), "everybody's rights are taken away"


def test_sqlite_has_no_roles(sqlite_url: URL) -> None:
    done = CliRunner().invoke(
        turnkeep, ["db", "--url", str(sqlite_url), "grants", "--writer", "app"]
    )
    assert done.exit_code == 1
    assert done.output.startswith("Error: url: SQLite has no roles")
    assert not Path(str(sqlite_url.database)).exists()
