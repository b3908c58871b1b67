"""`python -m benchmarks`: the store beside the bare driver, and how it grows."""

import argparse
import re
from collections.abc import Iterator

from benchmarks import growth, machine, profiling, report
from benchmarks.databases import SIDES, open_side
from benchmarks.operations import OPERATIONS
from benchmarks.report import Result, milliseconds, ratio, result
from benchmarks.timing import compare

SECONDS, QUICK_SECONDS = 2.2, 0.1
MOST, QUICK_MOST = 100_000, 1_000


def main() -> None:
    """Measure, tell, and keep what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="in a minute, and rougher")
    parser.add_argument("--only", default="", help="a pattern: which databases and operations")
    parser.add_argument("--seconds", type=float, help="for each comparison")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md anew")
    options = parser.parse_args()
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    about = machine.description()
    for name, value in about.items():
        print(f"{name:10} {value}")
    chosen = re.compile(options.only)
    found, grown = [], []
    for each in operations(seconds, chosen):
        found.append(each)
        tell(each)
    if chosen.search("growth"):
        most = QUICK_MOST if options.quick else MOST
        for grows in growth.measure(seconds, most=most):
            about_it = {"database": grows.database, "operation": grows.operation, "of": grows.of}
            grown.append(result(grows.compared, **about_it))
            tell(grown[-1])
    kind = "quick" if options.quick or options.only else "bench"
    profiled = list(profiling.profiles()) if chosen.search("profile") else []
    print("\n" + ratios(found) + "\n\n" + profiling.table(profiled))
    print("\nkept in", report.save(kind, [*found, *grown, *profiled], about))
    if options.page:
        write_page(found, grown, profiled, about)


def operations(seconds: float, chosen: "re.Pattern[str]") -> Iterator[Result]:
    """Each operation on each database by each driver."""
    for database, driver in SIDES:
        names = {op.name: f"{database} {driver} {op.name}" for op in OPERATIONS}
        if not any(chosen.search(name) for name in names.values()):
            continue
        with open_side(database, driver) as side:
            for operation in OPERATIONS:
                if chosen.search(names[operation.name]):
                    compared = compare(
                        operation.contenders(side),
                        side.timer,
                        seconds,
                        collected=operation.collected,
                    )
                    about = {"database": database, "driver": driver, "operation": operation.name}
                    yield result(compared, **about)


def tell(each: Result) -> None:
    """A line for what was found."""
    base, *others = each["ratios"]
    where = f"{each['database']} {each.get('driver', each.get('of'))}"
    spreads = "  ".join(
        f"{name} ×{each['ratios'][name]['median']:.2f}"
        f" ({each['ratios'][name]['low']:.2f}–{each['ratios'][name]['high']:.2f})"
        for name in others
    )
    time = f"{base} {milliseconds(each['seconds'][base])} ms"
    print(f"{where:34} {each['operation']:26} {time:18} {spreads}", flush=True)


def ratios(found: list[Result]) -> str:
    """A table of what the store takes by what the bare driver takes."""

    def cell(each: Result) -> str:
        return ratio(list(each["ratios"].values())[-1])

    return report.table(found, "operation", ["database", "driver"], cell)


def write_page(
    found: list[Result], grown: list[Result], profiled: list[Result], about: dict[str, str]
) -> None:
    """The tables and pictures of docs/performance.md."""
    from benchmarks import plots  # only the page needs matplotlib

    def first(each: Result) -> str:
        return milliseconds(next(iter(each["seconds"].values())))

    report.PLOTS.mkdir(exist_ok=True)
    plots.cost_by_size(found, report.PLOTS / "cost-by-size.svg")
    plots.cost_by_growth(grown, report.PLOTS / "growth.svg")
    largest = [
        each
        | {"to": max(each["ratios"], key=int), "which": f"{each['operation']}, by {each['of']}"}
        for each in grown
    ]
    report.write_page(
        machine=report.machine_table(about),
        profile=profiling.table(profiled),
        ratios=ratios(found),
        times=report.table(found, "operation", ["database", "driver"], first),
        growth=report.table(
            largest, "which", ["database"], lambda each: ratio(each["ratios"][each["to"]])
        ),
    )


if __name__ == "__main__":
    main()
