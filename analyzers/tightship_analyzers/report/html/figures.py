"""Sections of the page: sentences, tables, and the longest waits as timelines."""

from __future__ import annotations

from collections.abc import Mapping

from tightship_analyzers.report.captions import one_of_each_cause
from tightship_analyzers.report.gap_lanes import description_of
from tightship_analyzers.report.html.gap_drawing import drawing
from tightship_analyzers.report.html.markup import Content, Markup, element
from tightship_analyzers.report.html.markup import table as markup_table
from tightship_analyzers.report.model import Section, device_section
from tightship_analyzers.report.sentences import step_words
from tightship_analyzers.report.tables import Cell, Column, Kind, Table, cell_text
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.units import plural

MOST_ROWS: Mapping[str, int] = {"idle": 12, "exposed": 12, "collectives": 10}
MOST_ROWS_ELSE = 20
MOST_GAPS = 5
NAME_CHARS = 90
MOST_RANKS_OPEN = 2
"""Up to this many ranks show their figures at once; of more, each is folded."""


def section_body(result: RunAnalysis, section: Section) -> list[Markup]:
    """What a section says, with its drawings; the device's figures of every rank."""
    if section.key == "device" and len(result.ranks) > 1:
        return _devices(result)
    return _body(section) + (_longest_gaps(result) if section.key == "idle" else [])


def _body(section: Section) -> list[Markup]:
    parts = [element("p", text) for text in section.words]
    for number, table in enumerate(section.tables):
        if number:
            parts.append(element("h3", table.title))
        parts += _drawn(table)
    if section.listed:
        parts.append(element("h3", section.listed))
    if section.items:
        quiet = None if section.listed else "quiet"
        parts.append(element("ul", [element("li", item) for item in section.items], class_=quiet))
    return parts


def _longest_gaps(result: RunAnalysis) -> list[Markup]:
    """The longest waits of the device on any rank, whatever a rule says of them."""
    several = len(result.ranks) > 1
    parts = []
    for owner, gap in one_of_each_cause([(one, gap) for one in result.ranks for gap in one.gaps])[:MOST_GAPS]:
        where = f"rank {owner.rank}, {step_words(owner, gap)}" if several else step_words(owner, gap)
        where += f", {gap.place}" if gap.place else ""
        title = f"{description_of(gap)} ({where})"
        parts.append(element("figure", [element("figcaption", title), drawing(gap)]))
    return parts


def _devices(result: RunAnalysis) -> list[Markup]:
    """Each rank's figures, folded where the ranks are many."""
    parts = []
    for one in result.ranks:
        section = device_section(one)
        if section is not None:
            summary = element("summary", f"rank {one.rank}: {one.source}")
            is_open = "open" if len(result.ranks) <= MOST_RANKS_OPEN else None
            parts.append(element("details", [summary, *_body(section)], open=is_open))
    return parts


def _drawn(table: Table) -> list[Markup]:
    most = MOST_ROWS.get(table.key, MOST_ROWS_ELSE)
    heads = [column.head for column in table.columns]
    left = [n for n, column in enumerate(table.columns) if column.kind in (Kind.TEXT, Kind.NAME)]
    first = table.first(most)
    rows = [[_cell(column, value) for column, value in zip(first.columns, row, strict=True)] for row in first.rows]
    parts = [markup_table(heads, rows, left=left, caption=table.title)]
    if len(table.rows) > most and not table.rest:
        parts.append(element("p", f"{plural(len(table.rows) - most, 'more row')} in the JSON.", class_="quiet"))
    return parts


def _cell(column: Column, value: Cell) -> Content:
    text = cell_text(column.kind, value, NAME_CHARS)
    return element("code", text) if column.kind == Kind.NAME else text
