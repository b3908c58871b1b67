"""A conversation as a value, its two encodings, and the repair of what was interrupted in it.

`parse`, `from_dict` and `load` are the doors in, each for one kind of thing. Each gives a History
that is valid as a whole or raises a HistoryError: no other exception comes of what was read.
`to_dict`, `to_json` and `save` are the doors out. A history that goes out by one and comes in by
its counterpart is the same value, its attachments' bytes included, which it holds in memory.

The format is that of Pikuri's `Agent::History`; docs/history-format.md tells it key by key.
"""

import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Self

from turnkeep.errors import HistoryError
from turnkeep.folder import ATTACHMENTS_DIR, HISTORY_FILE, Dir, FolderReader, FolderWriter
from turnkeep.message import (
    KINDS,
    ROLES,
    Attachment,
    Message,
    Thinking,
    Tokens,
    ToolCall,
    parts,
)
from turnkeep.message_json import (
    Read,
    by_file,
    decode,
    inline,
    known_keys,
    layout,
    message_from_dict,
    message_to_dict,
)
from turnkeep.payload import Json, JsonObject

__all__ = ["Attachment", "History", "Message", "Thinking", "Tokens", "ToolCall"]


@dataclass(frozen=True, slots=True, repr=False)
class History:
    """A conversation: its messages, oldest first, without the system prompt.

    Histories are equal, and hash alike, exactly when their JSON texts are: the order of keys, `1`
    and `1.0`, ids and the bytes of attachments count.

    Attributes:
        version: 1, the version of the format.
        messages: a tuple; a list is taken too.

    Raises:
        HistoryError: *version* is another, *messages* is no tuple or list of Message, two have one
            id, or a tool message answers a call that no assistant message before it has made.
    """

    CURRENT_VERSION: ClassVar[int] = 1
    """Goes up only with a change that an older reader could not survive: another key is none."""
    HISTORY_FILE: ClassVar[str] = HISTORY_FILE
    ATTACHMENTS_DIR: ClassVar[str] = ATTACHMENTS_DIR
    ROLES: ClassVar[tuple[str, ...]] = ROLES
    KINDS: ClassVar[tuple[str, ...]] = KINDS
    INTERRUPTED_RESULT: ClassVar[str] = "[Tool execution was interrupted]"
    """The content of the results that `repair_interrupted_tool_calls` puts in."""

    version: int = 1
    messages: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        check_version(self.version)
        object.__setattr__(self, "messages", parts(self.messages, Message, "messages"))
        check_order(self.messages)

    @classmethod
    def parse(cls, json: str | bytes) -> Self:
        """The history of a self-contained JSON text, as `to_json` writes it.

        Of a key that occurs twice the last one counts; a UTF-8 byte order mark is skipped.

        Raises:
            HistoryError: it is not JSON in UTF-8, not a history, too large for the memory, or has
                attachments in files, which `load` reads; names the place.
        """
        if not isinstance(json, str | bytes):
            raise HistoryError(f"a history's JSON is a str or bytes, not {type(json).__name__}")
        with _held("history"):
            return cls._from_dict(decode(json), None)

    @classmethod
    def from_dict(cls, raw: Json, dir: Dir | None = None) -> Self:
        """The history of a dict of plain JSON values, as `to_dict` gives it.

        Attachments that are in files are read from the folder *dir*; without one they are refused.
        Unknown keys are ignored, whatever they hold.

        Raises:
            HistoryError: it is not a history, of a newer version, or an attachment can't be read;
                names the place.
        """
        if dir is None:
            return cls._from_dict(raw, None)
        with FolderReader(dir) as folder:
            return cls._from_dict(raw, folder)

    @classmethod
    def load(cls, dir: Dir) -> Self:
        """The history in the folder *dir*, as `save` wrote it. `~` stands for itself.

        Nothing outside the folder is read: links are not followed.

        Raises:
            HistoryError: as `from_dict`; or there is no `history.json`, or it is no JSON; or an
                attachment is missing, a link, unreadable or not what it was; names the file.
        """
        with FolderReader(dir) as folder:
            name = str(folder.path / HISTORY_FILE)
            with _held(name):
                return cls._from_dict(decode(folder.history(), name), folder)

    @classmethod
    def _from_dict(cls, raw: Json, folder: FolderReader | None) -> Self:
        top = known_keys(raw, "history", ("version", "messages"))
        check_version(top.get("version"))
        messages = top.get("messages")
        if type(messages) is not list:
            raise HistoryError(f"messages: is a list, not {type(messages).__name__}")
        # A file that a thousand messages name is read, hashed and held once.
        read: Read | None = None if folder is None else cache(folder.attachment)
        built = [message_from_dict(m, f"messages[{i}]", read) for i, m in enumerate(messages)]
        return cls(messages=tuple(built))

    def to_dict(self, *, inline_attachments: bool = True) -> JsonObject:
        """The history as a dict of plain JSON values, of its own at every level.

        Without *inline_attachments* it names the files that `save` writes in place of the bytes.
        """
        write = inline if inline_attachments else by_file
        messages: list[Json] = [message_to_dict(message, write) for message in self.messages]
        return {"version": self.version, "messages": messages}

    def to_json(self) -> str:
        """`to_dict` as text in lines, indented by two spaces.

        It always encodes to UTF-8: unpaired surrogates are escaped, all else stays readable.
        """
        return "".join(layout(message_to_dict(message, inline) for message in self.messages))

    def save(self, dir: Dir) -> Path:
        """Write the history to the folder *dir*, which is made where it is missing.

        `history.json` is written last and takes the place of the old one in one step: whatever
        happens before, even the death of the process, leaves the old history. On return all is on
        the disk. Nothing is deleted, attachments that are there aren't written again, and to save
        again changes nothing. `~` at the beginning of *dir* is the user's home.

        Returns:
            The folder, as an absolute path.

        Raises:
            HistoryError: *dir* is no path, or a link or something else that is no regular file is
                where an attachment is to go.
            OSError: something can't be written.
        """
        with FolderWriter(dir) as folder:
            for message in self.messages:
                for attachment in message.attachments:
                    folder.attachment(attachment)
            with folder.history() as file:
                for text in layout(message_to_dict(message, by_file) for message in self.messages):
                    file.write(text.encode())
            return folder.path

    def repair_interrupted_tool_calls(self) -> Self:
        """A history in which each tool call has an answer, as providers demand.

        A call is answered by a tool message with its id in the run of tool messages right after it.
        For each that is not, a tool message with a new id and the content INTERRUPTED_RESULT comes
        at the end of that run, in the order of the calls. All messages stay, in their order; a
        result that comes later doesn't count, and stays too.

        Returns:
            This very history where every call has its answer.
        """
        repaired: list[Message] = []
        # The ids of the calls that have no answer yet, in the order of the calls.
        waiting: dict[str, None] = {}
        for message in self.messages:
            if message.role == "tool":
                waiting.pop(message.tool_call_id or "", None)
            else:
                repaired += self._interrupted(waiting)
                waiting = dict.fromkeys(call.id for call in message.tool_calls)
            repaired.append(message)
        repaired += self._interrupted(waiting)
        if len(repaired) == len(self.messages):
            return self
        return self.__class__(messages=tuple(repaired))

    def _interrupted(self, calls: Iterable[str]) -> list[Message]:
        """A tool message for each of *calls*, which says that there was no result."""
        return [
            Message(
                id=self.mint_id(), role="tool", content=self.INTERRUPTED_RESULT, tool_call_id=call
            )
            for call in calls
        ]

    @staticmethod
    def mint_id() -> str:
        """A new id for a message: 22 lowercase hex digits. Safe to call from any thread.

        They are 12 of milliseconds since 1970, 4 of a counter, 6 at random. The ids of one process
        sort in the order in which they were minted, even when its clock is put back.
        """
        return _mint()

    def __repr__(self) -> str:
        return f"<History, {len(self.messages)} messages>"


