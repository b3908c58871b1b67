"""PostgreSQL 18 in containers, for the tests: testcontainers' and the checkout's compose file.

The Docker engine must be one of this machine, since each port is published on loopback only. Where
none answers, a test that needs one is skipped, or fails, as `servers` says.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL
from testcontainers.community.postgres import PostgresContainer

from servers import PASSWORD, USER, free_port, run, skip_or_fail, wait_for

IMAGE = "postgres:18"


def docker_available() -> str | None:
    """Return None if a Docker engine answers, else why not."""
    try:
        run(["docker", "version", "--format", "{{.Server.Version}}"])
    except (OSError, RuntimeError) as error:
        return f"no Docker engine: {error}"
    return None


def require_docker() -> None:
    """Skip the test that asks where no Docker engine answers, or fail it in CI."""
    if (reason := docker_available()) is not None:
        skip_or_fail(reason)


@contextmanager
def postgres_container() -> Iterator[URL]:
    """Run PostgreSQL 18 in a container of testcontainers, and yield the URL of its database."""
    require_docker()
    container = PostgresContainer(IMAGE, username=USER, password=PASSWORD, dbname=USER)
    container.with_command("postgres -c fsync=off -c max_connections=200")
    # Testcontainers would publish the port on every address of the machine; Docker takes a pair.
    container.ports = {"5432/tcp": ("127.0.0.1", None)}  # type: ignore[dict-item]
    with container:
        port = container.get_exposed_port(5432)
        yield URL.create("postgresql+psycopg", USER, PASSWORD, "127.0.0.1", port, USER)


class ComposeProject:
    """The server of a compose file, as a project apart from the developer's own.

    Attributes:
        url: The URL of its database.
    """

    def __init__(self, file: Path) -> None:
        """Choose a port and a project name for *file*; `up` is to follow."""
        require_docker()
        port = free_port()
        self.url = URL.create("postgresql+psycopg", USER, USER, "127.0.0.1", port, USER)
        self._environment = {**os.environ, "TURNKEEP_POSTGRES_PORT": str(port)}
        try:
            run(["docker", "compose", "version"])
            program = ["docker", "compose"]
        except RuntimeError:
            program = ["docker-compose"]  # version 1, a program of its own
            if shutil.which("docker-compose") is None:
                skip_or_fail("Docker Compose is not installed")
        self._command = [*program, "--file", str(file), "--project-name", f"turnkeep-test-{port}"]

    def up(self) -> None:
        """Start the server, and return when it is healthy."""
        self._compose("up", "--detach")
        container = self._compose("ps", "--quiet", "postgres").strip()
        health = ["docker", "inspect", "--format", "{{.State.Health.Status}}", container]
        wait_for(lambda: run(health).strip() == "healthy", "the compose service is not healthy")

    def down(self, *, volumes: bool) -> None:
        """Remove the server, and with *volumes* its data too."""
        self._compose("down", *(["--volumes"] if volumes else []))

    def _compose(self, *arguments: str) -> str:
        return run([*self._command, *arguments], env=self._environment)


@contextmanager
def compose_up(file: Path) -> Iterator[ComposeProject]:
    """Run the server of a compose file, and delete its data at the end."""
    project = ComposeProject(file)
    try:
        project.up()
        yield project
    finally:
        project.down(volumes=True)
