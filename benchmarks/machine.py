"""What the figures were measured on."""

import os
import platform
import sqlite3
import subprocess
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from benchmarks.databases import SHARED_BUFFERS

PACKAGES = ("turnkeep", "sqlalchemy", "msgspec", "psycopg", "asyncpg", "aiosqlite")


def description() -> dict[str, str]:
    """The machine, the disk, the settings and the versions, each in a few words."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "disk": f"{_file_system()}; fdatasync of 8 KiB takes {_sync_seconds() * 1e6:.0f} µs",
        "system": f"Linux {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        "SQLite": f"{sqlite3.sqlite_version}, write-ahead log",
        "Postgres": f"18 from the wheel, fsync on, shared_buffers {SHARED_BUFFERS}, by loopback",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "commit": _commit(),
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {name.strip(): value.strip() for name, value in said.items()}
    return (
        f"{names.get('model name', platform.machine())} "
        f"(family {names.get('cpu family')}, model {names.get('model')})"
    )


def _file_system() -> str:
    """That of the folder for temporary files, where the databases lie."""
    home = Path(tempfile.gettempdir()).resolve()
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    around = [m for m in mounts if home.is_relative_to(m[1])]
    return max(around, key=lambda mount: len(mount[1]))[2]


def _sync_seconds() -> float:
    """How long the disk takes to say that a page is on it."""
    with tempfile.TemporaryFile() as file:
        spent = []
        for number in range(200):
            os.pwrite(file.fileno(), b"x" * 8192, number * 8192)
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            spent.append(time.perf_counter() - begin)
    return median(spent)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def _commit() -> str:
    """The checkout's last commit, and whether something was changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../src", "../benchmarks/*.py")
    return (git("rev-parse", "--short", "HEAD") or "?") + (", changed since" if changed else "")
