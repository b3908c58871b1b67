"""What calls cost as a database grows, and by which index they find rows; `budget` has the rest."""

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg.pq import Trace
from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.sql import ClauseElement

from contention import header, said
from inspection import driver_connection
from servers import PostgresServer
from turnkeep import SQLStore, sql, sql_delete, sql_orphans, sql_retention
from turnkeep.dialect import DIALECTS
from turnkeep.prepared import Prepared
from turnkeep.sql_walk import Value
from turnkeep.tables import utc_text

# What goes over the wire


class Watched:
    """The statements that a database ran, each by its verb, and how often one waited for it."""

    def __init__(self) -> None:
        self.verbs: list[str] = []
        self.text = ""
        """All that was said, with the statements in it."""
        self.trips = 0


@contextmanager
def watched(target: SQLStore | Engine) -> Iterator[Watched]:
    """See what the one connection of a store, or of an engine's pool, is made to do."""
    seen = Watched()
    driver: Any
    if isinstance(target, SQLStore):
        driver, dialect = driver_connection(target), target._database.engine.dialect
    else:
        dialect = target.dialect
        with target.connect() as connection:
            driver = connection.connection.driver_connection
    if dialect.name == "sqlite":
        statements: list[str] = []
        driver.set_trace_callback(statements.append)
        yield seen
        driver.set_trace_callback(None)
        seen.verbs += [statement.split()[0] for statement in statements]
        seen.text = "\n".join(statements)
        return
    # All messages of the protocol, as the server and libpq told them to each other.
    with tempfile.TemporaryFile("w+") as trace:
        driver.pgconn.trace(trace.fileno())
        driver.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        yield seen
        driver.pgconn.untrace()
        trace.seek(0)
        seen.text = trace.read()
    for line in seen.text.splitlines():
        sender, _, kind, *rest = [*line.split("\t"), "", ""]
        if (sender, kind) == ("B", "CommandComplete"):
            seen.verbs.append(rest[0].strip(' "').split()[0])
        seen.trips += (sender, kind) == ("B", "ReadyForQuery")


Call = Callable[[SQLStore, int], object]
"""A call on a store that has the session s, whose last position it is given."""

READS: dict[str, Call] = {
    "read": lambda s, _: s.read("s"),
    "tail": lambda s, _: s.tail("s", 20),
    "page": lambda s, _: s.page("s", limit=10),
    "page after": lambda s, _: s.page("s", after=2, limit=10),
    "page before": lambda s, _: s.page("s", before=3, limit=10),
    "get": lambda s, _: s.get("s"),
    "list": lambda s, _: s.list(),
    "list of a cwd": lambda s, _: s.list("/w", limit=50),
    "read of nothing": lambda s, _: s.read("nobody"),
}
APPENDS: dict[str, Call] = {
    "append": lambda s, _: s.append("s", said("x")),
    "append at a time": lambda s, _: s.append("s", said("x", recorded_at="2026-11-30T12:00:00Z")),
    "append with a key": lambda s, last: s.append("s", said("x"), idempotency_key=f"{last}"),
    "append with a position": lambda s, last: s.append("s", said("x"), expected_position=last),
    "append with both": lambda s, last: s.append(
        "s", said("x"), expected_position=last, idempotency_key=f"{last}"
    ),
    "extend by one": lambda s, _: s.extend("s", [said("x")]),
}


@pytest.fixture(params=["sqlite", "postgres", "sqlite of a host", "postgres of a host"])
def watchable(request: pytest.FixtureRequest) -> Iterator[SQLStore]:
    """A store of three sessions, by URL or on an engine of a host's."""
    kind, _, host = request.param.partition(" of ")
    url = request.getfixturevalue(f"{kind}_url")
    with SQLStore(create_engine(url) if host else url, migrate=True) as store:
        for session in ("s", "r", "t"):
            store.extend(session, [header(session), *[said("x")] * 3])
        yield store
        if host:
            store._database.engine.dispose()


def cost(store: SQLStore, call: Call) -> Watched:
    """What *call* costs when the driver knows it: psycopg prepares what it ran five times."""
    for _ in range(7):
        header_of_s = store.get("s")
        assert header_of_s is not None
        assert header_of_s.last_position is not None
        with watched(store) as seen:
            call(store, header_of_s.last_position)
    return seen


def is_postgres(store: SQLStore) -> bool:
    return store._database.engine.dialect.name == "postgresql"


