"""Behind PgBouncer, which gives each transaction another connection to the server.

That the contract holds there is said where the contract is; this is what a pooler brings with it.
"""

import itertools
import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine

import migrating
from chaos import Account
from contention import SESSION, header, said, together
from hosts import assert_is_clean
from poolers import OPTION, POOL_SIZE, PgBouncer, pgbouncer_before, unaided
from servers import PostgresServer, postgres_from_wheel, wait_for
from turnkeep import AsyncSQLStore, SQLStore, Unavailable, revisions
from turnkeep.dialect.postgres import Postgres
from turnkeep.testing import Blocking

PAGE = Path(__file__).parents[1] / "docs" / "pgbouncer.md"
DRIVERS = {
    "psycopg": "postgresql+psycopg",
    "psycopg_async": "postgresql+psycopg_async",
    "asyncpg": "postgresql+asyncpg",
}
CALLS: list[Callable[[Any], object]] = [
    lambda s: s.append(SESSION, said("x")),
    lambda s: s.append(SESSION, said("x", b"bytes")),
    lambda s: s.extend(SESSION, [said("y"), said("z")]),
    lambda s: s.extend(SESSION, [said("y"), said("z", b"bytes")]),
    lambda s: s.read(SESSION),
    lambda s: s.page(SESSION, after=1),
    lambda s: s.get(SESSION),
    lambda s: s.tail(SESSION, 2),
    lambda s: s.list("/w", limit=2),
    lambda s: s.attachments(SESSION),
    lambda s: s.append(SESSION, said("keyed"), idempotency_key="k"),
    lambda s: s.extend(SESSION, [said("keyed")], idempotency_keys=["k"]),
    lambda s: s.collect_orphans(),
    lambda s: s.append("new", header("new")),
    lambda s: s.delete("new"),
]

_numbers = itertools.count()


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> str:
    """Each driver, by its name in a URL."""
    return str(request.param)


def open_store(url: URL, driver: str, **options: Any) -> Any:
    """A store on *url* by that driver, for sync callers."""
    url = url.set(drivername=DRIVERS[driver])
    if driver == "psycopg":
        return SQLStore(url, **options)
    return Blocking(lambda: AsyncSQLStore(url, **options))


@contextmanager
def begun(server: PostgresServer) -> Iterator[URL]:
    """A database with the tables and a session, by the direct way."""
    name = f"pooled_{next(_numbers)}"
    url = server.create_database(name)
    with SQLStore(url) as store:
        store.upgrade()
        store.append(SESSION, header())
    yield url
    server.drop_database(name)


# Many clients

CLIENTS = 32
ROUNDS = 3


def work(store: Any, number: int) -> tuple[dict[int, str], list[list[str]]]:
    """Write, begin, delete and read; what was written where, and the states that were seen."""
    written: dict[int, str] = {}
    seen: list[list[str]] = []
    for i in range(ROUNDS):
        name = f"{number}.{i}"
        written[store.append(SESSION, said(name, bytes([i]) * 500, name.encode()))] = name
        last = store.extend(SESSION, [said(f"{name} a"), said(f"{name} b", bytes([i]) * 500)])
        written |= {last - 1: f"{name} a", last: f"{name} b"}
        own = f"own {number}"
        store.extend(own, [header(own), said("x", bytes([i]) * 500)])
        assert store.delete(own)
        seen.append(texts(store.read(SESSION)))
    return written, seen


def texts(entries: list[Any]) -> list[str]:
    return [entry.message["content"] for entry in entries[1:]]


