"""The page: verdict, where the step went, what to do, who waits for whom, and the device's figures."""

from __future__ import annotations

from importlib import resources

from tightship_analyzers.report.html.figures import section_body
from tightship_analyzers.report.html.findings import findings_section
from tightship_analyzers.report.html.markup import Content, Markup, bar, element, table, text
from tightship_analyzers.report.model import RankTime, Report, report_of
from tightship_analyzers.report.palette import BUCKET_COLOUR, LANE_COLOUR, bucket_label
from tightship_analyzers.report.sentences import ranks_on, whole_of
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import Bucket

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Nothing is loaded and nothing runs, whatever a name in a trace says."""


def page(result: RunAnalysis) -> str:
    """The whole document; the same result gives the same bytes."""
    report = report_of(result)
    sections = [
        ("where", _went(report), _where(result, report) if report.buckets else []),
        ("what", "What to do", findings_section(result, report)),
        *((section.key, section.title, section_body(result, section)) for section in report.sections),
    ]
    filled = [(name, title, content) for name, title, content in sections if content]
    links = [element("li", element("a", title, href=f"#{name}")) for name, title, _ in filled]
    body = [
        element("a", "To the findings", href="#what", class_="skip"),
        element("header", _header(result, report)),
        element("nav", element("ul", links), aria_label="On this page"),
        element("main", [_section(name, title, content) for name, title, content in filled]),
    ]
    head = [
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("title", f"tightship: {_traces(result)}"),
        Markup(f"<style>{_style()}</style>"),
    ]
    return f'<!doctype html>\n<html lang="en"><head>{text(head)}</head><body>{text(body)}</body></html>\n'


def _header(result: RunAnalysis, report: Report) -> list[Markup]:
    return [
        element("p", _traces(result), class_="quiet"),
        *(element("p", line, class_="warning") for line in report.limits),
        element("h1", report.headline),
    ]


def _style() -> str:
    sheet = resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")
    rules = [f".{bucket} {{ background: {colour}; }}" for bucket, colour in BUCKET_COLOUR.items()]
    rules += [f"svg.gap .{lane} {{ fill: {colour}; }}" for lane, colour in LANE_COLOUR.items()]
    return sheet + "\n".join(rules)


def _section(name: str, title: str, content: Content) -> Markup:
    return element(
        "section", [element("h2", title, id=f"{name}-title"), content], id=name, aria_labelledby=f"{name}-title"
    )


def _traces(result: RunAnalysis) -> str:
    if len(result.ranks) == 1:
        return result.ranks[0].source
    return f"{plural(len(result.ranks), 'rank')}: {result.ranks[0].source} …"


def _where(result: RunAnalysis, report: Report) -> list[Markup]:
    if len(report.ranks) == 1:
        return _one(report.time, _went(report))
    rows: list[list[Content]] = [[row.rank, row.length, _bar(row)] for row in report.ranks]
    return [
        element("p", f"{ranks_on(result.ranks)}."),
        element("p", [_swatch(bucket) for bucket in report.buckets], class_="legend"),
        table(("rank", "steps", "shares"), rows, left=(0, 1, 2), caption=f"{_went(report)}, by rank"),
    ]


def _one(row: RankTime, caption: str) -> list[Markup]:
    rows: list[list[Content]] = [
        [_swatch(part.bucket), format_frac(part.share), format_ns(part.ns)] for part in row.parts
    ]
    head = ("", "share", "a step" if row.steps else "in all")
    return [
        element("p", f"{row.device}, rank {row.rank}: {row.length}."),
        _bar(row),
        table(head, rows, caption=caption),
    ]


def _went(report: Report) -> str:
    return f"Where the {whole_of(report.one)} went"


def _swatch(part: str) -> Markup:
    return element("span", [element("i", None, class_=f"mark {part}"), f"{bucket_label(part)} "])


def _bar(row: RankTime) -> Markup:
    shares = [(bucket.value, row.share(bucket)) for bucket in Bucket]
    parts = [(bucket, share, f"{bucket_label(bucket)}: {format_frac(share)}") for bucket, share in shares if share]
    return bar(parts, label=f"Rank {row.rank}: " + ", ".join(title for _, _, title in parts))
