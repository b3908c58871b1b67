"""The schema of the database: whether its revision is ours, and the way up.

The revisions are run by hand, one `upgrade()` after the other, on a connection whose transaction
and lock are the dialect's. This touches neither the host's logging nor its `sys.path`, needs no
Alembic environment, and does the same inside a migration of the host's own (`upgrade_in_host`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from alembic import context as environment
from alembic import op
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection

from turnkeep import dialect
from turnkeep.dialect import Again, rights
from turnkeep.errors import SchemaError
from turnkeep.revisions import current, go_down, go_up, head, newer, print_step, revisions
from turnkeep.tables import PREFIX

__all__ = [
    "all_but_turnkeep",
    "check",
    "current",
    "downgrade_in_host",
    "grants",
    "head",
    "only_turnkeep",
    "refuse_in_migration",
    "row_security_in_host",
    "upgrade",
    "upgrade_in_host",
]

# Alembic's `op` is one per process, so two threads can't run migrations at once.
_op = threading.Lock()

_MEND = "run `turnkeep db upgrade` or call the store's upgrade()"


def check(connection: Connection) -> None:
    """Hold the database to this version.

    Raises:
        SchemaError: it is older, newer or empty; names both revisions and what mends it.
    """
    found, wanted = current(connection), head()
    if found == wanted:
        return
    if found is None:
        raise SchemaError(
            f"the database has no turnkeep tables, and this version needs revision {wanted}: "
            f"{_MEND}"
        )
    if found not in revisions():
        raise newer(found)
    raise SchemaError(
        f"the database is at revision {found}, and this version needs {wanted}: {_MEND}"
    )


def upgrade(connection: Connection, *, row_security: bool | None = None) -> None:
    """Bring the database to `head()`, on a *connection* that has begun a migration.

    Row security is turned on or off after that; None leaves it, and is on for tables that are new
    where it is on.

    Raises:
        SchemaError: the database is newer, or has tables of our names that we didn't make; or a
            migration of somebody else's is running, where `upgrade_in_host` belongs.
    """
    # Not waited for: in an event loop the thread that has it may be our own.
    if not _op.acquire(blocking=False):
        raise Again("another migration is running in this process", locked=True)
    try:
        _refuse_in_migration()
        with _operations(connection):
            go_up(connection, head())
            dialect.of(connection).secure_rows(connection, on=row_security)
    finally:
        _op.release()


def refuse_in_migration() -> None:
    """Raise SchemaError inside a migration of somebody else's.

    That one may hold the very locks that ours would wait for.
    """
    if _op.acquire(blocking=False):  # else the migration that is running is ours
        try:
            _refuse_in_migration()
        finally:
            _op.release()


def upgrade_in_host(to: str, *, schema: str | None = None) -> None:
    """Run our revisions up to *to* inside a revision of the host's own Alembic.

    They run on its connection and in its transaction. What the database has already is passed over,
    so it does no harm where a store's `upgrade()` came first.

    ```python
    def upgrade() -> None:
        turnkeep.schema.upgrade_in_host("0001")
    ```

    Where Alembic prints SQL (`--sql`), what the database has is not known: *to* alone is printed.
    So a revision of the host's names one of ours, or calls this once for each.

    Args:
        to: the revision to go up to, by name: the host's revision means the same for ever.
        schema: the Postgres schema of the tables, which is made where it is missing; None is the
            connection's own.

    Raises:
        SchemaError: no migration is running; the database is newer; there is no revision *to*; a
            *schema* in printed SQL; or, on SQLite, foreign keys are enforced, which would delete
            what hangs on a table that is rebuilt.
    """
    connection = _host_connection()
    if connection is None:
        _refuse_schema(schema)
        print_step(to)
        return
    with _in_schema(connection, schema):
        dialect.of(connection).begin_migration(connection)
        go_up(connection, to)
        dialect.of(connection).secure_rows(connection, on=None)


def downgrade_in_host(to: str = "base", *, schema: str | None = None) -> None:
    """Undo our revisions behind *to* inside a revision of the host's own Alembic.

    Args:
        to: the revision to go down to; "base" removes all our tables.
        schema: as in `upgrade_in_host`.

    Raises:
        SchemaError: sessions would be lost; or as `upgrade_in_host`; or SQL is to be printed, since
            what would be lost can't be known then.
    """
    connection = _host_connection()
    if connection is None:
        raise SchemaError("a downgrade can't be printed as SQL: it looks first what would be lost")
    with _in_schema(connection, schema):
        dialect.of(connection).begin_migration(connection)
        go_down(connection, to)


def row_security_in_host(*, on: bool = True, schema: str | None = None) -> None:
    """Turn row security on or off inside a revision of the host's own Alembic, after
    `upgrade_in_host`.

    Where it is so already nothing is done. Tables that later revisions of ours bring get it by
    `upgrade_in_host`; where Alembic prints SQL (`--sql`), by calling this once more.

    Args:
        on: whether it is to be on.
        schema: as in `upgrade_in_host`.

    Raises:
        InvalidArgument: it is to be on, and the database is SQLite.
        SchemaError: as `upgrade_in_host`; or SQL is to be printed that turns it off.
    """
    connection = _host_connection()
    if connection is None:
        _refuse_schema(schema)
        if not on:
            raise SchemaError("this can't be printed as SQL: it looks first who has rights by it")
        for statement in dialect.DIALECTS[op.get_context().dialect.name].row_security():
            op.execute(statement)
        return
    with _in_schema(connection, schema):
        dialect.of(connection).begin_migration(connection)
        dialect.of(connection).secure_rows(connection, on=on)


def grants(
    *,
    owner: str | None = None,
    writer: str | None = None,
    recorder: str | None = None,
    tenants: str | None = None,
    schema: str | None = None,
) -> str:
    """The SQL that gives roles of Postgres their rights on our tables, and takes from them what is
    not theirs; `docs/rights.md` says what each may do.

    It is to be run by the owner of the tables or a superuser, in one transaction, and again when an
    upgrade brought tables. Nothing is run here.

    Args:
        owner: the role that upgrades: the tables are made its own.
        writer: appends, reads and deletes.
        recorder: appends and reads.
        tenants: the group of the roles that append, read and delete, each in the namespace of its
            own name, which takes row security.
        schema: the schema of the tables; None is `public`.

    Raises:
        InvalidArgument: no role is named, or one twice, or a name can't be one.
    """
    return rights.grants(rights.Roles(owner, writer, recorder, tenants), schema)


def only_turnkeep(name: str | None, type_: str, parent_names: object) -> bool:  # noqa: ARG001
    """Alembic's `include_name` for our own environment: of the tables, only ours."""
    return type_ != "table" or (name or "").startswith(PREFIX)


