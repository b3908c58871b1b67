"""A JSON text, read from a file in portions, whose top level is walked through.

Only what stands two levels down, a message in the list of messages, is in memory as a whole. The
end of a value is found by its brackets and quotes; its text is then decoded as it would be inside
the whole text, at the same depth, so what is JSON, and which value, is the same either way.
"""

import hashlib
import re
from collections.abc import Iterator
from json import JSONDecodeError
from typing import BinaryIO

from turnkeep import payload
from turnkeep.errors import HistoryError, InvalidEntry
from turnkeep.folder import read
from turnkeep.payload import Json

_LEAST = 1 << 16
"""How many bytes are read at once, at least."""

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(rb"[ \t\n\r]*+")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TO_BRACKET = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}\[\]]*+)*+', re.DOTALL)
_WORD = re.compile(rb'[^ \t\n\r,:"{}\[\]]*+')


class NotJson(Exception):
    """The text is no JSON; says why, and where."""


class NotRead(Exception):
    """The file can't be read; says why. It is no HistoryError, which could be that of a message."""


class JsonStream:
    """The JSON text in *file*, which errors of reading call *name*.

    Attributes:
        kind: what its value is, when `members` has come to an end: dict, list, …
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.kind: type[object] = type(None)
        self._file = file
        self._name = name
        self._read = hashlib.sha256()
        self._buffer = bytearray()
        self._at = 0  # in the buffer
        self._gone = 0  # bytes in front of the buffer

    @property
    def digest(self) -> bytes:
        """The SHA-256 of all that was read: of the whole file when `members` has come to an end."""
        return self._read.digest()

    def members(self) -> Iterator[tuple[str, "Json | Items"]]:
        """The members of the object that the text is, in their order; none where it is none.

        The items of a list or an object that is the value of a member are to be taken before the
        next member is, or never.

        Raises:
            NotJson: it is none, perhaps not before the last member.
            NotRead: the file can't be read.
        """
        while len(self._buffer) < len(_BOM) and self._more():
            pass
        if self._buffer.startswith(_BOM):
            self._at = len(_BOM)
        if self.next() in b"{[":
            self.kind = dict if self.next() == b"{" else list
            for key in self.inside():
                if not isinstance(key, str):
                    self.value(1, f"$[{key}]")
                elif self.next() in b"{[":
                    items = Items(self, payload.step("$", key))
                    yield key, items
                    for _ in items:
                        pass
                else:
                    yield key, self.value(1, payload.step("$", key))
        else:
            self.kind = type(self.value(0, "$"))
        if not self._ends():
            raise self._fault("there is more behind its end")

    def inside(self) -> Iterator[str | int]:
        """Step through the list or object that begins here, from one value to the next: their keys
        or indexes. Each value is to be taken.
        """
        is_object = self._skips(b"{") or not self._skips(b"[")
        end = b"}" if is_object else b"]"
        if self._skips(end):
            return
        index = 0
        while True:
            if is_object:
                key = self.value(1, "$") if self.next() == b'"' else None
                if not isinstance(key, str) or not self._skips(b":"):
                    raise self._fault("a key and a colon are missing")
                yield key
            else:
                yield index
                index += 1
            if self._skips(end):
                return
            if not self._skips(b","):
                raise self._fault("a comma or a bracket is missing")

    def value(self, depth: int, place: str) -> Json:
        """Take the next value, which lies in so many lists and objects, at this *place*."""
        length = self._length_of(self.next())
        text = self._buffer[self._at : self._at + length]
        try:
            value = payload.decode_document("[" * depth + str(text, "utf-8") + "]" * depth)
        except ValueError as error:
            fault = self._fault_of(error, depth, place)
        else:
            self._at += length
            for _ in range(depth):
                value = value[0]  # type: ignore[index]
            return value
        raise fault  # out of the handler: the error holds the text

    def next(self) -> bytes:
        """The next byte that is no white space."""
        if self._ends():
            raise self._fault("it ends too early")
        return bytes(self._buffer[self._at : self._at + 1])

    def _length_of(self, first: bytes) -> int:
        """How many bytes the value takes that begins here, by this one."""
        if first in b"{[":
            return self._length_of_container()
        pattern = _STRING if first == b'"' else _WORD
        while True:
            found = pattern.match(self._buffer, self._at)
            length = 0 if found is None else found.end() - self._at
            # A word may go on where the buffer ends.
            is_whole = self._at + length < len(self._buffer) if pattern is _WORD else length > 0
            if is_whole or not self._more():
                break
        if not length:
            raise self._fault("a value is missing" if pattern is _WORD else "it ends too early")
        return length

    def _length_of_container(self) -> int:
        length = depth = 0
        while True:
            found = _TO_BRACKET.match(self._buffer, self._at + length)
            assert found is not None  # it takes nothing, too
            length = found.end() - self._at
            bracket = bytes(self._buffer[found.end() : found.end() + 1])
            if bracket in (b"", b'"'):  # the buffer ends here, or in this string
                if not self._more():
                    raise self._fault("it ends too early", length)
                continue
            length += 1
            depth += 1 if bracket in b"{[" else -1
            if not depth:
                return length

    def _skips(self, byte: bytes) -> bool:
        """Whether *byte* comes next; then it is behind us."""
        if self.next() != byte:
            return False
        self._at += 1
        return True

    def _ends(self) -> bool:
        """Whether nothing but white space follows, which is behind us then."""
        while True:
            found = _SPACE.match(self._buffer, self._at)
            assert found is not None  # it takes nothing, too
            self._at = found.end()
            if self._at < len(self._buffer):
                return False
            if not self._more():
                return True

    def _more(self) -> bool:
        """Read on; whether there was more. What lies behind us is let go."""
        del self._buffer[: self._at]
        self._gone += self._at
        self._at = 0
        # Twice as much each time, or the search for the end of a long string would take for ever.
        fault = ""
        try:
            some = read(self._file, self._name, max(_LEAST, len(self._buffer)))
        except HistoryError as error:
            fault = str(error)
        if fault:
            raise NotRead(fault)
        self._read.update(some)
        self._buffer += some
        return bool(some)

    def _fault_of(self, error: ValueError, depth: int, place: str) -> NotJson:
        """What *error* says of the value at *place*, which was decoded inside so many lists."""
        if isinstance(error, UnicodeDecodeError):
            return self._fault("it is not UTF-8", error.start)
        if isinstance(error, JSONDecodeError):
            before = error.doc[depth : max(depth, error.pos)]
            return self._fault(error.msg, len(before.encode()))
        if isinstance(error, InvalidEntry):
            path = error.path.replace("$" + "[0]" * depth, place, 1)
            return NotJson(f"{path}: {error.reason}")
        return self._fault(str(error))

    def _fault(self, reason: str, further: int = 0) -> NotJson:
        return NotJson(f"{reason}: byte {self._gone + self._at + further}")


class Items:
    """The values in a list or an object, which are taken from the stream one at a time.

    Attributes:
        kind: list or dict.
    """

    def __init__(self, stream: JsonStream, place: str) -> None:
        self.kind = list if stream.next() == b"[" else dict
        self._values = self._taken(stream, place)

    def __iter__(self) -> Iterator[Json]:
        return self._values

    @staticmethod
    def _taken(stream: JsonStream, place: str) -> Iterator[Json]:
        for key in stream.inside():
            yield stream.value(2, payload.step(place, key))
