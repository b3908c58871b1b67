"""A bad argument of a constructor or a method is said at once, by a typed error that names it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from turnkeep import (
    Header,
    History,
    InvalidArgument,
    InvalidEntry,
    MessageEntry,
    SQLStore,
    Unavailable,
    default_url,
)
from turnkeep.entries import from_row
from turnkeep.plans import Plan, drive
from turnkeep.recorder import Recorder
from turnkeep.snapshot import Snapshot

HEADER = Header(id="s", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")


@pytest.mark.parametrize("timeout", [None, "1", True, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("url", ["sqlite://", "postgresql://u@127.0.0.1:1/none"])
def test_a_timeout_is_a_number_of_seconds(url: str, timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^timeout: "):
        SQLStore(url, timeout=timeout)


def test_limits_are_limits() -> None:
    with pytest.raises(InvalidArgument, match=r"^limits: "):
        SQLStore("sqlite://", limits=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("updated", ["x", 1, datetime.now(UTC).replace(tzinfo=None)])
def test_a_list_goes_on_behind_a_header_that_it_gave(store: SQLStore, updated: Any) -> None:
    store.append("s", HEADER)
    with pytest.raises(InvalidArgument, match=r"^before: "):
        store.list(before=replace(HEADER, updated=updated))


def test_what_is_imported_is_a_history_at_a_time(store: SQLStore) -> None:
    with pytest.raises(InvalidArgument, match=r"^history: "):
        store.import_history({"messages": []}, cwd="/w")  # type: ignore[arg-type]
    with pytest.raises(InvalidEntry, match="recorded_at"):
        store.import_history(History(), cwd="/w", recorded_at="yesterday")
    assert store.list() == []


def test_a_data_directory_that_cannot_be_made_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("TURNKEEP_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="TURNKEEP_URL"):
        default_url()


def test_a_payload_with_a_key_twice_gives_the_last_each_time() -> None:
    entry = from_row("message", None, '{"message":{"a":1},"message":{"b":2}}')
    assert isinstance(entry, MessageEntry)
    assert [entry.message, entry.message] == [{"b": 2}, {"b": 2}]
    assert entry.to_dict() == {"type": "message", "message": {"b": 2}}


def test_a_plan_does_not_end_because_the_store_stops() -> None:
    def plan() -> Plan[str]:
        yield next
        return "done"

    with pytest.raises(StopIteration):
        drive(plan(), iter(()))
    assert drive(plan(), iter([1])) == "done"


def test_a_snapshot_holds_messages_as_deep_as_the_store_does() -> None:
    deep: Any = []
    for _ in range(198):
        deep = [deep]
    snapshot = Snapshot("s", [MessageEntry({"x": deep}).message])
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot


class Failing:
    """A store whose next append fails, before or after it wrote."""

    def __init__(self, store: SQLStore) -> None:
        self.store = store
        self.fails: str | None = None

    def append(self, id: str, entry: Any) -> object:
        fails, self.fails = self.fails, None
        if fails != "before":
            self.store.append(id, entry)
        if fails:
            raise Unavailable("gone")
        return None

    def read(self, id: str) -> Any:
        return self.store.read(id)


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_message_that_is_recorded_again_is_there_once_more_only(
    store: SQLStore, fails: str
) -> None:
    """Whether the first try was written or not, and whoever else wrote the same session."""
    failing = Failing(store)
    recorder = Recorder("/w", "m", id="s", saves=True, at_once=False)
    go = {"role": "user", "content": "go"}
    drive(recorder.add_message({"role": "user", "content": "1"}), failing)
    store.append("s", MessageEntry({"role": "user", "content": "another's"}))
    drive(recorder.add_message(go), failing)
    failing.fails = fails
    with pytest.raises(Unavailable):
        drive(recorder.add_message(go), failing)
    drive(recorder.add_message(go), failing)
    written = [e.message["content"] for e in store.read("s") if isinstance(e, MessageEntry)]
    assert written == ["1", "another's", "go", "go"]
    assert [message["content"] for message in recorder.snapshot.messages] == written
