"""Row security: a role sees, changes and references the namespace of its own name, and no other, by
any statement; what the store does is the same.

The statements are run past the store, as a tenant who has every right that a role can be given on a
table, but those that no row security holds back (TRUNCATE, REFERENCES, TRIGGER), and which the text
of `turnkeep db grants` does not give.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine

from contention import header, said, together
from poolers import pgbouncer_before
from roles import (
    DRIVERS,
    Roles,
    Tenancy,
    connected,
    dump,
    name_of,
    refusal,
    use_in_every_way,
)
from servers import PostgresServer
from test_cli import invoke
from turnkeep import (
    Entry,
    SQLStore,
    Store,
    Unavailable,
    UnknownSession,
)
from turnkeep.tables import metadata
from turnkeep.testing import StoreContract

TABLES = [*metadata.tables]
MARK = "hush"
"""It is in every text, name and byte of the one, and in nothing of the other's."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def lasting(postgres: PostgresServer, server_database: Any) -> Iterator[Tenancy]:
    """For all tests of the module: each takes its own tenants."""
    roles = Roles(server_database)
    yield Tenancy(roles)
    roles.close()


# What a tenant may


class TestATenant(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, lasting: Tenancy) -> Iterator[None]:
        self.tenancy, self.stores = lasting, list[SQLStore]()
        yield
        for store in self.stores:
            store.close()

    def make_store(self) -> Store:
        tenant = self.tenancy.tenant()
        self.stores.append(SQLStore(tenant, namespace=name_of(tenant)))
        return self.stores[-1]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_tenant_may_do_all_in_its_namespace(
    lasting: Tenancy, driver: str, tmp_path: Path
) -> None:
    tenant = lasting.tenant()
    with DRIVERS[driver](tenant) as store:
        own = store.with_namespace(name_of(tenant))
        use_in_every_way(own, tmp_path, namespace=name_of(tenant), deletes=True)


@pytest.mark.parametrize("name", ["ü ö", "we\"ird ' %s", "Capitals", "x" * 63, "CURRENT_USER"])
def test_a_namespace_is_a_tenants_by_every_byte_of_its_name(tenancy: Tenancy, name: str) -> None:
    tenant = tenancy.tenant(name)
    with SQLStore(tenant, namespace=name) as own, SQLStore(tenancy.writer) as writer:
        own.append("s", header("s"))
        others = [name + "x", name[:-1], name.swapcase(), f" {name}", "", "x" * 64, "x" * 255]
        for other in others:
            if other == name:
                continue
            writer.with_namespace(other).append("s", header("s"))
            assert own.with_namespace(other).list() == []
            with pytest.raises(Unavailable, match="42501"):
                own.with_namespace(other).append("t", header("t"))
        assert len(own.list()) == 1
        assert len(writer.namespaces()) > 4


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_store_of_anothers_namespace_is_empty_and_takes_nothing(
    lasting: Tenancy, driver: str
) -> None:
    """It neither shows nor says what is there."""
    mine, theirs = lasting.tenant(), lasting.tenant()
    with SQLStore(theirs, namespace=name_of(theirs)) as store:
        store.extend("s", [header("s", title=MARK), said(MARK, MARK.encode())])
        before = store.read("s")
    with DRIVERS[driver](mine) as connected_store:
        store = connected_store.with_namespace(name_of(theirs))
        assert store.read("s") == store.tail("s", 5) == store.page("s").entries == []
        assert store.get("s") is None
        assert store.list() == store.list("/w", limit=3) == []
        assert store.attachments("s") == []
        assert not store.delete("s")
        for id in ("s", "nobody"):
            with pytest.raises(UnknownSession):
                store.append(id, said("x", MARK.encode()))
            with pytest.raises(UnknownSession):
                store.extend(id, [said("x"), said("y")], idempotency_keys=["a", "b"])
            said_of = []
            for call in (store.append, lambda to, entry: store.extend(to, [entry, said("x")])):
                with pytest.raises(Unavailable, match=r"namespace is not its own.*42501") as error:
                    call(id, header(id))
                assert error.value.__cause__ is error.value.__context__ is None
                said_of.append(str(error.value))
            assert MARK not in "".join(said_of)
            assert name_of(theirs) not in "".join(said_of)
    with SQLStore(lasting.writer, namespace=name_of(theirs)) as store:
        assert store.read("s") == before


def test_a_transaction_of_the_hosts_may_take_a_tenants_role(tenancy: Tenancy) -> None:
    """A host that connects as one who may: for what it runs itself, that is a wall too."""
    mine, theirs = tenancy.tenant("mine"), tenancy.tenant("theirs")
    gate = tenancy.roles.add("p", "ALTER ROLE {} NOINHERIT", "GRANT mine, theirs TO {}")
    engine = create_engine(gate)
    store = SQLStore(engine, namespace="mine")
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL ROLE mine")
        joined = store.using(connection)
        joined.extend("s", [header("s"), said("x", b"bytes")])
        with pytest.raises(Unavailable, match="42501"):
            joined.with_namespace("theirs").append("s", header("s"))
        assert joined.append("s", said("y")) == 2
    with engine.begin() as connection, pytest.raises(Unavailable, match="42501"):
        store.using(connection).read("s")
    for tenant, length in ((mine, 3), (theirs, 0)):
        with SQLStore(tenant, namespace="mine") as own:
            assert len(own.read("s")) == length
    engine.dispose()


