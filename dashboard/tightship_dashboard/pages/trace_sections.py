"""The sections of *One trace*: each draws a part of the analysis, or nothing where the trace does not hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dash import html

from tightship_analyzers.report.captions import one_of_each_cause
from tightship_analyzers.report.model import ACROSS_TITLE, DEVICE_TITLE, Report, report_of
from tightship_analyzers.report.palette import bucket_colour, bucket_label
from tightship_analyzers.report.sentences import is_clean, ranks_on, saving_words, step_words, whole_of
from tightship_dashboard.figures import chart, gap, grid, report_table, trace_charts
from tightship_dashboard.figures.elements import Node, link, section
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import finding_href, one_trace_href
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.units import format_frac, format_ns, unbroken
from tightship_platform.vocabulary import Bucket

FINDINGS = "trace-findings"
ORDER = ("idle", "exposed", "across", "path", "device", "roofline", "notes")
"""Sections of the report, by key."""
ABSENT: Mapping[str, tuple[str, str]] = {
    "across": (ACROSS_TITLE, "There is one rank only."),
    "device": (
        DEVICE_TITLE,
        "The file holds no device events: there are no kernels, streams or copies to show.",
    ),
}
"""Title, and why there is nothing, of sections that nobody should miss."""
Found = Mapping[tuple[str, str], int]
"""(rule, place) → id of the finding's own page."""


def sections(capture: str, result: RunAnalysis, one: RankAnalysis, found: Found) -> list[Node]:
    """All that is known of a capture, with the figures of one of its ranks."""
    several = len(result.ranks) > 1
    report = report_of(result, one)
    parts = [
        _where(report),
        _ranks(capture, result, report) if several else None,
        _steps(one),
        _findings(result, report, found, several=several),
        *(part for key in ORDER for part in _section(key, report, result)),
    ]
    return [part for part in parts if part is not None]


def _section(key: str, report: Report, result: RunAnalysis) -> list[Node]:
    """One section of the report: its sentences and drawings, its first table, and one part for each other table."""
    known = report.section(key)
    if known is None:
        return [section(ABSENT[key][0], _paragraphs(ABSENT[key][1], kind="quiet"), anchor=key)] if key in ABSENT else []
    first, others = next(iter(known.tables), None), known.tables[1:]
    body: list[Node] = [part for text in known.words for part in _paragraphs(text)]
    body += DRAWINGS[key](report.one, result) if key in DRAWINGS else []
    body += [report_table.drawn(first)] if first else []
    body += [html.H3(known.listed)] if known.listed else []
    if known.items:
        items = [html.Li(unbroken(fmt.name(item, limit=600))) for item in known.items]
        body.append(html.Ul(items, className="sentences" if known.listed else "sentences quiet"))
    aside = report_table.export(first) if first else None
    parts = [section(known.title, body, anchor=key, aside=aside)]
    for table in others:
        aside = report_table.export(table)
        parts.append(section(table.title, [report_table.drawn(table)], anchor=table.key, aside=aside))
    return parts


def _paragraphs(text: str, *, kind: str = "") -> list[Node]:
    return [html.P(unbroken(fmt.name(text, limit=600)), className=kind)]


def _where(report: Report) -> Node | None:
    row = report.time
    if not row.parts:
        return None
    drawn = [
        html.Tr(
            [
                html.Th(bucket_label(part.bucket), scope="row"),
                html.Td(
                    html.Div(
                        html.Div(style={"left": "0", **_filled(part.bucket, part.share)}, className="bar part"),
                        className="track",
                    ),
                    className="draw",
                ),
                html.Td(unbroken(format_ns(part.ns)), className="number"),
                html.Td(unbroken(format_frac(part.share)), className="number share"),
            ]
        )
        for part in row.parts
    ]
    per = "A step" if row.steps else "The recording"
    caption = html.Caption(f"{per}, divided by what the device did or waited for", className="unseen")
    table = html.Table([caption, html.Tbody(drawn)], className="bars")
    title = f"Where the {whole_of(report.one)} of rank {row.rank} went"
    return section(title, [table], anchor="where", aside=unbroken(row.length))


def _ranks(capture: str, result: RunAnalysis, report: Report) -> Node:
    rows = []
    for row in report.ranks:
        bars = [
            html.Div(
                className="bar",
                style=_filled(bucket, share),
                title=unbroken(f"{bucket_label(bucket)}: {format_frac(share)}"),
            )
            for bucket in report.buckets
            if (share := row.share(bucket))
        ]
        here = "here" if row.rank == report.one.rank else ""
        rows.append(
            html.Tr(
                [
                    html.Th(link(f"rank {row.rank}", one_trace_href(capture, row.rank), className=here), scope="row"),
                    html.Td(html.Div(bars, className="track stack"), className="draw"),
                    html.Td(unbroken(format_ns(row.mean_ns)), className="number"),
                    html.Td(unbroken(format_frac(row.share(Bucket.PRODUCTIVE))), className="number share"),
                ]
            )
        )
    heads = ("rank", "", "mean step", "productive")
    head = html.Thead(html.Tr([html.Th(text, scope="col") if text else html.Th("") for text in heads]))
    colours = {bucket_label(bucket): bucket_colour(bucket) for bucket in report.buckets}
    return section(
        "All ranks",
        [trace_charts.key(list(colours), colours), html.Table([head, html.Tbody(rows)], className="bars groups")],
        anchor="ranks",
        aside=ranks_on(result.ranks),
    )


