"""From a URL to a database: every usual spelling, and what is no such thing, without a word of the
password.
"""

import logging
import socket
import string
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import URL, create_engine, make_url, text

from contention import together
from inspection import driver_connection
from migrating import begin
from servers import PASSWORD, free_port
from turnkeep import AsyncSQLStore, InvalidArgument, MessageEntry, SQLStore, Unavailable
from turnkeep.testing import Blocking

SECRET = "Sesam-77"


def traces(error: BaseException) -> Iterator[str]:
    """All that *error* and the errors of its chain say."""
    yield from (str(error), repr(error), repr(error.args), repr(vars(error)))
    for other in (error.__cause__, error.__context__):
        if other is not None:
            yield from traces(other)


@pytest.fixture
def says_nothing(caplog: pytest.LogCaptureFixture) -> Callable[[BaseException | None], None]:
    """A check that neither an error nor any logger tells the password."""
    caplog.set_level(logging.DEBUG)
    for name in ("sqlalchemy.engine", "sqlalchemy.pool", "psycopg", "asyncio", "turnkeep"):
        caplog.set_level(logging.DEBUG, logger=name)

    def check(error: BaseException | None) -> None:
        said = [record.getMessage() for record in caplog.records]
        said += [str(record.exc_info) for record in caplog.records]
        if error is not None:
            said += traces(error)
        secrets = [SECRET, PASSWORD, quote(PASSWORD, safe="")]
        assert not [line for line in said if any(secret in line for secret in secrets)]

    return check


# What works


def test_a_sqlite_url_leads_to_the_file_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    urls = {
        "sqlite:///relative.db": "relative.db",
        "sqlite:///folder/../folder/relative.db": "folder/relative.db",
        f"sqlite:///{tmp_path}/absolute.db": "absolute.db",
        "sqlite+pysqlite:///driver.db": "driver.db",
        "sqlite+aiosqlite:///async.db": "async.db",
        f"sqlite:///file:{tmp_path}/uri.db?uri=true&mode=rwc": "uri.db",
    }
    for url, name in urls.items():
        with SQLStore(url) as store:
            assert begin(store) == 1
        assert (tmp_path / name).read_bytes().startswith(b"SQLite format 3")


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "%20.db", "a?b=c.db", "a#b.db", "ü'\".db"])
def test_a_url_object_takes_any_name_of_a_file(tmp_path: Path, name: str) -> None:
    with SQLStore(URL.create("sqlite", database=str(tmp_path / name))) as store:
        assert begin(store) == 1
    assert (tmp_path / name).is_file()


MEMORY = ["sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite://", "sqlite:///file:?uri=true"]
SHARED = "sqlite:///file:{}?mode=memory&cache=shared&uri=true"


@pytest.mark.parametrize("url", MEMORY)
def test_each_store_in_memory_is_a_database_of_its_own(url: str) -> None:
    with SQLStore(url) as one, SQLStore(url) as other:
        begin(one, "mine")
        begin(other, "yours")
        assert [header.id for header in one.list()] == ["mine"]
        assert [header.id for header in other.list()] == ["yours"]


@pytest.mark.parametrize(
    "url", [*MEMORY, SHARED.format("threads"), "sqlite:///file::memory:?cache=shared&uri=true"]
)
def test_a_database_in_memory_serves_many_threads(url: str) -> None:
    with SQLStore(url) as store:
        calls = [partial(begin, store, f"s{i}") for i in range(20)]
        assert together(*calls) == [1] * 20
        assert len(store.list()) == 20


def test_a_database_in_memory_is_shared_where_its_url_says_so() -> None:
    with SQLStore(SHARED.format("both")) as one, SQLStore(SHARED.format("both")) as other:
        begin(one)
        assert len(other.read("s")) == 2


SCHEMES = [
    "postgres",
    "postgresql",
    "postgresql+psycopg",
    "postgresql+psycopg_async",
    "postgresql+asyncpg",
]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_of_postgres_leads_there(postgres_url: URL, scheme: str) -> None:
    url = postgres_url.set(drivername=scheme)
    for given in (url, url.render_as_string(hide_password=False)):
        with SQLStore(given, migrate=True) as store:
            assert begin(store) == 1
            assert store.delete("s")


def test_each_sign_may_be_in_a_password(postgres_url: URL) -> None:
    password = string.printable.strip() + " äß€😀"
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        quoted = password.replace("'", "''").replace("%", "%%")
        connection.exec_driver_sql(f"CREATE ROLE signs SUPERUSER LOGIN PASSWORD '{quoted}'")
    try:
        url = postgres_url.set(username="signs", password=password)
        escaped = f"postgres://signs:{quote(password, safe='')}@127.0.0.1:{url.port}/{url.database}"
        for given in (url, url.render_as_string(hide_password=False), escaped):
            with SQLStore(given, migrate=True) as store:
                assert begin(store) == 1
                assert store.delete("s")
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY signs"))
            connection.execute(text("DROP ROLE signs"))
        engine.dispose()


