"""Row security is turned on and off: by an upgrade, by a host's own Alembic, for tables that come
later.
"""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, MetaData, Table, Text, create_engine

from contention import header, said
from migrating import with_revision
from roles import DRIVERS, Roles, Tenancy, connected
from test_developer_alembic import Checkout
from test_host_alembic import Host, _host
from turnkeep import (
    AsyncSQLStore,
    InvalidArgument,
    SchemaError,
    SQLStore,
    Unavailable,
    revisions,
    schema,
)
from turnkeep.dialect import rights
from turnkeep.tables import metadata
from turnkeep.testing import Blocking

PAGE = (Path(__file__).parents[1] / "docs" / "rights.md").read_text()
BLOCKS = dict(re.findall(r"(?ms)^```python\n# elsewhere: (.+?)\n(.*?)^```", PAGE))
TABLES = [*metadata.tables]

_numbers = itertools.count()


def state(roles: Roles, schema: str = "public") -> dict[str, tuple[bool, list[str]]]:
    """Whether row security is on for each table, and the names of its policies."""
    with connected(roles.url) as connection:
        return {
            name: (on, policies)
            for name, on, policies in connection.execute(
                "SELECT relname, relrowsecurity, ARRAY(SELECT polname::text FROM pg_policy"
                " WHERE polrelid = c.oid ORDER BY 1) FROM pg_class AS c"
                " WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
                " AND relname LIKE 'turnkeep%%' AND relname <> 'turnkeep_version'",
                (schema,),
            )
        }


ON: dict[str, tuple[bool, list[str]]] = dict.fromkeys(TABLES, (True, ["turnkeep_namespace"]))
OFF: dict[str, tuple[bool, list[str]]] = dict.fromkeys(TABLES, (False, []))

SWITCHES: dict[str, Callable[[Any], Any]] = {
    "sync": SQLStore,
    "async": lambda url: Blocking(lambda: AsyncSQLStore(url)),
    "asyncpg": DRIVERS["asyncpg"],
}


@pytest.mark.parametrize("driver", SWITCHES)
def test_it_is_off_unless_asked_for_and_can_be_turned_on_and_off(roles: Roles, driver: str) -> None:
    with SWITCHES[driver](roles.url) as store:
        store.upgrade()
        assert state(roles) == OFF
        store.append("s", header("s"))
        for wanted, found in [(True, ON), (None, ON), (True, ON), (False, OFF), (None, OFF)]:
            for _ in range(2):
                store.upgrade(row_security=wanted)
                assert state(roles) == found
        store.upgrade(row_security=True)
        assert state(roles) == ON
        assert len(store.read("s")) == 1
        store.check()


def test_turning_it_on_takes_no_lock_where_it_is_on(tenancy: Tenancy) -> None:
    """So it may be said each time that an app is deployed, beside those at work."""
    with connected(tenancy.writer) as busy, SQLStore(tenancy.owner, timeout=0.5) as store:
        busy.execute("BEGIN")
        busy.execute("SELECT * FROM turnkeep_sessions")
        store.upgrade(row_security=True)
        with pytest.raises(Unavailable, match="lock"):
            store.upgrade(row_security=False)
    assert state(tenancy.roles)["turnkeep_blobs"][0]


def test_turned_off_it_takes_the_tenants_rights_with_it(tenancy: Tenancy) -> None:
    """For they would see all."""
    tenant = tenancy.tenant("a")
    with SQLStore(tenancy.owner) as owner, SQLStore(tenant, namespace="a") as store:
        store.append("s", header("s"))
        owner.upgrade(row_security=False)
        for call in (store.list, lambda: store.append("t", header("t"))):
            with pytest.raises(Unavailable, match="42501"):
                call()
        assert [policies for _, policies in state(tenancy.roles).values()] == [
            ["turnkeep_recorder", "turnkeep_writer"]
        ] * len(TABLES)
        with SQLStore(tenancy.writer, namespace="a") as writer:
            assert writer.append("s", said("x")) == 1
        owner.upgrade(row_security=True)
        tenancy.grant()
        assert len(store.read("s")) == 2
        odd = '{group} of "tenants" \' %s'
        tenancy.roles.add(name=odd)
        tenancy.roles.grants("--tenants", odd, by=tenancy.owner)
        owner.upgrade(row_security=False)
        assert "turnkeep_tenants" not in str(state(tenancy.roles))


def test_row_security_of_somebody_elses_is_left_alone(roles: Roles) -> None:
    with SQLStore(roles.url) as store:
        store.upgrade()
        roles.run(
            "ALTER TABLE turnkeep_sessions ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY theirs ON turnkeep_sessions USING (namespace = 'theirs')",
        )
        before = state(roles)
        store.upgrade()
        assert state(roles) == before


def test_the_writer_goes_on_when_it_is_turned_on(roles: Roles) -> None:
    """Its policy is made with its rights."""
    name = f"app_{next(_numbers)}"
    writer = roles.add(name=name)
    with SQLStore(roles.url) as owner, SQLStore(writer) as store:
        owner.upgrade()
        roles.grants("--writer", name)
        store.append("s", header("s"))
        owner.upgrade(row_security=True)
        assert store.append("s", said("x", b"bytes")) == 1
        assert store.delete("s")


def test_a_schema_of_its_own_is_secured_alone(roles: Roles) -> None:
    with SQLStore(roles.url) as store, SQLStore(roles.url, schema='we"ird %x') as other:
        store.upgrade()
        other.upgrade(row_security=True)
        assert state(roles) == OFF
        assert state(roles, '"we""ird %x"') == ON


