"""What an SQLStore does beyond the contract of all stores, and what it makes of bad input."""

import base64
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select, update

from conftest import BACKENDS, Backend, open_shared
from mutation import Untouchable
from turnkeep import (
    Conflict,
    Entry,
    Header,
    InvalidArgument,
    InvalidEntry,
    Limits,
    MessageEntry,
    ModelEntry,
    Page,
    ReasoningEntry,
    SessionExists,
    SkillEntry,
    SQLStore,
    UnknownEntry,
    UnknownSession,
)
from turnkeep import sql as statements
from turnkeep.jsonl import JSONLStore
from turnkeep.tables import metadata, sessions
from turnkeep.testing.checks import together

LATE, LATER, EARLY = (f"2026-11-30T12:00:0{second}.000Z" for second in (5, 9, 1))
HUGE = 2**80
IMPOSSIBLE_IDS: dict[str, tuple[Any, str]] = {
    "empty": ("", "is empty"),
    "too long": ("z" * 256, "is longer than 255 bytes of UTF-8"),
    "too long in bytes": ("é" * 128, "is longer than 255 bytes of UTF-8"),
    "NUL": ("s\0", "holds a NUL or an unpaired surrogate"),
    "surrogate": ("s\ud83d", "holds a NUL or an unpaired surrogate"),
    "None": (None, "is a str, not NoneType"),
    "int": (1, "is a str, not int"),
    "bytes": (b"s1", "is a str, not bytes"),
    "not to be compared": (Untouchable(), "is a str, not Untouchable"),
}


def impossible(*, but: str = "") -> pytest.MarkDecorator:
    """Every key that none can be, but the one that means something else there."""
    chosen = {name: case for name, case in IMPOSSIBLE_IDS.items() if name != but}
    return pytest.mark.parametrize(("key", "fault"), chosen.values(), ids=chosen.keys())


_numbers = itertools.count()


@pytest.fixture(params=[*BACKENDS, "pooler"], scope="module")
def shared_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SQLStore]:
    yield from open_shared(request, tmp_path_factory)


@pytest.fixture
def store(shared_store: SQLStore) -> SQLStore:
    """A store of a namespace that is empty."""
    return shared_store.with_namespace(f"test {next(_numbers)}")


@pytest.fixture
def begun(store: SQLStore) -> SQLStore:
    """A store that has session s1 with two messages, at positions 1 and 2."""
    store.extend("s1", [header(), message("one"), message("two")])
    return store


def header(session: str = "s1", **fields: Any) -> Header:
    given = {"id": session, "cwd": "/w", "created_at": "2026-11-30T12:00:00Z", "model": "m"}
    return Header(**(given | fields))


def message(text: str, stamp: str | None = None) -> MessageEntry:
    return MessageEntry({"role": "user", "content": text}, stamp)


def picture(data: bytes, stamp: str | None = None) -> MessageEntry:
    file = {"media_type": "image/png", "data": base64.b64encode(data).decode()}
    return MessageEntry({"role": "user", "content": "", "files": [file]}, stamp)


def messages(count: int) -> list[Entry]:
    return [message(str(number)) for number in range(count)]


def counts(store: SQLStore) -> dict[str, int]:
    """How many rows there are in each table, of all namespaces."""
    with store._database.engine.connect() as connection:
        return {
            name: connection.scalar(select(func.count()).select_from(table)) or 0
            for name, table in metadata.tables.items()
        }


@contextmanager
def nothing_written(store: SQLStore) -> Iterator[None]:
    """Hold what runs inside to leave every table and header as it was, and session s1 usable."""
    before = counts(store), stamped(store)
    yield
    assert (counts(store), stamped(store)) == before
    assert len(before[0]) == 4
    if header_of_s1 := store.get("s1"):
        read = store.read("s1")
        assert header_of_s1.last_position is not None
        assert store.append("s1", message("after")) == header_of_s1.last_position + 1
        assert store.read("s1") == [*read, message("after")]


def stamped(store: SQLStore) -> list[tuple[Header, datetime | None, int | None]]:
    """The headers with what is stamped on them, which their equality leaves out."""
    return [(found, found.updated, found.last_position) for found in store.list()]


# extend


def test_extend_equals_appends_one_by_one(store: SQLStore) -> None:
    entries: list[Entry] = [
        header(),
        message("a", LATE),
        picture(b"1", EARLY),
        message("c"),
        ModelEntry("n", EARLY),
        ReasoningEntry("low", LATER),
        SkillEntry("draw", LATE),
        UnknownEntry("label", {"x": 1}, EARLY),
        picture(b"1"),
    ]
    assert store.extend("s1", iter(entries)) == 8
    assert [store.append("s2", replace(header(), id="s2"))] == [0]
    assert [store.append("s2", entry) for entry in entries[1:]] == [1, 2, 3, 4, 5, 6, 7, 8]
    found = store.read("s1")
    assert found[1:] == store.read("s2")[1:]
    assert [entry.to_dict().get("recorded_at") for entry in found[1:]] == [
        *(LATE, LATE, None, LATE, LATER, LATER, LATER),
        None,
    ]
    # A later batch starts from where the session's times are.
    assert store.extend("s1", [message("x", EARLY), message("y")]) == 10
    assert store.tail("s1", 2) == [message("x", LATER), message("y")]


def test_extend_of_more_than_one_statement_takes_is_one_batch(store: SQLStore) -> None:
    entries = [header(), *messages(1200)]
    keys = [None, *(f"k{i}" for i in range(1200))]
    assert store.extend("s1", entries, idempotency_keys=keys) == 1200
    assert store.extend("s1", entries, idempotency_keys=keys) == 1200
    assert store.read("s1") == entries
    with pytest.raises(Conflict):
        store.extend("s1", [*entries, message("x")], idempotency_keys=[*keys, "new"])
    assert store.read("s1") == entries