def test_other_writes_are_one_transaction_that_says_its_level(watchable: SQLStore) -> None:
    seen = cost(watchable, lambda s, _: s.append("s", said("x", b"bytes")))
    assert (seen.verbs[0], seen.verbs[-1]) == ("BEGIN", "COMMIT")
    assert seen.verbs.count("BEGIN") == 1
    assert len(seen.verbs) <= 6
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED" if is_postgres(watchable) else "BEGIN IMMEDIATE"
    assert seen.text.count(begin) == 1
    if is_postgres(watchable):
        assert seen.trips == len(seen.verbs)


def test_a_call_costs_as_many_statements_whatever_there_is(watchable: SQLStore) -> None:
    calls = READS | APPENDS
    before = {name: cost(watchable, call).verbs for name, call in calls.items()}
    for number in range(60):
        watchable.append(f"{number}", header(f"{number}"))
    watchable.extend("s", [said(f"{number}") for number in range(300)])
    assert {name: cost(watchable, call).verbs for name, call in calls.items()} == before
    with watched(watchable) as seen:
        sessions = [watchable.read(session) for session in ("s", "r", "t")]
    assert min(len(session) for session in sessions) > 3
    assert seen.verbs == ["SELECT"] * 3


def test_attachments_cost_one_statement_more_however_many_they_are(watchable: SQLStore) -> None:
    watchable.extend("t", [said("x", b"one"), *[said("y")] * 5])
    assert cost(watchable, lambda s, _: s.read("t")).verbs == ["SELECT"] * 2
    many = [said("z", b"one", *[bytes([i, j]) for j in range(5)]) for i in range(30)]
    watchable.extend("t", many)
    reads: list[Call] = [lambda s, _: s.read("t"), lambda s, _: s.tail("t", 30)]
    for call in reads:
        assert cost(watchable, call).verbs == ["SELECT"] * 2
    assert cost(watchable, lambda s, _: s.attachments("t")).verbs == ["SELECT"]
    assert cost(watchable, lambda s, _: s.read("t", attachments=False)).verbs == ["SELECT"]
    assert watchable.tail("t", 30) == many


def test_a_listing_reads_sessions_only(watchable: SQLStore) -> None:
    last = watchable.list()[1]
    calls: list[Call] = [
        lambda s, _: s.list(),
        lambda s, _: s.list("/w", limit=50),
        lambda s, _: s.list("/w", limit=50, before=last),
    ]
    for call in calls:
        with watched(watchable) as seen:
            call(watchable, 0)
        assert seen.verbs == ["SELECT"]
        assert "turnkeep_sessions" in seen.text
        for other in ("payload", "entries", "blobs", "attachments"):
            assert other not in seen.text


def test_a_joined_append_is_a_savepoint_around_one_statement(postgres_url: URL) -> None:
    engine = create_engine(postgres_url)
    with SQLStore(engine, migrate=True) as store:
        store.append("s", header("s"))
        for _ in range(7):
            with watched(engine) as seen, engine.begin() as connection:
                store.using(connection).append("s", said("x"))
        assert seen.verbs == ["BEGIN", "SAVEPOINT", "INSERT", "RELEASE", "COMMIT"]
    engine.dispose()


# By which index rows are found

SESSIONS = 100_000
ENTRIES = 20_000
FILL = [
    """
    INSERT INTO turnkeep_sessions (namespace, id, schema_version, cwd, cwd_digest, created_at,
        model, riffer_rig_version, riffer_version, title, updated_at, last_position,
        last_recorded_at)
    SELECT '', 's' || i, 1, '/' || mod(i, 100), sha256(convert_to('/' || mod(i, 100), 'UTF8')),
        '2026-11-30T12:00:00Z', 'm', '', '', '',
        timestamptz '2026-11-30 12:00Z' + mod(i * 7919, {sessions}) * interval '1 second', 0, ''
    FROM generate_series(1, {sessions}::bigint) AS i
    """,
    """
    INSERT INTO turnkeep_entries (namespace, session_id, position, type, idempotency_key,
        attachments, payload)
    SELECT '', 's' || CASE WHEN i <= {entries} THEN 1 ELSE i - {entries} END,
        CASE WHEN i <= {entries} THEN i ELSE 0 END, 'message', i, 0, '{{"message":{{}}}}'
    FROM generate_series(1, 2 * {entries}) AS i
    """,
    """
    INSERT INTO turnkeep_blobs (namespace, digest, size, data)
    SELECT '', sha256(convert_to(i::text, 'UTF8')), 1, 'x' FROM generate_series(1, 5000) AS i
    """,
    """
    INSERT INTO turnkeep_attachments (namespace, session_id, position, ordinal, path, digest)
    SELECT '', 's' || CASE WHEN i <= 500 THEN 1 ELSE i END, CASE WHEN i <= 500 THEN i ELSE 0 END,
        0, '[]', sha256(convert_to(i::text, 'UTF8'))
    FROM generate_series(1, 5000) AS i
    """,
    "ANALYZE",
]


