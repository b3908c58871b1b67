"""The doors of stores: arguments of all kinds, and rows that somebody changed. See `laws`."""

import random
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import Connection, Integer, StaticPool, create_engine, text
from sqlalchemy.exc import IntegrityError

from laws import (
    ENTRIES,
    HEADER,
    HISTORIES,
    MESSAGES,
    REFUSED,
    SHOWN,
    STAMP,
    Door,
    assert_is_sound,
    is_marked,
    opened,
)
from messages import WORDS
from mutation import MARK, PYTHON, Untouchable, mutated_bytes, mutated_value
from turnkeep import (
    Entry,
    JSONLStore,
    Loader,
    MessageEntry,
    ModelEntry,
    Snapshot,
    SQLStore,
)
from turnkeep.entries import found
from turnkeep.tables import metadata

Calls: TypeAlias = dict[str, dict[str, Any]]
SQL: Calls = {
    "append": {"id": "s", "entry": ENTRIES[1], "idempotency_key": None, "expected_position": None},
    "extend": {
        "id": "s",
        "entries": [ENTRIES[2], MessageEntry({})],
        "idempotency_keys": ["k", None],
        "expected_position": None,
    },
    "read": {"id": "s"},
    "page": {"id": "s", "after": None, "before": None, "limit": 2},
    "tail": {"id": "s", "count": 2},
    "get": {"id": "s"},
    "list": {"cwd": None, "limit": 2, "before": None},
    "attachments": {"id": "s"},
    "delete": {"id": "other"},
    "export_history": {"id": "s"},
    "import_history": {
        "history": HISTORIES[0],
        "cwd": "/w",
        "id": "other",
        "model": None,
        "title": None,
        "created_at": None,
        "recorded_at": None,
    },
    "with_namespace": {"namespace": "n"},
}
JSONL: Calls = {name: SQL[name] for name in ("read", "delete")}
JSONL |= {"append": {"id": "s", "entry": ENTRIES[1]}, "list": {"cwd": None}}
SESSION: Calls = {
    "add_message": {"message": MESSAGES[0]},
    "switch_model": {"model": MARK},
    "switch_reasoning": {"level": MARK},
    "activate_skill": {"name": MARK},
}
LOADER: Calls = {"start": {"model": MARK}, "resume": {"id": "s"}}


class Arguments(Door):
    """The methods of the stores and of a live session, with arguments that nobody should give."""

    entries: ClassVar[list[Entry]] = [
        HEADER,
        ModelEntry(MARK, STAMP),
        MessageEntry(MESSAGES[0]),
        ENTRIES[-1],
    ]
    snapshot = Snapshot.of("s", ENTRIES).to_dict()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.numbers = count()
        self.database = SQLStore("sqlite://")
        self.files = JSONLStore(folder)
        self.begin()

    def begin(self) -> None:
        """Make the sessions anew."""
        self.store = self.database.with_namespace(f"{next(self.numbers)}")
        for store in (self.store, self.files):
            store.delete("s")
            for entry in self.entries:
                store.append("s", entry)
        self.loader = Loader("/w", store=self.store)

    def __call__(self, rng: random.Random) -> bool:
        if rng.random() < 0.1:
            raw = mutated_value(rng, self.snapshot, PYTHON, WORDS)
            made = opened(partial(Snapshot.from_dict, raw))
            assert made is REFUSED or Snapshot.from_dict(made.to_dict()) == made
            return made is not REFUSED
        session = self.loader.resume("s")
        on, methods = rng.choice(
            [
                *[(self.store, SQL)] * 2,
                (self.files, JSONL),
                (session, SESSION),
                (self.loader, LOADER),
            ]
        )
        name = rng.choice(sorted(methods))
        given = methods[name]
        changed = mutated_value(rng, given, PYTHON, WORDS)
        changed = {k: changed.get(k, given[k]) for k in given}
        if type(changed.get("entries")) is Untouchable:
            changed["entries"] = []  # what an iterable raises is its own
        before = self.store.read("s"), self.files.read("s")
        shown = any(is_marked(changed.get(key)) for key in ("id", "idempotency_key"))
        given = opened(partial(getattr(on, name), **changed), SHOWN if shown else "")
        if given is REFUSED:
            assert (self.store.read("s"), self.files.read("s")) == before
        elif len(self.store.read("s")) + len(self.files.read("s")) > len(before[0] + before[1]):
            for store in (self.store, self.files):
                for entry in store.read("s"):
                    assert_is_sound(entry)
            self.begin()
        return given is not REFUSED

    def close(self) -> None:
        self.database.close()


