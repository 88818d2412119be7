"""One report model: what terminal and page draw is what the model holds."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from rule_jobs import job_of

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.report.html.page import page
from tightship_analyzers.report.model import report_of
from tightship_analyzers.report.tables import Column, Kind, Table, cell_text
from tightship_platform.results.analysis.run import RunAnalysis

RECORDED = Path(__file__).parents[2] / "data" / "traces"


def words_of(drawn: str) -> str:
    text = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", drawn, flags=re.DOTALL))
    return " ".join(text.replace("\xa0", " ").split())


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, RunAnalysis]:
    path = tmp_path / "job.json"
    path.write_bytes(job_of("synchronous-scalar-read", bad=True).text())
    return path, analyze_paths([str(path)])


def test_terminal_and_page_draw_every_section_of_the_model(made: tuple[Path, RunAnalysis]) -> None:
    path, result = made
    report = report_of(result)
    drawn = words_of(page(result))
    printed = " ".join(CliRunner().invoke(analyze, [str(path)], env={"COLUMNS": "240"}).output.split())
    assert {section.key for section in report.sections} >= {"idle", "path", "device", "notes"}
    for section in report.sections:
        assert section.title in drawn
        for text in [*section.words, *section.items]:
            assert text in drawn, section.key
        for table in section.tables:
            first = [cell_text(c.kind, value, 90) for c, value in zip(table.columns, table.rows[0], strict=True)]
            assert " ".join(" ".join(first).split()) in drawn, table.key
    idle = report.section("idle")
    assert idle is not None and all(text in printed for text in idle.words)
    assert report.headline in printed and report.headline in drawn


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
