"""What a database holds and is asked, by its own account: past the store, and past SQLAlchemy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from servers import wait_for
from turnkeep import SQLStore
from turnkeep.dialect import Mode

TABLES = ["sessions", "entries", "blobs", "attachments"]
EMPTY = dict.fromkeys(TABLES, 0)


def in_use(store: SQLStore) -> int:
    """How many connections somebody has; one that is kept out of the pool may be in nobody's
    hands.
    """
    database = store._database
    kept = len(database._kept)
    return database.engine.pool.checkedout() - kept  # type: ignore[attr-defined,no-any-return]


def driver_connection(store: SQLStore) -> Any:
    """The driver's connection that the next call runs on, if it comes from this thread."""
    found: list[Any] = []

    def look(connection: Connection) -> None:
        found.append(connection.connection.driver_connection)

    store._database._run(Mode.READ, look)
    return found[0]


def renew(store: SQLStore) -> None:
    """Let the store's next call take a connection out of the pool."""
    if (kept := store._database._take_kept()) is not None:
        kept.close()


def raw(store: SQLStore, statement: str, **values: object) -> list[Any]:
    """What the database answers, past the store and past its foreign keys."""
    with store._database.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            off, on = "PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys = {}"
            on = on.format(connection.exec_driver_sql("PRAGMA foreign_keys").scalar())
        else:
            off, on = "SET session_replication_role = replica", "RESET session_replication_role"
        connection.commit()
        connection.exec_driver_sql(off)
        try:
            answer = connection.execute(text(statement), values)
            rows = list(answer) if answer.returns_rows else []
            connection.commit()
        finally:
            connection.exec_driver_sql(on)
        return rows


def counts(store: SQLStore) -> dict[str, int]:
    """How many rows each table has."""
    return {table: raw(store, f"SELECT count(*) FROM turnkeep_{table}")[0][0] for table in TABLES}


def orphans(store: SQLStore) -> list[Any]:
    """What nobody uses, and what uses something that is not there."""
    return raw(
        store,
        """
        SELECT 'blob', digest FROM turnkeep_blobs b WHERE NOT EXISTS (
            SELECT 1 FROM turnkeep_attachments a
            WHERE a.namespace = b.namespace AND a.digest = b.digest)
        UNION ALL SELECT 'attachment without blob', digest FROM turnkeep_attachments a
        WHERE NOT EXISTS (SELECT 1 FROM turnkeep_blobs b
            WHERE a.namespace = b.namespace AND a.digest = b.digest)
        UNION ALL SELECT 'attachment without entry', digest FROM turnkeep_attachments a
        WHERE NOT EXISTS (SELECT 1 FROM turnkeep_entries e
            WHERE a.namespace = e.namespace AND a.session_id = e.session_id
            AND a.position = e.position)
        """,
    )


def wait_till_idle(store: SQLStore) -> None:
    """Return when the server does nothing for others: what was sent goes on without its sender."""
    at_work = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()"
    )
    wait_for(lambda: raw(store, at_work)[0][0] == 0, "the server is still at work")


@contextmanager
def statements(store: SQLStore, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The statements that the database gets, by its own account: its trace, or the server's log.

    Nothing that the store runs can pass by these, as it would pass by SQLAlchemy's events.
    """
    engine = store._database.engine
    seen: list[str] = []
    if engine.dialect.name == "sqlite":

        def watch(driver: Any, *_: object) -> None:
            driver.set_trace_callback(seen.append)

        def leave(driver: Any, *_: object) -> None:
            driver.set_trace_callback(None)

        event.listen(engine, "checkout", watch)
        event.listen(engine, "checkin", leave)
        renew(store)
        try:
            yield seen
        finally:
            renew(store)
            event.remove(engine, "checkout", watch)
            event.remove(engine, "checkin", leave)
        return
    log: Path = request.getfixturevalue("postgres").log
    raw(store, f"ALTER DATABASE \"{engine.url.database}\" SET log_statement = 'all'")
    renew(store)
    engine.dispose()
    store.get("s")  # on a new connection, which is kept
    start = log.stat().st_size
    try:
        yield seen
    finally:
        written = log.read_bytes()[start:].decode(errors="replace")
        for line in re.split(r"\n(?=\d{4}-\d\d-\d\d )", written):
            if found := re.search(r"LOG:  (?:statement|execute [^:]*): (.*)", line, re.DOTALL):
                seen.append(found[1])
            elif "DETAIL:  Parameters:" in line:
                seen[-1] += line
