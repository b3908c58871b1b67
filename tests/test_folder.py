"""A history's folder: it is whole at every moment, and nothing outside is ever read or written."""

import errno
import json
import os
import random
import re
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from histories import full, histories, python, user
from turnkeep import folder as folders
from turnkeep.errors import HistoryError
from turnkeep.folder import FolderReader, FolderWriter
from turnkeep.history import Attachment, History, check_order, check_version
from turnkeep.message_json import by_file, layout, message_from_dict, message_to_dict

PICTURE = Attachment("image/png", "a.png", b"\x89PNG")


def files(folder: Path) -> dict[str, bytes]:
    """The files anywhere in *folder*, with their bytes."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def pictured(*attachments: Attachment) -> History:
    return History(messages=(user("1", attachments=attachments),))


def refers(folder: Path, **fields: Any) -> None:
    """Put a `history.json` into *folder* whose one attachment has these *fields*."""
    attachment = {"mime": "", "filename": ""} | fields
    message = {"id": "1", "role": "user", "content": "", "attachments": [attachment]}
    (folder / "history.json").write_text(json.dumps({"version": 1, "messages": [message]}))


def refused(folder: Path) -> str:
    """What `load`, and `from_dict` with that folder, say of it."""
    with pytest.raises(HistoryError) as caught:
        History.load(folder)
    raw = json.loads((folder / "history.json").read_bytes())
    with pytest.raises(HistoryError) as again:
        History.from_dict(raw, folder)
    assert str(caught.value) == str(again.value)
    return str(caught.value)


# Out and in


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(history=histories())
def test_a_saved_history_loads_as_the_same_value_and_saving_again_changes_no_byte(
    history: History, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    assert history.save(folder) == folder
    before = files(folder)
    assert History.load(folder) == History.parse(history.to_json()) == history
    raw = json.loads(before["history.json"])
    assert raw == history.to_dict(inline_attachments=False)
    assert History.from_dict(raw, str(folder)) == history
    attachments = [a for message in history.messages for a in message.attachments]
    names = {f"attachments/{attachment.stored_name}" for attachment in attachments}
    assert set(before) == names | {"history.json"}
    assert (folder / "attachments").exists() is bool(attachments)
    assert len({name.casefold() for name in names}) == len(names)
    History.load(folder).save(folder)
    assert files(folder) == before


def test_equal_bytes_are_stored_once_for_each_extension_and_keep_their_names(
    tmp_path: Path,
) -> None:
    data = b"{}"
    history = pictured(
        Attachment("application/json", "a.json", data),
        Attachment("text/plain", "B.JSON", data),
        Attachment("text/plain", "b.txt", data),
        Attachment("text/plain", "", b""),
        Attachment("", "empty", b""),
    )
    assert History.load(history.save(tmp_path)) == history
    digest, empty = sha256(data).hexdigest(), sha256().hexdigest()
    assert set(files(tmp_path)) == {
        "history.json",
        f"attachments/{digest}.json",
        f"attachments/{digest}.txt",
        f"attachments/{empty}.txt",
        f"attachments/{empty}",
    }


@pytest.mark.parametrize(
    "filename", ["../../evil.sh", "/etc/cron.d/x", "CON", "a:b", "..\\x", "x" * 300, "\0", "."]
)
def test_a_filename_never_decides_where_a_file_is_written(tmp_path: Path, filename: str) -> None:
    history = pictured(Attachment("x/y", filename, b"bytes"))
    folder = history.save(tmp_path / "a" / "b" / "c")
    assert History.load(folder).messages[0].attachments[0].filename == filename
    digest = sha256(b"bytes").hexdigest()
    (name,) = set(files(tmp_path)) - {"a/b/c/history.json"}
    assert re.fullmatch(rf"a/b/c/attachments/{digest}(\.sh)?", name)


def test_a_file_that_many_attachments_name_is_held_once(tmp_path: Path) -> None:
    """Else a small folder takes all memory."""
    attachment = Attachment("", "", bytes(100_000))
    history = pictured(*[attachment] * 500)
    loaded = History.load(history.save(tmp_path)).messages[0].attachments
    assert len({id(each.bytes) for each in loaded}) == 1
    assert loaded == history.messages[0].attachments


def test_an_attachment_that_is_there_is_not_written_again_and_nothing_is_deleted(
    tmp_path: Path,
) -> None:
    folder = pictured(PICTURE).save(tmp_path)
    file = folder / "attachments" / PICTURE.stored_name
    os.utime(file, (1, 1))
    (folder / "notes.txt").write_text("mine")
    (folder / "attachments" / "other").write_text("mine")
    History(messages=(user("2", attachments=(PICTURE,)), user("3"))).save(folder)
    assert file.stat().st_mtime == 1
    History().save(folder)
    assert set(files(folder)) == {
        "history.json", "notes.txt", "attachments/other", f"attachments/{PICTURE.stored_name}",
    }  # fmt: skip


def test_an_attachment_of_another_size_is_written_anew(tmp_path: Path) -> None:
    folder = pictured(PICTURE).save(tmp_path)
    file = folder / "attachments" / PICTURE.stored_name
    file.write_bytes(b"cut")
    pictured(PICTURE).save(folder)
    assert file.read_bytes() == PICTURE.bytes


def test_paths_of_every_kind_name_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    history = pictured(PICTURE)
    assert history.save("~/c") == tmp_path / "home" / "c"
    assert history.save("relative") == tmp_path / "relative"
    assert history.save(tmp_path / "ü \udcff") == tmp_path / "ü \udcff"
    (tmp_path / "link").symlink_to("relative")
    for folder in ("home/c", "relative", tmp_path / "ü \udcff", "link"):
        assert History.load(folder) == history
    assert history.save("link") == tmp_path / "link"
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(HistoryError, match=r"^no history\.json in ~/c$"):
        History.load("~/c")


@pytest.mark.parametrize("folder", [None, 5, b"bytes", "a\0b", "\ud83d", [], object()])
def test_what_is_no_path_is_refused(folder: Any) -> None:
    doors: list[Callable[[Any], object]] = [History.load, History().save]
    if folder is not None:
        doors.append(lambda path: History.from_dict({}, path))
    for door in doors:
        with pytest.raises(HistoryError, match=r"^dir: "):
            door(folder)
    with pytest.raises(HistoryError, match=r"^dir: "):
        History().save("~no-such-user-here/x")


def test_a_folder_is_not_opened_where_no_attachment_is_in_it(tmp_path: Path) -> None:
    raw = pictured(PICTURE).to_dict()
    assert History.from_dict(raw, tmp_path / "missing") == pictured(PICTURE)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def path_of(opened: int) -> Path:
    return Path(f"/proc/self/fd/{opened}").readlink()


def test_no_file_stays_open(tmp_path: Path) -> None:
    folder = full().save(tmp_path)
    before = open_files()
    full().save(folder)
    History.load(folder)
    (folder / "attachments" / full().messages[0].attachments[0].stored_name).unlink()
    refused(folder)
    (folder / "history.json").unlink()
    (folder / "history.json").mkdir()
    with pytest.raises(HistoryError):
        History.load(folder)
    with pytest.raises(OSError, match="directory"):
        full().save(folder)
    assert open_files() == before


# What others have put there


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # absolute paths are too long for it


def test_a_folder_without_a_history_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside.json").write_text(History().to_json())
    makers: dict[str, Callable[[Path], object]] = {
        "missing": lambda _: None,
        "link": lambda file: file.symlink_to(tmp_path / "outside.json"),
        "dangling": lambda file: file.symlink_to("nowhere"),
        "fifo": os.mkfifo,
        "folder": Path.mkdir,
        "socket": make_socket,
    }
    for name, make in makers.items():
        folder = tmp_path / name
        folder.mkdir()
        make(folder / "history.json")
        with pytest.raises(HistoryError) as caught:
            History.load(folder)
        assert str(caught.value) == f"no history.json in {folder}"
    for folder in (tmp_path / "no folder", tmp_path / "outside.json"):
        with pytest.raises(HistoryError, match=r"^no history\.json in "):
            History.load(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe{}", b"NaN", b"[" * 100_000, b'{"a":'])
def test_a_file_that_is_no_json_is_named(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    file.write_bytes(text)
    with pytest.raises(HistoryError, match=f"^{re.escape(str(file))} is not valid JSON: "):
        History.load(tmp_path)


def test_every_part_of_a_file_is_refused_and_the_whole_after_a_byte_order_mark_is_not(
    tmp_path: Path,
) -> None:
    file = full().save(tmp_path) / "history.json"
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(HistoryError):
            History.load(tmp_path)
    file.write_bytes(b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n"))
    assert History.load(tmp_path) == full()


SECRET = b"the bytes of another file"
HOSTILE = [
    "../secret", "attachments/../secret", "attachments/../../secret", "attachments/./x", "secret",
    "attachments//secret", "/etc/hostname", "attachments", "attachments/", "", ".", "..", "x\0",
    "attachments/.", "attachments/..", "attachments/.x", "attachments/-x", "attachments/x\0",
    "attachments/x\n", "attachments/x/y", "attachments/sub/x", "attachments\\x", "..\\secret",
    "C:\\x", "attachments/C:x", "attachments/x:y", "attachments/%2e%2e", "ATTACHMENTS/x",
    "attachments/ü", "attachments/x\u0301", "attachments/\ud83d", "attachments/" + "x" * 101,
    "attachments/~", "~/x", "attachments/*", " attachments/x", "attachments/x ", "./attachments/x",
    "file:attachments/x", "attachments/\u0661",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_of_another_form_is_refused_even_where_the_file_exists(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    for where in ("attachments/sub", "attachments/C:x"):
        (folder / where).mkdir(parents=True)
    for where in ("secret", "folder/secret", "folder/attachments/.x", "folder/attachments/x ",
                  "folder/attachments/-x", "folder/attachments/sub/x", "folder/attachments/x",
                  "folder/attachments/x\n", "folder/attachments/ü"):  # fmt: skip
        (tmp_path / where).write_bytes(SECRET)
    refers(folder, file=name, sha256=sha256(SECRET).hexdigest())
    shown = f"{name[:100]!a} is no plain name of a file in attachments/"
    assert refused(folder) == f"messages[0].attachments[0].file: {shown}"


@pytest.mark.parametrize("name", ["x", "X", "_", "0.-_", "a..b", "CON", "x" * 100])
def test_a_plain_name_is_read_whoever_chose_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "attachments").mkdir()
    (tmp_path / "attachments" / name).write_bytes(SECRET)
    refers(tmp_path, file=f"attachments/{name}", sha256=sha256(SECRET).hexdigest())
    (attachment,) = History.load(tmp_path).messages[0].attachments
    assert attachment == Attachment("", "", SECRET)
    assert attachment.digest == sha256(SECRET).hexdigest()


def test_inline_bytes_in_a_folder_are_accepted(tmp_path: Path) -> None:
    refers(tmp_path, data="QQ==")
    assert History.load(tmp_path).messages[0].attachments == (Attachment("", "", b"A"),)


def test_a_file_that_is_not_what_it_was_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = pictured(PICTURE).save(tmp_path / "folder")
    outside = tmp_path / "outside"
    outside.write_bytes(PICTURE.bytes)  # the right bytes: only the way to them is wrong
    file = folder / "attachments" / PICTURE.stored_name
    name = f"attachments/{PICTURE.stored_name}"
    place = "messages[0].attachments[0]"
    makers: list[tuple[Callable[[], object], str]] = [
        (lambda: None, f"{place}.file: {name}: is missing"),
        (lambda: file.symlink_to(outside), f"{place}.file: {name}: is a link"),
        (lambda: file.symlink_to("nowhere"), f"{place}.file: {name}: is a link"),
        (lambda: os.mkfifo(file), f"{place}.file: {name}: is no regular file"),
        (file.mkdir, f"{place}.file: {name}: is no regular file"),
        (lambda: make_socket(file), f"{place}.file: {name}: is no regular file"),
        (lambda: file.write_bytes(b""), f"{place}.sha256: is not the digest of {name}"),
        (lambda: file.write_bytes(b"\x89PNg"), f"{place}.sha256: is not the digest of {name}"),
    ]
    for make, said in makers:
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)
        make()
        assert refused(folder).startswith(said)


@pytest.mark.parametrize("kind", ["link", "file", "missing", "fifo"])
def test_the_folder_of_attachments_is_not_followed_elsewhere(kind: str, tmp_path: Path) -> None:
    folder = pictured(PICTURE).save(tmp_path / "folder")
    attachments = folder / "attachments"
    moved = attachments.rename(tmp_path / "elsewhere")
    if kind == "link":
        attachments.symlink_to(moved)
    elif kind == "file":
        attachments.touch()
    elif kind == "fifo":
        os.mkfifo(attachments)
    said = refused(folder)
    assert said.startswith(f"messages[0].attachments[0].file: attachments/{PICTURE.stored_name}: ")
    before = files(tmp_path)
    if kind == "missing":
        pictured(PICTURE).save(folder)
        assert History.load(folder) == pictured(PICTURE)
    else:
        with pytest.raises(HistoryError, match=r"^attachments: is a link or no folder"):
            pictured(Attachment("", "", b"new")).save(folder)
        assert files(tmp_path) == before


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "fifo"])
def test_save_writes_through_no_link_and_over_no_other_thing(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "attachments").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_bytes(PICTURE.bytes)
    file = folder / "attachments" / PICTURE.stored_name
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to(outside if kind == "link" else tmp_path / "new")
    with pytest.raises(HistoryError, match=f"^attachments/{PICTURE.stored_name}: "):
        pictured(PICTURE).save(folder)
    assert files(tmp_path).keys() <= {"outside", f"folder/attachments/{PICTURE.stored_name}"}
    assert outside.read_bytes() == PICTURE.bytes


def test_a_linked_history_is_replaced_and_what_it_led_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "history.json").symlink_to(outside)
    assert History.load(full().save(folder)) == full()
    assert outside.read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EACCES, "Permission denied"), "can't be read: Permission denied"),
        (OSError(errno.EIO, "Input/output error"), "can't be read: Input/output error"),
        (MemoryError(), "is too large to be held in memory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    error: BaseException, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pictured(PICTURE).save(tmp_path)
    real = folders._open_regular
    for name in ("history.json", f"attachments/{PICTURE.stored_name}"):

        def opened(path: str | Path, dir_fd: int | None = None, name: str = name) -> Any:
            file = real(path, dir_fd)
            return Unreadable(file, error) if Path(path).name == Path(name).name else file

        with monkeypatch.context() as patch:
            patch.setattr(folders, "_open_regular", opened)
            with pytest.raises(HistoryError, match=said) as caught:
                History.load(folder)
        assert name in str(caught.value)


class Unreadable:
    """A file whose reading fails."""

    def __init__(self, file: Any, error: BaseException) -> None:
        self.file, self.error = file, error

    def __enter__(self) -> "Unreadable":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def read(self, _size: int = -1) -> bytes:
        raise self.error


def test_a_history_that_may_not_be_opened_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = History().save(tmp_path)

    def deny(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(HistoryError, match=r"history\.json: can't be read: Permission denied$"):
        History.load(folder)


# What goes wrong on the way


STEPS = ("open", "fsync", "replace", "mkdir", "stat")


def test_whatever_fails_leaves_the_old_or_the_new_history_and_no_temporary_file(
    tmp_path: Path,
) -> None:
    old, new = full(), full(b"two")
    reached = set()
    for step in STEPS:
        for nth in range(30):
            folder = tmp_path / f"{step}-{nth}"
            start = old if step != "mkdir" else History()
            before = files(start.save(folder))
            with failing(step, nth) as failed:
                new.save(folder)
            if failed:
                reached.add(step)
                after = files(folder)
                assert before.items() <= after.items() or History.load(folder) == new
                assert History.load(folder) in (start, new)
                assert not [name for name in after if "tmp" in name]
                new.save(folder)
            assert History.load(folder) == new
    assert reached == set(STEPS)


@contextmanager
def failing(step: str, nth: int) -> Iterator[list[OSError]]:
    """The disk is full at the *nth* call of that function of `os`; tells whether that came."""
    real, calls = getattr(os, step), count()
    full_disk = OSError(errno.ENOSPC, "No space left on device")
    failed: list[OSError] = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == nth:
            raise full_disk
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, step, fail)
        try:
            yield failed
        except OSError as error:
            failed.append(error)
    assert failed in ([], [full_disk])


@pytest.mark.parametrize("limit", [0, 10, 250, 1000])
def test_a_write_that_fails_half_way_leaves_the_old_history(limit: int, tmp_path: Path) -> None:
    old = History(messages=(user("1"),))
    new = full(bytes(100_000))
    folder = old.save(tmp_path / "folder")
    before = files(folder)
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, was[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            new.save(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)
    assert History.load(folder) == old
    assert before.items() <= files(folder).items()
    assert not [name for name in files(folder) if "tmp" in name]


def test_what_interrupts_a_save_is_not_lost_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    def interrupted() -> None:
        with FolderWriter(tmp_path) as writer, writer.history() as file:
            file.write(b"{")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files(tmp_path) == {}


def test_the_history_is_committed_after_all_that_it_names_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(opened: int) -> None:
        name = os.path.relpath(path_of(opened), tmp_path)
        events.append("sync " + re.sub(r"[^/]*\.tmp", "TEMPORARY", name))
        real_fsync(opened)

    def replace(source: str, target: str, **at: int) -> None:
        assert re.fullmatch(r"\.[0-9a-f]{16}\.tmp", source)
        assert at["src_dir_fd"] == at["dst_dir_fd"]
        events.append(f"replace {target}")
        real_replace(source, target, **at)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    pictured(PICTURE).save(tmp_path / "a" / "b")
    attachment = ["sync a/b/attachments/TEMPORARY", f"replace {PICTURE.stored_name}"]
    commit = ["sync a/b/TEMPORARY", "replace history.json", "sync a/b"]
    assert events == ["sync a", "sync .", "sync a/b", *attachment, "sync a/b/attachments", *commit]
    events.clear()
    # The folder is synced even so: a save that was killed may have left the file, but not its name.
    pictured(PICTURE).save(tmp_path / "a" / "b")
    assert events == ["sync a/b/attachments", *commit]
    events.clear()
    History().save(tmp_path / "a" / "b")
    assert events == commit


def test_a_folder_that_cannot_be_synced_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(opened: int) -> None:
        if path_of(opened).is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        real(opened)

    monkeypatch.setattr(os, "fsync", fsync)
    assert History.load(full().save(tmp_path)) == full()


SAVER = """
import os, signal, sys
from turnkeep.history import History
histories = [History.parse(text) for text in sys.argv[1:]]
for folder in sys.stdin:
    child = os.fork()
    if not child:
        signal.alarm(60)  # should nobody kill it
        while True:
            for history in histories:
                history.save(folder.strip())
    print(child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_killing_a_save_at_any_moment_leaves_a_whole_history(times: int, tmp_path: Path) -> None:
    rng = random.Random(times)
    whole = [full(), full(b"two"), full(b"three")]
    texts = [history.to_json() for history in whole]
    seen = set()
    with python(SAVER, *texts[1:]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(times):
            folder = full().save(tmp_path / str(number % 10))
            print(folder, file=process.stdin, flush=True)
            child = int(process.stdout.readline())
            time.sleep(rng.random() / 30)
            os.kill(child, signal.SIGKILL)
            assert process.stdout.readline() == "dead\n"
            seen.add(texts.index(History.load(folder).to_json()))
        process.stdin.close()
    assert seen & {1, 2}


def test_threads_that_save_at_once_leave_one_of_their_histories(tmp_path: Path) -> None:
    made = [full(bytes([number])) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            assert set(threads.map(lambda history: history.save(tmp_path), made)) == {tmp_path}
            assert History.load(tmp_path) in made
    assert not [name for name in files(tmp_path) if "tmp" in name]


def test_the_parts_serve_a_stream(tmp_path: Path) -> None:
    """A history can be written and read one message at a time, with the same bytes and values."""
    history = full()
    expected = files(history.save(tmp_path / "whole"))

    def dicts() -> Any:
        for message in history.messages:
            for attachment in message.attachments:
                writer.attachment(attachment)
            yield message_to_dict(message, by_file)

    with FolderWriter(tmp_path / "stream") as writer, writer.history() as file:
        file.writelines(text.encode() for text in layout(dicts()))
    assert files(tmp_path / "stream") == expected
    with FolderReader(tmp_path / "stream") as reader:
        with reader.open_history() as opened:
            raw = json.load(opened)
        check_version(raw["version"])
        read = [message_from_dict(m, "here", reader.attachment) for m in raw["messages"]]
    check_order(iter(read))
    assert tuple(read) == history.messages
