"""The loader and its sessions: each law on SQLite, Postgres and JSONL, sync and async."""

import asyncio
import contextlib
import dataclasses
import inspect
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import URL

import killed
import turnkeep.dialect.sqlite
import turnkeep.recorder
import turnkeep.sql
from servers import PostgresServer
from turnkeep import (
    AsyncLoader,
    AsyncSession,
    AsyncSQLStore,
    Entry,
    Header,
    InvalidArgument,
    InvalidEntry,
    JSONLStore,
    Limits,
    Loader,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    Session,
    SkillEntry,
    Snapshot,
    SQLStore,
    Unavailable,
    UnknownSession,
)
from turnkeep.entries import recorded_at

Message = dict[str, Any]
HELLO: Message = {"role": "user", "content": "Hello"}
ANSWER: Message = {"role": "assistant", "content": "Hello! What shall we do?"}


# ------------------------------------------------------------------------------ what it runs on


class FourMethods:
    """A store with no more than the four methods, around any."""

    def __init__(self, store: Any) -> None:
        self.wrapped = store

    def append(self, id: str, entry: Entry) -> object:
        return self.wrapped.append(id, entry)

    def read(self, id: str) -> "list[Entry]":
        return cast("list[Entry]", self.wrapped.read(id))

    def list(self, cwd: str | None = None) -> "list[Header]":
        return cast("list[Header]", self.wrapped.list(cwd))

    def delete(self, id: str) -> object:
        return self.wrapped.delete(id)


class Plain:
    """The least that a store can do: it keeps what it is given, times that go backwards too."""

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[datetime, list[Entry]]] = {}

    def append(self, id: str, entry: Entry) -> None:
        if not isinstance(entry, Header) and id not in self.sessions:
            raise UnknownSession(id)
        self.sessions[id] = (datetime.now(UTC), [*self.read(id), entry])

    def read(self, id: str) -> "list[Entry]":
        return self.sessions[id][1] if id in self.sessions else []

    def list(self, cwd: str | None = None) -> "list[Header]":
        found = [(updated, entries[0]) for updated, entries in self.sessions.values()]
        headers = [dataclasses.replace(cast("Header", h), updated=updated) for updated, h in found]
        return [header for header in headers if cwd in (None, header.cwd)]

    def delete(self, id: str) -> None:
        self.sessions.pop(id, None)


class Awaited:
    """Any sync store as an async one, each of whose calls lets others go first."""

    def __init__(self, store: Any) -> None:
        self.wrapped = store

    async def append(self, id: str, entry: Entry) -> object:
        await asyncio.sleep(0)
        return self.wrapped.append(id, entry)

    async def read(self, id: str) -> "list[Entry]":
        await asyncio.sleep(0)
        return cast("list[Entry]", self.wrapped.read(id))

    async def list(self, cwd: str | None = None) -> "list[Header]":
        await asyncio.sleep(0)
        return cast("list[Header]", self.wrapped.list(cwd))

    async def delete(self, id: str) -> object:
        await asyncio.sleep(0)
        return self.wrapped.delete(id)


class AwaitedWithExtend(Awaited):
    async def extend(self, id: str, entries: "list[Entry]") -> object:
        await asyncio.sleep(0)
        return self.wrapped.extend(id, entries)


class Blocking:
    """An async loader, session or store whose methods return when they are done."""

    def __init__(self, runner: asyncio.Runner, wrapped: Any) -> None:
        self.runner = runner
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.wrapped, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            result = self.runner.run(found(*args, **options))
            return Blocking(self.runner, result) if isinstance(result, AsyncSession) else result

        return call


class Home:
    """Where sessions are kept. Its loaders are sync, or async ones behind `Blocking`.

    Attributes:
        store: the store, for sync callers.
    """

    def __init__(self, store: Any, runner: asyncio.Runner | None = None) -> None:
        self.runner = runner
        self._given = store
        self.store = store if runner is None else Blocking(runner, store)

    def loader(self, cwd: str | Path = "/w", **options: Any) -> Any:
        given = {"store": self._given, **options}
        if self.runner is None:
            return Loader(cwd, **given)
        return Blocking(self.runner, AsyncLoader(cwd, **given))

    def ids(self) -> list[str]:
        return [header.id for header in self.store.list()]