@pytest.mark.parametrize(
    "variant", ["as it comes", pytest.param("unaided", marks=pytest.mark.slow)]
)
def test_many_clients_share_a_few_connections_and_leave_no_gaps(
    postgres: PostgresServer, driver: str, variant: str
) -> None:
    settings = unaided() if variant == "unaided" else {}
    with (
        pgbouncer_before(postgres, settings) as pooler,
        begun(postgres) as url,
        ExitStack() as all_,
    ):
        pooled = pooler.opened(url)
        stores = [open_store(pooled, driver) for _ in range(CLIENTS)]
        for store in stores:
            all_.callback(store.close)
        outcomes = together(*[partial(work, store, n) for n, store in enumerate(stores)])
        assert [type(outcome) for outcome in outcomes] == [tuple] * CLIENTS, outcomes
        clients = [c for c in pooler.show("CLIENTS") if c["database"] == url.database]
        servers = [s for s in pooler.show("SERVERS") if s["database"] == url.database]
        assert len(clients) >= CLIENTS > POOL_SIZE == len(servers)
        with SQLStore(url) as direct:
            found = texts(direct.read(SESSION))
            assert [*direct.verify()] == []
            assert [h.id for h in direct.list()] == [SESSION]
    written = {position: content for own, _ in outcomes for position, content in own.items()}
    assert [written[position] for position in sorted(written)] == found
    assert sorted(written) == list(range(1, 1 + CLIENTS * ROUNDS * 3))
    for _, seen in outcomes:
        assert all(found[: len(state)] == state for state in seen)


# What is left behind on the connections to the server


PREPARED = "SELECT name FROM pg_prepared_statements"

FOUND = """
SELECT pg_backend_pid(),
    (SELECT count(*) FROM pg_prepared_statements),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
    (SELECT array_agg(name || ' ' || setting ORDER BY name) FROM pg_settings
        WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding'))
"""
"""What others would find there; PgBouncer itself sets those two as each client has them."""


def test_a_connection_to_the_server_is_left_as_it_was_found(
    pooler: PgBouncer, postgres_url: URL, driver: str
) -> None:
    def found() -> dict[int, Any]:
        with ExitStack() as held:
            connections = [held.enter_context(pooler.held(postgres_url)) for _ in range(POOL_SIZE)]
            return {pid: rest for c in connections for pid, *rest in c.execute(FOUND)}

    url = pooler.opened(postgres_url)
    before = found()
    with open_store(url, driver) as store:
        store.upgrade()
        store.append(SESSION, header())
        for call in CALLS * 7:
            call(store)
    assert found() == before
    assert len(before) == POOL_SIZE


def test_no_connection_is_given_up_while_all_is_well(
    pooler: PgBouncer, postgres_url: URL, driver: str
) -> None:
    made = []
    with open_store(pooler.opened(postgres_url), driver) as store:
        event.listen(store._database.engine.pool, "connect", lambda *_: made.append(1))
        store.upgrade()
        store.append(SESSION, header())
        for call in CALLS * 3:
            call(store)
    assert len(made) == 1


# A pooler that nobody told us of


@contextmanager
def made_unaware(url: URL, who: str) -> Iterator[Any]:
    """A store on *url*, whose driver would prepare statements."""
    if who == "owned":
        with SQLStore(url) as store:
            yield store
    elif who == "owned async":
        with Blocking(lambda: AsyncSQLStore(url)) as store:
            yield store
    else:
        engine = create_engine(url)
        yield SQLStore(engine) if who == "borrowed" else Joining(engine)
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.prepare_threshold == 5  # the host's setting is as it was
        engine.dispose()