def test_it_holds_behind_a_pooler(postgres: PostgresServer, tenancy: Tenancy) -> None:
    """Which gives each transaction one of its few connections to the server."""
    names = [f"tenant_{next(_numbers)}" for _ in range(3)]
    tenants = [tenancy.tenant(name) for name in names]
    gate = tenancy.roles.add("p", "ALTER ROLE {} NOINHERIT", f"GRANT {', '.join(names)} TO {{}}")
    users = dict.fromkeys([*names, name_of(gate)], "p")
    with (
        pgbouncer_before(postgres, {"default_pool_size": "1"}, users) as pooler,
        ExitStack() as all_,
    ):
        stores = [
            all_.enter_context(SQLStore(pooler.url(tenant), namespace=name))
            for tenant, name in zip(tenants, names, strict=True)
        ]
        engine = create_engine(pooler.url(gate).set(query={}), poolclass=NullPool)
        joined = SQLStore(engine)

        def work(place: int, rounds: int) -> list[Entry]:
            own, other = (names[(place + more) % len(names)] for more in (0, 1))
            store = stores[place]
            written: list[Entry] = [header("s")]
            store.append("s", header("s"))
            for number in range(rounds):
                entry = said(f"{own} {number}", b"bytes", own.encode())
                if number % 2:
                    store.append("s", entry)
                else:
                    with engine.begin() as connection:
                        connection.exec_driver_sql(f"SET LOCAL ROLE {own}")
                        joined.with_namespace(own).using(connection).append("s", entry)
                written.append(entry)
                assert store.with_namespace(other).read("s") == []
                with pytest.raises(Unavailable, match="42501"):
                    store.with_namespace(other).append("t", header("t"))
                with pytest.raises(Unavailable, match="42501"):
                    joined.with_namespace(own).read("s")
            return written

        written = together(*(partial(work, place, 10) for place in range(3)))
        assert [store.read("s") for store in stores] == written


# What it may not, past the store


class Two:
    """Two tenants with the same ids, keys and bytes, but that the one's rows are marked; and what
    the other sees, who has every right that row security holds back.
    """

    def __init__(self, tenancy: Tenancy) -> None:
        self.roles, self.tenancy = tenancy.roles, tenancy
        self.marked, self.other = tenancy.tenant(f"{MARK} 1"), tenancy.tenant("other")
        for tenant, text in ((self.marked, MARK), (self.other, "open")):
            with SQLStore(tenant, namespace=name_of(tenant)) as store:
                for id in ("s", text):
                    own = f"{text}'s own".encode()
                    entries = [header(id, title=text), said(text, b"known", own)]
                    store.extend(id, entries, idempotency_keys=[None, "key"])
                store.append("s", said(text), idempotency_key=text)
        self.roles.run(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO other",
            "ANALYZE",
        )
        self._before = self.rows()

    def rows(self) -> dict[str, list[Any]]:
        """Those of the marked one, as the superuser sees them."""
        found = dump(self.roles.url, TABLES)
        return {
            table: [row for row in rows if row[0].startswith(f'("{MARK} 1",')]
            for table, rows in found.items()
        }

    def seen(self, *statements: str) -> str:
        """All that the other is shown by *statements*, which are one transaction, and committed
        where none fails: rows, notices, and errors with their details.
        """
        shown: list[object] = []
        with connected(self.other) as connection:
            connection.add_notice_handler(lambda notice: shown.append(_diagnostics(notice)))
            try:
                with connection.transaction():
                    for statement in statements:
                        shown += _answers(connection, statement)
            except psycopg.Error as error:
                shown.append(f"{error} {_diagnostics(error.diag)}")
        return repr(shown)

    def assert_nothing_changed(self) -> None:
        assert self.rows() == self._before
        assert all(self._before.values())


def _answers(connection: "psycopg.Connection[Any]", statement: str) -> Iterator[object]:
    cursor = connection.cursor()
    if "TO STDOUT" in statement:
        with cursor.copy(statement.encode()) as copy:
            yield from map(bytes, copy)
        return
    if "FROM STDIN" in statement:
        with cursor.copy(statement.encode()) as copy:
            copy.write(f"{MARK} 1\n")
        return
    cursor.execute(statement.encode())
    while True:
        if cursor.description:
            yield from cursor.fetchall()
        if not cursor.nextset():
            return


