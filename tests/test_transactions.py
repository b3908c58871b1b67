"""Our own transactions are whole, whatever a host set on its engine, and wherever they break."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, text

from conftest import Backend
from contention import header, said, together
from hosts import (
    BATCH,
    BYTES,
    FAULTS,
    HOSTS,
    IN_MEMORY,
    OPERATIONS,
    SEEDED,
    TABLES,
    Host,
    Operation,
    assert_is_clean,
    engine_with,
    failing,
    host_id,
    made_host,
    seed,
)
from turnkeep import Conflict, SessionExists, SQLStore, TurnkeepError, Unavailable, UnknownSession


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def owner(request: pytest.FixtureRequest) -> Iterator[Host]:
    """A store that made its engine itself."""
    fixtures = {"sqlite": "sqlite_url", "postgres": "server_database"}
    in_memory = request.param == "memory"
    host = Host(
        URL.create("sqlite") if in_memory else request.getfixturevalue(fixtures[request.param])
    )
    yield host
    host.close()


ALONE = ("sqlite", IN_MEMORY + "defaults")  # each thread has a database of its own there


@pytest.fixture(params=HOSTS, ids=host_id)
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Each engine that a host may hand in."""
    yield from made_host(request)


@pytest.fixture(params=[host for host in HOSTS if host != ALONE], ids=host_id)
def threaded_host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Each of them that threads can share."""
    yield from made_host(request)


def test_a_call_that_fails_half_way_did_nothing_and_can_be_made_again(owner: Host) -> None:
    for operation in OPERATIONS.values():
        for fault in operation.touches:
            for how, kind in FAULTS[owner.is_postgres].items():
                assert_fails_whole(owner, operation, fault, how, kind)


def test_a_call_that_fails_half_way_did_nothing_whatever_the_host_set(host: Host) -> None:
    [(how, kind), *_] = FAULTS[host.is_postgres].items()
    for operation in OPERATIONS.values():
        assert_fails_whole(host, operation, operation.touches[-1], how, kind)


def assert_fails_whole(
    host: Host, operation: Operation, fault: str, how: str, kind: type[Exception]
) -> None:
    seed(host.store)
    before = host.dump()
    with failing(host, fault, how), pytest.raises(kind) as caught:
        operation.call(host.store)
    assert_is_clean(caught.value)
    assert host.dump() == before
    host.assert_is_at_rest()
    assert_does(host, operation)
    host.assert_is_at_rest()


def test_a_commit_that_fails_undoes_the_call(server_database: URL) -> None:
    host = Host(server_database, create_engine)
    host.run(
        "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'secret'; END $$"
    )
    for operation in OPERATIONS.values():
        seed(host.store)
        before = host.dump()
        host.run(
            "CREATE CONSTRAINT TRIGGER fault AFTER INSERT OR DELETE ON turnkeep_entries"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        with pytest.raises(TurnkeepError) as caught:
            operation.call(host.store)
        host.run("DROP TRIGGER fault ON turnkeep_entries")
        assert_is_clean(caught.value)
        assert host.dump() == before
        host.assert_is_at_rest()
        assert_does(host, operation)
    host.close()


def test_a_commit_that_a_reader_holds_up_too_long_undoes_the_call(sqlite_url: URL) -> None:
    host = Host(sqlite_url, engine_with(connect_args={"timeout": 0.02}))
    host.store = SQLStore(host.engine, timeout=0.02)
    for operation in OPERATIONS.values():
        seed(host.store)
        before = host.dump()
        with host.engine.connect() as reader:
            driver: Any = reader.connection.driver_connection
            cursor = driver.execute("SELECT * FROM turnkeep_entries")
            assert cursor.fetchone()  # with a rollback journal, nobody commits till it is read out
            with pytest.raises(Unavailable, match="locked") as caught:
                operation.call(host.store)
            cursor.close()
        assert_is_clean(caught.value)
        assert host.dump() == before
        host.assert_is_at_rest()
        assert_does(host, operation)
    host.close()


def assert_does(host: Host, operation: Operation) -> None:
    """Whether *operation* gives its result, and another connection sees what it did."""
    before = host.dump()
    assert operation.call(host.store) == operation.result
    assert host.dump() != before


def test_what_is_written_reads_back_whatever_the_host_set(host: Host) -> None:
    before = host.settings()
    store = host.store
    for operation in OPERATIONS.values():
        seed(store)
        assert_does(host, operation)
    assert store.read("s") == []
    seed(store)
    for entry in BATCH:
        store.append("s", entry)
    store.extend("s", [*BATCH, *BYTES], idempotency_keys=["a", "b", "c", "d", "e"])
    session = [*SEEDED, *BATCH, *BATCH, *BYTES]
    assert store.read("s") == session
    assert store.tail("s", 3) == session[-3:]
    assert store.page("s", after=1, limit=2).entries == session[2:4]
    assert store.append("s", BATCH[1], idempotency_key="b") == 7
    assert [each.id for each in store.list("/w")] == ["s", "other"]
    with pytest.raises(Conflict):
        store.append("s", said("x"), expected_position=2)
    with pytest.raises(UnknownSession):
        store.extend("unknown", BYTES)
    with pytest.raises(SessionExists):
        store.append("s", header("s", title="another"))
    host.assert_is_at_rest()
    store.close()
    assert host.settings() == before
    again = SQLStore(host.engine)
    assert again.delete("s")
    assert again.delete("other")
    assert host.dump() == {table: [] for table in TABLES}


def test_threads_that_share_a_host_s_engine_lose_nothing(threaded_host: Host) -> None:
    store = threaded_host.store
    store.append("new", header("new"))

    def write(thread: int) -> list[int]:
        done = []
        for i in range(3):
            done.append(store.append("new", said(f"{thread}.{i}")))
            store.list("/w")
            done.append(store.extend("new", [said("a"), said(f"{thread}.{i} too")]))
            store.read("new")
            done.append(store.append("new", said(f"{thread}.{i} again", b"bytes")))
        return done

    outcomes = together(*[partial(write, thread) for thread in range(5)])
    session = store.read("new")
    assert len(session) == 1 + 5 * 3 * 4
    for thread, positions in enumerate(outcomes):
        assert isinstance(positions, list)
        assert positions == sorted(positions)
        for i in range(3):
            wanted = [f"{thread}.{i}", f"{thread}.{i} too", f"{thread}.{i} again"]
            found = [session[position] for position in positions[3 * i : 3 * i + 3]]
            assert found == [said(wanted[0]), said(wanted[1]), said(wanted[2], b"bytes")]


KILLED = """
import os, signal, sys
from turnkeep import MessageEntry, SQLStore
from turnkeep.dialect import Postgres, Sqlite

def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

Postgres.attach = Sqlite.attach = kill
files = [{"media_type": "image/png", "data": "bmV3"}]
entry = MessageEntry({"role": "user", "content": "x", "files": files})
SQLStore(sys.stdin.readline().strip()).extend("s", [entry] * 3)
"""


def test_a_process_that_is_killed_half_way_leaves_nothing_behind(server_or_file: Backend) -> None:
    store = server_or_file.store()
    seed(store)
    before = store.read("s")
    url = server_or_file.url.render_as_string(hide_password=False)
    process = subprocess.run(
        [sys.executable, "-c", KILLED], input=url, text=True, check=False, capture_output=True
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert store.read("s") == before
    with server_or_file.engine().connect() as connection:
        new = text("SELECT count(*) FROM turnkeep_blobs WHERE size = 3")
        assert connection.scalar(new) == 0
    assert store.append("s", said("x", b"new")) == 3
    assert store.read("s") == [*before, said("x", b"new")]
