"""Roles of a Postgres server, the rights that `turnkeep db grants` gives them, and what they do
past the store.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from sqlalchemy import URL

from contention import header, said
from turnkeep import AsyncSQLStore, Conflict, Entry, ModelEntry, SQLStore, Unavailable
from turnkeep.cli.commands import turnkeep
from turnkeep.tables import metadata
from turnkeep.testing import Blocking

_numbers = itertools.count()


class Roles:
    """Roles of one test, on an empty database of its own."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self._names: list[str] = []

    def add(self, password: str = "p", *settings: str, name: str | None = None) -> URL:
        """A role that may do nothing beyond what everyone may; the URL by which it connects."""
        name = f"role_{next(_numbers)}" if name is None else name
        self._names.append(name)
        role = sql.Identifier(name)
        with connected(self.url) as connection:
            make = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(make.format(role, sql.Literal(password)))
            for setting in settings:
                connection.execute(sql.SQL(setting).format(role))
        return self.url.set(username=name, password=password)

    def run(self, *statements: str) -> None:
        """Run *statements* as the superuser, each by itself."""
        with connected(self.url) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def grants(self, *options: str, schema: str | None = None, by: URL | None = None) -> str:
        """Run what `turnkeep db grants` prints, as the superuser or *by* another; that text."""
        text = printed(*options, schema=schema)
        with connected(by or self.url) as connection:
            connection.execute(text.encode())
        return text

    def close(self) -> None:
        with connected(self.url) as connection:
            for name in self._names:
                for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
                    connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


class Tenancy:
    """Tables under row security, of an owner who is nobody special; a writer and a recorder who
    serve all namespaces, and tenants who have one each.
    """

    def __init__(self, roles: Roles, schema: str | None = None) -> None:
        self.roles, self.schema = roles, schema
        number = next(_numbers)
        kinds = "owner", "writer", "recorder", "tenants"
        self.names = {kind: f"{kind}_{number}" for kind in kinds}
        self.owner, self.writer, self.recorder, _ = (
            roles.add(name=name) for name in self.names.values()
        )
        if schema is not None:
            roles.run(f"CREATE SCHEMA {_quoted(schema)}")
        roles.grants("--owner", self.names["owner"], schema=schema)
        with self.store(self.owner) as store:
            store.upgrade(row_security=True)
        self.grant()

    def grant(self) -> str:
        """Run the text that the command line prints, as the owner."""
        kinds = "writer", "recorder", "tenants"
        options = [part for kind in kinds for part in (f"--{kind}", self.names[kind])]
        return self.roles.grants(*options, schema=self.schema, by=self.owner)

    def store(self, by: URL, **options: Any) -> SQLStore:
        return SQLStore(by, schema=self.schema, **options)

    def dump(self) -> dict[str, list[Any]]:
        """All rows, as the superuser sees them."""
        return dump(self.roles.url, [*metadata.tables], self.schema or "public")

    def stranger(self, *settings: str) -> URL:
        """A role that has every right on the tables, and no policy; its namespace is that of its
        name.
        """
        place = _quoted(self.schema or "public")
        rights = (
            f"GRANT USAGE ON SCHEMA {place} TO {{}}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA {place} TO {{}}",
        )
        return self.roles.add("p", *rights, *settings)

    def tenant(self, name: str | None = None, *settings: str) -> URL:
        """A new tenant; the URL by which it connects."""
        name = f"tenant {next(_numbers)}" if name is None else name
        return self.roles.add("p", f"GRANT {self.names['tenants']} TO {{}}", *settings, name=name)


DRIVERS: dict[str, Callable[..., Any]] = {
    "psycopg": SQLStore,
    "psycopg_async": lambda url, **options: Blocking(lambda: AsyncSQLStore(url, **options)),
    "asyncpg": lambda url, **options: Blocking(
        lambda: AsyncSQLStore(url.set(drivername="postgresql+asyncpg"), **options)
    ),
}
"""Makes a store, which blocks, by the name of a driver."""


