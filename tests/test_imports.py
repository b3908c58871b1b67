"""What `import turnkeep` needs, and what waits until it is used."""

import json
import subprocess
import sys
from typing import Any

import pytest

# What may not be installed, and what takes long to import: Alembic and SQLAlchemy's ORM together
# take as long as SQLAlchemy's core.
OPTIONAL = ("greenlet", "psycopg", "psycopg_pool", "aiosqlite", "asyncpg", "click")
HEAVY = ("alembic", "mako", "sqlalchemy.orm", "sqlalchemy.ext.asyncio")

PROGRAM = """
import json, sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in FORBIDDEN):
            raise ImportError(f"{name} is not to be imported")

FORBIDDEN = json.loads(sys.argv[1])
sys.meta_path.insert(0, Forbid())
"""


def run(code: str, *forbidden: str) -> Any:
    """What *code* prints as JSON, in a process that can't import what is *forbidden*."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM + code, json.dumps(forbidden)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_needs_nothing_optional_and_nothing_heavy() -> None:
    names = run(
        "import turnkeep, turnkeep.testing\n"
        "from turnkeep import *\n"
        "print(json.dumps([name for name in turnkeep.__all__ if name in globals()]))",
        *OPTIONAL,
        *HEAVY,
    )
    assert {"AsyncLoader", "AsyncSQLStore", "Loader", "SQLStore", "trace"} < {*names}


def test_the_sync_store_on_sqlite_needs_nothing_optional() -> None:
    ids = run(
        "from turnkeep import Loader, SQLStore\n"
        "with SQLStore('sqlite://') as store:\n"
        "    loader = Loader('/w', store=store)\n"
        "    loader.start('m').add_message({'role': 'user', 'content': 'Hello'})\n"
        "    print(json.dumps([h.title for h in loader.list()]))",
        *OPTIONAL,
    )
    assert ids == ["Hello"]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite+aiosqlite://"])
def test_the_async_store_on_sqlite_needs_nothing_optional(url: str) -> None:
    ids = run(
        "import asyncio\n"
        "from turnkeep import AsyncLoader, AsyncSQLStore\n"
        "async def main():\n"
        f"    async with AsyncSQLStore({url!r}) as store:\n"
        "        loader = AsyncLoader('/w', store=store)\n"
        "        session = await loader.start('m')\n"
        "        await session.add_message({'role': 'user', 'content': 'Hello'})\n"
        "        return [h.title for h in await loader.list()]\n"
        "print(json.dumps(asyncio.run(main())))",
        *OPTIONAL,
    )
    assert ids == ["Hello"]


@pytest.mark.parametrize(
    ("url", "missing", "remedy"),
    [
        ("postgresql://h/d", "greenlet", "turnkeep[async]"),
        ("postgresql://h/d", "psycopg", "turnkeep[async,postgres]"),
        ("postgresql+asyncpg://h/d", "asyncpg", "asyncpg"),
    ],
)
def test_the_async_store_says_what_to_install(url: str, missing: str, remedy: str) -> None:
    said = run(
        "import turnkeep\n"
        f"try: turnkeep.AsyncSQLStore({url!r})\n"
        "except turnkeep.InvalidArgument as error: print(json.dumps(str(error)))",
        missing,
    )
    assert f"pip install '{remedy}'" in said