def test_only_the_owner_can_turn_it_off(tenancy: Tenancy) -> None:
    for role in (tenancy.writer, tenancy.tenant()):
        with SQLStore(role) as store:
            store.upgrade()
            with pytest.raises(Unavailable, match="42501"):
                store.upgrade(row_security=False)
    assert all(on for on, _ in state(tenancy.roles).values())


@pytest.mark.parametrize("wanted", [1, "on", 0.0, []])
def test_what_is_no_answer_is_refused(sqlite_url: Any, wanted: Any) -> None:
    with SQLStore(sqlite_url) as store, pytest.raises(InvalidArgument, match=r"^row_security: "):
        store.upgrade(row_security=wanted)


def test_sqlite_has_none(sqlite_url: Any) -> None:
    with SQLStore(sqlite_url) as store:
        with pytest.raises(InvalidArgument, match=r"^row_security: SQLite has no roles"):
            store.upgrade(row_security=True)
        assert not Path(sqlite_url.database).exists()
        store.upgrade(row_security=False)
        assert store.list() == []


# In the host's own Alembic, and later


REVISION = """
from turnkeep.schema import row_security_in_host, upgrade_in_host

revision, down_revision = "{}", "{}"


def upgrade() -> None:
    {}


def downgrade() -> None:
    {}
"""


@pytest.fixture
def host(roles: Roles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """An app with an Alembic of its own, which runs our revisions."""
    return next(_host(tmp_path, roles.url, monkeypatch))


def add(host: Host, number: int, upgrade: str, downgrade: str = "pass") -> None:
    """One more revision of the app's."""
    code = REVISION.format(f"{number:04}", f"{number - 1:04}", upgrade, downgrade)
    host.add(f"{number:04}_more.py", code)


def test_a_host_turns_it_on_and_off_in_its_own_alembic(roles: Roles, host: Host) -> None:
    host.add("0003_more.py", BLOCKS["migrations/versions/0003_row_security.py"])
    add(host, 4, "row_security_in_host(on=True)")
    host.upgrade("0002")
    assert state(roles) == OFF
    host.upgrade()
    assert state(roles) == ON
    command.check(host.config)
    command.downgrade(host.config, "0002")
    assert state(roles) == OFF


def test_a_host_secures_the_schema_that_it_names(roles: Roles, host: Host) -> None:
    add(host, 3, 'upgrade_in_host("0001", schema="agents"); row_security_in_host(schema="agents")')
    host.upgrade()
    assert state(roles) == OFF
    assert state(roles, "agents") == ON


def test_the_tables_go_with_their_policies(roles: Roles, host: Host) -> None:
    add(host, 3, "row_security_in_host()")
    host.upgrade()
    command.downgrade(host.config, "base")
    assert state(roles) == {}
    host.upgrade()
    assert state(roles) == ON


def test_it_is_printed_as_sql(roles: Roles, host: Host) -> None:
    """With what it follows, and once more for a database that has it."""
    add(host, 3, "row_security_in_host()")
    add(host, 4, "row_security_in_host()")
    url = roles.url.render_as_string(hide_password=False)
    host.env(
        "from alembic import context\n"
        f"context.configure(url={url!r}, literal_binds=True)\n"
        "with context.begin_transaction():\n"
        "    context.run_migrations()\n"
    )
    host.upgrade(sql=True)
    roles.run(host.printed.getvalue())
    assert state(roles) == ON
    add(host, 5, 'row_security_in_host(schema="agents")')
    with pytest.raises(SchemaError, match="without a schema"):
        host.upgrade(sql=True)
    add(host, 5, "row_security_in_host(on=False)")
    with pytest.raises(SchemaError, match="can't be printed"):
        host.upgrade(sql=True)


def test_a_host_on_sqlite_is_refused(
    sqlite_url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = next(_host(tmp_path, sqlite_url, monkeypatch))
    add(host, 3, "row_security_in_host(on=False)")
    add(host, 4, "row_security_in_host()")
    host.upgrade("0003")
    with pytest.raises(InvalidArgument, match="SQLite has no roles"):
        host.upgrade()


def test_outside_of_a_migration_it_says_so() -> None:
    with pytest.raises(SchemaError, match="no migration is running"):
        schema.row_security_in_host()


EXTRA = 'op.create_table("turnkeep_extra", sa.Column("namespace", sa.Text()))'


@pytest.mark.parametrize("by", ["upgrade", "host"])
@pytest.mark.parametrize("on", [True, False])
def test_a_table_that_comes_later_is_as_the_others_are(
    roles: Roles, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool, by: str
) -> None:
    host.upgrade()
    with SQLStore(roles.url) as store:
        store.upgrade(row_security=on)
        later = with_revision(tmp_path / "later", EXTRA)
        more = MetaData()
        for table in metadata.tables.values():
            table.to_metadata(more)
        Table("turnkeep_extra", more, Column("namespace", Text))
        monkeypatch.setattr(revisions, "migrations", lambda: later)
        monkeypatch.setattr(rights, "metadata", more)
        if by == "host":
            add(host, 3, 'upgrade_in_host("later")')
            host.upgrade()
        else:
            store.upgrade()
    wanted = (ON if on else OFF)["turnkeep_entries"]
    assert state(roles) == dict.fromkeys([*TABLES, "turnkeep_extra"], wanted)


def test_the_migrations_still_make_what_the_models_say(tenancy: Tenancy, tmp_path: Path) -> None:
    engine = create_engine(tenancy.roles.url)
    with engine.connect() as connection:
        options = {"include_name": schema.only_turnkeep, "version_table": "turnkeep_version"}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    engine.dispose()
    checkout = Checkout(tmp_path / "checkout")
    checkout.alembic("check", url=tenancy.roles.url)
    for role in (tenancy.owner, tenancy.writer, tenancy.recorder, tenancy.tenant()):
        with SQLStore(role) as store:
            store.check()
