"""A session that is larger than the memory goes to a folder and back, as a History would."""

import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine

from conftest import Backend
from histories import call, full, histories, result, user, values
from large import measured
from test_transcript import ENTRIES, EVERYWHERE, any_message
from turnkeep import (
    Conflict,
    Entry,
    Header,
    HistoryError,
    InvalidEntry,
    Limits,
    MessageEntry,
    SessionExists,
    SQLStore,
    Unavailable,
    UnknownSession,
    history_stream,
    json_stream,
    sql,
)
from turnkeep.dialect import Again
from turnkeep.folder import FolderReader
from turnkeep.history import Attachment, History
from turnkeep.json_stream import Items, JsonStream, NotJson
from turnkeep.message_json import decode
from turnkeep.payload import encode_again

HEADER = Header(id="s1", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")
PICTURE = Attachment("image/png", "a.png", b"\x89PNG" * 20)
numbers = itertools.count()


def files(folder: Path) -> dict[str, bytes]:
    """The files anywhere in *folder*, with their bytes."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def long(count: int = 40, word: str = "x") -> History:
    """A history of many messages, in which attachments come again and again."""
    made = []
    for number in range(0, count, 4):
        other = Attachment("a/b", f"{number}", f"{word}{number % 3}".encode() * 30)
        made += [
            user(f"u{number}", f"{word} {number}", attachments=(PICTURE,)),
            call(f"c{number}", f"call{number}", model_id="some-model"),
            result(f"r{number}", f"call{number}", word, attachments=(other, PICTURE)),
            user(f"k{number}", word, kind="reference"),
        ]
    return History(messages=tuple(made[:count]))


@pytest.fixture
def either(server_or_file: Backend) -> SQLStore:
    """A store on an empty database of either kind, where more of a kind would tell nothing new."""
    return server_or_file.store()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions are as small as they can be, so that all that lies between them is met."""
    monkeypatch.setattr(sql, "PORTION", 300)
    monkeypatch.setattr(history_stream, "NOTE_EVERY", 5)
    monkeypatch.setattr("turnkeep.folder_calls.NOTE_EVERY", 5)
    monkeypatch.setattr(json_stream, "_LEAST", 7)


# JSON, read in portions


def whole(text: bytes) -> Any:
    """The value of *text* as the stream gives it."""
    stream = JsonStream(io.BytesIO(text), "it")
    found: dict[str, Any] = {}
    for key, value in stream.members():
        if not isinstance(value, Items):
            found[key] = value
        elif value.kind is list:
            found[key] = list(value)
        else:
            found[key] = "an object"
    assert stream.digest == sha256(text).digest()
    return exact(found if stream.kind is dict else stream.kind.__name__)


def exact(value: Any) -> str:
    """A text that is another for 1 and 1.0, and for another order of keys."""
    return encode_again(value)


def simplified(value: Any) -> str:
    """What `whole` gives of *value*: objects in the top level are walked through only."""
    if not isinstance(value, dict):
        return exact(type(value).__name__)
    return exact({k: "an object" if isinstance(i, dict) else i for k, i in value.items()})


@st.composite
def layouts(draw: st.DrawFn) -> bytes:
    """A JSON text of some value, laid out in some way."""
    value = draw(values | st.dictionaries(st.sampled_from(["a", "messages", ""]), values))
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 0, 2, "\t", "\r\n "])),
        separators=draw(st.sampled_from([(",", ":"), (" ,\n", "\t: "), (", ", ": ")])),
    ).encode("utf-8", "backslashreplace")
    around = st.text(" \t\r\n", max_size=20).map(str.encode)
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + draw(around) + text + draw(around)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(text=layouts(), least=st.sampled_from([1, 2, 3, 10, 1000]))
def test_a_text_of_any_layout_has_the_same_value(
    text: bytes, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "_LEAST", least)
    assert whole(text) == simplified(decode(text))


