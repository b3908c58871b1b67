"""Errors of what comes from outside name the place and never what is there: entries, histories in
all their doors, files of JSONL, and the command line.
"""

import copy
import errno
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import URL

from leaks import SECRET, Watch, watching
from servers import free_port
from subjects import HISTORY, header, said
from turnkeep import (
    Entry,
    Header,
    History,
    JSONLStore,
    Loader,
    MessageEntry,
    Snapshot,
    SQLStore,
    ToolCall,
    TurnkeepError,
    UnknownEntry,
)
from turnkeep.cli.commands import turnkeep
from turnkeep.transcript import to_history

DATA = b64encode(SECRET.encode() * 2).decode()
URI = f"data:image/png;base64,{DATA}"
ARGUMENTS = json.dumps({"x": SECRET})

MESSAGES: dict[str, list[dict[str, Any]]] = {
    "history": [
        {
            "id": SECRET,
            "role": "assistant",
            "content": SECRET,
            "attachments": [{"mime": SECRET, "filename": SECRET, "data": DATA, "sha256": SECRET}],
            "tool_calls": [{"id": SECRET, "name": SECRET, "arguments": {"x": SECRET}}],
            "model_id": SECRET,
            "thinking": {"text": SECRET, "signature": SECRET},
            "tokens": {"input": 1},
        },
        {"id": "2", "role": "tool", "content": SECRET, "tool_call_id": SECRET},
    ],
    "riffer": [
        {
            "role": "user",
            "content": SECRET,
            "files": [{"media_type": "image/png", "data": DATA, "filename": SECRET}],
            "turnkeep": {"kind": SECRET, "attachments": [{"mime": SECRET, "data": SECRET}]},
        },
        {
            "role": "assistant",
            "content": SECRET,
            "tool_calls": [{"call_id": SECRET, "name": SECRET, "arguments": ARGUMENTS}],
            "reasoning": [{"type": SECRET, "text": SECRET}],
            "token_usage": {"input_tokens": SECRET},
        },
        {"role": "tool", "tool_call_id": SECRET, "content": SECRET},
    ],
    "anthropic": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": SECRET},
                {"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": DATA}},
                {"type": "tool_result", "tool_use_id": SECRET, "content": [{"type": SECRET}]},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": SECRET, "signature": SECRET},
                {"type": "tool_use", "id": SECRET, "name": SECRET, "input": {"x": SECRET}},
            ],
        },
    ],
    "openai": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": URI}},
                {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
                {"type": "file", "file": {"file_data": URI, "filename": SECRET}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": SECRET,
                    "type": "function",
                    "function": {"name": SECRET, "arguments": SECRET},
                }
            ],
        },
    ],
    "responses": [
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": URI}]},
        {"type": "function_call", "call_id": SECRET, "name": SECRET, "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": SECRET, "output": SECRET},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": SECRET}]},
    ],
}
JSON_VALUES: tuple[Any, ...] = (
    *(None, 7, -1, True, 1.5, 10**400, "", SECRET, [], {}, [SECRET], {"x": SECRET}),
    *(f"data:;base64,{SECRET}", f"https://{SECRET}/", "\ud83d" + SECRET, f"attachments/{'x' * 64}"),
)
OTHER_VALUES: tuple[Any, ...] = (
    *(float("nan"), {SECRET}, SECRET.encode(), object, (SECRET,), {1: SECRET}, 10**5000),
    {"\ud83d\ude00": SECRET, "\U0001f600": SECRET},
)


def changed(value: Any, *others: Any) -> Iterator[Any]:
    """*value* with each of its parts replaced by each of *others*, with each left out, and with one
    more beside it.
    """
    if isinstance(value, dict | list):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            for part in changed(value[key], *others):
                whole = copy.copy(value)
                whole[key] = part
                yield whole
            whole = copy.copy(value)
            del whole[key]
            yield whole
        yield value * 2 if isinstance(value, list) else {**value, SECRET[:4]: SECRET}
    yield from others


def tries(watch: Watch, where: str, call: Any, *arguments: Any) -> bool:
    """Whether *call* is refused, by an error of ours."""
    try:
        watch.look(where, [repr(call(*arguments))])
    except TurnkeepError as error:
        watch.error(where, error)
        return True
    return False


def test_a_history_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    whole = {"version": 1, "messages": MESSAGES["history"]}
    refused = 0
    with watching() as watch, SQLStore("sqlite://") as store:
        for raw in changed(whole, *JSON_VALUES, *OTHER_VALUES):
            refused += tries(watch, "from_dict", History.from_dict, raw)
            with suppress(TypeError, ValueError, RecursionError):
                text = json.dumps(raw)
                refused += tries(watch, "parse", History.parse, text)
                (tmp_path / "history.json").write_text(text)
                refused += tries(watch, "load", History.load, tmp_path)
                refused += tries(watch, "import", import_, store, tmp_path)
    assert refused > 1000


def import_(store: SQLStore, folder: Path) -> None:
    store.import_folder(folder, cwd="/w", id="s", replace=True)


def test_a_text_that_is_no_history_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    text = json.dumps({"version": 1, "messages": MESSAGES["history"]}).encode()
    cut = [text[:end] for end in range(0, len(text), 3)]
    spoilt = [text[:at] + b"\xff" + text[at:] for at in range(0, len(text), 7)]
    odd = [text[:at] + b"\\ud83d,NaN," + text[at:] for at in range(0, len(text), 7)]
    deep = b'["hush-4711-zz",' * 100_000
    with watching() as watch, SQLStore("sqlite://") as store:
        for given in [*cut, *spoilt, *odd, deep, text + text, text.decode().encode("utf-16")]:
            (tmp_path / "history.json").write_bytes(given)
            tries(watch, "parse", History.parse, given)
            tries(watch, "parse", History.parse, given.decode("utf-8", "surrogateescape"))
            tries(watch, "load", History.load, tmp_path)
            tries(watch, "import", import_, store, tmp_path)


