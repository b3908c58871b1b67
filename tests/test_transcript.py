"""Between a session and a History: what goes one way comes back the other, on every store."""

import copy
import itertools
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

import messages
from conftest import Backend
from histories import call, full, histories, keys, result, texts, user, values
from messages import CONVERSATION, WORDS
from turnkeep import (
    Entry,
    Header,
    HistoryError,
    InvalidArgument,
    InvalidEntry,
    JSONLStore,
    Limits,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    SessionExists,
    SkillEntry,
    SQLStore,
    UnknownEntry,
    UnknownSession,
    export_history,
    import_history,
)
from turnkeep.history import Attachment, History, Message, Thinking, Tokens
from turnkeep.message_dialects import Losses
from turnkeep.message_dialects.riffer import write
from turnkeep.payload import JsonObject
from turnkeep.transcript import Messages, to_history

HEADER = Header(id="s1", cwd="/w", created_at="2026-11-30T12:00:00.123Z", model="m")
numbers = itertools.count()


class Four:
    """A store that has the four methods, and no others."""

    def __init__(self, store: Any) -> None:
        self.append, self.read = store.append, store.read
        self.list, self.delete = store.list, store.delete


@pytest.fixture(params=["sql", "jsonl", "four"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, sqlite_url: Any) -> Iterator[Any]:
    """A store for the plain functions: one that does it itself, and two that don't."""
    if request.param == "jsonl":
        yield JSONLStore(tmp_path)
        return
    with SQLStore(sqlite_url) as store:
        yield store if request.param == "sql" else Four(store)


# There and back


LIFTED = "data:a/b;base64,QUJD"
EVERYWHERE = History(
    messages=tuple(
        Message(
            id=LIFTED + role,
            role=role,
            content=LIFTED,
            attachments=(Attachment(LIFTED, LIFTED, b"x"), Attachment("a", LIFTED, b"y")),
            model_id=LIFTED,
            thinking=Thinking(LIFTED, LIFTED),
        )
        for role in ("user", "assistant")
    )
)
"""Where not only the bytes of attachments are kept apart, but what stands beside them."""


@settings(max_examples=30)
@given(history=histories())
@example(history=full())
@example(history=EVERYWHERE)
def test_what_was_imported_is_exported_as_the_same_value(
    history: History, shared_store: SQLStore
) -> None:
    store = shared_store.with_namespace(f"there-{next(numbers)}")
    made = store.import_history(history, cwd="/w")
    assert store.export_history(made) == history
    assert export_history(store, made) == history
    # As entries it is what a recorder of riffer's shape would have written.
    called: dict[str, str] = {}
    wanted = []
    for message in history.messages:
        wanted.append(MessageEntry(write(message, called.get(message.tool_call_id or ""))))
        called |= {each.id: each.name for each in message.tool_calls}
    assert store.read(made)[1:] == wanted
    again = store.import_history(store.export_history(made), cwd="/w")
    assert store.read(again)[1:] == wanted


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories())
@example(history=full())
def test_the_plain_functions_do_the_same_over_any_store(history: History, any_store: Any) -> None:
    made = import_history(any_store, history, cwd="/w", recorded_at="2026-11-30T13:00:00+01:00")
    assert export_history(any_store, made) == history
    header, *entries = any_store.read(made)
    assert header.cwd == "/w"
    assert {entry.recorded_at for entry in entries} <= {"2026-11-30T12:00:00.000Z"}


def test_every_attachment_of_a_media_type_is_kept_once_apart_from_its_message(
    store: SQLStore,
) -> None:
    picture = Attachment("image/png", "a.png", b"\x89PNG" * 10)
    uri = "data:a/b;base64,QUJD"
    history = History(
        messages=(
            user("1", uri, attachments=(picture, Attachment("no type", "", b"plain"))),
            call("2", "a", attachments=(Attachment("a/b", "", b""), picture)),
            result("3", "a", attachments=(picture,)),
            user("4", kind="reference", attachments=(picture,)),
        )
    )
    made = store.import_history(history, cwd="/w")
    assert store.export_history(made) == history
    kept = [(a.position, a.mime, a.filename, a.size) for a in store.attachments(made)]
    assert kept == [
        (1, "a/b", None, 3),
        (1, "image/png", "a.png", 40),
        (2, "a/b", None, 0),
        (2, "image/png", "a.png", 40),
        (3, "image/png", "a.png", 40),
        (4, "image/png", "a.png", 40),
    ]
    assert len({a.digest for a in store.attachments(made)}) == 3
    held = [
        MessageEntry(write(m, "search" if m.role == "tool" else None)) for m in history.messages
    ]
    store.append("other", Header(id="other", cwd="", created_at=HEADER.created_at, model=""))
    store.extend("other", held)
    kept_by_append = [(a.position, a.mime, a.filename, a.size) for a in store.attachments("other")]
    assert kept_by_append == kept


