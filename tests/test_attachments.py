"""Attachments through the store: they come back exactly, lie there once, and go with their user.

What bytes are lifted, and what not, is tested in `test_lifting`; here it is what becomes of them.
What many do to them at once is in `test_sharing`.
"""

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import Backend
from contention import header, said
from inspection import EMPTY, counts, orphans, raw, statements
from messages import PNG, SHAPES, b64, expected, messages, without_bytes
from turnkeep import (
    AttachmentInfo,
    Conflict,
    Corrupt,
    Entry,
    InvalidEntry,
    Limits,
    MessageEntry,
    ModelEntry,
    SQLStore,
    UnknownEntry,
    UnknownSession,
    sql,
)
from turnkeep.payload import Json, JsonObject
from turnkeep.prepared import Prepared

SECRET = "hush-4711"
PNG_URI = "data:image/png;base64," + b64(PNG)
A, B = b"first" * 50, b"second" * 50

_numbers = itertools.count()
looked = partial(said, "look")


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


DEEP: Json = [PNG_URI]
for _ in range(98):
    DEEP = {"k" * 50: [DEEP]}

EXACTLY: list[JsonObject] = [
    {"b": [2**63, 10**30, 10**4300 - 1, -0.0, 1e16, 1.0, True], "a": {"": {}, "aa": [[]]}},
    {"\0": "\0", "\u2028": "\x7f\ufffe", "half": "\ud83d", "\ude00": {"data": PNG_URI}},
    {"half": "\ud83d", "mime": "a/b", "data": "AA==", "name": "x\0", "odd": {"$ref": "AA=="}},
    {"nested": DEEP},
]


@given(given=st.lists(messages(), min_size=1, max_size=3))
@example(given=EXACTLY)
@settings(max_examples=50)
def test_any_message_comes_back_exactly(shared_store: SQLStore, given: list[JsonObject]) -> None:
    """By every way of reading, and without the bytes, whose digest stands there then."""
    store = shared_store.with_namespace(f"any-{next(_numbers)}")
    entries: list[Entry] = [*map(MessageEntry, given), UnknownEntry("note", {"note": given[0]})]
    light = [*map(without_bytes, given), {"note": without_bytes(given[0])}]
    store.extend("s", [header("s"), *entries])
    last = len(entries)

    assert store.read("s")[1:] == entries
    assert store.tail("s", last) == entries
    assert store.page("s").entries[1:] == entries
    for position in range(1, last + 1):
        assert store.page("s", after=position - 1, limit=1).entries == entries[position - 1 :][:1]
        assert store.page("s", before=position + 1, limit=1).entries == [entries[position - 1]]
    for read in (
        store.read("s", attachments=False)[1:],
        store.tail("s", last, attachments=False),
        store.page("s", attachments=False).entries[1:],
        store.page("s", before=last + 1, limit=last, attachments=False).entries,
    ):
        assert [
            entry.message if isinstance(entry, MessageEntry) else entry.to_dict()
            for entry in read[:-1]
        ] == light[:-1]
        assert isinstance(read[-1], UnknownEntry)
        assert repr(read[-1].data) == repr(light[-1])

    found = [
        (position, len(item.data), digest(item.data))
        for position, lifted in enumerate([*given, given[0]], start=1)
        for item in expected(lifted)
    ]
    assert [(a.position, a.size, a.digest) for a in store.attachments("s")] == found
    assert store.delete("s")
    assert store.attachments("s") == []


def test_every_framework_s_attachments_are_listed(store: SQLStore) -> None:
    entries = [MessageEntry(shape.message) for shape in SHAPES]
    store.extend("s", [header("s"), *entries])
    assert store.read("s")[1:] == entries
    assert store.attachments("s") == [
        AttachmentInfo(position, mime, filename, len(data), digest(data))
        for position, shape in enumerate(SHAPES, start=1)
        for mime, filename, data in shape.lifted
    ]
    assert store.attachments("nobody") == store.attachments("no\0body") == []


