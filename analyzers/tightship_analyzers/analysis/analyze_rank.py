"""Read and judge the trace file of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tightship_analyzers.analysis.engine import failures
from tightship_analyzers.analysis.graph_captures import join_captures
from tightship_analyzers.analysis.judge import judge_facts
from tightship_analyzers.analysis.named_traces import captures_beside, second_pass_beside
from tightship_analyzers.analysis.picked_steps import pick_step
from tightship_analyzers.analysis.rank_figures import rank_figures
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.second_pass import join_passes
from tightship_analyzers.analysis.sources import open_source
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.facts.activity.device_busy import DeviceBusy
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.window.recording import Recording
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.evidence import fact, longest_gaps
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.findings.track_record import record_of
from tightship_analyzers.metrics.step_filter import launched_between
from tightship_analyzers.ranks.arrivals import collective_arrivals
from tightship_analyzers.trace.blocks import Progress
from tightship_analyzers.trace.model import Trace
from tightship_platform.errors import TightshipError
from tightship_platform.results.analysis.figures import FactCost
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import RankAnalysis, is_stretched
from tightship_platform.results.finding import FindingSaving
from tightship_platform.text import shown
from tightship_platform.vocabulary import Method, Standing

UNKNOWN_RANK = -1


class OtherRank(TightshipError):
    """The file is of another rank than the one wanted."""

    def __init__(self, source: str, rank: int | None) -> None:
        self.rank = rank
        super().__init__(f"{shown(source)} is of rank {rank}")


EMPTY = "holds no event with a duration"
"""Said of a file that is whole and shows no work."""


def analyze_rank(
    source: str,
    wanted: Wanted,
    progress: Progress | None = None,
    processes: int = 1,
    *,
    label: str | None = None,
    second_pass: str | None = None,
) -> RankPart:
    """Read and judge one file.

    :param processes: that may read it, see `trace.open`.
    :param label: how findings call the file, if not by `source`.
    :param second_pass: a recording of the same rank without stacks and shapes, which gives the times. None: the one in
        the folder for them beside the file, if any.
    :raises OtherRank: it is not of the rank that is wanted.
    :raises TightshipError: it cannot be read, holds no events, or has not the step that is wanted.
    """
    trace = open_source(source, progress, processes)
    if wanted.rank is not None and trace.rank != wanted.rank:
        raise OtherRank(source, trace.rank)
    if not trace.events:
        raise TightshipError(f"{shown(source, 200)} {EMPTY}; record the job while it works")
    trace = _with_captures(trace, wanted.captures or captures_beside(source))
    times = None
    second_pass = second_pass or second_pass_beside(source)
    if second_pass is not None:
        trace, wanted, times = _with_second(trace, second_pass, wanted)
    facts = Facts(trace)
    if wanted.step is not None:
        pick_step(facts, wanted.step)
    label = label or source.removeprefix(wanted.within)
    part = _part(facts, wanted, label)
    if times is None or wanted.step is not None:
        return part
    return _timed(part, _part(Facts(times), wanted, label))


def _with_captures(trace: Trace, paths: Sequence[str]) -> Trace:
    """The trace with what captures of its graphs tell; itself, with what speaks against it, where they tell nothing."""
    if not paths:
        return trace
    captures, unread = [], []
    for path in paths:
        try:
            capture = open_source(path)
        except TightshipError as error:
            unread.append(shown(str(error), 300))
            continue
        if trace.rank is None or capture.rank in (None, trace.rank):
            captures.append(capture)
    joined = join_captures(trace, captures)
    if isinstance(joined, NotApplicable):
        unread.append(f"captures of graphs were not used: {joined.reason}")
        joined = trace
    return replace(joined, warnings=[*joined.warnings, *unread])


def _timed(part: RankPart, times: RankPart) -> RankPart:
    """The part of a recording without places, with what only the stretched one beside it shows.

    :param part: of the stretched one.
    """
    priced = {finding.rule for finding in times.findings}
    return replace(
        times,
        findings=[*times.findings, *(finding for finding in part.findings if finding.rule not in priced)],
        not_judged={rule: why for rule, why in times.not_judged.items() if rule in part.not_judged},
        failed_rules=sorted({*times.failed_rules, *part.failed_rules}),
    )


def _with_second(first: Trace, path: str, wanted: Wanted) -> tuple[Trace, Wanted, Trace | None]:
    """Both recordings as one trace; where they cannot be joined the first, and what makes it less. Where recording has
    stretched that one, the second comes beside it, which has no places but those that are open throughout."""
    times = None
    joined: Trace | NotApplicable
    try:
        second = open_source(path)
        joined = join_passes(first, second)
    except TightshipError as error:
        joined = NotApplicable(str(error).replace(wanted.within, ""))
    else:
        steps, theirs = Facts(second).find(Steps), Facts(first).find(Steps)
        if steps is not None and wanted.untraced_step_ns is None:
            wanted = replace(wanted, untraced_step_ns=steps.mean_ns)  # at most: it was recorded, too
        if isinstance(joined, NotApplicable) and theirs and is_stretched(theirs.mean_ns, wanted.untraced_step_ns):
            beside = join_passes(first, second, matched_frac=-1)
            times = None if isinstance(beside, NotApplicable) else beside
    if times is not None:
        remark = (
            "recorded twice, and steps of the two recordings did other work: times are of the second one; findings "
            "without a saving are of the first, whose times recording has stretched"
        )
        return first, wanted, replace(times, warnings=[remark, *times.warnings])
    if isinstance(joined, NotApplicable):
        remark = f"judged by the first of two recordings, whose times recording has stretched: {joined.reason}"
        return replace(first, warnings=[remark, *first.warnings]), wanted, None
    remark = "recorded twice: times are of the second recording, places and shapes of the first"
    return replace(joined, warnings=[remark, *joined.warnings]), wanted, None


def _part(facts: Facts, wanted: Wanted, label: str) -> RankPart:
    trace, picked = facts.trace, wanted.step is not None
    verdict = judge_facts(
        facts,
        untraced_step_ns=wanted.untraced_step_ns,
        idle_cores_frac=wanted.idle_cores_frac,
        rules=wanted.trace_rules(),
    )
    steps = facts.find(Steps)
    rank = UNKNOWN_RANK if trace.rank is None else trace.rank
    figures = rank_figures(facts, all_steps=wanted.all_steps, only_steps=picked)
    busy = facts.find(DeviceBusy)
    arrivals = collective_arrivals(
        _picked(facts) if picked else trace,
        None if steps is None else steps.bounds_ns,
        None if busy is None else busy.spans,
    )
    gaps = longest_gaps(facts, wanted.gaps)
    if facts[Recording].unfit is not None:  # that the device idles means nothing then
        gaps, figures = [], replace(figures, window_idle_causes=None, graph_idle_ns=None, critical_path=None)
    return RankPart(
        analysis=RankAnalysis(
            rank=rank,
            source=label,
            named=trace.rank is not None,
            summary=verdict.summary,
            figures=figures,
            facts=_costs(facts),
            gaps=gaps,
        ),
        findings=[
            public_finding(finding, label, rank, assume_proven=wanted.assume_proven) for finding in verdict.findings
        ],
        not_judged={rule: why.reason for rule, why in verdict.not_judged.items()},
        failed_rules=failures(verdict.not_judged),
        arrivals=arrivals,
    )


def public_finding(finding: Finding, trace: str, rank: int, *, assume_proven: bool = False) -> TraceFinding:
    """The public record of a finding, without the intervals that only the judging needs. What no real cases have proven
    is a bound: see [Note: standing] in findings/track_record.py."""
    saving, record = finding.saving if finding.saving.high else None, record_of(finding.rule)
    standing = Standing.PROVEN if assume_proven else record.standing
    is_proven = standing is Standing.PROVEN
    return TraceFinding(
        rule=finding.rule,
        title=finding.title,
        trace=trace,
        rank=rank,
        of_ranks=finding.rank is not None,
        where=finding.place,
        fix=finding.fix,
        saving=FindingSaving(
            value=saving.value if saving else None,
            unit=finding.unit.value,
            low=saving.low if saving else None,
            high=saving.high if saving else None,
            method=(saving.method if is_proven else Method.BOUND).value if saving else None,
            share_frac=finding.share_frac if saving else None,
        ),
        standing=standing.value,
        evidence=[*finding.evidence, *(() if is_proven else (fact(record.words),))],
    )


def with_rank(part: RankPart, rank: int) -> RankPart:
    """The part of a file that does not name its rank, as this one."""
    if part.analysis.rank == rank:
        return part
    return replace(
        part,
        analysis=replace(part.analysis, rank=rank),
        findings=[replace(finding, rank=rank) for finding in part.findings],
    )


def _picked(facts: Facts) -> Trace:
    steps = facts[Steps]
    return launched_between(facts.trace, steps.host_start_ns, steps.host_end_ns)


def _costs(facts: Facts) -> list[FactCost]:
    known = facts.known()
    rows = [
        FactCost(
            fact=name,
            self_ns=cost.self_ns,
            used_by=list(cost.used_by),
            missing=found.reason if isinstance(found := known.get(name), NotApplicable) else None,
        )
        for name, cost in facts.costs.items()
    ]
    return sorted(rows, key=lambda row: -row.self_ns)
