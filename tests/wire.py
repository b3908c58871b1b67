"""What a database is told: the statements that it runs, and how often one waits for its answer.

Postgres is watched from outside, by a relay before the server that reads the protocol, so that all
drivers are counted alike. SQLite tells itself what it runs.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import URL, Engine, event

_LENGTH = struct.Struct("!I")
_READY, _COMPLETE = ord("Z"), ord("C")


class Watched:
    """What one call made a database do."""

    def __init__(self) -> None:
        self.verbs: list[str] = []
        """The first word of each statement, in order."""
        self.trips = 0
        """How often the client waited for the server; SQLite has none."""

    def take(self) -> tuple[list[str], int]:
        """What came since the last time."""
        seen = self.verbs, self.trips
        self.verbs, self.trips = [], 0
        return seen


class Relay(Watched):
    """Listens on loopback, and leads to a Postgres server.

    It reads what the server says: CommandComplete names the statement that was run, ReadyForQuery
    ends a round trip.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: URL) -> URL:
        """*url*, by way of the relay."""
        return url.set(host="127.0.0.1", port=self._listener.getsockname()[1])

    def close(self) -> None:
        """End everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._ends += (client, server)
                for work in (self._ask, self._answer):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            begun, rest = False, b""
            while data := server.recv(1 << 16):
                rest += data
                while not begun and rest[:1] == b"N":  # no encryption: a byte, and no message
                    rest = rest[1:]
                begun = begun or bool(rest)
                rest = self._read(rest)
                client.sendall(data)  # only now: who gets it may look at once
            client.shutdown(socket.SHUT_WR)

    def _read(self, data: bytes) -> bytes:
        """Note what the messages in *data* say; the beginning of one that is not all there."""
        at = 0
        while len(data) >= at + 5:
            end = at + 1 + _LENGTH.unpack_from(data, at + 1)[0]
            if len(data) < end:
                break
            if data[at] == _COMPLETE:
                self.verbs.append(data[at + 5 : end - 1].split()[0].decode())
            self.trips += data[at] == _READY
            at = end
        return data[at:]


@contextmanager
def relayed(port: int) -> Iterator[Relay]:
    """A relay before the server at *port*."""
    relay = Relay(port)
    try:
        yield relay
    finally:
        relay.close()


def traced(engine: Engine) -> Watched:
    """What the connections run that *engine*, of SQLite, makes from now on."""
    seen = Watched()

    latest = ""

    def note(statement: str) -> None:
        nonlocal latest
        # For each row that a delete cascades to, its statement is told once more.
        if statement != latest or not statement.startswith("DELETE"):
            seen.verbs.append(statement.split(maxsplit=1)[0])
        latest = statement

    def listen(connection: Any, _: object) -> None:
        driver = getattr(connection, "driver_connection", connection)
        getattr(driver, "_conn", driver).set_trace_callback(note)  # aiosqlite has it inside

    event.listen(engine, "connect", listen)
    return seen
