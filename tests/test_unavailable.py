"""Connections that are lost, or can't be had."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    QueuePool,
    create_engine,
    func,
    select,
    text,
)

from conftest import Backend
from contention import header, said, together
from faults import held_by_a_process
from hosts import BATCH, assert_is_clean, note, notes, seed
from inspection import in_use
from servers import wait_for
from turnkeep import InvalidArgument, SQLStore, Unavailable, sql


def _stores(url: URL) -> Iterator[tuple[SQLStore, Engine]]:
    """A store that owns its engine, one that borrowed it; with each an engine to interfere by."""
    admin = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    for target in (url, create_engine(url)):
        store = SQLStore(target, migrate=True)
        seed(store)
        yield store, admin
        store.close()
        store._database.engine.dispose()


CALLS: list[Callable[[SQLStore], object]] = [
    lambda s: s.append("other", said("x")),
    lambda s: s.append("other", said("x", b"bytes")),
    lambda s: s.extend("other", BATCH),
    lambda s: s.read("other"),
    lambda s: s.tail("other", 1),
    lambda s: s.get("other"),
    lambda s: s.list(),
    lambda s: s.append("new", header("new")),
    lambda s: s.delete("new"),
]


def test_a_connection_that_the_server_ended_while_it_was_idle_fails_no_call(
    postgres_url: URL,
) -> None:
    mine = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    def are_gone(connection: Connection) -> bool:
        return bool(connection.scalar(text(f"SELECT count(*) {mine}")) == 0)

    for store, admin in _stores(postgres_url):
        for call in CALLS:
            together(*[lambda: store.read("other")] * 5)  # several connections  # noqa: B023
            with admin.connect() as connection:
                connection.execute(text(f"SELECT pg_terminate_backend(pid) {mine}"))
                wait_for(partial(are_gone, connection), "the connections are still there")
            call(store)
            assert in_use(store) == 0


def test_a_connection_that_ends_in_the_middle_of_a_read_costs_that_read_alone(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two statements, of which the second fetches the bytes."""
    fetch = sql.BLOBS.fetch
    enders: list[Engine] = []

    def ended(connection: Connection, values: Any) -> Any:
        for ender in enders:
            with ender.connect() as other:
                pid = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
                other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
        return fetch(connection, values)

    reads: list[Callable[[SQLStore], object]] = [
        lambda s: s.read("s"),
        lambda s: s.tail("s", 2),
        lambda s: s.page("s", after=1),
        lambda s: s.export_history("s", lossy=[]),
    ]
    monkeypatch.setattr(sql.BLOBS, "fetch", ended)
    for store, admin in _stores(postgres_url):
        for read in reads:
            found = read(store)
            enders.append(admin)
            with pytest.raises(Unavailable) as caught:
                read(store)
            assert_is_clean(caught.value)
            enders.clear()
            assert read(store) == found
            assert in_use(store) == 0