SYNC_HOMES = ["sqlite", "postgres", "jsonl", "four methods", "plain"]
ASYNC_HOMES = ["aiosqlite", "psycopg", "asyncpg", "awaited"]
DRIVERS = {
    "postgres": "postgresql+psycopg",
    "psycopg": "postgresql+psycopg_async",
    "asyncpg": "postgresql+asyncpg",
}

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> Iterator[URL]:
    """A database on the server, with the tables."""
    url = postgres.create_database("loader")
    with SQLStore(url) as store:
        store.upgrade()
    yield url
    postgres.drop_database("loader")


@pytest.fixture(params=SYNC_HOMES + ASYNC_HOMES)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """An empty place for sessions of each kind, for a sync or an async app."""
    kind = request.param
    namespace = f"test {next(_numbers)}"
    url: Any = "sqlite://"
    if kind in DRIVERS:
        url = request.getfixturevalue("server").set(drivername=DRIVERS[kind])
    if kind == "jsonl":
        yield Home(JSONLStore(tmp_path))
    elif kind == "plain":
        yield Home(Plain())
    elif kind in SYNC_HOMES:
        with SQLStore(url, namespace=namespace) as store:
            yield Home(FourMethods(store) if kind == "four methods" else store)
    else:
        with asyncio.Runner() as runner:
            if kind == "awaited":
                yield Home(Awaited(JSONLStore(tmp_path)), runner)
            else:
                other = AsyncSQLStore(url, namespace=namespace)
                yield Home(other, runner)
                runner.run(other.close())


@pytest.fixture
def memory() -> Iterator[SQLStore]:
    with SQLStore("sqlite://") as store:
        yield store


class Clock:
    """The time, which a test sets; each look at it takes a millisecond."""

    now = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    class Datetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            clock.now += timedelta(milliseconds=1)
            return clock.now.astimezone(tz)

    for module in (turnkeep.recorder, turnkeep.sql, turnkeep.dialect.sqlite):
        monkeypatch.setattr(module, "datetime", Datetime)
    return clock


def timeless(entries: Sequence[Entry]) -> list[Message]:
    """Entries but for what tells when they were made."""
    raws: list[Message] = [entry.to_dict() for entry in entries]
    for raw in raws:
        raw.pop("recorded_at", None)
        raw.pop("created_at", None)
    return raws


# --------------------------------------------------------------------------------- the recorder


def test_nothing_is_written_before_the_first_message(home: Home) -> None:
    loader = home.loader()
    session = loader.start("m0")
    session.switch_model("m1")
    session.activate_skill("a")
    session.switch_reasoning("high")
    session.add_message({"role": "system", "content": "You are kind."})
    session.switch_model("m2")
    session.add_message({"role": "developer", "content": "Be brief."})
    assert home.store.list() == home.store.read(session.id) == []
    assert loader.continue_() is loader.resume(session.id) is None
    assert (session.model, session.reasoning) == ("m2", "high")
    assert session.snapshot == Snapshot(session.id, [], "m2", "high", ["a"])
    session.add_message(HELLO)
    session.add_message({"role": "system", "content": "You are kind."})
    session.add_message(ANSWER)
    header, *entries = home.store.read(session.id)
    assert timeless([header]) == [
        {
            "type": "header",
            "schema_version": 1,
            "id": session.id,
            "cwd": "/w",
            "model": "m2",
            "riffer_rig_version": "",
            "riffer_version": "",
            "title": "Hello",
        }
    ]
    assert timeless(entries) == timeless(
        [
            *(ModelEntry("m1"), SkillEntry("a"), ReasoningEntry("high"), ModelEntry("m2")),
            *(MessageEntry(HELLO), MessageEntry(ANSWER)),
        ]
    )
    assert home.ids() == [session.id]
    assert session.snapshot == Snapshot(session.id, [HELLO, ANSWER], "m2", "high", ["a"])


