"""Random sequences of operations: an SQLStore does what a model in memory does."""

import base64
import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, select

from conftest import Backend
from turnkeep import (
    Conflict,
    Entry,
    Header,
    InvalidEntry,
    MessageEntry,
    ModelEntry,
    Page,
    SessionExists,
    SQLStore,
    TurnkeepError,
    UnknownEntry,
    UnknownSession,
)
from turnkeep.entries import found, recorded_at
from turnkeep.tables import metadata

Row = tuple[Entry, str | None]


class Model:
    """The sessions of a namespace, the last changed at the end: rows of an entry and its key."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[Row]] = {}

    def extend(self, id: str, rows: list[Row], expected: int | None) -> int:
        stored = self.sessions.get(id, [])
        first = rows[0][0] if rows else None
        header = first if isinstance(first, Header) else None
        if any(isinstance(entry, Header) for entry, _ in rows[1:]) or (header and header.id != id):
            raise InvalidEntry("$", "a header that isn't this session's first entry")
        if not stored and not header:
            raise UnknownSession(id)
        if stored and header and header != stored[0][0]:
            raise SessionExists(id)
        if stored and header and rows[0][1] is None:
            rows = rows[1:]  # it is no change, and what follows is on its own
        if (last := self.settled(rows, stored)) is not None:
            return last
        if expected not in (None, len(stored) - 1) or (expected is not None and not stored):
            raise Conflict(id, "another last position")
        new = rows[1:] if stored and rows and isinstance(rows[0][0], Header) else rows
        if new:
            self.sessions.pop(id, None)
            self.sessions[id] = self.raised(stored + new)
        return 0 if header and not new else len(stored) + len(new) - 1

    def settled(self, rows: list[Row], stored: list[Row]) -> int | None:
        """The last position of *rows* where they are stored under their keys, None if none is."""
        known = {key: place for place, (_, key) in enumerate(stored) if key is not None}
        firsts = [known[key] - i for i, (_, key) in enumerate(rows) if key in known]
        if not firsts:
            return None
        there = stored[firsts[0] : firsts[0] + len(rows)] if firsts[0] >= 0 else []
        pairs = list(zip(rows, there, strict=False))
        same = [timeless(a) == timeless(b) and key in (None, k) for (a, key), (b, k) in pairs]
        if len(there) < len(rows) or not all(same):
            raise Conflict("", "other entries")
        return firsts[0] + len(rows) - 1

    def raised(self, rows: list[Row]) -> list[Row]:
        latest = itertools.accumulate((recorded_at(entry) or "" for entry, _ in rows), max)
        return [
            (timed(entry, stamp) if recorded_at(entry) else entry, key)
            for (entry, key), stamp in zip(rows, latest, strict=True)
        ]

    def read(self, id: str) -> list[Entry]:
        return [entry for entry, _ in self.sessions.get(id, [])]

    def page(self, id: str, after: int | None, before: int | None, limit: int) -> Page:
        entries = self.read(id)
        first = 0 if after is None else after + 1
        places = range(len(entries))[first : first + limit]
        if before is not None:
            places = range(len(entries))[:before][-limit:]
        if not places:
            return Page([], None, None)
        next_after = None if places[-1] == len(entries) - 1 else places[-1]
        return Page([entries[place] for place in places], next_after, places[0] or None)

    def list(self, cwd: str | None) -> list[Header]:
        headers = [rows[0][0] for rows in reversed(self.sessions.values())]
        return [h for h in headers if isinstance(h, Header) and cwd in (None, h.cwd)]


def timeless(entry: Entry) -> Entry:
    return found({name: value for name, value in entry.to_dict().items() if name != "recorded_at"})


def timed(entry: Entry, stamp: str) -> Entry:
    return found({**entry.to_dict(), "recorded_at": stamp})


def outcome(work: Callable[[], object]) -> object:
    """What *work* gives, or the kind of error that it raises."""
    try:
        return work()
    except TurnkeepError as error:
        return type(error)


def message(texts: list[str], pictures: list[bytes], stamp: str | None) -> MessageEntry:
    texts_of = [base64.b64encode(data).decode() for data in pictures]
    parts: list[Any] = [{"mime": "image/png", "data": text} for text in texts_of]
    return MessageEntry({"role": "user", "content": [*texts, *parts]}, stamp)


def pictures_of(entry: Entry) -> list[str]:
    content: Any = entry.message["content"] if isinstance(entry, MessageEntry) else []
    return [part["data"] for part in content if isinstance(part, dict)]


def header(id: str, cwd: str) -> Header:
    return Header(id=id, cwd=cwd, created_at="2026-11-30T12:00:00Z", model="m")


IDS = st.sampled_from(["s1", "s1", "s1", "s1", "s2", "S1"])
SPACES = st.sampled_from(["a", "a", "b"])
CWDS = st.sampled_from(["", "/w", "/W"])
KEYS = st.lists(st.sampled_from("pqrst") | st.none(), min_size=4, max_size=4).map(
    # A key may stand once in a batch.
    lambda keys: [key if key not in keys[:i] else None for i, key in enumerate(keys)]
)
STAMPS = st.none() | st.integers(0, 9).map(lambda second: f"2026-11-30T12:00:0{second}.000Z")
TEXTS = st.lists(st.sampled_from(["", "x", "ü\0", "\ud83d"]), max_size=2)
PICTURES = st.lists(st.sampled_from([b"", b"one", b"two", b"three" * 1000]), max_size=3)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(message, TEXTS, PICTURES, STAMPS),
    st.builds(ModelEntry, st.sampled_from("mn"), STAMPS),
    st.builds(UnknownEntry, st.just("label"), st.just({"x": 1}), STAMPS),
)
HEADERS: st.SearchStrategy[Entry] = st.builds(header, IDS, CWDS)
BATCHES = st.one_of(
    st.lists(ENTRIES, min_size=1, max_size=1),
    st.lists(ENTRIES, max_size=3),
    st.lists(ENTRIES | HEADERS, min_size=1, max_size=3),
)
POSITIONS = st.none() | st.integers(0, 9) | st.just(2**80)
LIMITS = st.integers(1, 4) | st.just(2**80)

_numbers = itertools.count()


class Operations(RuleBasedStateMachine):
    """A store with two namespaces, and a model of each."""

    def __init__(self, open_store: Callable[[], SQLStore]) -> None:
        super().__init__()
        self.open_store = open_store
        self.store = open_store()
        number = next(_numbers)
        self.spaces = {name: f"{number} {name}" for name in "ab"}
        self.models = {name: Model() for name in self.spaces}
        self.batches: list[tuple[str, str, list[Row]]] = []

    @initialize(entries=st.lists(ENTRIES, max_size=3), keys=KEYS)
    def begin_both(self, entries: list[Entry], keys: list[str | None]) -> None:
        for space in self.spaces:
            self.begin(space, "s1", "/w", entries, keys)

    def teardown(self) -> None:
        try:
            for space, model in self.models.items():
                for session in ("s1", "s2", "S1"):
                    assert self.of(space).read(session) == model.read(session)
                    assert self.of(space).delete(session) == (session in model.sessions)
            assert self.row_counts() == [0, 0, 0, 0]
        finally:
            self.store.close()

    def of(self, space: str) -> SQLStore:
        return self.store.with_namespace(self.spaces[space])

    def row_counts(self) -> list[int]:
        """How many rows of our namespaces there are: sessions, entries, blobs, attachments."""
        ours = self.spaces.values()
        with self.store._database.engine.connect() as connection:
            return [
                connection.scalar(
                    select(func.count()).select_from(table).where(table.c.namespace.in_(ours))
                )
                or 0
                for table in metadata.tables.values()
            ]

    def write(
        self, space: str, id: str, rows: list[Row], expected: int | None, *, is_one: bool
    ) -> None:
        """Write *rows* to both, by `append` where that can, and hold them to the same answer."""
        store, model = self.of(space), self.models[space]
        options: dict[str, Any] = {"expected_position": expected}
        keys = [key for _, key in rows]
        if is_one and len(rows) == 1:
            append = store.append
            given = outcome(lambda: append(id, rows[0][0], idempotency_key=keys[0], **options))
        else:
            entries = [entry for entry, _ in rows]
            given = outcome(lambda: store.extend(id, entries, idempotency_keys=keys, **options))
        assert given == outcome(lambda: model.extend(id, rows, expected))
        assert store.read(id) == model.read(id)

    @rule(space=SPACES, id=IDS, cwd=CWDS, entries=st.lists(ENTRIES, max_size=3), keys=KEYS)
    def begin(
        self, space: str, id: str, cwd: str, entries: list[Entry], keys: list[str | None]
    ) -> None:
        rows = list(zip([header(id, cwd), *entries], keys, strict=False))
        self.batches.append((space, id, rows))
        self.write(space, id, rows, None, is_one=True)

    @rule(space=SPACES, id=IDS, entries=BATCHES, keys=KEYS, is_one=st.booleans(), data=st.data())
    def extend(
        self,
        space: str,
        id: str,
        entries: list[Entry],
        keys: list[str | None],
        is_one: bool,
        data: st.DataObject,
    ) -> None:
        last = len(self.models[space].read(id)) - 1
        expected = data.draw(st.none() | st.just(max(last, 0)) | POSITIONS)
        rows = list(zip(entries, keys, strict=False))
        self.batches.append((space, id, rows))
        self.write(space, id, rows, expected, is_one=is_one)

    @rule(data=st.data(), stamp=STAMPS, expected=POSITIONS, is_one=st.booleans())
    def repeat(
        self, data: st.DataObject, stamp: str | None, expected: int | None, is_one: bool
    ) -> None:
        """A part of an earlier batch, or all of it, with other times perhaps, or keys left out."""
        if not self.batches:
            return
        space, session, rows = data.draw(st.sampled_from(self.batches))
        start = data.draw(st.integers(0, len(rows)))
        again: list[Row] = []
        for entry, key in rows[start:] or rows:
            moved = timed(entry, stamp) if stamp and recorded_at(entry) else entry
            again.append((moved, data.draw(st.sampled_from([key, key, key, None]))))
        self.write(space, session, again, expected, is_one=is_one)

    @rule(space=SPACES, id=IDS, is_reopened=st.sampled_from([False, False, True]))
    def delete(self, space: str, id: str, is_reopened: bool) -> None:
        there = self.models[space].sessions.pop(id, None)
        assert self.of(space).delete(id) == (there is not None)
        if is_reopened:
            self.store.close()
            self.store = self.open_store()

    @rule(space=SPACES, id=IDS, after=POSITIONS, before=POSITIONS, limit=LIMITS)
    def look(self, space: str, id: str, after: int | None, before: int | None, limit: int) -> None:
        store, model = self.of(space), self.models[space]
        entries = model.read(id)
        assert store.page(id, after=after, limit=limit) == model.page(id, after, None, limit)
        assert store.page(id, before=before, limit=limit) == model.page(id, None, before, limit)
        assert store.tail(id, limit) == entries[1:][-limit:]
        header = store.get(id)
        assert header == (entries[0] if entries else None)
        assert header is None or header.last_position == len(entries) - 1

    @rule(space=SPACES, cwd=st.none() | CWDS, limit=st.none() | LIMITS, place=st.integers(0, 2))
    def list(self, space: str, cwd: str | None, limit: int | None, place: int) -> None:
        store, headers = self.of(space), self.models[space].list(cwd)
        given = store.list(cwd)
        assert given == headers
        assert store.list(cwd, limit=limit) == headers[:limit]
        if place < len(given):
            rest = store.list(cwd, limit=limit, before=given[place])
            assert rest == headers[place + 1 :][:limit]
        self.check_rows()

    def check_rows(self) -> None:
        """Each session, entry and attachment has its row, and bytes have one in a namespace."""
        spaces = [model.sessions.values() for model in self.models.values()]
        entries = [[entry for rows in space for entry, _ in rows] for space in spaces]
        lifted = [[data for entry in space for data in pictures_of(entry)] for space in entries]
        blobs = [{*space} for space in lifted]
        assert self.row_counts() == [
            sum(map(len, rows)) for rows in (spaces, entries, blobs, lifted)
        ]


def test_a_store_does_what_the_model_does(server_or_file: Backend) -> None:
    server_or_file.store().close()

    class OnThisDatabase(Operations):
        def __init__(self) -> None:
            super().__init__(lambda: SQLStore(server_or_file.url))

    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(
            max_examples=settings().max_examples // 2,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