ENTRIES = (
    st.builds(ModelEntry, texts)
    | st.builds(ReasoningEntry, texts)
    | st.builds(SkillEntry, texts)
    | st.builds(lambda data: UnknownEntry("turn", data), st.dictionaries(st.just("x"), values))
)


# Whatever is stored

odd_values: st.SearchStrategy[Any] = (
    values
    | st.sampled_from(WORDS)
    | st.sampled_from([[], {}, None, "", 5, True, [None], [[]], [{}], "a", {"type": "text"}])
    | st.sampled_from(CONVERSATION).map(lambda message: list(message.values())[-1])
)


@st.composite
def mutated(draw: st.DrawFn) -> JsonObject:
    """A message of one of the dialects in which something is not as it should be."""
    message: Any = json.loads(json.dumps(draw(st.sampled_from(CONVERSATION))))
    for _ in range(draw(st.integers(0, 3))):
        at, depth = message, draw(st.integers(0, 5))
        while depth:
            below = [
                v
                for v in (at.values() if isinstance(at, dict) else at)
                if v and isinstance(v, dict | list)
            ]
            if not below:
                break
            at, depth = draw(st.sampled_from(below)), depth - 1
        places = list(at) if isinstance(at, dict) else list(range(len(at)))
        new = copy.deepcopy(draw(odd_values))
        match draw(st.sampled_from(["change", "change", "remove", "add", "move"])):
            case "change" if places:
                at[draw(st.sampled_from(places))] = new
            case "remove" if places:
                del at[draw(st.sampled_from(places))]
            case "add" if isinstance(at, dict):
                at[draw(st.sampled_from(WORDS) | keys)] = new
            case "add":
                at.append(new)
            case _ if isinstance(at, dict) and places:
                at[draw(st.sampled_from(WORDS))] = at.pop(draw(st.sampled_from(places)))
    return message  # type: ignore[no-any-return]


any_message = mutated() | messages.messages() | st.dictionaries(keys, values, max_size=4)
sessions = st.lists(any_message.map(MessageEntry) | ENTRIES, max_size=8)


def exported(entries: list[Entry], lossy: list[str] | None = None) -> History:
    return to_history("s1", [HEADER, *entries], lossy)


