"""What is given to a store is data: no SQL, no pattern, no path, whatever signs are in it, on each
driver.
"""

import itertools
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, text

from leaks import unwatched
from servers import PostgresServer
from subjects import ON_POSTGRES, ON_SQLITE, Subject
from turnkeep import (
    Attachment,
    Header,
    History,
    InvalidArgument,
    JSONLStore,
    Loader,
    Message,
    MessageEntry,
    SkillEntry,
    SQLStore,
    TurnkeepError,
    UnknownEntry,
)

HOSTILE = (
    *("'", '"', "`", "''", "\\", "\\'", ";", "--", "/*", "*/", "'; --", '"; --', "$$", "E'\\x27'"),
    "'; DROP TABLE turnkeep_sessions; --",
    '"; DROP TABLE turnkeep_entries; --',
    "x'); DELETE FROM turnkeep_blobs; --",
    "' OR '1'='1",
    "' UNION SELECT payload FROM turnkeep_entries --",
    "1; COMMIT; BEGIN",
    *(
        "%",
        "_",
        "*",
        "?",
        "%s",
        "%%",
        "%(sid)s",
        "%(ns)s",
        "%b",
        "{0}",
        "{}",
        "{sid}",
        "$1",
        "$sid",
    ),
    *(":sid", ":ns", "?1", "@x", "#", "::text", "__[SCHEMA__none]", "__[POSTCOMPILE_keys]", "NULL"),
    *("null", "None", "true", "0", "-1", "1e9", "NaN", "[]", '{"$ref": 1}', "\\u0027", "&#39;"),
    *(
        "../x",
        "../../etc/passwd",
        "/etc/passwd",
        "..\\x",
        "C:\\x",
        "~root",
        "$HOME",
        "$(id)",
        "`id`",
    ),
    *(
        "file:x?mode=memory",
        ":memory:",
        "<script>",
        "${jndi:x}",
        "a\nb",
        "a\r\nb",
        "\t",
        " ",
        "\x1b[2J",
    ),
    *("\u202e", "\u200b", "\ufeff", "\u2028", "é", "e\u0301", "\U0001f600", "\u0131", "ß", "K"),
    *("z" * 255, "é" * 127),
)
IMPOSSIBLE = ("", "\0", "x\0y", "'\0", "\ud800", "z" * 256)
_numbers = itertools.count()


@pytest.fixture(params=[*ON_SQLITE, *ON_POSTGRES])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    """A store on each driver, beside a table of the host's."""
    if request.param in ("pysqlite", "aiosqlite"):
        url = URL.create("sqlite", database=str(tmp_path / "chats.db"))
        subject = Subject(request.param, url, tmp_path)
        yield subject
        subject.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = f"injection_{next(_numbers)}"
    subject = Subject(request.param, server.create_database(name), tmp_path)
    yield subject
    subject.close()
    server.drop_database(name)


def everything(subject: Subject) -> dict[str, list[Any]]:
    """All rows of all tables that there are."""
    listing = (
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        if subject.is_postgres
        else "SELECT name FROM sqlite_master WHERE type = 'table'"
    )
    with unwatched(), subject.admin.connect() as connection:
        names = sorted(connection.scalars(text(listing)))
        return {
            name: sorted(map(repr, connection.execute(text(f"SELECT * FROM {name}"))))
            for name in names
        }


def bystander(subject: Subject) -> dict[str, list[Any]]:
    """Make a session, and a table of the host's, that nothing is to happen to; all there is."""
    subject.seed()
    subject.run("CREATE TABLE notes (id integer PRIMARY KEY, text text)")
    subject.run("INSERT INTO notes VALUES (1, 'the host''s')")
    return everything(subject)


def header(id: str, **fields: str) -> Header:
    given = {"id": id, "cwd": "/w", "created_at": "2026-11-30T12:00:00Z", "model": "m"}
    return Header(**(given | fields))  # type: ignore[arg-type]