class Rows(Door):
    """A database of which somebody has changed a value."""

    columns: ClassVar[list[str]] = [
        *(f"sessions.{c}" for c in ("cwd", "cwd_digest", "created_at", "model", "title", "id")),
        *(
            f"sessions.{c}"
            for c in ("updated_at", "last_position", "last_recorded_at", "schema_version")
        ),
        *(
            f"entries.{c}"
            for c in ("type", "idempotency_key", "recorded_at", "attachments", "position")
        ),
        *["entries.payload"] * 8,
        *(f"blobs.{c}" for c in ("digest", "size", "data", "data")),
        *(f"attachments.{c}" for c in ("ordinal", "path", "path", "digest", "mime", "filename")),
    ]
    entries: ClassVar[list[Entry]] = [HEADER, *ENTRIES[1:5], ENTRIES[-2], ModelEntry(MARK)]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pool: dict[str, Any] = {"poolclass": StaticPool, "isolation_level": "SERIALIZABLE"}
        self.engine = create_engine("sqlite://", **pool)
        self.store = SQLStore(self.engine)
        self.store.upgrade()
        self.store.extend("s", self.entries)

    def __call__(self, rng: random.Random) -> bool:
        with self.engine.connect() as connection, connection.begin() as transaction:
            if not self.spoil(rng, connection):
                return False
            store = self.store.using(connection)
            findings = [str(finding) for finding in store.verify()]
            assert not any(MARK in finding for finding in findings)
            outcomes = [
                opened(call)
                for call in (
                    partial(store.read, "s"),
                    partial(store.read, "s", attachments=False),
                    partial(store.tail, "s", 3),
                    partial(store.page, "s", after=1, limit=2),
                    partial(store.get, "s"),
                    store.list,
                    partial(store.list, HEADER.cwd, limit=1),
                    partial(store.attachments, "s"),
                    partial(store.export_history, "s", lossy=[]),
                    partial(store.append, "s", rng.choice(ENTRIES)),
                    partial(store.delete, "s"),
                )
            ]
            transaction.rollback()
        assert findings or REFUSED not in outcomes  # what a reader stumbles over is found
        if outcomes[0] is not REFUSED:
            for entry in outcomes[0]:
                assert found(entry.to_dict()) == entry
        return REFUSED not in outcomes

    def spoil(self, rng: random.Random, connection: Connection) -> bool:
        """Change one value; whether the database took it."""
        table, column = rng.choice(self.columns).split(".")
        name = f"turnkeep_{table}"
        rows = connection.execute(text(f"SELECT rowid, {column} FROM {name}")).all()
        row, value = rng.choice(rows)
        blob = value if isinstance(value, bytes) else str(value).encode()
        changed: Any = mutated_bytes(rng, blob)
        how = ":v"
        if column == "id" or isinstance(metadata.tables[name].c[column].type, Integer):
            changed = changed.decode(errors="replace")
        elif not isinstance(value, bytes) and rng.random() < 0.8:
            how = "CAST(:v AS TEXT)"  # in UTF-8 or not
        if rng.random() < 0.2:
            changed = rng.choice(
                (None, 0, 1, -1, 2**63 - 1, 0.5, -0.0, "", "x", b"", b"\0", 10**15)
            )
            how = ":v"
        try:
            connection.execute(
                text(f"UPDATE {name} SET {column} = {how} WHERE rowid = {row}"), {"v": changed}
            )
        except IntegrityError:
            return False
        return True

    def close(self) -> None:
        self.store.close()
        self.engine.dispose()
