"""A report before it is drawn: its sentences, tables and sections, the same for terminal, HTML page and dashboard."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightship_analyzers.report.captions import across_words, device_words, path_words, roofline_title, roofline_words
from tightship_analyzers.report.sentences import (
    chain_words,
    device_of,
    devices_differ,
    exposed_words,
    graph_words,
    headline,
    idle_words,
    least_productive,
    losses_first,
    not_judged_words,
    nothing_found,
    saving_words,
    steps_of,
    steps_words,
    together_words,
    unclaimed_words,
    uncovered_words,
)
from tightship_analyzers.report.tables import (
    Table,
    collective_table,
    copy_table,
    exposed_table,
    idle_table,
    kernel_table,
    launch_table,
    path_table,
    rank_table,
    roofline_table,
    stream_table,
)
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.evidence import Fact
from tightship_platform.vocabulary import Bucket

ACROSS_TITLE, DEVICE_TITLE = "Who waits for whom", "What the device did"
MOST_CHAINS = 8
LEAST_CHAIN_FRAC = 0.005
"""Chains whose fusion gives back less than this share of the window stand in the JSON only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One part of a report. A face adds its drawings by `key`."""

    key: str
    title: str
    words: list[str] = field(default_factory=list)
    """Sentences above the tables."""
    tables: list[Table] = field(default_factory=list)
    """Those that have rows."""
    listed: str = ""
    """Heading of `items`."""
    items: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a rank's time: one bucket."""

    bucket: str
    ns: int
    """A step; without steps in all."""
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTime:
    """Where one rank's time went."""

    rank: int
    source: str
    device: str
    steps: int
    mean_ns: int | None
    """Mean step; None without any."""
    length: str
    """How many steps of what length, in words."""
    parts: list[Part]
    """What was productive first, then losses by size; empty ones left out."""

    def share(self, bucket: Bucket) -> float:
        """The share of a bucket; 0 for one that has no time."""
        return next((part.share for part in self.parts if part.bucket == bucket), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a run's traces say, around one of its ranks."""

    headline: str
    limits: list[str]
    """What limits the whole verdict."""
    one: RankAnalysis
    """The rank whose figures are shown."""
    ranks: list[RankTime]
    buckets: list[Bucket]
    """Those with time on any rank, in one order for all ranks, so that they can be compared."""
    advice: str
    """Above the findings: which steps their savings refer to; without any, that there is none."""
    remarks: list[str]
    """Below them: their joint saving, and what none covers."""
    sections: list[Section]

    @property
    def time(self) -> RankTime:
        """Where the time of `one` went."""
        return next(row for row in self.ranks if row.rank == self.one.rank)

    def section(self, key: str) -> Section | None:
        """The section of this key; None where the traces hold nothing for it."""
        return next((section for section in self.sections if section.key == key), None)


def report_of(result: RunAnalysis, rank: RankAnalysis | None = None) -> Report:
    """The report.

    :param rank: whose figures it shows; None: those of the least productive one.
    """
    one = rank or least_productive(result)
    differ = devices_differ(result)
    sections = [
        _idle(result, one),
        _exposed(result, one),
        _across(result),
        _path(one),
        device_section(one),
        _roofline(result, one),
        _notes(result),
    ]
    return Report(
        headline=headline(result),
        limits=[*uncovered_words(result), *([differ] if differ else [])],
        one=one,
        ranks=[_time(row) for row in result.ranks],
        buckets=[bucket for bucket in Bucket if any(row.summary.buckets.get(bucket) for row in result.ranks)],
        advice=steps_words(result) if result.findings else nothing_found(result),
        remarks=[line for line in (together_words(result), unclaimed_words(result)) if line],
        sections=[section for section in sections if section is not None],
    )


def finding_rows(result: RunAnalysis, finding: TraceFinding) -> list[tuple[str, str]]:
    """(label, text) of what is said of a finding under its title; its facts follow, each under `because`."""
    several = len(result.ranks) > 1 and not finding.of_ranks
    where = finding.where + (f", worst on rank {finding.rank}" if several else "")
    rows = [("where", where)] if finding.where else []
    facts = [("because", row.text) for row in finding.evidence if isinstance(row, Fact)]
    return [*rows, ("fix", finding.fix), ("saves", saving_words(finding)), *facts]


def device_section(one: RankAnalysis) -> Section | None:
    """The exact figures of one rank's device; None without device events."""
    words, figures = device_words(one), one.figures
    if words is None:
        return None
    tables = [
        kernel_table(figures.kernels),
        stream_table(figures.idle_by_stream),
        launch_table(figures.launches),
        copy_table(figures.copies),
    ]
    return Section(key="device", title=DEVICE_TITLE, words=[words], tables=_filled(tables))


def _time(one: RankAnalysis) -> RankTime:
    summary = one.summary
    total, steps = summary.window_ns or 1, summary.steps or 1
    return RankTime(
        rank=one.rank,
        source=one.source,
        device=device_of(summary),
        steps=summary.steps,
        mean_ns=summary.step_ns.mean if summary.step_ns else None,
        length=steps_of(summary),
        parts=[Part(bucket=bucket, ns=ns // steps, share=ns / total) for bucket, ns in losses_first(one)],
    )


def _idle(result: RunAnalysis, one: RankAnalysis) -> Section | None:
    words = idle_words(result, one)
    if words is None and not one.gaps:
        return None
    graphs = graph_words(one)
    said = [text for text in (words, graphs) if text]
    return Section(key="idle", title="Why the device is idle", words=said, tables=_filled([idle_table(one)]))


def _exposed(result: RunAnalysis, one: RankAnalysis) -> Section | None:
    words = exposed_words(result, one)
    if words is None:
        return None
    return Section(key="exposed", title="Exposed communication", words=[words], tables=_filled([exposed_table(one)]))


def _across(result: RunAnalysis) -> Section | None:
    across = result.across_ranks
    if len(result.ranks) < 2:
        return None
    if across is None:
        return Section(key="across", title=ACROSS_TITLE, words=[f"The ranks were not compared: {result.not_compared}."])
    tables = _filled([rank_table(across), collective_table(across)])
    return Section(key="across", title=ACROSS_TITLE, words=[across_words(across)], tables=tables)


def _path(one: RankAnalysis) -> Section | None:
    if not one.figures.critical_path:
        return None
    return Section(key="path", title="Critical path", words=[path_words(one)], tables=_filled([path_table(one)]))


def _roofline(result: RunAnalysis, one: RankAnalysis) -> Section | None:
    roof = one.figures.roofline
    if roof is None or not roof.families:
        return None
    least_ns = max(1, LEAST_CHAIN_FRAC * roof.window_ns)
    chains = [chain for chain in one.figures.fusion_candidates or [] if chain.saving_ns >= least_ns][:MOST_CHAINS]
    return Section(
        key="roofline",
        title=roofline_title(roof) + (f" of rank {one.rank}" if len(result.ranks) > 1 else ""),
        words=[roofline_words(one, roof)],
        tables=_filled([roofline_table(roof)]),
        listed="Fusion candidates: chains of memory-bound kernels" if chains else "",
        items=[chain_words(chain) for chain in chains],
    )


def _notes(result: RunAnalysis) -> Section | None:
    judged = any(one.summary.buckets for one in result.ranks)
    lines = not_judged_words(result) if judged else []
    for one in result.ranks:
        lines += [f"{one.source}: {warning}" for warning in one.summary.warnings]
        if not one.named and len(result.ranks) > 1:
            lines.append(f"{one.source} does not say of which rank it is; it counts as rank {one.rank}")
    lines += [f"Skipped: {line}" for line in result.skipped] + [f"Not read: {line}" for line in result.failed]
    lines += [
        f"The rule {rule} failed on some of these traces: a defect of ours; please report it"
        for rule in result.failed_rules
        if rule not in result.not_judged
    ]
    lines = list(dict.fromkeys(lines))
    return Section(key="notes", title="What was not judged, and why", items=lines) if lines else None


def _filled(tables: list[Table]) -> list[Table]:
    return [table for table in tables if table.rows]
