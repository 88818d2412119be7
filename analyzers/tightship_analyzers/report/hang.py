"""A hung job in a terminal: the verdict, the ranks that the others wait for, and what each is at."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from tightship_platform.commands.terminal import Column, clock, print_table
from tightship_platform.results.hang import HangReport
from tightship_platform.results.why import ProcessStack, RunWhy
from tightship_platform.text import printable
from tightship_platform.units import plural

MOST_FRAMES = 12
"""Of a rank's stack in a terminal."""


def print_run(why: RunWhy) -> None:
    """Print why a run makes no steps, or how it died."""
    console = Console(highlight=False)
    console.print(Text(f"Run {why.run}: {why.state}", style="bold"), soft_wrap=True)
    console.print(Text(printable(why.verdict)), soft_wrap=True)
    console.print(Text(f"Cause: {printable(why.cause)}"), soft_wrap=True)
    if not why.processes:
        return
    console.print()
    print_table(
        [
            Column("rank", right=True, whole=True),
            Column("pid", right=True, whole=True),
            Column("steps", right=True),
            Column("is", whole=True),
            Column("at", prose=True),
        ],
        [(_name(one), one.pid, "–" if one.steps is None else one.steps, _does(one), _at(one)) for one in why.processes],
        empty="",
    )
    for one in why.processes:
        if one.role == "rank" and one.stack:
            console.print(Text(f"\nRank {one.rank} (process {one.pid}), the innermost call first", style="bold"))
            for frame in one.stack[:MOST_FRAMES]:
                console.print(Text(f"  {printable(frame)}"), soft_wrap=True)
            if len(one.stack) > MOST_FRAMES:
                console.print(Text(f"  and {len(one.stack) - MOST_FRAMES} more; --json has all"))


def _name(one: ProcessStack) -> str:
    return one.role if one.rank is None else str(one.rank)


def _does(one: ProcessStack) -> str:
    if one.collective:
        return f"in {one.collective}"
    return {True: "computing", False: "waiting", None: "not known"}[one.runs]


def _at(one: ProcessStack) -> str:
    return one.place or one.reason or (one.stack[0] if one.stack else "–")


def print_hang(report: HangReport) -> None:
    """Print it."""
    console = Console(highlight=False)
    missing = report.ranks - len(report.dumps)
    of = f" of {report.ranks} ranks" if missing else ""
    console.print(Text(f"{plural(len(report.dumps), 'dump')}{of}", style="bold"), soft_wrap=True)
    console.print(Text(printable(report.verdict)), soft_wrap=True)
    console.print(Text(f"Cause: {printable(report.cause)}"), soft_wrap=True)
    if report.culprits:
        console.print()
        columns = [
            Column("rank", right=True, whole=True),
            Column("is", whole=True),
            Column("operation"),
            Column("group"),
            Column("in flight", right=True, spare=True),
        ]
        rows: list[tuple[object, ...]] = [
            (c.rank, c.kind, f"{c.operation.name} {c.operation.seq}", c.operation.group, c.pending)
            for c in report.culprits
        ]
        if any(culprit.place for culprit in report.culprits):
            columns.append(Column("called at", prose=True))
            rows = [(*row, culprit.place or "–") for row, culprit in zip(rows, report.culprits, strict=True)]
        print_table(columns, rows, empty="")
    if report.waits:
        console.print()
        print_table(
            [
                Column("ranks", whole=True),
                Column("wait in"),
                Column("group"),
                Column("for", whole=True),
                Column("since", spare=True),
            ],
            [
                (
                    ranges(wait.waiting),
                    f"{wait.operation.name} {wait.operation.seq}",
                    wait.operation.group,
                    ranges(wait.missing) or "not known",
                    clock(wait.since_ns),
                )
                for wait in report.waits
            ],
            empty="",
        )


def ranges(ranks: Iterable[int]) -> str:
    """Such as '0-3, 8'."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
