"""Other stores of conversations, each with the four things that are compared.

Each gets the same message in the shape that it takes. Where it takes an engine, that engine's
SQLite has a write-ahead log and loses no commit, as ours has; what it then really has, its own
connection is asked. They do different work: some count nothing, some merge states, some check
nothing.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.databases import open_bare
from benchmarks.drivers import conninfo
from benchmarks.operations import Message, header, message
from benchmarks.timing import OnLoop, Timer, on_this_thread
from turnkeep import AsyncSQLStore, MessageEntry, SQLStore

LONG, LISTED, CWD = 1000, 50, "/w"
"""How many messages the long session has, and how many others there are to be listed."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Peer:
    """One store, and its calls; what they give is awaited where the timer is that of a loop."""

    name: str
    durability: str
    timer: Timer
    append: Call
    load: Call
    last: Call | None = None
    list: Call | None = None


def text_of(given: Message) -> str:
    """What a store gets that takes no dicts: as many characters."""
    return str(given["content"]) + "." * 170


GIVEN = message(1000)
MANY = [message(1000, seed) for seed in range(LONG)]


class Ways:
    """How to a database: as URLs and engines, sync and async, that are closed at the end."""

    def __init__(self, url: URL, stack: ExitStack, runner: asyncio.Runner) -> None:
        self.url = url
        self.stack = stack
        self.runner = runner
        self.is_postgres = url.get_backend_name() == "postgresql"
        self.on_loop = OnLoop(runner)

    def engine(self) -> Engine:
        """A sync engine."""
        engine = create_engine(self.url)
        self._durable(engine)
        self.stack.callback(engine.dispose)
        return engine

    def async_engine(self) -> Any:
        """An async engine: by asyncpg, or aiosqlite."""
        driver = "postgresql+asyncpg" if self.is_postgres else "sqlite+aiosqlite"
        engine = create_async_engine(self.url.set(drivername=driver))
        self._durable(engine.sync_engine)
        self.stack.callback(lambda: self.runner.run(engine.dispose()))
        return engine

    def durability(self, engine: Engine | None = None) -> str:
        """What a commit has behind it when it returns."""
        if self.is_postgres:
            return "fsync"
        opened = engine or self.engine()
        with opened.connect() as connection:
            return asked(connection.exec_driver_sql)

    def _durable(self, engine: Engine) -> None:
        if not self.is_postgres:
            event.listen(engine, "connect", _durable)


def asked(run: Callable[[str], Any]) -> str:
    """What a connection to SQLite says of itself."""
    journal = run("PRAGMA journal_mode").fetchone()[0]
    level = run("PRAGMA synchronous").fetchone()[0]
    return f"{journal.upper()}, {('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"


