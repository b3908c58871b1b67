"""Between a session and a History: the messages that its entries say, and the entries of messages.

Export reads messages of every dialect (`message_dialects`), one after the other, and keeps only
what is needed to see that they make up a history: ids, and calls. It never heals: what a History
has no place for is an error, or is noted in the list `lossy`. Import writes riffer's shape, from
which export gives back an equal History. Both are plain functions over any store with the four
methods; a SQLStore does the same in one snapshot, and in one transaction.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from turnkeep import message_dialects
from turnkeep.entries import Entry, Header, MessageEntry
from turnkeep.errors import SessionExists, UnknownSession
from turnkeep.history import History
from turnkeep.ids import new_session_id
from turnkeep.message import Message
from turnkeep.message_dialects import Draft, Losses, riffer
from turnkeep.payload import JsonObject, storable
from turnkeep.protocols import Store
from turnkeep.titles import title_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def export_history(store: Store, id: str, *, lossy: list[str] | None = None) -> History:
    """The History of session *id* in any store.

    To export twice gives equal histories; what is appended later changes no message before it,
    except that further items of an assistant's turn, where a framework keeps a turn as several,
    become part of that message.

    Args:
        store: any store.
        id: the session.
        lossy: a list that takes a line for each thing which a History has no place for, and which
            is left out then: results without a call, files with only a URL, arguments that are no
            JSON object, blocks of other kinds, messages in no known dialect. Where the export
            raises, it is as before.

    Raises:
        UnknownSession: there is no such session.
        HistoryError: there is such a thing, and no list; names the entry.
    """
    return to_history(id, store.read(id), lossy)


def import_history(
    store: Store,
    history: History,
    *,
    cwd: str,
    id: str | None = None,
    model: str | None = None,
    title: str | None = None,
    created_at: str | None = None,
    recorded_at: str | None = None,
    replace: bool = False,
) -> str:
    """Make a session of *history* in any store, and give its id.

    `export_history` of it gives an equal History. A store that has this as a method, as SQLStore,
    does it in one transaction; of another the session is deleted where an append fails, and one
    that was to give way is gone then.

    Args:
        store: any store.
        history: what the session is to say.
        cwd: the directory that it belongs to.
        id: the session's id; None makes one.
        model: the header's model; None is the last `model_id` of the history, or `""`.
        title: None is the first line of the first prompt.
        created_at: None is now.
        recorded_at: when the messages happened; None is unknown.
        replace: whether a session of this id gives way.

    Raises:
        SessionExists: there is a session of this id, and it is not to give way.
        InvalidEntry: one of the other arguments can't stand in an entry.
    """
    if (own := getattr(store, "import_history", None)) is not None:
        made: str = own(
            history,
            cwd=cwd,
            id=id,
            model=model,
            title=title,
            created_at=created_at,
            recorded_at=recorded_at,
            replace=replace,
        )
        return made
    said = Said()
    for message in history.messages:
        said.add(message)
    header = new_header(said, cwd=cwd, id=id, model=model, title=title, created_at=created_at)
    entries = list(to_entries(history.messages, recorded_at))
    if replace:
        store.delete(header.id)
    elif store.read(header.id):
        raise SessionExists(header.id)
    store.append(header.id, header)
    try:
        for entry in entries:
            store.append(header.id, entry)
    except BaseException:
        store.delete(header.id)
        raise
    return header.id


class Said:
    """What the messages of a history, added one by one, say for its session's header."""

    def __init__(self) -> None:
        self.count = 0
        self.model = ""
        """The last model that produced one."""
        self._title: str | None = None

    @property
    def title(self) -> str:
        """That of the first user message."""
        return self._title or ""

    def add(self, message: Message) -> None:
        """Take the next message into account."""
        self.count += 1
        self.model = storable(message.model_id or "") or self.model
        if self._title is None and message.role == "user":
            prompt: JsonObject = {"role": "user", "content": message.content, "kind": message.kind}
            self._title = title_of(prompt)


