"""Findings on the page: place, fix, saving, evidence, and the worst gap of each."""

from __future__ import annotations

from tightship_analyzers.report.html.gap_drawing import drawing
from tightship_analyzers.report.html.markup import Markup, element
from tightship_analyzers.report.model import Report, finding_rows
from tightship_analyzers.report.sentences import apart_words, step_words
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.evidence import Change, Gap
from tightship_platform.units import format_ns

CODE_CHARS = 4000


def findings_section(result: RunAnalysis, report: Report) -> list[Markup]:
    """All findings, those of proven rules first, or that there is none."""
    by_rank = {one.rank: one for one in result.ranks}
    return [
        element("p", report.advice, class_="quiet" if result.findings else None),
        *(
            part
            for number, finding in enumerate(result.findings, start=1)
            for part in (*_above(result, number - 1), _finding(number, result, finding, by_rank[finding.rank]))
        ),
        *(element("p", line) for line in report.remarks),
    ]


def _above(result: RunAnalysis, number: int) -> list[Markup]:
    said = apart_words(result, number)
    return [] if said is None else [element("p", said, class_="quiet")]


def _finding(number: int, result: RunAnalysis, finding: TraceFinding, one: RankAnalysis) -> Markup:
    rows = finding_rows(result, finding)
    facts = [element("li", said) for name, said in rows if name == "because"]
    listed = [
        part
        for name, said in rows
        if name != "because"
        for part in (element("dt", name), element("dd", element("code", said) if name == "where" else said))
    ]
    if facts:
        listed += [element("dt", "because"), element("dd", element("ul", facts, class_="evidence"))]
    return element(
        "article",
        [
            element("h3", [f"{number}. {finding.title} ", element("span", finding.rule, class_="quiet")]),
            element("dl", listed),
            *(_change(row) for row in finding.evidence if isinstance(row, Change)),
            *(_gap(row, one) for row in finding.evidence if isinstance(row, Gap)),
        ],
    )


def _change(row: Change) -> Markup:
    return element(
        "div",
        [
            element("p", "as it is", class_="quiet"),
            element("pre", _code(row.before)),
            element("p", "as it should be", class_="quiet"),
            element("pre", _code(row.after)),
        ],
    )


def _code(value: object) -> list[Markup]:
    lines = str(value)[:CODE_CHARS].split("\n")
    return [part for line in lines for part in (element("span", line), Markup("\n"))]


def _gap(row: Gap, one: RankAnalysis) -> Markup:
    long = format_ns(row.end_ns - row.start_ns)
    said = f"The worst stretch, {step_words(one, row)}: {long}, shaded; times count from its begin."
    return element("figure", [drawing(row), element("figcaption", said, class_="quiet")])
