"""Revisions that a later version might bring, and what the tests' child processes do with them.

A spawned process imports this module, so nothing in it needs pytest.
"""

import shutil
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, inspect, text

from turnkeep import Header, MessageEntry, SQLStore, revisions, schema

WAIT_SECONDS = 60
"""How long one waits for the others: more than any of them needs, so that a test ends."""

HEAD = schema.head()
MIGRATIONS = revisions.migrations()

ADD_COLUMN = 'op.add_column("turnkeep_sessions", sa.Column("extra", sa.Text()))'

REBUILD = """with op.batch_alter_table("turnkeep_sessions", recreate="always") as batch:
        batch.add_column(sa.Column("extra", sa.Text()))"""

FAIL = """op.create_table("turnkeep_extra", sa.Column("a", sa.Text()))
    op.add_column("turnkeep_sessions", sa.Column("extra", sa.Text()))
    raise ZeroDivisionError("the migration has a fault")"""

HANG = """op.create_table("turnkeep_extra", sa.Column("a", sa.Text()))
    import pathlib, time
    pathlib.Path(__file__).with_name("holds").touch()
    time.sleep(3600)"""

_start: Barrier | None = None


def with_revision(folder: Path, upgrade: str, downgrade: str = "pass") -> Path:
    """A copy of the migrations in *folder*, with one more revision, `later`."""
    shutil.copytree(revisions.migrations(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "later.py").write_text(
        "import sqlalchemy as sa\n"
        "from alembic import op\n"
        "revision = 'later'\n"
        f"down_revision = {HEAD!r}\n"
        f"def upgrade():\n    {upgrade}\n"
        f"def downgrade():\n    {downgrade}\n"
    )
    return folder


def use_revisions(folder: Path) -> None:
    """Let this process take its revisions from *folder*, for the rest of its life."""
    revisions.migrations = lambda: folder


def enlist(start: Barrier) -> None:
    """Make this process one of those that begin each call together."""
    global _start  # noqa: PLW0603 (the one thing that a process of a pool is given)
    _start = start


def upgrade(url: URL, folder: Path) -> str | None:
    """Upgrade together with the others; the revision after it."""
    use_revisions(folder)
    with SQLStore(url, migrate=False) as store:
        _wait()
        store.upgrade()
        return store.revision()


def use(url: URL, writer: int) -> int:
    """Open a database together with the others and write; the position of what was written."""
    use_revisions(MIGRATIONS)
    _wait()
    with SQLStore(url, migrate=True) as store:
        return begin(store, f"s{writer}")


def hang(url: URL, folder: Path) -> None:
    """Begin a migration that doesn't end."""
    use_revisions(folder)
    SQLStore(url).upgrade()


def begin(store: SQLStore, id: str = "s") -> int:
    """Make a session of two entries."""
    header = Header(id=id, cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")
    return store.extend(id, [header, MessageEntry({"role": "user", "content": "hello"})])


def tables(connection: Connection, schema: str | None = None) -> set[str]:
    """The names of the tables and views."""
    found = inspect(connection)
    return {*found.get_table_names(schema), *found.get_view_names(schema)}


def contents(connection: Connection) -> dict[str, Any]:
    """All rows of all tables, and what the tables are made of."""
    found: dict[str, Any] = {}
    quote = connection.dialect.identifier_preparer.quote
    for name in sorted(tables(connection)):
        columns = [(c["name"], str(c["type"])) for c in inspect(connection).get_columns(name)]
        rows = connection.execute(text(f"SELECT * FROM {quote(name)}")).all()
        found[name] = (columns, sorted(map(repr, rows)))
    return found


def _wait() -> None:
    assert _start is not None
    _start.wait(WAIT_SECONDS)