def use_in_every_way(store: Any, folder: Path, *, namespace: str = "", deletes: bool) -> None:
    """Call every method of *store*, which is empty, as one who may append and read, and delete."""
    batch: list[Entry] = [said("x", b"one"), ModelEntry("n"), said("y", b"two", b"one")]
    store.check()
    assert store.append("s", header("s"), idempotency_key="h") == 0
    assert store.append("s", header("s")) == 0
    assert store.append("s", said("a", b"one"), idempotency_key="a", expected_position=0) == 1
    assert store.append("s", said("a", b"one"), idempotency_key="a") == 1
    with pytest.raises(Conflict):
        store.append("s", said("a"), idempotency_key="a")
    assert store.extend("s", batch, expected_position=1) == 4
    assert store.extend("s", batch, idempotency_keys=["b", None, "c"]) == 7
    assert store.extend("s", batch, idempotency_keys=["b", None, "c"]) == 7
    whole = [header("s"), said("a", b"one"), *batch, *batch]
    assert store.read("s") == whole
    assert store.tail("s", 3) == batch
    assert store.page("s", after=1, limit=3).entries == batch
    assert store.page("s", before=2, limit=1).entries == whole[1:2]
    assert len(store.read("s", attachments=False)) == 8
    assert store.get("s").last_position == 7
    assert [found.id for found in store.list("/w", limit=5)] == ["s"]
    assert len(store.attachments("s")) == 7
    if namespace:  # a tenant, who doesn't see the whole database
        with pytest.raises(Unavailable, match="row security hides"):
            store.namespaces()
    else:
        assert store.namespaces() == [namespace]
    history = store.export_history("s", lossy=[])
    assert store.import_history(history, cwd="/w", id="t") == "t"
    exported = store.export_folder("t", folder / "exported")
    assert store.import_folder(exported, cwd="/w", id="u") == "u"
    assert store.export_history("u") == store.export_history("t")
    assert store.stats().sessions == 3
    assert store.prune(older_than=timedelta(0), dry_run=True).sessions == 3
    if isinstance(store, SQLStore):
        assert list(store.verify()) == []
    if deletes:
        store.import_history(history, cwd="/w", id="t", replace=True)
        assert store.delete("s")
        assert store.prune(keep_last=1).sessions == 1
        assert store.collect_orphans().blobs == 0
        assert store.erase_namespace().sessions == 1
        assert store.stats().sessions == 0


def printed(*options: str, schema: str | None = None) -> str:
    """What `turnkeep db grants` prints; it needs no database for that."""
    group = [] if schema is None else ["--schema", schema]
    done = CliRunner().invoke(
        turnkeep, ["db", "--url", "postgresql://127.0.0.1:1/none", *group, "grants", *options]
    )
    assert done.exit_code == 0, done.output
    return done.output


@contextmanager
def connected(url: URL, **options: Any) -> Iterator["psycopg.Connection[Any]"]:
    """A connection by psycopg alone, which commits each statement by itself."""
    with psycopg.connect(
        host=url.host,
        port=url.port,
        user=url.username,
        password=url.password,
        dbname=url.database,
        autocommit=True,
        **options,
    ) as connection:
        yield connection


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def name_of(role: URL) -> str:
    """The name of the role that connects by a URL."""
    assert role.username is not None
    return role.username


def refusal(connection: "psycopg.Connection[Any]", statement: str) -> str | None:
    """The SQLSTATE with which the database refuses *statement*; None where it is done."""
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        return error.sqlstate
    return None


def dump(url: URL, tables: Sequence[str], schema: str = "public") -> dict[str, list[Any]]:
    """All rows of *tables*, as the superuser sees them."""
    with connected(url) as connection:
        return {
            table: connection.execute(
                sql.SQL("SELECT t::text FROM {} AS t ORDER BY 1").format(
                    sql.Identifier(schema, table)
                )
            ).fetchall()
            for table in tables
        }
