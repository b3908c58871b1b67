"""The pictures of docs/performance.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter

# One text for one set of figures: no ids by chance, no date.
mpl.use("svg")
mpl.rcParams.update({"svg.hashsalt": "turnkeep", "svg.fonttype": "none", "font.size": 9})
NO_DATE = {"Date": None, "Creator": None}


def cost_by_size(results: Sequence[dict[str, Any]], path: Path) -> None:
    """What an append takes by the size of its message: the store, and the bare driver."""
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for number, (database, driver) in enumerate(
        (("Postgres", "psycopg"), ("SQLite FULL", "sqlite3"), ("SQLite NORMAL", "sqlite3"))
    ):
        points = [
            (_kilobytes(r["operation"]), r["seconds"])
            for r in results
            if (r["database"], r["driver"]) == (database, driver)
            and r["operation"].startswith("append")
        ]
        for name, style in (("bare", ":"), ("ours", "-")):
            axes.plot(
                [size for size, _ in points],
                [seconds[name]["median"] * 1000 for _, seconds in points],
                style,
                marker=".",
                color=f"C{number}",
                label=f"{database}, {'turnkeep' if name == 'ours' else 'bare driver'}",
            )
    axes.set(xscale="log", yscale="log", xlabel="KB of JSON in the message", ylabel="ms an append")
    _plain(axes)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata=NO_DATE)
    pyplot.close(figure)


def cost_by_growth(results: Sequence[dict[str, Any]], path: Path) -> None:
    """What a call takes by how much there is."""
    databases = sorted({r["database"] for r in results})
    kinds = ("entries in the session", "sessions")
    figure, grid = pyplot.subplots(
        len(databases), len(kinds), figsize=(7.4, 5.2), sharey="row", layout="constrained"
    )
    for row, database in zip(grid, databases, strict=True):
        for axes, kind in zip(row, kinds, strict=True):
            for r in results:
                if (r["database"], r["of"]) == (database, kind):
                    sizes = list(r["seconds"])
                    axes.plot(
                        [int(size) for size in sizes],
                        [r["seconds"][size]["median"] * 1000 for size in sizes],
                        marker=".",
                        label=r["operation"],
                    )
            axes.set(xscale="log", yscale="log", xlabel=kind, title=database)
            _plain(axes)
            axes.legend(frameon=False, fontsize=7, ncols=2, loc="lower left")
        low, high = row[0].get_ylim()
        row[0].set(ylabel="ms a call", ylim=(low / 8, high * 2))  # flat is to look flat
    figure.savefig(path, metadata=NO_DATE)
    pyplot.close(figure)


def _kilobytes(operation: str) -> float:
    return float(operation.split()[1])


def _plain(axes: Any) -> None:
    axes.grid(visible=True, which="major", alpha=0.3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
