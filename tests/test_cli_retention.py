"""`turnkeep stats`, `prune` and `erase`: what they say, and what they don't do unasked."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL

from conftest import Backend
from retaining import NOON, POOL, aged, remember, with_files
from test_cli import invoke
from turnkeep import SQLStore
from turnkeep.dialect.sqlite import Sqlite

EVERYONE = [with_files(aged(i, cwd=f"/{i % 2}"), POOL[0]) for i in range(6)]


@pytest.fixture
def filled(server_or_file: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A database with the same sessions in two namespaces."""
    monkeypatch.setattr(Sqlite, "turn", 0.0)
    store = server_or_file.store()
    for name in ("", "other"):
        remember(store.with_namespace(name), EVERYONE)
    return server_or_file


def left(backend: Backend) -> list[int]:
    store = backend.store()
    return [len(store.with_namespace(name).list()) for name in ("", "other")]


def test_prune_says_what_went_and_beforehand_what_would(filled: Backend) -> None:
    which = ["prune", "--older-than", "12h", "--keep-last", "1", "--cwd", "/0"]
    dry = invoke(*which, "--dry-run", url=filled.url)
    assert (dry.exit_code, left(filled)) == (0, [6, 6])
    assert dry.output.startswith("would prune 2 sessions, 6 entries, ")
    done = invoke(*which, url=filled.url)
    assert (done.exit_code, left(filled)) == (0, [4, 6])
    assert done.output == dry.output.replace("would prune", "pruned")
    assert invoke(*which, url=filled.url).output == "pruned 0 sessions, 0 entries, 0 bytes\n"
    other = ["prune", "--namespace", "other", "--older-than", NOON.isoformat()]
    assert invoke(*other, url=filled.url).output == "pruned 0 sessions, 0 entries, 0 bytes\n"
    assert (
        invoke("prune", "--namespace", "other", "--keep-last", "0", url=filled.url).exit_code == 0
    )
    assert left(filled) == [4, 0]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--cwd", "/0"],
        ["--older-than", "90"],
        ["--older-than", "3m"],
        ["--older-than", "-1d"],
        ["--older-than", "999999999w"],
        ["--older-than", "2026-01-01"],
        ["--older-than", "2026-01-01T00:00:00"],
        ["--older-than", ""],
        ["--keep-last", "-1"],
        ["--keep-last", "many"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_a_wrong_use(filled: Backend, options: list[str]) -> None:
    done = invoke("prune", *options, url=filled.url)
    assert done.exit_code == 2
    assert done.output.splitlines()[-1].startswith("Error: ")
    assert left(filled) == [6, 6]


def test_stats_are_a_table_by_directory(filled: Backend) -> None:
    remember(filled.store(), [with_files(aged(9, "é", cwd="/a b"), POOL[2], POOL[2])])
    done = invoke("stats", url=filled.url)
    assert done.exit_code == 0
    names, total, *directories = [line.split("  ") for line in done.output.splitlines()]
    assert names[0] == "directory"
    cells = [[cell.strip() for cell in line if cell] for line in [total, *directories]]
    assert [line[:3] for line in cells] == [
        ["all", "7", "21"],
        ["'/a b'", "1", "3"],
        ["'/0'", "3", "9"],
        ["'/1'", "3", "9"],
    ]
    assert [line[4:] for line in cells] == [
        ["8", "2.5 kB", "2.6 kB"],
        ["2", "2.5 kB", "2.5 kB"],
        ["3", "30 bytes", "60 bytes"],
        ["3", "30 bytes", "60 bytes"],
    ]
    empty = invoke("stats", "--namespace", "nobody's", url=filled.url)
    assert "".join(empty.output.splitlines()[1].split()) == "all000bytes00bytes0bytes"


def test_erase_asks_first(filled: Backend) -> None:
    asked = invoke("erase", "other", url=filled.url)
    assert asked.exit_code == 1
    assert "erase namespace 'other', with 6 sessions, 18 entries and 6 attachments?" in asked.output
    assert left(filled) == [6, 6]
    done = invoke("erase", "other", "--yes", url=filled.url)
    assert done.exit_code == 0
    assert done.output.startswith("erased 6 sessions, 18 entries, ")
    assert left(filled) == [6, 0]
    assert invoke("erase", url=filled.url).exit_code == 2
    assert invoke("erase", "", "--yes", url=filled.url).exit_code == 0
    assert left(filled) == [0, 0]


def test_an_answer_is_taken(filled: Backend) -> None:
    for answer, sessions in [("n", 6), ("y", 0)]:
        invoke("erase", "other", url=filled.url, input=f"{answer}\n")
        assert left(filled) == [6, sessions]


@pytest.mark.parametrize("command", [["stats"], ["prune", "--keep-last", "1"], ["erase", "x"]])
def test_a_database_without_tables_is_left_without(sqlite_url: URL, command: list[str]) -> None:
    done = invoke(*command, url=sqlite_url)
    assert done.exit_code == 1
    assert "turnkeep db upgrade" in done.output
    with SQLStore(sqlite_url, migrate=False) as store:
        assert store.revision() is None


def test_progress_is_told_on_a_terminal_only_and_leaves_no_line(
    tmp_path: Path, sqlite_url: URL
) -> None:
    with SQLStore(sqlite_url) as store:
        remember(store, EVERYONE)
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", "from turnkeep.cli import main; main()"]
    options = ["prune", "--keep-last", "2", "--url", sqlite_url.render_as_string()]
    done = subprocess.run(
        [*command, *options], stdout=subprocess.PIPE, stderr=follower, check=True, cwd=tmp_path
    )
    os.close(follower)
    told = os.read(leader, 10_000).decode()
    os.close(leader)
    assert done.stdout.decode().startswith("pruned 4 sessions, ")
    assert "\r4 sessions, 12 entries, " in told
    assert told.endswith("\r\x1b[K")
