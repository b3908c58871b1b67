"""An app that goes on in its session, plays one turn, and is killed.

Run as `python killed.py KIND PLACE NUMBER`.
"""

import asyncio
import os
import signal
import sys

from turnkeep import AsyncLoader, AsyncSession, AsyncSQLStore, JSONLStore, Loader, Session, SQLStore


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def play(loader: Loader[Session], number: str) -> None:
    session = loader.continue_() or loader.start("m")
    session.add_message({"role": "user", "content": f"prompt {number}"})
    session.add_message({"role": "assistant", "content": f"answer {number}"})
    die()


async def play_async(loader: AsyncLoader[AsyncSession], number: str) -> None:
    session = await loader.continue_() or await loader.start("m")
    await session.add_message({"role": "user", "content": f"prompt {number}"})
    await session.add_message({"role": "assistant", "content": f"answer {number}"})
    die()


def main(kind: str, place: str, number: str) -> None:
    if kind == "async":
        asyncio.run(play_async(AsyncLoader("/w", store=AsyncSQLStore(place)), number))
    else:
        store = JSONLStore(place) if kind == "jsonl" else SQLStore(place)
        play(Loader("/w", store=store), number)


if __name__ == "__main__":
    main(*sys.argv[1:])
