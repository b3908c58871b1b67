"""An agent that is given a `store=`, is killed in the middle of a turn, and goes on where it was.

Run it by `make demo`, or by `python examples/quickstart.py`. It keeps its sessions where
TURNKEEP_URL says, else in a SQLite file in the user's data directory. Where HOME_DIR names the home
of a riffer-rig user, it copies all sessions there into the database too, and shows that each reads
back equal.
"""

import os
import signal
import subprocess
import sys
import uuid
from datetime import UTC, datetime

from sqlalchemy import make_url

from turnkeep import (
    Entry,
    Header,
    JSONLStore,
    MessageEntry,
    ModelEntry,
    SQLStore,
    Store,
    default_url,
)

PROMPT = "How many files are in this directory?"


class Agent:
    """The app: it saves each message as it happens, in whatever store it is given."""

    def __init__(self, session: str, *, store: Store) -> None:
        self.session = session
        self.store = store

    def start(self, cwd: str, model: str, prompt: str) -> None:
        """Begin the session with the user's first prompt."""
        header = Header(
            id=self.session, cwd=cwd, created_at=now(), model=model, title=prompt.splitlines()[0]
        )
        self.store.append(self.session, header)
        self.save({"role": "user", "content": prompt})

    def save(self, message: dict[str, object]) -> None:
        """Save one message: when this returns, it survives a crash."""
        self.store.append(self.session, MessageEntry(message, recorded_at=now()))

    def call_tool(self) -> None:
        """Do what a model would: ask for a tool."""
        call = {"call_id": "call_1", "name": "shell", "arguments": '{"command": "ls | wc -l"}'}
        self.save({"role": "assistant", "content": "", "tool_calls": [call]})

    def finish(self) -> None:
        """Answer the call that is open, switch the model, and end the turn."""
        self.save({"role": "tool", "tool_call_id": "call_1", "name": "shell", "content": "42"})
        self.store.append(self.session, ModelEntry("large-model", recorded_at=now()))
        self.save({"role": "assistant", "content": "There are 42 files."})


def now() -> str:
    """The time as entries have it: UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def describe(entry: Entry) -> str:
    """One line for people."""
    if isinstance(entry, Header):
        return f"begins in {entry.cwd} with {entry.model}: {entry.title}"
    if isinstance(entry, ModelEntry):
        return f"from here on with {entry.model}"
    if isinstance(entry, MessageEntry):
        message = entry.message
        calls = message.get("tool_calls")
        return f"{message['role']}: {message['content'] or f'calls {calls}'}"
    return repr(entry)


def record_and_die(url: str, session: str) -> None:
    """Play the first half of a turn; then the machine fails."""
    agent = Agent(session, store=SQLStore(url))
    agent.start("/home/you/project", "small-model", PROMPT)
    agent.call_tool()
    os.kill(os.getpid(), signal.SIGKILL)


def demonstrate(url: str) -> None:
    """The whole story, on the database of *url*."""
    session = str(uuid.uuid4())
    print("1. An agent records a turn, and is killed while its tool runs.")
    child = subprocess.run([sys.executable, __file__, url, session], check=False)
    print(f"   the process ended by signal {-child.returncode}\n")

    with SQLStore(url) as store:
        agent = Agent(session, store=store)
        print("2. It comes back. Nothing that was saved is lost:")
        show(store, session)
        agent.finish()
        print("\n3. It goes on in the same session, with another model for the last answer:")
        show(store, session)

        print("\n4. Sessions by directory, most recently changed first:")
        other = str(uuid.uuid4())
        Agent(other, store=store).start("/home/you/notes", "small-model", "Sum up my notes.")
        for cwd in ("/home/you/project", "/home/you/notes"):
            for header in store.list(cwd, limit=3):
                print(f"   {cwd}: {header.title!r}, to position {header.last_position}")
        store.delete(other)
        print(f"\n5. The notes are deleted: read() gives {store.read(other)} now.")

        if home := os.environ.get("HOME_DIR"):
            copy_home(home, store)


def show(store: SQLStore, session: str) -> None:
    """Print a session."""
    for position, entry in enumerate(store.read(session)):
        print(f"   {position}  {describe(entry)}")


def copy_home(home: str, store: SQLStore) -> None:
    """Copy all sessions of a JSONL home into *store*, and hold each copy to its original."""
    print(f"\n6. All sessions of {home}, from JSONL files into the database:")
    originals, copies = JSONLStore(home), store.with_namespace("copied-home")
    for header in originals.list():
        entries = originals.read(header.id)
        copies.delete(header.id)  # a copy of an earlier run
        copies.extend(header.id, entries)
        equal = "equal" if copies.read(header.id) == entries else "DIFFERENT"
        print(f"   {header.id}: {len(entries)} entries read back {equal}")
        attachments = copies.attachments(header.id)
        stored = {attachment.digest: attachment for attachment in attachments}
        for digest, blob in stored.items():
            times = sum(attachment.digest == digest for attachment in attachments)
            print(f"      {blob.mime}, {blob.size} bytes: there {times} times, stored once")


def main() -> None:
    """Without arguments the story; with a URL and a session id, its part that dies."""
    if len(sys.argv) == 3:
        record_and_die(*sys.argv[1:])
        return
    url = make_url(default_url())
    demonstrate(url.render_as_string(hide_password=False))
    place = url.database if url.get_backend_name() == "sqlite" else url.render_as_string()
    print(f"\nThe database lies at {place}: have a look at its turnkeep_… tables.")


if __name__ == "__main__":
    main()