def test_extend_of_nothing_writes_nothing(begun: SQLStore) -> None:
    with nothing_written(begun):
        assert begun.extend("s1", []) == 2
        assert begun.extend("s1", iter(()), idempotency_keys=[], expected_position=2) == 2
        with pytest.raises(Conflict):
            begun.extend("s1", [], expected_position=1)
        with pytest.raises(UnknownSession):
            begun.extend("s2", [])


def test_extend_that_fails_within_the_transaction_leaves_nothing(
    begun: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [message("three"), picture(b"new bytes"), message("five")]

    def fail(*_: object) -> None:
        raise RuntimeError("no bytes today")

    for first in ([], [header("s2")]):
        session = "s2" if first else "s1"
        with nothing_written(begun), monkeypatch.context() as patch:
            patch.setattr(statements, "_attach", fail)
            with pytest.raises(RuntimeError, match="no bytes today"):
                begun.extend(session, [*first, *batch])
            with pytest.raises(RuntimeError, match="no bytes today"):
                begun.append("s1", batch[1])
    assert begun.extend("s1", batch) == 7
    assert len(begun.attachments("s1")) == 1


def test_extends_of_threads_do_not_weave(begun: SQLStore) -> None:
    def write(thread: int) -> list[int]:
        batches = [[message(f"{thread} {i} {j}") for j in range(5)] for i in range(4)]
        return [begun.extend("s1", batch) for batch in batches]

    lasts = together([partial(write, thread) for thread in range(4)])
    found = begun.read("s1")[3:]
    assert len(found) == 80
    for thread, written in enumerate(lasts):
        assert written == sorted(written)
        for i, last in enumerate(written):
            batch = found[last - 7 : last - 2]  # positions from 3 on
            assert batch == [message(f"{thread} {i} {j}") for j in range(5)]


def test_the_order_is_that_of_the_appends_wherever_the_rows_lie_and_whatever_the_clock_says(
    server_or_file: Backend,
) -> None:
    """Entries of one time, of which the database has moved some, and which it may give in any order
    where none is asked for: as they lie, or backwards.
    """
    server_or_file.store()
    off = " ".join(f"-c enable_{way}=off" for way in ("indexscan", "bitmapscan", "indexonlyscan"))
    engine = server_or_file.engine(
        **({"connect_args": {"options": off}} if server_or_file.is_postgres else {})
    )
    if not server_or_file.is_postgres:
        backwards = "PRAGMA reverse_unordered_selects = ON"
        event.listen(engine, "connect", lambda connection, _: connection.execute(backwards))
    store = SQLStore(engine)
    entries: list[Entry] = [message(f"{number}", LATE) for number in range(200)]
    store.extend("s1", [header(), *entries[:150]])
    for entry in entries[150:]:
        store.append("s1", entry)
    with engine.begin() as connection:
        for first in (20, 0, 60):  # Postgres writes a row that it updates to another place
            places = f"position BETWEEN {first} AND {first + 10}"
            connection.exec_driver_sql(
                f"UPDATE turnkeep_entries SET payload = payload WHERE {places}"
            )
    assert store.read("s1") == [header(), *entries]
    assert store.tail("s1", 195) == entries[5:]
    assert store.page("s1", after=10, limit=60).entries == entries[10:70]
    assert store.page("s1", before=70, limit=60).entries == entries[9:69]


# idempotency_key


def test_a_known_key_with_the_same_entry_gives_its_position(store: SQLStore) -> None:
    assert store.append("s1", header(), idempotency_key="h") == 0
    entries: list[Entry] = [message("a", EARLY), picture(b"1", EARLY), ModelEntry("n")]
    entries.append(UnknownEntry("x", {}))
    for position, entry in enumerate(entries, start=1):
        assert store.append("s1", entry, idempotency_key=f"k{position}") == position
    store.append("s1", message("last", LATE))
    with nothing_written(store):
        for position, entry in enumerate([header(), *entries]):
            key = f"k{position}" if position else "h"
            assert store.append("s1", entry, idempotency_key=key) == position
            # What the caller believes to be the last position isn't looked at: it was right once.
            for expected in (0, 99, HUGE):
                options: dict[str, Any] = {"idempotency_key": key, "expected_position": expected}
                assert store.append("s1", entry, **options) == position
                options["idempotency_keys"] = [options.pop("idempotency_key")]
                assert store.extend("s1", [entry], **options) == position


def test_the_time_of_an_entry_is_no_part_of_what_a_key_names(store: SQLStore) -> None:
    store.extend("s1", [header(), message("a", LATE)])
    assert store.append("s1", message("b", EARLY), idempotency_key="k") == 2  # raised to LATE
    with nothing_written(store):
        for stamp in (EARLY, LATE, LATER, None):
            assert store.append("s1", message("b", stamp), idempotency_key="k") == 2


@pytest.mark.parametrize(
    "other",
    [
        message("b"),
        MessageEntry({"content": "a", "role": "user"}),
        MessageEntry({"role": "user", "content": "a", "n": 1}),
        ModelEntry("a"),
        UnknownEntry("note", {"message": {"role": "user", "content": "a"}}),
        picture(b"1"),
        header(),
    ],
    ids=["text", "key order", "more", "class", "type", "attachment", "header"],
)
def test_a_known_key_with_another_entry_is_a_conflict(store: SQLStore, other: Entry) -> None:
    store.extend("s1", [header(), message("a")], idempotency_keys=[None, "k"])
    with nothing_written(store):
        with pytest.raises(Conflict, match="'k' names another entry"):
            store.append("s1", other, idempotency_key="k")
        with pytest.raises(Conflict, match="'k' names another entry"):
            store.extend("s1", [other], idempotency_keys=["k"], expected_position=1)


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0.0, -0.0), (None, False)])
def test_a_key_tells_values_apart_that_python_holds_for_equal(
    store: SQLStore, one: Any, other: Any
) -> None:
    store.append("s1", header())
    store.append("s1", MessageEntry({"n": one}), idempotency_key="k")
    with nothing_written(store), pytest.raises(Conflict):
        store.append("s1", MessageEntry({"n": other}), idempotency_key="k")


