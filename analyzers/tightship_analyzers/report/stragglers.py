"""What-if figures of a job's op table, as plain values and in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tightship_analyzers.stragglers import Contribution, Share, WhatIf, Worker
from tightship_platform.commands.terminal import Column, print_table
from tightship_platform.results.what_if import (
    ErrorFrac,
    StragglerReport,
    StragglerRow,
    StragglerShare,
    StragglerStep,
    StragglerWorker,
)
from tightship_platform.text import printable
from tightship_platform.units import format_frac, format_ns, plural

SAME_FRAC = 0.01
"""A slowdown within this of 1 is no slowdown: the replay's own error is of this size."""


def figures(job: WhatIf, *, workers: bool = False) -> StragglerReport:
    """What `tightship stragglers --json` prints; missing values are null."""
    errors = job.simulation_error_frac
    return StragglerReport(
        slowdown=job.slowdown,
        launch_slowdown=job.launch_slowdown,
        measured_ns=float(job.measured_ns.mean()),
        actual_ns=float(job.actual_ns.mean()),
        ideal_ns=float(job.ideal_ns.mean()),
        steps=[
            StragglerStep(step=step, measured_ns=measured, actual_ns=actual, ideal_ns=ideal, slowdown=slowdown)
            for step, measured, actual, ideal, slowdown in zip(
                job.grid.steps.tolist(),
                job.measured_ns.tolist(),
                job.actual_ns.tolist(),
                job.ideal_ns.tolist(),
                job.step_slowdown.tolist(),
                strict=True,
            )
        ],
        dp_ranks=_rows(job.by_dp_rank),
        stages=_rows(job.by_stage),
        op_types=_rows(job.by_op_type),
        workers=_rows(job.by_worker) if workers else _scores(job),
        worst_workers=_share(job.worst_workers_share),
        last_stage=_share(job.last_stage_share),
        simulation_error_frac=ErrorFrac(mean=float(errors.mean()), max=float(errors.max())),
        warnings=list(job.warnings),
    )


def _rows(rows: Sequence[Contribution[Any]]) -> list[StragglerRow]:
    return [StragglerRow(key=_key(row.key), slowdown=row.slowdown, saving_ns=row.saving_ns) for row in rows]


def _scores(job: WhatIf) -> list[StragglerRow]:
    """Without a replay of each worker there is the published estimate, and no saving."""
    return [StragglerRow(key=_key(key), slowdown=score, saving_ns=None) for key, score in job.worker_scores.items()]


def _key(key: int | str | Worker) -> int | str | StragglerWorker:
    return StragglerWorker(rank=key.rank, dp_rank=key.dp_rank, stage=key.stage) if isinstance(key, Worker) else key


def _share(share: Share) -> StragglerShare:
    return StragglerShare(
        repaired_ns=share.repaired_ns,
        alone_ns=share.alone_ns,
        removed_frac=share.removed_frac,
        added_frac=share.added_frac,
    )


def print_stragglers(job: WhatIf, path: str, *, workers: bool, limit: int) -> None:
    """The verdict, then who is to blame, each with what its repair alone would give back."""
    console = Console(highlight=False)
    actual, ideal = float(job.actual_ns.mean()), float(job.ideal_ns.mean())
    _say(
        console,
        f"{printable(path)}: {plural(len(job.workers), 'worker')}, {plural(len(job.grid.steps), 'step')}",
        "bold",
    )
    _say(
        console,
        f"Without stragglers a step would take {_ns(ideal)} instead of {_ns(actual)}: slowdown {job.slowdown:.4f}.",
    )
    late = job.launch_slowdown - 1
    if late > SAME_FRAC:
        _say(console, f"Measured steps take {format_frac(late)} longer still: operations start later than they could.")
    _say(console, _blame(job))
    parts: list[tuple[str, str, Sequence[Contribution[Any]]]] = [
        ("Pipeline stages", "stage", job.by_stage),
        ("Data-parallel ranks", "rank", job.by_dp_rank),
        ("Kinds of operation", "kind", job.by_op_type),
    ]
    if workers:
        parts.append(("Workers", "worker", job.by_worker))
    for title, name, rows in parts:
        if len(rows) < 2:
            continue
        console.print()
        _say(console, title, "bold")
        columns = [
            Column(name, whole=True),
            Column("slowdown by it alone", right=True, whole=True),
            Column("repair gives back", right=True, whole=True),
            Column("of the step", right=True, whole=True),
        ]
        cells = [
            (_named(row.key), f"{row.slowdown:.4f}", _ns(row.saving_ns), format_frac(row.saving_ns / actual))
            for row in rows[:limit]
        ]
        print_table(columns, cells, empty="none")
        if len(rows) > limit:
            _say(console, f"Not shown: {len(rows) - limit} more (--limit).", "dim")
    console.print()
    errors = job.simulation_error_frac
    _say(
        console,
        f"The unchanged replay meets the measured steps within {format_frac(float(errors.mean()))} on average, "
        f"{format_frac(float(errors.max()))} at worst.",
        "dim",
    )
    for line in job.warnings:
        _say(console, f"warning: {printable(line)}", "dim")


def _blame(job: WhatIf) -> str:
    if job.slowdown - 1 <= SAME_FRAC:
        return "Nothing straggles."
    worst, last = job.worst_workers_share.removed_frac, job.last_stage_share.removed_frac
    parts = []
    if worst is not None:
        parts.append(f"repairing the worst 3 % of workers gives back {format_frac(worst)} of the difference")
    if last is not None and job.grid.stages > 1:
        parts.append(f"a last stage like the others {format_frac(last)}")
    return f"{'; '.join(parts)[:1].upper()}{'; '.join(parts)[1:]} (not to be added)." if parts else ""


def _named(key: Any) -> str:
    return f"{key.rank} (rank {key.dp_rank}, stage {key.stage})" if isinstance(key, Worker) else str(key)


def _ns(value: float) -> str:
    return format_ns(round(value))


def _say(console: Console, words: str, style: str = "") -> None:
    console.print(Text(words, style=style), soft_wrap=True)
