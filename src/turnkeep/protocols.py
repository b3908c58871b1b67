"""What an agent keeps its sessions in, whichever it is."""

from typing import Protocol, TypeAlias

from turnkeep.entries import Entry, Header

# In a class with a method of the name `list`, annotations can't say list[...].
Entries: TypeAlias = list[Entry]
Headers: TypeAlias = list[Header]


class Store(Protocol):
    """Any object with these four methods, which can be wrapped therefore."""

    def append(self, id: str, entry: Entry) -> object:
        """Append *entry* to session *id*; a Header begins it.

        Raises:
            UnknownSession: there is no such session, and *entry* is no Header. Nothing was written.
            SessionExists: the session has another Header; an equal one is no change.
        """

    def read(self, id: str) -> Entries:
        """All entries of session *id* in the order of their appends; none where it isn't known."""

    def list(self, cwd: str | None = None) -> Headers:
        """The headers of the sessions, of one cwd or all, most recently changed first.

        Each has `updated`. Of equal times the highest id comes first.
        """

    def delete(self, id: str) -> object:
        """Remove session *id*; nothing happens where it isn't known."""


class AsyncStore(Protocol):
    """A Store whose methods are awaited."""

    async def append(self, id: str, entry: Entry) -> object:
        """As `Store.append`."""

    async def read(self, id: str) -> Entries:
        """As `Store.read`."""

    async def list(self, cwd: str | None = None) -> Headers:
        """As `Store.list`."""

    async def delete(self, id: str) -> object:
        """As `Store.delete`."""