class Counted(io.BytesIO):
    """A file that counts how often it is read."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        return super().read(size)


@pytest.mark.parametrize(
    "value", ['"' + "x" * 500_000 + '"', "[" + "1," * 200_000 + "1]", "9" * 4000]
)
def test_a_long_value_is_read_in_few_steps(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is looked for anew after each, which would be quadratic."""
    monkeypatch.setattr(json_stream, "_LEAST", 8)
    file = Counted(f'{{"a": [{value}]}}'.encode())
    assert (
        sum(len(list(v)) for _, v in JsonStream(file, "it").members() if isinstance(v, Items)) == 1
    )
    assert file.reads < 30


DEEP = sys.getrecursionlimit()
DEPTHS = [1, 300, *range(DEEP - 16, DEEP + 3), DEEP * 100]
TRICKY = [
    b"", b" ", b"\xef\xbb", b"\xef\xbb\xbf", b"{", b"}", b"[", b"[}", b"{]", b"{}", b"[]", b"{}{}",
    b"{} x", b"[1,]", b"[,1]", b"[1 2]", b"{,}", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{"a" 1}',
    b'{"a":1 "b":2}', b'{1:2}', b'{"a":[}', b'{"a":[1}]}', b'{"a":{"b":1]}', b'{"a":[1],"a":2}',
    b'{"a":1}\x0b', b'{"a":tru}', b'{"a":nul', b'{"a":01}', b'{"a":1.}', b'{"a":-}', b'{"a":NaN}',
    b'{"b":[{"c":NaN}]}', b'{"a":-Infinity}', b'{"a":1e999}', b'{"a":[1e999]}', b'{"a":"\\"',
    b'{"a":"\\\\"}', b'{"a":"\\ud83d"}', b'{"\\ud83d":["\\ude00"]}', b'{"\\u0061":1}',
    b'{"a":"\xff"}', b'{"a":["\xed\xa0\xbd"]}', b'{"a":"\x00"}', b'{"a":"\n"}', b'{"a\n":1}',
    b'{"a":"[{"}',
    b'{"a":["}\\"]"]}', b'"a"', b'"a', b"5", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"\x00",
    b'{"a":{"b":1,"b":[2]}}', b'{"a":{"b":}}', b'{"a":{b:1}}', b"\\", b'{"a":"x":1}', b'{"a":[1]2}',
    b'{"a":[1]]}', b'{"a":1:2}', b'{"a"::1}', b'{"":""}', b"\xff\xfe{\x00}\x00",
    *(b'{"a":' + b"[" * depth + b"]" * depth + b"}" for depth in DEPTHS),
    *(b'{"a":{"b":{"c":' + b"[" * depth + b"]" * depth + b"}}}" for depth in DEPTHS),
    *(b'[{"c":' + b"[" * depth + b"]" * depth + b"}]" for depth in DEPTHS),
]  # fmt: skip


