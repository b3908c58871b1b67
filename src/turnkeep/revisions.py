"""The revisions of our tables, and the steps from one to another.

They are Alembic's, in `migrations/`: beside this module in an installed package, at the top in a
checkout. `go_up` and `go_down` call their functions by hand, on what Alembic's `op` leads to at the
time. `turnkeep_version` is our version table, in the schema of our tables, so that no
`alembic_version` is met; a database is at one revision, so it has one row.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from alembic import op
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    inspect,
    literal_column,
    select,
)
from sqlalchemy.schema import CreateTable, DropTable

from turnkeep import dialect
from turnkeep.errors import SchemaError
from turnkeep.tables import VERSION_TABLE, metadata

# As Alembic makes it: a developer's `alembic` command works on it too.
_version = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


def migrations() -> Path:
    """The folder of the revisions: beside this module in a wheel, at the top of a checkout."""
    here = Path(__file__).parent
    shipped = here / "migrations"
    return shipped if shipped.is_dir() else here.parents[1] / "migrations"


def revisions() -> Mapping[str, ModuleType]:
    """All revisions by name, oldest first."""
    return _load(migrations())


def head() -> str:
    """The revision that this version of turnkeep works with."""
    return list(revisions())[-1]


def current(connection: Connection) -> str | None:
    """The revision that the database is at; None where it has none of our tables."""
    if not _has_table(connection, VERSION_TABLE):
        return None
    found: list[str] = list(connection.execute(select(_version.c.version_num)).scalars())
    if len(found) > 1:
        raise SchemaError(
            f"{VERSION_TABLE} has {len(found)} rows, where each migration leaves one: "
            "delete those that don't tell what the tables are"
        )
    return found[0] if found else None


def newer(found: str) -> SchemaError:
    """The error for a database at *found*."""
    return SchemaError(
        f"the database is at revision {found}, which this version doesn't know (its newest is "
        f"{head()}): a newer turnkeep migrated it; upgrade the package"
    )


def go_up(connection: Connection, to: str) -> None:
    """Run what is pending up to *to*, recording each revision in the same transaction."""
    _known(to)
    found = _found(connection)
    if found is None:
        _refuse_foreign(connection)
    pending = _between(found, to)
    if found is not None and pending:
        dialect.of(connection).check_cascades(connection)
    has_version = _has_table(connection, VERSION_TABLE)
    for name, revision in pending.items():
        _step_up(revision, name, has_version=has_version)
        has_version = True


def go_down(connection: Connection, to: str) -> None:
    """Undo what is above *to*; "base" is below all."""
    target = None if to == "base" else to
    if target is not None:
        _known(target)
    found = _found(connection)
    pending = {} if found is None else _between(target, found)
    if pending:
        dialect.of(connection).check_cascades(connection)
    for revision in reversed(pending.values()):
        revision.downgrade()
    if pending and target is None:
        op.execute(DropTable(_version))
    elif pending and target is not None:
        _record(target)


def print_step(to: str) -> None:
    """Print revision *to*, and it alone: of a database that isn't there nothing is known."""
    _step_up(_known(to), to, has_version=to != next(iter(revisions())))


def _step_up(revision: ModuleType, name: str, *, has_version: bool) -> None:
    revision.upgrade()
    if not has_version:
        op.execute(CreateTable(_version))
    _record(name)


def _record(name: str) -> None:
    op.execute(_version.delete())
    # A literal, not a bound value, since it may be printed.
    op.execute(_version.insert().values(version_num=literal_column(f"'{name}'")))


def _found(connection: Connection) -> str | None:
    """The revision that the database is at, which is one of ours."""
    found = current(connection)
    if found is not None and found not in revisions():
        raise newer(found)
    return found


def _known(name: str) -> ModuleType:
    if name not in revisions():
        raise SchemaError(f"this version has no revision {name}: its newest is {head()}")
    return revisions()[name]


def _between(low: str | None, high: str) -> dict[str, ModuleType]:
    """The revisions above *low* up to *high*, oldest first; none where *low* is the higher."""
    names = list(revisions())
    start = 0 if low is None else names.index(low) + 1
    return {name: revisions()[name] for name in names[start : names.index(high) + 1]}


def _refuse_foreign(connection: Connection) -> None:
    """Never take over a table because its name is ours."""
    for table in metadata.tables:
        if _has_table(connection, table):
            raise SchemaError(
                f"the database has a table {table} that no migration of turnkeep's recorded in "
                f"{VERSION_TABLE}: rename it, or give turnkeep a schema or database of its own"
            )


def _has_table(connection: Connection, name: str) -> bool:
    translated = connection.get_execution_options().get("schema_translate_map") or {}
    return inspect(connection).has_table(name, schema=translated.get(None))


@cache
def _load(folder: Path) -> dict[str, ModuleType]:
    found = list(ScriptDirectory(str(folder)).walk_revisions())
    return {revision.revision: revision.module for revision in reversed(found)}
