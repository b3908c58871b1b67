"""The errors of turnkeep: few kinds, each of which means something that a caller can act on.

Every error is a `TurnkeepError`. Where a kind has a builtin meaning too (a bad value, an unknown
key) it is also that builtin. Constructors take the facts, which stay readable as attributes, and
build the message from them; the facts are the exception's `args`, so errors can be pickled from one
process to another. No message holds a password or any part of a stored message, and neither does
any error behind it: a driver's text quotes values, and a decoder's error has the whole text. So
ours are raised where those are no longer being handled.
"""


class TurnkeepError(Exception):
    """The root: `except TurnkeepError` catches all that this library raises on purpose."""


class HistoryError(TurnkeepError):
    """A history, or the file or folder it was to come from, is not valid; the message names the
    place.
    """


class InvalidEntry(TurnkeepError, ValueError):
    """An entry can't be stored as it is. Nothing was written.

    Attributes:
        path: where the fault lies, as a path from the entry: `$.message.content[2]`.
        reason: what is wrong there and what to do.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class InvalidArgument(TurnkeepError, ValueError):
    """An argument other than an entry can't be used. Nothing was written.

    Attributes:
        argument: the argument's name.
        reason: what is wrong with it and what to do.
    """

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(argument, reason)
        self.argument = argument
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.argument}: {self.reason}"


class UnknownSession(TurnkeepError, LookupError):
    """No session has this id, and the entry is no header that would begin one.

    Attributes:
        session: the id that was asked for; of what is no str, `<dict>` and the like.
    """

    def __init__(self, session: str) -> None:
        if not isinstance(session, str):  # a message, perhaps
            session = f"<{type(session).__qualname__}>"
        super().__init__(session)
        self.session = session

    def __str__(self) -> str:
        return f"no session {self.session!r}: append its Header first"


class SessionExists(TurnkeepError):
    """Another header already began a session of this id.

    Attributes:
        session: the id that is taken.
    """

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.session = session

    def __str__(self) -> str:
        return f"session {self.session!r} exists with another header"


class Conflict(TurnkeepError):
    """The session is not as the caller believes. Nothing was written.

    Attributes:
        session: the session's id.
        reason: which belief was wrong: the expected position, or an idempotency key that names
            another entry.
    """

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(session, reason)
        self.session = session
        self.reason = reason

    def __str__(self) -> str:
        return f"session {self.session!r}: {self.reason}"


class NotErased(TurnkeepError):
    """A namespace has rows again or still, since others wrote to it while it was erased.

    What was there before is gone. Erase it again when nobody writes to it any more.

    Attributes:
        namespace: the namespace.
        tables: the tables that hold rows of it.
    """

    def __init__(self, namespace: str, tables: list[str]) -> None:
        super().__init__(namespace, tables)
        self.namespace = namespace
        self.tables = tables

    def __str__(self) -> str:
        return (
            f"namespace {self.namespace!r} has rows in {', '.join(self.tables)}: "
            "others write to it; end them, and erase it again"
        )


class Corrupt(TurnkeepError):
    """A stored row can't be what was written: it was damaged, or changed by other hands.

    Attributes:
        session: the session's id.
        position: the position of the entry in question.
        path: where in the entry, `$` for the whole of it.
        reason: what is wrong there.
    """

    def __init__(self, session: str, position: int, path: str, reason: str) -> None:
        super().__init__(session, position, path, reason)
        self.session = session
        self.position = position
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"session {self.session!r}, position {self.position}, {self.path}: {self.reason}"


class SchemaError(TurnkeepError):
    """The tables are not those that this version needs; the message says what mends it."""


class Unavailable(TurnkeepError):
    """The database, or a store's file, can't be reached, refuses to serve, or is locked too long.

    What was being written is there entirely or not at all, and which of the two is not known when
    the connection broke during a commit: an append with an `idempotency_key` may be repeated, and
    finds out.
    """
