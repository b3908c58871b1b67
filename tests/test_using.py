"""The app's own transaction, which a store joins by `using`."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.orm import Session

from contention import header, said
from hosts import (
    BATCH,
    BYTES,
    HOSTS,
    OPERATIONS,
    POSTGRES_HOSTS,
    SECRET,
    SEEDED,
    Host,
    Operation,
    assert_is_clean,
    failing,
    host_id,
    made_host,
    note,
    notes,
    seed,
)
from servers import wait_for
from turnkeep import (
    Conflict,
    InvalidArgument,
    InvalidEntry,
    MessageEntry,
    SessionExists,
    SQLStore,
    TurnkeepError,
    Unavailable,
    UnknownSession,
)


@contextmanager
def _by_begin(engine: Engine, outcome: str) -> Iterator[Connection]:
    try:
        with engine.begin() as connection:
            yield connection
            if outcome == "rollback":
                raise RuntimeError("the app's")
    except RuntimeError:
        assert outcome == "rollback"


@contextmanager
def _by_hand(engine: Engine, outcome: str) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection
        getattr(connection, outcome)()


@contextmanager
def _by_orm(engine: Engine, outcome: str) -> Iterator[Connection]:
    with Session(engine) as session:
        yield session.connection()
        getattr(session, outcome)()


@contextmanager
def _by_leaving(engine: Engine, outcome: str) -> Iterator[Connection]:
    """Begun by the store, if the app has done nothing; closing the connection undoes all."""
    with engine.connect() as connection:
        yield connection
        if outcome == "commit":
            connection.commit()


WAYS = [_by_begin, _by_hand, _by_orm, _by_leaving]
Way = Callable[[Engine, str], AbstractContextManager[Connection]]
# AUTOCOMMIT is no transaction of the app's; of the others, those whose transactions differ.
ALIKE = ("AUTOCOMMIT", "READ COMMITTED", "no pool", "no reset", "pragmas")
JOINABLE = [host for host in HOSTS if host[1] not in ALIKE]


@pytest.fixture(params=JOINABLE, ids=host_id)
def app(request: pytest.FixtureRequest) -> Iterator[Host]:
    """An app with a table of its own, whose transactions can be joined."""
    yield from made_host(request)


def test_the_rows_of_the_app_and_ours_share_one_fate(app: Host) -> None:
    ways = [*WAYS]
    for operation in OPERATIONS.values():
        ways = [*ways[1:], ways[0]]
        for outcome in ("rollback", "commit"):
            assert_share(app, operation, ways[0], outcome, app_first=ways[0] is not _by_leaving)


@pytest.mark.parametrize("way", WAYS)
def test_an_app_begins_and_ends_its_transaction_in_its_own_way(
    server_database: URL, sqlite_url: URL, way: Way
) -> None:
    for url in (server_database, sqlite_url):
        host = Host(url, create_engine)
        for number, operation in enumerate(OPERATIONS.values()):
            for outcome in ("rollback", "commit"):
                assert_share(host, operation, way, outcome, app_first=number % 2 > 0)
        host.close()


def assert_share(
    app: Host, operation: Operation, way: Way, outcome: str, *, app_first: bool
) -> None:
    seed(app.store)
    before, texts = app.dump(), app.texts()
    with way(app.engine, outcome) as connection:
        if app_first:
            note(connection)
        assert operation.call(app.store.using(connection)) == operation.result
        note(connection)
    app.assert_is_at_rest()
    changed = app.dump() != before, len(app.texts()) - len(texts)
    assert changed == ((True, 1 + app_first) if outcome == "commit" else (False, 0))


def test_a_savepoint_of_the_app_undoes_what_is_behind_it(app: Host) -> None:
    for operation in OPERATIONS.values():
        seed(app.store)
        with app.engine.begin() as connection:
            joined = app.store.using(connection)
            note(connection, "before")
            joined.append("other", said("before"))
            before = joined.read("s"), joined.read("other"), joined.list()
            savepoint = connection.begin_nested()
            note(connection, "undone")
            assert operation.call(joined) == operation.result
            savepoint.rollback()
            assert (joined.read("s"), joined.read("other"), joined.list()) == before
            with connection.begin_nested():
                note(connection, "within")
                assert operation.call(joined) == operation.result
            note(connection, "after")
        assert app.texts()[-3:] == ["before", "within", "after"]
        assert "undone" not in app.texts()
        assert app.store.read("other")[-1] == said("before")


REFUSED: dict[str, tuple[Callable[[SQLStore], object], type[TurnkeepError]]] = {
    "expected position": (
        lambda s: s.append("s", said(SECRET), expected_position=1),
        Conflict,
    ),
    "another entry's key": (
        lambda s: s.append("s", said("another"), idempotency_key="taken"),
        Conflict,
    ),
    "some known keys": (
        lambda s: s.extend("s", BATCH, idempotency_keys=["taken", "n", None]),
        Conflict,
    ),
    "unknown session": (lambda s: s.extend("nobody", BYTES), UnknownSession),
    "another header": (lambda s: s.append("s", header("s", title=SECRET)), SessionExists),
    "another id": (lambda s: s.append("s", header("t")), InvalidEntry),
    "NaN": (lambda s: s.append("s", MessageEntry({SECRET: float("nan")})), InvalidEntry),
    "no entry": (lambda s: s.append("s", {"type": SECRET}), InvalidEntry),  # type: ignore[arg-type]
    "id": (lambda s: s.append("", said(SECRET)), InvalidArgument),
}


def test_a_refused_call_leaves_the_app_s_transaction_as_it_was(app: Host) -> None:
    app.store.append("s", said(SECRET), idempotency_key="taken")
    before = app.dump()
    with app.engine.begin() as connection:
        joined = app.store.using(connection)
        for name, (call, kind) in REFUSED.items():
            note(connection, name)
            with pytest.raises(kind) as caught:
                call(joined)
            if kind is not InvalidEntry or name != "NaN":
                assert_is_clean(caught.value)
            assert joined.read("s") == [*SEEDED, said(SECRET)]
        assert joined.append("other", said("at last", b"bytes")) == 2
    assert app.texts() == [*REFUSED]
    assert app.store.read("other")[-1] == said("at last", b"bytes")
    assert app.store.delete("other")
    assert app.store.extend("other", [header("other"), said("z", b"known")]) == 1
    after = app.dump()
    assert after["entries"] == before["entries"]
    assert after["blobs"] == before["blobs"]


def test_a_call_that_fails_half_way_leaves_the_app_s_transaction_as_it_was(app: Host) -> None:
    how = "RAISE EXCEPTION 'secret'" if app.is_postgres else "RAISE(ABORT, 'secret')"
    for name, operation in OPERATIONS.items():
        seed(app.store)
        before = app.dump()
        with failing(app, operation.touches[-1], how), app.engine.begin() as connection:
            note(connection, "before")
            with pytest.raises(TurnkeepError) as caught:
                operation.call(app.store.using(connection))
            assert_is_clean(caught.value)
            note(connection, name)
        assert app.dump() == before
        assert app.texts()[-2:] == ["before", name]


def test_what_the_app_s_isolation_level_forbids_is_unavailable(server_database: URL) -> None:
    for name in ("REPEATABLE READ", "SERIALIZABLE", "a server of SERIALIZABLE"):
        host = Host(server_database, POSTGRES_HOSTS[name])
        for operation in OPERATIONS.values():
            seed(host.store)
            with host.engine.begin() as connection:
                note(connection)  # here the transaction's view of the database begins
                others = SQLStore(host.engine)
                others.append("s", said("between"))
                others.append("new", header("new", title="another"))
                with pytest.raises(Unavailable) as caught:
                    operation.call(host.store.using(connection))
                assert_is_clean(caught.value)
                note(connection)  # its savepoint is undone, and the transaction goes on
            assert others.read("s")[-1] == said("between")
            host.assert_is_at_rest()
        host.close()


def test_two_that_write_under_one_key_in_their_transactions_write_once(
    server_database: URL,
) -> None:
    host = Host(server_database, create_engine)

    def write(connection: Connection) -> int:
        joined = host.store.using(connection)
        return joined.append("s", said("once"), idempotency_key="k")

    with host.engine.connect() as first, host.engine.connect() as second:
        assert write(first) == 3
        note(second)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(write, second)
            wait_for(partial(_is_waiting, host.engine), "nobody waits")
            first.commit()
            assert waiting.result(60) == 3
        note(second)
        second.commit()
    assert len(host.texts()) == 2
    assert host.store.read("s")[3:] == [said("once")]
    host.close()


def _is_waiting(engine: Engine) -> bool:
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with engine.connect() as connection:
        return bool(connection.scalar(text(waiting)) == 1)


def test_a_connection_that_has_no_transaction_to_join_is_refused(
    server_database: URL, sqlite_url: URL
) -> None:
    server, file = Host(server_database, create_engine), Host(sqlite_url, create_engine)
    with server.engine.connect() as connection:
        with pytest.raises(InvalidArgument, match="another kind"):
            file.store.using(connection)
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
            server.store.using(connection)
    with file.engine.connect() as connection:
        with pytest.raises(InvalidArgument, match="another kind"):
            server.store.using(connection)
        connection.execution_options(isolation_level="AUTOCOMMIT")
        joined = file.store.using(connection)
        for operation in OPERATIONS.values():
            with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
                operation.call(joined)
        connection.exec_driver_sql("BEGIN")
        assert joined.append("new", header("new")) == 0
        connection.exec_driver_sql("ROLLBACK")
    for host in (server, file):
        seed(host.store)
        with pytest.raises(InvalidArgument, match="closed"):
            host.store.using(connection)
        for other in (host.engine, host.engine.raw_connection(), None, Session(host.engine)):
            with pytest.raises(InvalidArgument, match="connection"):
                host.store.using(other)  # type: ignore[arg-type]
        with host.engine.connect() as open_once:
            joined = host.store.using(open_once)
        for operation in OPERATIONS.values():
            with pytest.raises(Unavailable) as caught:
                operation.call(joined)
            assert_is_clean(caught.value)
        with host.engine.begin() as connection:
            joined = host.store.using(connection)
            connection.rollback()  # SQLAlchemy gives no more than this in its `with`
            with pytest.raises(Unavailable) as caught:
                joined.append("s", said("x"))
            assert_is_clean(caught.value)
        host.assert_is_at_rest()
        host.close()


def test_a_schema_is_for_our_statements_only(postgres_url: URL) -> None:
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        notes.create(connection)
        connection.exec_driver_sql('CREATE SCHEMA "chat room"')
        connection.exec_driver_sql('CREATE TABLE "chat room".notes (id integer, text text)')
    with SQLStore(engine, schema="chat room", migrate=True) as store, engine.begin() as connection:
        store.upgrade()
        seed(store)
        joined = store.using(connection)
        for operation in OPERATIONS.values():
            note(connection)
            assert operation.call(joined) == operation.result
            note(connection)
            seed(joined)
        with pytest.raises(Conflict):
            joined.append("s", said("x"), expected_position=99)
        note(connection)
        assert connection.get_execution_options().get("schema_translate_map") is None
    with engine.begin() as connection:
        count = "SELECT count(*) FROM {}.notes"
        assert connection.scalar(text(count.format("public"))) == 2 * len(OPERATIONS) + 1
        assert connection.scalar(text(count.format('"chat room"'))) == 0
        own = connection.execution_options(schema_translate_map={None: "public"})
        store.using(own).append("s", said("x"))
        note(own)
        assert own.get_execution_options()["schema_translate_map"][None] == "public"
    engine.dispose()
