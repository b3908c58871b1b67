"""Faults of a database's surroundings that a test can make, and undo again."""

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL

from chaos import Account
from servers import skip_or_fail
from turnkeep import SQLStore

_HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""

NOBODY = 65534


@contextmanager
def held_by_a_process(url: URL) -> Iterator[Callable[[], None]]:
    """Another process has the one write lock of a SQLite file, till it is told to let go."""
    assert url.database is not None
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, url.database],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"

        def let_go() -> None:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

        try:
            yield let_go
        finally:
            process.stdin.close()


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Without root's leave to open everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@contextmanager
def folder_of_an_ordinary_user() -> Iterator[Path]:
    """An empty folder, which pytest's own are not: as root only root can enter those."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-") as home:
        if os.geteuid() == 0:
            os.chown(home, NOBODY, NOBODY)
        yield Path(home)


class SmallDisk:
    """A file system that can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte is left, meanwhile."""
        filler = self.folder / "filler"
        try:
            subprocess.run(
                ["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], capture_output=True, check=False
            )
            yield
        finally:
            filler.unlink()


@contextmanager
def small_disk(mebibytes: int) -> Iterator[SmallDisk]:
    """One in memory, which only root can have."""
    folder = Path(tempfile.mkdtemp(prefix="turnkeep-disk-"))
    options = f"size={mebibytes}m,mode=700,uid={NOBODY}"  # whom Postgres runs as
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        if (
            shutil.which("mount") is None
            or subprocess.run(mount, capture_output=True, check=False).returncode
        ):
            skip_or_fail("a small disk can't be mounted: that needs root")
        try:
            yield SmallDisk(folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        folder.rmdir()


def suffer_from_files_that_may_not_grow(url: URL, times: int) -> list[str]:
    """Let `Account.suffer` do its work where this process's files reach their limit again and
    again: a SQLite file's write-ahead log, before it is as long as it was before.
    """
    told: list[str] = []
    log = Path(f"{url.database}-wal")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextmanager
    def limited() -> Iterator[None]:
        size = random.randint(0, log.stat().st_size)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    with SQLStore(url) as store:
        Account(told.append).suffer(store, limited, times, "times a file that may not grow")
    return told
