"""Many writers of one session at once: what the order of its entries is, and who wins."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import URL, Connection, create_engine, text

from conftest import ALSO_POOLED, Backend
from contention import (
    SESSION,
    WAIT_SECONDS,
    Follower,
    Write,
    claim_positions,
    enlist,
    header,
    said,
    together,
    write_all_sorts,
)
from servers import wait_for
from turnkeep import Conflict, Entry, MessageEntry, SessionExists, SQLStore, UnknownSession

WRITERS = 16
Worker = Callable[[URL, int, int], list[Write]]


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """As many processes as there are writers; each call of a worker waits for the others."""
    context = multiprocessing.get_context("forkserver")  # forks of a process that has done nothing
    context.set_forkserver_preload(["turnkeep", "psycopg", "sqlalchemy.dialects.postgresql"])
    with ProcessPoolExecutor(
        WRITERS, mp_context=context, initializer=enlist, initargs=(context.Barrier(WRITERS),)
    ) as pool:
        yield pool


def start(pool: ProcessPoolExecutor, worker: Worker, url: URL, count: int) -> list[Any]:
    return [pool.submit(worker, url, writer, count) for writer in range(WRITERS)]


def assert_is_the_work_of(writes: list[list[Write]], session: list[Entry]) -> None:
    """Whether *session* holds what *writes* say, each once, and nothing else."""
    written: dict[int, Entry] = {}
    for own in writes:
        latest = 0
        for write in own:
            for position, entry in enumerate(write.entries, start=write.first):
                assert _text(session[position]) == _text(entry)
                written[position] = entry
            if not write.is_shared:  # another writer may have been there before
                assert write.first > latest or write.last == latest  # the latter: sent again
                latest = write.last
    assert sorted(written) == list(range(1, len(session)))
    texts = [_text(entry) for entry in session[1:]]
    assert len(set(texts)) == len(texts)


def _text(entry: Entry) -> str:
    assert isinstance(entry, MessageEntry)
    return str(entry.message["content"])


@ALSO_POOLED
def test_what_processes_write_at_once_is_there_once_in_the_order_of_each(
    server_or_file: Backend, processes: ProcessPoolExecutor
) -> None:
    store = server_or_file.store()
    store.append(SESSION, header())
    follower = Follower(store)
    writes = follower.look_while(start(processes, write_all_sorts, server_or_file.url, 50))
    assert_is_the_work_of(writes, follower.whole)
    assert any(write.is_shared for own in writes for write in own)
    times = [e.recorded_at for e in follower.whole if isinstance(e, MessageEntry) and e.recorded_at]
    assert times == sorted(times)
    entries = (entry for own in writes for write in own for entry in write.entries)
    given = {_text(e): e.recorded_at for e in entries if isinstance(e, MessageEntry)}
    for entry in follower.whole[1:]:
        assert isinstance(entry, MessageEntry)
        if not _text(entry).startswith("shared"):
            wanted = given[_text(entry)]
            assert (entry.recorded_at is None) == (wanted is None)
            assert (entry.recorded_at or "") >= (wanted or "")


def test_of_those_that_expect_the_same_position_one_wins(
    server_or_file: Backend, processes: ProcessPoolExecutor
) -> None:
    store = server_or_file.store()
    store.append(SESSION, header())
    follower = Follower(store)
    writes = follower.look_while(start(processes, claim_positions, server_or_file.url, 5))
    assert_is_the_work_of(writes, follower.whole)
    claimed = [write.first - 1 for own in writes for write in own]
    assert len(claimed) == len(set(claimed)) == WRITERS * 5


THREADS = 20


def test_a_session_that_many_begin_with_one_header_begins_once(backend: Backend) -> None:
    store = backend.store()
    begin = [lambda: store.append("new", header("new"))] * THREADS
    assert together(*begin) == [0] * THREADS
    assert store.read("new") == [header("new")]

    def begin_and_say(number: int) -> int:
        return store.extend("busy", [header("busy"), said(f"{number}", b"the same bytes")])

    lasts = together(*[partial(begin_and_say, number) for number in range(THREADS)])
    session = store.read("busy")
    assert session[0] == header("busy")
    assert sorted(lasts) == list(range(1, THREADS + 1))
    for number, last in enumerate(lasts):
        assert session[last] == said(f"{number}", b"the same bytes")


def test_of_different_headers_for_one_session_one_wins(backend: Backend) -> None:
    store = backend.store()
    headers = [header("new", title=f"{number}") for number in range(THREADS)]
    outcomes = together(*[partial(store.append, "new", each) for each in headers])
    assert outcomes.count(0) == 1
    assert sum(isinstance(outcome, SessionExists) for outcome in outcomes) == THREADS - 1
    assert store.read("new") == [headers[outcomes.index(0)]]


def test_of_those_who_delete_a_session_one_finds_it(backend: Backend) -> None:
    store = backend.store()
    for _ in range(5):
        store.extend("s", [header("s"), said("a", b"1", b"2"), said("b", b"2")])
        outcomes = together(*[lambda: store.delete("s")] * 4)
        assert sorted(outcomes) == [False, False, False, True]
        assert store.read("s") == []


def test_deleting_while_others_append_leaves_whole_sessions_and_their_attachments(
    backend: Backend,
) -> None:
    store = backend.store()
    store.append("kept", header("kept"))
    is_over = threading.Event()

    def append(session: str, number: int) -> int:
        refused = 0
        for i in range(15):
            files = [bytes([kind]) * 100 for kind in (number + i, i)]
            try:
                if i % 3:
                    store.append(session, said(f"{number}.{i}", *files))
                else:
                    store.extend(session, [said(f"{number}.{i}"), said("again", *files)])
            except UnknownSession:
                assert session == "doomed"
                refused += 1
        return refused

    def delete() -> int:
        deleted = 0
        while not is_over.wait(0.001):  # else nobody else gets at the one connection in memory
            store.append("doomed", header("doomed"))
            deleted += store.delete("doomed")
        return deleted

    with ThreadPoolExecutor(8) as pool:
        deleters = [pool.submit(delete) for _ in range(2)]
        try:
            appenders = [
                pool.submit(append, session, n) for session in ("kept", "doomed") for n in range(3)
            ]
            for appender in appenders:
                appender.result(WAIT_SECONDS)
        finally:
            is_over.set()
        assert sum(deleter.result(WAIT_SECONDS) for deleter in deleters) > 0
    kept = store.read("kept")
    assert len(kept) == 1 + 3 * 20
    assert all(said("again", bytes([i]) * 100, bytes([i]) * 100) in kept for i in (0, 3, 6, 9, 12))
    store.append("doomed", header("doomed"))
    assert len(store.read("doomed")) == store.append("doomed", said("last"))
    assert store.delete("kept")
    assert store.delete("doomed")
    if not backend.is_memory:
        with backend.engine().connect() as connection:
            for table in ("entries", "attachments", "blobs"):
                assert connection.scalar(text(f"SELECT count(*) FROM turnkeep_{table}")) == 0


def one(store: SQLStore, **options: Any) -> int:
    return store.append(SESSION, said("x"), **options)


def one_with_a_key(store: SQLStore, **options: Any) -> int:
    return store.append(SESSION, said("x"), idempotency_key="k", **options)


def one_with_bytes(store: SQLStore, **options: Any) -> int:
    return store.append(SESSION, said("x", b"bytes"), **options)


def three(store: SQLStore, **options: Any) -> int:
    return store.extend(SESSION, [said("x"), said("y"), said("z")], **options)


def three_with_keys(store: SQLStore, **options: Any) -> int:
    keys = ["k", None, "l"]
    return store.extend(
        SESSION, [said("x"), said("y"), said("z")], idempotency_keys=keys, **options
    )


SIZES = {one: 1, one_with_a_key: 1, one_with_bytes: 1, three: 3, three_with_keys: 3}


@pytest.fixture(params=SIZES)
def write(request: pytest.FixtureRequest) -> Callable[..., int]:
    """A kind of write, which is given the store."""
    made: Callable[..., int] = request.param
    return made


class Held:
    """A Postgres session whose row another transaction has, while two writers wait for it."""

    def __init__(self, url: URL) -> None:
        self.store = SQLStore(url)
        self.store.upgrade()
        self.store.extend(SESSION, [header(), said("a"), said("b")])
        self._engine = create_engine(url)

    def waited(
        self, hold: Callable[[SQLStore], object], write: Callable[[], int], *, commit: bool
    ) -> list[Any]:
        """What two came to that ran *write* while *hold* was done and not yet committed."""
        with self._engine.connect() as connection, ThreadPoolExecutor(1) as pool:
            hold(self.store.using(connection))
            writers = pool.submit(together, write, write)
            try:
                wait_for(self._two_wait, "nobody waits for the row")
            finally:
                (connection.commit if commit else connection.rollback)()
            return writers.result(WAIT_SECONDS)

    def _two_wait(self) -> bool:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with self._engine.connect() as connection:
            return bool(connection.scalar(text(waiting)) == 2)

    def blobs(self) -> list[bytes]:
        """The bytes that are stored."""
        with self._engine.connect() as connection:
            return [*connection.scalars(text("SELECT data FROM turnkeep_blobs"))]

    def close(self) -> None:
        self.store.close()
        self._engine.dispose()


@pytest.fixture
def held(postgres_url: URL) -> Iterator[Held]:
    """A session of three entries on Postgres, to be held by one transaction."""
    held = Held(postgres_url)
    yield held
    held.close()


def texts(session: list[Entry]) -> list[str]:
    return [_text(entry) for entry in session[1:]]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_a_write_that_waited_goes_behind_what_it_waited_for(
    held: Held, write: Callable[..., int], commit: bool
) -> None:
    outcomes = held.waited(
        lambda joined: joined.append(SESSION, said("c")), lambda: write(held.store), commit=commit
    )
    size = SIZES[write]
    first = 3 + commit
    session = texts(held.store.read(SESSION))
    assert session[: first - 1] == ["a", "b", "c"][: first - 1]
    if "key" in write.__name__:  # the same write twice, then
        assert outcomes == [first + size - 1] * 2
        assert session[first - 1 :] == ["x", "y", "z"][:size]
    else:
        assert sorted(outcomes) == [first + size - 1, first + 2 * size - 1]
        assert session[first - 1 :] == ["x", "y", "z"][:size] * 2


# A single append does not wait for a position that nobody has committed: it is a Conflict at once.
@pytest.mark.parametrize(
    ("write", "expected"), [*((kind, 2) for kind in SIZES), (three, 3), (three_with_keys, 3)]
)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_a_write_that_waited_holds_its_expected_position_to_what_it_waited_for(
    held: Held, write: Callable[..., int], commit: bool, expected: int
) -> None:
    outcomes = held.waited(
        lambda joined: joined.append(SESSION, said("c")),
        lambda: write(held.store, expected_position=expected),
        commit=commit,
    )
    size = SIZES[write]
    before = ["a", "b", "c"] if commit else ["a", "b"]
    session = texts(held.store.read(SESSION))
    if expected != len(before):
        assert [type(outcome) for outcome in outcomes] == [Conflict, Conflict]
        assert session == before
        return
    if "key" in write.__name__:  # the same write twice: to the later one its key is known
        assert outcomes == [expected + size] * 2
    else:
        assert expected + size in outcomes
        assert Conflict in [type(outcome) for outcome in outcomes]
    assert session == [*before, *["x", "y", "z"][:size]]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_bytes_survive_the_deletion_that_their_append_waited_for(held: Held, commit: bool) -> None:
    held.store.extend("twin", [header("twin"), said("t", b"bytes", b"more")])
    outcomes = held.waited(
        lambda joined: joined.delete("twin"), lambda: one_with_bytes(held.store), commit=commit
    )
    assert sorted(outcomes) == [3, 4]
    assert held.store.tail(SESSION, 2) == [said("x", b"bytes")] * 2
    assert held.store.delete("twin") is not commit
    assert held.blobs() == [b"bytes"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_bytes_survive_the_deletion_that_waited_for_their_append(held: Held, commit: bool) -> None:
    held.store.extend("twin", [header("twin"), said("t", b"bytes", b"more")])
    outcomes = held.waited(one_with_bytes, lambda: held.store.delete("twin"), commit=commit)
    assert sorted(outcomes) == [False, True]
    assert held.blobs() == ([b"bytes"] if commit else [])
    assert held.store.read(SESSION)[3:] == ([said("x", b"bytes")] if commit else [])


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_a_write_that_waited_for_a_deletion_finds_no_session(
    held: Held, write: Callable[..., int], commit: bool
) -> None:
    outcomes = held.waited(
        lambda joined: joined.delete(SESSION), lambda: write(held.store), commit=commit
    )
    if commit:
        assert [type(outcome) for outcome in outcomes] == [UnknownSession, UnknownSession]
        assert held.store.read(SESSION) == []
    else:
        assert all(isinstance(outcome, int) for outcome in outcomes)


def test_a_header_that_waited_for_another_is_judged_by_it(held: Held) -> None:
    def begin(title: str) -> int:
        return held.store.append("new", header("new", title=title))

    for commit in (False, True):
        outcomes = held.waited(
            lambda joined: joined.append("new", header("new", title="first")),
            lambda: begin("second"),
            commit=commit,
        )
        if commit:
            assert [type(outcome) for outcome in outcomes] == [SessionExists, SessionExists]
            assert held.store.read("new") == [header("new", title="first")]
        else:
            assert outcomes == [0, 0]
            assert held.store.delete("new")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_server_whose_default_is_a_higher_isolation_level_undoes_no_append(
    postgres_url: URL, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeep.database.TRIES", 2)
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        name = connection.engine.url.database
        connection.execute(
            text(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
        )
        connection.commit()
    engine.dispose()
    with SQLStore(postgres_url) as store:
        store.upgrade()
        store.append(SESSION, header())
        with store._database.engine.connect() as connection:
            assert connection.scalar(text("SHOW transaction_isolation")) == level
            _slow_down_commits(connection)

        def append(writer: int) -> list[int]:
            return [
                store.append(SESSION, said(f"{writer}.{i}"))
                if i % 2
                else store.extend(SESSION, [said(f"{writer}.{i}"), said("and")])
                for i in range(6)
            ]

        outcomes = together(*[partial(append, writer) for writer in range(8)])
        assert [type(outcome) for outcome in outcomes] == [list] * 8
        session = store.read(SESSION)
        assert len(session) == 1 + 8 * 9
        for writer, positions in enumerate(outcomes):
            for i, position in enumerate(positions):
                assert _text(session[position if i % 2 else position - 1]) == f"{writer}.{i}"


def _slow_down_commits(connection: Connection) -> None:
    """Hold the session's row for a while at each commit, as a disk or a standby far away does."""
    connection.execute(
        text(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(0.005); RETURN NULL; END $$"
        )
    )
    connection.execute(
        text(
            "CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON turnkeep_entries"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dawdle()"
        )
    )


def test_a_read_that_a_deletion_overtakes_is_whole_or_finds_nothing(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnkeep import sql

    store, other = server_or_file.store(), server_or_file.store()
    session = [header("s"), said("a", b"1"), said("b", b"2")]
    fetch = sql.BLOBS.fetch

    def overtaken(*arguments: Any) -> Any:
        other.delete("s")
        return fetch(*arguments)

    monkeypatch.setattr(sql.BLOBS, "fetch", overtaken)
    with server_or_file.engine().connect() as connection:
        for reader in (store, store.using(connection)):
            other.extend("s", session)
            assert reader.read("s") == []
            other.extend("s", session)
            assert reader.tail("s", 2) == []
            other.extend("s", session)
            assert reader.page("s", after=0).entries == []
