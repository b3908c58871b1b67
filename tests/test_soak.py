"""The load of `make soak`, for a moment."""

import subprocess
import sys
from pathlib import Path

from conftest import Backend
from contention import header, said
from inspection import raw
from servers import run

SOAK = Path(__file__).parents[1] / "benchmarks/soak.py"
SMALL = ["--seconds=2", "--sessions=30", "--sync-writers=4", "--async-writers=10"]


def test_under_load_nothing_is_lost_and_all_is_sound(server_or_file: Backend) -> None:
    url = server_or_file.url.render_as_string(hide_password=False)
    told = run([sys.executable, str(SOAK), "--url", url, *SMALL])
    assert "lost 0, doubled 0" in told
    assert "errors 0, findings of verify 0" in told


def test_a_fault_ends_the_load_with_an_error(server_or_file: Backend) -> None:
    """Where an entry is damaged, `verify` finds it, and the command says so."""
    url = server_or_file.url.render_as_string(hide_password=False)
    store = server_or_file.store()
    store.extend("damaged", [header("damaged"), said("x")])
    raw(store, "UPDATE turnkeep_entries SET payload = '{' WHERE position = 1")
    done = subprocess.run(
        [sys.executable, str(SOAK), "--url", url, *SMALL],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "findings of verify 1\n" in done.stdout