def _filled(bucket: str, share: float) -> dict[str, str]:
    return {"width": f"{100 * share:.3f}%", "background": bucket_colour(bucket)}


def _steps(one: RankAnalysis) -> Node | None:
    rows, colours = trace_charts.step_rows(one), trace_charts.bucket_colours()
    if len(rows) < 2:
        return None
    drawing = chart.draw(
        trace_charts.stacked(rows, colours), graph_id="trace-steps", title="Each step, divided by what filled it"
    )
    return section("Step by step", [trace_charts.key(trace_charts.order(rows), colours), drawing], anchor="steps")


def _findings(result: RunAnalysis, report: Report, found: Found, *, several: bool) -> Node:
    after = [part for line in report.remarks for part in _paragraphs(line)]
    if not result.findings:
        kind = "quiet" if is_clean(result) else "notice status"
        return section("What to do", [*_paragraphs(report.advice, kind=kind), *after], anchor="what")
    columns = [
        grid.column("title", "What is wrong", "link", minWidth=150, flex=3),
        grid.column("share", "Share", "number", unit="0..1", minWidth=70, width=84),
        grid.column("saving", "Would save", "number", unit="ns", minWidth=150, flex=2, wide=True),
        *(
            [grid.column("rank", "Rank", "number", minWidth=60, width=74, why="Where it costs most", wide=True)]
            * several
        ),
        grid.column("where", "Where", minWidth=120, flex=2, wide=True),
        grid.column("fix", "What to change", minWidth=150, flex=3, wide=True),
    ]
    rows = [_finding(number, finding, found) for number, finding in enumerate(result.findings)]
    table = grid.table(FINDINGS, columns, rows, label="Findings of this capture", wrap=True)
    before = _paragraphs(report.advice, kind="quiet")
    export = grid.export_button(FINDINGS, "findings.csv")
    return section("What to do", [*before, table, *after], anchor="what", aside=export)


def _finding(number: int, finding: TraceFinding, found: Found) -> grid.Row:
    saving, page = finding.saving, found.get((finding.rule, finding.where))
    return {
        "id": str(number),
        "title": fmt.cell(finding.title, limit=300),
        "title_href": None if page is None else finding_href(page),
        "share": saving.share_frac,
        "share_text": unbroken(format_frac(saving.share_frac)),
        "saving": saving.value,
        "saving_text": unbroken(saving_words(finding)),
        "rank": finding.rank,
        "where": fmt.cell(finding.where, limit=200),
        "fix": fmt.cell(finding.fix, limit=400),
    }


def _gaps(one: RankAnalysis, _result: RunAnalysis) -> list[Node]:
    """The longest gaps, the first one open."""
    figures = []
    for number, (_, found) in enumerate(one_of_each_cause([(one, found) for found in one.gaps])):
        where = f", {found.place}" if found.place else ""
        caption = f"{step_words(one, found)}{where}; milliseconds since the gap began. Drag to zoom in, double-click "
        caption += "to zoom out."
        figures.append(gap.captioned(found, fmt.name(caption, limit=400), graph_id={"gap": str(number)}))
    more = html.Details([html.Summary(f"{len(figures) - 1} more"), *figures[1:]]) if len(figures) > 1 else None
    return [*figures[:1], *([more] if more else [])]


def _late(_one: RankAnalysis, result: RunAnalysis) -> list[Node]:
    """Which rank came late in which step."""
    across = result.across_ranks
    if across is None:
        return []
    heat = trace_charts.late_map(across)
    if heat is None:
        return _paragraphs("The ranks share no whole steps, so totals are over the whole recording.", kind="quiet")
    name = "How late each rank came in each step"
    return [
        html.P(f"{name}: by so much collectives would have begun sooner, had it come with the last but one."),
        chart.draw(heat, graph_id="trace-late", title=name),
    ]


def _path(one: RankAnalysis, _result: RunAnalysis) -> list[Node]:
    """The parts of each step's critical path."""
    rows, colours = trace_charts.path_rows(one), trace_charts.part_colours()
    figure = trace_charts.stacked(rows, colours)
    drawing = chart.draw(figure, graph_id="trace-path-steps", title="The critical path of each step by its parts")
    return [trace_charts.key(trace_charts.order(rows), colours), drawing]


DRAWINGS: Mapping[str, Callable[[RankAnalysis, RunAnalysis], list[Node]]] = {
    "idle": _gaps,
    "across": _late,
    "path": _path,
}