@pytest.fixture(scope="module")
def large(postgres: PostgresServer) -> Iterator[Connection]:
    """A connection to a Postgres database of many sessions, one of them long."""
    url = postgres.create_database("large")
    with SQLStore(url) as store:
        store.upgrade()
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in FILL:
            connection.exec_driver_sql(statement.format(sessions=SESSIONS, entries=ENTRIES))
        yield connection
    engine.dispose()


SESSION = {"ns": "", "sid": "s1"}
DIGESTS = [bytes([i]) * 32 for i in range(3)]
WHEN = datetime(2026, 11, 30, 20, tzinfo=UTC)
LATER = datetime(2026, 12, 1, 10, tzinfo=UTC)
ORPHANS = (sql_orphans.ENTRIES, sql_orphans.ATTACHMENTS, sql_orphans.BLOBS)
HEADERS = {"ns": "", "count": 50}
OF_CWD = {"cwd_digest": sql.cwd_digest("/7")}
OLDER = {"updated": WHEN, "id": "s5"}
LISTS: dict[str, tuple[Prepared, dict[str, Any], str]] = {
    "list": (sql.LIST[False, False], HEADERS, "turnkeep_sessions_updated"),
    "list before": (sql.LIST[False, True], HEADERS | OLDER, "turnkeep_sessions_updated"),
    "list of a cwd": (sql.LIST[True, False], HEADERS | OF_CWD, "turnkeep_sessions_cwd"),
    "list of a cwd before": (
        sql.LIST[True, True],
        HEADERS | OF_CWD | OLDER,
        "turnkeep_sessions_cwd",
    ),
}
RANGE = SESSION | {"first": 100, "last": 140, "count": 20}
PAGES: dict[str, tuple[Prepared, dict[str, Any], str]] = {
    "tail": (sql.TAIL, RANGE, "Backward"),
    "page after": (sql.AFTER, RANGE, "Forward"),
    "page before": (sql.BEFORE, RANGE, "Backward"),
}
OTHERS: dict[str, tuple[ClauseElement | Prepared, dict[str, Any]]] = {
    "read": (sql.READ, {"ns": "", "sid": "s500"}),
    "get": (sql.GET, SESSION),
    "blobs": (sql.BLOBS, RANGE),
    "state": (sql.LOCKED_STATE, SESSION),
    "header": (sql.HEADER_PAYLOAD, SESSION),
    "known keys": (sql.KNOWN, SESSION | {"keys": ["a", "b"]}),
    "stored": (sql.STORED, RANGE),
    "known blobs": (sql.KNOWN_BLOBS, {"ns": "", "digests": DIGESTS}),
    "lock blobs": (sql_delete.LOCK_BLOBS, {"ns": "", "digests": DIGESTS}),
    "drop blobs": (sql_delete.DROP_BLOBS, {"ns": "", "digests": DIGESTS}),
    "delete attachments": (sql.DELETE_ATTACHMENTS, {"ns": "", "sid": "s500"}),
    "delete entries": (sql.DELETE_ENTRIES, {"ns": "", "sid": "s500"}),
    "delete session": (sql.DELETE_SESSION, {"ns": "", "sid": "s500"}),
}
IDS = [f"s{i}" for i in range(600, 640)]
SPAN = {"ns": "", "count": 500, "after": WHEN, "after_id": "s5", "below": LATER, "below_id": ""}
FROM = {"ns": "", "count": 500, "after_id": "s5", "after_id_is_text": 0}
WALKS: dict[str, tuple[ClauseElement | Prepared, dict[str, Any], str]] = {
    "look": (sql_retention.LOOK[False, True], SPAN, "turnkeep_sessions_updated"),
    "look first": (sql_retention.LOOK[False, False], SPAN, "turnkeep_sessions_updated"),
    "look in a cwd": (sql_retention.LOOK[True, True], SPAN | OF_CWD, "turnkeep_sessions_cwd"),
    "look first in a cwd": (
        sql_retention.LOOK[True, False],
        SPAN | OF_CWD,
        "turnkeep_sessions_cwd",
    ),
    "look at all": (sql_retention.LOOK_AT_ALL.next, FROM, "turnkeep_sessions_pkey"),
    "look at all first": (sql_retention.LOOK_AT_ALL.first, SPAN, "turnkeep_sessions_pkey"),
}
BATCHES: dict[str, tuple[ClauseElement | Prepared, dict[str, Any]]] = {
    "the one to keep": (sql_retention.NTH[False], {"ns": "", "place": 100}),
    "the one to keep in a cwd": (sql_retention.NTH[True], {"ns": "", "place": 100} | OF_CWD),
    **{
        name: (statement, {"ns": "", "sids": IDS})
        for name, statement in {
            "measure": sql_retention.MEASURE,
            "lock": sql_retention.LOCK,
            "lock the free": sql_retention.LOCK_FREE,
            "delete attachments of many": sql_delete.DELETE_ATTACHMENTS,
            "delete entries of many": sql_delete.DELETE_ENTRIES,
            "delete many sessions": sql_delete.DELETE_SESSIONS,
        }.items()
    },
}
FEW = {"ns": "another", "count": 2000}


