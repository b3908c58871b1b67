"""JSONLStore: the files that it writes and reads, and what becomes of damaged ones."""

import errno
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import BufferedReader
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from faults import ordinary_user
from turnkeep import jsonl
from turnkeep.entries import (
    Entry,
    Header,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    SkillEntry,
    UnknownEntry,
    recorded_at,
)
from turnkeep.errors import (
    InvalidArgument,
    InvalidEntry,
    SessionExists,
    Unavailable,
    UnknownSession,
)
from turnkeep.jsonl import JSONLStore
from turnkeep.payload import decode

# As riffer-rig writes it.
UPSTREAM = """\
{"type": "header", "schema_version": 1, "id": "s", "cwd": "/home/ana/plots", \
"created_at": "2026-08-24T08:00:00Z", "model": "m", "riffer_rig_version": "0.9.0", \
"riffer_version": "0.24.0", "title": "Größe?"}
{"type": "message", "message": {"role": "user", "content": "Größe?\\nEine Zeile.", "files": \
[{"media_type": "text/csv", "data": "eCx5", "filename": "x.csv"}]}, \
"recorded_at": "2026-08-24T08:00:01.000Z"}
{"type": "message", "message": {"role": "assistant", "content": "", "tool_calls": [{"call_id": \
"c1", "name": "python", "arguments": "{\\"code\\": \\"1\\"}"}]}, \
"recorded_at": "2026-08-24T08:00:02.000Z"}
{"type": "model", "model": "other", "recorded_at": "2026-08-24T08:00:03.000Z"}
{"type": "skill", "skill": "plots", "recorded_at": "2026-08-24T08:00:03.000Z"}
{"type": "compaction", "kept": [1, 2], "recorded_at": "2026-08-24T08:00:03.500Z"}
"""
GOOD = '{"type":"model","model":"good"}'
ACCENTS = "é\u2028\u2029\x85\r\x0b\x0c\x1c\0\ud800😀"


@pytest.fixture
def store(tmp_path: Path) -> JSONLStore:
    return JSONLStore(tmp_path)


def header(id: str = "s", cwd: str = "/w", **fields: Any) -> Header:
    return Header(id=id, cwd=cwd, created_at="2026-11-30T12:00:00Z", model="m", **fields)


def sessions(home: Path) -> Path:
    return home / ".riffer" / "sessions"


def file_of(home: Path, id: str = "s") -> Path:
    (path,) = sessions(home).glob(f"*/{id}.jsonl")
    return path


def write_file(home: Path, text: str | bytes, slug: str = "w", id: str = "s") -> Path:
    path = sessions(home) / slug / f"{id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def line(entry: Entry) -> str:
    return json.dumps(entry.to_dict()) + "\n"


def tree(home: Path) -> dict[Path, bytes | None]:
    return {p: p.read_bytes() if p.is_file() else None for p in home.rglob("*")}


# What is written is read


