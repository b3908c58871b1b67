"""What the commands share: which store they work on, and how they say what went wrong."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import click

from turnkeep.engine import default_url
from turnkeep.errors import TurnkeepError
from turnkeep.store import SQLStore

F = TypeVar("F", bound=Callable[..., Any])

UNITS = ("bytes", "kB", "MB", "GB", "TB")
URL_HELP = "The database; without it a SQLite file in your data directory."
SCHEMA_HELP = "The Postgres schema of the tables."


class Place(NamedTuple):
    """Which database a group of commands works on."""

    url: str | None
    schema: str | None


def database_options(command: F) -> F:
    """The options of a command or a group that say which database it works on."""
    url = click.option("--url", envvar="TURNKEEP_URL", show_envvar=True, help=URL_HELP)
    return url(click.option("--schema", help=SCHEMA_HELP)(command))


def at_place(command: Callable[..., None]) -> Callable[..., None]:
    """A command of a group whose object is a Place, which takes the same options too, and its own
    win; it is given a Place.
    """

    # Without the environment, which the group's own option goes before.
    @click.option("--url", help=URL_HELP)
    @click.option("--schema", help=SCHEMA_HELP)
    @functools.wraps(command)
    def run(url: str | None, schema: str | None, **given: Any) -> None:
        group: Place = click.get_current_context().obj
        place = Place(group.url if url is None else url, group.schema if schema is None else schema)
        command(place, **given)

    return run


def on_store(command: Callable[..., None]) -> Callable[..., None]:
    """As `at_place`, but it is given the store."""

    @functools.wraps(command)
    def run(place: Place, **given: Any) -> None:
        command(open_store(*place), **given)

    return at_place(run)


def open_store(url: str | None, schema: str | None, namespace: str = "") -> SQLStore:
    """The store on that database, which is closed when the command ends; it never migrates."""
    with in_one_line():
        store = SQLStore(url or default_url(), schema=schema, namespace=namespace, migrate=False)
    click.get_current_context().call_on_close(store.close)
    return store


def on_namespace(command: Callable[..., None]) -> Callable[..., None]:
    """A command that is given the store of the namespace that its options name."""

    @database_options
    @click.option("--namespace", default="", help="The namespace; without it the empty one.")
    @functools.wraps(command)
    def run(url: str | None, schema: str | None, namespace: str, **given: Any) -> None:
        command(open_store(url, schema, namespace), **given)

    return run


@contextmanager
def in_one_line() -> Iterator[None]:
    """Say what went wrong without a traceback; our errors hold no password."""
    try:
        yield
    except TurnkeepError as error:
        raise click.ClickException(str(error)) from None


def readable(size: int) -> str:
    """A number of bytes in a unit that suits it, of a thousand each."""
    value, units = float(size), iter(UNITS)
    unit = next(units)
    while value >= 1000 and unit != UNITS[-1]:
        value, unit = value / 1000, next(units)
    return f"{size} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
