"""What the libraries below log about the connections of an engine of our own, less what it says.

Parameters are message content, and so are rows and many of the drivers' errors, which quote values.
`hide_parameters` hides the first. At DEBUG SQLAlchemy logs rows all the same, its pool logs errors
of drivers, with those behind them, and aiosqlite logs every call with its arguments, as an event
loop in debug mode does with what aiosqlite hands to it. So our engines have loggers of their own,
below SQLAlchemy's, and filters on these and on the others let through what happens, but not with
what. A host's own engine logs as the host set it up.
"""

import logging
import threading
from typing import Any
from weakref import WeakSet

NAME = "turnkeep"
"""The last part of the names of our engines' loggers: `sqlalchemy.engine.Engine.turnkeep`."""

_threads: WeakSet[threading.Thread] = WeakSet()
"""Those in which the connections of our own engines work."""


def hide(engine: Any) -> None:
    """Keep content out of what is logged of *engine*, which was made with loggers of our name."""
    engine.logger.addFilter(_without_rows)
    engine.pool.logger.addFilter(_without_errors)


def hide_thread(thread: threading.Thread) -> None:
    """Keep content out of what aiosqlite logs in *thread*, that of a connection of ours."""
    _threads.add(thread)
    logging.getLogger("aiosqlite").addFilter(_without_arguments)
    logging.getLogger("asyncio").addFilter(_without_callbacks)


def _without_rows(record: logging.LogRecord) -> bool:
    """Whether *record* is none of those of a result: they are at DEBUG, all others above."""
    return record.levelno > logging.DEBUG


def _without_errors(record: logging.LogRecord) -> bool:
    """True; of errors their classes are left."""
    if record.exc_info and record.exc_info[0]:
        record.msg = f"{record.msg} ({record.exc_info[0].__qualname__})"
        record.exc_info = None
    if isinstance(record.args, tuple):
        record.args = tuple(_named(given) for given in record.args)
    return True


def _without_arguments(record: logging.LogRecord) -> bool:
    """True; in a thread of ours, of errors their classes are left, of calls their functions."""
    return threading.current_thread() not in _threads or _without_errors(record)


def _without_callbacks(record: logging.LogRecord) -> bool:
    """True; what took a loop in debug mode long is not told where rows are handed to it."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            "a callback of aiosqlite's" if type(given) is str and "aiosqlite" in given else given
            for given in record.args
        )
    return True


def _named(given: Any) -> Any:
    if isinstance(given, BaseException):
        return type(given).__qualname__
    function = getattr(given, "func", None)  # of a partial
    return getattr(function, "__qualname__", given)