TEXTS = st.text() | st.sampled_from(["", ACCENTS, "\n", "line\r\nline"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS | st.just(10**30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
STAMPS = st.none() | st.integers(0, 50).map(lambda n: f"2026-01-01T00:00:00.{n:03}Z")
FIELDS = st.dictionaries(st.sampled_from(["a", "é", "message", "model"]), VALUES, max_size=3)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(MessageEntry, st.dictionaries(TEXTS, VALUES, max_size=3), STAMPS),
    *(st.builds(cls, TEXTS, STAMPS) for cls in (ModelEntry, ReasoningEntry, SkillEntry)),
    st.builds(UnknownEntry, st.sampled_from(["compaction", "é"]), FIELDS, STAMPS),
    st.just(UnknownEntry("header", {"schema_version": 2})),
    st.just(UnknownEntry("message", {"message": {}, "recorded_at": "yesterday"})),
)


def raised(entry: Entry, latest: str) -> Entry:
    """*entry* as a session has it whose latest time was *latest*."""
    stamp = recorded_at(entry)
    if stamp is None or stamp >= latest:
        return entry
    return Entry.from_dict(entry.to_dict() | {"recorded_at": latest})


IDS = st.sampled_from(["a", "A"])
EITHER = st.sampled_from([0, 1])


class Sessions(RuleBasedStateMachine):
    """Two stores of one home, and crashes, against lists of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.model: dict[str, list[Entry]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    @initialize()
    def start(self) -> None:
        self.stores = [JSONLStore(self.home), JSONLStore(self.home)]
        self.stores[0].append("a", header("a"))
        self.model["a"] = [header("a")]

    @rule(id=IDS, cwd=st.sampled_from(["", "/a", "/b"]), which=EITHER)
    def begin(self, id: str, cwd: str, which: int) -> None:
        begun = header(id, cwd)
        if self.model.setdefault(id, [begun])[0] == begun:
            assert self.stores[which].append(id, begun) == 0
        else:
            with pytest.raises(SessionExists):
                self.stores[which].append(id, begun)

    @rule(id=IDS, entries=st.lists(st.tuples(ENTRIES, EITHER), min_size=1, max_size=5))
    def append(self, id: str, entries: list[tuple[Entry, int]]) -> None:
        if id not in self.model:
            with pytest.raises(UnknownSession):
                self.stores[0].append(id, entries[0][0])
            return
        there = self.model[id]
        for entry, which in entries:
            assert self.stores[which].append(id, entry) == len(there)
            there.append(raised(entry, max(recorded_at(other) or "" for other in there)))

    @precondition(lambda self: any(len(entries) > 6 for entries in self.model.values()))
    @rule(id=IDS, which=EITHER)
    def delete(self, id: str, which: int) -> None:
        assert self.stores[which].delete(id) == (self.model.pop(id, None) is not None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The last line loses its end; where that is only the newline, the entry is still there."""
        session = data.draw(st.sampled_from(sorted(self.model)))
        path = file_of(self.home, session)
        last = path.read_bytes().splitlines(keepends=True)[-1]
        if len(self.model[session]) == 1 or not last.endswith(b"\n"):
            return
        lost = data.draw(st.integers(1, len(last) - 1))
        os.truncate(path, path.stat().st_size - lost)
        if lost > 1:
            self.model[session].pop()

    @rule(which=EITHER)
    def look(self, which: int) -> None:
        store = self.stores[which]
        for session, entries in self.model.items():
            assert store.read(session) == entries
        for cwd in (None, "", "/a", "/b"):
            expected = [e[0] for e in self.model.values() if cwd in (None, e[0].to_dict()["cwd"])]
            listed = store.list(cwd)
            assert sorted(listed, key=repr) == sorted(expected, key=repr)
            order = [(found.updated or pytest.fail("no time"), found.id) for found in listed]
            assert order == sorted(order, reverse=True)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    deadline=None,
    max_examples=50,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow],
)


