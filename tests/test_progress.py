"""What is told of progress is told to a function, or the call does nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contention import header, said
from turnkeep import History, InvalidArgument, Message, SQLStore

CALLS: dict[str, Callable[[SQLStore, Path, Any], object]] = {
    "prune": lambda store, _, given: store.prune(keep_last=0, progress=given),
    "erase": lambda store, _, given: store.erase_namespace(progress=given),
    "verify": lambda store, _, given: [*store.verify(progress=given)],
    "export": lambda store, folder, given: store.export_folder("s", folder / "o", progress=given),
    "import": lambda store, folder, given: store.import_folder(
        folder / "history", cwd="/w", progress=given
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_progress_is_told_to_is_a_function(
    store: SQLStore, tmp_path: Path, call: Callable[[SQLStore, Path, Any], object]
) -> None:
    History(messages=(Message(id="1", role="user", content="x"),)).save(tmp_path / "history")
    store.extend("s", [header("s"), said("x")])
    before = store.read("s")
    for given in (5, "print", ["a list"]):
        with pytest.raises(InvalidArgument, match=r"^progress: "):
            call(store, tmp_path, given)
    assert [found.id for found in store.list()] == ["s"]
    assert store.read("s") == before
    assert not (tmp_path / "o").exists()
