"""The commands on what is kept: `stats`, `prune` and `erase`."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import click

from turnkeep.cli.common import database_options, in_one_line, on_namespace, open_store, readable
from turnkeep.retention import Pruned, PruneProgress
from turnkeep.stats import Usage
from turnkeep.store import SQLStore

# No months, and no minutes that somebody could take for them.
UNITS = {"w": "weeks", "d": "days", "h": "hours"}


def _age(
    context: click.Context,  # noqa: ARG001 (click's)
    option: click.Parameter,  # noqa: ARG001
    text: str | None,
) -> datetime | timedelta | None:
    """The age, 90d, or the instant with its zone, that *text* says."""
    if text is None:
        return None
    try:
        if found := re.fullmatch(r"(\d{1,9})([wdh])", text, re.ASCII):
            return timedelta(**{UNITS[found[2]]: int(found[1])})
        instant = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        instant = None
    if instant is None or instant.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is neither an age such as 90d (weeks w, days d, hours h) "
            "nor a time with a zone such as 2026-01-01T00:00:00Z"
        )
    return instant


@click.command()
@on_namespace
def stats(store: SQLStore) -> None:
    """Say how much a namespace holds, in all and by directory."""
    with in_one_line():
        found = store.stats()
    rows = [("all", found), *((repr(each.cwd), each) for each in found.by_cwd)]
    table = [["directory", "sessions", "entries", "payloads", "attachments", "stored", "saved"]]
    table += [[name, *_columns(usage)] for name, usage in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *numbers in table:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        click.echo("  ".join([name.ljust(widths[0]), *cells]).rstrip())


@click.command()
@click.option(
    "--older-than",
    callback=_age,
    metavar="AGE",
    help="Last changed longer ago than this (90d, 36h), or before a time with its zone.",
)
@click.option("--keep-last", type=click.IntRange(0), help="But this many, the last changed.")
@click.option("--cwd", help="Only the sessions of exactly this directory.")
@click.option("--dry-run", is_flag=True, help="Delete nothing, and say what would go.")
@on_namespace
def prune(
    store: SQLStore,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
    cwd: str | None,
    *,
    dry_run: bool,
) -> None:
    """Delete the sessions that are too old or too many, with the attachments that no other has."""
    if older_than is None and keep_last is None:
        raise click.UsageError("say --older-than or --keep-last, or both: all would go")
    with in_one_line(), _told() as progress:
        pruned = store.prune(
            older_than=older_than,
            keep_last=keep_last,
            cwd=cwd,
            dry_run=dry_run,
            progress=progress,
        )
    click.echo(f"{'would prune' if dry_run else 'pruned'} {_said(pruned)}")


@click.command()
@click.argument("namespace")
@click.option("--yes", is_flag=True, help="Don't ask.")
@database_options
def erase(namespace: str, url: str | None, schema: str | None, *, yes: bool) -> None:
    """Delete all that NAMESPACE has, and make sure that no table has a row of it.

    End those who write to it first.
    """
    store = open_store(url, schema, namespace)
    if not yes:
        with in_one_line():
            found = store.stats()
        click.confirm(
            f"erase namespace {namespace!r}, with {found.sessions} sessions, "
            f"{found.entries} entries and {found.attachments} attachments?",
            abort=True,
            err=True,
        )
    with in_one_line(), _told() as progress:
        erased = store.erase_namespace(progress=progress)
    click.echo(f"erased {_said(erased)}")


@contextmanager
def _told() -> Iterator[PruneProgress | None]:
    """What to tell of the progress to, on the terminal, if there is one; a line that is cleared at
    the end.
    """
    if not sys.stderr.isatty():
        yield None
        return

    def tell(pruned: Pruned) -> None:
        click.echo(f"\r{_said(pruned)}\x1b[K", nl=False, err=True)

    try:
        yield tell
    finally:
        click.echo("\r\x1b[K", nl=False, err=True)


def _said(pruned: Pruned) -> str:
    return f"{pruned.sessions} sessions, {pruned.entries} entries, {readable(pruned.bytes)}"


def _columns(usage: Usage) -> list[str]:
    return [
        str(usage.sessions),
        str(usage.entries),
        readable(usage.bytes),
        str(usage.attachments),
        readable(usage.stored_bytes),
        readable(usage.saved_bytes),
    ]
