"""`python -m benchmarks.peers`: the store beside others, on one machine and in one run."""

import argparse
import os
import socket
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

# Before they are imported: nobody is to be told of it.
os.environ |= {
    "AGNO_TELEMETRY": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}

from benchmarks import machine, peer_stores, report
from benchmarks.__main__ import QUICK_SECONDS, SECONDS, tell
from benchmarks.databases import postgres_server, sqlite_url
from benchmarks.peer_stores import Peer
from benchmarks.report import Result, milliseconds, ratio, result
from benchmarks.timing import Contender, compare, on_this_thread

PACKAGES = (
    "openai-agents",
    "google-adk",
    "langchain-postgres",
    "langchain-community",
    "agno",
    "sqlalchemy",
    "psycopg",
    "asyncpg",
    "aiosqlite",
)


def main() -> None:
    """Measure, tell, and keep what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="rougher")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md anew")
    options = parser.parse_args()
    stay_on_this_machine()
    warnings.simplefilter("ignore")  # what others' packages say of others'
    about = machine.description() | {
        "peers": ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    }
    found = []
    for each in measured(QUICK_SECONDS if options.quick else 2 * SECONDS):
        found.append(each)
        tell(each)
    print("\n" + tables(found))
    print("\nkept in", report.save("quick" if options.quick else "peers", found, about))
    if options.page:
        report.write_page(peers=f"{tables(found)}\n\n{about['peers']}.")


def measured(seconds: float) -> Iterator[Result]:
    """Each operation on both databases, of all who have it."""
    with postgres_server() as server, sqlite_url() as file:
        for database, url in (("SQLite", file), ("Postgres", server.create_database("peers"))):
            with peer_stores.opened(url) as peers:
                for operation, field in (
                    ("append 1 KB", "append"),
                    ("load 1,000", "load"),
                    ("last 20", "last"),
                    ("list 50", "list"),
                ):
                    having = [peer for peer in peers if getattr(peer, field) is not None]
                    compared = compare(
                        [contender(peer, field) for peer in having], on_this_thread, seconds
                    )
                    compared.notes = {peer.name: peer.durability for peer in having}
                    yield result(compared, database=database, operation=operation)


def contender(peer: Peer, field: str) -> Contender:
    """*peer*, doing one thing."""
    call = getattr(peer, field)
    return Contender(peer.name, lambda _: call(), lambda calls: [None] * calls, peer.timer)


def tables(found: list[Result]) -> str:
    """A table for each database: who takes how much of what the bare driver takes."""
    parts = []
    for database in dict.fromkeys(each["database"] for each in found):
        of_it = [each for each in found if each["database"] == database]
        cells = [
            {"peer": name, "durability": durability(of_it, name), "operation": each["operation"]}
            | {"cell": cell(each, name)}
            for each in of_it
            for name in each["ratios"]
        ]
        names = [f"{c['peer']} ({c['durability']})" for c in cells]
        rows = [c | {"peer": name} for c, name in zip(cells, names, strict=True)]
        parts.append(report.table(rows, "peer", ["operation"], lambda c: c["cell"], database))
    return "\n\n".join(parts)


def cell(each: Result, name: str) -> str:
    """A ratio to the bare driver, or what that takes."""
    if name == next(iter(each["ratios"])):
        return f"1 = {milliseconds(each['seconds'][name])} ms"
    return ratio(each["ratios"][name])


def durability(found: list[Result], name: str) -> str:
    """What *name* was measured with."""
    return str(next(each["notes"][name] for each in found if name in each["notes"]))


def stay_on_this_machine() -> None:
    """Let nothing in this process reach further than loopback, whatever a package would tell."""
    connect: Any = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1")):
            raise OSError(f"a benchmark stays on this machine: {address[0]}")
        return connect(self, address)

    socket.socket.connect = refuse  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    main()
