"""The connection that a sync store keeps out of its pool between calls."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.pool import QueuePool

from conftest import Backend
from contention import header, said, together
from inspection import in_use
from servers import wait_for
from turnkeep import Conflict, SQLStore

MINE = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def pool_of(store: SQLStore) -> QueuePool:
    """The store's own pool."""
    pool = store._database.engine.pool
    assert isinstance(pool, QueuePool)
    return pool


def test_calls_one_after_the_other_take_one_connection_out_of_the_pool_once(
    server_or_file: Backend,
) -> None:
    with SQLStore(server_or_file.url, migrate=True) as store:
        taken: list[Any] = []
        event.listen(store._database.engine, "checkout", lambda *args: taken.append(args))
        store.append("s", header("s"))
        for number in range(20):
            store.append("s", said(f"{number}"))
            store.extend("s", [said(f"{number}"), said("more")])
            assert len(store.tail("s", 5)) == min(5, 3 + 3 * number)
            assert in_use(store) == 0
        assert len(taken) <= 2  # one for the migration
        assert pool_of(store).checkedout() == 1


def test_what_is_read_is_never_an_old_state(server_or_file: Backend) -> None:
    """The connection lies there in no transaction."""
    with (
        SQLStore(server_or_file.url, migrate=True) as store,
        SQLStore(server_or_file.url) as other,
    ):
        store.append("s", header("s"))
        for number in range(1, 10):
            other.append("s", said(f"{number}"))
            assert len(store.read("s")) == number + 1
            assert len(store.export_history("s").messages) == number
            assert store.stats().entries == number + 1


def test_calls_at_once_have_a_connection_each(server_or_file: Backend) -> None:
    with SQLStore(server_or_file.url, migrate=True) as store:
        store.append("s", header("s"))
        for _ in range(5):
            assert together(*[partial(store.read, "s")] * 12) == [[header("s")]] * 12
        assert in_use(store) == 0


def test_an_error_costs_nothing_but_its_call(server_or_file: Backend) -> None:
    with SQLStore(server_or_file.url, migrate=True) as store:
        store.append("s", header("s"))
        for _ in range(20):
            with pytest.raises(Conflict):
                store.append("s", said("x"), expected_position=7)
            assert store.read("s") == [header("s")]
        assert in_use(store) == 0


def test_a_closed_store_has_no_connection(server_or_file: Backend) -> None:
    """Whoever was in a call meanwhile."""
    admin = server_or_file.engine(isolation_level="AUTOCOMMIT")
    for _ in range(5):
        store = SQLStore(server_or_file.url, migrate=True)
        store.append("s", header("s"), idempotency_key="once")
        together(*[partial(store.read, "s")] * 6, store.close, *[partial(store.read, "s")] * 6)
        assert pool_of(store).checkedout() == 0
        assert store._database._kept == []
        store.close()
        if server_or_file.is_postgres:
            with admin.connect() as connection:
                wait_for(
                    lambda: connection.scalar(text(MINE)) == 0,
                    "a connection is still there",
                )
