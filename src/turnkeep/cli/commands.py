"""The command `turnkeep`, which has the commands and groups."""

import click

from turnkeep.cli.db import db
from turnkeep.cli.retention import erase, prune, stats


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="turnkeep")
def turnkeep() -> None:
    """Agent conversations in SQL."""


for command in (db, erase, prune, stats):
    turnkeep.add_command(command)