def test_a_key_tells_attachments_apart(store: SQLStore) -> None:
    store.extend("s1", [header(), picture(b"1"), picture(b"2")], idempotency_keys=[None, "1", "2"])
    bare = MessageEntry(
        {"role": "user", "content": "", "files": [{"media_type": "image/png", "data": ""}]}
    )
    with nothing_written(store):
        assert store.append("s1", picture(b"1"), idempotency_key="1") == 1
        for other in (picture(b"2"), picture(b"3"), picture(b""), bare):
            with pytest.raises(Conflict):
                store.append("s1", other, idempotency_key="1")
        assert store.extend("s1", [picture(b"1"), picture(b"2")], idempotency_keys=["1", "2"]) == 2
        with pytest.raises(Conflict):
            store.extend("s1", [picture(b"1"), picture(b"1")], idempotency_keys=["1", "2"])


def test_keys_belong_to_their_session(store: SQLStore) -> None:
    other = store.with_namespace(f"test {next(_numbers)}")
    for place in (store, other):
        for session in ("s1", "s2"):
            place.append(session, header(session))
            assert place.append(session, message(session), idempotency_key="k") == 1
    store.delete("s1")
    store.append("s1", header())
    assert store.append("s1", message("anew"), idempotency_key="k") == 1
    assert other.read("s1") == [header(), message("s1")]
    assert store.read("s2") == [header("s2"), message("s2")]


def test_keys_differ_by_bytes(store: SQLStore) -> None:
    keys = [
        "k",
        "K",
        "k ",
        " k",
        "é",
        "e\u0301",
        "%",
        "_",
        "k%",
        "ß",
        "ss",
        "z" * 255,
        "é" * 127,
        "\n",
    ]
    entries = messages(len(keys))
    store.append("s1", header())
    for position, (key, entry) in enumerate(zip(keys, entries, strict=True), start=1):
        assert store.append("s1", entry, idempotency_key=key) == position
    assert store.extend("s1", entries, idempotency_keys=keys) == len(keys)


def test_a_header_may_have_a_key(store: SQLStore) -> None:
    store.extend("s1", [header(), message("a")], idempotency_keys=["h", "k"])
    with nothing_written(store):
        assert store.append("s1", header(), idempotency_key="other") == 0  # equal: no change
        for key, entry in (("h", message("a")), ("k", header()), ("h", message("b"))):
            with pytest.raises(Conflict):
                store.append("s1", entry, idempotency_key=key)
        with pytest.raises(SessionExists):
            store.append("s1", header(title="t"), idempotency_key="h")
        # The second time it was no entry of its own, so its key names none.
        assert store.append("s1", header(), idempotency_key="other") == 0


# idempotency_keys


@pytest.fixture
def keyed(store: SQLStore) -> SQLStore:
    """A store that has session s1: a, b, c under their keys, d without, e under its key."""
    entries = [header(), *(message(text) for text in "abcde")]
    store.extend("s1", entries, idempotency_keys=[None, "a", "b", "c", None, "e"])
    return store


@pytest.mark.parametrize(
    ("texts", "keys", "last"),
    [
        ("abc", ["a", "b", "c"], 3),
        ("bc", ["b", "c"], 3),
        ("c", ["c"], 3),
        ("abcde", ["a", "b", "c", None, "e"], 5),
        ("abc", ["a", None, None], 3),
        ("abc", [None, None, "c"], 3),
        ("cd", ["c", None], 4),
    ],
)
def test_known_keys_of_the_same_entries_in_a_row_are_a_success(
    keyed: SQLStore, texts: str, keys: list[str | None], last: int
) -> None:
    entries = [message(text, LATER) for text in texts]
    with nothing_written(keyed):
        assert keyed.extend("s1", entries, idempotency_keys=keys) == last
        assert keyed.extend("s1", entries, idempotency_keys=keys, expected_position=0) == last
        assert keyed.extend("s1", entries, idempotency_keys=tuple(keys)) == last


@pytest.mark.parametrize(
    ("texts", "keys"),
    [
        ("ax", ["a", "x"]),  # a mix
        ("xa", ["x", "a"]),
        ("ex", ["e", "x"]),
        ("cdx", ["c", None, "x"]),
        ("ac", ["a", "c"]),  # not in a row
        ("ba", ["b", "a"]),
        ("ce", ["c", "e"]),
        ("ax", ["a", "b"]),  # another entry
        ("xb", ["a", "b"]),
        ("ba", ["a", "b"]),
        ("ax", ["a", None]),
        ("xc", [None, "c"]),
        ("cx", ["c", None]),
        ("de", ["x", "e"]),  # the same entries, under other keys
        ("de", ["e", "x"]),
        ("ef", ["e", None]),  # the rest is not there
        ("xa", [None, "a"]),
        ("xya", [None, None, "a"]),
        ("abcdef", ["a", "b", "c", None, "e", None]),
        ("abcdef", ["a", "b", "c", None, "e", "f"]),
    ],
)
def test_known_keys_of_anything_else_are_a_conflict(
    keyed: SQLStore, texts: str, keys: list[str | None]
) -> None:
    entries = [message(text) for text in texts]
    with nothing_written(keyed):
        for expected in (None, 5):
            options: dict[str, Any] = {"idempotency_keys": keys, "expected_position": expected}
            with pytest.raises(Conflict, match="idempotency key"):
                keyed.extend("s1", entries, **options)