def all_but_turnkeep(name: str | None, type_: str, parent_names: object) -> bool:  # noqa: ARG001
    """Alembic's `include_name` for a host: all tables but ours.

    Its autogenerate and `alembic check` then propose nothing about them.
    """
    return type_ != "table" or not (name or "").startswith(PREFIX)


@contextmanager
def _operations(connection: Connection) -> Iterator[None]:
    """Alembic's `op` on *connection*."""
    failure: BaseException | None = None
    with Operations.context(MigrationContext.configure(connection)):
        try:
            yield
        except BaseException as error:  # noqa: BLE001 (raised below: Alembic cleans up on success only)
            failure = error
    if failure is not None:
        raise failure


def _host_connection() -> Connection | None:
    """The connection of the migration that is running; None where it prints SQL."""
    if not _is_migrating():
        raise SchemaError("no migration is running: call this in a revision of the host's Alembic")
    return None if op.get_context().as_sql else op.get_bind()


def _is_migrating() -> bool:
    running = _context(op)
    if running is None:
        return False
    # Alembic leaves `op` on a migration that failed, but ends the environment and its connection.
    if running.environment_context is not None and _context(environment) is not running:
        return False
    return running.as_sql or (running.connection is not None and not running.connection.closed)


def _context(proxy: ModuleType) -> MigrationContext | None:
    try:
        found: MigrationContext = proxy.get_context()
    except (NameError, AttributeError):  # never set, and set and taken away again
        return None
    return found


def _refuse_in_migration() -> None:
    if _is_migrating():
        raise SchemaError(
            "a migration is running in this process: call turnkeep.schema.upgrade_in_host() in it"
        )


def _refuse_schema(schema: str | None) -> None:
    if schema is not None:
        raise SchemaError("SQL is printed without a schema: set the search_path in front of it")


@contextmanager
def _in_schema(connection: Connection, schema: str | None) -> Iterator[None]:
    """Put *schema* in for none, and take it out again: options stay with a connection."""
    if schema is None:
        yield
        return
    dialect.of(connection).check_schema(schema)
    before = connection.get_execution_options().get("schema_translate_map")
    connection.execution_options(schema_translate_map={**(before or {}), None: schema})
    try:
        yield
    finally:
        connection.execution_options(schema_translate_map=before)