@settings(deadline=None, max_examples=60)
@given(entries=st.lists(ENTRIES, max_size=5))
def test_a_line_is_an_entrys_dict_in_its_order(entries: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as home:
        store = JSONLStore(home)
        for entry in [header(), *entries]:
            store.append("s", entry)
        raw = file_of(Path(home)).read_bytes()
        assert raw.endswith(b"\n")
        lines = [list(json.loads(line).items()) for line in raw[:-1].split(b"\n")]
        assert lines == [list(entry.to_dict().items()) for entry in store.read("s")]


def test_the_file_is_private_readable_and_in_the_folder_of_its_cwd(
    store: JSONLStore, tmp_path: Path
) -> None:
    store.append("s", header(cwd="/home/ana/é plots/"))
    store.append("s", MessageEntry({"content": "é\u2028"}, "2026-11-30T13:00:00+01:00"))
    path = sessions(tmp_path) / "home-ana-plots" / "s.jsonl"
    assert path.read_bytes().decode() == (
        '{"type":"header","schema_version":1,"id":"s","cwd":"/home/ana/é plots/",'
        '"created_at":"2026-11-30T12:00:00Z","model":"m","riffer_rig_version":"",'
        '"riffer_version":"","title":""}\n'
        '{"type":"message","message":{"content":"é\u2028"},'
        '"recorded_at":"2026-11-30T12:00:00.000Z"}\n'
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("cwd", "slug"),
    [
        ("/home/ana", "home-ana"),
        ("/ctf/i_got_id", "ctf-i_got_id"),
        ("C:\\W\\App.Net", "C-W-App.Net"),
        ("/a//b/", "a-b"),
        ("a-/-b", "a---b"),
        ("/.config", ".config"),
        ("", "-"),
        ("/", "-"),
        ("/é/", "-"),
        (".", "-"),
        ("/../", "-"),
        ("...", "..."),
        ("/" + "x" * 300, "x" * 255),
    ],
)
def test_the_slug_is_that_of_riffer_rig(
    store: JSONLStore, tmp_path: Path, cwd: str, slug: str
) -> None:
    store.append("s", header(cwd=cwd))
    assert file_of(tmp_path).parent == sessions(tmp_path) / slug
    assert [found.cwd for found in store.list(cwd)] == [cwd]
    assert store.list(cwd + "/") == []


def test_the_deepest_message_and_the_emptiest_entry_come_back(store: JSONLStore) -> None:
    deepest: Any = {}
    for _ in range(199):
        deepest = {"x": deepest}
    entries = [header(), MessageEntry(deepest), MessageEntry({}), UnknownEntry("x", {})]
    assert [store.append("s", entry) for entry in entries] == [0, 1, 2, 3]
    assert store.read("s") == entries


def real_homes() -> list[str]:
    """Homes with sessions of riffer-rig's, where the environment names one."""
    return [home for home in [os.environ.get("HOME_DIR")] if home]


@pytest.mark.parametrize("home", [None, *real_homes()])
def test_sessions_of_riffer_rig_read_and_are_copied_as_they_are(
    tmp_path: Path, home: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if home is None:
        write_file(tmp_path, UPSTREAM, "home-ana-plots")
    store, copy = JSONLStore(home or tmp_path), JSONLStore(tmp_path / "copy")
    listed = store.list()
    assert listed
    for found in listed:
        entries = store.read(found.id)
        assert entries[0] == found
        assert [copy.append(found.id, entry) for entry in entries] == list(range(len(entries)))
        assert copy.read(found.id) == entries
        assert (
            file_of(tmp_path / "copy", found.id).parent.name
            == file_of(Path(home or tmp_path), found.id).parent.name
        )
    assert sorted(copy.list(), key=repr) == sorted(listed, key=repr)
    assert not caplog.records


def test_the_home_is_the_users_own_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    JSONLStore().append("s", header())
    monkeypatch.chdir(tmp_path)
    relative = JSONLStore(".")
    monkeypatch.chdir("/")
    assert relative.read("s") == JSONLStore(str(tmp_path)).read("s") == [header()]
    assert repr(relative) == f"JSONLStore({str(tmp_path)!r})"
    assert file_of(tmp_path).is_file()


# What is refused


@pytest.mark.parametrize(
    "id",
    [
        *["", ".", "..", ".x", "../x", "a/b", "a\\b", "*", "%", "s\n", "é", "a b", "x" * 201],
        *["a\0b", "\ud800", None, 1, b"s", []],
    ],
)
def test_what_is_no_file_name_is_refused_by_append_and_unknown_to_the_rest(
    store: JSONLStore, tmp_path: Path, id: Any
) -> None:
    store.append("s", header())
    (tmp_path / "x.jsonl").write_text("{}\n")
    before = tree(tmp_path)
    for entry in (ModelEntry("m"), header(), "no entry"):
        with pytest.raises(InvalidArgument, match=r"^id: "):
            store.append(id, entry)  # type: ignore[arg-type]
    assert store.read(id) == []
    assert store.delete(id) is False
    assert tree(tmp_path) == before


@pytest.mark.parametrize("id", ["s", "-", "_", "A.b-c_9", "s..", "x" * 200, "con.jsonl"])
def test_what_is_a_file_name_is_an_id(store: JSONLStore, id: str) -> None:
    assert store.append(id, header(id)) == 0
    assert store.read(id) == store.list() == [header(id)]
    assert store.delete(id) is True


def test_a_refused_append_writes_nothing(store: JSONLStore, tmp_path: Path) -> None:
    with pytest.raises(UnknownSession) as unknown:
        store.append("s", ModelEntry("m"))
    assert isinstance(unknown.value, LookupError)
    assert tree(tmp_path) == {}
    store.append("s", header())
    before = tree(tmp_path)
    wrong: Any
    for wrong in (None, {"type": "model", "model": "m"}, Header, Entry()):
        with pytest.raises(InvalidEntry, match=r"^\$: is an Entry"):
            store.append("s", wrong)
    with pytest.raises(InvalidEntry, match=r"^\$\.id: "):
        store.append("s", header("other"))
    with pytest.raises(SessionExists):
        store.append("s", header(cwd="/other"))
    with pytest.raises(InvalidArgument, match=r"^cwd: "):
        store.list(Path("/w"))  # type: ignore[arg-type]
    assert store.append("s", header()) == 0
    assert tree(tmp_path) == before
    assert store.append("s", ModelEntry("m")) == 1


@pytest.mark.parametrize("home", [5, b"/tmp", "a\0b", "\ud800"])
def test_a_home_that_is_no_path_is_refused(home: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^home: "):
        JSONLStore(home)


# Damage


BAD_LINES = [
    b'{"type":"model","model":"secret"',
    b'"secret"',
    b'["secret"]',
    b"null",
    b"",
    b"\0\0\0",
    b'{"model":"secret"}',
    b'{"type":7,"model":"secret"}',
    b'{"type":"","model":"secret"}',
    b'{"type":"model","model":"secret\xff"}',
    b'{"type":"model","model":"secret\xed\xa0\x80"}',
    '{"type":"model","model":"secret"}'.encode("utf-16-be"),
    b'{"type":"message","message":{"secret":NaN}}',
    b'{"type":"message","message":{"secret":1e999}}',
    b'{"type":"message","message":{"secret":' + b"9" * 5000 + b"}}",
    b'{"type":"message","message":' + b'{"secret":' * 201 + b"1" + b"}" * 202,
    b'{"type":"message","message":' + b"[" * 100_000,
    b'{"type":"model","model":"secret"}{"type":"model","model":"secret"}',
]


@pytest.mark.parametrize("bad", BAD_LINES, ids=lambda bad: repr(bad[:40]))
def test_a_line_that_is_no_entry_is_skipped_and_logged_without_its_content(
    store: JSONLStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: bytes
) -> None:
    lines = [line(header()).encode(), GOOD.encode() + b"\r\n", bad + b"\n", GOOD.encode() + b"\n"]
    path = write_file(tmp_path, b"".join(lines))
    good = ModelEntry("good")
    assert store.list() == [header()]
    assert not caplog.records  # list reads no further than the header
    assert store.read("s") == [header(), good, good]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("turnkeep.jsonl", logging.WARNING)
    assert record.getMessage() == f"{path}, line 3: no entry, skipped"
    assert store.append("s", good) == 3
    assert store.read("s") == [header(), good, good, good]
    assert path.read_bytes().startswith(b"".join(lines))
    assert "secret" not in caplog.text


def test_unknown_types_and_shapes_come_back_and_are_copied_as_they_are(
    store: JSONLStore, tmp_path: Path
) -> None:
    raw: list[dict[str, Any]] = [
        {"type": "compaction", "n": 1},
        {"type": "model", "model": "m", "by": "user"},
        {"type": "message", "message": "text"},
        {"type": "skill", "skill": "x", "recorded_at": "yesterday"},
        {"type": "header", "schema_version": 1},
    ]
    write_file(tmp_path, line(header()) + "".join(json.dumps(r) + "\n" for r in raw))
    _, *entries = store.read("s")
    assert all(isinstance(entry, UnknownEntry) for entry in entries)
    assert [entry.to_dict() for entry in entries] == raw
    store.append("copy", header("copy"))
    for entry in entries:
        store.append("copy", entry)
    assert store.read("copy")[1:] == entries


def test_a_file_that_an_editor_saved_still_reads(store: JSONLStore, tmp_path: Path) -> None:
    text = "\ufeff" + UPSTREAM.replace("\n", "\r\n")
    write_file(tmp_path, text.removesuffix("\r\n"))
    write_file(tmp_path / "plain", UPSTREAM)
    assert store.read("s") == JSONLStore(tmp_path / "plain").read("s")
    assert store.append("s", ModelEntry("m")) == 6
    assert len(store.read("s")) == 7


@pytest.mark.parametrize("left", [b"", b'{"type":"head', b"\0\0\0", b"no session\n"])
def test_a_file_without_entries_is_no_session_and_may_become_one(
    store: JSONLStore, tmp_path: Path, left: bytes
) -> None:
    write_file(tmp_path, left, slug="elsewhere")
    assert store.read("s") == store.list() == []
    with pytest.raises(UnknownSession):
        store.append("s", ModelEntry("m"))
    assert file_of(tmp_path).read_bytes() == left
    assert store.append("s", header()) == 0
    assert store.append("s", ModelEntry("m")) == 1
    assert store.read("s") == [header(), ModelEntry("m")]
    assert store.list() == [header()]
    assert file_of(tmp_path).read_bytes().startswith(left)


@pytest.mark.parametrize(
    "first", [GOOD + "\n", line(header("other")), '{"type":"header","id":"s"}\n']
)
def test_a_session_whose_header_does_not_come_first_is_read_but_not_listed(
    store: JSONLStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    path = write_file(tmp_path, first + line(header()))
    assert store.list() == []
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: left out, it begins with no Header of this id"
    ]
    assert len(store.read("s")) == 2
    assert store.append("s", ModelEntry("m")) == 2
    with pytest.raises(SessionExists):
        store.append("s", header())


# Where sessions lie


def test_a_session_is_found_in_any_folder_and_belongs_to_its_headers_cwd(
    store: JSONLStore, tmp_path: Path
) -> None:
    write_file(tmp_path, line(header(cwd="/w")), slug="-other .folder")
    assert store.list("/w") == store.read("s") == [header(cwd="/w")]
    assert store.append("s", header(cwd="/w")) == 0
    assert store.append("s", ModelEntry("m")) == 1
    file_of(tmp_path).parent.rename(sessions(tmp_path) / "moved")
    assert store.append("s", ModelEntry("m")) == 2
    assert len(store.read("s")) == 3
    assert len(list(sessions(tmp_path).glob("*/*"))) == 1


def test_of_two_files_of_one_id_the_first_folders_counts_and_delete_takes_both(
    store: JSONLStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second = write_file(tmp_path, line(header(cwd="/b")), slug="b")
    write_file(tmp_path, line(header(cwd="/a")), slug="a")
    assert store.read("s") == store.list() == [header(cwd="/a")]
    assert [record.getMessage() for record in caplog.records] == [
        f"{second}: left out, another folder has this session too"
    ]
    assert store.append("s", ModelEntry("m")) == 1
    with pytest.raises(SessionExists):
        store.append("s", header(cwd="/b"))
    assert second.read_text() == line(header(cwd="/b"))
    assert store.delete("s") is True
    assert store.read("s") == []
    assert store.delete("s") is False


def test_files_that_are_no_sessions_are_left_alone(
    store: JSONLStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_file(tmp_path, line(header("notes")), id="notes").rename(tmp_path / "w.txt")
    for name in ("s.txt", ".jsonl", ".s.jsonl", "a b.jsonl", "s.jsonl~"):
        (sessions(tmp_path) / "w" / name).write_text(line(header()))
    (sessions(tmp_path) / "s.jsonl").write_text(line(header()))
    assert store.list() == store.read("s") == []
    assert store.delete("s") is False
    assert not caplog.records


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "socket", "folder-link", "loop"])
def test_only_regular_files_are_opened_and_links_never_followed(
    store: JSONLStore, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    outside = tmp_path / "outside" / "s.jsonl"
    outside.parent.mkdir()
    outside.write_text(line(header()))
    path = sessions(tmp_path) / "w" / "s.jsonl"
    (path.parent.parent if kind == "folder-link" else path.parent).mkdir(parents=True)
    match kind:
        case "link":
            path.symlink_to(outside)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "folder-link":
            path.parent.symlink_to(outside.parent)
        case "loop":
            path.symlink_to(path)
    assert store.read("s") == store.list() == []
    assert store.delete("s") is False
    with pytest.raises(UnknownSession):
        store.append("s", ModelEntry("m"))
    with pytest.raises(Unavailable):
        store.append("s", header())
    assert outside.read_text() == line(header())
    assert os.path.lexists(path)
    assert not caplog.records


def test_a_folder_that_became_a_link_is_not_followed(store: JSONLStore, tmp_path: Path) -> None:
    store.append("s", header())
    folder = file_of(tmp_path).parent
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    before = tree(tmp_path)
    assert store.read("s") == store.list() == []
    assert store.delete("s") is False
    with pytest.raises(UnknownSession):
        store.append("s", ModelEntry("m"))
    assert tree(tmp_path) == before


def test_the_list_is_by_time_then_id_and_says_when_a_session_changed(
    store: JSONLStore, tmp_path: Path
) -> None:
    times = {"a": 5_000_000_001_000, "B": 5_000_000_002_000, "c": 5_000_000_001_999, "d": -1_000}
    for name, changed in times.items():
        store.append(name, header(name, cwd=f"/{name}"))
        os.utime(file_of(tmp_path, name), ns=(0, changed))
    for found in store.list():
        store.read(found.id)
        store.append(found.id, header(found.id, cwd=f"/{found.id}"))
    listed = store.list()
    assert [found.id for found in listed] == ["B", "c", "a", "d"]
    assert listed[0].updated == datetime(1970, 1, 1, 1, 23, 20, 2, tzinfo=UTC)
    assert listed[3].updated == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert {found.last_position for found in listed} == {None}
    store.append("d", ModelEntry("m"))
    assert [found.id for found in store.list()] == ["d", "B", "c", "a"]
    assert store.list("/a") == [header("a", cwd="/a")]
    assert store.list("") == []
    assert store.list("/") == []


# What others do to the files


def test_an_append_reads_the_file_only_when_another_wrote_it(
    store: JSONLStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []

    def count(text: str) -> object:
        decoded.append(text)
        return decode(text)

    monkeypatch.setattr(jsonl, "decode", count)
    store.append("s", header())
    for position in range(1, 5):
        assert store.append("s", ModelEntry("m", "2026-11-30T12:00:00Z")) == position
    assert decoded == []
    JSONLStore(tmp_path).append("s", ModelEntry("m", "2026-11-30T13:00:00Z"))
    assert len(decoded) == 5
    decoded.clear()
    with file_of(tmp_path).open("a") as file:
        file.write('{"type":"skill","skill":"x","recorded_at":"2026-11-30T14:00:00.000Z"}\n')
    assert store.append("s", ModelEntry("m", "2026-11-30T12:00:00Z")) == 7
    assert len(decoded) == 7
    assert recorded_at(store.read("s")[-1]) == "2026-11-30T14:00:00.000Z"


def test_what_another_writes_during_an_append_counts_for_the_next(
    store: JSONLStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("s", header())
    path = file_of(tmp_path)

    def write(opened: int, data: bytes) -> int:
        with path.open("a") as file:
            file.write(GOOD + "\n")
        return os_write(opened, data)

    os_write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        store.append("s", ModelEntry("m"))
    assert store.append("s", ModelEntry("m")) == 3


def test_what_is_remembered_is_bounded_and_may_be_forgotten(
    store: JSONLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_MAX_TAILS", 3)
    for position in range(3):
        for name in "abcde":
            entry = ModelEntry("m") if position else header(name)
            assert store.append(name, entry) == position
            assert len(store._tails) <= 3


@pytest.mark.parametrize("cwd", ["/w", "/w/"])
def test_a_session_that_another_begins_first_is_theirs(
    store: JSONLStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cwd: str
) -> None:
    def open_late(path: Path, flags: int = os.O_RDONLY) -> BufferedReader:
        if flags & os.O_EXCL:
            path.write_text(line(header(cwd="/w")))
        return open_now(path, flags)

    open_now = jsonl._open
    with monkeypatch.context() as patched:
        patched.setattr(jsonl, "_open", open_late)
        if cwd == "/w":
            assert store.append("s", header(cwd=cwd)) == 0
        else:
            with pytest.raises(SessionExists):
                store.append("s", header(cwd=cwd))
    assert store.read("s") == [header(cwd="/w")]


# Failures of the disk


def test_an_append_is_one_write_that_is_on_the_disk_when_it_returns(
    store: JSONLStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    synced: list[int] = []

    def write(opened: int, data: bytes) -> int:
        written.append(data)
        return os_write(opened, data)

    def fsync(opened: int) -> None:
        synced.append(os.fstat(opened).st_ino)
        os_fsync(opened)

    os_write, os_fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", fsync)
    store.append("s", header())
    path = file_of(tmp_path)
    # The folders, which were all made here, and the one that they were made in.
    assert {folder.stat().st_ino for folder in path.parents[:4]} <= set(synced)
    for entry in (ModelEntry("m"), ModelEntry("n")):
        synced.clear()
        store.append("s", entry)
        assert synced == [path.stat().st_ino]
    assert b"".join(written) == path.read_bytes()
    assert len(written) == 3
    synced.clear()
    store.delete("s")
    assert path.parent.stat().st_ino in synced


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("truncates", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_failed_append_leaves_the_session_whole(
    store: JSONLStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    truncates: bool,
    fresh: bool,
) -> None:
    store.append("s", header())
    store.append("s", ModelEntry("first"))
    before = file_of(tmp_path).read_bytes()
    refused = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    tried: list[bytes] = []

    def write(opened: int, data: bytes) -> int:
        tried.append(data)
        if len(tried) > 1:
            raise refused
        return os_write(opened, data[: len(data) // 2])

    def fail(*_: object) -> None:
        raise refused

    os_write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, call, write if call == "write" else fail)
        if not truncates:
            patched.setattr(os, "ftruncate", fail)
        with pytest.raises(Unavailable, match="No space left") as failed:
            store.append("s", ModelEntry("secret"))
    assert failed.value.__cause__ is refused
    assert "secret" not in str(failed.value)
    if truncates:
        assert file_of(tmp_path).read_bytes() == before
    if call == "fsync" and not truncates:
        return  # all of the line is there, and whether it stays is the disk's to say
    store = JSONLStore(tmp_path) if fresh else store
    assert store.append("s", ModelEntry("second")) == 2
    assert store.read("s") == [header(), ModelEntry("first"), ModelEntry("second")]


def test_a_short_write_is_gone_on_with(store: JSONLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    os_write = os.write
    monkeypatch.setattr(os, "write", lambda opened, data: os_write(opened, data[:7]))
    store.append("s", header())
    store.append("s", ModelEntry("m"))
    assert store.read("s") == [header(), ModelEntry("m")]


def test_a_failed_begin_leaves_no_session(
    store: JSONLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(Unavailable):
            store.append("s", header())
    assert store.read("s") == store.list() == []
    with pytest.raises(UnknownSession):
        store.append("s", ModelEntry("m"))
    assert store.append("s", header()) == 0


def test_a_file_system_that_cannot_sync_folders_will_do(
    store: JSONLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(opened: int) -> None:
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            raise OSError(errno.EINVAL, "not for folders")

    monkeypatch.setattr(os, "fsync", fsync)
    store.append("s", header())
    assert store.read("s") == [header()]


def test_a_file_where_a_folder_should_be_is_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    store = JSONLStore(home)
    for call in (store.list, lambda: store.read("s"), lambda: store.append("s", header())):
        with pytest.raises(Unavailable, match="home"):
            call()


def test_a_time_that_no_datetime_can_be_hides_its_session_alone(
    store: JSONLStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.append("s", header())
    store.append("far", header("far"))

    def state(file: BufferedReader) -> tuple[int, int, int]:
        return (0, 0, 1 << 63 if "far" in file.name else 0)

    # Not every file system holds such a time, so it can't be given to a file here.
    monkeypatch.setattr(jsonl, "_state", state)
    monkeypatch.setattr(jsonl, "_EPOCH", datetime(9999, 1, 1, tzinfo=UTC))
    assert store.list() == [header()]
    assert "far.jsonl: left out" in caplog.text


def test_what_may_not_be_read_is_said_and_hides_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        store = JSONLStore(home)
        for name in ("closed", "open"):
            write_file(Path(home), line(header(name)), slug="b", id=name)
        closed = file_of(Path(home), "closed")
        folder = write_file(Path(home), line(header("s")), slug="a").parent
        closed.chmod(0)
        folder.chmod(0)
        (sessions(Path(home)) / "link").symlink_to(folder)
        with ordinary_user():
            assert store.list() == [header("open")]
            assert [record.getMessage() for record in caplog.records] == [
                f"{folder}: no permission, left out",
                f"{closed}: left out, [Errno 13] Permission denied: 'closed.jsonl'",
            ]
            assert store.read("open") == [header("open")]
            assert store.read("s") == []
            with pytest.raises(Unavailable, match="Permission denied"):
                store.read("closed")
            with pytest.raises(Unavailable, match="Permission denied"):
                store.append("closed", ModelEntry("m"))
        folder.chmod(0o700)


# At the same time


def test_threads_of_two_stores_append_without_a_gap_and_readers_see_prefixes(
    tmp_path: Path,
) -> None:
    stores = [JSONLStore(tmp_path), JSONLStore(tmp_path)]
    stores[0].append("s", header())

    def write(writer: int) -> list[int]:
        store = stores[writer % 2]
        return [store.append("s", ModelEntry(f"{writer} {n}")) for n in range(25)]

    with ThreadPoolExecutor(8) as threads:
        writing = [threads.submit(write, writer) for writer in range(8)]
        seen: list[Entry] = []
        while not all(future.done() for future in writing):
            now = stores[0].read("s")
            assert now[: len(seen)] == seen
            seen = now
    entries = stores[1].read("s")
    positions = [future.result() for future in writing]
    assert sorted(chain(*positions)) == list(range(1, 201))
    for writer, own in enumerate(positions):
        assert own == sorted(own)
        assert [entries[at] for at in own] == [ModelEntry(f"{writer} {n}") for n in range(25)]


@pytest.mark.parametrize("equal", [True, False])
def test_one_of_many_threads_begins_a_session(tmp_path: Path, equal: bool) -> None:
    together = Barrier(20)

    def begin(n: int) -> int | None:
        store = JSONLStore(tmp_path)
        together.wait()
        try:
            return store.append("s", header(cwd="/w" if equal else f"/{n}"))
        except SessionExists:
            return None

    with ThreadPoolExecutor(20) as threads:
        results = list(threads.map(begin, range(20)))
    assert results.count(0) == (20 if equal else 1)
    assert len(JSONLStore(tmp_path).list()) == len(JSONLStore(tmp_path).read("s")) == 1
    assert file_of(tmp_path).is_file()


def run(script: str, home: Path) -> subprocess.Popen[str]:
    """A process of its own: a fork of this one would copy whatever threads other tests left."""
    return subprocess.Popen(
        [sys.executable, "-c", script, str(home)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


FORKER = """
import os, signal, sys
from faults import ordinary_user
from turnkeep import jsonl
from turnkeep.entries import ModelEntry
store = jsonl.JSONLStore(sys.argv[1])
with jsonl._lock("s"):
    if os.fork() == 0:
        signal.alarm(30)  # ends the child where it waits for ever
        print(store.append("s", ModelEntry("child")), flush=True)
        os._exit(0)
    os.wait()
print(store.append("s", ModelEntry("parent")))
"""


def test_a_fork_during_an_append_leaves_the_child_a_working_store(
    store: JSONLStore, tmp_path: Path
) -> None:
    store.append("s", header())
    with run(FORKER, tmp_path) as forker:
        assert forker.communicate()[0].split() == ["1", "2"]
    assert store.read("s")[1:] == [ModelEntry("child"), ModelEntry("parent")]


WRITER = """
import sys
from turnkeep.entries import MessageEntry
from turnkeep.jsonl import JSONLStore
store = JSONLStore(sys.argv[1])
while True:
    print(store.append("s", MessageEntry({"content": "x" * 5000})), flush=True)
"""


def test_what_was_acknowledged_outlives_a_kill(store: JSONLStore, tmp_path: Path) -> None:
    store.append("s", header())
    with run(WRITER, tmp_path) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()
        acknowledged += [int(position) for position in writer.stdout.read().split()]
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    entries = store.read("s")
    assert len(entries) - len(acknowledged) in (1, 2)
    assert store.append("s", ModelEntry("m")) == len(entries)
    assert store.read("s") == [*entries, ModelEntry("m")]
