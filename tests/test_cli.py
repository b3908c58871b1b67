"""The command line says what it did in one line, and never a password."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import URL

from conftest import Backend
from turnkeep import SQLStore, schema
from turnkeep.cli.commands import turnkeep


def invoke(*arguments: str, url: URL | str | None = None) -> Result:
    text = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    return CliRunner().invoke(turnkeep, arguments, env={"TURNKEEP_URL": text})


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


def test_a_schema_of_postgres_is_made(postgres_url: URL) -> None:
    assert invoke("db", "--schema", "Agents %", "upgrade", url=postgres_url).exit_code == 0
    assert invoke("db", "--schema", "Agents %", "check", url=postgres_url).exit_code == 0
    assert invoke("db", "check", url=postgres_url).exit_code == 1


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
