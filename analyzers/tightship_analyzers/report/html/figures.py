"""The parts of the page that are figures: the longest waits, ranks side by side, the device's time, what is missing."""

from __future__ import annotations

from tightship_analyzers.report.captions import (
    across_words,
    device_words,
    one_of_each_cause,
    roofline_title,
    roofline_words,
)
from tightship_analyzers.report.gap_lanes import said_of
from tightship_analyzers.report.html.gap_drawing import drawing
from tightship_analyzers.report.html.markup import Content, Markup, element, table
from tightship_analyzers.report.sentences import (
    chain_words,
    graph_words,
    idle_rows,
    least_productive,
    not_judged_words,
    rates_of,
    step_words,
    whole_of,
)
from tightship_platform.results.analysis.rank import RankAnalysis, RankFigures
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.text import label
from tightship_platform.units import format_bytes, format_frac, format_ns, plural

MOST_KERNELS = 20
MOST_GAPS = 5
MOST_IDLE_ROWS = 12
MOST_CHAINS = 8
KERNEL_CHARS = 90
MOST_COLLECTIVES = 10
MOST_RANKS_OPEN = 2
"""Up to this many ranks show their figures at once; of more, each is folded."""


def gaps_section(result: RunAnalysis) -> list[Markup]:
    """Why the device idles, and its longest waits, whatever a rule says of them."""
    rows = one_of_each_cause([(one, gap) for one in result.ranks for gap in one.gaps])
    several = len(result.ranks) > 1
    one = least_productive(result)
    idle = idle_rows(one)
    summary = one.summary
    window, steps = summary.window_ns or 1, summary.steps
    idle_ns = sum(ns for _, _, ns in idle)
    cells: list[list[Content]] = [
        [cause, element("code", place), format_frac(ns / window), format_ns(ns // (steps or 1))]
        for cause, place, ns in idle[:MOST_IDLE_ROWS]
    ]
    parts = []
    if cells:
        whose = f" of rank {one.rank}" if several else ""
        share = f"{format_frac(idle_ns / window)} of the {whole_of(one)}"
        said = f"The device{whose} is idle for {share}. Each nanosecond has one cause and one place; the largest:"
        head = ("cause", "place", f"of the {whole_of(one)}", "a step" if steps else "in all")
        parts.append(element("p", said))
        parts.append(table(head, cells, left=(0, 1), caption="Idle time by cause"))
        parts += [element("p", said) for said in (graph_words(one),) if said]
    for owner, gap in rows[:MOST_GAPS]:
        where = f"rank {owner.rank}, {step_words(owner, gap)}" if several else step_words(owner, gap)
        where += f", {gap.place}" if gap.place else ""
        title = f"{said_of(gap, format_ns(gap.end_ns - gap.start_ns))} ({where})"
        parts.append(element("figure", [element("figcaption", title), drawing(gap)]))
    return parts


def across_section(result: RunAnalysis) -> list[Markup]:
    """Ranks side by side; nothing for a single one."""
    if len(result.ranks) < 2:
        return []
    across = result.across_ranks
    if across is None:
        return [element("p", f"The ranks were not compared: {result.not_compared}.", class_="quiet")]
    steps = across.steps or 1
    ranks: list[list[Content]] = [
        [
            row.rank,
            f"{row.last} of {row.collectives}",
            format_ns(row.kept_waiting_ns // steps),
            format_ns(row.late_exposed_ns // steps),
            format_ns(row.waited_ns // steps),
            format_ns(row.waited_exposed_ns // steps),
        ]
        for row in across.ranks
    ]
    head = ("rank", "came last", "others waited", "run waited for it alone", "waited itself", "of that exposed")
    uneven = across.worst[:MOST_COLLECTIVES]
    collectives: list[list[Content]] = [
        [label(row.name, KERNEL_CHARS), row.number, row.first_rank, row.last_rank, format_ns(row.skew_ns)]
        for row in uneven
    ]
    return [
        element(
            "p",
            across_words(across),
            class_="quiet",
        ),
        table(head, ranks, caption="What each rank costs the others"),
        element("h3", "The most uneven collectives"),
        table(("collective", "number", "first rank", "last rank", "skew"), collectives, caption="Most uneven"),
    ]


def device_section(result: RunAnalysis) -> list[Markup]:
    """The exact figures of each rank."""
    many = len(result.ranks) > MOST_RANKS_OPEN
    parts = []
    for one in result.ranks:
        inside = _device(one)
        if inside and len(result.ranks) > 1:
            summary = element("summary", f"rank {one.rank}: {one.source}")
            parts.append(element("details", [summary, *inside], open=None if many else "open"))
        else:
            parts += inside
    return parts


def _device(one: RankAnalysis) -> list[Markup]:
    figures, words = one.figures, device_words(one)
    if words is None:
        return []
    idle: list[list[Content]] = [
        [
            f"{row.device}/{row.stream}",
            row.events,
            format_ns(row.host_wait_ns),
            format_ns(row.kernel_wait_ns),
            format_ns(row.other_ns),
        ]
        for row in figures.idle_by_stream
    ]
    kernels: list[list[Content]] = [
        [
            label(row.name, KERNEL_CHARS),
            row.type,
            row.count,
            format_ns(row.sum_ns),
            format_ns(round(row.mean_ns)),
        ]
        for row in figures.kernels[:MOST_KERNELS]
    ]
    more = len(figures.kernels) - len(kernels)
    return [
        element("p", words),
        table(
            ("device/stream", "events", "waited for the host", "for the kernel's start", "otherwise"),
            idle,
            caption="Idle time of each stream",
        ),
        *_calls(figures),
        table(("kernel", "type", "count", "sum", "mean"), kernels, left=(0, 1), caption="Kernels by time"),
        element("p", f"{plural(more, 'more kernel')} in the JSON." if more > 0 else None, class_="quiet"),
    ]


def _calls(figures: RankFigures) -> list[Markup]:
    """Launch calls, and copies with the rate that they reached."""
    launches, parts = figures.launches, []
    if launches is not None:
        calls: list[list[Content]] = [
            [
                label(row.call, KERNEL_CHARS),
                row.host.count,
                format_ns(round(row.host.mean_ns)),
                format_ns(round(row.delay.mean_ns)),
                format_ns(round(row.device.mean_ns)),
            ]
            for row in launches.by_call
        ]
        head = ("call", "count", "mean call", "mean delay", "mean of its work")
        parts.append(table(head, calls, caption="What launched the work"))
    copied: list[list[Content]] = [
        [
            row.type,
            row.count,
            format_ns(row.sum_ns),
            format_bytes(row.bytes),
            "–" if row.gbps is None else f"{row.gbps:,.1f} GB/s",
            row.pageable,
        ]
        for row in figures.copies
    ]
    if copied:
        names = ("copies", "count", "time", "bytes", "rate", "of pageable memory")
        parts.append(table(names, copied, caption="Copies"))
    return parts


def roofline_section(result: RunAnalysis) -> list[Markup]:
    """What kernels achieved against the device's roof, and chains that could be one kernel."""
    one = least_productive(result)
    roof = one.figures.roofline
    if roof is None or not roof.families:
        return []
    rows: list[list[Content]] = [
        [
            f"{row.family} {row.dtype or 'integers'}",
            row.kernels,
            format_ns(row.device_ns),
            *rates_of(row),
            format_frac(row.roof_frac),
        ]
        for row in roof.families
    ]
    whose = f" of rank {one.rank}" if len(result.ranks) > 1 else ""
    parts = [
        element("p", f"{roofline_title(roof)}{whose}: {roofline_words(one, roof)}"),
        table(("kernels", "count", "time", "achieved", "attainable", "of roofline"), rows, caption="Roofline"),
    ]
    chains = [chain for chain in one.figures.fusion_candidates or [] if chain.saving_ns][:MOST_CHAINS]
    if chains:
        parts.append(element("h3", "Fusion candidates: chains of memory-bound kernels"))
        parts.append(element("ul", [element("li", chain_words(chain)) for chain in chains]))
    return parts


def notes_section(result: RunAnalysis) -> list[Markup]:
    """What was not judged, and what was wrong with files."""
    lines = not_judged_words(result)
    for one in result.ranks:
        lines += [f"{one.source}: {warning}" for warning in one.summary.warnings]
    lines += [f"Skipped: {line}" for line in result.skipped] + [f"Not read: {line}" for line in result.failed]
    return [element("ul", [element("li", line) for line in lines], class_="quiet")] if lines else []
