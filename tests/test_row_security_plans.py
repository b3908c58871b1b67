"""What row security costs: no statement more, and rows are found by the same indexes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, create_engine

from contention import header, said
from roles import Roles, Tenancy, name_of, use_in_every_way
from servers import PostgresServer, postgres_from_debian
from test_budget import BATCH
from test_statements import (
    APPENDS,
    FILL,
    LISTS,
    OTHERS,
    PAGES,
    PLANS,
    READS,
    Call,
    cost,
    plan,
    scans,
    types,
)
from turnkeep import SQLStore
from turnkeep.dialect import DIALECTS

EXTENDS: dict[str, Call] = {
    "extend": lambda s, _: s.extend("s", BATCH),
    "extend with a position": lambda s, last: s.extend("s", BATCH, expected_position=last),
}

SESSIONS, ENTRIES = 20_000, 5_000


@pytest.fixture(scope="module")
def large(postgres: PostgresServer) -> Iterator[dict[str, Connection]]:
    """Connections of a tenant and of the writer to a database in which two tenants have much."""
    url = postgres.create_database("large_tenants")
    roles = Roles(url)
    tenancy = Tenancy(roles)
    tenants = tenancy.tenant("much"), tenancy.tenant("more")
    for tenant in tenants:
        for statement in FILL[:-1]:
            filled = statement.replace("SELECT '',", f"SELECT '{name_of(tenant)}',")
            roles.run(filled.format(sessions=SESSIONS, entries=ENTRIES))
    roles.run(*FILL[-1:])
    engines = [
        create_engine(each, isolation_level="AUTOCOMMIT") for each in (tenants[0], tenancy.writer)
    ]
    with engines[0].connect() as one, engines[1].connect() as all_:
        yield {"tenant": one, "writer": all_}
    for engine in engines:
        engine.dispose()
    roles.close()
    postgres.drop_database("large_tenants")


ROLES = ["tenant", "writer"]


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("role", ROLES)
def test_listings_and_pages_walk_the_same_indexes(
    large: dict[str, Connection], role: str, kind: str
) -> None:
    """A tenant's name is compared once for a statement, not for each row."""
    wanted = {"Limit", "Index Scan"} | ({"Result"} if role == "tenant" else set())
    walks: dict[str, tuple[Any, dict[str, Any], str]] = {**LISTS, **PAGES}
    for name, (statement, values, index) in walks.items():
        nodes = plan(large[role], statement, {**values, "ns": "much"}, kind)
        assert types(nodes) == wanted, name
        [scan] = [node for node in nodes if "Index Name" in node]
        assert index in (scan["Index Name"], scan["Scan Direction"]), name
        assert "Filter" not in scan, name
        once = [node["One-Time Filter"] for node in nodes if "One-Time Filter" in node]
        assert len(once) == (role == "tenant"), name


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("role", ROLES)
def test_no_statement_reads_a_table_from_end_to_end(
    large: dict[str, Connection], role: str, kind: str
) -> None:
    entry = dict.fromkeys(("type", "key", "payload", "recorded_at"), "x")
    batch = {f"{name}s": ["x"] for name in ("type", "key", "payload", "stamp")} | {"counts": [1]}
    postgres: Any = DIALECTS["postgresql"]
    one = {"sid": "s1", **entry, "expected": 5, "attachments": 0}
    several = {"sid": "s1", **batch, "expected": 5, "count": 1, "recorded_at": ""}
    writes: dict[str, Any] = {
        **{f"append {flags}": (each, one) for flags, each in postgres._append.items()},
        **{f"extend {flags}": (each, several) for flags, each in postgres._extend.items()},
    }
    for name, (statement, values) in {**OTHERS, **writes}.items():
        nodes = plan(large[role], statement, {**values, "ns": "much"}, kind, subplans=True)
        assert "Seq Scan" not in types(nodes), name
        assert any("Index Name" in node for node in nodes), name
        for scan in scans(nodes, "sessions") + scans(nodes, "entries"):
            assert "CURRENT_USER" not in scan.get("Filter", ""), name


def test_a_call_costs_as_many_statements(tenancy: Tenancy) -> None:
    tenant = tenancy.tenant()
    with SQLStore(tenant, namespace=name_of(tenant)) as store:
        for session in ("s", "r", "t"):
            store.extend(session, [header(session), *[said("x")] * 3])
        for calls, verb in ((READS, "SELECT"), (APPENDS, "INSERT"), (EXTENDS, "INSERT")):
            for name, call in calls.items():
                seen = cost(store, call)
                assert (seen.verbs, seen.trips) == ([verb], 1), name


def test_a_server_whose_texts_are_a_language_s_does_the_same(tmp_path: Path) -> None:
    """PostgreSQL 15, the oldest that is supported, where names and namespaces have other orders."""
    with postgres_from_debian() as server:
        roles = Roles(server.create_database("tenants"))
        tenancy = Tenancy(roles)
        tenant, other = tenancy.tenant("Ärger"), tenancy.tenant("arger")
        with SQLStore(other, namespace="arger") as store:
            store.append("s", header("s"))
        with SQLStore(tenant, namespace="Ärger") as store:
            use_in_every_way(store, tmp_path, namespace="Ärger", deletes=True)
            store.append("s", header("s"))
            assert len(store.list()) == 1
            assert store.with_namespace("arger").list() == []
            with store._database.engine.connect() as connection:
                for name, (statement, values, _) in LISTS.items():
                    nodes = plan(connection, statement, {**values, "ns": "Ärger"}, "custom")
                    assert [n for n in nodes if "One-Time Filter" in n], name
        with SQLStore(tenancy.writer) as writer:
            assert writer.namespaces() == ["arger", "Ärger"]
        tenancy.roles.run('ALTER ROLE "Ärger" CREATEROLE')  # who could make itself the writer here
        with pytest.raises(psycopg.errors.RaiseException, match="see more"):
            tenancy.grant()
