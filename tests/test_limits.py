"""How large what is stored may be: at the limit it is, one byte above it is an error that names the
place, and then nothing is written; on every backend, and in files.
"""

import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from conftest import BACKENDS, Backend
from contention import together
from hosts import Host, failing
from inspection import EMPTY, counts, orphans, statements
from turnkeep import (
    Attachment,
    Conflict,
    Header,
    History,
    InvalidArgument,
    InvalidEntry,
    JSONLStore,
    Limits,
    Message,
    MessageEntry,
    SQLStore,
    TurnkeepError,
    UnknownEntry,
    import_history,
)
from turnkeep.folder import FolderReader
from turnkeep.lifting import MAX_NOTE, MAX_PATH, lift
from turnkeep.limits import MAX_BYTES

FIELDS = ("entry", "attachment", "attachments", "header")


def header(id: str = "s", **fields: str) -> Header:
    given = {"id": id, "cwd": "/w", "created_at": "2026-11-30T12:00:00Z", "model": "m"}
    return Header(**(given | fields))  # type: ignore[arg-type]


def said(text: str = "", *files: bytes) -> MessageEntry:
    """A message of a user, with *files*, whose bytes are kept apart from it."""
    message: dict[str, Any] = {"role": "user", "content": text}
    if files:
        datas = [b64encode(file).decode() for file in files]
        message["files"] = [{"media_type": "a/b", "data": data} for data in datas]
    return MessageEntry(message)


# What can be a limit


@pytest.mark.parametrize("name", FIELDS)
def test_a_limit_is_a_number_that_both_databases_can_hold(name: str) -> None:
    most = 1 << 40 if name == "attachments" else MAX_BYTES
    for good in (1, most):
        assert getattr(Limits(**{name: good}), name) == good
    bad: tuple[Any, ...] = (0, -1, most + 1, 2**63, True, 1.0, "1", None)
    for given in bad:
        with pytest.raises(InvalidArgument) as caught:
            Limits(**{name: given})
        reason = f"is a whole number of bytes from 1 to {most}"
        assert str(caught.value) == f"limits.{name}: {reason}"


