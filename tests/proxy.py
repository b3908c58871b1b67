"""A network that fails: a TCP proxy in front of a server, which cuts, delays and swallows.

It knows of Postgres's protocol only how an answer ends. A thread carries what goes from the client
to the server, another what comes back.
"""

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import URL

_READY = b"Z\0\0\0\5"
"""How ReadyForQuery begins, of which one more byte follows: the server has committed."""


class Proxy:
    """Listens on loopback, and leads to the server at *port*.

    Attributes:
        delay: up to how many seconds each piece of data is held back, in both directions.
        is_away: whether who connects is turned away.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.is_away = False
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: set[_Line] = set()
        self._lock = threading.Lock()
        self._trap: tuple[tuple[bytes, ...], bool] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: URL) -> URL:
        """*url*, by way of the proxy."""
        return url.set(host="127.0.0.1", port=self._listener.getsockname()[1])

    def cut(self, share: float = 1.0) -> None:
        """End connections, or a *share* of them, some of them without a goodbye."""
        with self._lock:
            lines = [line for line in self._lines if random.random() < share]
        for line in lines:
            line.end()

    def say(self, data: bytes) -> None:
        """Let each client hear *data*, as if the server had said it."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.say(data)

    def cut_at(self, *marks: bytes, answered: bool) -> None:
        """Cut the next connection whose client sends one of the *marks*.

        Args:
            marks: what to wait for; a client sends it in one piece.
            answered: whether the server still gets it, and its answer is swallowed to its end (of
                what only prepares a statement there may be none); else what holds the mark is.
        """
        with self._lock:
            self._trap = (marks, answered)

    def calm(self) -> None:
        """Let all pass again that comes from now on."""
        self.is_away, self.delay = False, 0.0
        with self._lock:
            self._trap = None

    def caught(self, data: bytes) -> bool | None:
        """Whether the server is still to get *data*, and the connection to end then; None where it
        is not.
        """
        with self._lock:
            if self._trap is None or not any(mark in data for mark in self._trap[0]):
                return None
            answered = self._trap[1]
            self._trap = None
            return answered

    def hold_back(self) -> None:
        """Wait as long as the network takes."""
        if self.delay:
            time.sleep(random.uniform(0, self.delay))

    def leave(self, line: "_Line") -> None:
        """Know that *line* has ended."""
        with self._lock:
            self._lines.discard(line)

    def close(self) -> None:
        """End everything."""
        self._listener.shutdown(socket.SHUT_RDWR)  # closing it would leave the thread waiting
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.is_away:
                    raise ConnectionError
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            line = _Line(self, client, server)
            with self._lock:
                self._lines.add(line)
            line.start()


class _Line:
    """A connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_mute = False
        self._answered = b""

    def start(self) -> None:
        """Carry data, till one side ends."""
        for work in ((self._client, self._ask), (self._server, self._answer)):
            threading.Thread(target=self._carry, args=work, daemon=True).start()

    def say(self, data: bytes) -> None:
        """Send the client what the server did not say."""
        with suppress(OSError):
            self._client.sendall(data)

    def end(self) -> None:
        """End it, at both sides."""
        if random.random() < 0.5:  # a reset
            for end in (self._client, self._server):
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy.leave(self)

    def _carry(self, source: socket.socket, passes: Callable[[bytes], bool]) -> None:
        """Hand on what comes from *source*, as long as it *passes*."""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._proxy.hold_back()
                if not passes(data):
                    break
        self.end()

    def _ask(self, data: bytes) -> bool:
        trapped = self._proxy.caught(data)
        if trapped is False:
            return False
        self._is_mute = self._is_mute or trapped is True
        self._server.sendall(data)
        return True

    def _answer(self, data: bytes) -> bool:
        self._answered = (self._answered + data)[-len(_READY) - 1 :]
        if self._is_mute:
            return self._answered[:-1] != _READY
        self._client.sendall(data)
        return True


@contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    """A proxy before the server at *port*."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
