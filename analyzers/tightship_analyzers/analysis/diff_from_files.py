"""The difference of two traces, or of two folders of them, by path: no server, no database, nothing written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tightship_analyzers.analysis.named_traces import ReadingBars, named_traces
from tightship_analyzers.analysis.sources import open_source
from tightship_analyzers.analysis.step_account import StepAccount
from tightship_analyzers.analysis.summary import uncovered
from tightship_analyzers.metrics.step_filter import without_last_step
from tightship_analyzers.metrics.trace_diff import DiffRow, Total, TraceDiff, TraceTotals, trace_diff
from tightship_platform.errors import TightshipError
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.results.trace_diff import DiffChange, DiffReport, DiffSide, DiffTotal
from tightship_platform.text import shown


@dataclass(frozen=True, kw_only=True)
class Group:
    """One side of the comparison."""

    path: str
    traces: Sequence[str]
    """What was read: the file itself, or the traces in the folder (taken for the ranks of one run)."""
    skipped: Sequence[str]
    """Files of a folder that are no traces, one line each."""
    warnings: Sequence[str]
    """What was wrong with traces that were read all the same, one line each."""
    totals: TraceTotals
    account: StepAccount

    def as_record(self) -> DiffSide:
        """The public record of this side."""
        return DiffSide(
            path=self.path,
            traces=list(self.traces),
            steps=self.totals.steps,
            devices=list(self.account.devices),
            step_ns=self.account.step_ns,
            judged_steps=self.account.steps,
            parts_ns={part: ns for part, ns in self.account.parts_ns.items() if ns},
            skipped=list(self.skipped),
            warnings=list(self.warnings),
        )


@dataclass(frozen=True, kw_only=True)
class DiffFromFiles:
    """Two sides and how they differ."""

    before: Group
    after: Group
    diff: TraceDiff

    def as_record(self) -> DiffReport:
        """What `tightship diff --json` prints: totals in exact integers, times per step and rank, or per recording."""
        return DiffReport(
            before=self.before.as_record(),
            after=self.after.as_record(),
            unit=self.diff.unit.value,
            absent=[part.value for part in self.diff.absent],
            rows=[_change(row) for row in self.diff.rows],
        )


def diff_paths(
    before: str, after: str, *, all_steps: bool = False, progress: bool = False, within: str = ""
) -> DiffFromFiles:
    """Read both sides, one trace at a time, and compare them.

    Without `all_steps` the last marked step of each trace, which recording usually cut off, is left out.

    :param within: a folder, with a slash at its end, that names are given without.
    :raises TightshipError: a file that was named is no trace, a folder holds none, or there is nothing to compare.
    """
    sides = [_group(path, progress=progress, all_steps=all_steps, within=within) for path in (before, after)]
    found = trace_diff(sides[0].totals, sides[1].totals)
    if isinstance(found, NotApplicable):
        raise TightshipError(f"Nothing to compare: the diff {found.reason}")
    return DiffFromFiles(before=sides[0], after=sides[1], diff=found)


def _group(path: str, *, progress: bool, all_steps: bool, within: str) -> Group:
    totals, account = TraceTotals(), StepAccount()
    read: list[str] = []
    skipped: list[str] = []
    warnings: list[str] = []
    named = dict(named_traces([path]))
    with ReadingBars(wanted=progress, files=len(named)) as bars:
        for source, is_named in named.items():
            try:
                trace = open_source(source, partial(bars.tell, source))
            except TightshipError as error:
                if is_named:
                    raise
                skipped.append(shown(str(error), 300))
                continue
            finally:
                bars.done(source)
            totals.add(trace if all_steps else without_last_step(trace))
            name = source.removeprefix(within)
            warnings += [f"{name}: {line}" for line in (*uncovered(trace), *trace.warnings)]
            account.add(trace)
            read.append(name)
            del trace
    if not read:
        raise TightshipError(
            skipped[0] if len(skipped) == 1 else f"None of {len(skipped)} files is a trace: {skipped[0]}"
        )
    return Group(
        path=path.removeprefix(within), traces=read, skipped=skipped, warnings=warnings, totals=totals, account=account
    )


def _change(row: DiffRow) -> DiffChange:
    return DiffChange(
        part=row.part.value,
        name=row.name,
        change=row.change.value,
        before=_total(row.before),
        after=_total(row.after),
        before_ns_per_unit=row.before_ns,
        after_ns_per_unit=row.after_ns,
        growth_ns_per_unit=row.growth_ns,
        within=row.within,
    )


def _total(total: Total) -> DiffTotal:
    return DiffTotal(count=total.count, host_ns=total.host_ns, device_ns=total.device_ns)