def test_bytes_lie_there_once_in_a_namespace(backend: Backend) -> None:
    """Whatever the media type and name, the spelling, the entry or the session say of them."""
    store = backend.store()
    several = MessageEntry(
        {
            "files": [
                {"mime": "application/json", "filename": "a.json", "data": b64(b"{}")},
                {"mime": "text/plain", "filename": "b.txt", "data": b64(b"{}")},
                {"url": "data:text/csv;base64," + b64(b"{}")},
            ]
        }
    )
    for name in ("s1", "s2"):
        store.extend(name, [header(name), several, looked(b"{}", A), looked()])
        store.append(name, MessageEntry({"mime": "x/y", "bytes": b64(b"{}")}))
    assert store.read("s2")[1:3] == [several, looked(b"{}", A)]
    assert [a.mime for a in store.attachments("s1")] == [
        "application/json",
        "text/plain",
        "text/csv",
        "image/png",
        "image/png",
        "x/y",
    ]
    assert [a.filename for a in store.attachments("s2")][:3] == ["a.json", "b.txt", None]
    stored = raw(store, "SELECT namespace, digest, size, data FROM turnkeep_blobs ORDER BY size")
    assert [(n, bytes(d).hex(), size, bytes(data)) for n, d, size, data in stored] == [
        ("", digest(b"{}"), 2, b"{}"),
        ("", digest(A), len(A), A),
    ]
    other = store.with_namespace("other")
    other.extend("s1", [header("s1"), several])
    assert counts(store)["blobs"] == 3, "another namespace has bytes of its own"
    assert store.delete("s1")
    assert store.delete("s2")
    assert other.read("s1")[1:] == [several]
    assert other.delete("s1")
    assert counts(store) == EMPTY


def test_what_others_use_stays_and_what_nobody_uses_goes(backend: Backend) -> None:
    store = backend.store()
    if backend.name == "borrowed":
        assert raw(store, "PRAGMA foreign_keys") == [(0,)], "a host's engine enforces none"
    nested = UnknownEntry("result", {"content": [{"x": {"mime": "a/b", "bytes": b64(A)}}]})
    store.extend("s1", [header("s1"), looked(A, A), looked(B), nested, looked(b"")])
    store.extend("s2", [header("s2"), looked(A), looked(b"", b"")])
    assert store.delete("s1")
    assert store.read("s2")[1:] == [looked(A), looked(b"", b"")]
    assert counts(store) == {"sessions": 1, "entries": 3, "blobs": 2, "attachments": 3}
    assert orphans(store) == []
    store.extend("s1", [header("s1"), looked(B, A)])
    assert store.delete("s2")
    assert store.read("s1")[1:] == [looked(B, A)]
    assert store.delete("s1")
    assert not store.delete("s1")
    assert counts(store) == EMPTY


def test_an_entry_may_hold_many_attachments_and_large_ones(backend: Backend) -> None:
    store = backend.store()
    many = [number.to_bytes(2) for number in range(1200)]
    large = random.Random(1).randbytes(3 << 20)
    store.append("s", header("s"))
    store.append("s", looked(*many, large))
    store.extend("s", [looked(*many[::-1]), looked(large, *many)])
    assert store.read("s")[1:] == [
        looked(*many, large),
        looked(*many[::-1]),
        looked(large, *many),
    ]
    assert counts(store) == {"sessions": 1, "entries": 4, "blobs": 1201, "attachments": 3602}
    assert store.delete("s")
    assert counts(store) == EMPTY


def test_a_write_that_fails_leaves_no_bytes(backend: Backend) -> None:
    store = backend.store(limits=Limits(attachment=len(A)))
    with pytest.raises(UnknownSession):
        store.append("s", looked(A))
    assert counts(store) == EMPTY
    store.append("s", header("s"), idempotency_key="h")
    writes: list[Callable[[], object]] = [
        lambda: store.append("s", looked(A), expected_position=1),
        lambda: store.append("s", looked(A), idempotency_key="h"),
        lambda: store.extend("s", [looked(A), ModelEntry("m")], expected_position=7),
        lambda: store.extend("s", [looked(A), looked(b"")], idempotency_keys=["h", "i"]),
        lambda: store.extend("s", [looked(A), header("s")]),
        lambda: store.extend("s", [looked(A), looked(A + b"!")]),
    ]
    for write in writes:
        with pytest.raises((Conflict, InvalidEntry)):
            write()
    engine = backend.engine()
    with engine.connect() as connection:
        if backend.is_memory:
            connection.execution_options(isolation_level="SERIALIZABLE")
        store.using(connection).append("s", looked(A))
        assert store.using(connection).read("s")[1:] == [looked(A)]
        connection.rollback()
    assert counts(store) == {"sessions": 1, "entries": 1, "blobs": 0, "attachments": 0}
    assert store.append("s", looked(A)) == 1
    assert store.read("s") == [header("s"), looked(A)]


def test_a_key_names_the_bytes_too(backend: Backend) -> None:
    """Two messages that differ in an attachment alone leave the same payload, and are not equal."""
    store = backend.store()
    store.append("s", header("s"))
    for _ in range(2):
        assert store.append("s", looked(A, B), idempotency_key="k") == 1
        assert store.extend("s", [looked(A), looked(B)], idempotency_keys=["l", "m"]) == 3
    for other in (looked(B, A), looked(A, A), looked(A), looked(A, B, A), looked()):
        with pytest.raises(Conflict):
            store.append("s", other, idempotency_key="k")
        with pytest.raises(Conflict):
            store.extend("s", [looked(A), other], idempotency_keys=["l", "m"])
    assert counts(store) == {"sessions": 1, "entries": 4, "blobs": 2, "attachments": 4}