def test_limits_are_limits_for_files_too(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^limits: is Limits, not int$"):
        JSONLStore(tmp_path, limits=5)  # type: ignore[arg-type]


# At the limit, and above


@pytest.fixture(params=[*BACKENDS, "files"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Limits], Any]:
    """Makes a store with limits, on each kind of database and in files."""
    if request.param == "files":
        return lambda limits: JSONLStore(tmp_path, limits=limits)
    names = {"postgres": "postgres_url", "memory": None}
    name = names.get(request.param, "sqlite_url")
    url = URL.create("sqlite") if name is None else request.getfixturevalue(name)
    backend = Backend(request.param, url, borrowed=request.param == "borrowed")
    request.addfinalizer(backend.close)  # noqa: PT021 (the fixture returns before)
    return lambda limits: backend.store(limits=limits)


def refused(reason: str, path: str, call: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(InvalidEntry) as caught:
        call(*arguments)
    assert (caught.value.path, caught.value.reason) == (path, reason)


SIZE = len(said().payload)
UNKNOWN = len(UnknownEntry("odd", {"a": ""}).payload)
HEADER = len(header().payload)


def test_an_entry_has_the_bytes_of_its_limit_at_the_most(
    make: Callable[[Limits], Any],
) -> None:
    """Of UTF-8, however it is written, and its attachments are not counted."""
    store = make(Limits(entry=SIZE + 400))
    kept = [header(), said("x" * 399), said("é" * 200), said("\0" * 66 + "x" * 4)]
    kept += [said("x" * 300, b"y" * 500), UnknownEntry("odd", {"a": "x" * (SIZE - UNKNOWN + 400)})]
    for entry in kept:
        store.append("s", entry)
    for entry, size in [
        (said("x" * 401), SIZE + 401),
        (said("é" * 200 + "x"), SIZE + 401),
        (said("\0" * 67), SIZE + 402),
        (UnknownEntry("odd", {"a": "x" * (SIZE - UNKNOWN + 401)}), SIZE + 401),
    ]:
        reason = f"an entry of {size} bytes: the limit is {SIZE + 400}"
        refused(reason, "$", store.append, "s", entry)
    assert store.read("s") == kept


def test_a_header_has_the_bytes_of_its_limit_at_the_most(make: Callable[[Limits], Any]) -> None:
    """Or those of an entry's, if these are less."""
    for number, limits in enumerate(
        (Limits(header=HEADER + 100), Limits(entry=HEADER + 100, header=HEADER + 200))
    ):
        store = make(limits)
        name = str(number)
        store.append(name, header(name, title="x" * 100))
        store.append(name, said("x" * (HEADER + 100 - SIZE)))
        for fields in ({"title": "x" * 101}, {"cwd": "/w" + "x" * 101}, {"model": "é" * 51}):
            other = header(name, **fields)
            size = len(other.payload.encode())
            reason = f"a header of {size} bytes: the limit is {HEADER + 100}"
            refused(reason, "$", store.append, name, other)
        assert len(store.read(name)) == 2
    assert len(make(Limits()).list("/w")) == 2


def test_an_attachment_has_the_bytes_of_its_limit_at_the_most(
    make: Callable[[Limits], Any],
) -> None:
    store = make(Limits(attachment=10))
    kept = [header(), said("", b"x" * 9), said("", b"x" * 10, b"y" * 10)]
    for entry in kept:
        store.append("s", entry)
    reason = "an attachment of 11 bytes: the limit is 10"
    refused(reason, "$.message.files[1].data", store.append, "s", said("", b"x", b"x" * 11))
    assert store.read("s") == kept


def test_the_attachments_of_an_entry_have_the_bytes_of_their_limit_together_at_the_most(
    make: Callable[[Limits], Any],
) -> None:
    """One that occurs twice counts twice."""
    store = make(Limits(attachments=30))
    kept = [header(), said("", b"x" * 10, b"y" * 10, b"z" * 10), said("", *[b"x" * 15] * 2)]
    for entry in kept:
        store.append("s", entry)
    reason = "31 bytes of attachments in one entry: the limit is 30"
    for files in ((b"x" * 10, b"y" * 10, b"z" * 11), (b"x", b"x" * 15, b"x" * 15)):
        entry = said("", *files)
        refused(reason, "$.message.files[2].data", store.append, "s", entry)
    assert store.read("s") == kept


def test_an_entry_has_so_many_attachments_at_the_most(
    make: Callable[[Limits], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeep.limits.MAX_COUNT", 3)
    store = make(Limits())
    kept = [header(), said("", b"a", b"b"), said("", b"a", b"b", b"c")]
    for entry in kept:
        store.append("s", entry)
    reason = "an entry of 4 attachments: the limit is 3"
    refused(reason, "$", store.append, "s", said("", *[b"a"] * 4))
    assert store.read("s") == kept


def test_of_several_entries_the_one_that_is_too_large_is_named_and_none_is_written(
    backend: Backend,
) -> None:
    limits = Limits(entry=SIZE + 200, attachment=10, attachments=15, header=HEADER + 10)
    store = backend.store(limits=limits)
    big = f"an entry of {SIZE + 201} bytes: the limit is {SIZE + 200}"
    long = f"a header of {HEADER + 11} bytes: the limit is {HEADER + 10}"
    for entries, reason, path in [
        ([header(title="x" * 11), said()], long, "$[0]"),
        ([header(), said("x" * 200), said("x" * 201)], big, "$[2]"),
        (
            [header(), said(), said("", b"x" * 11)],
            "an attachment of 11 bytes: the limit is 10",
            "$[2].message.files[0].data",
        ),
        (
            [header(), said("", b"x" * 8, b"y" * 8)],
            "16 bytes of attachments in one entry: the limit is 15",
            "$[1].message.files[1].data",
        ),
    ]:
        refused(reason, path, store.extend, "s", entries)
    assert counts(store) == EMPTY


def test_what_a_store_takes_a_file_takes_and_the_other_way_round(
    backend: Backend, tmp_path: Path
) -> None:
    """So a session can be copied from one to the other."""
    limits = Limits(entry=SIZE + 20, attachment=12, attachments=18, header=HEADER + 5)
    stores: list[Any] = [backend.store(limits=limits), JSONLStore(tmp_path, limits=limits)]
    outcomes: list[list[str]] = [[], []]
    texts, files = ("", "x" * 20, "x" * 21), ((), (b"x" * 12,), (b"x" * 13,), (b"x" * 9,) * 2)
    entries: list[Any] = [header(title="x" * 6), header()]
    entries += [said(text, *some) for text in texts for some in (*files, (b"x" * 7,) * 3)]
    for store, outcome in zip(stores, outcomes, strict=True):
        for entry in entries:
            try:
                outcome.append(str(store.append("s", entry)))
            except TurnkeepError as error:
                outcome.append(str(error))
    assert outcomes[0] == outcomes[1]
    assert len({*outcomes[0]}) > 5
    assert stores[0].read("s") == stores[1].read("s")


# Batches that are more than one statement takes


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeep.sql.BATCH", 10_000)


TEXTS = [said(f"{n} {'x' * (n * 100)}") for n in range(30)]
BATCH = [said(f"{n} {'x' * (n * 100)}", *[b"%d" % n] * (n % 3)) for n in range(30)]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("files", [False, True])
def test_a_batch_of_more_than_one_statement_is_one_all_the_same(
    backend: Backend, keyed: bool, files: bool, request: pytest.FixtureRequest
) -> None:
    store = backend.store()
    store.append("s", header())
    batch = BATCH if files else TEXTS
    keys = [f"key {n}" for n in range(30)] if keyed else None
    with pytest.raises(Conflict):
        store.extend("s", batch, idempotency_keys=keys, expected_position=1)
    if backend.is_postgres:
        with statements(store, request) as seen:
            assert store.extend("s", batch, idempotency_keys=keys, expected_position=0) == 30
        assert 4 < len([each for each in seen if "INSERT INTO turnkeep_entries" in each]) < 30
    else:
        assert store.extend("s", batch, idempotency_keys=keys, expected_position=0) == 30
    assert store.read("s") == [header(), *batch]
    if keyed:
        assert store.extend("s", batch, idempotency_keys=keys) == 30
        with pytest.raises(Conflict):
            store.extend("s", batch, idempotency_keys=["new", *keys[1:]])  # type: ignore[index]
    assert store.extend("t", [header("t"), *batch], idempotency_keys=keys and ["h", *keys]) == 30
    assert store.read("t")[1:] == batch
    assert orphans(store) == []


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("position", [1, 15, 30])
def test_a_batch_of_several_statements_that_fails_in_one_of_them_leaves_nothing(
    request: pytest.FixtureRequest, sqlite_url: Any, position: int
) -> None:
    for url in (sqlite_url, request.getfixturevalue("postgres_url")):
        host = Host(url)
        host.store.append("new", header("new"))
        before = host.dump()
        how = "RAISE EXCEPTION 'x'" if host.is_postgres else "RAISE(ABORT, 'x')"
        fault = f"INSERT entries WHERE NEW.position = {position}"
        with failing(host, fault, how), pytest.raises(TurnkeepError, match="refused"):
            host.store.extend("new", TEXTS)
        assert host.dump() == before
        assert host.store.extend("new", TEXTS) == 30
        host.close()


@pytest.mark.usefixtures("small_batches")
def test_batches_of_several_statements_do_not_weave(backend: Backend) -> None:
    store = backend.store()
    store.append("s", header())
    batches = [[said(f"{who}.{n} {'x' * 3000}") for n in range(10)] for who in range(4)]
    lasts = together(*[partial(store.extend, "s", batch) for batch in batches])
    found = store.read("s")
    assert len(found) == 41
    for batch, last in zip(batches, lasts, strict=True):
        assert found[last - 9 : last + 1] == batch


def test_one_batch_may_have_thousands_of_keys(store: SQLStore) -> None:
    """More than one statement takes in a list."""
    count = 2001
    entries = [header(), *(said(str(n)) for n in range(count))]
    keys = [f"{n} " + "k" * 250 for n in range(count + 1)]
    assert store.extend("s", entries, idempotency_keys=keys) == count
    assert store.extend("s", entries, idempotency_keys=keys) == count
    with pytest.raises(Conflict):
        store.extend("s", [*entries[1:], said("x")], idempotency_keys=[*keys[1:], "new"])
    assert len(store.read("s")) == count + 1


# What stands once in a message and would stand in the database a thousand times


def amplified(**beside: Any) -> MessageEntry:
    many = [{"data": b64encode(b"%d" % n).decode(), "mime": "a/b", **beside} for n in range(1000)]
    return MessageEntry({"role": "user", "content": many})


def test_a_path_that_is_longer_than_any_framework_s_lifts_nothing(store: SQLStore) -> None:
    picture = {"mime": "a/b", "data": b64encode(b"picture").decode()}
    frame = len('["message","","data"]')
    for key, lifts in [
        ("k" * (MAX_PATH - frame), True),
        ("k" * (MAX_PATH - frame + 1), False),
        ("é" * ((MAX_PATH - frame) // 6), True),  # as \u00e9
        ("é" * ((MAX_PATH - frame) // 6 + 1), False),
        ("k" * 1_000_000, False),
    ]:
        entry = MessageEntry({key: picture})
        assert len(lift(entry.payload)[1]) == lifts
        store.extend("s", [header(), entry])
        assert store.read("s")[1:] == [entry]
        assert len(store.attachments("s")) == lifts
        store.delete("s")


def test_what_a_thousand_attachments_share_is_not_written_a_thousand_times() -> None:
    many = [{"data": b64encode(b"%d" % n).decode(), "mime": "a/b"} for n in range(1000)]
    uris = {f"{n}": f"data:a/b;base64,{b64encode(b'%d' % n).decode()}" for n in range(1000)}
    for message in (
        {"k" * 100_000: many},
        {"a": [{"k" * 50_000: {"k" * 50_000: many}}]},
        {"name": "n" * 100_000, **uris},
        {"mime": "m/" + "m" * 100_000, "x": [{"data": "AA==", "base64": "AA==", "bytes": "AA=="}]},
    ):
        payload = MessageEntry(message).payload
        stays, lifted = lift(payload)
        texts = [[each.path, each.mime or "", each.filename or ""] for each in lifted]
        assert sum(len(text) for each in texts for text in each) < 100_000
        assert len(stays) <= len(payload)


def test_a_name_and_a_media_type_are_noted_up_to_a_length(store: SQLStore) -> None:
    for length, mime, name in [
        (MAX_NOTE, "a/" + "m" * (MAX_NOTE - 2), "n" * MAX_NOTE),
        (MAX_NOTE + 1, None, None),
    ]:
        file = {"data": "AA==", "media_type": "a/" + "m" * (length - 2), "filename": "n" * length}
        entry = MessageEntry({"role": "user", "content": "", "files": [file]})
        store.extend("s", [header(), entry])
        [found] = store.attachments("s")
        assert (found.mime, found.filename) == (mime, name)
        assert store.read("s")[1] == entry
        store.delete("s")


# Histories


def history(*attachments: Attachment) -> History:
    return History(
        messages=(Message(id="1", role="user", content="", attachments=tuple(attachments)),)
    )


def test_an_import_holds_to_the_limits_before_it_writes(backend: Backend, tmp_path: Path) -> None:
    store = backend.store(limits=Limits(attachment=100, attachments=150, header=HEADER + 200))
    big = Attachment("a/b", "x", b"x" * 101)
    good = Attachment("a/b", "x", b"x" * 75)
    reasons = []
    for number, given in enumerate((history(big), history(good, good, good))):
        calls = [
            partial(store.import_history, given, cwd="/w"),
            partial(store.import_folder, given.save(tmp_path / str(number)), cwd="/w"),
        ]
        for call in calls:
            with pytest.raises(InvalidEntry) as caught:
                call()
            assert caught.value.path.startswith("$[1]")
            reasons.append(caught.value.reason)
    large = "an attachment of 101 bytes: the limit is 100"
    many = "225 bytes of attachments in one entry: the limit is 150"
    assert reasons == [large, large, many, many]
    for imports in (store.import_history, partial(import_history, store)):
        with pytest.raises(InvalidEntry, match=rf"^\$: a header of \d+ bytes: .* {HEADER + 200}$"):
            imports(History(), cwd="/w", title="x" * 500)
    assert counts(store) == EMPTY
    assert store.export_history(store.import_history(history(good, good), cwd="/w")) == history(
        good, good
    )


def test_an_attachment_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """A file may say a size that no disk has."""
    folder = history(Attachment("a/b", "x.bin", b"x")).save(tmp_path)
    [file] = (folder / "attachments").iterdir()
    os.truncate(file, 1 << 42)
    with SQLStore("sqlite://") as store:
        reason = f"an attachment of {1 << 42} bytes: the limit is {256 << 20}"
        refused(reason, "$[1]", partial(store.import_folder, cwd="/w"), folder)
        assert store.list() == []


def test_a_file_that_a_message_names_often_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor again for the next message."""
    picture = Attachment("a/b", "x.bin", b"x" * 1000)
    messages = [
        Message(id=str(n), role="user", content="", attachments=(picture,) * 50) for n in range(5)
    ]
    folder = History(messages=tuple(messages)).save(tmp_path)
    reads = []
    attachment = FolderReader.attachment

    def noted(reader: FolderReader, file: str) -> tuple[bytes, str]:
        reads.append(file)
        return attachment(reader, file)

    monkeypatch.setattr(FolderReader, "attachment", noted)
    with SQLStore("sqlite://") as store:
        id = store.import_folder(folder, cwd="/w")
        assert [*store.export_history(id).messages] == messages
        assert counts(store)["blobs"] == 1
    assert len(reads) == 1


# Numbers and times


def test_a_list_goes_on_from_either_end_of_time(store: SQLStore) -> None:
    store.append("s", header())
    [seen] = store.list()
    ends = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    assert [store.list(before=replace(seen, updated=end)) for end in ends] == [[], [seen]]
    for end in (
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))),
    ):
        with pytest.raises(InvalidArgument, match=r"^before: "):
            store.list(before=replace(seen, updated=end))


def test_a_directory_has_no_limit_but_the_header_s(store: SQLStore) -> None:
    cwd = "/" + "é/" * 300_000
    store.append("s", header(cwd=cwd))
    assert [each.id for each in store.list(cwd)] == ["s"]
    assert store.list(cwd + "x") == store.list("/" + "x" * 50_000_000) == []


# In full


LARGE = """
import resource, sys
from turnkeep import Header, MessageEntry, SQLStore

entry = MessageEntry({"role": "user", "content": "x" * (60 << 20)})
header = Header(id="s", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")
with SQLStore(sys.stdin.readline(), migrate=True) as store:
    assert store.extend("s", [header, *[entry] * 20]) == 20
    for position in (1, 20):
        [found] = store.page("s", after=position - 1, limit=1).entries
        assert found == entry
    assert store.get("s").last_position == 20
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.slow
def test_a_batch_of_more_than_a_message_of_postgres_is_one(server_or_file: Backend) -> None:
    """Twenty entries of 60 MiB."""
    url = server_or_file.url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-c", LARGE], input=url, text=True, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\n", done.stdout)
