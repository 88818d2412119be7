"""One report model: what terminal and page draw is what the model holds."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from rank_jobs import traces_of

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.report.html.page import page
from tightship_analyzers.report.model import Report, finding_rows, report_of
from tightship_analyzers.report.tables import Column, Kind, Table, cell_text
from tightship_analyzers.report.terminal import MAX_BAR_RANKS
from tightship_analyzers.report.terminal_parts import MOST_ITEMS, NAME_CHARS, SHOWN
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.units import format_frac, format_ns

RECORDED = Path(__file__).parents[2] / "data" / "traces"
HELD = {
    "idle": ["idle"],
    "exposed": ["exposed"],
    "across": ["ranks", "collectives"],
    "path": ["path"],
    "device": ["kernels", "streams", "launches", "copies"],
    "roofline": ["roofline"],
    "notes": [],
}
"""Section of the model → its tables."""


def words_of(drawn: str) -> str:
    text = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", drawn, flags=re.DOTALL))
    return " ".join(text.replace("\xa0", " ").split())


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a job on several GPUs, with everything that a report can hold."""
    return traces_of(tmp_path_factory.mktemp("ranks"))


def said_by(report: Report, result: RunAnalysis) -> list[str]:
    """What every face says around the sections."""
    said = [report.headline, *report.limits, report.advice, *report.remarks]
    return said + [text for finding in result.findings for _, text in finding_rows(result, finding)]


def rows_of(table: Table, room: int) -> list[str]:
    cells = [[cell_text(c.kind, v, room) for c, v in zip(table.columns, row, strict=True)] for row in table.rows]
    return [" ".join(" ".join(row).split()) for row in cells]


def test_the_page_draws_every_section_of_the_model(traces: list[str]) -> None:
    result = analyze_paths(traces, wanted=Wanted(gaps=3))
    report, drawn = report_of(result), words_of(page(result))
    assert [section.key for section in report.sections] == [*HELD]
    for section in report.sections:
        assert [table.key for table in section.tables] == HELD[section.key]
        assert section.title in drawn
        for text in [*section.words, section.listed, *section.items]:
            assert text in drawn, section.key
        for table in section.tables:
            for row in rows_of(table.first(10), 90):
                assert row in drawn, table.key
    for text in [*said_by(report, result), *(row.length for row in report.ranks)]:
        assert text in drawn


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_terminal_draws_what_is_meant_for_it(traces: list[str], ranks: int) -> None:
    result = analyze_paths(traces[:ranks])
    report = report_of(result)
    printed = " ".join(CliRunner().invoke(analyze, traces[:ranks], env={"COLUMNS": "400"}).output.split())
    meant = [section for section in report.sections if section.key not in ("path", "device")]
    assert {table.key for section in meant for table in section.tables} <= set(SHOWN)
    for section in meant:
        for text in [*section.words, *(section.items if section.key == "notes" else section.items[:MOST_ITEMS])]:
            assert text in printed, section.key
        for table in section.tables:
            most, keys = SHOWN[table.key]
            for row in rows_of(table.first(most).only(*keys), NAME_CHARS):
                assert row in printed, table.key
    for text in said_by(report, result):
        assert text in printed
    for time in report.ranks:
        if ranks <= MAX_BAR_RANKS:
            assert f"{time.device}, rank {time.rank}: {time.length}" in printed
            for part in time.parts:
                assert f"{format_frac(part.share)} {format_ns(part.ns)} a step" in printed
        else:
            shares = " ".join(format_frac(time.share(bucket)) for bucket in report.buckets)
            assert f"{time.rank} {time.steps} {format_ns(time.mean_ns)} {shares}" in printed


def test_the_figures_are_those_of_the_rank_asked_for() -> None:
    result = analyze_paths([str(RECORDED / "starved.json.gz"), str(RECORDED / "fed.json.gz")])
    for one in result.ranks:
        idle = report_of(result, one).section("idle")
        assert idle is not None and f"of rank {one.rank} " in idle.words[0]


def test_rows_left_out_of_a_whole_are_summed() -> None:
    columns = (
        Column("cause", "Cause", Kind.TEXT),
        Column("place", "Place", Kind.NAME),
        Column("ns", "A step", Kind.TIME),
    )
    rows = [("a", "x", 5), ("b", "y", 3), ("c", "z", 2)]
    table = Table(key="idle", title="", columns=columns, rows=[*rows], rest="others")
    assert table.first(1).rows == [("a", "x", 5), ("others", "2 more in the JSON", 5)]
    assert table.first(3).rows == rows
    assert Table(key="idle", title="", columns=columns, rows=[*rows]).first(1).rows == rows[:1]
    assert table.only("ns", "cause").rows == [(5, "a"), (3, "b"), (2, "c")]
