"""The page of faults names tests that there are, and each fault has one."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "faults.md"
FOLDERS = (ROOT / "tests", ROOT / "src" / "turnkeep" / "testing")
TEST = re.compile(r"`(\w+\.py)::(\w+)`")
ROWS = [
    line
    for line in PAGE.read_text().splitlines()
    if line.startswith("|") and not re.match(r"\| fault |\|---", line)
]


def defined(file: str) -> set[str]:
    """The functions in *file*, and the methods of its classes."""
    [path] = [folder / file for folder in FOLDERS if (folder / file).is_file()]
    tree = ast.parse(path.read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_fault_on_the_page_has_tests_that_there_are(row: str) -> None:
    fault, done, tests = (cell.strip() for cell in row.strip("|").split("|"))
    assert fault
    assert done
    named = TEST.findall(tests)
    assert named
    assert TEST.sub("", tests).strip() == ""
    for file, name in named:
        assert name.startswith("test_")
        assert name in defined(file), f"{file} has no {name}"


def test_the_page_has_a_row_for_many_kinds_and_is_linked() -> None:
    assert len(ROWS) > 50
    assert "(docs/faults.md)" in (ROOT / "README.md").read_text()