@pytest.mark.parametrize("forget", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_server_that_forgot_prepared_statements_fails_no_call(
    postgres_url: URL, forget: str
) -> None:
    engine = create_engine(postgres_url)
    for store, _ in _stores(postgres_url):
        for call in CALLS:
            for _ in range(10):  # the driver prepares what it ran five times
                call(store)
            with store._database.engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                assert driver.prepare_threshold == 5
                driver.pgconn.exec_(forget.encode())  # behind its back, as a pooler does
            for _ in range(10):
                call(store)
            with engine.begin() as connection:
                joined = store.using(connection)
                for _ in range(10):
                    call(joined)
                driver = connection.connection.driver_connection
                driver.pgconn.exec_(b"DEALLOCATE ALL")
                if call not in CALLS[3:7]:  # a read has no savepoint to go back to
                    for _ in range(10):
                        call(joined)
    engine.dispose()


def test_prepared_statements_are_turned_off_by_the_url_or_by_the_engine(postgres_url: URL) -> None:
    count = text("SELECT count(*) FROM pg_prepared_statements")
    off = create_engine(postgres_url, connect_args={"prepare_threshold": None})
    for target in (
        postgres_url.update_query_dict({"prepare_threshold": "none"}),
        postgres_url.update_query_dict({"prepare_threshold": "0"}),
        off,
    ):
        with SQLStore(target, migrate=True) as store:
            store.upgrade()
            seed(store)
            for call in CALLS * 6:
                call(store)
            with store._database.engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                at_once = driver.prepare_threshold == 0
                assert (connection.scalar(count) > 0) == at_once
    off.dispose()
    with pytest.raises(InvalidArgument, match="url"):
        SQLStore(postgres_url.update_query_dict({"prepare_threshold": "often"}))


def test_a_closed_store_is_unavailable(backend: Backend) -> None:
    store = backend.store()
    seed(store)
    other = store.with_namespace("n")
    store.close()
    calls = [*CALLS, SQLStore.upgrade, SQLStore.revision]
    for call in calls:
        for closed in (store, other):
            with pytest.raises(Unavailable, match="closed") as caught:
                call(closed)
            assert_is_clean(caught.value)


def test_a_pool_that_has_no_connection_to_give_is_unavailable(server_or_file: Backend) -> None:
    server_or_file.store().append("other", header("other"))
    engine = server_or_file.engine(
        poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.05
    )
    store = SQLStore(engine)
    store.read("other")
    for call in CALLS:
        with engine.connect(), pytest.raises(Unavailable, match="no connection") as caught:
            call(store)
        assert_is_clean(caught.value)
        call(store)


def test_a_file_that_stays_locked_is_unavailable_and_one_that_comes_free_is_waited_for(
    sqlite_url: URL,
) -> None:
    with SQLStore(sqlite_url) as store:
        seed(store)
    borrowed = create_engine(sqlite_url, connect_args={"timeout": 0.05})
    writes = [CALLS[0], CALLS[1], CALLS[2], CALLS[7], CALLS[8]]
    for target in (sqlite_url, borrowed):
        store = SQLStore(target, timeout=0.05)
        store.read("other")
        for call in writes:
            with held_by_a_process(sqlite_url):
                with pytest.raises(Unavailable, match="locked") as caught:
                    call(store)
                assert_is_clean(caught.value)
                with borrowed.connect() as connection:
                    with pytest.raises(Unavailable, match="locked") as caught:
                        call(store.using(connection))
                    assert_is_clean(caught.value)
                assert store.read("other")  # readers don't wait
            call(store)
        patient = SQLStore(target, timeout=60)
        with held_by_a_process(sqlite_url) as let_go, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(patient.append, "other", said("x"))
            while not waiting.running():
                time.sleep(0.01)
            time.sleep(0.3)  # several times what the driver itself would wait for
            let_go()
            assert waiting.result(60) > 0
        store.close()
        patient.close()
    borrowed.dispose()


def test_a_row_that_stays_locked_on_a_server_with_a_lock_timeout_is_unavailable(
    postgres_url: URL,
) -> None:
    for option in ("lock_timeout", "statement_timeout"):
        url = postgres_url.update_query_dict({"options": f"-c {option}=50"})
        with SQLStore(url, migrate=True) as store:
            store.upgrade()
            seed(store)
            engine = create_engine(postgres_url)
            for call in CALLS[:3]:
                with engine.connect() as connection:
                    store.using(connection).append("other", said("held"))
                    with pytest.raises(Unavailable, match="lock") as caught:
                        call(store)
                    assert_is_clean(caught.value)
                call(store)
            engine.dispose()


def test_a_database_in_memory_outlives_the_writes_that_it_refuses() -> None:
    with SQLStore("sqlite://") as store:
        seed(store)
        for state in ("ON", "OFF"):
            with store._database.engine.connect() as connection:
                connection.execute(text(f"PRAGMA query_only = {state}"))
            if state == "ON":
                with pytest.raises(Unavailable, match="only be read"):
                    CALLS[0](store)
        assert CALLS[0](store) == 2


def test_a_host_s_transaction_on_the_only_connection_is_not_ended_by_a_call() -> None:
    engine = create_engine("sqlite://")
    store = SQLStore(engine, migrate=True)
    seed(store)
    notes.create(engine)
    with engine.connect() as connection:
        note(connection)
        for call in CALLS:
            with pytest.raises(Unavailable, match="using") as caught:
                call(store)
            assert_is_clean(caught.value)
        store.using(connection).append("other", said("joined"))
        connection.commit()
        assert connection.scalar(select(func.count()).select_from(notes)) == 1
    assert store.read("other")[-1] == said("joined")
    engine.dispose()