def _diagnostics(found: Any) -> str:
    names = [name for name in dir(found) if not name.startswith("_") and name != "encoding"]
    return repr([getattr(found, name) for name in names])


@pytest.fixture(scope="module")
def two(postgres: PostgresServer) -> Iterator[Two]:
    url = postgres.create_database("two_tenants")
    roles = Roles(url)
    yield Two(Tenancy(roles))
    roles.close()
    postgres.drop_database("two_tenants")


MARKED = f"'{MARK} 1'"

READS = [
    ["SELECT * FROM {t}"],
    ["SELECT t::text FROM ONLY {t} AS t"],
    ["TABLE {t}"],
    ["SELECT * FROM {t} WHERE namespace <> CURRENT_USER"],
    ["SELECT min(namespace), count(*) FROM {t} WHERE namespace > 'a' OR namespace LIKE 'h%'"],
    ["SELECT max(namespace), string_agg(t::text, ',') FROM {t} AS t"],
    ["SELECT * FROM {t} AS a LEFT JOIN {t} AS b ON b.namespace <> a.namespace"],
    ["SELECT * FROM {t} AS a FULL JOIN turnkeep_sessions AS b ON true"],
    ["SELECT s.*, t.* FROM turnkeep_sessions AS s, LATERAL (SELECT * FROM {t} OFFSET 0) AS t"],
    ["WITH RECURSIVE w AS (SELECT * FROM {t} UNION SELECT * FROM w) SELECT * FROM w"],
    ["VALUES ((SELECT string_agg(t::text, ',') FROM {t} AS t))"],
    ["SELECT * FROM {t} TABLESAMPLE SYSTEM (100)"],
    ["SELECT * FROM {t} WHERE ctid = ANY (ARRAY['(0,1)', '(0,2)', '(0,3)', '(0,4)']::tid[])"],
    ["SELECT * FROM {t} FOR UPDATE"],
    ["SELECT * FROM {t} FOR KEY SHARE SKIP LOCKED"],
    ["COPY {t} TO STDOUT"],
    ["COPY (SELECT * FROM {t}) TO STDOUT (FORMAT csv, HEADER)"],
    [
        "DECLARE c SCROLL CURSOR FOR SELECT * FROM {t}",
        "FETCH ALL FROM c",
        "FETCH ABSOLUTE 1 FROM c",
    ],
    ["PREPARE p AS SELECT * FROM {t}", "EXECUTE p", "DEALLOCATE p"],
    ["CREATE TEMP TABLE copy AS SELECT * FROM {t}", "SELECT * FROM copy", "DROP TABLE copy"],
    ["CREATE TEMP VIEW v AS SELECT * FROM {t}", "SELECT * FROM v", "DROP VIEW v"],
    [
        "CREATE TEMP VIEW v WITH (security_invoker) AS SELECT * FROM {t}",
        "SELECT * FROM v",
        "DROP VIEW v",
    ],
    [
        (
            "CREATE FUNCTION pg_temp.f() RETURNS SETOF {t} LANGUAGE sql SECURITY DEFINER"
            " AS 'SELECT * FROM public.{t}'"
        ),
        "SELECT * FROM pg_temp.f()",
    ],
    [
        (
            "DO $$ DECLARE r record; BEGIN FOR r IN EXECUTE 'SELECT * FROM {t}' LOOP"
            " RAISE NOTICE '%', r; END LOOP; END $$"
        )
    ],
    # What is given a row before the policy has judged it would tell.
    [
        (
            "CREATE FUNCTION pg_temp.leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0000001"
            " AS $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
        ),
        "SELECT * FROM {t} AS t WHERE pg_temp.leak(t::text)",
        "SELECT * FROM {t} AS t WHERE pg_temp.leak(namespace) AND namespace LIKE 'h%'",
        "SELECT * FROM turnkeep_sessions AS s JOIN {t} AS t ON pg_temp.leak(t::text || s::text)",
    ],
    ["SELECT * FROM {t} WHERE namespace::int = 1"],
    ["SELECT 1 / CASE WHEN namespace = CURRENT_USER THEN 1 ELSE 0 END FROM {t}"],
    ["SELECT * FROM {t} WHERE 1 / CASE WHEN namespace = CURRENT_USER THEN 1 ELSE 0 END = 1"],
    ["SELECT ts_stat('SELECT to_tsvector(t::text) FROM {t} AS t')"],
    ["SELECT * FROM pg_stats WHERE tablename = '{t}'"],
    ["UPDATE {t} SET namespace = namespace RETURNING *"],
    [
        (
            "UPDATE turnkeep_sessions SET title = title"
            " RETURNING (SELECT string_agg(t::text, ',') FROM {t} AS t)"
        )
    ],
    ["SAVEPOINT a", "DELETE FROM {t} RETURNING *", "ROLLBACK TO a"],
    ["SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SELECT * FROM {t}"],
    ["SET LOCAL debug_parallel_query = on; SELECT * FROM {t}"],
]


