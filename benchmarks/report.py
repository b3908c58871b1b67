"""Results as JSON, as tables in Markdown, and in docs/performance.md between their marks."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.timing import Compared

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "plots"

Result = dict[str, Any]


def result(compared: Compared, **about: Any) -> Result:
    """What was found, as it is kept."""
    return about | asdict(compared)


def save(name: str, results: Sequence[Result], machine: dict[str, str]) -> Path:
    """Keep *results*, with what they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "results": list(results)}, indent=1) + "\n")
    return path


def load(name: str) -> list[Result]:
    """What was kept."""
    found: list[Result] = json.loads((RESULTS / f"{name}.json").read_text())["results"]
    return found


def table(
    results: Sequence[Result], row: str, columns: Sequence[str], cell: Any, corner: str = ""
) -> str:
    """A table of a cell for each result: a row for each value of *row*, a column for each of those
    of *columns* together.
    """
    rows = list(dict.fromkeys(r[row] for r in results))
    heads = list(dict.fromkeys(tuple(r[c] for c in columns) for r in results))
    lines = [
        f"| {corner} | {' | '.join(', '.join(head) for head in heads)} |",
        f"|---{'|---:' * len(heads)}|",
    ]
    for name in rows:
        cells = {tuple(r[c] for c in columns): cell(r) for r in results if r[row] == name}
        lines.append(f"| {name} | {' | '.join(cells.get(head, '') for head in heads)} |")
    return "\n".join(lines)


def ratio(spread: dict[str, float]) -> str:
    """A ratio and the middle half of the rounds."""
    return f"**{spread['median']:.2f}** {spread['low']:.2f}–{spread['high']:.2f}"


def milliseconds(spread: dict[str, float]) -> str:
    """A time."""
    return f"{spread['median'] * 1000:.3g}"


def machine_table(machine: dict[str, str]) -> str:
    """What the figures were measured on."""
    return "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in machine.items())])


def write_page(**parts: str) -> None:
    """Put each part between its marks in the page."""
    text = PAGE.read_text()
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if text.find(end) < text.find(begin) or begin not in text:
            raise ValueError(f"{PAGE.name} has no place for {name}: put {begin} and {end} there")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{part}\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(text)