def test_unknown_keys_are_written(keyed: SQLStore) -> None:
    entries = [message("a"), message("b")]
    assert keyed.extend("s1", entries, idempotency_keys=["new", None]) == 7
    assert keyed.extend("s1", entries, idempotency_keys=[None, None]) == 9
    assert keyed.extend("s1", entries, idempotency_keys=["x", "y"], expected_position=9) == 11
    with nothing_written(keyed), pytest.raises(Conflict, match="expected position 9"):
        keyed.extend("s1", entries, idempotency_keys=["p", "q"], expected_position=9)
    assert keyed.extend("s1", entries, idempotency_keys=["x", "y"]) == 11


def test_a_batch_with_a_header_may_be_repeated(store: SQLStore) -> None:
    batch = [header(), message("a"), message("b")]
    given: list[list[str | None]] = [["h", "a", "b"], [None, "a", "b"], ["h", None, "b"]]
    for keys in given:
        assert store.extend("s1", batch, idempotency_keys=keys) == 2
    assert store.extend("s1", [header(), message("b")], idempotency_keys=[None, "b"]) == 2
    assert store.extend("s1", [header()], idempotency_keys=["h"], expected_position=77) == 0
    with nothing_written(store):
        wrong: list[tuple[str, list[str | None]]] = [
            ("x", ["h", "x"]),  # a mix
            ("a", ["x", "a"]),
            ("b", ["h", "b"]),  # not in a row
            ("x", ["h", None]),  # another entry
        ]
        for text, keys in wrong:
            with pytest.raises(Conflict):
                store.extend("s1", [header(), message(text)], idempotency_keys=keys)
        with pytest.raises(SessionExists):
            store.extend("s1", [header(title="t"), *batch[1:]], idempotency_keys=["h", "a", "b"])
    # An equal header is no change: what follows it goes to the end.
    assert store.extend("s1", [header(), message("c")], idempotency_keys=[None, "c"]) == 4
    assert store.extend("s1", [header(), message("d")], idempotency_keys=["other", "d"]) == 5
    assert store.tail("s1", 2) == [message("c"), message("d")]


def test_threads_with_one_key_write_once(begun: SQLStore) -> None:
    batch, keys = [message("x"), message("y")], ["x", "y"]
    alone = partial(begun.append, "s1", message("z"), idempotency_key="z")
    both = partial(begun.extend, "s1", batch, idempotency_keys=keys)
    assert len({*together([alone] * 8)}) == 1
    assert len({*together([both] * 8)}) == 1
    assert begun.read("s1")[3:] == [message("z"), *batch]


# expected_position


def test_a_wrong_expected_position_is_a_conflict(begun: SQLStore) -> None:
    entries: list[list[Entry]] = [[message("x")], messages(3), [picture(b"1")], [header()]]
    entries += [[header(), message("x")], []]
    with nothing_written(begun):
        for batch, expected in itertools.product(entries, (0, 1, 3, HUGE)):
            with pytest.raises(Conflict, match="but its last is 2"):
                begun.extend("s1", batch, expected_position=expected)
            if len(batch) == 1:
                with pytest.raises(Conflict, match="but its last is 2"):
                    begun.append("s1", batch[0], expected_position=expected)


def test_the_right_expected_position_writes(begun: SQLStore) -> None:
    assert begun.append("s1", message("x"), expected_position=2) == 3
    assert begun.append("s1", header(), expected_position=3) == 0
    assert begun.extend("s1", messages(2), expected_position=3) == 5
    assert begun.extend("s1", [header(), picture(b"1")], expected_position=5) == 6
    assert begun.extend("s1", [], expected_position=6) == 6
    assert begun.append("s1", message("x"), idempotency_key="k", expected_position=6) == 7


def test_an_unknown_session_has_no_expected_position(store: SQLStore) -> None:
    with nothing_written(store):
        for expected in (0, 1):
            with pytest.raises(UnknownSession):
                store.append("s1", message("x"), expected_position=expected)
            with pytest.raises(UnknownSession):
                store.extend("s1", [], expected_position=expected)
            for batch in ([header()], [header(), message("x")]):
                with pytest.raises(Conflict, match="it is new"):
                    store.extend("s1", batch, expected_position=expected)
    assert store.read("s1") == []


def test_of_threads_that_expect_one_position_one_writes(begun: SQLStore) -> None:
    def write(number: int) -> int | None:
        try:
            batch = [message(f"{number} {i}") for i in range(1 + number % 2)]
            return begun.extend("s1", batch, expected_position=2)
        except Conflict:
            return None

    won = [number for number in together([partial(write, n) for n in range(8)]) if number]
    assert len(won) == 1
    assert begun.read("s1")[-1] == begun.tail("s1", 1)[0]
    assert len(begun.read("s1")) == won[0] + 1


# page, tail, get


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, HUGE])
def test_pages_walk_a_session_both_ways(store: SQLStore, limit: int) -> None:
    entries = [header(), *messages(5)]
    store.extend("s1", entries)
    forwards: list[Entry] = []
    page = store.page("s1", limit=limit)
    while True:
        assert 0 < len(page.entries) <= limit
        forwards += page.entries
        assert page.next_before == (len(forwards) - len(page.entries) or None)
        if page.next_after is None:
            break
        assert page.next_after == len(forwards) - 1
        page = store.page("s1", after=page.next_after, limit=limit)
    assert forwards == entries
    backwards: list[Entry] = []
    page = store.page("s1", before=6, limit=limit)
    while True:
        assert 0 < len(page.entries) <= limit
        assert page.next_after == (5 - len(backwards) if backwards else None)
        backwards[:0] = page.entries
        if page.next_before is None:
            break
        assert page.next_before == 6 - len(backwards)
        page = store.page("s1", before=page.next_before, limit=limit)
    assert backwards == entries