@pytest.mark.parametrize("dialect", MESSAGES)
def test_a_session_is_no_history_without_a_word_of_it(dialect: str) -> None:
    refused = 0
    with watching() as watch:
        for messages in changed(MESSAGES[dialect], *JSON_VALUES):
            with suppress(ValueError):  # an entry that can't be made
                given = messages if isinstance(messages, list) else [messages]
                entries = [header("s"), *map(MessageEntry, given)]
                refused += tries(watch, "export", to_history, "s", entries, None)
                lossy: list[str] = []
                tries(watch, "lossy", to_history, "s", entries, lossy)
                watch.look("losses", lossy)
    assert refused > 100


ENTRIES: list[dict[str, Any]] = [
    header("s").to_dict(),
    said(picture=True).to_dict() | {"recorded_at": "2026-11-30T12:00:00.000Z"},
    {"type": "model", "model": SECRET},
    {"type": "odd", "x": [SECRET, {"y": SECRET}], "recorded_at": SECRET},
]


def test_an_entry_is_refused_without_a_word_of_it() -> None:
    refused = 0
    with watching() as watch:
        for raw in ENTRIES:
            for given in changed(raw, *JSON_VALUES, *OTHER_VALUES):
                if is_named(given):
                    continue
                for door in (Entry.from_dict, Header.from_dict, MessageEntry):
                    refused += tries(watch, "from_dict", door, given)
                refused += tries(watch, "unknown", UnknownEntry, "odd", given, SECRET)
                refused += tries(watch, "call", ToolCall, "1", "x", given)
                refused += tries(watch, "session", record, given)
        whole = Snapshot("s", [said().message], "m", "high", ["tea"]).to_dict()
        for given in changed(whole, *JSON_VALUES, *OTHER_VALUES):
            refused += tries(watch, "snapshot", resume, given)
    assert refused > 1000


def is_named(raw: Any) -> bool:
    """Whether the secret is a name in *raw*, a type or an id, which errors and reprs say."""
    given = raw if isinstance(raw, dict) else {}
    return any(isinstance(x, str) and SECRET in x for x in (given.get("type"), given.get("id")))


def resume(raw: Any) -> None:
    """Read a snapshot, whose repr says the names in it."""
    Snapshot.from_dict(raw)


def record(message: Any) -> None:
    """Record *message* in a live session."""
    if isinstance(message, dict):
        Loader("/w", store=None).start("m").add_message(message)


def test_a_damaged_file_is_read_without_a_word_of_it(tmp_path: Path) -> None:
    store = JSONLStore(tmp_path)
    for entry in (header("s"), said(), said(picture=True)):
        store.append("s", entry)
    [path] = tmp_path.rglob("*.jsonl")
    whole = path.read_bytes()
    lines = [json.dumps(raw).encode() for entry in ENTRIES for raw in changed(entry, *JSON_VALUES)]
    cut = [whole[:end] for end in range(0, len(whole), 5)]
    spoilt = [whole[:at] + b"\xff" + whole[at:] for at in range(0, len(whole), 11)]
    with watching() as watch:
        for given in [*cut, *spoilt, b"\n".join(lines), *(line + b"\n" + whole for line in lines)]:
            path.write_bytes(given)
            for call in (
                lambda: len(store.read("s")),
                lambda: len(store.list()),
                lambda: store.append("s", header("s", "another")),
                lambda: store.append("s", said()),
            ):
                tries(watch, "JSONL", call)
        assert "turnkeep.jsonl" in watch.loggers


def test_a_file_that_can_t_be_written_is_told_without_what_was_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JSONLStore(tmp_path)
    store.append("s", header("s"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watching() as watch:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            assert tries(watch, "write", store.append, "s", said())
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            assert tries(watch, "sync", store.append, "s", said())
            with pytest.raises(OSError, match="No space") as caught:
                HISTORY.save(tmp_path / "history")
            watch.error("save", caught.value)


COMMANDS = [
    ["db", "check"],
    ["db", "current"],
    ["db", "upgrade"],
    ["db", "verify"],
    ["db", "collect-orphans"],
    ["db", "none"],
    ["prune", "--keep-last", "1"],
    ["erase", "--yes", "n"],
    ["stats"],
]


def test_the_command_line_tells_no_password(postgres_url: URL, tmp_path: Path) -> None:
    odd = tmp_path / "odd.db"
    odd.write_text(SECRET * 1000)
    urls: list[str | URL] = [
        postgres_url,
        postgres_url.set(password=SECRET),
        postgres_url.set(username="nobody", password=SECRET),
        postgres_url.set(port=free_port()),
        postgres_url.update_query_dict({"password": SECRET}),
        f"postgresql://u:{SECRET}@@h/d",
        f"postgres:/u:{SECRET}@h/d",
        f"mysql://u:{SECRET}@h/d",
        f"sqlite:///{odd}",
        SECRET,
    ]
    with watching() as watch:
        for url in urls:
            given = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
            for command in COMMANDS:
                for arguments, env in (["--url", given], {}), ([], {"TURNKEEP_URL": given}):
                    line = [command[0], *arguments, *command[1:]]
                    result = CliRunner().invoke(turnkeep, line, env=env, input="n\n")
                    watch.look(str(command), [result.output])  # of both streams
                    assert result.exit_code in (0, 1, 2), result.exception