def _durable(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def bare(ways: Ways) -> Peer:
    """The bare driver on our tables."""
    keeper = ways.stack.enter_context(SQLStore(ways.url, namespace="", migrate=True))
    _fill(keeper)
    plans, run, how = ways.stack.enter_context(open_bare(ways.url))
    return Peer(
        "bare driver",
        how,
        on_this_thread,
        lambda: run(plans.append("one", GIVEN)),
        lambda: run(plans.read("long")),
        lambda: run(plans.tail("long", 20)),
        lambda: run(plans.list(CWD, 50)),
    )


def ours(ways: Ways) -> Peer:
    """turnkeep, sync."""
    store = ways.stack.enter_context(SQLStore(ways.url, namespace="ours", migrate=True))
    _fill(store)
    return Peer(
        "turnkeep",
        ways.durability(store._database.engine),
        on_this_thread,
        lambda: store.append("one", MessageEntry(GIVEN)),
        lambda: store.read("long"),
        lambda: store.tail("long", 20),
        lambda: store.list(CWD, limit=50),
    )


def ours_async(ways: Ways) -> Peer:
    """turnkeep, async."""
    with SQLStore(ways.url, namespace="async", migrate=True) as keeper:
        _fill(keeper)
    driver = "postgresql+asyncpg" if ways.is_postgres else "sqlite+aiosqlite"
    store = AsyncSQLStore(ways.url.set(drivername=driver), namespace="async")
    ways.stack.callback(lambda: ways.runner.run(store.close()))
    return Peer(
        "turnkeep, async",
        ways.durability(),
        ways.on_loop,
        lambda: store.append("one", MessageEntry(GIVEN)),
        lambda: store.read("long"),
        lambda: store.tail("long", 20),
        lambda: store.list(CWD, limit=50),
    )


def _fill(store: SQLStore) -> None:
    store.append("one", header("one", "/x"))
    store.extend("long", [header("long", "/x"), *map(MessageEntry, MANY)])
    for number in range(LISTED):
        store.extend(f"{number}", [header(f"{number}", CWD), MessageEntry(GIVEN)])


def openai_sqlite(ways: Ways) -> Peer:
    """openai-agents' own store on SQLite, which opens the file itself."""
    from agents import SQLiteSession

    def session(name: str) -> Any:
        made = SQLiteSession(name, str(ways.url.database), "oa_sessions", "oa_messages")
        ways.stack.callback(made.close)
        return made

    one, long = session("one"), session("long")
    ways.runner.run(long.add_items(MANY))
    ways.runner.run(one.add_items([GIVEN]))
    return Peer(
        "openai-agents SQLiteSession",
        asked(one._get_connection().execute),
        ways.on_loop,
        lambda: one.add_items([GIVEN]),
        lambda: long.get_items(),  # noqa: PLW0108 (a coroutine each time)
        lambda: long.get_items(20),
    )


def openai_sqlalchemy(ways: Ways) -> Peer:
    """openai-agents' store on any async engine."""
    from agents.extensions.memory import SQLAlchemySession

    engine = ways.async_engine()
    one, long = (
        SQLAlchemySession(
            name,
            engine=engine,
            create_tables=True,
            sessions_table="oas_sessions",
            messages_table="oas_messages",
        )
        for name in ("one", "long")
    )
    ways.runner.run(long.add_items(MANY))
    ways.runner.run(one.add_items([GIVEN]))
    return Peer(
        "openai-agents SQLAlchemySession",
        ways.durability(),
        ways.on_loop,
        lambda: one.add_items([GIVEN]),
        lambda: long.get_items(),  # noqa: PLW0108
        lambda: long.get_items(20),
    )


def google_adk(ways: Ways) -> Peer:
    """google-adk's store on any async engine: an event, with the state of its session."""
    from google.adk.events import Event
    from google.adk.sessions import DatabaseSessionService
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.genai import types

    service = DatabaseSessionService(db_engine=ways.async_engine())
    names = {"app_name": "app", "user_id": "you"}
    last = GetSessionConfig(num_recent_events=20)

    def said(given: Message) -> Any:
        content = types.Content(role="model", parts=[types.Part(text=text_of(given))])
        return Event(author="agent", invocation_id="i", content=content)

    async def make(name: str, messages: list[Message], user: str = "you") -> Any:
        session = await service.create_session(app_name="app", user_id=user, session_id=name)
        for each in messages:
            await service.append_event(session, said(each))
        return session

    async def fill() -> Any:
        await make("long", MANY, "you")
        for number in range(LISTED):
            await make(f"{number}", [GIVEN], "other")
        return await make("one", [GIVEN])

    one = ways.runner.run(fill())
    return Peer(
        "google-adk DatabaseSessionService",
        ways.durability(),
        ways.on_loop,
        lambda: service.append_event(one, said(GIVEN)),
        lambda: service.get_session(**names, session_id="long"),
        lambda: service.get_session(**names, session_id="long", config=last),
        lambda: service.list_sessions(app_name="app", user_id="other"),
    )


def langchain_postgres(ways: Ways) -> Peer:
    """langchain-postgres' history, on a connection that it is handed."""
    from langchain_core.messages import AIMessage
    from langchain_postgres import PostgresChatMessageHistory

    connection = ways.stack.enter_context(closing(psycopg.connect(**conninfo(ways.url))))
    PostgresChatMessageHistory.create_tables(connection, "lcp_messages")
    one, long = (
        PostgresChatMessageHistory("lcp_messages", str(UUID(int=n)), sync_connection=connection)
        for n in range(2)
    )
    long.add_messages([AIMessage(text_of(each)) for each in MANY])
    return Peer(
        "langchain-postgres",
        ways.durability(),
        on_this_thread,
        lambda: one.add_messages([AIMessage(text_of(GIVEN))]),
        lambda: long.get_messages(),  # noqa: PLW0108
    )


def langchain_community(ways: Ways) -> Peer:
    """langchain-community's history on any engine."""
    from langchain_community.chat_message_histories import SQLChatMessageHistory
    from langchain_core.messages import AIMessage

    engine = ways.engine()
    one, long = (
        SQLChatMessageHistory(name, table_name="lcc_messages", connection=engine)
        for name in ("one", "long")
    )
    long.add_messages([AIMessage(text_of(each)) for each in MANY])
    return Peer(
        "langchain-community",
        ways.durability(engine),
        on_this_thread,
        lambda: one.add_messages([AIMessage(text_of(GIVEN))]),
        lambda: long.messages,
    )


def agno(ways: Ways) -> Peer:
    """Agno's transcripts, which are what it keeps messages in one by one."""
    engine = ways.engine()
    if ways.is_postgres:
        from agno.db.postgres import PostgresDb as Db
    else:
        from agno.db.sqlite import SqliteDb as Db
    db = Db(db_engine=engine)

    def add(project: str, name: str, entries: list[Message]) -> None:
        db.append_transcript_entries("bench", project, name, entries, name)

    add("p", "long", MANY)
    add("p", "one", [GIVEN])
    for number in range(LISTED):
        add("listed", f"{number}", [GIVEN])
    return Peer(
        "agno transcripts",
        ways.durability(engine),
        on_this_thread,
        lambda: add("p", "one", [GIVEN]),
        lambda: db.get_transcript_entries("bench", "p", "long"),
        None,
        lambda: db.list_transcript_sessions("bench", "listed"),
    )


ON_SQLITE = (
    bare,
    ours,
    ours_async,
    openai_sqlite,
    openai_sqlalchemy,
    google_adk,
    langchain_community,
    agno,
)
ON_POSTGRES = (
    bare,
    ours,
    ours_async,
    openai_sqlalchemy,
    google_adk,
    langchain_postgres,
    langchain_community,
    agno,
)


@contextmanager
def opened(url: URL) -> Iterator[list[Peer]]:
    """All peers on the database of *url*, each with its sessions made."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        inner = stack.enter_context(ExitStack())  # what is closed while the loop is there
        ways = Ways(url, inner, runner)
        yield [make(ways) for make in (ON_POSTGRES if ways.is_postgres else ON_SQLITE)]
