"""docs/chaos.md: what went wrong how often, and what was lost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from troubles import ALL, ALONE, CHAOS_S, FLEET, draw

if TYPE_CHECKING:
    from chaos import Outcome

HEAD = """# What goes wrong, and what is lost

`make chaos` runs a whole installation in each of {all} schedules: server, worker, agent, a real job, and a simulated
host that sends its metrics late, twice and out of order and has captures made. For {chaos_s:.0f} s its parts are killed
(`kill -9`), stopped (`SIGSTOP`, later continued), restarted, meet disks that are full (`ENOSPC`) or broken (`EIO`), or
have their clocks set by an hour. Then all is made well, and what was acknowledged is compared with what is there. Three
of four schedules have PostgreSQL and Redis, which comes back empty; one has SQLite and a folder instead. A schedule's
number repeats it: `make chaos ARGS="--seed 41 --schedules 1"`. CI plays two by chance. So that each is over within a
minute, leases, sweeps and pauses are shorter than usual (tests/chaos/impatient.py); nothing else differs.
"""


def table(outcomes: list[Outcome]) -> str:
    """The whole document. What a schedule lost is counted at each kind of trouble that was part of it."""
    drawn: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        kinds = [(one.part, one.kind) for one in draw(outcome.seed)]
        drawn.update(kinds)
        wrong.update(set(kinds) if outcome.wrong else ())
    captures = Counter[str]()
    for outcome in outcomes:
        captures.update(outcome.captures)
    states = ", ".join(f"{number:,} {state}" for state, number in sorted(captures.items()))
    well = sum(not one.wrong for one in outcomes)
    longest = max(outcomes, key=lambda one: one.took_s)
    lines = [
        HEAD.format(chaos_s=CHAOS_S, all=ALL),
        f"Of the {ALL}, {len(outcomes)} were played: {well} lost nothing, with {sum(drawn.values())} troubles, "
        f"{sum(one.rows for one in outcomes):,} acknowledged samples, {sum(one.steps for one in outcomes):,} steps and "
        f"{sum(captures.values()):,} captures ({states}). The longest took {longest.took_s:.0f} s (number "
        f"{longest.seed}).",
        "",
        "| part | trouble | drawn | in schedules that lost something |",
        "|---|---|---|---|",
    ]
    kinds = dict.fromkeys((part, kind) for parts in (FLEET, ALONE) for part, kinds in parts.items() for kind in kinds)
    lines += [f"| {part} | {kind} | {drawn[part, kind]} | {wrong[part, kind]} |" for part, kind in kinds]
    faults = [f"- {one.seed}: {'; '.join(one.wrong)}" for one in outcomes if one.wrong]
    if faults:
        lines += ["", "What was wrong, by schedule:", "", *faults]
    return "\n".join(lines) + "\n"