def test_an_id_and_a_key_are_data(subject: Subject) -> None:
    before = bystander(subject)
    store = subject.store
    said = MessageEntry({"role": "user", "content": "x"})
    for id in HOSTILE:
        assert store.append(id, header(id)) == 0
        assert store.append(id, said, idempotency_key=id) == 1
    for id in HOSTILE:  # each is another
        assert store.append(id, said, idempotency_key=id, expected_position=7) == 1
        keys = [f"{id[:100]} 2", None]
        assert store.extend(id, [said, said], idempotency_keys=keys) == 3
        assert store.read(id) == [header(id), said, said, said]
        assert store.tail(id, 1) == store.page(id, before=3, limit=1).entries == [said]
        assert store.get(id) == header(id)
        assert store.attachments(id) == []
        assert len(store.export_history(id).messages) == 3
    assert {each.id for each in store.list()} == {*HOSTILE, "s"}
    for id in HOSTILE:
        assert store.delete(id) is True
        assert store.get(id) is None
    assert everything(subject) == before


def test_what_stands_in_an_entry_is_data(subject: Subject) -> None:
    before = bystander(subject)
    store = subject.store
    for text_ in (*HOSTILE, *IMPOSSIBLE):
        file = {"media_type": f"a/{text_}", "filename": text_, "data": b64encode(b"x").decode()}
        entries = [
            MessageEntry({"role": text_, text_: text_, "content": [{text_: [text_]}]}),
            MessageEntry({"role": "user", "content": text_, text_: {"files": [file]}}),
            SkillEntry(text_),
        ]
        if text_ not in IMPOSSIBLE:
            entries.append(UnknownEntry(text_, {text_: text_}))
        store.extend("x", [header("x"), *entries])
        assert store.read("x")[1:] == entries
        [found] = store.attachments("x")
        storable = text_ not in ("", "\0", "x\0y", "'\0", "\ud800")
        assert found.filename == (text_ if storable else None)
        store.delete("x")
    assert everything(subject) == before


def test_a_directory_a_model_and_a_title_are_data(subject: Subject) -> None:
    before = bystander(subject)
    store = subject.store
    given = [
        header(f"x{number}", cwd=each, model=each, title=each, riffer_version=each)
        for number, each in enumerate(HOSTILE)
    ]
    for one in given:
        store.append(one.id, one)
    for one in given:
        assert store.list(one.cwd) == [one]
        assert store.list(one.cwd + "x") == []
        [seen] = store.list(one.cwd, limit=1)
        assert store.list(one.cwd, before=seen) == []
        assert store.get(one.id).title == one.title
        assert store.prune(keep_last=0, cwd=one.cwd, dry_run=True).sessions == 1
    assert {each.cwd for each in store.stats().by_cwd} == {"/w", *HOSTILE}
    for impossible in ("\0", "\ud800"):
        assert store.list(impossible) == []
    for one in given:
        store.delete(one.id)
    assert everything(subject) == before


def test_a_namespace_is_data(subject: Subject) -> None:
    before = bystander(subject)
    for name in HOSTILE:
        store = subject.store.with_namespace(name)
        assert store.list() == store.read("s") == []
        store.append("s", header("s", title=name))
        assert [each.title for each in store.list()] == [name]
    assert {*subject.store.namespaces()} == {"", *HOSTILE}
    for name in HOSTILE:
        store = subject.store.with_namespace(name)
        assert [each.title for each in store.list()] == [name]
        assert store.erase_namespace().sessions == 1
    for name in IMPOSSIBLE[1:]:
        with pytest.raises(InvalidArgument, match=r"^namespace: "):
            subject.store.with_namespace(name)
    assert everything(subject) == before


def test_a_history_s_texts_are_data(subject: Subject) -> None:
    before = bystander(subject)
    store = subject.store
    folder = subject.folder / "out"
    for each in HOSTILE:
        attachment = Attachment(f"a/{each}", each, each.encode())
        history = History(
            messages=(
                Message(id=each, role="user", content=each, attachments=(attachment,)),
                Message(id=f"{each} 2", role="assistant", content=each, model_id=each),
            )
        )
        header_ = {"cwd": each, "id": each, "model": each, "title": each}
        assert store.import_history(history, **header_) == each
        assert store.export_history(each) == history
        store.export_folder(each, folder)
        assert History.load(folder) == history
        assert store.import_folder(folder, **header_, replace=True) == each
        assert store.export_history(each) == history
        assert store.delete(each) is True
    for name in ("created_at", "recorded_at"):
        for each in HOSTILE:
            with pytest.raises(TurnkeepError):
                store.import_history(history, cwd="/w", **{name: each})
    assert everything(subject) == before
    names = {path.name for path in folder.iterdir()}
    assert names == {"history.json", "attachments"}, "a name of an attachment is no path"
    assert all(len(path.stem) == 64 for path in (folder / "attachments").iterdir())