def test_a_page_behind_or_in_front_of_everything_is_empty(begun: SQLStore) -> None:
    nothing = Page([], None, None)
    assert begun.page("s1", after=2) == begun.page("s1", after=99) == nothing
    assert begun.page("s1", before=0) == begun.page("s1", after=HUGE) == nothing
    assert begun.page("s2") == begun.page("s2", before=5) == begun.page("\0") == nothing
    whole = Page([header(), message("one"), message("two")], None, None)
    assert begun.page("s1") == begun.page("s1", before=3) == begun.page("s1", before=HUGE) == whole
    assert begun.page("s1", after=0) == Page(whole.entries[1:], None, 1)
    assert begun.page("s1", before=1) == Page(whole.entries[:1], 0, None)


def test_a_page_has_500_entries_unless_told(store: SQLStore) -> None:
    store.extend("s1", [header(), *messages(600)])
    page = store.page("s1")
    assert (len(page.entries), page.next_after, page.next_before) == (500, 499, None)
    assert store.page("s1", after=499).entries == messages(600)[499:]


def test_paging_goes_on_where_others_append(begun: SQLStore) -> None:
    page = begun.page("s1", limit=2)
    begun.append("s1", message("three"))
    rest = begun.page("s1", after=page.next_after, limit=2)
    assert rest == Page([message("two"), message("three")], None, 2)
    begun.append("s1", message("four"))
    assert begun.page("s1", after=3).entries == [message("four")]


def test_tail_gives_the_newest_without_the_header(begun: SQLStore) -> None:
    entries = [message("one"), message("two")]
    for count in (0, 1, 2, 3, 99, HUGE):
        assert begun.tail("s1", count) == (entries[-count:] if count else [])
    begun.append("s2", header("s2"))
    assert begun.tail("s2", 5) == begun.tail("s3", 5) == []


def test_get_gives_the_header_as_the_list_does(store: SQLStore) -> None:
    first = header(cwd="/ü", title="ä", schema_version=2, riffer_version="1", model="")
    assert store.get("s1") is None
    store.append("s1", first)
    before = datetime.now(UTC)
    store.extend("s1", messages(3))
    found = store.get("s1")
    assert found == first
    assert found is not None
    assert found.updated is not None
    assert abs(found.updated - before) < timedelta(hours=1)
    assert found.updated.tzinfo is UTC
    assert (found, found.updated, found.last_position) == (*stamped(store)[0][:2], 3)


# list


