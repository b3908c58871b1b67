"""Who may read the files that we make: their owner, unless one asks for a copy to give away."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeep import (
    AsyncSQLStore,
    Header,
    History,
    JSONLStore,
    Message,
    MessageEntry,
    SQLStore,
    default_url,
)

HEADER = Header(id="s", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def files(folder: Path) -> dict[str, str]:
    return {path.name: mode(path) for path in folder.iterdir()}


PRIVATE = {"chats.db": "0o600", "chats.db-wal": "0o600", "chats.db-shm": "0o600"}
URLS = (
    "sqlite:///{}",
    "sqlite:///file:{}?uri=true",
    "sqlite:///file:{}?mode=rwc&uri=true",
    "sqlite:///file://localhost{}?uri=true",
)


@pytest.mark.parametrize("url", URLS)
def test_a_new_database_is_its_owner_s(url: str, tmp_path: Path) -> None:
    with SQLStore(url.format(tmp_path / "chats.db")) as store:
        store.append("s", HEADER)
        assert files(tmp_path) == PRIVATE
    (tmp_path / "chats.db").unlink()

    async def write() -> None:
        async with AsyncSQLStore(url.format(tmp_path / "chats.db")) as store:
            await store.append("s", HEADER)
            assert files(tmp_path) == PRIVATE

    asyncio.run(write())


def test_a_database_that_is_there_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    path.touch()
    path.chmod(0o660)
    with SQLStore(f"sqlite:///{path}") as store:
        store.append("s", HEADER)
        assert {*files(tmp_path).values()} == {"0o660"}


def test_what_a_url_forbids_is_not_made(tmp_path: Path) -> None:
    for how in ("ro", "rw"):
        url = f"sqlite:///file:{tmp_path}/chats.db?mode={how}&uri=true"
        with SQLStore(url) as store, pytest.raises(Exception, match="can't be opened"):
            store.list()
    for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"):
        with SQLStore(url) as store:
            store.list()
    assert files(tmp_path) == {}
    assert not Path("x").exists()


def test_the_default_database_is_its_owner_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TURNKEEP_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with SQLStore(default_url()) as store:
        store.append("s", HEADER)
        assert mode(tmp_path / "turnkeep") == "0o700"
        assert {*files(tmp_path / "turnkeep").values()} == {"0o600"}


def test_sessions_in_files_are_their_owner_s(tmp_path: Path) -> None:
    store = JSONLStore(tmp_path)
    store.append("s", HEADER)
    store.append("s", MessageEntry({"role": "user", "content": "x"}))
    [path] = tmp_path.rglob("*.jsonl")
    assert mode(path) == "0o600"
    assert {mode(tmp_path / folder) for folder in path.relative_to(tmp_path).parents[:-1]} == {
        "0o700"
    }


def test_an_exported_history_is_for_those_whom_the_umask_lets(umask: int, tmp_path: Path) -> None:
    folder = History(messages=(Message(id="1", role="user", content="x"),)).save(tmp_path / "out")
    assert mode(folder) == oct(0o777 & ~umask)
    assert mode(folder / "history.json") == oct(0o666 & ~umask)
