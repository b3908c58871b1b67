"""What comes from a stranger takes memory in proportion to its size, and ends."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from sqlalchemy import URL

from turnkeep import Attachment, History, HistoryError, Message, SQLStore
from turnkeep import folder as folders
from turnkeep.folder import FolderReader, read

SIZE = 1 << 19
FACTORS = {"parse": 100, "load": 100, "import": 150}
"""How many bytes of memory a door takes for each byte that comes in, at the most: docs/security.md
says it.
"""


def repeated(text: str, between: str = ",") -> str:
    """So many of *text* that they are the size of a bomb."""
    return between.join([text] * (SIZE // (len(text.encode()) + 1)))


def listed(text: str) -> str:
    return f"[{repeated(text)}]"


def numbered(text: str) -> str:
    return ",".join(text.replace("#", str(n)) for n in range(SIZE // (len(text) + 6)))


def said(more: str = "", content: str = "") -> str:
    return f'{{"id":"#","role":"user","content":"{content}"{more}}}'


def called(argument: str) -> str:
    call = f'{{"id":"a","name":"b","arguments":{{"x":{argument}}}}}'
    return f'{{"id":"1","role":"assistant","content":"","tool_calls":[{call}]}}'


LIST = listed("[]")
INLINE = '{"mime":"a/b","filename":"","data":"#"}'
MESSAGES = {
    "many": numbered(said()),
    "a long text": said(content="x" * SIZE),
    "a long text of wide characters": said(content="x" * SIZE + "\U0001f600"),
    "a long text with half a pair": said(content="x" * SIZE + "\\ud83d"),
    "escaped": said(content=repeated("\\u0000", "")),
    "base64": said(f',"attachments":[{INLINE.replace("#", "AAAA" * (SIZE // 4))}]'),
    "attachments": said(f',"attachments":{listed(INLINE.replace("#", "").replace("a/b", ""))}'),
    "lists in arguments": called(LIST),
    "objects in arguments": called(listed("{}")),
    "numbers in arguments": called(listed("0.5")),
}
OTHERS = {
    "lists": LIST,
    "lists in lists": listed("[" * 150 + "]" * 150),
    "objects": listed("{}"),
    "objects with a member": listed('{"a":0}'),
    "keys": "{" + numbered('"#":0') + "}",
    "an endless list": "[" * SIZE,
    "an endless object": '{"":' * (SIZE // 4),
    "a number": "9" * SIZE,
    "a fraction": "0." + "9" * SIZE,
    "an exponent": "1e" + "9" * SIZE,
    "numbers": listed("9" * 4000),
    "half pairs": listed("[]")[:-1] + ',"\\ud83d"]',
}
BOMBS = {
    **{name: f'{{"version":1,"messages":[{each}]}}' for name, each in MESSAGES.items()},
    **{name: f'{{"x":{each},"version":1,"messages":[]}}' for name, each in OTHERS.items()},
    "no object": LIST,
}

SHORT = {"many", "base64", "lists in arguments", "lists", "an endless list", "numbers", "no object"}

CHILD = """
import json, os, resource, sys
from pathlib import Path
from turnkeep import History, HistoryError, SQLStore

door, factor, folders = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
said = {}
for folder in folders:
    reading, writing = os.pipe()
    if os.fork():  # each bomb has a process of its own
        os.close(writing)
        with os.fdopen(reading) as answer:
            said[Path(folder).name] = answer.read()
        if os.wait()[1]:
            said[Path(folder).name] = "was killed"
        continue
    file = Path(folder, "history.json")
    size = file.stat().st_size
    text = file.read_bytes() if door == "parse" else b""
    store = SQLStore("sqlite://")
    store.list()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + factor * size
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    answer = ""
    try:
        if door == "parse":
            History.parse(text)
        elif door == "load":
            History.load(folder)
        else:
            store.import_folder(folder, cwd="/w")
    except HistoryError as error:
        answer = f"HistoryError: {error}"
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    os.write(writing, answer[:1000].encode())
    os._exit(0)