def test_an_impossible_id_finds_nothing_and_writes_nothing(subject: Subject) -> None:
    before = bystander(subject)
    store = subject.store
    said = MessageEntry({"role": "user", "content": "x"})
    for id in IMPOSSIBLE:
        assert store.read(id) == store.tail(id, 5) == store.attachments(id) == []
        assert store.get(id) is None
        assert store.delete(id) is False
        calls: list[Callable[[], object]] = [
            lambda: store.append(id, said),  # noqa: B023
            lambda: store.append("s", said, idempotency_key=id),  # noqa: B023
            lambda: store.extend("s", [said, said], idempotency_keys=[id, None]),  # noqa: B023
            lambda: store.import_history(History(), cwd="/w", id=id),  # noqa: B023
            lambda: store.export_history(id),  # noqa: B023
            lambda: store.export_folder(id, subject.folder / "none"),  # noqa: B023
        ]
        for call in calls:
            with pytest.raises(TurnkeepError):
                call()
    assert everything(subject) == before
    assert not (subject.folder / "none").exists()


@pytest.mark.parametrize("subject", ON_POSTGRES, indirect=True)
def test_the_name_of_a_schema_is_a_name(subject: Subject) -> None:
    before = bystander(subject)
    made = []
    for name in (*HOSTILE, *IMPOSSIBLE):
        fault = ""
        try:
            store = subject.open(schema=name, migrate=True)
        except InvalidArgument as error:
            fault = error.argument
        if fault:
            assert fault == "schema"
            continue
        store.append("s", header("s", title=name))
        assert [each.title for each in store.list()] == [name]
        store.close()
        made.append(name)
    assert {"'; DROP TABLE turnkeep_sessions; --", '"', "$1", ":sid", "%(sid)s", "../x"} <= {*made}
    tables = "SELECT schemaname FROM pg_tables WHERE tablename LIKE 'turnkeep%'"
    with subject.admin.connect() as connection:
        there = [*connection.scalars(text(tables))]
    assert sorted(there) == sorted(5 * [*made, "public"])
    quoted = [name.replace('"', '""').replace("%", "%%") for name in made]
    subject.run(*(f'DROP SCHEMA "{name}" CASCADE' for name in quoted))
    assert everything(subject) == before


# Files


def test_an_id_or_a_directory_leads_out_of_no_home(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.write_text("the host's")
    store = JSONLStore(home)
    kept = []
    for number, each in enumerate(HOSTILE):
        with suppress(InvalidArgument):
            store.append(each, header(each))
            kept.append(each)
        store.append(f"x{number}", header(f"x{number}", cwd=each))
        assert store.read(f"x{number}")
        assert store.read(f"../{number}") == []
    for id in kept:
        assert store.delete(id) is True
    for number in range(len(HOSTILE)):
        assert store.delete(f"x{number}") is True
    root = home / ".riffer" / "sessions"
    assert {"0", "_", "z" * 255} & {*kept} == {"0", "_"}
    assert {*tmp_path.iterdir()} == {home, outside}
    assert outside.read_text() == "the host's"
    assert [*home.iterdir()] == [home / ".riffer"]
    assert all(path.parent == root and path.is_dir() for path in root.rglob("*"))


def test_a_loader_s_directory_and_names_are_data(tmp_path: Path) -> None:
    with SQLStore(f"sqlite:///{tmp_path}/chats.db") as store:
        for each in HOSTILE:
            loader = Loader(f"/w/{each}", store=store)
            assert loader.continue_() is None
            session = loader.start(each)
            session.activate_skill(each)
            session.switch_reasoning(each)
            session.add_message({"role": "user", "content": each})
            again = Loader(f"/w/{each}", store=store).continue_()
            assert again is not None
            assert (again.id, again.model, again.reasoning) == (session.id, each, each)
            assert loader.resume(each) is None
            loader.delete(session.id)
        assert store.list() == []
    assert {path.name for path in tmp_path.iterdir()} == {"chats.db"}
