"""PgBouncer for the tests, Debian's: each transaction gets another connection to the server.

Its few connections serve all clients in turn: what a client leaves on one, another finds there. It
runs as PostgreSQL does in `servers`: on loopback, as a child process, unprivileged.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import URL

from servers import (
    PASSWORD,
    USER,
    PostgresServer,
    free_port,
    new_home,
    run,
    running,
    skip_or_fail,
    unprivileged,
    wait_for,
)

OPTION = "prepare_threshold"

POOL_SIZE = 3
"""How many connections to the server there are for each database."""

_STOP_SECONDS = 30


HOSTS: Mapping[str, Mapping[str, Any]] = {
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: "",
    },
    "psycopg": {"prepare_threshold": None},
    "psycopg_async": {"prepare_threshold": None},
}
"""What an app gives to each driver, as `connect_args`, to say what our option in a URL says."""


def as_a_host_says(url: URL) -> tuple[URL, dict[str, Any]]:
    """What an app hands to `create_engine` where we have *url*."""
    if OPTION not in url.query:
        return url, {}
    bare = url.difference_update_query([OPTION])
    return bare, {"connect_args": dict(HOSTS[url.get_driver_name()])}


class PgBouncer:
    """A pooler before *server*, with any user and database of it."""

    def __init__(
        self,
        home: Path,
        server: PostgresServer,
        program: str,
        settings: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """Write its files; `start` is to follow.

        Args:
            home: An existing directory, for the files.
            server: Where it leads to.
            program: The path of `pgbouncer`.
            settings: Further settings of its, by name.
            users: Further users whom it serves, by name, with their passwords.
        """
        self.port = free_port()
        self.log = home / "log"
        self._program = program
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        passwords, config = home / "users", home / "config"
        known = {USER: PASSWORD, **(users or {})}
        passwords.write_text("".join(f'"{name}" "{word}"\n' for name, word in known.items()))
        given = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(passwords),
            "admin_users": USER,
            "pool_mode": "transaction",
            "default_pool_size": str(POOL_SIZE),
            "server_round_robin": "1",
            "server_login_retry": "1",
            "max_client_conn": "500",
            **(settings or {}),
        }
        self._size = int(given["default_pool_size"])
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in given.items())
        )
        if os.geteuid() == 0:
            for path in (home, passwords, config):
                shutil.chown(path, user="nobody")

    def url(self, direct: URL) -> URL:
        """The way to the same database through the pooler, as the docs say that it is written."""
        return direct.set(port=self.port).update_query_dict({OPTION: "none"})

    def start(self) -> None:
        """Start it, and return when it serves."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*unprivileged("KILL"), self._program, str(self._home / "config")],
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_for(self._serves, "the pooler accepts no connections")
        except Exception as error:
            self.stop()
            error.add_note(self.log.read_text(errors="replace")[-4000:])
            raise

    def stop(self) -> None:
        """Kill it, if it runs; it has nothing to lose."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
            self._process = None

    def restart(self) -> None:
        """Kill it, and start it at the same port."""
        self.stop()
        self.start()

    def show(self, what: str) -> list[dict[str, Any]]:
        """What it tells of itself: the rows of SHOW CLIENTS, SERVERS, STATS …"""
        with self._connect("pgbouncer") as connection:
            return connection.cursor(row_factory=dict_row).execute(f"SHOW {what}").fetchall()

    def opened(self, direct: URL) -> URL:
        """The same, when it has opened all connections to that database that it may have: it opens
        one where the others are in use.
        """
        with ExitStack() as stack:
            for _ in range(self._size):
                stack.enter_context(self.held(direct))
        return self.url(direct)

    @contextmanager
    def held(self, direct: URL) -> Iterator[psycopg.Connection[Any]]:
        """Have one of its connections to that database for oneself, by being in a transaction."""
        with self._connect(direct.database or "", autocommit=False) as connection:
            connection.execute("SELECT 1")
            yield connection

    def _connect(self, database: str, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname=database,
            autocommit=autocommit,
            connect_timeout=5,
            prepare_threshold=None,
        )

    def _serves(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"pgbouncer ended at once, with {self._process.returncode}")
        try:
            self._connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True


def unaided() -> dict[str, str]:
    """The settings by which it leaves prepared statements to its clients, as it did before 1.21."""
    found = re.search(r"PgBouncer (\d+)\.(\d+)", run([_program(), "--version"]))
    assert found is not None
    knows = tuple(int(number) for number in found.groups()) >= (1, 21)
    return {"max_prepared_statements": "0"} if knows else {}


@contextmanager
def pgbouncer_before(
    server: PostgresServer,
    settings: Mapping[str, str] | None = None,
    users: Mapping[str, str] | None = None,
) -> Iterator[PgBouncer]:
    """Run PgBouncer before *server*."""
    program = _program()
    with new_home() as home, running(PgBouncer(home, server, program, settings, users)) as pooler:
        yield pooler


def _program() -> str:
    """Debian installs it where only root looks."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        skip_or_fail("Debian's pgbouncer is not installed")
    return found
