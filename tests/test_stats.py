"""How much a namespace holds, to the byte, and what it costs to say so."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from sqlalchemy.dialects import sqlite

from conftest import Backend
from contention import said
from inspection import raw, statements
from retaining import POOL, Past, aged, own_namespace, pasts, remember, with_files
from turnkeep import DirectoryUsage, SQLStore, Stats, Usage
from turnkeep.dialect.statements import Bytes
from turnkeep.tables import entries


def usage(pasts: Iterable[Past]) -> Usage:
    """What some sessions come to."""
    given = list(pasts)
    times = [past.updated for past in given]
    places = [place for past in given for place in past.places]
    return Usage(
        sessions=len(given),
        entries=sum(1 + len(past.entries) for past in given),
        bytes=sum(past.payload for past in given),
        attachments=len(places),
        attachment_bytes=sum(size for _, size in places),
        stored_bytes=sum(dict(places).values()),
        oldest=min(times, default=None),
        newest=max(times, default=None),
    )


@settings(max_examples=60)
@given(pasts=pasts)
def test_everything_is_counted_in_all_and_by_directory(
    shared_store: SQLStore, pasts: list[Past]
) -> None:
    store = own_namespace(shared_store)
    remember(store, pasts)
    by_cwd = [
        DirectoryUsage(cwd=cwd, **vars(usage(past for past in pasts if past.cwd == cwd)))
        for cwd in {past.cwd for past in pasts}
    ]
    by_cwd.sort(key=lambda each: (-(each.bytes + each.stored_bytes), each.cwd))
    assert store.stats() == Stats(by_cwd=by_cwd, **vars(usage(pasts)))
    store.erase_namespace()


def test_what_sharing_saves_is_what_would_be_there_twice(store: SQLStore) -> None:
    a, b = POOL[1], POOL[2]
    remember(store, [with_files(aged(0), a, b), with_files(aged(1, cwd="/b"), a, a)])
    stats = store.stats()
    assert (stats.attachments, stats.attachment_bytes) == (4, 3 * len(a) + len(b))
    assert (stats.stored_bytes, stats.saved_bytes) == (len(a) + len(b), 2 * len(a))
    first, second = stats.by_cwd
    assert (first.cwd, first.stored_bytes, first.saved_bytes) == ("/a", len(a) + len(b), 0)
    assert (second.cwd, second.stored_bytes, second.saved_bytes) == ("/b", len(a), len(a))


def test_only_this_namespace_is_counted(store: SQLStore) -> None:
    """Though others have the same ids, directories and bytes."""
    all_of_them = [with_files(aged(i), POOL[0]) for i in range(3)]
    for number, name in enumerate(["", "other", "third"]):
        remember(store.with_namespace(name), all_of_them[number:])
    for number, name in enumerate(["", "other", "third"]):
        mine = vars(usage(all_of_them[number:]))
        directory = DirectoryUsage(cwd="/a", **mine)
        assert store.with_namespace(name).stats() == Stats(by_cwd=[directory], **mine)


def test_bytes_that_no_attachment_names_are_not_counted(store: SQLStore) -> None:
    """Though another namespace has them: `collect_orphans` says how many they are."""
    for name in ("", "other"):
        remember(store.with_namespace(name), [with_files(aged(0), POOL[0])])
    raw(store, "DELETE FROM turnkeep_attachments WHERE namespace = ''")
    assert (store.stats().attachments, store.stats().stored_bytes) == (0, 0)
    assert store.with_namespace("other").stats().stored_bytes == len(POOL[0])


def test_an_empty_namespace_has_nothing(store: SQLStore) -> None:
    remember(store.with_namespace("other"), [aged(0)])
    assert store.stats() == Stats(0, 0, 0, 0, 0, 0, None, None, [])


def test_texts_are_counted_in_bytes_of_utf8_on_both(store: SQLStore) -> None:
    remember(store, [Past("s", "/ä", 0, (said("é€\U0001f600" * 1000),))])
    plain = Past("s", "/ä", 0, (said(""),))
    assert store.stats().bytes == plain.payload + 1000 * (2 + 3 + 4)


def test_no_byte_of_an_attachment_is_read(
    server_or_file: Backend, request: pytest.FixtureRequest
) -> None:
    """And the number of statements is the same, whatever there is."""
    store = server_or_file.store()
    costs = []
    for count in (1, 30):
        many = [aged(i, f"{count}.{i}", cwd=f"/{i % 7}", entries=5) for i in range(count)]
        remember(store, [with_files(past, POOL[i % 3]) for i, past in enumerate(many)])
        store.stats()
        with statements(store, request) as seen:
            store.stats()
        costs.append(sum("FROM turnkeep_" in each for each in seen))
        assert not [each for each in seen if "turnkeep_blobs.data" in each]
    assert costs == [4, 4]


@pytest.mark.parametrize(
    ("version", "text"),
    [((3, 35, 0), "length(CAST(turnkeep_entries.payload AS BLOB))"),
     ((3, 43, 0), "octet_length(turnkeep_entries.payload)")],
)  # fmt: skip
def test_sqlite_tells_the_size_of_a_text_without_reading_it_where_it_can(
    version: tuple[int, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", version)
    assert str(Bytes(entries.c.payload).compile(dialect=sqlite.dialect())) == text
