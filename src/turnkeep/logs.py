"""What the libraries below log about the connections of an engine of our own, less what it says.

Parameters are message content, and so are rows and many of the drivers' errors, which quote values.
`hide_parameters` hides the first. At DEBUG SQLAlchemy logs rows all the same, and its pool logs
errors of drivers, with those behind them. So our engines have loggers of their own, below
SQLAlchemy's, and filters on these let through what happens, but not with what. A host's own engine
logs as the host set it up.
"""

import logging
from typing import Any

NAME = "turnkeep"
"""The last part of the names of our engines' loggers: `sqlalchemy.engine.Engine.turnkeep`."""


def hide(engine: Any) -> None:
    """Keep content out of what is logged of *engine*, which was made with loggers of our name."""
    engine.logger.addFilter(_without_rows)
    engine.pool.logger.addFilter(_without_errors)


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


def _named(given: Any) -> Any:
    return type(given).__qualname__ if isinstance(given, BaseException) else given
