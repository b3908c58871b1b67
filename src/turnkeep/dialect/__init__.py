"""All that SQLite and Postgres do differently; outside this package no module names a database."""

from collections.abc import Mapping

from sqlalchemy import Connection

from turnkeep.dialect.base import Again, AttachmentRow, Dialect, Mode, Parameters, Row
from turnkeep.dialect.postgres import Postgres
from turnkeep.dialect.sqlite import Sqlite
from turnkeep.dialect.statements import counted, values_of

__all__ = [
    "DIALECTS",
    "Again",
    "AttachmentRow",
    "Dialect",
    "Mode",
    "Parameters",
    "Row",
    "counted",
    "of",
    "values_of",
]

DIALECTS: Mapping[str, Dialect] = {"sqlite": Sqlite(), "postgresql": Postgres()}


def of(connection: Connection) -> Dialect:
    """The dialect that *connection* speaks."""
    return DIALECTS[connection.dialect.name]
