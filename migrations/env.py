"""Alembic's environment for a developer at the top of a checkout.

It runs on the database of alembic.ini, or of `alembic -x url=…`. The installed package runs the
revisions without it: see `turnkeep.schema`.
"""

from collections.abc import Iterable
from typing import Any, Literal

from alembic import context
from alembic.operations import MigrationScript
from alembic.runtime.migration import MigrationContext
from sqlalchemy import URL

from turnkeep import schema
from turnkeep.dialect import Mode, of
from turnkeep.engine import open_engine, parse_url
from turnkeep.tables import VERSION_TABLE, Utc, metadata

TIMEOUT = 30.0


def render_item(kind: str, item: object, autogen_context: object) -> str | Literal[False]:  # noqa: ARG001
    """Types of our own as SQLAlchemy's: a revision must not change with the package."""
    if kind == "type" and isinstance(item, Utc):
        return "sa.DateTime(timezone=True).with_variant(sa.Text(), 'sqlite')"
    return False


def number(
    migration: MigrationContext,  # noqa: ARG001
    revision: str | Iterable[str | None] | Iterable[str],  # noqa: ARG001
    directives: list[MigrationScript],
) -> None:
    """Name the new revision by the next number, unless it was given a name."""
    if directives and not getattr(context.config.cmd_opts, "rev_id", None):
        directives[0].rev_id = f"{int(schema.head()) + 1:04}"


def run(**target: Any) -> None:
    """Run the chosen revisions on *target*: a connection, or the URL of one to print SQL for."""
    context.configure(
        target_metadata=metadata,
        include_name=schema.only_turnkeep,
        process_revision_directives=number,
        render_as_batch=True,
        render_item=render_item,
        transactional_ddl=True,
        version_table=VERSION_TABLE,
        **target,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_on(url: URL) -> None:
    """Run them on a database, as the store's `upgrade()` does."""
    engine = open_engine(url, timeout=TIMEOUT)
    try:
        with engine.connect() as connection:
            of(connection).run(
                connection, Mode.MIGRATION, TIMEOUT, lambda connection: run(connection=connection)
            )
    finally:
        engine.dispose()


given = context.get_x_argument(as_dictionary=True).get("url")
url = parse_url(given or context.config.get_main_option("sqlalchemy.url") or "")
if context.is_offline_mode():
    run(url=url, literal_binds=True)
else:
    run_on(url)
