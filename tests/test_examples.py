"""The examples and the pages do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnkeep import Header, JSONLStore, MessageEntry, SQLStore

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PICTURE = {"media_type": "image/png", "data": "iVBORw0KGgo=", "filename": "plot.png"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_on_a_page_runs(page: Path, tmp_path: Path) -> None:
    """All its blocks, one after the other; `# elsewhere` begins one that is only to be read."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    code = "\n".join(block for block in blocks if not block.startswith("# elsewhere"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_quickstart_tells_its_story_twice(tmp_path: Path) -> None:
    home = JSONLStore(tmp_path / "home")
    header = Header(id="s1", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")
    for entry in (header, *[MessageEntry({"role": "user", "content": "", "files": [PICTURE]})] * 2):
        home.append("s1", entry)
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    env = os.environ | {"TURNKEEP_URL": url, "HOME_DIR": str(tmp_path / "home")}
    for _ in range(2):  # what an earlier run left is no hindrance
        done = subprocess.run(
            [sys.executable, "-W", "error", ROOT / "examples" / "quickstart.py"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "the process ended by signal 9" in done.stdout
        assert "s1: 3 entries read back equal" in done.stdout
        assert "image/png, 8 bytes: there 2 times, stored once" in done.stdout
        assert str(tmp_path / "chats.db") in done.stdout.splitlines()[-1]
    with SQLStore(url) as store:
        assert [h.last_position for h in store.list("/home/you/project")] == [5, 5]
        assert store.list("/home/you/notes") == []