def test_switches_and_skills_are_written_as_they_happen(home: Home) -> None:
    session = home.loader().start("m0")
    session.add_message(HELLO)
    expected: list[Entry] = [MessageEntry(HELLO)]
    for do, entry in (
        (session.switch_model, ModelEntry("m1")),
        (session.activate_skill, SkillEntry("a")),
        (session.switch_reasoning, ReasoningEntry("low")),
        (session.activate_skill, SkillEntry("a")),
    ):
        do(getattr(entry, entry.type))
        expected.append(entry)
        assert timeless(home.store.read(session.id)[1:]) == timeless(expected)
    assert home.store.read(session.id)[0].model == "m0"
    assert (session.model, session.reasoning) == ("m1", "low")
    assert session.snapshot == Snapshot(session.id, [HELLO], "m1", "low", ["a", "a"])


def test_what_is_refused_is_not_written_and_does_no_harm(home: Home) -> None:
    loader = home.loader()
    session = loader.start("m")
    for message in ({"role": "user", "content": float("nan")}, [HELLO], None):
        with pytest.raises(InvalidEntry):
            session.add_message(message)
    with pytest.raises(InvalidEntry):
        session.switch_reasoning(1)
    with pytest.raises(InvalidEntry):
        session.activate_skill(None)
    for model in (None, 1, "a\0", "\ud800"):
        with pytest.raises(InvalidArgument, match=r"^model: "):
            session.switch_model(model)
        with pytest.raises(InvalidArgument, match=r"^model: "):
            loader.start(model)
    assert home.store.list() == []
    session.add_message(HELLO)
    with pytest.raises(InvalidEntry):
        session.add_message({"role": "user", "content": {1}})
    assert timeless(home.store.read(session.id)[1:]) == timeless([MessageEntry(HELLO)])
    assert session.snapshot == Snapshot(session.id, [HELLO])


def test_times_are_those_of_what_happened_and_never_go_backwards(home: Home, clock: Clock) -> None:
    loader = home.loader()
    session = loader.start("m")
    session.activate_skill("a")
    clock.now += timedelta(minutes=10)
    session.add_message(HELLO)
    header, skill, hello = home.store.read(session.id)
    assert header.created_at == hello.recorded_at
    assert hello.recorded_time - skill.recorded_time >= timedelta(minutes=10)
    clock.now -= timedelta(hours=1)
    session.add_message(ANSWER)
    session.switch_model("n")
    resumed = loader.resume(session.id)
    resumed.add_message(HELLO)
    session.add_message(ANSWER)
    stamps = [recorded_at(entry) or "" for entry in home.store.read(session.id)[1:]]
    assert len(stamps) == 6
    assert stamps == sorted(stamps)
    assert {len(stamp) for stamp in stamps} == {24}
    assert set(stamps[2:]) == {hello.recorded_at}
    clock.now += timedelta(hours=2)
    resumed.add_message(ANSWER)
    last = home.store.read(session.id)[-1]
    assert last.recorded_time - hello.recorded_time >= timedelta(minutes=59)


def test_a_title_is_the_first_line_of_the_first_prompt(home: Home) -> None:
    loader = home.loader()
    blocks = [{"type": "image", "source": {}}, {"type": "text", "text": "What is this?"}]
    for first, title in (
        ("  \n\t\n  Mend the door \nand the roof", "Mend the door"),
        (blocks, "What is this?"),
        ("a\x1b\x07b\u202ec", "abc"),
        ("a\0b\ud83d c", "ab c"),
        ("x" * 300, "x" * 200),
        ("x" * 199 + "e\u0301", "x" * 199),
        ("", ""),
        (None, ""),
        ([{"type": "image"}], ""),
    ):
        session = loader.start("m")
        session.add_message({"role": "user", "content": first})
        session.add_message({"role": "user", "content": "Later"})
        assert home.store.read(session.id)[0].title == title
        assert session.id in home.ids()
    for message in (ANSWER, HELLO | {"kind": "reference"}):
        session = loader.start("m")
        session.add_message(message)
        session.add_message(HELLO)
        assert home.store.read(session.id)[0].title == ""


