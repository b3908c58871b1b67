"""The command `turnkeep`, which has the groups."""

import click

from turnkeep.cli.db import db


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="turnkeep")
def turnkeep() -> None:
    """Agent conversations in SQL."""


turnkeep.add_command(db)