@settings(max_examples=25)
@given(
    data=st.lists(ENTRIES | any_message.map(MessageEntry), max_size=6),
    recorded=st.booleans(),
)
def test_a_session_goes_from_jsonl_to_sql_and_back_as_it_was(
    data: list[Entry],
    recorded: bool,
    shared_store: SQLStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = JSONLStore(tmp_path_factory.mktemp("from"))
    home.append("s1", HEADER)
    for at, entry in enumerate(data):
        stamp: JsonObject = {"recorded_at": f"2026-11-30T12:00:00.{at:03}Z"} if recorded else {}
        home.append("s1", Entry.from_dict(entry.to_dict() | stamp))
    between = shared_store.with_namespace(f"between-{next(numbers)}")
    between.extend("s1", home.read("s1"))
    back = JSONLStore(tmp_path_factory.mktemp("to"))
    for entry in between.read("s1"):
        back.append("s1", entry)
    assert back.read("s1") == between.read("s1") == home.read("s1")
    there, here = (next(s._home.rglob("*.jsonl")) for s in (home, back))
    assert there.read_bytes() == here.read_bytes()


@settings(max_examples=200)
@given(sessions)
def test_whatever_is_stored_is_exported_and_what_is_not_is_named(entries: list[Entry]) -> None:
    lossy: list[str] = []
    history = exported(entries, lossy)
    assert History.parse(history.to_json()) == history
    for loss in lossy:
        found = re.match(r"entry (\d+): ", loss)
        assert found
        assert isinstance(entries[int(found[1]) - 1], MessageEntry)
    if lossy:
        with pytest.raises(HistoryError) as caught:
            exported(entries)
        assert str(caught.value) == f"{lossy[0]}: pass lossy=[] to go on without it"
    else:
        assert exported(entries) == history
    assert exported(entries, []) == history


@settings(max_examples=30)
@given(entries=sessions)
def test_a_database_exports_what_its_entries_say(
    entries: list[Entry], shared_store: SQLStore
) -> None:
    store = shared_store.with_namespace(f"odd-{next(numbers)}")
    store.extend("s1", [HEADER, *entries])
    lossy: list[str] = []
    wanted: list[str] = []
    assert store.export_history("s1", lossy=lossy) == exported(entries, wanted)
    assert lossy == wanted
    back = store.import_history(store.export_history("s1", lossy=[]), cwd="/w")
    assert store.export_history(back) == exported(entries, [])


@settings(max_examples=200)
@given(sessions, st.data())
def test_what_is_appended_later_changes_nothing_that_was_said(
    entries: list[Entry], data: st.DataObject
) -> None:
    before = exported(entries[: data.draw(st.integers(0, len(entries)))], []).messages
    after = exported(entries, []).messages
    assert before[:-1] == after[: max(0, len(before) - 1)]
    if before:
        # A turn that is kept as several items may go on.
        last, then = before[-1], after[len(before) - 1]
        assert (last.id, last.role) == (then.id, then.role)
        assert then == last or last.role == "assistant"
        assert then.content.startswith(last.content)
        assert then.tool_calls[: len(last.tool_calls)] == last.tool_calls


SECRET = "Pssst!"


@given(mutated())
def test_no_error_shows_what_a_message_says(message: JsonObject) -> None:
    """But for the type of a block, where that is a plain word; here all that is none is secret."""

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return value if value in WORDS else f"{SECRET}{value}"
        if isinstance(value, dict):
            return {k if k in WORDS else f"{SECRET}{k}": hide(v) for k, v in value.items()}
        return [hide(v) for v in value] if isinstance(value, list) else value

    lossy: list[str] = []
    exported([MessageEntry(hide(message))], lossy)
    assert SECRET not in "".join(lossy)


def test_an_export_that_fails_leaves_the_list_as_it_was(
    any_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy = ["before"]
    with pytest.raises(UnknownSession):
        export_history(any_store, "s1", lossy=lossy)
    for entry in (HEADER, MessageEntry({"odd": 1}), MessageEntry({"role": "user", "content": "x"})):
        any_store.append("s1", entry)
    with monkeypatch.context() as patch:
        patch.setattr(History, "__post_init__", _refuse)
        with pytest.raises(HistoryError, match=r"^refused$"):
            export_history(any_store, "s1", lossy=lossy)
    assert lossy == ["before"]
    export_history(any_store, "s1", lossy=lossy)
    assert lossy == ["before", "entry 1: a message in no known dialect"]


def _refuse(_: History) -> None:
    raise HistoryError("refused")


# Ids


def test_a_message_without_an_id_gets_one_that_says_where_it_was() -> None:
    plain: JsonObject = {"role": "user", "content": "x"}
    orphan: JsonObject = {"role": "tool", "content": "x", "tool_call_id": "c"}
    odd: JsonObject = {"odd": 1}
    found = exported(
        [
            MessageEntry({**plain, "id": "own"}),
            MessageEntry(plain),
            ModelEntry("m"),
            MessageEntry(orphan),  # is counted
            MessageEntry(odd),  # is no message at all
            MessageEntry({**plain, "id": "own"}),
            MessageEntry({**plain, "id": ""}),
            MessageEntry({**plain, "id": 5}),
        ],
        [],
    ).messages
    ids = [message.id for message in found]
    assert ids[0] == "own"
    assert [name[:18] for name in ids[1:]] == [f"01a22c53827b{i:06x}" for i in (1, 3, 4, 5)]
    assert all(re.fullmatch("[0-9a-f]{22}", name) for name in ids[1:])
    assert ids[1:] == sorted(ids[1:])
    # The end is that of the SHA-256 of the session's id, the number and a salt.
    assert ids[1] == "01a22c53827b000001568e"


def test_an_id_that_is_taken_is_not_given_again() -> None:
    plain: JsonObject = {"role": "user", "content": "x"}
    [first] = exported([MessageEntry(plain)]).messages
    taken = exported(
        [MessageEntry({**plain, "id": first.id[:16] + "01" + first.id[18:]})] * 2
    ).messages
    assert len({message.id for message in taken}) == 2
    # All that there can be of four digits are taken, and an id is found even so.
    messages = Messages("s1", HEADER, Losses(None))
    prefix = first.id[:18]
    messages._ids |= {f"{prefix}{tail:04x}" for tail in range(1 << 16)}
    [last] = messages.take(1, plain)
    assert last.id.startswith(prefix)
    assert len(last.id) == 23


def test_a_session_from_before_1970_or_without_a_header_has_ids_all_the_same() -> None:
    entries = [MessageEntry({"role": "user", "content": "x"})]
    old = Header(id="s1", cwd="", created_at="1969-12-31T23:59:59.5Z", model="")
    for first in (old, ModelEntry("m")):
        [message] = to_history("s1", [first, *entries], None).messages
        assert message.id.startswith("0" * 18)


# The header and the session


def test_the_header_is_what_the_history_says_unless_it_is_told(any_store: Any) -> None:
    def header(*said: Message, **told: Any) -> Header:
        made = import_history(any_store, History(messages=said), cwd="/w", **told)
        found: Header = any_store.read(made)[0]
        return found

    produced = Message(id="2", role="assistant", content="", model_id="m1")
    later = Message(id="3", role="assistant", content="", model_id="m\0\ud83d2")
    without = Message(id="4", role="assistant", content="", model_id="\0")
    made = header(user("1", "\n Hello \nyou"), produced, later, without, user("5", "Later"))
    assert (made.title, made.model, made.cwd) == ("Hello", "m2", "/w")
    assert re.fullmatch(
        "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", made.id
    )
    assert header(user("1", ""), user("2", "Hello")).title == ""
    assert header(user("1", "x", kind="reference"), user("2", "Hello")).title == ""
    assert header(produced, user("1", "Hello")).title == "Hello"
    empty = header()
    assert (empty.title, empty.model) == ("", "")
    told = header(
        user("1"), produced, id="told", title="T", model="", created_at="2026-01-01T00:00:00+01:00"
    )
    assert told == Header(
        id="told", cwd="/w", created_at="2025-12-31T23:00:00Z", model="", title="T"
    )


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ({"cwd": "\0"}, "$.cwd"),
        ({"cwd": None}, "$.cwd"),
        ({"id": ""}, "$.id"),
        ({"id": 5}, "$.id"),
        ({"model": "\ud83d"}, "$.model"),
        ({"title": "\0"}, "$.title"),
        ({"created_at": ""}, "$.created_at"),
        ({"created_at": "2026-11-30T12:00:00"}, "$.created_at"),
        ({"recorded_at": "noon"}, "$.recorded_at"),
    ],
    ids=str,
)
def test_arguments_that_cannot_stand_in_an_entry_are_refused_before_anything_is_written(
    told: dict[str, Any], place: str, any_store: Any
) -> None:
    given: dict[str, Any] = {"cwd": "/w", "id": "s1", "replace": True, **told}
    any_store.append("s1", HEADER)
    with pytest.raises(InvalidEntry) as caught:
        import_history(any_store, full(), **given)
    assert caught.value.path == place
    assert any_store.read("s1") == [HEADER]
    assert len(any_store.list()) == 1