def test_what_waits_for_the_store_is_stamped_when_it_happened(clock: Clock) -> None:
    async def main(store: "Slow") -> None:
        session = await AsyncLoader("/w", store=store).start("m")
        calls = [asyncio.create_task(session.add_message(message)) for message in (HELLO, ANSWER)]
        await asyncio.sleep(0)
        clock.now += timedelta(minutes=10)
        store.may_go_on.set()
        await asyncio.gather(*calls)

    with SQLStore("sqlite://") as memory:
        asyncio.run(main(Slow(memory)))
        [header] = memory.list()
        hello, answer = memory.read(header.id)[1:]
        first, second = (cast("MessageEntry", each).recorded_time for each in (hello, answer))
        assert first is not None
        assert second is not None
        assert timedelta(0) < second - first < timedelta(seconds=1)


class Slow(Awaited):
    """Its appends wait."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.may_go_on = asyncio.Event()

    async def append(self, id: str, entry: Entry) -> object:
        await self.may_go_on.wait()
        return self.wrapped.append(id, entry)


# ---------------------------------------------------------------------------------- the loader


def test_a_resumed_session_goes_on_behind_its_one_header(home: Home) -> None:
    loader = home.loader()
    first = loader.start("m0")
    first.add_message(HELLO)
    assert (loader.resume(first.id).model, loader.resume(first.id).reasoning) == ("m0", None)
    first.switch_model("m1")
    first.switch_reasoning("high")
    first.activate_skill("a")
    before = home.store.read(first.id)
    for again in (loader.resume(first.id), loader.continue_()):
        assert (again.id, again.model, again.reasoning) == (first.id, "m1", "high")
        assert again.snapshot == first.snapshot
        assert again.snapshot == Snapshot(first.id, [HELLO], "m1", "high", ["a"])
        assert home.store.read(first.id) == before
    again.activate_skill("b")
    again.add_message(ANSWER)
    entries = home.store.read(first.id)
    assert entries[: len(before)] == before
    assert timeless(entries[len(before) :]) == timeless([SkillEntry("b"), MessageEntry(ANSWER)])
    assert loader.resume(first.id).snapshot == again.snapshot


def test_a_turn_that_was_cut_off_resumes_sendable_and_is_stored_as_it_was(home: Home) -> None:
    loader = home.loader()
    session = loader.start("m")
    call = {"call_id": "c", "name": "ls", "arguments": "{}"}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    session.add_message(HELLO)
    session.add_message(asked)
    again = loader.resume(session.id)
    answer = again.snapshot.messages[2]
    assert (answer["tool_call_id"], answer["error_type"]) == ("c", "interrupted")
    again.add_message(HELLO)
    assert again.snapshot.messages == [HELLO, asked, answer, HELLO]
    stored = [entry.message for entry in home.store.read(session.id)[1:]]
    assert stored == [HELLO, asked, HELLO]


def test_a_session_of_a_header_alone_resumes_empty(home: Home) -> None:
    header = Header(id="s1", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")
    home.store.append("s1", header)
    session = home.loader().continue_()
    assert (session.snapshot, session.model) == (Snapshot("s1"), "m")
    session.add_message(HELLO)
    assert home.store.read("s1")[0] == header
    assert len(home.store.read("s1")) == 2


def test_sessions_are_continued_and_listed_by_directory(home: Home) -> None:
    here, there = home.loader("/w/a"), home.loader("/w/b")
    made = {}
    for name, loader in (("a1", here), ("b1", there), ("a2", here), ("b2", there)):
        made[name] = loader.start("m")
        made[name].add_message({"role": "user", "content": name})
        _tick(home, made[name].id)

    def titles(headers: list[Header]) -> list[str]:
        assert all(header.updated is not None for header in headers)
        return [header.title for header in headers]

    assert titles(here.list()) == ["a2", "a1"]
    assert titles(there.list(all=True)) == ["b2", "a2", "b1", "a1"]
    assert here.continue_().id == made["a2"].id
    made["a1"].add_message(ANSWER)
    assert here.continue_().id == made["a1"].id
    assert titles(here.list(all=True)) == ["a1", "b2", "a2", "b1"]
    # Wherever it was begun, and it stays there.
    moved = there.resume(made["a1"].id)
    moved.add_message(HELLO)
    assert there.continue_().id == made["b2"].id
    assert titles(here.list()) == ["a1", "a2"]
    there.delete(made["a1"].id)
    there.delete("nobody")
    assert there.resume(made["a1"].id) is None
    assert here.continue_().id == made["a2"].id
    assert here.resume("nobody") is here.resume("\0") is None
    assert home.loader("/w").continue_() is None
    assert home.loader("/w").list() == []


def _tick(home: Home, id: str) -> None:
    """Wait till a change would have a later `updated` than session *id* has: files have the time
    of the last tick of the kernel, which may be every 10 ms.
    """
    [updated] = [header.updated for header in home.store.list() if header.id == id]
    assert updated is not None
    while datetime.now(UTC) <= updated + timedelta(milliseconds=20):
        pass


def test_a_deleted_session_does_not_begin_again(home: Home) -> None:
    loader = home.loader()
    session = loader.start("m")
    session.add_message(HELLO)
    loader.delete(session.id)
    for _ in range(2):
        with pytest.raises(UnknownSession):
            session.add_message(ANSWER)
        with pytest.raises(UnknownSession):
            session.switch_model("n")
    assert home.store.list() == []
    assert (session.snapshot, session.model) == (Snapshot(session.id, [HELLO]), "m")


def test_build_makes_what_the_loader_gives(home: Home) -> None:
    given: list[tuple[Any, dict[str, object]]] = []

    def build(session: Any, **options: object) -> dict[str, object]:
        given.append((session, options))
        return {"id": session.id}

    loader = home.loader(build=build)
    options = {"tools": ["a"], "store": None}
    assert loader.continue_(**options) is loader.resume("nobody", **options) is None
    assert given == []
    started = loader.start("m", **options)
    session = given[0][0]
    (home.runner.run if home.runner else lambda done: done)(session.add_message(HELLO))
    assert loader.continue_(**options) == loader.resume(session.id, **options) == started
    assert [made for _, made in given] == [options] * 3
    kinds = {type(session) for session, _ in given}
    assert kinds == {Session if home.runner is None else AsyncSession}
    with pytest.raises(TypeError):
        home.loader(build=lambda session: session).start("m", more=1)


def test_without_a_store_nothing_is_saved_or_found(home: Home) -> None:
    loader = home.loader(store=None)
    session = loader.start("m")
    session.activate_skill("a")
    session.add_message(HELLO)
    session.switch_model("n")
    session.add_message(ANSWER)
    assert session.snapshot == Snapshot(session.id, [HELLO, ANSWER], "n", None, ["a"])
    assert loader.continue_() is loader.resume(session.id) is None
    assert loader.list() == loader.list(all=True) == []
    loader.delete(session.id)
    assert home.store.list() == []


def test_an_app_that_is_killed_between_turns_goes_on_in_its_session(
    tmp_path: Path, server: URL
) -> None:
    places = [
        ("sync", f"sqlite:///{tmp_path / 'sync.db'}"),
        ("sync", server.render_as_string(hide_password=False)),
        ("jsonl", str(tmp_path / "home")),
        ("async", f"sqlite:///{tmp_path / 'async.db'}"),
    ]
    for kind, place in places:
        for number in ("1", "2"):
            command = [sys.executable, "-W", "error", killed.__file__, kind, place, number]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == -signal.SIGKILL, done.stderr
        store_: Any = JSONLStore(place) if kind == "jsonl" else SQLStore(place)
        [header] = store_.list("/w")
        entries = store_.read(header.id)
        assert [entry.type for entry in entries] == ["header"] + ["message"] * 4
        told = [entry.message["content"] for entry in entries[1:]]
        assert told == [f"{who} {n}" for n in "12" for who in ("prompt", "answer")]
        stamps = [entry.recorded_at for entry in entries[1:]]
        assert stamps == sorted(stamps)
        if kind != "jsonl":
            store_.close()


# --------------------------------------------------------------------- whatever store it is given


class Wrong(FourMethods):
    """It lists sessions in a wrong order, and has a limit that takes the first of them."""

    def list(self, cwd: str | None = None, limit: int | None = None) -> "list[Header]":
        return super().list(cwd)[::-1][:limit]


class Same(FourMethods):
    """All its sessions changed at the same time."""

    def list(self, cwd: str | None = None) -> "list[Header]":
        return [dataclasses.replace(h, updated=Clock.now) for h in super().list(cwd)]


class Never(FourMethods):
    """It doesn't know when its sessions changed."""

    def list(self, cwd: str | None = None) -> "list[Header]":
        return [dataclasses.replace(h, updated=None) for h in super().list(cwd)][::-1]


