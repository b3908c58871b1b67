"""`alembic` at the top of the checkout: what a developer of turnkeep does, in a copy of it."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, Connection, create_engine, text

from conftest import Backend
from migrating import HEAD, begin, contents, tables
from turnkeep import SQLStore
from turnkeep.tables import metadata

ROOT = Path(__file__).parents[1]
NEXT = f"{int(HEAD) + 1:04}"
OURS = {*metadata.tables, "turnkeep_version"}

# Each makes a copy of the checkout, and starts Alembic in it several times.
pytestmark = pytest.mark.slow


class Checkout:
    """A copy of what alembic needs of the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("migrations", "src"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in ("alembic.ini", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)

    def run(self, *command: str, fails: bool = False) -> str:
        """What the command printed, which succeeded or was to fail."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", *command],
            cwd=self.folder,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def alembic(self, *arguments: str, url: URL | None = None, fails: bool = False) -> str:
        """What `alembic` printed, on *url* or on the database of alembic.ini."""
        given = () if url is None else ("-x", f"url={plain(url)}")
        return self.run("alembic", *given, *arguments, fails=fails)

    @property
    def new_revision(self) -> Path:
        """The file of the revision that was made here."""
        return next((self.folder / "migrations" / "versions").glob(f"{NEXT}_*.py"))

    def add_columns(self) -> None:
        """Add columns of our own types to the models."""
        models = self.folder / "src" / "turnkeep" / "tables.py"
        first = '    Column("schema_version", Integer, nullable=False),\n'
        more = (
            '    Column("seen_at", Utc, nullable=True),\n    Column("owner", Key, nullable=True),\n'
        )
        assert models.read_text().count(first) == 1
        models.write_text(models.read_text().replace(first, first + more))


def plain(url: URL) -> str:
    """As a developer would write it."""
    text = url.render_as_string(hide_password=False)
    return text.replace("postgresql+psycopg://", "postgresql://")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A copy of the checkout."""
    return Checkout(tmp_path / "checkout")


def test_a_revision_without_a_change_is_empty_and_clean(checkout: Checkout) -> None:
    checkout.alembic("upgrade", "head")
    assert "No new upgrade operations" in checkout.alembic("check")
    checkout.alembic("revision", "--autogenerate", "-m", "Nothing at all.")
    assert checkout.new_revision.name == f"{NEXT}_nothing_at_all.py"
    code = checkout.new_revision.read_text()
    assert code.startswith(f'"""Nothing at all.\n\nRevision: {NEXT}, after {HEAD}\n"""\n')
    assert "import" not in code
    compile(code, "revision", "exec")
    checkout.run("ruff", "check", "migrations")
    checkout.run("ruff", "format", "--check", "migrations")
    checkout.alembic("upgrade", "head")
    assert f"{NEXT} (head)" in checkout.alembic("current")
    checkout.alembic("downgrade", "base")
    with sqlite3.connect(checkout.folder / "dev.db") as database:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    database.close()
    assert found == [("turnkeep_version",)]


def test_what_changed_in_the_models_is_proposed(
    checkout: Checkout, server_or_file: Backend
) -> None:
    """In SQLAlchemy's own types, and with nothing about the tables of others."""
    url = server_or_file.url
    engine = server_or_file.engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE sessions (id INTEGER)"))
    checkout.alembic("upgrade", "head", url=url)
    with SQLStore(url) as store:
        begin(store)
    checkout.add_columns()
    proposed = checkout.alembic("check", url=url, fails=True)
    assert re.findall(r"\('(\w+)', None, '(\w+)', Column\('(\w+)'", proposed) == [
        ("add_column", "turnkeep_sessions", "seen_at"),
        ("add_column", "turnkeep_sessions", "owner"),
    ]
    checkout.alembic("revision", "--autogenerate", "-m", "Owner", url=url)
    code = checkout.new_revision.read_text()
    assert "turnkeep.tables" not in code
    assert "sa.DateTime(timezone=True).with_variant(sa.Text(), 'sqlite')" in code
    assert "sa.Text().with_variant(sa.Text(collation='C'), 'postgresql')" in code
    checkout.run("ruff", "format", "migrations")
    checkout.run("ruff", "check", "migrations")
    checkout.alembic("upgrade", "head", url=url)
    checkout.alembic("check", url=url)
    checkout.alembic("downgrade", HEAD, url=url)
    with SQLStore(url) as store:
        assert len(store.read("s")) == 2
        refused = checkout.alembic("downgrade", "base", url=url, fails=True)
        assert "SchemaError: turnkeep_sessions holds sessions" in refused
        assert store.delete("s")
    checkout.alembic("downgrade", "base", url=url)
    with engine.connect() as connection:
        assert tables(connection) == {"sessions", "turnkeep_version"}


def test_the_printed_sql_makes_the_same_tables(
    checkout: Checkout, server_or_file: Backend, tmp_path: Path
) -> None:
    printed = checkout.alembic("upgrade", "head", "--sql", url=server_or_file.url)
    if server_or_file.is_postgres:
        with psycopg.connect(plain(server_or_file.url), autocommit=True) as database:
            database.execute(printed.encode())
    else:
        with sqlite3.connect(str(server_or_file.url.database)) as file:
            file.executescript(printed)
        file.close()
    store = server_or_file.store(migrate=False)
    store.check()
    made = of_columns(server_or_file)
    engine = server_or_file.engine()
    with engine.begin() as connection:
        for table in ("attachments", "entries", "blobs", "sessions", "version"):
            connection.execute(text(f"DROP TABLE turnkeep_{table}"))
    server_or_file.store()
    assert of_columns(server_or_file) == made


def of_columns(backend: Backend) -> object:
    """What the columns are, and how Postgres stores them."""
    storage = (
        "SELECT c.relname, a.attname, a.attstorage, a.attcompression, a.attcollation::text"
        " FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE c.relname LIKE 'turnkeep%' AND c.relkind = 'r' AND a.attnum > 0 ORDER BY 1, 2"
    )

    def look(connection: Connection) -> object:
        stored = connection.execute(text(storage)).all() if backend.is_postgres else None
        return contents(connection), stored

    engine = create_engine(backend.url)
    with engine.connect() as connection:
        found = look(connection)
    engine.dispose()
    return found
