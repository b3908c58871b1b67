"""An agent in a loop: it asks a model, calls its tools, and when run again goes on where it was.

    python examples/agent_loop.py "How many files are here?"
    python examples/agent_loop.py "And how many of them are Python?"

The second run continues the session of the first, which belongs to the current directory. It is
kept where TURNKEEP_URL says, else in a SQLite file in the user's data directory. The model is a
script: put a real one into `think`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnkeep import Loader, Session

Message = dict[str, Any]


def count_files(pattern: str) -> str:
    """The only tool."""
    return str(sum(1 for _ in Path.cwd().glob(pattern)))


TOOLS: dict[str, Callable[..., str]] = {"count_files": count_files}


def think(messages: list[Message]) -> Message:
    """What a model would do: ask for a tool, and tell what it gave."""
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"There are {last['content']}."}
    pattern = "*.py" if "python" in last["content"].lower() else "*"
    arguments = json.dumps({"pattern": pattern})
    call = {"call_id": f"call_{len(messages)}", "name": "count_files", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


class Agent:
    """The app's runtime: the loader makes one for each session that it starts or continues."""

    def __init__(self, session: Session, *, tools: dict[str, Callable[..., str]]) -> None:
        self.session = session
        self.tools = tools

    def run(self, prompt: str) -> str:
        """One turn. Whenever the process dies, the next one goes on from the last message."""
        self.session.add_message({"role": "user", "content": prompt})
        while True:
            # A call that was cut off by a crash has an answer here that says so.
            reply = think(self.session.snapshot.messages)
            self.session.add_message(reply)
            if not reply.get("tool_calls"):
                return str(reply["content"])
            for call in reply["tool_calls"]:
                result = self.tools[call["name"]](**json.loads(call["arguments"]))
                self.session.add_message(
                    {
                        "role": "tool",
                        "tool_call_id": call["call_id"],
                        "name": call["name"],
                        "content": result,
                    }
                )


def main() -> None:
    """One turn in the session of the current directory, which is begun if there is none."""
    prompt = " ".join(sys.argv[1:]) or "How many files are here?"
    with Loader(Path.cwd(), build=Agent) as loader:
        agent = loader.continue_(tools=TOOLS) or loader.start("scripted-model", tools=TOOLS)
        known = len(agent.session.snapshot.messages)
        print(f"Session {agent.session.id}, {known} messages so far.")
        print(f"> {prompt}")
        print(agent.run(prompt))


if __name__ == "__main__":
    main()
