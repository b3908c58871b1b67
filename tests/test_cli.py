"""The command line says what it did in one line, and never a password."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import URL, create_engine, text

from conftest import Backend
from contention import header, said
from inspection import raw
from turnkeep import SQLStore, schema
from turnkeep.cli.commands import turnkeep

SECRET = "hush-4711"


def invoke(*arguments: str, url: URL | str | None = None, input: str | None = None) -> Result:
    text = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    return CliRunner().invoke(turnkeep, arguments, env={"TURNKEEP_URL": text}, input=input)


def test_db_upgrade_makes_the_tables_and_says_so(server_or_file: Backend) -> None:
    url = server_or_file.url
    assert invoke("db", "current", url=url).output == "no tables\n"
    failed = invoke("db", "check", url=url)
    assert failed.exit_code == 1
    assert "turnkeep db upgrade" in failed.output
    assert invoke("db", "upgrade", url=url).output == f"at revision {schema.head()}\n"
    assert invoke("db", "upgrade", url=url).output == f"at revision {schema.head()}, as before\n"
    assert invoke("db", "current", url=url).output == f"{schema.head()}\n"
    checked = invoke("db", "check", url=url)
    assert checked.exit_code == 0
    assert checked.output == f"at revision {schema.head()}, as this version needs\n"


def test_an_option_goes_before_the_environment(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    done = invoke("db", "--url", url, "upgrade", url="postgresql://nobody@127.0.0.1:1/none")
    assert done.exit_code == 0
    with SQLStore(url, migrate=False) as store:
        assert store.revision() == schema.head()


DB = [
    ["upgrade"],
    ["current"],
    ["check"],
    ["verify"],
    ["collect-orphans"],
    ["grants", "--writer", "app"],
]


@pytest.mark.parametrize("command", DB, ids=" ".join)
def test_a_database_is_named_before_a_command_or_behind_it_which_wins(
    tmp_path: Path, command: list[str]
) -> None:
    """The group's, that of the environment too, is not looked at then."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    assert invoke("db", "--url", url, "upgrade").exit_code == 0
    nobody = "postgresql://nobody@127.0.0.1:1/none"
    before = invoke("db", "--url", url, *command)
    assert before.exit_code == (command[0] == "grants"), "SQLite has no roles"
    behind = invoke("db", "--url", nobody, *command, "--url", url)
    from_environment = invoke("db", *command, "--url", url, url=nobody)
    assert behind.output == from_environment.output == before.output
    other = invoke("db", "--url", url, *command, "--url", "nonsense")
    assert (other.exit_code, other.output[:11]) == (1, "Error: url:")


def test_a_schema_is_named_before_a_command_or_behind_it_which_wins(postgres_url: URL) -> None:
    before, behind = ["db", "--schema", "one"], ["--schema", "two"]
    assert "no tables" in invoke(*before, "current", url=postgres_url).output
    assert invoke(*before, "upgrade", *behind, url=postgres_url).exit_code == 0
    for command in (["db", "check", *behind], [*before, "check", *behind]):
        assert invoke(*command, url=postgres_url).exit_code == 0
    assert invoke(*before, "check", url=postgres_url).exit_code == 1
    printed = invoke(*before, "grants", "--writer", "app", *behind, url=postgres_url).output
    assert '"two".' in printed
    assert '"one"' not in printed


def test_a_schema_of_postgres_is_made(postgres_url: URL) -> None:
    assert invoke("db", "--schema", "Agents %", "upgrade", url=postgres_url).exit_code == 0
    assert invoke("db", "--schema", "Agents %", "check", url=postgres_url).exit_code == 0
    assert invoke("db", "check", url=postgres_url).exit_code == 1


def test_any_sign_may_be_in_the_password(postgres_url: URL) -> None:
    password = "p%40s@w:/#%(x)s"
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE cli SUPERUSER LOGIN PASSWORD '{password}'"))
    url = postgres_url.set(username="cli", password=password)
    try:
        assert invoke("db", "upgrade", url=url).output == f"at revision {schema.head()}\n"
        given = url.render_as_string(hide_password=False)
        assert invoke("db", "--url", given, "check").exit_code == 0
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY cli"))
            connection.execute(text("DROP ROLE cli"))
        engine.dispose()


@pytest.mark.parametrize("command", ["upgrade", "current", "check"])
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:pass%40%3A%2Fword@127.0.0.1:1/none",
        "postgresql+psycopg2://user:pass%40%3A%2Fword@127.0.0.1/none",
        "mysql://user:pass%40%3A%2Fword@127.0.0.1/none",
        "postgresql://user:pass@:/word@127.0.0.1:port/none",
        "nonsense pass@:/word",
    ],
)
def test_an_error_is_one_line_without_the_password(command: str, url: str) -> None:
    done = invoke("db", command, url=url)
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert done.output.count("\n") == 1
    for part in ("pass", "word", "%40"):
        assert part not in done.output.replace("refused the user, the password", "").replace(
            "user:password@host", ""
        )


def test_without_a_url_it_is_a_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert invoke("db", "upgrade").exit_code == 0
    (made,) = tmp_path.rglob("*.db")
    assert made.parent.stat().st_mode & 0o077 == 0


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("turnkeep")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("turnkeep, version ")


def test_verify_tells_what_is_wrong_in_each_namespace(server_or_file: Backend) -> None:
    store, url = server_or_file.store(), server_or_file.url
    for name in ("", "other"):
        store.with_namespace(name).extend("s1", [header("s1"), said(SECRET, b"bytes")])
    done = invoke("db", "verify", url=url)
    assert (done.exit_code, done.output) == (0, "sound\n")
    raw(store, "DELETE FROM turnkeep_attachments WHERE namespace = 'other'")
    raw(store, "UPDATE turnkeep_entries SET attachments = 0, payload = '{' WHERE namespace = ''")
    failed = invoke("db", "verify", url=url)
    assert failed.exit_code == 1
    assert "namespace 'other': entries: session 's1', position 1: has 0 of its 1" in failed.output
    assert "namespace 'other': blobs: digest " in failed.output
    assert "namespace '': entries: session 's1', position 1: " in failed.output
    assert "Error: 5 findings\n" in failed.output
    assert SECRET not in failed.output
    one = invoke("db", "verify", "--namespace", "other", url=url)
    assert one.exit_code == 1
    assert "namespace ''" not in one.output
    assert "Error: 2 findings\n" in one.output


def test_collect_orphans_says_what_it_removed(server_or_file: Backend) -> None:
    store, url = server_or_file.store(), server_or_file.url
    for name in ("", "other"):
        store.with_namespace(name).extend("s1", [header("s1"), said("x", b"bytes")])
    raw(store, "DELETE FROM turnkeep_attachments")
    done = invoke("db", "collect-orphans", "--namespace", "other", url=url)
    assert done.exit_code == 0
    assert done.output == "namespace 'other': removed 0 attachments and 1 blobs of 5 bytes\n"
    done = invoke("db", "collect-orphans", url=url)
    assert done.output.splitlines() == [
        "namespace '': removed 0 attachments and 1 blobs of 5 bytes",
        "namespace 'other': removed 0 attachments and 0 blobs of 0 bytes",
    ]


def test_an_unknown_namespace_is_sound_and_an_impossible_one_is_refused(sqlite_url: URL) -> None:
    assert invoke("db", "upgrade", url=sqlite_url).exit_code == 0
    assert invoke("db", "verify", "--namespace", "nobody's", url=sqlite_url).output == "sound\n"
    failed = invoke("db", "verify", "--namespace", "x" * 256, url=sqlite_url)
    assert failed.exit_code == 1
    assert "namespace" in failed.output