@pytest.mark.parametrize("table", TABLES)
def test_no_statement_shows_anothers_rows(two: Two, table: str) -> None:
    marks = MARK, MARK.encode().hex(), "22012"  # a division by zero
    for statements in READS:
        shown = two.seen(*(each.replace("{t}", table) for each in statements))
        assert not any(mark in shown.replace("LIKE 'h%'", "") for mark in marks), statements
    assert two.seen(f"SELECT * FROM {table} WHERE namespace = {MARKED}") == "[]"
    assert two.seen(f"SELECT count(*) FROM {table} WHERE namespace = {MARKED}") == "[(0,)]"
    assert MARK in repr(two.rows()[table]), "the marks would show"
    for way in ("SELECT * FROM {t}", "COPY {t} TO STDOUT"):
        assert "other" in two.seen(way.replace("{t}", table)), "its own do"
    two.assert_nothing_changed()


KEYS = {
    "turnkeep_sessions": "namespace, id",
    "turnkeep_entries": "namespace, session_id, position",
    "turnkeep_blobs": "namespace, digest",
    "turnkeep_attachments": "namespace, session_id, position, ordinal",
}
CHANGE = {
    "turnkeep_sessions": "title = 'changed'",
    "turnkeep_entries": "payload = 'changed'",
    "turnkeep_blobs": "data = 'changed'",
    "turnkeep_attachments": "path = 'changed'",
}
NEW = {
    "turnkeep_sessions": "id || '{}'",
    "turnkeep_entries": "session_id || '{}'",
    "turnkeep_blobs": "digest || '{}'::bytea",
    "turnkeep_attachments": "session_id || '{}'",
}

NOTHING = [
    "UPDATE {t} SET {change} WHERE namespace = {other}",
    "UPDATE {t} AS t SET {change} FROM turnkeep_sessions AS s WHERE t.namespace <> 'other'",
    "DELETE FROM {t} WHERE namespace = {other}",
    "DELETE FROM {t} AS t USING turnkeep_sessions AS s WHERE t.namespace <> CURRENT_USER",
    "WITH gone AS (DELETE FROM {t} WHERE namespace = {other} RETURNING 1) SELECT * FROM gone",
    "SELECT * FROM {t} WHERE namespace = {other} FOR UPDATE",
    "MERGE INTO {t} AS t USING {t} AS s ON t.namespace = {other} WHEN MATCHED THEN DELETE",
    (
        "MERGE INTO {t} AS t USING {t} AS s ON t.namespace = {other}"
        " WHEN MATCHED THEN UPDATE SET {change}"
    ),
]
INTO = "INSERT INTO {t} SELECT {copy} FROM {t}"
REFUSED = [
    "UPDATE {t} SET namespace = {other}",
    INTO,
    f"{INTO} RETURNING *",
    f"{INTO} ON CONFLICT DO NOTHING",
    f"{INTO} ON CONFLICT ({{key}}) DO UPDATE SET {{change}}",
    (
        "MERGE INTO {t} AS t USING {t} AS s ON t.namespace = {other}"
        " WHEN NOT MATCHED THEN INSERT VALUES ({copy})"
    ),
]


def columns(two: Two, table: str, new: str) -> str:
    """What copies the tenant's own rows to the other's namespace: with the keys that are there, or
    with *new* ones.
    """
    with connected(two.roles.url) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                " ORDER BY attnum",
                (table,),
            )
        ]
    key = NEW[table].format(new)
    copy = {"namespace": MARKED, key.split()[0]: key}
    return ", ".join(copy.get(name, name) for name in names)


@pytest.mark.parametrize("table", TABLES)
def test_no_statement_changes_anothers_rows(two: Two, table: str) -> None:
    words = {"{t}": table, "{key}": KEYS[table], "{change}": CHANGE[table], "{other}": MARKED}

    def filled(statement: str, new: str = "") -> str:
        for word, value in {**words, "{copy}": columns(two, table, new)}.items():
            statement = statement.replace(word, value)
        return statement

    for statement in NOTHING:
        assert two.seen(filled(statement)) == "[]", statement
    said_of = set()
    for statement, new in itertools.product(REFUSED, ("", "more")):
        shown = two.seen(filled(statement, new))
        assert "new row violates row-level security policy" in shown, statement
        assert "42501" in shown
        assert MARK not in shown, statement
        said_of.add(shown)
    assert len(said_of) == 1, "whether there is such a row makes no difference"
    assert "0A000" in two.seen(f"COPY {table} (namespace) FROM STDIN")
    two.assert_nothing_changed()


