"""A history's folder read a message at a time, in as much memory as its largest message takes.

`history.json` is JSON of any layout, and what counts is only known at its end: of a key that occurs
twice, the last one. So it is read twice. `survey` sees to it that all is as `History.load` demands
it, attachments included, and notes which list of messages is the one that counts. `messages` gives
these, and tells by a digest of the file when it is no longer the same.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from turnkeep.errors import HistoryError, InvalidEntry
from turnkeep.folder import HISTORY_FILE, FolderReader
from turnkeep.history import check_order, check_version
from turnkeep.json_stream import Items, JsonStream, NotJson, NotRead
from turnkeep.limits import Limits
from turnkeep.message import Message
from turnkeep.message_json import Read, message_from_dict
from turnkeep.payload import Json
from turnkeep.transcript import Said

NOTE_EVERY = 500
"""After how many messages the one who waits is told."""


class Survey(NamedTuple):
    """What is known of a history in a folder when it was read once."""

    said: Said
    which: int
    """Which of the values under the key `messages` is the one that counts, from 0 up."""
    digest: bytes
    """The SHA-256 of the file."""


def survey(
    folder: FolderReader, noted: Callable[[int], object], limits: Limits | None = None
) -> Survey:
    """Check the history in *folder*; *noted* is told now and then how many messages are.

    Raises:
        HistoryError: there is none, for the same reasons as in `History.load`.
        InvalidEntry: an attachment is larger than *limits*; `$[i]` is the entry of message i - 1.
    """
    # Only the digest of an attachment is wanted, and once, however many messages name its file.
    digest = lru_cache(10_000)(folder.digest)
    size = lru_cache(10_000)(folder.size)

    def read(file: str) -> tuple[bytes, str]:
        if limits is not None and (fault := limits.fault_of_attachment(size(file), 0)):
            raise _TooLarge(fault)
        return b"", digest(file)

    version: object = None
    found: Said | HistoryError | InvalidEntry = HistoryError("messages: is a list, not NoneType")
    which = -1
    with _opened(folder) as text:
        for key, value in text.members():
            if key == "version":
                version = value
            elif key == "messages":
                which += 1
                # Kept for later: the same key may come once more, and then this one is ignored.
                found = _checked(value, read, noted)
    if text.kind is not dict:
        raise HistoryError(f"history: is a JSON object (a dict), not {text.kind.__name__}")
    check_version(version)
    if isinstance(found, HistoryError | InvalidEntry):
        raise found
    noted(found.count)
    return Survey(found, which, text.digest)


def messages(
    folder: FolderReader, known: Survey, limits: Limits | None = None
) -> Generator[Message, None, None]:
    """The messages of the history in *folder*, of which *known* is the survey.

    Raises:
        HistoryError: the folder is no longer as it was; perhaps not before the last message.
        InvalidEntry: the attachments of a message are larger than *limits*.
    """
    which = -1
    held: dict[str, tuple[bytes, str]] = {}
    with _opened(folder) as text:
        for key, value in text.members():
            which += key == "messages"
            if key == "messages" and which == known.which and isinstance(value, Items):
                for index, raw in enumerate(value):
                    read = _Reader(folder, limits, held)
                    yield _built(raw, index, read)
                    held = read.held
    if text.digest != known.digest:
        raise HistoryError(f"{folder.path / HISTORY_FILE}: has changed since it was checked")


class _TooLarge(Exception):
    """An attachment is too large; says why."""


class _Reader:
    """Reads the attachments of one message, each file once, however often it is named there.

    What the message before it had, *before*, is not read again either: some conversations carry one
    picture along.
    """

    def __init__(
        self,
        folder: FolderReader,
        limits: Limits | None,
        before: Mapping[str, tuple[bytes, str]],
    ) -> None:
        self.held: dict[str, tuple[bytes, str]] = {}
        self._folder = folder
        self._limits = limits
        self._before = before
        self._total = 0

    def __call__(self, file: str) -> tuple[bytes, str]:
        found = self.held.get(file) or self._before.get(file)
        size = self._folder.size(file) if found is None else len(found[0])
        self._total += size
        # Before it is read: the size of a file costs nothing, even on the disk.
        if self._limits and (fault := self._limits.fault_of_attachment(size, self._total)):
            raise _TooLarge(fault)
        self.held[file] = found or self._folder.attachment(file)
        return self.held[file]


def _built(raw: Json, index: int, read: Read) -> Message:
    """The message *raw*, which stands at *index*."""
    try:
        return message_from_dict(raw, f"messages[{index}]", read)
    except _TooLarge as error:
        fault = str(error)
    raise InvalidEntry(f"$[{index + 1}]", fault)


def _checked(
    value: "Json | Items", read: Read, noted: Callable[[int], object]
) -> Said | HistoryError | InvalidEntry:
    """What the list of messages *value* says, or what is wrong with it."""
    if not isinstance(value, Items) or value.kind is not list:
        kind = value.kind if isinstance(value, Items) else type(value)
        return HistoryError(f"messages: is a list, not {kind.__name__}")
    said = Said()

    def added() -> Iterator[Message]:
        for index, raw in enumerate(value):
            if index and index % NOTE_EVERY == 0:
                noted(index)
            message = _built(raw, index, read)
            said.add(message)
            yield message

    try:
        check_order(added())
    except (HistoryError, InvalidEntry) as error:
        return error
    return said


@contextmanager
def _opened(folder: FolderReader) -> Iterator[JsonStream]:
    """The history in *folder*; what goes wrong with its JSON is a HistoryError that names it."""
    name = str(folder.path / HISTORY_FILE)
    with folder.open_history() as file:
        try:
            yield JsonStream(file, name)
        except NotJson as error:
            fault = f"{name} is not valid JSON: {error}"
        except NotRead as error:
            fault = str(error)
        except MemoryError:
            fault = f"{name} holds a message that is too large to be held in memory"
        else:
            return
    raise HistoryError(fault)
