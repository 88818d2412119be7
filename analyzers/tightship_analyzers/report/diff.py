"""How the difference of two traces looks in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tightship_analyzers.analysis.diff_from_files import DiffFromFiles, Group
from tightship_analyzers.metrics.trace_diff import SAME_FRAC, Change, DiffRow, Part
from tightship_platform.commands.terminal import Column, print_table
from tightship_platform.text import label, printable
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import SavingUnit

TITLES = {
    Part.KERNEL: "Kernels, copies and sets (device time per {unit})",
    Part.OPERATOR: "Operators (host time per {unit}, what they enclose included)",
    Part.MODULE: "Modules (host time per {unit}, what they enclose included)",
}
ABSENT = {
    Part.KERNEL: "Kernels were not compared: neither side holds device events.",
    Part.OPERATOR: "Operators were not compared: neither side holds any.",
    Part.MODULE: "Modules were not compared: neither side recorded Python stacks (with_stack=True).",
}
COLUMNS = (
    Column("change", whole=True),
    Column("before", right=True, whole=True),
    Column("after", right=True, whole=True),
    Column("growth", right=True, whole=True),
    Column("calls", right=True, spare=True),
    Column("name"),
)


PLAIN_CHARS = 100
"""Room for a name where the output is no terminal; `--json` has names whole."""
LEAST_CHARS = 40
MOST_PARTS, LEAST_PART_FRAC = 3, 0.01
"""Parts of the step that the first line names, and the least change of one as a share of the step."""
BESIDES_CHARS = 62
"""What the other columns take of a terminal's width."""


def print_diff(result: DiffFromFiles, *, limit: int) -> None:
    """The `limit` largest changes of each part, and how many more there are."""
    console = Console(highlight=False)
    room = max(console.width - BESIDES_CHARS, LEAST_CHARS) if console.is_terminal else PLAIN_CHARS
    console.print(Text(_headline(result), style="bold"), soft_wrap=True)
    if result.before.account.devices != result.after.account.devices:
        console.print(Text("The devices differ: what changed is theirs as well as the program's.", style="bold yellow"))
    if result.diff.unit is SavingUnit.RECORDING:
        without = [printable(side.path) for side in (result.before, result.after) if not side.totals.steps]
        holds = "hold" if len(without) > 1 else "holds"
        said = f"{' and '.join(without)} {holds} no steps: whole recordings are compared, however long they are."
        console.print(Text(said, style="bold yellow"), soft_wrap=True)
    console.print(Text(f"before  {_side(result.before)}"), soft_wrap=True)
    console.print(Text(f"after   {_side(result.after)}"), soft_wrap=True)
    for part, title in TITLES.items():
        rows = result.diff.of(part)
        if not rows:
            console.print(Text(f"\n{ABSENT[part]}"), soft_wrap=True)
            continue
        changed = [row for row in rows if row.change is not Change.SAME and row.within is None]
        console.print()
        console.print(Text(title.format(unit=result.diff.unit.whole), style="bold"), soft_wrap=True)
        print_table(COLUMNS, [_cells(row, room) for row in changed[:limit]], empty="Nothing changed.")
        console.print(Text(_rest(rows, changed, limit, result.diff.unit)), soft_wrap=True)
    for line in (*result.before.skipped, *result.after.skipped):
        console.print(Text(f"left out: {printable(line)}"), soft_wrap=True)
    for line in (*result.before.warnings, *result.after.warnings):
        console.print(Text(f"warning: {printable(line)}"), soft_wrap=True)


def _headline(result: DiffFromFiles) -> str:
    """How long a step was and is, and which part of it changed most."""
    before, after = result.before.account, result.after.account
    if before.step_ns is None or after.step_ns is None:
        return "Steps cannot be compared: not both sides hold a whole one."
    growth = (after.step_ns - before.step_ns) / before.step_ns
    if abs(growth) <= SAME_FRAC:
        said = f"A step takes {format_ns(after.step_ns)}, as before ({format_ns(before.step_ns)})"
    else:
        longer = f"{format_frac(abs(growth))} {'longer' if growth > 0 else 'shorter'}"
        if growth > 1:
            longer = f"{1 + growth:.3g} times as long"
        said = f"A step went from {format_ns(before.step_ns)} to {format_ns(after.step_ns)}, {longer}"
    grown = {
        part: round(after.parts_ns[part] / after.steps - before.parts_ns[part] / before.steps)
        for part in before.parts_ns | after.parts_ns
    }
    changed = [
        f"{part.replace('_', ' ')} {'+' if ns > 0 else ''}{format_ns(ns)}"
        for part, ns in sorted(grown.items(), key=lambda item: -abs(item[1]))[:MOST_PARTS]
        if abs(ns) > LEAST_PART_FRAC * before.step_ns
    ]
    return f"{said}: {', '.join(changed)}." if changed else f"{said}."


def _side(group: Group) -> str:
    traces, steps = len(group.traces), group.totals.steps
    recorded = f"{plural(steps, 'step')} in the whole recording ({group.account.steps} whole)" if steps else "no steps"
    counted = f"{plural(traces, 'trace')}, {recorded}"
    return f"{printable(group.path)}: {counted}, {', '.join(map(printable, group.account.devices))}"


def _cells(row: DiffRow, room: int) -> Sequence[object]:
    growth = round(row.growth_ns)
    before_calls, after_calls = row.before.count / row.before_units, row.after.count / row.after_units
    return (
        row.change.value,
        format_ns(round(row.before_ns)) if row.before.count else "–",
        format_ns(round(row.after_ns)) if row.after.count else "–",
        f"{'+' if growth > 0 else ''}{format_ns(growth)}",
        f"{before_calls:.4g} → {after_calls:.4g}",
        label(row.name, room),
    )


def _rest(rows: Sequence[DiffRow], changed: Sequence[DiffRow], limit: int, unit: SavingUnit) -> str:
    parts = []
    if len(changed) > limit:
        parts.append(f"{plural(len(changed) - limit, 'smaller change')} not shown (--limit)")
    inner = sum(row.change is not Change.SAME and row.within is not None for row in rows)
    if inner:
        parts.append(f"{plural(inner, 'name')} left out that only another of them calls, as often")
    same = sum(row.change is Change.SAME for row in rows)
    if same:
        parts.append(f"{plural(same, 'name')} within {format_frac(SAME_FRAC)} of before")
    growth = round(sum(row.growth_ns for row in rows))
    if rows[0].part is Part.KERNEL:
        parts.append(f"all together {'+' if growth > 0 else ''}{format_ns(growth)} per {unit.whole}")
    return "; ".join(parts) + "." if parts else ""