def test_no_row_references_anothers(two: Two) -> None:
    """Nor does the answer tell whether there is one."""
    entry = (
        "INSERT INTO turnkeep_entries (namespace, session_id, position, type, attachments, payload)"
        " VALUES ({}, {}, 99, 'message', 0, '')"
    )
    attachment = (
        "INSERT INTO turnkeep_attachments (namespace, session_id, position, ordinal, path, digest)"
        " VALUES ({}, 's', 1, 99, '[]', sha256({}))"
    )
    pairs = [
        (entry.format("'other'", f"'{MARK}'"), entry.format("'other'", "'nope'")),
        (entry.format(MARKED, f"'{MARK}'"), entry.format(MARKED, "'nope'")),
        (
            attachment.format("'other'", f"'{MARK}''s own'"),
            attachment.format("'other'", "'nobody has it'"),
        ),
        (
            attachment.format(MARKED, f"'{MARK}''s own'"),
            attachment.format(MARKED, "'nobody has it'"),
        ),
    ]
    for (there, nowhere), state in zip(pairs, ["23503", "42501", "23503", "42501"], strict=True):
        one, two_ = (two.seen(each) for each in (there, nowhere))
        assert state in one
        assert one.replace(MARK, "nope") == two_.replace(MARK, "nope")
    own = attachment.format("'other'", "'open''s own'")
    assert two.seen(own) == "[]"
    assert two.seen("DELETE FROM turnkeep_attachments WHERE ordinal = 99") == "[]"
    unique = entry.replace("99", "1").format("'other'", "'s'")
    assert "23505" in two.seen(unique)
    two.assert_nothing_changed()


SETTINGS = [
    f'SET ROLE "{MARK} 1"',
    f'SET LOCAL ROLE "{MARK} 1"',
    f'SET SESSION AUTHORIZATION "{MARK} 1"',
    f"SELECT set_config('role', {MARKED}, false)",
    f"SELECT set_config('session_authorization', {MARKED}, false)",
    "SET ROLE writer",
    "SET ROLE <tenants>",
    "SELECT set_config('role', '<tenants>', false)",
    "SET ROLE owner",
    "RESET ROLE",
    "RESET SESSION AUTHORIZATION",
    "RESET ALL",
    "DISCARD ALL",
    "SET row_security = off",
    "SELECT set_config('row_security', 'off', false)",
    "SET session_replication_role = replica",
    "SET search_path = pg_temp, public",
    f"SET application_name = {MARKED}",
    f"SET turnkeep.namespace = {MARKED}",
    f'ALTER ROLE other RENAME TO "{MARK} 2"',
    "ALTER ROLE other BYPASSRLS",
    "GRANT writer TO other",
    "ALTER TABLE turnkeep_sessions DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE turnkeep_sessions NO FORCE ROW LEVEL SECURITY",
    "ALTER TABLE turnkeep_sessions OWNER TO other",
    "ALTER POLICY turnkeep_namespace ON turnkeep_sessions USING (true)",
    "DROP POLICY turnkeep_tenants ON turnkeep_sessions",
    "CREATE POLICY mine ON turnkeep_sessions USING (true)",
    "CREATE VIEW seen AS SELECT * FROM turnkeep_sessions",
    f"CREATE TEMP TABLE turnkeep_sessions AS SELECT {MARKED} AS namespace",
]


def test_nothing_that_can_be_set_shows_more(two: Two) -> None:
    for setting in SETTINGS:
        names = two.tenancy.names
        setting_ = setting.replace("writer", names["writer"]).replace("owner", names["owner"])
        setting_ = setting_.replace("<tenants>", names["tenants"])
        with connected(two.other) as connection:
            refused = refusal(connection, setting_)
            found = []
            for table in TABLES:
                statement = f"SELECT namespace FROM public.{table}"
                try:
                    found += connection.execute(statement.encode()).fetchall()
                except psycopg.Error as error:
                    assert error.sqlstate == "42501", setting  # noqa: PT017 (or it shows)
                    assert "row_security" in setting
        assert {*found} in ({("other",)}, set()), setting
        if setting.startswith(("ALTER", "DROP", "GRANT", "CREATE POLICY", "CREATE VIEW")):
            assert refused in ("42501", "0A000"), setting
    two.assert_nothing_changed()


@pytest.mark.parametrize("table", TABLES)
def test_a_plan_counts_none_of_anothers_rows(two: Two, table: str) -> None:
    """A scan by another's name is not begun; what it takes to find one's own is in the plan."""

    def scans(statement: str) -> list[dict[str, Any]]:
        nodes, todo = [], []
        with connected(two.other) as connection:
            connection.execute("SET enable_seqscan = off")
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
            [(found,)] = connection.execute(explain.encode()).fetchall()
        todo.append(found[0]["Plan"])
        while todo:
            node = todo.pop()
            todo += node.get("Plans", [])
            nodes += [node] if "Scan" in node["Node Type"] else []
        return nodes

    own = len(two.rows()[table])
    for statement in ("SELECT * FROM {} {}", "DELETE FROM {} {}", "SELECT count(*) FROM {} {}"):
        for node in scans(statement.format(table, f"WHERE namespace = {MARKED}")):
            assert node["Actual Loops"] == 0, node
        for node in scans("SELECT * FROM {} {}".format(table, "")):
            assert node["Actual Rows"] == own
            assert node.get("Rows Removed by Filter", 0) == 0