class Joining:
    """A store each call of which is in a transaction of the host's."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._store = engine, SQLStore(engine)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with self._engine.begin() as connection:
                return getattr(self._store.using(connection), name)(*args, **options)

        return call


@pytest.mark.parametrize("who", ["owned", "owned async", "borrowed", "joined"])
def test_a_read_never_runs_the_statement_of_another_client(
    postgres: PostgresServer, who: str
) -> None:
    settings = {"default_pool_size": "2", **unaided()}
    with pgbouncer_before(postgres, settings) as pooler, begun(postgres) as url:
        unaware = url.set(port=pooler.port)
        with (
            SQLStore(url) as direct,
            made_unaware(unaware, who) as deleter,
            made_unaware(unaware, who) as reader,
            ExitStack() as first,
            ExitStack() as second,
        ):
            for number in range(7):
                direct.append(f"s{number}", header(f"s{number}"))
            first.enter_context(pooler.held(url))
            second.enter_context(pooler.held(url))
            first.close()
            for number in range(7):
                # Each of its statements once more than psycopg waits before it prepares it: the
                # fourth is the DELETE of the session.
                assert deleter.delete(f"s{number}")
            first.enter_context(pooler.held(url))
            second.close()
            for _ in range(7):
                for call in (
                    reader.read,
                    partial(reader.tail, count=1),
                    partial(reader.page, after=0),
                ):
                    call(SESSION)
                assert reader.get(SESSION) == header()  # the fourth, with the same parameters
            second.enter_context(pooler.held(url))
            first.close()
            assert reader.get(SESSION) == header()
            assert direct.get(SESSION) == header()


def test_a_url_that_asks_for_prepared_statements_has_them(postgres: PostgresServer) -> None:
    with pgbouncer_before(postgres, {"default_pool_size": "1"}) as pooler, begun(postgres) as url:
        given = url.set(port=pooler.port)
        for options, is_prepared in (({}, False), ({OPTION: "5"}, True)):
            with SQLStore(given.update_query_dict(options)) as store:
                for _ in range(8):
                    store.append(SESSION, said("x"))
            with pooler.held(url) as connection:
                assert bool(connection.execute(PREPARED).fetchall()) is is_prepared


def test_a_host_s_transaction_goes_on_where_a_pooler_is_looked_for(pooled_url: URL) -> None:
    bare = pooled_url.difference_update_query([OPTION])
    engine = create_engine(bare)
    store = SQLStore(engine)
    store.upgrade()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE app (name text)"))
    engine.dispose()  # so that each of these connections is a new one
    for ends in ("rollback", "commit"):
        with engine.connect() as connection:
            connection.execute(text("INSERT INTO app VALUES ('a')"))
            store.using(connection).append(SESSION, header())
            getattr(connection, ends)()
            rows = connection.scalar(text("SELECT count(*) FROM app"))
            assert (rows, len(store.read(SESSION))) == ((0, 0) if ends == "rollback" else (1, 1))
        engine.dispose()


@pytest.mark.parametrize("option", [None, "7", "none"])
def test_asyncpg_prepares_under_names_that_are_nobody_else_s_or_not_at_all(
    postgres: PostgresServer, option: str | None
) -> None:
    names: list[str] = []
    with begun(postgres) as url:
        given = url if option is None else url.update_query_dict({OPTION: option})
        for _ in range(2):
            with open_store(given, "asyncpg") as store:
                for call in CALLS:
                    call(store)

                async def look(engine: Any = store._database.engine) -> list[str]:
                    async with AsyncEngine(engine).connect() as connection:
                        return [*await connection.scalars(text(PREPARED))]

                names += store._run(look)
    assert bool(names) is (option != "none")
    assert len(names) == len(set(names))
    assert all(re.fullmatch("turnkeep_[0-9a-f]{32}", name) for name in names)


# The page


def test_the_engines_on_the_page_work_behind_a_pooler(pooler: PgBouncer, postgres_url: URL) -> None:
    [code] = re.findall(r"```python\n(# elsewhere: an engine.*?)```", PAGE.read_text(), re.DOTALL)
    url = pooler.opened(postgres_url).difference_update_query([OPTION])
    there = url.render_as_string(hide_password=False).partition("://")[2]
    names: dict[str, Any] = {}
    assert "user:password@pooler:6432/app" in code
    exec(code.replace("user:password@pooler:6432/app", there), names)
    stores: list[Any] = [SQLStore(names["engine"])]
    stores += [
        Blocking(partial(AsyncSQLStore, names[name])) for name in ("async_engine", "asyncpg_engine")
    ]
    stores[0].upgrade()
    stores[0].append(SESSION, header())
    for call in CALLS * 6:
        together_ = together(*[partial(call, store) for store in stores])
        assert not [o for o in together_ if isinstance(o, Exception)], together_
    for store, name in zip(stores[1:], ("async_engine", "asyncpg_engine"), strict=True):
        store._run(names[name].dispose)
        store.close()
    names["engine"].dispose()
    with pooler.held(postgres_url) as connection:
        assert connection.execute(PREPARED).fetchall() == []


# Migrations


def test_processes_go_on_when_the_one_that_migrates_through_a_pooler_is_killed(
    pooled_url: URL, postgres_url: URL, tmp_path: Path
) -> None:
    hanging = migrating.with_revision(tmp_path / "hanging", migrating.HANG)
    spawn = multiprocessing.get_context("spawn")
    first = spawn.Process(target=migrating.hang, args=(pooled_url, hanging))
    first.start()
    engine = create_engine(postgres_url)
    try:
        wait_for((hanging / "versions" / "holds").exists, "no migration began")
        with ThreadPoolExecutor(2) as threads, engine.connect() as direct:
            stores = [SQLStore(pooled_url) for _ in range(2)]
            calls = [threads.submit(store.upgrade) for store in stores]
            waits = text(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            )
            wait_for(lambda: direct.scalar(waits) == 2, "not both wait for the lock")
            direct.rollback()
            first.kill()
            for call in calls:
                call.result(migrating.WAIT_SECONDS)
            for store in stores:
                assert store.revision() == revisions.head()
                store.close()
    finally:
        first.kill()
        first.join()
        engine.dispose()


def test_a_lock_that_stays_held_ends_a_migration_through_a_pooler(
    pooled_url: URL, postgres_url: URL, driver: str
) -> None:
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with open_store(pooled_url, driver, timeout=0.2) as store:
        with engine.connect() as holder:
            holder.execute(text(f"SELECT pg_advisory_lock({Postgres.MIGRATION_LOCK})"))
            for _ in range(2 * POOL_SIZE):
                with pytest.raises(Unavailable, match="lock"):
                    store.upgrade()
            holder.execute(text("SELECT pg_advisory_unlock_all()"))
        store.upgrade()
    engine.dispose()


# What fails


def test_a_pooler_that_was_restarted_while_all_lay_idle_fails_no_call(
    postgres: PostgresServer, driver: str
) -> None:
    with (
        pgbouncer_before(postgres) as pooler,
        begun(postgres) as url,
        open_store(pooler.url(url), driver) as store,
    ):
        for call in CALLS[:5]:
            together(*[partial(store.read, SESSION)] * 5)  # several connections
            pooler.restart()
            call(store)


def test_a_pooler_that_has_no_connection_to_give_is_unavailable(
    postgres: PostgresServer, driver: str
) -> None:
    settings = {"default_pool_size": "1", "query_wait_timeout": "1"}
    with (
        pgbouncer_before(postgres, settings) as pooler,
        begun(postgres) as url,
        open_store(pooler.url(url), driver) as store,
    ):
        store.read(SESSION)
        with pooler.held(url):
            outcomes = together(*[partial(call, store) for call in CALLS])
        for outcome in outcomes:
            assert isinstance(outcome, Unavailable), outcome
            assert_is_clean(outcome)
        for call in CALLS:
            call(store)


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    with postgres_from_wheel() as server:
        yield server


@pytest.mark.parametrize("what", ["the pooler", "the server behind it"])
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.chaos)])
def test_what_was_acknowledged_through_a_pooler_is_there_whatever_is_killed(
    mortal: PostgresServer, account: Account, what: str, kills: int
) -> None:
    with pgbouncer_before(mortal) as pooler, begun(mortal) as url, ExitStack() as all_:
        stores = [all_.enter_context(open_store(pooler.url(url), driver)) for driver in DRIVERS]
        with account.writing(stores):
            for _ in range(kills):
                account.wait_for_progress()
                (pooler if what == "the pooler" else mortal).restart()
            account.wait_for_progress()
        with SQLStore(url) as direct:
            account.check(direct, f"{kills} kills of {what}")
