"""A chat over HTTP that keeps a session for each user, and resumes it, after a restart too.

    pip install 'turnkeep[async,postgres]' fastapi uvicorn
    uvicorn --app-dir examples fastapi_app:app
    curl -H 'X-User: ada' --json '{"prompt": "Hello"}' localhost:8000/chat

TURNKEEP_URL says where: `postgresql://user:password@host/name` in production, else it is a SQLite
file in the user's data directory. The model is a script: put a real one into `think`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Header, Request

from turnkeep import AsyncLoader, AsyncSession, AsyncSQLStore, default_url

Message = dict[str, Any]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One store, and so one pool of connections, for the life of the app."""
    async with AsyncSQLStore(default_url()) as store:
        await store.upgrade()  # on a server of many workers: `turnkeep db upgrade`, once
        app.state.store = store
        yield


app = FastAPI(lifespan=lifespan)


def loader_of(
    request: Request, x_user: Annotated[str, Header(min_length=1, max_length=60)]
) -> AsyncLoader[AsyncSession]:
    """The user's own sessions. Who the user is, a real app knows from its login."""
    store: AsyncSQLStore = request.app.state.store
    return AsyncLoader("/chat", store=store.with_namespace(x_user))


Sessions = Annotated[AsyncLoader[AsyncSession], Depends(loader_of)]


async def think(messages: list[Message]) -> str:
    """What a model would say."""
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    return f"You said {prompts[-1]!r}, and {len(prompts) - 1} things before that."


@app.post("/chat")
async def chat(sessions: Sessions, prompt: Annotated[str, Body(embed=True)]) -> dict[str, str]:
    """Say something, in the session that the user was in last."""
    session = await sessions.continue_() or await sessions.start("scripted-model")
    await session.add_message({"role": "user", "content": prompt})
    answer = await think(session.snapshot.messages)
    await session.add_message({"role": "assistant", "content": answer})
    return {"session": session.id, "answer": answer}


@app.get("/chat")
async def messages(sessions: Sessions) -> list[Message]:
    """All that was said in it."""
    session = await sessions.continue_()
    return [] if session is None else list(session.snapshot.messages)


@app.delete("/chat")
async def forget(sessions: Sessions) -> None:
    """Forget the user's sessions."""
    for header in await sessions.list():
        await sessions.delete(header.id)
