"""The command line, `turnkeep`: one module for each group of commands, none with SQL in it.

It needs the extra `cli`. What goes wrong is said in one line, without a traceback, and ends with
exit code 1; a wrong use of the command line ends with 2.
"""

import sys


def main() -> None:
    """Run the command line."""
    try:
        import click  # noqa: F401
    except ImportError:
        sys.exit("the command line needs click: pip install 'turnkeep[cli]'")
    from turnkeep.cli.commands import turnkeep

    turnkeep()
