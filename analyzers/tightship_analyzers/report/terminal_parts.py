"""Parts of the report that only some runs or calls have: the ranks side by side, and the cost of facts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tightship_analyzers.report.captions import roofline_title, roofline_words
from tightship_analyzers.report.sentences import chain_words, graph_words, idle_rows, least_productive, rates_of
from tightship_platform.results.analysis.figures import FactCost
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.analysis.skew import RankComparison, RankSkew
from tightship_platform.text import label
from tightship_platform.units import format_frac, format_ns, plural

MOST_RANKS = 8
"""Ranks in the table: those that cost the others most."""
NAME_CHARS = 60
MOST_IDLE_ROWS = 6
LEAST_FAMILY_FRAC = 0.01
"""Families below this share of the known time stand in the JSON only."""
MOST_CHAINS, LEAST_CHAIN_PARTS = 3, 200
"""Chains whose fusion gives back less than one of so many parts of the window are not worth a line."""
PLACE_CHARS = 70


def print_across(console: Console, result: RunAnalysis) -> None:
    """Who waits for whom, where the traces show it."""
    if len(result.ranks) < 2:
        return
    across = result.across_ranks
    if across is None:
        console.print(Text(f"Ranks not compared: {result.not_compared}", style="dim"), soft_wrap=True)
        console.print()
        return
    console.print(Text("Who waits for whom", style="bold"))
    console.print(Text(_headline(across), style="dim"), soft_wrap=True)
    table = _grid(("RANK", "LAST AT", "OTHERS WAITED", "RUN WAITED FOR IT ALONE", "WAITED ITSELF"))
    for row in [row for row in across.ranks if row.last][:MOST_RANKS]:
        table.add_row(*_cells(row, across))
    console.print(Padding(table, (1, 0, 1, 2), expand=False))
    worst = across.worst[0]
    console.print(
        Text(
            f"  Largest skew: {label(worst.name, NAME_CHARS)} number {worst.number}, rank {worst.first_rank} came "
            f"{format_ns(worst.skew_ns)} before rank {worst.last_rank}"
        ),
        soft_wrap=True,
    )
    console.print()


def _headline(across: RankComparison) -> str:
    steps = across.steps or 0
    per = f", per step over {plural(steps, 'step')}" if steps > 1 else ", in the one step" if steps else ", in all"
    left = f"; {across.left_out} without a partner left out" if across.left_out else ""
    return f"Arrival at {plural(across.collectives, 'collective')}{per}{left}."


def _cells(row: RankSkew, across: RankComparison) -> Sequence[str]:
    steps = across.steps or 1
    waited = format_frac(row.waited_exposed_ns / row.waited_ns) if row.waited_ns else "–"
    return (
        str(row.rank),
        f"{row.last} of {row.collectives}",
        format_ns(row.kept_waiting_ns // steps),
        format_ns(row.late_exposed_ns // steps),
        f"{format_ns(row.waited_ns // steps)} ({waited} exposed)",
    )


def print_idle(console: Console, result: RunAnalysis) -> None:
    """Why the device is idle and where in the program; of several ranks that of the least productive."""
    one = least_productive(result)
    rows = idle_rows(one)
    total = sum(ns for _, _, ns in rows)
    if not total:
        return
    whose = f" of rank {one.rank}" if len(result.ranks) > 1 else ""
    summary = one.summary
    window, steps = summary.window_ns, summary.steps
    long = f"{format_ns(total // steps)} a step" if steps else format_ns(total)
    share = f"{format_frac(total / window)} of {'it' if steps else 'the recording'}"
    console.print(Text(f"Why the device{whose} is idle ({long}, {share})", style="bold"))
    if graphs := graph_words(one):
        console.print(Text(graphs, style="dim"), soft_wrap=True)
    table = _grid(("SHARE", "A STEP" if steps else "TIME", "CAUSE", "PLACE"), left=(2, 3))
    for cause, place, ns in rows[:MOST_IDLE_ROWS]:
        table.add_row(format_frac(ns / window), format_ns(ns // (steps or 1)), cause, Text(label(place, PLACE_CHARS)))
    rest = sum(ns for _, _, ns in rows[MOST_IDLE_ROWS:])
    if rest:
        more = Text(f"{len(rows) - MOST_IDLE_ROWS} more in the JSON")
        table.add_row(format_frac(rest / window), format_ns(rest // (steps or 1)), "other places", more)
    console.print(Padding(table, (1, 0, 1, 2), expand=False))


def print_roofline(console: Console, result: RunAnalysis) -> None:
    """What the kernels achieved against the device's roof; of several ranks the least productive one's."""
    one = least_productive(result)
    roof = one.figures.roofline
    if roof is None or not roof.families:
        return
    whose = f" of rank {one.rank}" if len(result.ranks) > 1 else ""
    console.print(Text(roofline_title(roof) + whose, style="bold"))
    console.print(Text(roofline_words(one, roof), style="dim"), soft_wrap=True)
    table = _grid(("KERNELS", "TIME", "ACHIEVED", "ATTAINABLE", "OF ROOFLINE", "MEMORY-BOUND"), left=(0,))
    for row in [row for row in roof.families if row.device_ns >= LEAST_FAMILY_FRAC * roof.known_ns]:
        table.add_row(
            f"{row.family} {row.dtype or 'integers'}",
            format_ns(row.device_ns),
            *rates_of(row),
            format_frac(row.roof_frac),
            format_frac(row.memory_bound_ns / row.device_ns) if row.device_ns else "–",
        )
    console.print(Padding(table, (1, 0, 1, 2), expand=False))
    for chain in (one.figures.fusion_candidates or [])[:MOST_CHAINS]:
        if chain.saving_ns * LEAST_CHAIN_PARTS < roof.window_ns:
            break
        console.print(Text(f"  Fusion candidate: {chain_words(chain)}", style="dim"), soft_wrap=True)
    console.print()


def print_facts(console: Console, ranks: Sequence[RankAnalysis]) -> None:
    """What was derived from the trace, what it cost and who used it; of several ranks the costs are summed."""
    rows: dict[str, FactCost] = {}
    for one in ranks:
        for cost in one.facts:
            known = rows.get(cost.fact)
            rows[cost.fact] = FactCost(
                fact=cost.fact,
                self_ns=cost.self_ns + (known.self_ns if known else 0),
                used_by=list(dict.fromkeys((*(known.used_by if known else ()), *cost.used_by))),
                missing=cost.missing if known is None else known.missing and cost.missing,
            )
    console.print()
    console.print(Text("Facts", style="bold"))
    table = _grid(("FACT", "COST", "USED BY"), left=(0, 2))
    for row in sorted(rows.values(), key=lambda row: -row.self_ns):
        used = ", ".join(row.used_by)
        table.add_row(row.fact, format_ns(row.self_ns), used + (f" – not there: {row.missing}" if row.missing else ""))
    console.print(Padding(table, (1, 0, 1, 2), expand=False))


def _grid(names: Sequence[str], *, left: Sequence[int] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number in left else "right")
    return table
