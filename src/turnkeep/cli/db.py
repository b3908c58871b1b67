"""The group `db`: the tables of a database, and their revision."""

import click

from turnkeep import schema as schemas
from turnkeep.cli.common import Place, at_place, database_options, in_one_line, on_store
from turnkeep.dialect import DIALECTS
from turnkeep.engine import default_url, parse_url
from turnkeep.store import SQLStore
from turnkeep.verification import Finding, survey


@click.group()
@database_options
@click.pass_context
def db(context: click.Context, url: str | None, schema: str | None) -> None:
    """The tables of a database: make them, look at them.

    --url and --schema may stand behind the command too.
    """
    context.obj = Place(url, schema)


@db.command()
@click.option(
    "--row-security/--no-row-security",
    default=None,
    help="On Postgres, let a role see the namespace of its own name only, or no longer so.",
)
@on_store
def upgrade(store: SQLStore, row_security: bool | None) -> None:  # noqa: FBT001
    """Make the tables, or bring them to this version's revision."""
    with in_one_line():
        before = store.revision()
        store.upgrade(row_security=row_security)
        after = store.revision()
    click.echo(f"at revision {after}, as before" if before == after else f"at revision {after}")


@db.command()
@on_store
def current(store: SQLStore) -> None:
    """Say which revision the tables are at."""
    with in_one_line():
        click.echo(store.revision() or "no tables")


@db.command()
@on_store
def check(store: SQLStore) -> None:
    """Fail unless the tables are those of this version."""
    with in_one_line():
        store.check()
    click.echo(f"at revision {schemas.head()}, as this version needs")


@db.command()
@click.option("--owner", metavar="ROLE", help="Upgrades: the tables are made its own.")
@click.option("--writer", metavar="ROLE", help="Appends, reads and deletes.")
@click.option("--recorder", metavar="ROLE", help="Appends and reads.")
@click.option("--tenants", metavar="ROLE", help="The group of those with a namespace each.")
@at_place
def grants(
    place: Place,
    owner: str | None,
    writer: str | None,
    recorder: str | None,
    tenants: str | None,
) -> None:
    """Print the SQL that gives roles of Postgres their rights, for psql; nothing is run."""
    with in_one_line():
        DIALECTS[parse_url(place.url or default_url()).get_backend_name()].check_roles()
        text = schemas.grants(
            owner=owner, writer=writer, recorder=recorder, tenants=tenants, schema=place.schema
        )
    click.echo(f"BEGIN;\n\n{text}\nCOMMIT;")


@db.command()
@click.option("--namespace", help="Only this one; without it all that the database has.")
@on_store
def verify(store: SQLStore, namespace: str | None) -> None:
    """Look at every row, and fail where one can't be what was written; changes nothing."""
    with in_one_line():
        names, others = _surveyed(store, namespace)
        for finding in others:
            click.echo(finding)
        count = len(others)
        for name in names:
            for finding in store.with_namespace(name).verify():
                count += 1
                click.echo(f"namespace {name!r}: {finding}")
    if count:
        raise click.ClickException(f"{count} findings")
    click.echo("sound")


@db.command("collect-orphans")
@click.option("--namespace", help="Only in this one; without it in all that the database has.")
@on_store
def collect_orphans(store: SQLStore, namespace: str | None) -> None:
    """Remove what verify finds that nobody can reach."""
    with in_one_line():
        names, others = _surveyed(store, namespace)
        for finding in others:
            click.echo(f"left: {finding}")
        for name in names:
            found = store.with_namespace(name).collect_orphans()
            click.echo(
                f"namespace {name!r}: removed {found.attachments} attachments and "
                f"{found.blobs} blobs of {found.bytes} bytes"
            )


def _surveyed(store: SQLStore, namespace: str | None) -> tuple[list[str], list[Finding]]:
    """The *namespace* that is asked for, or all of them, with what stands in the place of one and
    can be none.
    """
    return store._runner.run(survey()) if namespace is None else ([namespace], [])
