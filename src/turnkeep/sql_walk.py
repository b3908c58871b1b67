"""Going through a table by its primary key, a portion after the other, whatever it holds.

The first portion begins where the table does, not behind a value that is less than all: other hands
may have put a lesser one there. A place in the table is a row's key as it is stored. SQLite takes
any value for any column, orders numbers before texts and these before blobs, and its driver ends
the statement where a text is no UTF-8; so a text is read there as its bytes, and given back as a
text again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Select, bindparam, tuple_
from sqlalchemy.sql.dml import ReturningDelete
from sqlalchemy.types import Integer

from turnkeep.dialect.statements import Given, IsText, Stored
from turnkeep.prepared import Prepared

SHOWN = 300
"""How many characters are told of a value that is not what its column should hold."""


class Value(NamedTuple):
    """What a column holds; where *is_text*, *stored* are the bytes of a text."""

    stored: Any
    is_text: Any = False

    @property
    def text(self) -> str | None:
        """The text; None where it is no text in UTF-8."""
        if isinstance(self.stored, str):
            return self.stored
        try:
            return self.stored.decode() if self.is_text else None
        except UnicodeDecodeError:
            return None

    @property
    def data(self) -> bytes | None:
        """The bytes; None where it is something else."""
        return None if self.is_text or not isinstance(self.stored, bytes) else self.stored

    @property
    def shown(self) -> Any:
        """What can be told of it: the text or the number, or what stands for them."""
        if not isinstance(self.stored, bytes):
            return self.stored
        if (text := self.text) is not None:
            return text
        if self.is_text:
            return self.stored.decode(errors="backslashreplace")[:SHOWN]
        return f"x'{self.stored.hex()[:SHOWN]}'"


Place: TypeAlias = tuple[Value, ...]
"""A row's primary key behind the namespace."""


class Keys:
    """The columns of a primary key behind the namespace."""

    def __init__(self, *columns: ColumnElement[Any]) -> None:
        self.columns = columns
        self.stored: list[ColumnElement[Any]] = [
            element for column in columns for element in (Stored(column), IsText(column))
        ]

    def given(self, name: str) -> list[ColumnElement[Any]]:
        """The place that *name* is, in a statement."""
        return [
            Given(
                bindparam(f"{name}_{column.key}", type_=column.type),
                bindparam(f"{name}_{column.key}_is_text", type_=Integer),
            )
            for column in self.columns
        ]

    def behind(self, name: str = "after") -> ColumnElement[bool]:
        """Whether a row comes behind the place *name*."""
        return tuple_(*self.columns) > tuple_(*self.given(name))

    def up_to(self, name: str = "last") -> ColumnElement[bool]:
        """Whether a row doesn't."""
        return tuple_(*self.columns) <= tuple_(*self.given(name))

    def values(self, place: Place | None, name: str = "after") -> dict[str, object]:
        """The parameters that say where *name* is; none at the start."""
        values = {}
        for column, value in zip(self.columns, place or (), strict=place is not None):
            values[f"{name}_{column.key}"] = value.stored
            values[f"{name}_{column.key}_is_text"] = int(bool(value.is_text))
        return values

    def split(self, row: Sequence[Any]) -> tuple[Place, Sequence[Any]]:
        """The place of a *row* that begins with what is `stored`, and what else it has."""
        end = 2 * len(self.columns)
        return tuple(map(Value, row[:end:2], row[1:end:2])), row[end:]


class Walk:
    """A *statement* on a table with these *keys*, from its start, or from behind a place on."""

    def __init__(
        self,
        statement: Select[Any] | ReturningDelete[Any],
        keys: Keys,
        *,
        binary_result: bool = False,
    ) -> None:
        self._keys = keys
        self.first = Prepared(statement, binary_result=binary_result)
        self.next = Prepared(statement.where(keys.behind()), binary_result=binary_result)

    def fetch(self, connection: Any, values: dict[str, object], after: Place | None) -> list[Any]:
        """Its rows behind *after*, or the first ones."""
        statement = self.first if after is None else self.next
        return statement.fetch(connection, values | self._keys.values(after))