# Who serves all, and who must not


def test_those_who_serve_all_namespaces_do(tenancy: Tenancy, tmp_path: Path) -> None:
    tenancy.tenant("a")
    with SQLStore(tenancy.writer) as writer, SQLStore(tenancy.recorder) as recorder:
        use_in_every_way(writer, tmp_path, deletes=True)
        for number, store in enumerate((writer, recorder)):
            for namespace in ("", "a", "b"):
                own = store.with_namespace(namespace)
                own.extend(f"{number}", [header(f"{number}"), said("x", b"bytes")])
        assert writer.namespaces() == recorder.namespaces() == ["", "a", "b"]
        assert all(len(recorder.with_namespace(name).list()) == 2 for name in ("", "a", "b"))
        assert writer.with_namespace("b").delete("1")
        with pytest.raises(Unavailable, match="42501"):
            recorder.with_namespace("b").delete("0")
    with SQLStore(tenancy.owner) as owner:
        assert owner.namespaces() == ["", "a", "b"], "the owner is beyond row security"


def test_who_is_given_rights_and_no_policy_has_the_namespace_of_its_name(tenancy: Tenancy) -> None:
    stranger = tenancy.roles.add("p", "GRANT ALL ON ALL TABLES IN SCHEMA public TO {}")
    with SQLStore(tenancy.writer, namespace="a") as store:
        store.append("s", header("s"))
    with SQLStore(stranger, namespace="a") as store:
        assert store.list() == []
        with pytest.raises(Unavailable, match="42501"):
            store.append("t", header("t"))
        own = store.with_namespace(name_of(stranger))
        assert own.append("s", header("s")) == 0
        tenancy.roles.run(
            *(
                f"CREATE POLICY reports ON {table} FOR SELECT TO {name_of(stranger)} USING (true)"
                for table in TABLES
            )
        )
        assert len(store.read("s")) == 1
        with pytest.raises(Unavailable, match="42501"):
            store.append("t", header("t"))


def verified(store: Any) -> list[Any]:
    """All that `verify` finds, whichever kind of store it is."""
    found = store.verify()
    if not isinstance(found, AsyncIterator):
        return list(found)

    async def all_of_them() -> list[Any]:
        return [finding async for finding in found]

    return list(store._run(all_of_them))


WHOLE: dict[str, Callable[[Any], object]] = {
    "erase_namespace": lambda store: store.erase_namespace(),
    "prune": lambda store: store.prune(older_than=timedelta(0)),
    "prune by number": lambda store: store.prune(keep_last=0),
    "a dry run": lambda store: store.prune(keep_last=0, dry_run=True),
    "collect_orphans": lambda store: store.collect_orphans(),
    "stats": lambda store: store.stats(),
    "verify": verified,
    "namespaces": lambda store: store.namespaces(),
}
"""What speaks of all rows of a namespace, or of the database."""
DELETING = ["erase_namespace", "prune", "prune by number", "collect_orphans"]
HIDES = (
    r"^row security hides from this role what .* ha(s|ve): run this as the owner or the writer, or,"
    " as a tenant, for the namespace of its own name$"
)


@pytest.mark.parametrize("schema", [None, 'we"ird %x'])
@pytest.mark.parametrize("driver", DRIVERS)
def test_who_may_not_see_all_rows_is_told_so_and_not_that_there_are_none(
    roles: Roles, driver: str, schema: str | None
) -> None:
    """No proof that nothing is left stands on what a role is not shown."""
    tenancy = Tenancy(roles, schema)
    tenant, stranger = tenancy.tenant("b"), tenancy.stranger()
    with tenancy.store(tenancy.writer, namespace="a") as store:
        store.extend("s", [header("s", title=MARK), said(MARK, b"bytes")])
    before = tenancy.dump()
    for role in (tenant, stranger):
        with DRIVERS[driver](role, schema=schema) as connected_store:
            for (name, call), namespace in itertools.product(WHOLE.items(), ("a", "nobody's", "")):
                with pytest.raises(Unavailable, match=HIDES) as error:
                    call(connected_store.with_namespace(namespace))
                assert MARK not in str(error.value), name
    assert tenancy.dump() == before


