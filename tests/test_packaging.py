"""What is shipped works outside the checkout: wheel and sdist, each in an empty environment."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from sqlalchemy import URL

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[1]

USE = """
import sys, turnkeep
assert not turnkeep.__file__.startswith(sys.argv[2]), turnkeep.__file__
store = turnkeep.SQLStore(sys.argv[1])
header = turnkeep.Header(id="s", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")
message = turnkeep.MessageEntry({"files": [{"media_type": "image/png", "data": "iVBORw=="}]})
store.delete("s")
assert store.extend("s", [header, message]) == 1
assert store.read("s") == [header, message]
print(store.revision())
"""


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Run *command* and give what it says; a failure says it too."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=plain | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and an sdist, the wheel made from the sdist as for an index."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="module", params=["whl", "tar.gz"])
def installed(
    request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The Python of an empty environment with one of the two in it, and its extras."""
    (package,) = built.glob(f"*.{request.param}")
    home = tmp_path_factory.mktemp("env")
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{package}[all]", cwd=home)
    return python


def test_the_distributions_hold_the_migrations_and_nothing_of_this_machine(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    revisions = sorted(path.name for path in (ROOT / "migrations" / "versions").glob("*.py"))
    for name in ("env.py", "script.py.mako", *(f"versions/{revision}" for revision in revisions)):
        assert f"turnkeep/migrations/{name}" in names
    assert "turnkeep/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    with tarfile.open(sdist) as archive:
        sources = {name.split("/", 1)[-1] for name in archive.getnames()}
        texts = [
            data.read()
            for member in archive.getmembers()
            if (data := archive.extractfile(member)) is not None
        ]
    for name in ("alembic.ini", "migrations/env.py", "tests/conftest.py", "README.md", "LICENSE"):
        assert name in sources
    unwanted = ("__pycache__", ".pyc", ".venv", ".db", ".hypothesis")
    assert not [name for name in [*names, *sources] if any(part in name for part in unwanted)]
    assert not [text for text in texts if str(ROOT).encode() in text]


def test_an_installed_package_makes_and_uses_a_database(installed: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    assert run(installed, "-W", "error", "-c", USE, url, str(ROOT), cwd=tmp_path) == "0001\n"


def test_an_installed_command_line_upgrades_postgres(
    installed: Path, postgres_url: URL, tmp_path: Path
) -> None:
    url = postgres_url.set(drivername="postgresql").render_as_string(hide_password=False)
    command = installed.with_name("turnkeep")
    assert run(command, "db", "current", cwd=Path("/"), TURNKEEP_URL=url) == "no tables\n"
    assert "0001" in run(command, "db", "upgrade", cwd=Path("/"), TURNKEEP_URL=url)
    assert "0001" in run(command, "db", "check", cwd=Path("/"), TURNKEEP_URL=url)
    assert run(installed, "-W", "error", "-c", USE, url, str(ROOT), cwd=tmp_path) == "0001\n"


def test_a_bare_install_needs_no_extra(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    target = tmp_path / "site"
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--target", target, wheel),
        cwd=tmp_path,
    )
    for folder in [target, *target.rglob("*")]:
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    isolated = (sys.executable, "-S", "-W", "error", "-c")
    code = f"import sys; sys.path.insert(0, {str(target)!r})\n" + USE
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    assert run(*isolated, code, url, str(ROOT), cwd=tmp_path) == "0001\n"
    missing = run(
        *isolated,
        f"import sys; sys.path.insert(0, {str(target)!r})\n"
        "import turnkeep, turnkeep.cli\n"
        "for use in (lambda: turnkeep.SQLStore('postgresql://u:secret@h/n'), turnkeep.cli.main):\n"
        "    try: use()\n"
        "    except (turnkeep.InvalidArgument, SystemExit) as error: print(error)\n",
        cwd=tmp_path,
    )
    assert "pip install 'turnkeep[postgres]'" in missing
    assert "pip install 'turnkeep[cli]'" in missing
    assert "secret" not in missing