def test_a_session_that_is_there_gives_way_only_when_told(any_store: Any) -> None:
    import_history(any_store, full(), cwd="/w", id="s1")
    before = any_store.read("s1")
    created_at = before[0].created_at
    for others in (full(), History()):
        for at in (None, created_at):
            with pytest.raises(SessionExists):
                import_history(any_store, others, cwd="/w", id="s1", created_at=at)
    assert any_store.read("s1") == before
    new = History(messages=(user("1", "new"),))
    assert import_history(any_store, new, cwd="/x", id="s1", replace=True) == "s1"
    assert export_history(any_store, "s1") == new
    assert [h.cwd for h in any_store.list()] == ["/x"]
    assert import_history(any_store, new, cwd="/x", id="s2", replace=True) == "s2"


def test_an_import_that_is_too_large_writes_nothing_and_names_the_message(backend: Backend) -> None:
    store = backend.store(limits=Limits(entry=2000, attachment=50))
    picture = Attachment("image/png", "a", bytes(51))
    old = History(messages=(user("1", "old"),))
    store.import_history(old, cwd="/w", id="s1")
    for message, place in [
        (user("2", "x" * 2000), "$[2]"),
        (user("2", attachments=(picture,)), "$[2].message.files[0].data"),
        (call("2", "a", attachments=(picture,)), "$[2].message.turnkeep.attachments[0].data"),
    ]:
        history = History(messages=(user("1", "x"), message))
        with pytest.raises(InvalidEntry) as caught:
            store.import_history(history, cwd="/w", id="s1", replace=True)
        assert caught.value.path == place
    with pytest.raises(InvalidEntry):
        store.import_history(old, cwd="/w" * 2000)
    assert [h.id for h in store.list()] == ["s1"]
    assert store.export_history("s1") == old