def place(each: sql_orphans.OrphansOf) -> dict[str, Any]:
    """A place in its table, and another."""
    values = {sql_orphans.BLOBS: (b"",)}.get(each, ("", -1, -1))
    somewhere = tuple(map(Value, values[: len(each.keys.columns)]))
    return each.keys.values(somewhere) | each.keys.values(somewhere, "last")


SWEEPS: dict[str, tuple[ClauseElement | Prepared, dict[str, Any]]] = {
    **{
        f"{what} orphans of {each.table.name}, {where}": (statement, FEW | place(each))
        for each in ORPHANS
        for what, walk in (("find", each.find), ("drop", each.drop))
        for where, statement in (("first", walk.first), ("next", walk.next))
    },
    "left": (sql_retention.LEFT, {"ns": "another"}),
}
PLANS = ["custom", "generic"]
"""A plan for the values at hand, or the one that Postgres may keep for a prepared statement."""


def plan(
    connection: Connection,
    statement: ClauseElement | Prepared,
    values: dict[str, Any],
    kind: str,
    *,
    subplans: bool = False,
) -> list[dict[str, Any]]:
    """The nodes of the plan that Postgres makes of *statement*, those of subqueries if wanted."""
    if isinstance(statement, Prepared):
        statement = statement._statement
    compiled: Any = statement.compile(dialect=connection.dialect)
    state = compiled.construct_expanded_state(values)
    if kind == "generic":
        numbers = {name: f"${number}" for number, name in enumerate(state.parameters, start=1)}
        numbered = re.sub(r"%\((\w+)\)s", lambda match: numbers[match[1]], state.statement)
        found = connection.exec_driver_sql(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {numbered}")
    else:
        explain = f"EXPLAIN (FORMAT JSON) {state.statement}"
        found = connection.exec_driver_sql(explain, state.parameters)
    nodes, todo = [], [found.scalar_one()[0]["Plan"]]
    while todo:
        node = todo.pop()
        below = node.get("Plans", [])
        todo += below if subplans else [each for each in below if "Subplan Name" not in each]
        nodes.append(node)
    return nodes


def scans(nodes: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    return [node for node in nodes if node.get("Relation Name") == f"turnkeep_{table}"]


def types(nodes: list[dict[str, Any]]) -> set[str]:
    return {node["Node Type"] for node in nodes}


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("name", LISTS)
def test_a_listing_walks_an_index_backwards_from_where_it_begins(
    large: Connection, name: str, kind: str
) -> None:
    statement, values, index = LISTS[name]
    nodes = plan(large, statement, values, kind)
    assert types(nodes) == {"Limit", "Index Scan"}
    [scan] = scans(nodes, "sessions")
    assert (scan["Index Name"], scan["Scan Direction"]) == (index, "Backward")
    assert "Filter" not in scan
    assert ("ROW(" in scan["Index Cond"]) == ("before" in name)


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("name", PAGES)
def test_a_tail_and_a_page_walk_the_primary_key_from_where_they_begin(
    large: Connection, name: str, kind: str
) -> None:
    statement, values, direction = PAGES[name]
    nodes = plan(large, statement, values, kind)
    assert types(nodes) == {"Limit", "Index Scan"}
    [scan] = scans(nodes, "entries")
    assert (scan["Index Name"], scan["Scan Direction"]) == ("turnkeep_entries_pkey", direction)
    assert "position" in scan["Index Cond"]
    assert "Filter" not in scan


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("name", WALKS)
def test_a_batch_walks_an_index_from_where_the_last_one_ended(
    large: Connection, name: str, kind: str
) -> None:
    statement, values, index = WALKS[name]
    nodes = plan(large, statement, values, kind)
    assert types(nodes) == {"Limit", "Index Scan"}
    [scan] = scans(nodes, "sessions")
    assert (scan["Index Name"], scan["Scan Direction"]) == (index, "Forward")
    assert "Filter" not in scan
    bounds = 0 if "look at all" in name else 1 if "first" in name else 2
    assert scan["Index Cond"].count("ROW(") == 2 * bounds


@pytest.mark.parametrize("kind", PLANS)
def test_no_statement_reads_a_table_from_end_to_end(large: Connection, kind: str) -> None:
    entry = dict.fromkeys(("type", "key", "payload", "recorded_at"), "x")
    batch = {f"{name}s": ["x"] for name in ("type", "key", "payload", "stamp")} | {"counts": [1]}
    postgres = DIALECTS["postgresql"]
    one = {**SESSION, **entry, "expected": 5, "attachments": 0}
    several = {**SESSION, **batch, "expected": 5, "count": 1, "recorded_at": ""}
    writes: dict[str, tuple[ClauseElement | Prepared, dict[str, Any]]] = {
        **{f"append {flags}": (each, one) for flags, each in postgres._append.items()},  # type: ignore[attr-defined]
        **{f"extend {flags}": (each, several) for flags, each in postgres._extend.items()},  # type: ignore[attr-defined]
    }
    for name, (statement, values) in {**OTHERS, **BATCHES, **SWEEPS, **writes}.items():
        nodes = plan(large, statement, values, kind, subplans=True)
        assert "Seq Scan" not in types(nodes), name
        assert any("Index Name" in node for node in nodes), name


@pytest.mark.parametrize("analysed", [False, True])
def test_sqlite_finds_rows_by_the_same_indexes(sqlite_url: URL, analysed: bool) -> None:
    with SQLStore(sqlite_url) as store:
        for number in range(300):
            store.extend(f"{number}", [header(f"{number}"), said("x", b"%d" % number)])
        store.extend("1", [said(f"{number}", b"%d" % number) for number in range(300)])
    engine = create_engine(sqlite_url)
    with engine.connect() as connection:
        if analysed:
            connection.exec_driver_sql("ANALYZE")
        for name, (listing, values, index) in LISTS.items():
            [step] = sqlite_plan(connection, listing, values)
            assert step.startswith(f"SEARCH turnkeep_sessions USING INDEX {index} ("), name
            assert ("(updated_at,id)<(?,?)" in step) == ("before" in name)
        for page, values, _ in PAGES.values():
            step, *_ = sqlite_plan(connection, page, values)
            assert "SEARCH turnkeep_entries USING INDEX sqlite_autoindex" in step
            assert "position" in step
        for name, (walk, values, index) in WALKS.items():
            [step] = sqlite_plan(connection, walk, values)
            index = index.replace("turnkeep_sessions_pkey", "sqlite_autoindex_turnkeep_sessions_1")  # noqa: PLW2901
            assert step.startswith(f"SEARCH turnkeep_sessions USING INDEX {index} ("), name
            assert ("AND (updated_at,id)<(?,?)" in step) == ("look at all" not in name)
            assert (">(?,?)" in step or "id>?" in step) == ("first" not in name)
        for name, (statement, values) in {**OTHERS, **BATCHES, **SWEEPS}.items():
            steps = sqlite_plan(connection, statement, values)
            assert not [step for step in steps if step.startswith("SCAN turnkeep")], name
            assert any(step.startswith("SEARCH turnkeep") for step in steps), name
    engine.dispose()


def sqlite_plan(
    connection: Connection, statement: ClauseElement | Prepared, values: dict[str, Any]
) -> list[str]:
    """The steps of the plan that SQLite makes of *statement*, none of which sorts the rows."""
    if isinstance(statement, Prepared):
        statement = statement._statement
    times = {name: value for name, value in values.items() if isinstance(value, datetime)}
    given = values | {name: utc_text(value) for name, value in times.items()}
    compiled: Any = statement.compile(dialect=connection.dialect)
    state = compiled.construct_expanded_state(given)
    explain = f"EXPLAIN QUERY PLAN {state.statement}"
    found = connection.exec_driver_sql(explain, state.positional_parameters)
    steps = [row.detail for row in found]
    assert "USE TEMP B-TREE FOR ORDER BY" not in steps or "correlated" in " ".join(steps).lower()
    return steps
