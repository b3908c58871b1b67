"""The bare drivers: one connection each, held all the time, that commits when it is told to."""

from collections.abc import Callable
from typing import Any

import aiosqlite
import asyncpg
import psycopg
from sqlalchemy import URL

from benchmarks.bare import Plan

Run = Callable[[Plan], Any]
"""Runs a plan to its end; what it gives is awaited for the async drivers."""

BINARY = {"binary": True}


class SyncDriver:
    """psycopg and sqlite3, which are the same to us."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, plan: Plan) -> Any:
        """What *plan* gives."""
        connection, rows = self._connection, None
        try:
            while True:
                statement, values = plan.send(rows)
                cursor = connection.cursor(**BINARY) if statement.binary else connection.cursor()
                if values is None:
                    cursor.execute(statement.text)
                elif isinstance(values, list):
                    cursor.executemany(statement.text, [statement.arranged(v) for v in values])
                else:
                    cursor.execute(statement.text, statement.arranged(values))
                rows = cursor.fetchall() if statement.gives_rows else None
                cursor.close()
        except StopIteration as done:
            return done.value


class AsyncDriver:
    """psycopg's async connection and aiosqlite."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_sqlite = isinstance(connection, aiosqlite.Connection)

    async def run(self, plan: Plan) -> Any:
        """What *plan* gives."""
        connection, rows = self._connection, None
        try:
            while True:
                statement, values = plan.send(rows)
                options = BINARY if statement.binary else {}
                cursor = connection.cursor(**options)
                cursor = await cursor if self._is_sqlite else cursor
                if values is None:
                    await cursor.execute(statement.text)
                elif isinstance(values, list):
                    arranged = [statement.arranged(v) for v in values]
                    await cursor.executemany(statement.text, arranged)
                else:
                    await cursor.execute(statement.text, statement.arranged(values))
                rows = await cursor.fetchall() if statement.gives_rows else None
                await cursor.close()
        except StopIteration as done:
            return done.value


class AsyncpgDriver:
    """asyncpg, whose own way is `fetch`: it prepares what it runs, and keeps it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def run(self, plan: Plan) -> Any:
        """What *plan* gives."""
        connection, rows = self._connection, None
        try:
            while True:
                statement, values = plan.send(rows)
                if values is None:
                    await connection.execute(statement.text)
                elif isinstance(values, list):
                    arranged = [statement.arranged(v) for v in values]
                    await connection.executemany(statement.text, arranged)
                else:
                    rows = await connection.fetch(statement.text, *statement.arranged(values))
        except StopIteration as done:
            return done.value


def conninfo(url: URL) -> dict[str, Any]:
    """How psycopg is told where the server is."""
    return {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": url.password,
        "dbname": url.database,
        "autocommit": True,
    }


async def connect_asyncpg(url: URL) -> Any:
    """A connection of asyncpg."""
    return await asyncpg.connect(
        host=url.host,
        port=url.port,
        user=url.username,
        password=url.password,
        database=url.database,
    )


async def connect_psycopg_async(url: URL) -> Any:
    """A connection of psycopg's async kind."""
    return await psycopg.AsyncConnection.connect(**conninfo(url))