def test_the_list_is_walked_in_pages(store: SQLStore) -> None:
    """Many of these have the same time, and ids that collations order in another way."""
    ids = [f"{'aBäZ-_'[i % 6]}{i * 7919 % 250}" for i in range(250)]
    for i, session in enumerate(ids):
        store.append(session, header(session, cwd=f"/{i % 2}"))
    times = [datetime(2026, 11, 30, 12, tzinfo=UTC) + timedelta(microseconds=i) for i in range(3)]
    with store._database.engine.begin() as connection:
        for i, session in enumerate(ids):
            row = sessions.c.namespace == store._scope.namespace, sessions.c.id == session
            connection.execute(update(sessions).where(*row).values(updated_at=times[i // 2 % 3]))
    for cwd, count in ((None, 250), ("/0", 125), ("/1", 125)):
        whole = store.list(cwd)
        order = [(found.updated, found.id.encode()) for found in whole]
        assert len(whole) == count
        assert order == sorted(order, reverse=True)
        for limit in (50, 33):
            walked: list[Header] = []
            while page := store.list(cwd, limit=limit, before=walked[-1] if walked else None):
                assert len(page) <= limit
                walked += page
            assert walked == whole
        assert store.list(cwd, limit=HUGE) == whole
        assert store.list(cwd, limit=0) == []


def test_the_list_goes_on_behind_a_session_that_moved_or_is_gone(store: SQLStore) -> None:
    for session in ("s1", "s2", "s3", "s4"):
        store.append(session, header(session))
    first, second, third, _ = store.list()
    store.append("s4", message("x"))
    store.delete("s3")
    assert [found.id for found in store.list(before=first)] == ["s2", "s1"]
    assert [found.id for found in store.list(before=second)] == ["s2", "s1"]
    assert [found.id for found in store.list("/w", before=third, limit=1)] == ["s1"]
    assert store.list(before=store.list()[-1]) == []
    assert store.list("/other", before=first) == []


def test_no_session_has_a_cwd_that_no_header_can_have(begun: SQLStore) -> None:
    assert begun.list("\0") == begun.list("/w\ud83d") == []


def test_reading_and_exporting_move_no_session(store: SQLStore, tmp_path: Path) -> None:
    for session in ("s1", "s2"):
        store.extend(session, [header(session), message("x"), picture(b"1")])
    before = stamped(store)
    history = store.export_history("s1")
    store.export_folder("s1", tmp_path)
    looks: list[object] = [store.read("s1"), store.tail("s1", 1), store.page("s1"), store.get("s1")]
    looks += [store.attachments("s1"), [*store.verify()], store.append("s1", header())]
    assert stamped(store) == before
    store.import_history(history, cwd="/w", id="s3")
    assert [found.id for found in store.list()] == ["s3", "s2", "s1"]


def test_updated_never_goes_back(begun: SQLStore) -> None:
    ahead = datetime(2999, 1, 1, tzinfo=UTC)
    with begun._database.engine.begin() as connection:
        row = sessions.c.namespace == begun._scope.namespace
        connection.execute(update(sessions).where(row).values(updated_at=ahead))
    for batch in ([message("x")], messages(2)):
        begun.extend("s1", batch)
        assert stamped(begun)[0][1] == ahead


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_times_are_instants_whatever_zone_the_machine_and_the_server_are_set_to(
    server_or_file: Backend, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_or_file.store()
    url = server_or_file.url
    if server_or_file.is_postgres:
        settings = "-c timezone=Asia/Kathmandu -c datestyle=SQL,DMY"
        url = url.update_query_dict({"options": settings})
    with monkeypatch.context() as patch, SQLStore(url) as store:
        patch.setenv("TZ", zone)
        time.tzset()
        store.append("s1", header(created_at="2026-11-30T17:30:00.123+05:30"))
        store.append("s2", header("s2"))
        [later, found] = store.list()
        assert found.created_at == "2026-11-30T12:00:00.123Z"
        assert found.updated is not None
        assert found.updated.tzinfo is UTC
        assert abs(found.updated - datetime.now(UTC)) < timedelta(minutes=5)
        assert store.list(before=later) == [found]
        exact = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=5.5)))
        with store._database.engine.begin() as connection:
            connection.execute(update(sessions).values(updated_at=exact))
        assert [h.updated for h in store.list()] == [exact, exact]
        assert store.list(before=store.list()[0]) == [found]
        assert [*store.verify()] == []
    time.tzset()


# namespaces


def test_namespaces_share_nothing_but_the_engine(store: SQLStore) -> None:
    spaces = [
        store._scope.namespace + end for end in ("", "a", "A", "%", "_", "é", "e\u0301", " ", "\n")
    ]
    stores = [store.with_namespace(space) for space in spaces]
    entries = [[header(), picture(b"same"), message(repr(space))] for space in spaces]
    before = counts(store)
    for one, batch in zip(stores, entries, strict=True):
        assert one.extend("s1", batch, idempotency_keys=["h", "p", "m"]) == 2
    assert counts(store)["turnkeep_blobs"] == before["turnkeep_blobs"] + len(spaces)
    for one, batch in zip(stores, entries, strict=True):
        assert one.read("s1") == batch
        assert one.list() == one.list("/w") == batch[:1]
        assert one.delete("s1")
        assert not one.delete("s1")
        assert one.read("s1") == one.list() == one.attachments("s1") == []
    assert counts(store) == before


def test_the_empty_namespace_is_one_as_any_other(shared_store: SQLStore, store: SQLStore) -> None:
    before = counts(store)
    shared_store.extend("s1", [header(), picture(b"1")])
    assert store.read("s1") == []
    assert shared_store.with_namespace("").read("s1") == [header(), picture(b"1")]
    assert store.with_namespace("").delete("s1")
    assert counts(store) == before


@impossible(but="empty")
def test_an_impossible_namespace_is_refused(store: SQLStore, key: Any, fault: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        store.with_namespace(key)
    assert str(caught.value) == f"namespace: {fault}"
    with pytest.raises(InvalidArgument) as caught:
        SQLStore("sqlite://", namespace=key)
    assert str(caught.value) == f"namespace: {fault}"


# limits


def limited(store: SQLStore, **limits: int) -> SQLStore:
    """A store of *store*'s namespace with other limits."""
    engine = store._database.engine
    return SQLStore(engine, namespace=store._scope.namespace, limits=Limits(**limits))


def test_an_entry_may_be_as_large_as_its_limit(begun: SQLStore) -> None:
    size = len(message("é").payload.encode()) - 2
    store = limited(begun, entry=size + 1000)
    assert store.append("s1", message("é" * 500)) == 3
    assert store.append("s1", picture(b"x" * 2000)) == 4  # attachments are not counted
    for entry in (message("é" * 500 + "x"), header("s2", title="x" * 2000)):
        session = "s2" if isinstance(entry, Header) else "s1"
        with nothing_written(begun), pytest.raises(InvalidEntry, match="the limit is") as caught:
            store.append(session, entry)
        assert caught.value.path == "$"
    with nothing_written(begun), pytest.raises(InvalidEntry) as caught:
        store.extend("s1", [message("x"), message("é" * 501)])
    assert str(caught.value) == f"$[1]: an entry of {size + 1002} bytes: the limit is {size + 1000}"


def test_unless_told_an_entry_may_have_64_mib_and_an_attachment_256(begun: SQLStore) -> None:
    assert Limits() == Limits(entry=64 << 20, attachment=256 << 20)
    with nothing_written(begun), pytest.raises(InvalidEntry, match=r"the limit is 67108864$"):
        begun.append("s1", message("x" * (64 << 20)))


@pytest.mark.slow
@pytest.mark.parametrize("size", [64 << 20, 128 << 20])
def test_the_largest_entry_and_a_large_attachment_come_back(begun: SQLStore, size: int) -> None:
    largest = message("x" * (size - len(message("").payload)))
    entry = largest if size == 64 << 20 else picture(bytes(size))
    assert begun.append("s1", entry) == 3
    assert begun.tail("s1", 1) == [entry]
    assert begun.append("s1", message("after")) == 4
    assert begun.delete("s1")


def test_an_attachment_may_be_as_large_as_its_limit(begun: SQLStore) -> None:
    store = limited(begun, attachment=1000)
    assert store.append("s1", picture(b"x" * 1000)) == 3
    with nothing_written(begun), pytest.raises(InvalidEntry) as caught:
        store.extend("s1", [message("x"), picture(b"x" * 1001)])
    assert "an attachment of 1001 bytes: the limit is 1000" in str(caught.value)
    assert caught.value.path.startswith("$[1]")


# Ids that can't be


@impossible()
def test_an_impossible_id_is_unknown(begun: SQLStore, key: Any, fault: str) -> None:
    with nothing_written(begun):
        assert begun.read(key) == begun.tail(key, 5) == begun.attachments(key) == []
        assert begun.page(key) == Page([], None, None)
        assert begun.get(key) is None
        assert begun.delete(key) is False


@impossible()
def test_an_impossible_id_is_refused_at_a_write(begun: SQLStore, key: Any, fault: str) -> None:
    given: list[list[Entry]] = [[message("x")], [header()], messages(2), []]
    for entries in given:
        with nothing_written(begun), pytest.raises(InvalidArgument) as caught:
            begun.extend(key, entries)
        assert str(caught.value) == f"id: {fault}"
    for entry in (message("x"), header()):
        with nothing_written(begun), pytest.raises(InvalidArgument) as caught:
            begun.append(key, entry)
        assert str(caught.value) == f"id: {fault}"


@impossible(but="None")
def test_an_impossible_key_is_refused(begun: SQLStore, key: Any, fault: str) -> None:
    for entry in (message("x"), header()):
        with nothing_written(begun), pytest.raises(InvalidArgument) as caught:
            begun.append("s1", entry, idempotency_key=key)
        assert str(caught.value) == f"idempotency_key: {fault}"
        with nothing_written(begun), pytest.raises(InvalidArgument) as caught:
            begun.extend("s1", [entry, message("y")], idempotency_keys=["k", key])
        assert str(caught.value) == f"idempotency_key: {fault}"


def test_ids_and_keys_may_be_of_255_bytes(store: SQLStore) -> None:
    for session in ("z" * 255, "é" * 127 + "z", "\U0001f600" * 63 + "zzz"):
        assert store.append(session, header(session), idempotency_key=session) == 0
        assert store.append(session, message("x"), idempotency_key=session.upper()) == 1
        assert store.read(session) == [header(session), message("x")]
        assert store.with_namespace(session).read(session) == []


# Bad input


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def cycle() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


def failing(*first: Entry) -> Iterator[Entry]:
    yield from first
    raise KeyError("the caller's own")


Write = Callable[[SQLStore], object]
BAD: dict[str, tuple[Write, type[Exception], str]] = {
    "entry without session": (
        lambda store: store.append("s2", message("x")),
        UnknownSession,
        "no session 's2': append its Header first",
    ),
    "entries without session": (
        lambda store: store.extend("s2", messages(2)),
        UnknownSession,
        "no session 's2': append its Header first",
    ),
    "another header": (
        lambda store: store.append("s1", header(title="t")),
        SessionExists,
        "session 's1' exists with another header",
    ),
    "another header and more": (
        lambda store: store.extend("s1", [header(model="n"), message("x")]),
        SessionExists,
        "session 's1' exists with another header",
    ),
    "header in the middle": (
        lambda store: store.extend("s1", [message("x"), header()]),
        InvalidEntry,
        "$[1]: a Header comes first, and once",
    ),
    "two headers": (
        lambda store: store.extend("s2", [header("s2"), header("s2")]),
        InvalidEntry,
        "$[1]: a Header comes first, and once",
    ),
    "header of another id": (
        lambda store: store.append("s2", header("s1")),
        InvalidEntry,
        "$.id: is not the id of the session, 's2'",
    ),
    "header of another id and more": (
        lambda store: store.extend("s2", [header("s1"), message("x")]),
        InvalidEntry,
        "$[0].id: is not the id of the session, 's2'",
    ),
    "dict": (
        lambda store: store.append("s1", message("x").to_dict()),  # type: ignore[arg-type]
        InvalidEntry,
        "$: is an Entry, not dict: Entry.from_dict makes one",
    ),
    "None": (
        lambda store: store.append("s1", None),  # type: ignore[arg-type]
        InvalidEntry,
        "$: is an Entry, not NoneType: Entry.from_dict makes one",
    ),
    "class": (
        lambda store: store.append("s1", ModelEntry),  # type: ignore[arg-type]
        InvalidEntry,
        "$: is an Entry, not type: Entry.from_dict makes one",
    ),
    "dict among entries": (
        lambda store: store.extend("s1", [message("x"), {"role": "user"}]),  # type: ignore[list-item]
        InvalidEntry,
        "$[1]: is an Entry, not dict: Entry.from_dict makes one",
    ),
    "one entry for several": (
        lambda store: store.extend("s1", message("x")),  # type: ignore[arg-type]
        InvalidArgument,
        "entries: is an iterable of entries, not MessageEntry",
    ),
    "no entries": (
        lambda store: store.extend("s1", None),  # type: ignore[arg-type]
        InvalidArgument,
        "entries: is an iterable of entries, not NoneType",
    ),
    "NaN": (
        lambda store: store.append("s1", MessageEntry({"a": [1, {"b": float("nan")}]})),
        InvalidEntry,
        "$.message.a[1].b: nan is not JSON: leave it out or write null or a string",
    ),
    "infinity": (
        lambda store: store.append("s1", MessageEntry({"a b": -float("inf")})),
        InvalidEntry,
        '$.message["a b"]: -inf is not JSON: leave it out or write null or a string',
    ),
    "bytes": (
        lambda store: store.append("s1", MessageEntry({"data": b"\xff"})),
        InvalidEntry,
        "$.message.data: builtins.bytes is not a JSON type: convert it",
    ),
    "cycle": (
        lambda store: store.append("s1", MessageEntry({"x": cycle()})),
        InvalidEntry,
        "$.message.x[0].again: refers to itself",
    ),
    "201 levels": (
        lambda store: store.append("s1", MessageEntry({"x": nested(200)})),
        InvalidEntry,
        f"$.message.x{'[0]' * 199}: nested deeper than 200 levels",
    ),
    "lazy NaN": (
        lambda store: store.extend(
            "s1", (MessageEntry({"n": number}) for number in (1.0, float("nan")))
        ),
        InvalidEntry,
        "$.message.n: nan is not JSON: leave it out or write null or a string",
    ),
    "failing generator": (
        lambda store: store.extend("s1", failing(message("x"), picture(b"1"))),
        KeyError,
        '"the caller\'s own"',
    ),
    "failing generator of a new session": (
        lambda store: store.extend("s2", failing(header("s2"), message("x"))),
        KeyError,
        '"the caller\'s own"',
    ),
    "too few keys": (
        lambda store: store.extend("s1", messages(2), idempotency_keys=["k"]),
        InvalidArgument,
        "idempotency_keys: is a list of one for each entry: 2",
    ),
    "keys without entries": (
        lambda store: store.extend("s1", [], idempotency_keys=["k"]),
        InvalidArgument,
        "idempotency_keys: is a list of one for each entry: 0",
    ),
    "text for keys": (
        lambda store: store.extend("s1", messages(2), idempotency_keys="ab"),
        InvalidArgument,
        "idempotency_keys: is a list of one for each entry: 2",
    ),
    "number for keys": (
        lambda store: store.extend("s1", messages(2), idempotency_keys=2),  # type: ignore[arg-type]
        InvalidArgument,
        "idempotency_keys: is a list of one for each entry: 2",
    ),
    "a key twice": (
        lambda store: store.extend("s1", messages(3), idempotency_keys=["k", None, "k"]),
        InvalidArgument,
        "idempotency_keys: one stands twice",
    ),
    "after and before": (
        lambda store: store.page("s1", after=0, before=5),
        InvalidArgument,
        "before: goes without after: a page lies behind or in front of one",
    ),
    "page of nothing": (
        lambda store: store.page("s1", limit=0),
        InvalidArgument,
        "limit: is at least 1",
    ),
    "list behind no header": (
        lambda store: store.list(before="s1"),  # type: ignore[arg-type]
        InvalidArgument,
        "before: is a Header that list() gave, the last one seen",
    ),
    "list behind a header of one's own": (
        lambda store: store.list(before=header()),
        InvalidArgument,
        "before: is a Header that list() gave, the last one seen",
    ),
    "cwd of bytes": (
        lambda store: store.list(b"/w"),  # type: ignore[arg-type]
        InvalidArgument,
        "cwd: is a str or None, not bytes",
    ),
    "cwd of a path": (
        lambda store: store.list(Path("/w")),  # type: ignore[arg-type]
        InvalidArgument,
        "cwd: is a str or None, not PosixPath",
    ),
}
NUMBERS: dict[str, Callable[[SQLStore, Any], object]] = {
    "count": lambda store, number: store.tail("s1", number),
    "after": lambda store, number: store.page("s1", after=number),
    "before": lambda store, number: store.page("s1", before=number),
    "limit": lambda store, number: store.page("s1", limit=number),
    "limit ": lambda store, number: store.list(limit=number),
    "expected_position": lambda store, number: store.append(
        "s1", message("x"), expected_position=number
    ),
    "expected_position ": lambda store, number: store.extend(
        "s1", messages(2), expected_position=number
    ),
    "expected_position  ": lambda store, number: store.extend("s1", [], expected_position=number),
}


@pytest.mark.parametrize(("call", "kind", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_a_typed_error_and_writes_nothing(
    begun: SQLStore, call: Write, kind: type[Exception], said: str
) -> None:
    with nothing_written(begun), pytest.raises(kind) as caught:
        call(begun)
    assert type(caught.value) is kind
    assert str(caught.value) == said


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (-1, "is not negative"),
        (-HUGE, "is not negative"),
        (True, "is an int, not bool"),
        (1.0, "is an int, not float"),
        ("1", "is an int, not str"),
    ],
)
def test_a_number_is_a_count_or_a_typed_error(
    begun: SQLStore, name: str, number: Any, fault: str
) -> None:
    with nothing_written(begun), pytest.raises(InvalidArgument) as caught:
        NUMBERS[name](begun, number)
    assert str(caught.value) == f"{name.strip()}: {fault}"


# From JSONL


def test_all_sessions_of_a_jsonl_home_read_back_equal(store: SQLStore, tmp_path: Path) -> None:
    lines: dict[str, list[Any]] = {
        "-/plain": [header("plain", cwd="").to_dict(), message("x", EARLY).to_dict()],
        "home-me-my-app/rich": [
            header("rich", cwd="/home/me/my app", title="ä").to_dict(),
            *(entry.to_dict() for entry in (picture(b"1", EARLY), picture(b"1", LATE))),
            {"type": "message", "message": {"b": -0.0, "a": [10**30, 1e16, "\ud83d", "\0"]}},
            {"type": "message", "message": "not an object", "recorded_at": "noon"},
            {"type": "model", "model": "n", "recorded_at": LATER},
            {"type": "label", "label": {"text": "from a newer version"}, "extra": None},
            {"type": "header", "id": "rich"},
        ],
        "home-me-my-app/bare": [header("bare", cwd="/home/me/my app").to_dict()],
        "w/damaged": [
            header("damaged").to_dict(),
            "{",
            message("y").to_dict(),
            "[1]",
            '{"type": "me',
        ],
    }
    for name, records in lines.items():
        path = tmp_path / ".riffer" / "sessions" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [record if isinstance(record, str) else json.dumps(record) for record in records]
        path.write_text("\n".join(texts) + "\n")
    home = JSONLStore(tmp_path)
    listed = home.list()
    assert len(listed) == len(lines)
    for found in listed:
        entries = home.read(found.id)
        assert store.extend(found.id, entries) == len(entries) - 1
        assert store.read(found.id) == entries
    assert len(store.read("rich")) == 8
    assert {*store.list()} == {*listed}
    for cwd in ("", "/home/me/my app", "/w"):
        assert {*store.list(cwd)} == {*home.list(cwd)} != set()
