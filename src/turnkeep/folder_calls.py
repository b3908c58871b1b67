"""A session to a history's folder and back, for sessions that are larger than the memory.

Export reads the session in portions, each by a call of its own, so that no transaction is open
while files are written. Positions are given out once and entries never change, so together the
portions are the session as it was at the first of them; whether another has taken its place
meanwhile is seen at the end, before the commit, which is `history.json`. Import reads the folder
twice: once to check it, once to write it, in one transaction.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from sqlalchemy import Connection

from turnkeep import history_stream, rows, sql
from turnkeep.calls import Call, Scope, ask, check_progress, wanted
from turnkeep.dialect import Mode, Parameters, Row
from turnkeep.entries import MessageEntry, key_fault
from turnkeep.errors import Conflict, UnknownSession
from turnkeep.folder import Dir, FolderReader, FolderWriter
from turnkeep.history_rows import messages_of, to_rows
from turnkeep.history_stream import NOTE_EVERY
from turnkeep.message import Message
from turnkeep.message_dialects import Losses
from turnkeep.message_json import (
    LAYOUT_BEGIN,
    by_file,
    layout_end,
    layout_message,
    message_to_dict,
)
from turnkeep.payload import JsonObject
from turnkeep.plans import Plan
from turnkeep.transcript import Messages, new_header

Progress: TypeAlias = Callable[[int, int | None], object]
"""Is told how many messages are done, and of how many, where that is known."""


class _State(NamedTuple):
    """How a session stands: it is as before where this is."""

    last: int
    updated: object
    messages: int


class _Portion(NamedTuple):
    """Rows, and the message of each with its position; None where it is no message's."""

    rows: list[sql.FoundRow]
    messages: list[tuple[int, JsonObject | None]]


def export_folder(
    scope: Scope, id: str, dir: Dir, lossy: list[str] | None, progress: Progress | None
) -> Plan[Path]:
    """Write a session to a folder; wants calls to be run."""
    check_progress(progress, "two numbers")
    if key_fault(id):
        raise UnknownSession(id)
    session = scope.session(id)
    state = yield ask(Mode.READ, partial(_state, session=session))
    if state is None:
        raise UnknownSession(id)
    losses = Losses(lossy)
    with FolderWriter(dir) as folder, folder.history() as file:
        export = _Export(id, losses, folder, file)
        while export.next <= state.last:
            span = {"session": session, "first": export.next, "last": state.last}
            work = partial(sql.portion, **span, data=True)
            export.add((yield wanted(Call(Mode.READ, work, partial(_portion, id)))))
            if progress is not None:
                progress(export.done, state.messages)
        export.end()
        yield from _check_is_the_same(session, state, export.digest.digest())
    losses.deliver()
    return folder.path


class _Export:
    """What is on its way to a folder.

    Attributes:
        next: the position of the first entry that has not come yet.
        done: how many messages have come.
        digest: of all rows that have come.
    """

    def __init__(self, id: str, losses: Losses, folder: FolderWriter, file: BinaryIO) -> None:
        self.next = 0
        self.done = 0
        self.digest = hashlib.sha256()
        self._id = id
        self._losses = losses
        self._folder = folder
        self._file = file
        self._messages: Messages | None = None
        self._written = 0
        file.write(LAYOUT_BEGIN.encode())

    def add(self, portion: _Portion) -> None:
        """Write the messages of the next *portion*."""
        if not portion.rows:
            raise _is_another(self._id)
        if self._messages is None:
            [first] = rows.from_rows(self._id, sql.Found(portion.rows[:1]), data=False)
            self._messages = Messages(self._id, first, self._losses)
        for position, message in portion.messages:
            if message is not None:
                self._write(self._messages.take(position, message))
        _add(self.digest, portion.rows)
        self.done += sum(row.type == "message" for row in portion.rows)
        self.next = portion.rows[-1].position + 1

    def end(self) -> None:
        """Write what comes behind the last message."""
        if self._messages is not None:
            self._write(self._messages.end())
        self._file.write(layout_end(self._written).encode())

    def _write(self, messages: Iterable[Message]) -> None:
        for message in messages:
            for attachment in message.attachments:
                self._folder.attachment(attachment)
            self._written += 1
            text = layout_message(message_to_dict(message, by_file), self._written)
            self._file.write(text.encode())


def import_folder(
    scope: Scope,
    dir: Dir,
    *,
    recorded_at: str | None,
    replace: bool,
    progress: Progress | None,
    **header: Any,
) -> Call[str]:
    """Make a session of a folder, which is checked now."""
    check_progress(progress, "two numbers")
    noted = progress or _unnoted
    MessageEntry({}, recorded_at)  # an InvalidEntry before all the rest
    with FolderReader(dir) as folder:
        known = history_stream.survey(folder, lambda done: noted(done, None), scope.limits)
    count = known.said.count
    begin = new_header(known.said, **header)
    rows.to_batch(begin.id, [begin], None, scope.limits)

    def written(messages: Iterable[Message]) -> Generator[Row, None, None]:
        for done, row in enumerate(to_rows(messages, recorded_at, scope.limits)):
            if done % NOTE_EVERY == 0 and done:
                noted(done, count)
            yield row
        noted(count, count)

    def work(connection: Connection) -> None:
        with (
            FolderReader(dir) as folder,
            closing(history_stream.messages(folder, known, scope.limits)) as messages,
            closing(written(messages)) as made,
        ):
            session = scope.session(begin.id)
            sql.create(connection, session, begin, made, replace=replace)

    return Call(Mode.WRITE, work, lambda _: begin.id)


def _state(connection: Connection, session: Parameters) -> _State | None:
    found = sql.get(connection, session)
    if found is None:
        return None
    header = rows.to_header(found)
    last = header.last_position or 0
    return _State(last, header.updated, sql.count_messages(connection, session, last))


def _portion(id: str, found: sql.Found) -> _Portion:
    return _Portion(found.named, list(messages_of(id, found)))


def _check_is_the_same(session: Parameters, state: _State, digest: bytes) -> Plan[None]:
    """Nothing, if *digest* is that of the session's rows up to the last that was read.

    A session that was not written to has no other rows. One that was may be another by now.

    Raises:
        Conflict: it was deleted, or made anew.
    """
    now = yield ask(Mode.READ, partial(_state, session=session))
    if now == state:
        return
    work = partial(_digest_of, session=session, last=state.last)
    if (yield ask(Mode.SNAPSHOT, work)) != digest:
        raise _is_another(str(session["sid"]))


def _digest_of(connection: Connection, session: Parameters, last: int) -> bytes:
    digest = hashlib.sha256()
    first = 0
    while first <= last:
        found = sql.portion(connection, session, first, last, data=False).named
        if not found:
            break
        _add(digest, found)
        first = found[-1].position + 1
    return digest.digest()


def _add(digest: Any, found: Iterable[sql.FoundRow]) -> None:
    """Add the rows *found* to a digest, each with all that it says."""
    for row in found:
        fields = (row.position, row.type, row.recorded_at, row.payload, sorted(row.places))
        digest.update("\0".join([*map(str, fields), ""]).encode())


def _is_another(id: str) -> Conflict:
    return Conflict(id, "was deleted or replaced while it was exported: export it again")


def _unnoted(done: int, total: int | None) -> None:
    """Where nobody wants to know."""