def new_header(
    said: Said,
    *,
    cwd: str,
    id: str | None = None,
    model: str | None = None,
    title: str | None = None,
    created_at: str | None = None,
) -> Header:
    """The header of a new session of a history; None is what `import_history` says."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Header(
        id=new_session_id() if id is None else id,
        cwd=cwd,
        created_at=now if created_at is None else created_at,
        model=said.model if model is None else model,
        title=said.title if title is None else title,
    )


def to_entries(messages: Iterable[Message], recorded_at: str | None) -> Iterator[MessageEntry]:
    """The entries that say *messages*, in riffer's shape."""
    return map(EntryWriter(recorded_at).entry_of, messages)


class EntryWriter:
    """Makes the entries of messages that are given one after the other, in riffer's shape."""

    def __init__(self, recorded_at: str | None) -> None:
        self._recorded_at = recorded_at
        self._called: dict[str, str] = {}

    def entry_of(self, message: Message) -> MessageEntry:
        """The entry that says *message*, the next one."""
        name = self._called.get(message.tool_call_id or "")
        self._called.update((call.id, call.name) for call in message.tool_calls)
        return MessageEntry(riffer.write(message, name), self._recorded_at)


def to_history(id: str, entries: Sequence[Entry], lossy: list[str] | None) -> History:
    """The History that the *entries* of session *id* say.

    Raises:
        UnknownSession: there are none.
        HistoryError: as `export_history`.
    """
    if not entries:
        raise UnknownSession(id)
    losses = Losses(lossy)
    said = Messages(id, entries[0], losses)
    messages = [
        message
        for position, entry in enumerate(entries)
        if isinstance(entry, MessageEntry)
        for message in said.take(position, entry.message)
    ]
    history = History(messages=(*messages, *said.end()))
    losses.deliver()
    return history


class Messages:
    """The messages of a session's entries, which are taken one after the other.

    Args:
        id: the session's.
        first: its first entry.
        losses: what takes note of what a History has no place for.
    """

    def __init__(self, id: str, first: Entry, losses: Losses) -> None:
        self._id = id
        created = datetime.fromisoformat(first.created_at) if isinstance(first, Header) else _EPOCH
        self._milliseconds = max(0, (created - _EPOCH) // timedelta(milliseconds=1))
        self._losses = losses
        self._waiting: Draft | None = None  # till it is known that no more items of its turn follow
        self._count = 0
        self._ids: set[str] = set()
        self._calls: set[str] = set()

    def take(self, position: int, message: JsonObject) -> Iterator[Message]:
        """The messages that are complete now that the one of the entry at *position* is known."""
        self._losses.at = at = f"entry {position}"
        for draft in message_dialects.read(message, self._losses):
            draft.at = at
            if self._waiting is not None and draft.continues:
                self._waiting.take(draft)
                continue
            yield from self.end()
            if draft.continues:
                self._waiting = draft
            else:
                yield from self._finished(draft)

    def end(self) -> Iterator[Message]:
        """The message of the turn that is not known to be over."""
        draft, self._waiting = self._waiting, None
        if draft is not None:
            yield from self._finished(draft)

    def _finished(self, draft: Draft) -> Iterator[Message]:
        """The message of *draft*, if it is one that a History can have."""
        number, self._count = self._count, self._count + 1
        self._losses.at = draft.at
        if draft.role == "tool" and draft.tool_call_id not in self._calls:
            self._losses.add("a result without a call before it")
            return
        if draft.role != "assistant" and draft.tool_calls:
            self._losses.add("tool calls in a message that is not the assistant's")
            draft.tool_calls.clear()
        own = draft.id if draft.id and draft.id not in self._ids else None
        message = draft.to_message(own or self._mint(number))
        self._ids.add(message.id)
        self._calls.update(call.id for call in message.tool_calls)
        yield message

    def _mint(self, number: int) -> str:
        """An id for the message of this *number*, the same in every export; it sorts by number."""
        for salt in itertools.count():
            text = f"{self._id}\0{number}\0{salt}"
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            # More digits in the end: somebody may have taken all 65,536 on purpose.
            minted = f"{self._milliseconds:012x}{number:06x}{digest[: 4 + salt // 1000]}"
            if minted not in self._ids:
                return minted
        raise AssertionError  # salts don't end