@pytest.mark.parametrize("least", [1, 5, 1 << 16])
def test_what_is_no_json_is_refused_for_both(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_LEAST", least)
    for text in TRICKY:
        try:
            wanted = simplified(decode(text))
        except HistoryError:
            with pytest.raises(NotJson):
                whole(text)
        else:
            assert whole(text) == wanted


def test_an_error_tells_where_it_is_and_not_what_is_there() -> None:
    no_word = "is not JSON: leave it out or write null or a string"
    for text, said in [
        (b'{"a": [1, {"x": NaN}]}', f"$.a[1].x: nan {no_word}"),
        (b'{"a": {"b": -Infinity}}', f"$.a.b: -inf {no_word}"),
        (b'{"a": NaN}', f"$.a: nan {no_word}"),
        (b'{"a": [1, "secret\xff"]}', "it is not UTF-8: byte 17"),
        ('{"ü": ["ü", secret]}'.encode(), "Expecting value: byte 14"),
        (b'{"a": ["secret"', "it ends too early: byte 15"),
        (b'{"a": "secret', "it ends too early: byte 6"),
        (b'{"a": 1 "secret"}', "a comma or a bracket is missing: byte 8"),
        (b'{"a": 1, secret}', "a key and a colon are missing: byte 9"),
        (b'{"a": 1} secret', "there is more behind its end: byte 9"),
        (b'{"a": [,]}', "a value is missing: byte 7"),
    ]:  # fmt: skip
        with pytest.raises(NotJson) as caught:
            whole(text)
        assert str(caught.value) == said
        assert caught.value.__context__ is None  # which would hold the text


# A folder like that of a History


@settings(max_examples=25)
@given(history=histories())
@example(history=full())
@example(history=EVERYWHERE)
@example(history=History())
def test_a_session_goes_to_a_folder_and_back_as_a_history_does(
    history: History, shared_store: SQLStore, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = shared_store.with_namespace(f"there-{next(numbers)}")
    made = store.import_history(history, cwd="/w", recorded_at="2026-11-30T12:00:00Z")
    one, other = (tmp_path_factory.mktemp("folder") for _ in range(2))
    assert store.export_folder(made, one) == one
    history.save(other)
    assert files(one) == files(other)
    back = store.import_folder(one, cwd="/x", recorded_at="2026-11-30T12:00:00Z")
    assert store.export_history(back) == history
    assert store.read(back)[1:] == store.read(made)[1:]
    header, first = store.get(back), store.get(made)
    assert header is not None
    assert first is not None
    assert (header.title, header.model, header.cwd) == (first.title, first.model, "/x")
    again = [(a.position, a.mime, a.filename, a.digest) for a in store.attachments(back)]
    assert again == [(a.position, a.mime, a.filename, a.digest) for a in store.attachments(made)]


@pytest.mark.usefixtures("small")
def test_portions_make_no_difference(store: SQLStore, tmp_path: Path) -> None:
    history = long()
    made = store.import_history(history, cwd="/w")
    history.save(tmp_path / "wanted")
    store.export_folder(made, tmp_path / "found")
    assert files(tmp_path / "found") == files(tmp_path / "wanted")
    back = store.import_folder(tmp_path / "found", cwd="/w")
    assert store.read(back)[1:] == store.read(made)[1:]
    assert store.export_history(back) == history


@settings(max_examples=25)
@given(entries=st.lists(any_message.map(MessageEntry) | ENTRIES, max_size=8))
def test_whatever_is_stored_goes_to_a_folder_as_it_goes_to_a_history(
    entries: list[Entry], shared_store: SQLStore, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = shared_store.with_namespace(f"odd-{next(numbers)}")
    store.extend("s1", [HEADER, *entries])
    one, other = (tmp_path_factory.mktemp("folder") for _ in range(2))
    lossy: list[str] = []
    wanted: list[str] = []
    store.export_history("s1", lossy=wanted).save(other)
    store.export_folder("s1", one, lossy=lossy)
    assert (files(one), lossy) == (files(other), wanted)
    if wanted:
        with pytest.raises(HistoryError) as caught:
            store.export_folder("s1", other)
        assert str(caught.value) == f"{wanted[0]}: pass lossy=[] to go on without it"
        assert files(one) == files(other)


def test_the_folder_and_the_arguments_are_those_of_a_history(
    either: SQLStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = either.import_history(full(), cwd="/w")
    assert either.export_folder(made, "~/c") == tmp_path / "home" / "c"
    assert either.export_folder(made, "relative") == tmp_path / "relative"
    told = {"title": "T", "model": "", "created_at": "2026-01-01T00:00:00Z"}
    assert either.import_folder("relative", cwd="/x", id="told", **told) == "told"  # type: ignore[arg-type]
    assert either.get("told") == Header(id="told", cwd="/x", model="", title="T",
                                       created_at="2026-01-01T00:00:00Z")  # fmt: skip
    with pytest.raises(HistoryError, match=r"^no history\.json in ~/c$"):
        either.import_folder("~/c", cwd="/x")
    for door in (lambda path: either.export_folder(made, path),
                 lambda path: either.import_folder(path, cwd="")):  # fmt: skip
        for odd in (None, "a\0b", 5):
            with pytest.raises(HistoryError, match=r"^dir: "):
                door(odd)
    for name in ("unknown", "", "\0", "x" * 300):
        with pytest.raises(UnknownSession):
            either.export_folder(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "told",
    [{"cwd": "\0"}, {"id": ""}, {"model": "\0"}, {"created_at": "noon"}, {"recorded_at": "noon"}],
    ids=str,
)
def test_arguments_that_cannot_stand_in_an_entry_are_refused(
    told: dict[str, Any], either: SQLStore, tmp_path: Path
) -> None:
    either.import_history(long(), cwd="/w", id="s1")
    given: dict[str, Any] = {"cwd": "/w", "id": "s1", "replace": True, **told}
    with pytest.raises(InvalidEntry):
        either.import_folder(full().save(tmp_path), **given)
    assert either.export_history("s1") == long()


def test_a_session_that_is_there_gives_way_only_when_told(store: SQLStore, tmp_path: Path) -> None:
    store.import_history(long(), cwd="/w", id="s1")
    folder = full().save(tmp_path)
    with pytest.raises(SessionExists):
        store.import_folder(folder, cwd="/w", id="s1")
    assert store.export_history("s1") == long()
    assert store.import_folder(folder, cwd="/w", id="s1", replace=True) == "s1"
    assert store.export_history("s1") == full()
    assert {a.digest for a in store.attachments("s1")} == {
        a.digest for m in full().messages for a in m.attachments
    }


@pytest.mark.usefixtures("small")
def test_a_message_that_is_too_large_is_named_and_nothing_is_left(
    backend: Backend, tmp_path: Path
) -> None:
    store = backend.store(limits=Limits(entry=2000, attachment=85))
    large = Attachment("image/png", "a", bytes(86))
    for number, message, place in [
        (1, user("last", "x" * 2000), "$[41]"),
        (2, user("last", attachments=(PICTURE, large)), "$[41]"),
    ]:
        history = History(messages=(*long(40).messages, message))
        with pytest.raises(InvalidEntry) as caught:
            store.import_folder(history.save(tmp_path / f"{number}"), cwd="/w")
        assert caught.value.path == place
    assert store.list() == []
    store.import_folder(long(40).save(tmp_path / "3"), cwd="/w")


# Folders that others have made


def refused(store: SQLStore, folder: Path) -> str:
    with pytest.raises(HistoryError) as caught:
        store.import_folder(folder, cwd="/w")
    assert store.list() == []
    return str(caught.value)


def test_of_a_key_that_occurs_twice_the_last_counts(sqlite_url: Any, tmp_path: Path) -> None:
    good = long(8).to_json()[1:-1].replace('"version": 1,', "")
    bad = '"messages": [{"id": ""}, {"id": 5, "attachments": [{"file": "../x"}]}]'
    with SQLStore(sqlite_url) as store:
        for number, (text, is_good) in enumerate([
            (f'{{"version": 1, {bad}, {good}}}', True),
            (f'{{"version": 2, "messages": 5, {good}, "version": 1, "x": {{"a": 5}}}}', True),
            (f'{{{good}, "version": {{}}, "version": 1, "x": [{{}}], "y": []}}', True),
            (f'{{"version": 1, {good}, {bad}}}', False),
            (f'{{"version": 1, {good}, "messages": {{}}}}', False),
            (f'{{"version": 1, {good}, "messages": null}}', False),
            (f'{{"version": 1, {good}, "version": [1]}}', False),
            (f'{{"version": 1, "{"messages"}x": 5}}', False),
            (f'[{{"version": 1, {good}}}]', False),
        ]):  # fmt: skip
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "history.json").write_text(text)
            if is_good:
                assert History.load(folder) == long(8)
                assert store.export_history(store.import_folder(folder, cwd="/w")) == long(8)
            else:
                with pytest.raises(HistoryError) as caught:
                    History.load(folder)
                with pytest.raises(HistoryError) as again:
                    store.import_folder(folder, cwd="/w")
                assert str(again.value) == str(caught.value)


def test_what_is_wrong_in_the_folder_is_said_as_load_says_it(
    either: SQLStore, tmp_path: Path
) -> None:
    name = f"attachments/{PICTURE.stored_name}"
    outside = tmp_path / "outside"
    outside.write_bytes(PICTURE.bytes)
    breaks: list[Callable[[Path], object]] = [
        lambda folder: (folder / "history.json").unlink(),
        lambda folder: (folder / "history.json").write_text('{"version": 1, "messages": [{'),
        lambda folder: os.truncate(folder / "history.json", 1000),
        lambda folder: _replaced(folder / "history.json", os.mkfifo),
        lambda folder: _replaced(folder / "history.json", lambda file: file.symlink_to(outside)),
        lambda folder: (folder / name).unlink(),
        lambda folder: (folder / name).write_bytes(b"changed"),
        lambda folder: _replaced(folder / name, lambda file: file.symlink_to(outside)),
        lambda folder: _replaced(folder / name, os.mkfifo),
        lambda folder: _replaced(folder / name, lambda file: file.mkdir()),
        lambda folder: (folder / "attachments").rename(folder / "elsewhere"),
    ]
    for number, spoil in enumerate(breaks):
        folder = long().save(tmp_path / str(number))
        spoil(folder)
        with pytest.raises(HistoryError) as caught:
            History.load(folder)
        said = refused(either, folder)
        if "not valid JSON" in said:
            assert said.partition(": ")[0] == str(caught.value).partition(": ")[0]
        else:
            assert said == str(caught.value)


def _replaced(file: Path, make: Callable[[Path], object]) -> None:
    file.unlink()
    make(file)


def test_an_attachment_that_many_messages_name_is_read_once_to_be_checked(
    either: SQLStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a small folder keeps the import busy for days."""
    folder = History(messages=tuple(user(str(n), attachments=(PICTURE,)) for n in range(50))).save(
        tmp_path
    )
    read = []
    digest = FolderReader.digest

    def noted(reader: FolderReader, file: str) -> str:
        read.append(file)
        return digest(reader, file)

    monkeypatch.setattr(FolderReader, "digest", noted)
    either.import_folder(folder, cwd="/w")
    assert len(read) == 1


# What happens meanwhile


@pytest.mark.usefixtures("small")
def test_progress_is_told_and_what_it_raises_leaves_nothing_behind(
    either: SQLStore, tmp_path: Path
) -> None:
    history = long(40)
    either.extend("s1", [HEADER, *[MessageEntry({"role": "user", "content": "x"})] * 40])
    tmp_path = tmp_path / "folders"
    told: list[tuple[int, int | None]] = []
    either.export_folder("s1", tmp_path / "1", progress=lambda *now: told.append(now))
    assert told[-1] == (40, 40)
    assert told == sorted(told)
    assert len(told) > 5
    assert {total for _, total in told} == {40}
    told.clear()
    folder = history.save(tmp_path / "2")
    either.import_folder(folder, cwd="/w", id="s2", progress=lambda *now: told.append(now))
    steps = range(5, 41, 5)
    assert told == [*((n, None) for n in steps), *((n, 40) for n in steps)]

    def stop(at: tuple[int, int | None]) -> Callable[[int, int | None], None]:
        def progress(*now: int | None) -> None:
            if now == at:
                raise KeyboardInterrupt

        return progress

    before = files(tmp_path)
    headers = either.list()
    for at in [(5, None), (40, None), (5, 40), (40, 40)]:
        with pytest.raises(KeyboardInterrupt):
            either.import_folder(folder, cwd="/w", id="s1", replace=True, progress=stop(at))
    for where in ("2", "3"):
        with pytest.raises(KeyboardInterrupt):
            either.export_folder("s1", tmp_path / where, progress=stop((40, 40)))
    assert files(tmp_path) == before
    assert [(h.id, h.last_position) for h in either.list()] == [
        (h.id, h.last_position) for h in headers
    ]
    assert either.export_history("s2") == history


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("small")
def test_no_file_stays_open(
    sqlite_url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLStore(sqlite_url) as store:
        store.import_history(long(), cwd="/w", id="s1")
        folder = long().save(tmp_path / "folder")
        store.import_folder(folder, cwd="/w")
        before = open_files()
        store.export_folder("s1", tmp_path / "out")
        with pytest.raises(KeyboardInterrupt) as first:  # whose frames live on
            store.export_folder("s1", tmp_path / "out", progress=_interrupt)
        calls, portion = itertools.count(), sql.portion

        def fail(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == 5:
                raise Unavailable("gone")
            return portion(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(sql, "portion", fail)
            with pytest.raises(Unavailable) as lost:
                store.export_folder("s1", tmp_path / "out")
        assert lost.tb
        assert files(tmp_path / "out") == files(folder)
        with pytest.raises(SessionExists) as second:
            store.import_folder(folder, cwd="/w", id="s1")
        (folder / "history.json").write_bytes((folder / "history.json").read_bytes()[:-1])
        with pytest.raises(HistoryError) as third:
            store.import_folder(folder, cwd="/w")
        assert open_files() == before
        assert first.tb
        assert second.tb
        assert third.tb


def _interrupt(done: int, total: int | None) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("small")
def test_an_export_is_the_session_as_it_was_at_the_beginning(
    store: SQLStore, tmp_path: Path
) -> None:
    """Nobody waits for it meanwhile: there is not even a transaction."""
    history = long()
    store.import_history(history, cwd="/w", id="s1")
    wanted = files(history.save(tmp_path / "wanted"))
    more: list[int] = []

    def append(done: int, total: int | None) -> None:
        more.append(store.append("s1", MessageEntry({"role": "user", "content": "later"})))

    store.export_folder("s1", tmp_path / "found", progress=append)
    assert files(tmp_path / "found") == wanted
    assert more == list(range(41, 41 + len(more)))
    assert len(more) > 5
    once = store.export_history("s1")
    assert once.messages[:40] == history.messages


@pytest.mark.usefixtures("small")
def test_a_session_that_is_deleted_or_replaced_meanwhile_is_never_mixed_with_another(
    either: SQLStore, tmp_path: Path
) -> None:
    created_at = "2026-11-30T12:00:00Z"
    once = long()

    def make(history: History) -> None:
        either.import_history(
            history, cwd="/w", id="s1", title="T", model="", created_at=created_at, replace=True
        )

    def changed(*places: int) -> History:
        messages = list(once.messages)
        for place in places:
            messages[place] = user(messages[place].id, "another")
        return History(messages=tuple(messages))

    folder = full().save(tmp_path)
    lossy: list[str] = []
    changes: list[Callable[[], object]] = [
        lambda: either.delete("s1"),
        lambda: make(long(8)),
        lambda: make(changed(0)),
        lambda: make(changed(0, 39)),
        lambda: make(History(messages=once.messages[4:])),
        lambda: (either.delete("s1"), either.extend("s1", [HEADER] + [MessageEntry({})] * 60)),
    ]
    for change in changes:
        make(once)
        progress = Once((20, 40), change)
        with pytest.raises(Conflict):
            either.export_folder("s1", folder, progress=progress, lossy=lossy)
        assert progress.is_done
        assert History.load(folder) == full()
        assert lossy == []
        assert not list(folder.rglob(".*"))
    # Where what was read is what the new one begins with, all of it is of the new one.
    make(once)
    either.export_folder("s1", folder, progress=lambda *_: make(once))
    assert History.load(folder) == once
    either.export_folder("s1", folder, progress=lambda *_: make(changed(39)))
    assert History.load(folder) == changed(39)


@pytest.mark.usefixtures("small")
def test_a_folder_that_changes_between_its_check_and_its_import_leaves_nothing(
    either: SQLStore, tmp_path: Path
) -> None:
    old = full()
    changes: list[Callable[[Path], object]] = [
        lambda folder: long(36).save(folder),
        lambda folder: long(40, "y").save(folder),
        lambda folder: (folder / "history.json").write_bytes(
            (folder / "history.json").read_bytes() + b"\n"
        ),
        lambda folder: (folder / "history.json").write_bytes(
            (folder / "history.json").read_bytes().replace(b'"k36"', b'"k32"')
        ),
        lambda folder: (folder / "history.json").unlink(),
        lambda folder: os.truncate(folder / "history.json", 2000),
        lambda folder: (folder / "attachments" / PICTURE.stored_name).unlink(),
        lambda folder: (folder / "attachments" / PICTURE.stored_name).write_bytes(b"x"),
    ]
    whole = 0
    for number, (change, then) in enumerate(itertools.product(changes, [(40, None), (20, 40)])):
        either.import_history(old, cwd="/w", id="s1", replace=True)
        folder = long(40).save(tmp_path / str(number))
        progress = Once(then, partial(change, folder))
        try:
            either.import_folder(folder, cwd="/w", id="s1", replace=True, progress=progress)
        except HistoryError:
            assert either.export_history("s1") == old
        else:  # what was read was read before
            assert either.export_history("s1") == long(40)
            assert then == (20, 40)
            whole += 1
        assert progress.is_done
        assert [h.id for h in either.list()] == ["s1"]
    assert whole < 5


class Once:
    """Does something, once, when the progress has come so far."""

    def __init__(self, when: tuple[int, int | None], what: Callable[[], object]) -> None:
        self.when, self.what = when, what
        self.is_done = False

    def __call__(self, done: int, total: int | None) -> None:
        if done >= self.when[0] and total == self.when[1] and not self.is_done:
            self.is_done = True
            self.what()


@pytest.mark.usefixtures("small")
def test_an_import_that_the_database_undoes_is_made_again_from_the_folder(
    either: SQLStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = long().save(tmp_path)
    write, count = sql.write, itertools.count()

    def undone(*args: Any) -> int:
        if next(count) in (3, 7):
            raise Again("because")
        return write(*args)

    monkeypatch.setattr(sql, "write", undone)
    told: list[tuple[int, int | None]] = []
    made = either.import_folder(folder, cwd="/w", progress=lambda *now: told.append(now))
    assert next(count) > 15
    assert either.export_history(made) == long()
    assert told[-1] == (40, 40)


def test_a_folder_is_part_of_the_apps_own_transaction(
    server_or_file: Backend, tmp_path: Path
) -> None:
    store = server_or_file.store()
    folder = long().save(tmp_path / "in")
    engine = create_engine(server_or_file.url)
    with engine.connect() as connection:
        inside = store.using(connection)
        inside.import_folder(folder, cwd="/w", id="s1")
        with pytest.raises(SessionExists):
            inside.import_folder(folder, cwd="/w", id="s1")
        inside.export_folder("s1", tmp_path / "out")
        connection.rollback()
    engine.dispose()
    assert files(tmp_path / "out") == files(tmp_path / "in")
    assert store.list() == []


# In bounded memory


MB = 1_000_000
FORMS = [
    # Messages, attachments, their size, the most that may be taken above the start.
    pytest.param(1_000, 50, MB, 40 * MB, id="short"),
    pytest.param(100_000, 200, MB, 100 * MB, id="long", marks=pytest.mark.slow),
    pytest.param(2_000, 20, 10 * MB, 100 * MB, id="coarse", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("count", "attachments", "size", "most"), FORMS)
def test_memory_does_not_grow_with_the_session(
    count: int, attachments: int, size: int, most: int, server_or_file: Backend, tmp_path: Path
) -> None:
    server_or_file.store().close()
    url = server_or_file.url.render_as_string(hide_password=False)
    folder = tmp_path / "folder"
    measured(url, "make", str(count), str(attachments), str(size))
    assert measured(url, "export", "large", folder)["resident"] < most
    assert measured(url, "import", folder, trace=True)["traced"] < most
    if count > 1_000:
        # Python's own count takes some of the memory that the system sees, and much time.
        assert measured(url, "import", folder)["resident"] < most
        assert measured(url, "export", "again", tmp_path / "again", trace=True)["traced"] < most
    else:
        with server_or_file.store() as store:
            store.export_folder("again", tmp_path / "again")
    assert sum(1 for _ in (folder / "attachments").iterdir()) == attachments
    names = sorted(files_of(folder))
    assert names == sorted(files_of(tmp_path / "again"))
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def files_of(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
