"""The store on servers of other makes than the wheel's: Debian's, a container, the compose file."""

import base64
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from containers import ComposeProject, compose_up, postgres_container
from servers import create_database, drop_database, postgres_from_debian, postgres_from_wheel
from turnkeep import Header, MessageEntry, SQLStore
from turnkeep.testing import run_store_contract

COMPOSE_FILE = Path(__file__).parent.parent / "docker-compose.yml"
TABLES = ("sessions", "entries", "blobs", "attachments")
VERSIONS = {
    "wheel_postgres_url": 18,
    "debian_postgres_url": 15,
    "postgres_container_url": 18,
    "compose_url": 18,
}


@pytest.fixture(scope="session")
def wheel_postgres_url() -> Iterator[URL]:
    with postgres_from_wheel() as server:
        yield server.url()


@pytest.fixture(scope="session")
def debian_postgres_url() -> Iterator[URL]:
    with postgres_from_debian() as server:
        yield server.url()


@pytest.fixture(scope="session")
def postgres_container_url() -> Iterator[URL]:
    with postgres_container() as url:
        yield url


@pytest.fixture(scope="session")
def compose_project() -> Iterator[ComposeProject]:
    with compose_up(COMPOSE_FILE) as project:
        yield project


@pytest.fixture(scope="session")
def compose_url(compose_project: ComposeProject) -> URL:
    return compose_project.url


@pytest.fixture(params=VERSIONS)
def server_url(request: pytest.FixtureRequest) -> URL:
    """Each server in turn, started when the first test asks for it."""
    url = request.getfixturevalue(request.param)
    assert isinstance(url, URL)
    return url


@pytest.fixture
def engine(server_url: URL) -> Iterator[Engine]:
    """An engine on a new database of each server."""
    engine = create_engine(create_database(server_url, "test"))
    yield engine
    engine.dispose()
    drop_database(server_url, "test")


def test_each_server_is_of_the_version_that_it_stands_for(
    engine: Engine, request: pytest.FixtureRequest
) -> None:
    expected = VERSIONS[request.node.callspec.params["server_url"]]
    with engine.connect() as connection:
        version = int(connection.execute(text("SHOW server_version_num")).scalar_one())
    assert version // 10_000 == expected


def test_the_store_keeps_its_contract_on_each_server(engine: Engine) -> None:
    SQLStore(engine).upgrade()
    namespaces = itertools.count()
    run_store_contract(lambda: SQLStore(engine, namespace=f"law {next(namespaces)}"))


def test_attachments_are_shared_and_collected_on_each_server(engine: Engine) -> None:
    store = SQLStore(engine)
    store.upgrade()
    picture = {"media_type": "image/png", "data": base64.b64encode(b"\x89PNG" * 5000).decode()}
    message = MessageEntry({"role": "user", "content": "A" * 100_000, "files": [picture]})
    for name in ("a", "b"):
        header = Header(id=name, cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")
        store.extend(name, [header, message])
    assert count(engine, "turnkeep_blobs") == 1
    store.delete("a")
    assert store.tail("b", 1) == [message]
    store.delete("b")
    assert {count(engine, f"turnkeep_{table}") for table in TABLES} == {0}


def test_payloads_are_compressed_by_lz4_where_it_is_built_in(debian_postgres_url: URL) -> None:
    engine = create_engine(create_database(debian_postgres_url, "lz4"))
    store = SQLStore(engine)
    store.upgrade()
    store.append("s", Header(id="s", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m"))
    store.append("s", MessageEntry({"content": "A long story. " * 10_000}))
    with engine.connect() as connection:
        used = "SELECT pg_column_compression(payload) FROM turnkeep_entries WHERE position = 1"
        assert connection.execute(text(used)).scalar_one() == "lz4"
    engine.dispose()
    drop_database(debian_postgres_url, "lz4")


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_each_server_refuses_a_wrong_password(server_url: URL) -> None:
    engine = create_engine(server_url.set(password="wrong"))
    with pytest.raises(OperationalError, match="password authentication failed"):
        engine.connect()


def test_debian_has_what_the_wheel_lacks(wheel_postgres_url: URL, debian_postgres_url: URL) -> None:
    def offers(url: URL) -> tuple[list[str], bool]:
        engine = create_engine(url)
        with engine.connect() as connection:
            compressions = connection.execute(
                text("SELECT enumvals FROM pg_settings WHERE name = 'default_toast_compression'")
            ).scalar_one()
            sorts_as_bytes = connection.execute(text("SELECT 'B' < 'a'")).scalar_one()
        engine.dispose()
        return compressions, sorts_as_bytes

    assert offers(wheel_postgres_url) == (["pglz"], True)
    assert offers(debian_postgres_url) == (["pglz", "lz4"], False)


def test_compose_keeps_its_data_when_taken_down(compose_project: ComposeProject) -> None:
    create_database(compose_project.url, "kept")
    compose_project.down(volumes=False)
    compose_project.up()
    engine = create_engine(compose_project.url.set(database="kept"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT current_database()")).scalar_one() == "kept"
    engine.dispose()
    drop_database(compose_project.url, "kept")