@contextmanager
def _held(name: str) -> Iterator[None]:
    """Say of what *name* is that it is too large, where memory ends."""
    try:
        yield
    except MemoryError:
        raise HistoryError(f"{name}: is too large to be held in memory") from None


def check_version(version: object) -> None:
    """Nothing, if *version* is the one that this library reads and writes.

    Raises:
        HistoryError: it is missing, newer, or no version at all.
    """
    current = History.CURRENT_VERSION
    if version is None:
        raise HistoryError(f"version: is missing: this library writes {current}")
    if type(version) is not int or version < current:
        raise HistoryError(f"version: is the whole number {current}")
    if version > current:
        number = version if version < 1 << 64 else "of more than 64 bits"
        newer = f"{number} is newer than this library understands ({current})"
        raise HistoryError(f"version: {newer}: upgrade turnkeep to read it")


def check_order(messages: Iterable[Message]) -> None:
    """Nothing, if *messages* make up a history. They are taken one by one, once, and not kept.

    Raises:
        HistoryError: two have one id, or a tool message answers a call that none before it made.
    """
    places: dict[str, int] = {}
    called: set[str] = set()
    twice = orphan = ""
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        if (first := places.setdefault(message.id, index)) != index:
            twice = twice or f"{at}.id: is the id of messages[{first}] too"
        if message.tool_call_id is not None and message.tool_call_id not in called:
            orphan = orphan or f"{at}.tool_call_id: no assistant message before it made this call"
        if message.tool_calls:
            called.update(call.id for call in message.tool_calls)
    # Only now, since an id that occurs twice is what is looked for first, in all messages.
    if fault := twice or orphan:
        raise HistoryError(fault)


class _Mint:
    """The clock and the counter of `mint_id`, of which each process has its own."""

    def __init__(self) -> None:
        self._milliseconds = 0
        self.begin()
        # A child shares neither a lock that another thread held at the fork nor the counter.
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        self._lock = threading.Lock()
        self._count = -1

    def __call__(self) -> str:
        with self._lock:
            self._count = (self._count + 1) & 0xFFFF
            # Where the counter begins again within a millisecond, or the clock was put back.
            least = self._milliseconds + (self._count == 0)
            self._milliseconds = max(time.time_ns() // 1_000_000, least)
            return f"{self._milliseconds:012x}{self._count:04x}{secrets.token_hex(3)}"


_mint = _Mint()
