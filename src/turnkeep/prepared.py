"""A Core statement for the hot paths: compiled once per driver and schema, run on the driver's own
cursor.

It is the same connection and transaction as all else; what it leaves out is SQLAlchemy's work per
execution, which costs more than SQLite takes to append. So engine events such as
`before_cursor_execute` don't see these statements, values go to the driver as they are (only str,
int, bytes, lists of them, None, and what `Dialect.instant` gives), and errors are the driver's own.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.sql import ClauseElement

_SCHEMA = "schema_to_be_put_in"


class Prepared:
    """A *statement*, and what of it goes in binary where the driver has two formats.

    In the text format psycopg takes five times as long to write a list of texts, and three times as
    long to read bytes.

    Args:
        statement: any that Core can compile.
        binary: the names of the parameters that are bound in binary.
        binary_result: whether its rows come in binary.
    """

    def __init__(
        self, statement: ClauseElement, binary: Sequence[str] = (), *, binary_result: bool = False
    ) -> None:
        self._statement = statement
        self._binary = binary
        self._binary_result = binary_result
        self._compiled: dict[tuple[str, str | None], Compiled] = {}

    def fetch(self, connection: Connection, parameters: Mapping[str, object]) -> list[Any]:
        """Run it and give all its rows; none where it returns no rows."""
        compiled = self._for(connection)
        options = compiled.options if compiled.options and _gives_binary(connection) else {}
        cursor: Any = connection.connection.cursor(**options)
        try:
            cursor.execute(compiled.text, compiled.arranged(parameters))
            return cursor.fetchall() if compiled.gives_rows else []
        finally:
            cursor.close()

    def run_many(self, connection: Connection, parameters: Sequence[Mapping[str, object]]) -> None:
        """Run it once for each of *parameters*."""
        compiled = self._for(connection)
        cursor = connection.connection.cursor()
        try:
            cursor.executemany(compiled.text, [compiled.arranged(p) for p in parameters])
        finally:
            cursor.close()

    def _for(self, connection: Connection) -> "Compiled":
        translated = connection.get_execution_options().get("schema_translate_map")
        key = (connection.dialect.driver, translated.get(None) if translated else None)
        if key not in self._compiled:
            self._compiled[key] = self.compile(connection.dialect, translated)
        return self._compiled[key]

    def compile(self, dialect: Dialect, translated: Any = None) -> "Compiled":
        """The SQL for the driver of *dialect*, and for a map of schemas."""
        schema = translated.get(None) if translated else None
        compiled: Any = self._statement.compile(
            dialect=dialect,
            schema_translate_map=None if schema is None else {None: _SCHEMA},
            render_schema_translate=schema is not None,
        )
        text, options = str(compiled), {}
        if dialect.paramstyle == "pyformat":  # psycopg
            for name in self._binary:
                text = text.replace(f"%({name})s", f"%({name})b")
            options = {"binary": True} if self._binary_result else {}
        if schema is not None:
            # Only now: what looks like a parameter in its name is none.
            text = text.replace(f"{_SCHEMA}.", f"{dialect.identifier_preparer.quote(schema)}.")
        order = list(compiled.positiontup) if compiled.positional else None
        given = {name: value for name, value in compiled.params.items() if value is not None}
        return Compiled(text, order, given, options, gives_rows=_gives_rows(self._statement))


def _gives_binary(connection: Connection) -> bool:
    """Whether psycopg's cursors can: client-side ones, which a host may have chosen, can't, and
    SQLAlchemy's async ones don't pass it on.
    """
    if connection.dialect.is_async:
        return False
    from psycopg import ClientCursor

    driver: Any = connection.connection.driver_connection
    return not issubclass(driver.cursor_factory, ClientCursor)


def _gives_rows(statement: Any) -> bool:
    """Whether *statement* does; to ask a cursor of psycopg costs more than to fetch them."""
    return bool(statement.is_select or statement.returning_column_descriptions)


class Compiled:
    """The SQL for one driver and schema."""

    def __init__(
        self,
        text: str,
        order: list[str] | None,
        given: dict[str, object],
        options: dict[str, bool],
        *,
        gives_rows: bool,
    ) -> None:
        self.text = text
        self.gives_rows = gives_rows
        self.options = options
        self.order = order
        self.given = given  # parameters that the compiler adds, such as SQLite's offset of 0
        self._in_order = None if order is None else _getter(order)

    def arranged(self, parameters: Mapping[str, object]) -> Any:
        """*parameters* as the driver takes them: by name or by place."""
        if self.given:
            parameters = {**self.given, **parameters}
        return parameters if self._in_order is None else self._in_order(parameters)


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, object]], Any]:
    """What gives the values under *names*, in their order."""
    return itemgetter(*names) if len(names) > 1 else lambda values: [values[n] for n in names]