def test_the_repr_of_a_store_holds_no_password(postgres_url: URL) -> None:
    with SQLStore(postgres_url, namespace="n") as store:
        assert repr(store) == "<SQLStore on postgresql, namespace 'n'>"


def test_a_file_that_cannot_have_a_write_ahead_log_is_used_without_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on many network drives. This way of locking a file has no memory that processes share."""
    url = f"sqlite:///file:{tmp_path / 'chats.db'}?vfs=unix-dotfile&uri=true"
    with SQLStore(url) as store:
        assert together(*[partial(begin, store, f"s{i}") for i in range(8)]) == [1] * 8
        with store._database.engine.connect() as connection:
            assert connection.scalar(text("PRAGMA journal_mode")) == "delete"
    [said] = {(r.name, r.levelname, r.getMessage()) for r in caplog.records}
    assert said[:2] == ("turnkeep", "WARNING")
    assert "keeps a rollback journal" in said[2]
    with SQLStore(url) as store:
        assert len(store.list()) == 8


# What can't be one


REFUSED: list[tuple[Any, str]] = [
    (f"postgresql+psycopg2://u:{SECRET}@h/d", "psycopg2 is not supported"),
    (f"postgresql+psycopg2cffi://u:{SECRET}@h/d", "psycopg2 is not supported"),
    (f"postgresql+pg8000://u:{SECRET}@h/d", "not supported: SQLite and Postgres"),
    (f"mysql://u:{SECRET}@h/d", "not supported: SQLite and Postgres"),
    (f"mysql+pymysql://u:{SECRET}@h/d", "not supported: SQLite and Postgres"),
    (URL.create("oracle", "u", SECRET, "h"), "not supported: SQLite and Postgres"),
    (f"postgresql:/u:{SECRET}@h/d", "is a URL such as"),
    (f"postgresql://u:{SECRET}@h:port/d", "is a URL such as"),
    (f"postgresql://u:p@h:{SECRET}@h/d", "is a URL such as"),
    (f"postgresql://u:p@{SECRET}@h/d", "more than one @"),
    (f"postgresql://u:p@{SECRET}/w@h/d", "more than one @"),
    (f"postgresql://u:p?@{SECRET}@h/d", "more than one @"),
    (URL.create("postgresql", "u", "p", f"{SECRET}@h"), "more than one @"),
    (f"host=h password={SECRET}", "is a URL such as"),
    (f"{SECRET}.db", "is a URL such as"),
    (f"/{SECRET}/chats.db", "is a URL such as"),
    (Path(f"/{SECRET}/chats.db"), "is a URL such as"),
    ("", "is a URL such as"),
    ("://", "is a URL such as"),
    ("sqlite", "is a URL such as"),
    (None, "is a URL such as"),
    (7, "is a URL such as"),
    (b"sqlite://", "is a URL such as"),
    (f"sqlite://{SECRET}.db", "three slashes"),
    (f"sqlite://u:{SECRET}@h/chats.db", "three slashes"),
    (f"sqlite:///chats.db?key={SECRET}", "an option that the driver of SQLite doesn't know"),
    (f"sqlite:///chats.db?timeout={SECRET}", "look at its path and options"),
    (f"postgresql://u@h/d?pasword={SECRET}", "an option that psycopg doesn't know"),
    (f"postgresql://u:{SECRET}@h/d?autocommit=true", "an option that psycopg doesn't know"),
    (f"postgresql://u:{SECRET}@h/d?row_factory=x", "an option that psycopg doesn't know"),
    (f"postgresql://u:{SECRET}@h/d?conninfo=x", "an option that psycopg doesn't know"),
    (f"postgresql://u:{SECRET}@h/d?prepare_threshold=-1", "prepare_threshold"),
    (f"postgresql://u:{SECRET}@h/d?prepare_threshold=often", "prepare_threshold"),
    (f"postgresql://h/d?prepare_threshold=1&prepare_threshold={SECRET}", "prepare_threshold"),
]


@pytest.mark.parametrize(("given", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_url_is_refused_at_once(
    given: Any,
    reason: str,
    says_nothing: Callable[[BaseException | None], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=rf"^url: .*{reason}") as caught:
        SQLStore(given)
    says_nothing(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("name", "driver"), [("postgresql", "psycopg2"), ("postgresql", "pg8000"), ("mysql", "pymysql")]
)
def test_an_engine_of_another_driver_or_database_is_refused(name: str, driver: str) -> None:
    engine = create_engine("sqlite://")
    engine.dialect.name, engine.dialect.driver = name, driver
    with pytest.raises(InvalidArgument, match=rf"^engine: {name}\+{driver} is not supported"):
        SQLStore(engine)


# What can't be reached


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("what", ["password", "user", "database", "port", "host", "silence"])
def test_a_server_that_does_not_serve_is_unavailable(
    postgres_url: URL,
    silent_port: int,
    what: str,
    says_nothing: Callable[[BaseException | None], None],
) -> None:
    urls: dict[str, URL] = {
        "password": postgres_url.set(password=SECRET),
        "user": postgres_url.set(username="nobody_known", password=SECRET),
        "database": postgres_url.set(database="no_such_database"),
        "port": postgres_url.set(port=free_port()),
        "host": postgres_url.set(host="nohost.invalid"),
        "silence": postgres_url.set(port=silent_port),
    }
    with SQLStore(urls[what], timeout=1) as store:
        uses: list[Callable[[], object]] = [store.list]
        if what != "silence":  # there each waits for two seconds, the least that libpq takes
            uses += [partial(begin, store), store.upgrade, store.revision, store.check]
        for use in uses:
            with pytest.raises(Unavailable, match="can't be reached") as caught:
                use()
            says_nothing(caught.value)


def test_a_server_that_serves_is_told_no_passwords_of(
    postgres_url: URL, says_nothing: Callable[[BaseException | None], None]
) -> None:
    with SQLStore(postgres_url, migrate=True) as store:
        begin(store)
        assert len(store.read("s")) == 2
    says_nothing(None)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("missing/chats.db", "the file can't be opened"),
        ("folder", "the file can't be opened"),
        ("text", "the file is no SQLite database"),
        ("/proc/chats.db", "the file can't be opened"),  # where not even root may make a file
    ],
)
def test_a_file_that_cannot_be_a_database_is_unavailable(
    tmp_path: Path, place: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("Dear diary, this is no database.\n" * 100)
    before = sorted(tmp_path.iterdir())
    with SQLStore(f"sqlite:///{tmp_path / place}", timeout=0.1) as store:
        uses: list[Callable[[], object]] = [partial(begin, store), store.list, store.upgrade]
        for use in (*uses, store.revision, store.check):
            with pytest.raises(Unavailable, match=reason):
                use()
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "text").read_text().startswith("Dear diary")


# Options


def test_the_options_of_a_url_reach_the_driver(postgres_url: URL) -> None:
    options = {
        "application_name": "mine",
        "sslmode": "disable",
        "connect_timeout": "7",
        "options": "-c search_path=elsewhere,public",
    }
    with SQLStore(postgres_url.update_query_dict(options)) as store:
        raw = store._database.engine.raw_connection()
        driver: Any = raw.driver_connection
        given = driver.info.get_parameters()
        assert {name: given[name] for name in options} == options
        found = driver.execute("SHOW search_path").fetchone()
        assert found == ("elsewhere,public",)
        raw.close()
    with SQLStore(postgres_url, timeout=11) as store:
        raw = store._database.engine.raw_connection()
        driver = raw.driver_connection
        given = driver.info.get_parameters()
        assert given["connect_timeout"] == "11"
        assert given["fallback_application_name"] == "turnkeep"
        raw.close()


PREPARED = text("SELECT count(*) FROM pg_prepared_statements")


@pytest.mark.parametrize(
    ("option", "threshold"), [({}, 5), ("none", None), ("None", None), ("0", 0), ("7", 7)]
)
def test_a_url_says_when_statements_are_prepared(
    postgres_url: URL, option: Any, threshold: int | None
) -> None:
    url = postgres_url
    if option:
        url = make_url(f"{plain(url)}?prepare_threshold={option}")
    with SQLStore(url, migrate=True) as store:
        begin(store)
        for _ in range(8):
            store.append("s", MessageEntry({"role": "user", "content": "more"}))
        driver = driver_connection(store)
        assert driver.prepare_threshold == threshold
        prepared = driver.execute(PREPARED.text).fetchone()[0]
        assert (prepared == 0) is (threshold is None)


def plain(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def test_the_timeout_of_a_sqlite_url_comes_before_that_of_the_store(sqlite_url: URL) -> None:
    for options, milliseconds in [("", 2500), ("?timeout=1.5", 1500)]:
        url = f"{sqlite_url}{options}"
        with SQLStore(url, timeout=2.5) as store, store._database.engine.connect() as connection:
            assert connection.scalar(text("PRAGMA busy_timeout")) == milliseconds


def test_a_url_that_demands_tls_is_not_served_without(postgres_url: URL) -> None:
    for mode in ("require", "verify-full"):
        url = postgres_url.update_query_dict({"sslmode": mode})
        with SQLStore(url, migrate=True) as store, pytest.raises(Unavailable):
            store.list()
        other = postgres_url.set(drivername="postgresql+asyncpg").update_query_dict({"ssl": mode})
        make = partial(AsyncSQLStore, other, migrate=True)
        with Blocking(make) as blocking, pytest.raises(Unavailable):
            blocking.list()
