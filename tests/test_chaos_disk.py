"""A disk that is full, files that may only be read, and locks that are held too long."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, NullPool, create_engine, text

from chaos import Account
from conftest import Backend
from contention import SESSION, header, said, together
from faults import (
    SmallDisk,
    folder_of_an_ordinary_user,
    held_by_a_process,
    ordinary_user,
    small_disk,
    suffer_from_files_that_may_not_grow,
)
from hosts import assert_is_clean
from servers import PostgresServer
from turnkeep import AsyncSQLStore, SQLStore, Unavailable
from turnkeep.testing import Blocking

MANY = pytest.mark.chaos


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    """A disk that can be filled."""
    with small_disk(96) as disk:
        yield disk


@pytest.fixture(params=["sqlite", "postgres"])
def on_disk(request: pytest.FixtureRequest, disk: SmallDisk) -> Iterator[URL]:
    """A database there; of the server only the tables are."""
    if request.param == "sqlite":
        yield URL.create("sqlite", database=str(disk.folder / "chats.db"))
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    admin = create_engine(server.url(), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with admin.connect() as connection:
        connection.execute(text(f"CREATE TABLESPACE small LOCATION '{disk.folder}'"))
        connection.execute(text("CREATE DATABASE small TABLESPACE small"))
    yield server.url("small")
    server.drop_database("small")
    with admin.connect() as connection:
        connection.execute(text("DROP TABLESPACE small"))


@pytest.mark.parametrize("times", [2, pytest.param(25, marks=MANY)])
def test_a_full_disk_refuses_writes_and_loses_nothing(
    disk: SmallDisk, on_disk: URL, account: Account, times: int
) -> None:
    with SQLStore(on_disk) as store:
        store.upgrade()
        account.suffer(store, disk.full, times, "times a full disk")


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=MANY)])
def test_a_file_that_may_not_grow_refuses_writes_and_loses_nothing(
    sqlite_url: URL, account: Account, times: int
) -> None:
    spawn = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        work = process.submit(suffer_from_files_that_may_not_grow, sqlite_url, times)
        for told in work.result():
            account.report(told)


@contextmanager
def locked(url: URL) -> Iterator[None]:
    """The session's row belongs to another."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        row = text("SELECT FROM turnkeep_sessions WHERE id = :id FOR UPDATE")
        connection.execute(row, {"id": SESSION})
        yield


@pytest.mark.parametrize("times", [2, pytest.param(25, marks=MANY)])
def test_a_lock_that_is_held_too_long_refuses_writes_and_loses_nothing(
    server_or_file: Backend, account: Account, times: int
) -> None:
    url = server_or_file.url
    hold: Callable[[], AbstractContextManager[object]]
    server_or_file.store()
    if server_or_file.is_postgres:
        hold = partial(locked, url)
        url = url.update_query_dict({"options": "-c lock_timeout=100"})
    else:
        hold = partial(held_by_a_process, url)
    with SQLStore(url, timeout=0.3) as store:
        account.suffer(store, hold, times, "times a lock held too long")


@contextmanager
def read_only(*paths: Path) -> Iterator[None]:
    """Nothing of *paths* may be written, nor what SQLite makes beside a file with its rights."""
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path in reversed(paths):
            path.chmod(0o755 if path.is_dir() else 0o644)
            for beside in path.parent.glob(f"{path.name}-*"):
                beside.chmod(0o644)


@pytest.fixture
def file() -> Iterator[Path]:
    """A SQLite file with the tables, of an ordinary user whom the test is."""
    with folder_of_an_ordinary_user() as home:
        file = home / "chats.db"
        with SQLStore(f"sqlite:///{file}") as store:  # as root, who may read the migrations
            store.upgrade()
        os.chown(file, home.stat().st_uid, -1)
        with ordinary_user():
            yield file


@contextmanager
def opened_file(kind: str, file: Path) -> Iterator[Any]:
    """A store on a SQLite file, for sync callers."""
    if kind == "async":
        with Blocking(lambda: AsyncSQLStore(f"sqlite:///{file}")) as blocking:
            yield blocking
        return
    engine = create_engine(f"sqlite:///{file}")
    try:
        with SQLStore(engine if kind == "borrowed" else engine.url) as store:
            yield store
    finally:
        engine.dispose()


@pytest.mark.parametrize("kind", ["owned", "borrowed", "async"])
@pytest.mark.parametrize("closed", ["file", "folder", "both"])
def test_a_store_that_was_opened_on_a_read_only_file_writes_when_it_may(
    file: Path, closed: str, kind: str
) -> None:
    paths = {"file": [file], "folder": [file.parent], "both": [file, file.parent]}[closed]
    with SQLStore(f"sqlite:///{file}") as before:
        before.append(SESSION, header())
    with opened_file(kind, file) as store:

        def write(number: int) -> Any:
            entry = said(f"{number}", b"bytes")
            return store.append(SESSION, entry, idempotency_key=f"{number}")

        writes = [partial(write, number) for number in range(8)]
        with read_only(*paths):
            for _ in range(2):
                for refused in together(*writes):
                    assert type(refused) is Unavailable
                    assert_is_clean(refused)
            if closed == "file":
                assert store.read(SESSION) == [header()]
                together(*[lambda: store.read(SESSION)] * 8)
        together(*writes)  # of these some may find a connection from before
        assert sorted(together(*writes), key=str) == list(range(1, 9))
    with SQLStore(f"sqlite:///{file}") as after:
        assert len(after.read(SESSION)) == 9
        assert list(after.verify()) == []
