"""A value that somebody changed in the database is said to be damaged, whatever it is now.

Postgres holds columns to their types, so what is tried there is what they allow. SQLite takes any
value for any column.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from conftest import Backend
from contention import header, said
from hosts import SECRET, assert_is_clean
from turnkeep import Corrupt, ModelEntry, SQLStore, TurnkeepError

STAMP = "2026-11-30T12:00:00Z"
CALLS: dict[str, Callable[[SQLStore, Path], object]] = {
    "read": lambda store, _: store.read("s"),
    "tail": lambda store, _: store.tail("s", 9),
    "page": lambda store, _: store.page("s", after=0, limit=9),
    "get": lambda store, _: store.get("s"),
    "list": lambda store, _: store.list("/w"),
    "attachments": lambda store, _: store.attachments("s"),
    "export_history": lambda store, _: store.export_history("s", lossy=[]),
    "export_folder": lambda store, path: store.export_folder("s", path / "out", lossy=[]),
    "append": lambda store, _: store.append("s", said(SECRET)),
    "extend": lambda store, _: store.extend("s", [said(SECRET), ModelEntry("m", STAMP)]),
    "delete": lambda store, _: store.delete("s"),
    "stats": lambda store, _: store.stats(),
    "prune": lambda store, _: store.prune(keep_last=0),
    "dry run": lambda store, _: store.prune(keep_last=0, dry_run=True),
    "erase": lambda store, _: store.erase_namespace(),
}
READ = {"read", "tail", "page", "export_history", "export_folder"}
HEADERS = {"get", "list", "export_folder"}
WRITES = {"append", "extend"}
PRUNES = {"prune", "dry run"}

# What is set to what, and the calls that are to find it.
ON_SQLITE = [
    ("entries SET payload = x'00' WHERE position = 1", READ),
    ("entries SET payload = 5 WHERE position = 1", READ),
    ("entries SET recorded_at = x'00' WHERE position = 1", READ),
    ("entries SET recorded_at = 5 WHERE position = 1", READ),
    ("entries SET type = x'00' WHERE position = 1", READ),
    ("entries SET attachments = 'many' WHERE position = 1", READ),
    ("entries SET position = 'last' WHERE position = 3", {"page"}),
    ("blobs SET data = 'text'", READ),
    ("blobs SET data = 5", READ),
    ("blobs SET size = 'large'", set()),
    ("attachments SET path = x'00'", READ),
    ("sessions SET updated_at = 'noon'", HEADERS | PRUNES),
    ("sessions SET updated_at = x'00'", HEADERS | PRUNES),
    ("sessions SET updated_at = '0001-01-01T00:00:00+23:59'", HEADERS | PRUNES),
    ("sessions SET last_position = 'x'", HEADERS | {"page", "extend", "prune"}),
    ("sessions SET last_position = 9223372036854775807", {*WRITES, "prune"}),
    ("sessions SET last_recorded_at = x'00'", WRITES),
    ("sessions SET cwd = x'00'", HEADERS),
    ("sessions SET schema_version = 'x'", HEADERS),
]
ANYWHERE = [
    ("entries SET payload = '5' WHERE position = 1", READ),
    ("entries SET payload = '[{\"secret\"' WHERE position = 1", READ),
    ("entries SET type = '' WHERE position = 1", READ),
    ("entries SET recorded_at = 'secret' WHERE position = 1", READ),
    ("entries SET attachments = -1 WHERE position = 1", READ),
    ("attachments SET path = '5'", READ),
    ("sessions SET created_at = 'noon'", HEADERS),
    ("sessions SET schema_version = 0", HEADERS),
]


def found_damage(backend: Backend, change: str, path: Path) -> set[str]:
    """The calls that say, of a session with this *change*, that it is Corrupt; others work, or an
    error of ours says that they can't.
    """
    store = backend.store()
    entries = [header("s"), said(SECRET, b"bytes"), said(SECRET), ModelEntry("m")]
    engine = create_engine(backend.url)
    found = set()
    for name, call in CALLS.items():
        store.delete("s")
        store.extend("s", entries)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE turnkeep_{change}")
        findings = list(store.verify())
        assert findings
        assert not any(SECRET in f"{finding}" for finding in findings)
        try:
            call(store, path)
        except TurnkeepError as error:
            assert_is_clean(error)
            found |= {name} if isinstance(error, Corrupt) else set()
        with engine.begin() as connection:
            for table in ("attachments", "entries", "sessions", "blobs"):
                connection.exec_driver_sql(f"DELETE FROM turnkeep_{table}")
    engine.dispose()
    return found


@pytest.mark.parametrize(("change", "finders"), ANYWHERE, ids=[change for change, _ in ANYWHERE])
def test_a_value_that_was_never_written_is_corrupt(
    server_or_file: Backend, change: str, finders: set[str], tmp_path: Path
) -> None:
    assert found_damage(server_or_file, change, tmp_path) == finders


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("change", "finders"), ON_SQLITE, ids=[change for change, _ in ON_SQLITE])
def test_a_value_of_another_type_is_corrupt(
    backend: Backend, change: str, finders: set[str], tmp_path: Path
) -> None:
    assert found_damage(backend, change, tmp_path) == finders