def test_an_import_that_the_database_ends_half_way_leaves_what_was_there(store: SQLStore) -> None:
    old = History(messages=(user("1", "old"),))
    store.import_history(old, cwd="/w", id="s1")
    with store._database.engine.begin() as connection:
        # A row that is in the way: the last of a long import.
        values = {"sid": "s1", "position": 1200}
        if connection.dialect.name == "postgresql":
            connection.execute(
                text("ALTER TABLE turnkeep_entries ADD CONSTRAINT full_up CHECK (position < 1200)")
            )
        else:
            connection.execute(text(
                "CREATE TRIGGER full_up BEFORE INSERT ON turnkeep_entries WHEN NEW.position = 1200 "
                "BEGIN SELECT RAISE(ABORT, 'full up'); END"), values)  # fmt: skip
    new = History(messages=tuple(user(str(n)) for n in range(1300)))
    for name in ("s1", "s2"):
        with pytest.raises(Exception, match="refused a statement"):
            store.import_history(new, cwd="/w", id=name, replace=True)
    assert [h.id for h in store.list()] == ["s1"]
    assert store.export_history("s1") == old
    shorter = History(messages=new.messages[:1199])
    assert store.export_history(store.import_history(shorter, cwd="/w")) == shorter


def test_an_import_over_four_methods_that_fails_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JSONLStore(tmp_path)
    append, count = store.append, itertools.count()

    def fail(id: str, entry: Entry) -> int:
        if next(count) == 3:
            raise KeyboardInterrupt
        return append(id, entry)

    monkeypatch.setattr(store, "append", fail)
    with pytest.raises(KeyboardInterrupt):
        import_history(store, full(), cwd="/w", id="s1")
    assert store.read("s1") == []
    assert store.list() == []
    with pytest.raises(InvalidArgument):
        import_history(store, full(), cwd="/w", id="../x", replace=True)


@pytest.mark.parametrize("replace", [False, True])
def test_of_imports_at_once_one_makes_the_session(replace: bool, server_or_file: Backend) -> None:
    """Of equal headers too: none is taken for a part of another."""
    store = server_or_file.store()
    made = [History(messages=tuple(user(f"{n}", f"{n}") for _ in [0])) for n in range(4)]
    for attempt in range(5):
        barrier = threading.Barrier(4)

        def run(history: History, id: str = f"s{attempt}", barrier: Any = barrier) -> str | None:
            barrier.wait()
            try:
                return store.import_history(
                    history,
                    cwd="/w",
                    id=id,
                    title="t",
                    created_at=HEADER.created_at,
                    replace=replace,
                )
            except SessionExists:
                return None

        with ThreadPoolExecutor(4) as threads:
            done = list(threads.map(run, made))
        assert done.count(f"s{attempt}") == (4 if replace else 1)
        there = store.export_history(f"s{attempt}")
        assert there in made
        if not replace:
            assert done[made.index(there)] is not None


def test_an_unknown_session_is_not_exported(any_store: Any) -> None:
    for name in ("s1", "", "\0", "x" * 1000):
        with pytest.raises(UnknownSession):
            export_history(any_store, name)
    with pytest.raises(UnknownSession) as caught:
        export_history(any_store, {"content": SECRET})  # type: ignore[arg-type]
    assert f"{caught.value} {caught.value!r}".count("<dict>") == 2
    assert SECRET not in f"{caught.value} {caught.value!r}"


def test_a_session_of_its_header_alone_is_an_empty_history(any_store: Any) -> None:
    any_store.append("s1", HEADER)
    assert export_history(any_store, "s1") == History()


def test_export_never_heals(any_store: Any) -> None:
    dangling = History(
        messages=(call("1", "a", "b"), result("2", "b"), user("3"), result("4", "b"))
    )
    made = import_history(any_store, dangling, cwd="/w")
    assert export_history(any_store, made) == dangling


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_what_riffers_shape_does_not_say_survives(role: str, store: SQLStore) -> None:
    odd = [
        Message(id="1", role=role, content="", thinking=t, tokens=k, kind=kind, model_id=model)
        for t in (None, Thinking(), Thinking(""), Thinking("", ""), Thinking(None, ""))
        for k in (None, Tokens(), Tokens(0), Tokens(thinking=0), Tokens(10**4299))
        for kind in History.KINDS
        for model in (None, "", "m\0")
    ]  # fmt: skip
    history = History(
        messages=tuple(Message(**{**_fields(m), "id": str(i)}) for i, m in enumerate(odd))
    )
    assert store.export_history(store.import_history(history, cwd="")) == history


def _fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__dataclass_fields__}
