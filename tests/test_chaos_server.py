"""A server that crashes, and one that ends connections, while writers of each kind are at work."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import URL, NullPool, create_engine, text

from chaos import DRIVERS, Account, opened
from contention import SESSION, header, said, together
from hosts import assert_is_clean
from servers import PostgresServer, postgres_from_wheel, wait_for
from turnkeep import SQLStore, Unavailable


@pytest.fixture(scope="module")
def crashing() -> Iterator[PostgresServer]:
    """A server that waits for the disk, as those do that must not lose what they said."""
    with postgres_from_wheel(fsync=True) as server:
        yield server


@pytest.fixture
def place(crashing: PostgresServer) -> Iterator[URL]:
    """A database there with the tables, and the session that all write."""
    url = crashing.create_database("chaos")
    with SQLStore(url) as store:
        store.upgrade()
        store.append(SESSION, header())
    yield url
    crashing.drop_database("chaos")


@pytest.fixture
def stores(place: URL) -> Iterator[list[Any]]:
    """One of each kind."""
    with ExitStack() as stack:
        yield [stack.enter_context(opened(kind, place)) for kind in DRIVERS]


def assert_works_at_once(stores: list[Any]) -> None:
    """Of stores whose connections may all be dead: none of the first calls may meet one."""
    for store in stores:
        calls = [lambda store=store: store.read(SESSION)] * 8
        assert all(isinstance(found, list) for found in together(*calls))


@pytest.mark.parametrize("restarts", [2, pytest.param(20, marks=pytest.mark.chaos)])
def test_a_server_that_crashes_under_writers_loses_nothing_that_it_acknowledged(
    crashing: PostgresServer, place: URL, stores: list[Any], account: Account, restarts: int
) -> None:
    with account.writing(stores):
        for _ in range(restarts):
            account.wait_for_progress()
            time.sleep(random.uniform(0, 0.2))
            crashing.restart("immediate")
        account.wait_for_progress()
    crashing.restart("immediate")
    assert_works_at_once(stores)
    with SQLStore(place) as store:
        account.check(store, f"{restarts} crashes")


@pytest.mark.parametrize("kills", [30, pytest.param(600, marks=pytest.mark.chaos)])
def test_connections_that_the_server_ends_under_writers_cost_no_more_than_their_calls(
    place: URL, stores: list[Any], account: Account, kills: int
) -> None:
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    terminate = text(f"SELECT pg_terminate_backend(pid) {others} ORDER BY random() LIMIT :some")
    admin = create_engine(place, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    ended = 0
    with account.writing(stores), admin.connect() as connection:
        while ended < kills:
            account.wait_for_progress(1)
            for _ in range(5):
                some = random.choice([1, 1, 1, 2, 100])
                ended += len(connection.execute(terminate, {"some": some}).all())
                time.sleep(random.uniform(0, 0.05))
        account.wait_for_progress()
    with admin.connect() as connection:
        connection.execute(terminate, {"some": 100})
        are_left = text(f"SELECT count(*) {others}")
        wait_for(lambda: connection.scalar(are_left) == 0, "the connections are still there")
    assert_works_at_once(stores)
    with SQLStore(place) as store:
        account.check(store, f"{ended} connections ended")


@pytest.mark.parametrize("kind", DRIVERS)
def test_a_store_that_was_opened_on_a_read_only_server_writes_when_it_may(
    place: URL, kind: str
) -> None:
    admin = create_engine(place, isolation_level="AUTOCOMMIT", poolclass=NullPool)

    def write() -> Any:
        return store.append(SESSION, said("x", b"bytes"), idempotency_key="x")

    with opened(kind, place) as store, admin.connect() as connection:
        connection.execute(text("SET default_transaction_read_only = off"))
        connection.execute(text("ALTER DATABASE chaos SET default_transaction_read_only = on"))
        for _ in range(2):
            for refused in together(*[write] * 8):
                assert type(refused) is Unavailable
                assert "only be read" in str(refused)
                assert_is_clean(refused)
            together(*[lambda: store.read(SESSION)] * 8)
        connection.execute(text("ALTER DATABASE chaos RESET default_transaction_read_only"))
        together(*[write] * 8)  # of these some may find a connection from before
        assert together(*[write] * 8) == [1] * 8
