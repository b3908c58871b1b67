"""The examples of apps: an agent that runs in a loop, and a chat that is asked over HTTP."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from conftest import Backend
from turnkeep import Loader, MessageEntry, SQLStore

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_agent_goes_on_in_its_session(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("a.py", "b.py", "c.txt"):
        (project / name).touch()
    url = f"sqlite:///{tmp_path / 'chats.db'}"

    def ask(prompt: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", EXAMPLES / "agent_loop.py", prompt],
            cwd=project,
            env=os.environ | {"TURNKEEP_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = ask("How many files are here?")
    assert first[1:] == ["> How many files are here?", "There are 3."]
    with SQLStore(url) as store:
        session = Loader(project, store=store).continue_()
        assert session is not None
        # Killed while its tool runs.
        call = {"call_id": "call_x", "name": "count_files", "arguments": "{}"}
        session.add_message({"role": "assistant", "content": "", "tool_calls": [call]})
    second = ask("And how many of them are Python?")
    assert second[0] == f"Session {session.id}, 6 messages so far."
    assert second[2] == "There are 2."
    with SQLStore(url) as store:
        [header] = store.list(str(project))
        assert header.title == "How many files are here?"
        assert header.last_position == 9


def test_the_chat_keeps_a_session_per_user_and_resumes_it(
    server_or_file: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server_or_file.url.render_as_string(hide_password=False)
    monkeypatch.setenv("TURNKEEP_URL", url)
    app = load("fastapi_app").app
    ada, bob = ({"X-User": name} for name in ("ada", "bob"))

    @asynccontextmanager
    async def started() -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://chat") as client,
        ):
            yield client

    async def say_hello(before: int) -> set[str]:
        sessions = set()
        async with started() as client:
            for user in (ada, bob):
                answer = await client.post("/chat", headers=user, json={"prompt": "Hello"})
                said = answer.json()
                assert said["answer"] == f"You said 'Hello', and {before} things before that."
                sessions.add(said["session"])
        return sessions

    async def go_on() -> None:
        async with started() as client:
            found = (await client.get("/chat", headers=ada)).json()
            assert [message["role"] for message in found] == ["user", "assistant"] * 2
            assert (await client.delete("/chat", headers=ada)).status_code == 200
            assert (await client.get("/chat", headers=ada)).json() == []
            assert (await client.get("/chat", headers=bob)).json() == found
            assert (await client.post("/chat", json={"prompt": "Hello"})).status_code == 422
            answers = await asyncio.gather(
                *[client.post("/chat", headers=bob, json={"prompt": prompt}) for prompt in prompts]
            )
            assert {answer.status_code for answer in answers} == {200}

    prompts = [f"prompt {number}" for number in range(16)]  # at the same time, of one user
    sessions = asyncio.run(say_hello(0))
    assert len(sessions) == 2
    assert asyncio.run(say_hello(1)) == sessions  # the app was started again
    asyncio.run(go_on())
    with server_or_file.store(namespace="bob") as store:
        [header] = store.list()
        assert header.id in sessions
        entries = [entry for entry in store.read(header.id) if isinstance(entry, MessageEntry)]
        told = [str(e.message["content"]) for e in entries if e.message["role"] == "user"]
        assert sorted(told) == sorted(["Hello", "Hello", *prompts])
        assert len(entries) == 2 * len(told)