DAMAGE = {
    "a byte is flipped": "UPDATE turnkeep_blobs SET data = :flipped WHERE digest = :b",
    "bytes are cut off": "UPDATE turnkeep_blobs SET data = :cut WHERE digest = :b",
    "the blob is gone": "DELETE FROM turnkeep_blobs WHERE digest = :b",
    "the reference is gone": "DELETE FROM turnkeep_attachments WHERE digest = :b",
    "there are two references": (
        "INSERT INTO turnkeep_attachments SELECT namespace, session_id, position, 9, path, digest,"
        " mime, filename FROM turnkeep_attachments WHERE digest = :b"
    ),
    "the count is higher": "UPDATE turnkeep_entries SET attachments = 3 WHERE position = 3",
    "the count is lower": "UPDATE turnkeep_entries SET attachments = 1 WHERE position = 3",
    "the path leads nowhere": (
        """UPDATE turnkeep_attachments SET path = '["message","x"]' WHERE digest = :b"""
    ),
    "the path leads into a text": (
        """UPDATE turnkeep_attachments SET path = '["message","role",0]' WHERE digest = :b"""
    ),
    "the path is no path": "UPDATE turnkeep_attachments SET path = 'x' WHERE digest = :b",
    "the payload is no JSON": "UPDATE turnkeep_entries SET payload = '{' WHERE position = 3",
    "the payload is no object": "UPDATE turnkeep_entries SET payload = '[]' WHERE position = 3",
}
OF_BYTES = ["a byte is flipped", "bytes are cut off", "the blob is gone"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_corrupt_and_named(shared_store: SQLStore, damage: str) -> None:
    """By session, position and digest; and it harms nobody who doesn't read it."""
    store = shared_store.with_namespace(damage)
    flipped = bytes([B[0] ^ 1]) + B[1:]
    damaged = said(SECRET, A, B)
    before = [header("s"), said("hello"), said(SECRET, A)]
    store.extend("s", [*before, damaged, looked(A)])
    store.extend("t", [header("t"), looked(A)])
    statement = f"{DAMAGE[damage]} AND namespace = :namespace"
    values = {"flipped": flipped, "cut": B[:-1], "b": sha256(B).digest(), "namespace": damage}
    raw(store, statement, **{k: v for k, v in values.items() if f":{k}" in statement})

    readers: list[Callable[..., object]] = [
        lambda **options: store.read("s", **options),
        lambda **options: store.tail("s", 2, **options),
        lambda **options: store.page("s", after=2, **options),
        lambda **options: store.page("s", before=4, limit=1, **options),
    ]
    for read in readers:
        with pytest.raises(Corrupt) as corrupt:
            read()
        error = corrupt.value
        assert (error.session, error.position) == ("s", 3)
        assert SECRET not in str(error)
        if damage in OF_BYTES:
            assert error.path == "$.message.files[1].data"
            assert digest(B) in str(error)
            read(attachments=False)
        else:
            with pytest.raises(Corrupt) as corrupt:
                read(attachments=False)
            assert (corrupt.value.session, corrupt.value.position) == ("s", 3)
    assert store.page("s", limit=3).entries == before
    assert store.tail("s", 1) == [looked(A)]
    assert store.read("t") == [header("t"), looked(A)]
    assert store.append("s", looked(B)) == 5
    assert store.delete("s")


def test_only_sessions_with_attachments_pay_for_them(
    backend: Backend, request: pytest.FixtureRequest
) -> None:
    store = backend.store()
    plain = [said("data:;base64, and no more"), ModelEntry("m")]
    store.extend("s", [header("s"), *plain])
    store.extend("t", [header("t"), looked(A, B), looked(A)])
    reads: list[Callable[..., object]] = [store.read]
    reads += [lambda name, **options: store.tail(name, 5, **options), store.page]
    for read in reads:
        with statements(store, request) as seen:
            read("s")
        assert len(seen) == 1, seen
        with statements(store, request) as seen:
            read("t")
        assert len(seen) == 2, seen
        with statements(store, request) as seen:
            read("t", attachments=False)
        assert len(seen) == 1, seen
        assert "turnkeep_blobs" not in seen[0]
    calls: list[Callable[[], object]] = [
        lambda: store.append("s", plain[0]),
        lambda: store.extend("s", plain),
        lambda: store.append("s", plain[0], idempotency_key="k"),
        lambda: store.append("s", plain[0], idempotency_key="k"),
        lambda: store.get("t"),
        lambda: store.list("/w"),
    ]
    for call in calls:
        with statements(store, request) as seen:
            call()
        assert seen
        assert not re.search("turnkeep_blobs|INTO turnkeep_attachments", " ".join(seen))
    with statements(store, request) as seen:
        store.attachments("t")
    assert len(seen) == 1
    assert not re.search(r"\bdata\b", seen[0]), "a listing reads no bytes"
    with statements(store, request) as seen:
        store.delete("s")
    assert not any("turnkeep_blobs" in statement for statement in seen)


def test_no_blob_is_fetched_that_is_not_returned(
    backend: Backend, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = backend.store()
    datas = [bytes([number]) * 9 for number in range(6)]
    store.extend("s", [header("s"), *map(looked, datas), looked(A), looked(*datas, *datas)])
    store.extend("t", [header("t"), looked(B)])
    fetched: list[bytes] = []
    fetches: list[Prepared] = []
    fetch = Prepared.fetch

    def watched(self: Prepared, *arguments: Any) -> list[Any]:
        rows = fetch(self, *arguments)
        if self is sql.BLOBS:
            fetches.append(self)
            fetched.extend(bytes(data) for _, data in rows)
        return rows

    monkeypatch.setattr(Prepared, "fetch", watched)
    reads: list[tuple[Callable[[], object], list[bytes]]] = [
        (lambda: store.page("s", after=1, limit=3), datas[1:4]),
        (lambda: store.page("s", before=2, limit=1), datas[:1]),
        (lambda: store.page("s", limit=1), []),
        (lambda: store.tail("s", 2), [*datas, A]),
        (lambda: store.tail("s", 0), []),
        (lambda: store.read("t"), [B]),
        (lambda: store.read("s"), [*datas, A]),
        (lambda: store.read("s", attachments=False), []),
    ]
    for read, wanted in reads:
        fetched.clear()
        fetches.clear()
        with statements(store, request) as seen:
            read()
        assert Counter(fetched) == Counter(wanted), "each once, and no other"
        assert sum("turnkeep_blobs" in statement for statement in seen) == len(fetches)


def test_bytes_that_are_known_are_not_sent_again(
    backend: Backend, request: pytest.FixtureRequest
) -> None:
    store = backend.store()
    data = random.Random(2).randbytes(50_000)
    store.extend("s", [header("s"), entry := looked(data)])
    with statements(store, request) as seen:
        store.append("s", entry)
        store.append("s", looked(data, A))
    assert sum(map(len, seen)) < 20_000
    with statements(store, request) as seen:
        store.with_namespace("other").extend("s", [header("s"), entry])
    assert sum(map(len, seen)) > 50_000, "by this account bytes that are sent do show"


def test_limits_are_those_of_the_entry_and_of_each_attachment(backend: Backend) -> None:
    """An entry is measured in bytes without its attachments; what is at the limit passes."""

    def entry(more: int, *datas: int) -> MessageEntry:
        files: Any = [{"media_type": "a/b", "data": b64(bytes(length))} for length in datas]
        return MessageEntry({"content": "é" * (more // 2), "files": files})

    limit = len('{"message":{"content":"","files":[{"media_type":"a/b","data":""}]}}') + 200
    store = backend.store(limits=Limits(entry=limit, attachment=10))
    store.append("s", header("s"))
    assert store.append("s", entry(200, 10)) == 1
    refused: list[Callable[[], object]] = [
        lambda: store.append("s", entry(202, 10)),
        lambda: store.append("s", entry(200, 11)),
        lambda: store.append("s", entry(0, 10, 10, 11)),
        lambda: store.extend("s", [entry(200, 10), entry(200, 11)]),
        lambda: store.extend("s", [entry(200, 10), entry(202, 0)]),
        lambda: store.append("s", UnknownEntry("x", {"a": "b" * limit})),
        lambda: store.append("t", header("t", title="t" * limit)),
    ]
    paths = []
    for write in refused:
        with pytest.raises(InvalidEntry, match=r"the limit is (10|267)$") as error:
            write()
        paths.append(error.value.path)
    assert paths == [
        "$",
        "$.message.files[0].data",
        "$.message.files[2].data",
        "$[1].message.files[0].data",
        "$[1]",
        "$",
        "$",
    ]
    assert store.read("s") == [header("s"), entry(200, 10)]
    assert counts(store) == {"sessions": 1, "entries": 2, "blobs": 1, "attachments": 1}
