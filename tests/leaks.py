"""A watch on every way by which what nobody may see could get out: errors with all that hangs on
them, log records at every level, warnings, and what Python and asyncio complain of behind everyone.
"""

import gc
import logging
import sys
import threading
import traceback
import warnings
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from servers import PASSWORD

SECRET = "hush-4711-zz"
"""A part of a message, a title, an attachment and its name: twelve bytes, so that in its base64,
repeated, its own stands.
"""

FORMS = (
    SECRET,
    b64encode(SECRET.encode()).decode(),
    SECRET.encode().hex(),
    SECRET.encode().hex().upper(),
    PASSWORD,
    quote(PASSWORD, safe=""),
)
LOGGERS = (
    *("turnkeep", "sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "sqlalchemy.dialects"),
    *("alembic", "psycopg", "asyncpg", "aiosqlite", "asyncio", "concurrent", "py.warnings"),
)
_FIELDS = ("object", "doc", "obj", "orig", "params")
_DIAGNOSTICS = ("message_primary", "message_detail", "message_hint", "context", "column_name")


def said_by(error: BaseException, known: set[int] | None = None) -> Iterator[str]:
    """All that *error* says, and what hangs on it: the errors behind it, suppressed ones too, and
    whatever they hold.
    """
    known = set() if known is None else known
    if id(error) in known:
        return
    known.add(id(error))
    yield from (str(error), repr(error), repr(error.args), repr(vars(error)))
    yield from (repr(getattr(error, name, None)) for name in _FIELDS)
    diagnostics = getattr(error, "diag", None)
    yield from (repr(getattr(diagnostics, name, None)) for name in _DIAGNOSTICS)
    yield from traceback.format_exception(error)
    behind = [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    held = [*error.args, *vars(error).values()]
    for other in [*behind, *(each for each in held if isinstance(each, BaseException))]:
        if other is not None:
            yield from said_by(other, known)


class Watch(logging.Handler):
    """Notes where a secret shows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.loggers: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.loggers.add(record.name)
        said = [record.getMessage(), repr(vars(record))]
        held = record.args if isinstance(record.args, tuple) else ()
        for error in (*held, *(record.exc_info or ())):
            if isinstance(error, BaseException):
                said += said_by(error)
        self.look(f"log of {record.name}, {record.filename}:{record.lineno}", said)

    def look(self, where: str, said: Iterable[str]) -> None:
        """Look for a secret in what was *said*."""
        for line in said:
            if any(form in line for form in FORMS):
                self.found.setdefault(where, line[:300])

    def error(self, where: str, error: BaseException) -> None:
        """Look for a secret in *error* and in what hangs on it."""
        self.look(f"{where}: {type(error).__qualname__}", said_by(error))


@contextmanager
def watching(level: int = logging.DEBUG) -> Iterator[Watch]:
    """Watch everything; at the end nothing may have been found.

    Args:
        level: of the loggers. What a host's own engine logs below WARNING is as the host wishes.
    """
    watch = Watch()
    before = {name: logging.getLogger(name).level for name in ("", *LOGGERS)}
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda given: watch.error("unraisable", given.exc_value or Exception())
    threading.excepthook = lambda given: watch.error("thread", given.exc_value or Exception())
    for name in before:
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(watch)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield watch
            gc.collect()
        watch.look("warning", [str(each.message) for each in warned])
    finally:
        logging.getLogger().removeHandler(watch)
        for name, was in before.items():
            logging.getLogger(name).setLevel(was)
        sys.unraisablehook, threading.excepthook = hooks
    assert not watch.found, "\n".join(f"{where}: {said}" for where, said in watch.found.items())


@contextmanager
def unwatched() -> Iterator[None]:
    """Nothing is logged: what a test does by an engine of its own."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