print(json.dumps(said))
"""


def answers(door: str, factor: int, folder: Path, bombs: Iterable[str]) -> dict[str, str]:
    """What the *door* says to each of *bombs*, in a process that has *factor* times as much memory
    as comes in.
    """
    folders = [folder / str(number) for number, _ in enumerate(bombs)]
    for made, bomb in zip(folders, bombs, strict=True):
        made.mkdir()
        (made / "history.json").write_text(BOMBS[bomb], "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, door, str(factor), *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, str] = json.loads(done.stdout)
    return dict(zip(bombs, said.values(), strict=True))


@pytest.mark.parametrize(
    "bombs",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(BOMBS.keys() - SHORT, id="others", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("door", FACTORS)
def test_a_history_takes_so_many_times_its_size_in_memory(
    door: str, bombs: Set[str], tmp_path: Path
) -> None:
    said = answers(door, FACTORS[door], tmp_path, bombs)
    assert {bomb: each for bomb, each in said.items() if "memory" in each.lower()} == {}
    assert {each.partition(":")[0] for each in said.values()} == {"", "HistoryError"}


@pytest.mark.parametrize("door", FACTORS)
def test_where_memory_ends_a_history_is_too_large(door: str, tmp_path: Path) -> None:
    # Not one long text: msgspec doesn't look whether there was memory for it.
    said = answers(door, 1, tmp_path, ["lists in arguments", "lists in lists"])
    if door == "import":
        assert said.pop("lists in lists") == ""  # of these it has one at a time
    for each in said.values():
        assert re.match("HistoryError: .*too large to be held in memory", each), said


# Files


def history(data: bytes = b"x" * 100_000) -> History:
    attachments = (Attachment("a/b", "x.bin", data),)
    return History(
        messages=(Message(id="1", role="user", content="y" * 100_000, attachments=attachments),)
    )


def imported(folder: Path) -> None:
    with SQLStore("sqlite://") as store:
        store.import_folder(folder, cwd="/w")


def resumed(folder: Path) -> None:
    History.from_dict(history().to_dict(inline_attachments=False), folder)


@pytest.mark.parametrize(
    ("door", "grows"),
    [
        (History.load, ".json"),
        (History.load, ".bin"),
        (resumed, ".bin"),
        (imported, ".json"),
        (imported, ".bin"),
    ],
)
def test_a_file_that_grows_while_it_is_read_is_refused(
    door: Callable[[Path], object], grows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could grow for ever."""
    folder = history().save(tmp_path)
    opened = folders._open_regular

    def open_and_grow(path: str | Path, dir_fd: int | None = None) -> BinaryIO:
        file = opened(path, dir_fd)
        if Path(path).suffix == grows:
            with Path(f"/proc/self/fd/{file.fileno()}").open("ab") as other:
                other.write(b" " * 10)
        return file

    with monkeypatch.context() as patch:
        patch.setattr(folders, "_open_regular", open_and_grow)
        with pytest.raises(HistoryError, match="has grown while it was read"):
            door(folder)
    door(history().save(tmp_path / "again"))


def test_no_more_of_a_file_is_read_than_was_there(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_bytes(b"x" * 1000)
    with FolderReader(tmp_path) as reader, reader.open_history() as file:
        assert read(file, "it", 500) == b"x" * 500
        assert read(file, "it") == b"x" * 500
        assert read(file, "it") == b""
    with FolderReader(tmp_path) as reader, reader.open_history() as file:
        with (tmp_path / "history.json").open("ab") as other:
            other.write(b"y")
        with pytest.raises(HistoryError, match=r"^it: has grown while it was read$"):
            read(file, "it", 1000)


def test_a_small_folder_can_t_make_a_session_that_no_memory_holds(
    tmp_path: Path, sqlite_url: URL
) -> None:
    """A thousand times the same picture comes back a thousand times."""
    picture = Attachment("a/b", "x.bin", b"x" * (2 << 20))
    folder = History(
        messages=(Message(id="1", role="user", content="", attachments=(picture,)),)
    ).save(tmp_path)
    file = folder / "history.json"
    raw: Any = json.loads(file.read_text())
    raw["messages"][0]["attachments"] *= 1000
    file.write_text(json.dumps(raw))
    with SQLStore(sqlite_url) as store:
        with pytest.raises(ValueError, match="bytes of attachments in one entry"):
            store.import_folder(folder, cwd="/w")
        assert store.list() == []
    assert Path(str(sqlite_url.database)).stat().st_size < 1 << 20