@pytest.mark.parametrize("kind", [Wrong, Same, Never])
@pytest.mark.parametrize("is_async", [False, True])
def test_the_order_of_the_store_does_not_count(
    kind: type[FourMethods], is_async: bool, memory: SQLStore
) -> None:
    for id in ("s1", "s3", "s2"):
        header = Header(id=id, cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")
        memory.append(id, header)
    with asyncio.Runner() as runner:
        store = kind(memory)
        home = Home(Awaited(store) if is_async else store, runner if is_async else None)
        loader = home.loader()
        order = ["s2", "s3", "s1"] if kind is Wrong else ["s3", "s2", "s1"]
        assert [header.id for header in loader.list()] == order
        assert loader.continue_().id == order[0]


class Watched(FourMethods):
    """It notes which methods are called."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.calls: list[str] = []

    def append(self, id: str, entry: Entry) -> object:
        self.calls.append(f"append {entry.type}")
        return super().append(id, entry)

    def read(self, id: str) -> "list[Entry]":
        self.calls.append("read")
        return super().read(id)


class WatchedWithExtend(Watched):
    def extend(self, id: str, entries: "list[Entry]") -> object:
        self.calls.append("extend " + " ".join(entry.type for entry in entries))
        return self.wrapped.extend(id, entries)


class Delegating(Watched):
    """It looks at appends, and hands on all else."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


class Overriding(SQLStore):
    """A SQLStore of which only `append` is another."""

    calls: list[str]

    def append(self, id: str, entry: Entry, **options: Any) -> int:
        self.calls.append(f"append {entry.type}")
        return super().append(id, entry, **options)


def test_the_first_message_is_one_transaction_where_the_store_can() -> None:
    one_by_one = ["append header", "append model", "append message"]
    at_once = ["extend header model message"]
    with SQLStore("sqlite://") as memory, Overriding("sqlite://") as overriding:
        stores: list[tuple[Any, list[str]]] = [
            (Watched(memory), one_by_one),
            (WatchedWithExtend(memory), at_once),
            (Delegating(memory), one_by_one),
            (overriding, one_by_one),
        ]
        for store, calls in stores:
            store.calls = []
            session = Loader("/w", store=store).start("m")
            session.switch_model("n")
            session.add_message(HELLO)
            assert store.calls == calls
            session.add_message(ANSWER)
            session.activate_skill("a")
            assert store.calls == [*calls, "append message", "append skill"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_first_message_that_cannot_be_stored_leaves_nothing(
    is_async: bool, tmp_path: Path
) -> None:
    url, limits = f"sqlite:///{tmp_path / 'chats.db'}", Limits(entry=1000)
    with asyncio.Runner() as runner, SQLStore(url, limits=limits) as memory:
        other = AsyncSQLStore(url, limits=limits)
        home = Home(other, runner) if is_async else Home(memory)
        session = home.loader().start("m0")
        session.switch_model("m1")
        with pytest.raises(InvalidEntry, match="limit"):
            session.add_message({"role": "user", "content": "x" * 2000})
        assert home.store.list() == []
        session.switch_model("m2")
        session.add_message(HELLO)
        header, *entries = home.store.read(session.id)
        assert (header.title, header.model) == ("Hello", "m2")
        expected = [ModelEntry("m1"), ModelEntry("m2"), MessageEntry(HELLO)]
        assert timeless(entries) == timeless(expected)
        runner.run(other.close())


class Flaky(FourMethods):
    """Its writes fail when told to: before they are done, or after."""

    fails: tuple[int, str] | None = None
    """The number of the entry that fails, from now, and whether "before" or "after"."""

    def append(self, id: str, entry: Entry) -> object:
        return self._try(lambda: self.wrapped.append(id, entry))

    def _try(self, write: Callable[[], object]) -> object:
        if self.fails is not None:
            number, when = self.fails
            self.fails = (number - 1, when) if number else None
            if number == 0 and when == "after":
                write()
            if number == 0:
                raise Unavailable("the connection was lost")
        return write()


class FlakyWithExtend(Flaky):
    def extend(self, id: str, entries: "list[Entry]") -> object:
        return self._try(lambda: self.wrapped.extend(id, entries))


FAILURES = [
    *((Flaky, number, when) for number in range(4) for when in ("before", "after")),
    *((FlakyWithExtend, 0, when) for when in ("before", "after")),
]


@pytest.mark.parametrize(("kind", "number", "when"), FAILURES)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_failed_can_be_made_again_and_records_once(
    kind: type[Flaky], number: int, when: str, is_async: bool, memory: SQLStore
) -> None:
    """Whether the store had written it nevertheless, or half of it."""
    flaky = kind(memory)
    store: Any = flaky
    if is_async:
        store = AwaitedWithExtend(flaky) if kind is FlakyWithExtend else Awaited(flaky)
    with asyncio.Runner() as runner:
        home = Home(store, runner if is_async else None)
        session = home.loader().start("m")
        session.switch_model("n")
        session.activate_skill("a")
        flaky.fails = (number, when)
        with pytest.raises(Unavailable):
            session.add_message(HELLO)
        session.add_message(HELLO)
        steps = [
            *((session.add_message, ANSWER), (session.add_message, HELLO)),
            *((session.add_message, HELLO), (session.switch_reasoning, "low")),
            (session.activate_skill, "b"),
        ]
        for do, argument in steps:
            flaky.fails = (0, when)
            with pytest.raises(Unavailable):
                do(argument)
            do(argument)
        # Another call than the one that failed: what failed is there if the store had written it.
        flaky.fails = (0, when)
        with pytest.raises(Unavailable):
            session.activate_skill("c")
        session.add_message(ANSWER)
        kept = [SkillEntry("c")] if when == "after" else []
        expected: list[Entry] = [
            *(ModelEntry("n"), SkillEntry("a"), MessageEntry(HELLO)),
            *(MessageEntry(ANSWER), MessageEntry(HELLO), MessageEntry(HELLO)),
            *(ReasoningEntry("low"), SkillEntry("b"), *kept, MessageEntry(ANSWER)),
        ]
        header, *entries = memory.read(session.id)
        assert (header.model, header.title) == ("n", "Hello")  # type: ignore[attr-defined]
        assert timeless(entries) == timeless(expected)
        assert session.snapshot == Snapshot.of(session.id, entries)


def test_a_store_of_the_wrong_kind_is_refused_by_name(memory: SQLStore, tmp_path: Path) -> None:
    awaited: Any = Awaited(memory)
    plain: list[Any] = [memory, JSONLStore(tmp_path)]
    with pytest.raises(InvalidArgument, match=r"^store: .* use an AsyncLoader"):
        Loader("/w", store=awaited)
    for store in plain:
        with pytest.raises(InvalidArgument, match=r"^store: .* use a Loader"):
            AsyncLoader("/w", store=store)
    # What wraps one of them shows it at the first call.
    memory.append("s1", Header(id="s1", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m"))
    sync = Loader("/w", store=FourMethods(awaited))
    for call in (sync.list, sync.continue_, lambda: sync.resume("s1"), lambda: sync.delete("s1")):
        with pytest.raises(InvalidArgument, match=r"^store: .* use an AsyncLoader"):
            call()
    wrapped: Any = FourMethods(memory)
    asynchronous = AsyncLoader("/w", store=wrapped)
    for method in (asynchronous.list, asynchronous.continue_):
        with pytest.raises(InvalidArgument, match=r"^store: .* use a Loader"):
            asyncio.run(method())
    strange: list[Any] = ["sqlite://", object(), 1, False]
    for store in strange:
        for cls in (Loader, AsyncLoader):
            with pytest.raises(InvalidArgument, match=r"^store: has no method append"):
                cls("/w", store=store)
    assert [h.id for h in memory.list()] == ["s1"]


# ------------------------------------------------------------------------------------ the rest


def test_the_directory_is_made_absolute_by_its_text(
    memory: SQLStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    here = os.path.realpath(tmp_path)
    spelled: dict[Any, str] = {
        "/w/app": "/w/app",
        "/w/app/": "/w/app",
        "/w//app/.": "/w/app",
        "/w/x/../app": "/w/app",
        "/W/App": "/W/App",
        Path("/w/app"): "/w/app",
        "": f"{here}/real",
        ".": f"{here}/real",
        "..": here,
        "a/b": f"{here}/real/a/b",
        f"{here}/link": f"{here}/link",
    }
    loaders: dict[Any, Any] = {given: Loader(given, store=memory) for given in spelled}
    monkeypatch.chdir("/")
    assert {given: loader.cwd for given, loader in loaders.items()} == spelled
    loaders["/w/app"].start("m").add_message(HELLO)
    assert [h.cwd for h in loaders["/w/x/../app"].list()] == ["/w/app"]
    assert loaders["/W/App"].list() == []
    for cwd in ("/a\0b", b"/\xff".decode(errors="surrogateescape")):
        with pytest.raises(InvalidArgument, match=r"^cwd: "):
            Loader(cwd, store=memory)


def test_without_a_store_named_it_is_the_default_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("TURNKEEP_URL", url)
    with Loader("/w") as loader:
        session = loader.start("m")
        session.add_message(HELLO)

    async def go_on() -> None:
        async with AsyncLoader("/w") as loader:
            again = await loader.continue_()
            assert again is not None
            assert again.id == session.id
            await again.add_message(ANSWER)

    asyncio.run(go_on())
    with pytest.raises(Unavailable, match="closed"):
        session.add_message(HELLO)
    with SQLStore(url) as store:
        with Loader("/w", store=store) as loader:
            assert loader.list()[0].last_position == 2
        assert store.list()[0].id == session.id


def test_ids_sort_by_time_and_are_uuids_of_version_7(memory: SQLStore) -> None:
    loader = Loader("/w", store=memory)
    ids = [loader.start("m").id for _ in range(50)]
    assert len({*ids}) == 50
    assert {id[14] for id in ids} == {"7"}
    assert [id[:13] for id in ids] == sorted(id[:13] for id in ids)


def test_threads_share_a_session(tmp_path: Path) -> None:
    with SQLStore(f"sqlite:///{tmp_path / 'chats.db'}") as store:
        session = Loader("/w", store=store).start("m")
        contents = [str(number) for number in range(80)]
        with ThreadPoolExecutor(16) as threads:
            messages = [{"role": "user", "content": content} for content in contents]
            list(threads.map(session.add_message, messages))
        header, *entries = store.read(session.id)
        assert isinstance(header, Header)
        told = [cast("MessageEntry", entry).message for entry in entries]
        assert sorted(str(message["content"]) for message in told) == sorted(contents)
        assert session.snapshot.messages == told


def test_tasks_share_a_session_in_the_order_of_their_calls_and_over_several_loops(
    memory: SQLStore,
) -> None:
    session = asyncio.run(AsyncLoader("/w", store=Awaited(memory)).start("m"))
    contents = [str(number) for number in range(30)]

    async def add(some: list[str]) -> None:
        calls = [session.add_message({"role": "user", "content": content}) for content in some]
        await asyncio.gather(*calls)

    for place in (0, 10, 20):
        asyncio.run(add(contents[place : place + 10]))
    told = [cast("MessageEntry", entry).message for entry in memory.read(session.id)[1:]]
    assert [message["content"] for message in told] == contents
    assert session.snapshot.messages == told


def test_a_cancelled_call_of_a_session_records_behind_its_caller(memory: SQLStore) -> None:
    async def main() -> None:
        session = await AsyncLoader("/w", store=Awaited(memory)).start("m")
        contents = []
        for turns in range(12):
            content = str(turns)
            task = asyncio.create_task(session.add_message({"role": "user", "content": content}))
            for _ in range(turns):
                await asyncio.sleep(0)
            began = turns > 0
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            contents += [content] * began
            await session.activate_skill("a")
        told = [message["content"] for message in session.snapshot.messages]
        assert told == contents
        stored = memory.read(session.id)
        assert session.snapshot == Snapshot.of(session.id, stored)
        waiting = [
            asyncio.create_task(session.add_message({"role": "user", "content": content}))
            for content in ("first", "second", "third")
        ]
        await asyncio.sleep(0)
        waiting[1].cancel()  # it waits for the first one: nothing of it has begun
        await asyncio.wait(waiting)
        told = [message["content"] for message in session.snapshot.messages]
        assert told == [*contents, "first", "third"]

    asyncio.run(main())