@pytest.mark.parametrize("name", WHOLE)
def test_who_may_see_all_rows_of_its_namespace_is_not(tenancy: Tenancy, name: str) -> None:
    tenant = tenancy.tenant("a")
    gate = tenancy.roles.add("p", "ALTER ROLE {} NOINHERIT", "GRANT a TO {}")
    member = tenancy.roles.add("p", "GRANT {writer} TO {{}}".format(**tenancy.names))
    beyond = tenancy.stranger("ALTER ROLE {} BYPASSRLS")
    superuser = tenancy.roles.url
    for role in (tenant, tenancy.writer, member, beyond, superuser, tenancy.owner):
        with SQLStore(tenancy.writer, namespace="a") as writer:
            writer.append("s", header("s"))
        with SQLStore(role, namespace="a") as store:
            if name == "namespaces" and role is tenant:
                with pytest.raises(Unavailable, match=HIDES):
                    store.namespaces()
            else:
                WHOLE[name](store)
    with SQLStore(tenancy.owner, namespace="a") as store:
        WHOLE[name](store)
        assert len(store.list()) == (name not in ("erase_namespace", "prune", "prune by number"))
    engine = create_engine(gate)
    store = SQLStore(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL ROLE a")
        if name != "namespaces":
            WHOLE[name](store.with_namespace("a").using(connection))
        with pytest.raises(Unavailable, match=HIDES):
            WHOLE[name](store.with_namespace("b").using(connection))
    engine.dispose()


def test_what_a_policy_of_somebody_elses_shows_is_asked_of_each_table_and_command(
    tenancy: Tenancy,
) -> None:
    """One who may read all may count all, and not say that all is gone."""
    reports = tenancy.stranger()
    stores = [SQLStore(reports, namespace="a"), SQLStore(tenancy.writer, namespace="a")]
    store, writer = stores
    writer.append("s", header("s"))
    for table in TABLES:
        with pytest.raises(Unavailable, match=HIDES):
            store.stats()
        tenancy.roles.run(f"CREATE POLICY r ON {table} FOR SELECT TO PUBLIC USING (true)")
    assert store.stats().sessions == 1
    assert store.prune(keep_last=0, dry_run=True).sessions == 1
    assert store.namespaces() == ["a"]
    for name in DELETING:
        with pytest.raises(Unavailable, match=HIDES):
            WHOLE[name](store)
    for table, command in itertools.product(TABLES, ("DELETE", "UPDATE")):
        with pytest.raises(Unavailable, match=HIDES):
            store.erase_namespace()
        policy = f"CREATE POLICY {command} ON {table} FOR {command} TO {name_of(reports)}"
        tenancy.roles.run(f"{policy} USING (true)")
    assert store.erase_namespace().sessions == 1
    for table in TABLES:
        tenancy.roles.run(f"CREATE POLICY x ON {table} AS RESTRICTIVE USING (namespace < 'x')")
        for each in stores:
            with pytest.raises(Unavailable, match=HIDES):
                each.stats()
        with SQLStore(tenancy.owner) as owner:
            assert owner.stats().sessions == 0
        tenancy.roles.run(
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        )
        with SQLStore(tenancy.owner) as owner, pytest.raises(Unavailable, match=HIDES):
            owner.stats()
        tenancy.roles.run(
            f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY", f"DROP POLICY x ON {table}"
        )
    for each in stores:
        each.close()


def test_the_command_line_says_so_too(tenancy: Tenancy) -> None:
    tenant = tenancy.tenant("a")
    with SQLStore(tenancy.writer, namespace="b") as writer:
        writer.append("s", header("s"))
    for command in (
        ["db", "verify"],
        ["db", "verify", "--namespace", "b"],
        ["db", "collect-orphans"],
        ["erase", "b", "--yes"],
        ["erase", "b"],
        ["prune", "--keep-last", "0", "--namespace", "b"],
        ["stats", "--namespace", "b"],
    ):
        done = invoke(*command, url=tenant)
        assert done.exit_code == 1, command
        assert done.output.startswith("Error: row security hides from this role "), command
    done = invoke("db", "verify", "--namespace", "a", url=tenant)
    assert (done.exit_code, done.output) == (0, "sound\n")


def test_the_group_of_the_tenants_has_no_namespace(tenancy: Tenancy) -> None:
    """For each of them may take its role."""
    group = tenancy.names["tenants"]
    with SQLStore(tenancy.writer, namespace=group) as writer:
        writer.append("s", header("s"))
    for tenant in (tenancy.tenant("a"), tenancy.tenant("b")):
        engine = create_engine(tenant)
        store = SQLStore(engine, namespace=group)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL ROLE {group}")
            joined = store.using(connection)
            assert joined.list() == []
            with pytest.raises(Unavailable, match="42501"):
                joined.append("t", header("t"))
            for call in WHOLE.values():
                with pytest.raises(Unavailable, match=HIDES):
                    call(joined)
        engine.dispose()


def test_a_policy_of_an_earlier_text_is_replaced_by_that_of_the_next(tenancy: Tenancy) -> None:
    group = tenancy.names["tenants"]
    tenancy.roles.run(
        *(
            f"ALTER POLICY turnkeep_tenants ON {table} USING (namespace = CURRENT_USER::text)"
            for table in TABLES
        )
    )
    tenancy.grant()
    with connected(tenancy.roles.url) as connection:
        found = connection.execute(
            "SELECT pg_get_expr(polqual, polrelid) FROM pg_policy"
            " WHERE polname = 'turnkeep_tenants'"
        ).fetchall()
    assert len(found) == len(TABLES)
    assert all(f"'{group}'" in policy for (policy,) in found)


SEES_MORE = r'^tenants who could see more than their namespace: "a b"\n'
MEMBERSHIPS = {
    "the writer's": "GRANT {writer} TO {{}}",
    "the recorder's": "GRANT {recorder} TO {{}}",
    "the owner's": "GRANT {owner} TO {{}}",
    "a superuser": "ALTER ROLE {{}} SUPERUSER",
    "beyond row security": "ALTER ROLE {{}} BYPASSRLS",
    "makes roles": "ALTER ROLE {{}} CREATEROLE",
    "of a superuser": "GRANT super TO {{}}",
    "of one beyond row security": "GRANT beyond TO {{}}",
    "of one that makes roles": "GRANT makes TO {{}}",
}


@pytest.mark.parametrize("way", MEMBERSHIPS)
def test_a_tenant_who_could_see_more_is_found_when_rights_are_given(
    tenancy: Tenancy, way: str
) -> None:
    tenancy.tenant("sound")
    tenancy.roles.add("p", "ALTER ROLE {} SUPERUSER", name="super")
    tenancy.roles.add("p", "ALTER ROLE {} BYPASSRLS", name="beyond")
    tenancy.roles.add("p", "ALTER ROLE {} CREATEROLE", name="makes")
    tenancy.tenant("a b", MEMBERSHIPS[way].format(**tenancy.names))
    with pytest.raises(psycopg.errors.RaiseException, match=SEES_MORE):
        tenancy.grant()
    tenancy.roles.run('REVOKE {tenants} FROM "a b"'.format(**tenancy.names))
    tenancy.grant()
    groups = tenancy.names["tenants"]
    between = tenancy.roles.add("p", f"GRANT {groups} TO {{}}", name="between")
    tenancy.roles.run(f'GRANT {between.username} TO "a b"')
    if way != "a superuser":  # who is a member of every role
        with pytest.raises(psycopg.errors.RaiseException, match=SEES_MORE):
            tenancy.grant()


def test_a_tenant_who_is_made_a_member_of_others_sees_no_more(tenancy: Tenancy) -> None:
    """A policy that restricts holds for a member, whatever others allow."""
    names = tenancy.names
    tenant = tenancy.tenant("a", "GRANT {writer}, {recorder} TO {{}}".format(**names))
    tenancy.tenant("b", "GRANT a TO {}")
    with SQLStore(tenancy.writer) as writer:
        for namespace in ("a", "b"):
            writer.with_namespace(namespace).append("s", header("s"))
    with SQLStore(tenant, namespace="a") as store:
        assert store.stats().sessions == 1
        with pytest.raises(Unavailable, match="42501"):
            store.with_namespace("b").append("t", header("t"))
        assert store.with_namespace("a").delete("s")


def test_a_tenant_who_is_a_member_of_another_is_found(tenancy: Tenancy) -> None:
    tenancy.tenant("sound")
    tenancy.tenant("a b", "GRANT sound TO {}")
    with pytest.raises(psycopg.errors.RaiseException, match=SEES_MORE):
        tenancy.grant()
    tenancy.roles.run('REVOKE sound FROM "a b"')
    tenancy.grant()


def test_a_group_between_a_tenant_and_the_tenants_is_found(tenancy: Tenancy) -> None:
    """All its members could take its role, and share a namespace."""
    tenancy.roles.add("p", "GRANT {tenants} TO {{}}".format(**tenancy.names), name="between")
    tenancy.grant()
    tenancy.roles.add("p", "GRANT between TO {}", name="a b")
    with pytest.raises(psycopg.errors.RaiseException, match=SEES_MORE):
        tenancy.grant()


def test_a_login_that_takes_tenants_roles_without_their_rights_is_none_of_them(
    tenancy: Tenancy,
) -> None:
    for name in ("a", "b"):
        tenancy.tenant(name)
    tenancy.roles.add("p", "ALTER ROLE {} NOINHERIT", "GRANT a, b TO {}", name="a b")
    tenancy.grant()
    tenancy.roles.add("p", "GRANT a, b TO {}", name="inherits")
    with pytest.raises(psycopg.errors.RaiseException, match="namespace: inherits"):
        tenancy.grant()


def test_tenants_get_no_rights_while_row_security_is_off(roles: Roles) -> None:
    with SQLStore(roles.url) as store:
        store.upgrade()
        store.append("s", header("s"))
    group = f"group_{next(_numbers)}"
    roles.add(name=group)
    tenant = roles.add("p", f"GRANT {group} TO {{}}")
    with pytest.raises(psycopg.errors.RaiseException, match="upgrade --row-security comes first"):
        roles.grants("--tenants", group)
    with SQLStore(tenant) as store, pytest.raises(Unavailable, match="42501"):
        store.list()
