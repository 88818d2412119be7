"""The page *One trace*: what it draws of recorded captures, of hostile names, and where there is no analysis."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from captured import a_capture, analyze_capture, begin, recorded
from plotly.utils import PlotlyJSONEncoder
from rank_jobs import traces_of
from records import ask, lease_of, reported
from sqlalchemy import select

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.report import gap_lanes
from tightship_analyzers.report.captions import step_buckets
from tightship_analyzers.report.model import report_of
from tightship_analyzers.report.sentences import headline, saving_words
from tightship_analyzers.report.tables import Column, cell_text
from tightship_dashboard.figures import trace_charts
from tightship_dashboard.figures.report_table import NAME_CHARS
from tightship_dashboard.pages import one_trace
from tightship_dashboard.pages.trace_sections import sections
from tightship_dashboard.pages.view import View
from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences.formatting import zone_of
from tightship_platform import captures
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database, open_database
from tightship_platform.database.models import CaptureAnalysis
from tightship_platform.errors import NotFound
from tightship_platform.queries.analysis import get_analysis
from tightship_platform.results.analysis.run import VERSION, RunAnalysis
from tightship_platform.results.analysis.skew import RankComparison, RankSkew
from tightship_platform.results.packed import pack
from tightship_platform.units import format_frac, format_ns, now_ns
from tightship_platform.vocabulary import Bucket, CaptureState

RECORDED = Path(__file__).parents[2] / "data" / "traces"
HOSTILE = "<img src=x onerror=alert(1)>%{customdata}`rm -rf`\u202eevil"


@pytest.fixture
def database(make_platform_env: Any) -> Iterator[Database]:
    with open_database(make_platform_env().settings) as opened:
        yield opened


def tell(database: Database, key: str, *, rank: str | None = None, may_capture: bool = True) -> str:
    """All that the page holds, as the browser gets it."""
    query = {} if rank is None else {"rank": rank}
    view = View(database=database, zone=zone_of("UTC"), query=query, may_capture=may_capture)
    drawn = json.dumps(one_trace.layout(view, key), cls=PlotlyJSONEncoder, ensure_ascii=False)
    return drawn.replace("\u00a0", " ")


def uploaded(database: Database, tmp_path: Path, **files: bytes) -> tuple[str, ArtifactStore]:
    artifacts = ArtifactStore(str(tmp_path / "artifacts"))
    with database.session() as session:
        begin(session)
    by_rank = dict(enumerate(files.values()))
    return a_capture(database, artifacts, "a1", by_rank, now=now_ns()), artifacts


def test_it_shows_what_the_report_shows_and_leads_on(database: Database, tmp_path: Path) -> None:
    key, artifacts = uploaded(database, tmp_path, a=recorded("starved"), b=recorded("fed"))
    assert analyze_capture(database, artifacts, key)
    with database.session() as session:
        result = get_analysis(session, key)
    drawn = tell(database, key)
    for words in (headline(result), result.findings[0].title, "Critical path", "Idle time by cause and place"):
        assert words.replace("\u00a0", " ") in drawn
    assert f'"/traces/{key}?rank=1"' in drawn
    assert '"title_href": "/findings/' in drawn
    assert "/api/v1/traces/" in drawn and "data-perfetto" in drawn
    assert "Where the step of rank 0 went" in drawn, "the least productive one"
    assert "Where the step of rank 1 went" in tell(database, key, rank="1")
    assert "Where the step of rank 0 went" in tell(database, key, rank="7"), "an unknown rank is not an error"
    assert str(answers.plain(one_trace.answer(View(database=database, zone=zone_of("UTC")), key))).startswith(
        headline(result)
    )


def test_without_an_analysis_it_says_why_and_what_to_do(database: Database, tmp_path: Path) -> None:
    key, artifacts = uploaded(database, tmp_path, a=recorded("starved"))
    with pytest.raises(NotFound):
        tell(database, "nosuch")
    waiting = tell(database, key)
    assert "are being analyzed" in waiting and '"disabled": false' in waiting, "it follows the capture"
    assert analyze_capture(database, artifacts, key)
    with database.session() as session:
        whole = get_analysis(session, key)
        session.scalars(select(CaptureAnalysis)).one().body = pack(whole, version=VERSION + 1)
    old = tell(database, key)
    assert "this release reads" in old and "trace-again" in old and "as after an upgrade" in old and "curl" not in old
    assert "lacks the scope" in tell(database, key, may_capture=False)
    with database.session() as session:
        captures.analyze_again(session, key)
    assert "are being analyzed" in tell(database, key)
    assert analyze_capture(database, artifacts, key)
    again = tell(database, key)
    assert "Critical path" in again and " Rank 0 of " in again


def test_while_a_capture_is_under_way_it_says_how_far_it_is(database: Database) -> None:
    with database.session() as session:
        begin(session)
        key = captures.request(session, ask("a1"), now=now_ns()).key
    shown = {"requested": tell(database, key)}
    with database.session() as session:
        captures.lease(session, lease_of("a1"), now=now_ns())
    shown["leased"] = tell(database, key)
    for state in ("armed", "recording", "written"):
        with database.session() as session:
            captures.report(session, key, reported(state, ranks=[0]), now=now_ns())
        shown[state] = tell(database, key)
    for state, page in shown.items():
        assert one_trace.UNDER_WAY[state] in page and "nothing to analyze" not in page
        assert '"disabled": false' in page, "it follows the capture"
    assert set(one_trace.UNDER_WAY) == {state for state in CaptureState if not state.is_final}


@pytest.mark.parametrize("content", [b"no trace at all", b""])
def test_a_capture_that_failed_says_why(database: Database, tmp_path: Path, content: bytes) -> None:
    key, artifacts = uploaded(database, tmp_path, a=content)
    assert analyze_capture(database, artifacts, key)
    drawn = tell(database, key)
    assert "failed: " in drawn and "rank 0" in drawn
    assert "Critical path" not in drawn


def test_every_section_of_the_report_is_drawn_in_its_words(tmp_path: Path) -> None:
    result = analyze_paths(traces_of(tmp_path), wanted=Wanted(gaps=3))
    report = report_of(result)
    drawn = sections("c", result, report.one, {})
    nodes = [node for part in drawn for node in _tree(part)]
    said = {node.replace("\u00a0", " ") for node in nodes if isinstance(node, str)}
    grids = {node.id: node for node in nodes if hasattr(node, "rowData")}
    anchors = [part.id for part in drawn]
    assert {"idle", "exposed", "across", "path", "device", "roofline", "notes"} <= set(anchors)
    for section in report.sections:
        assert section.key in anchors
        assert {section.title, *section.words, *section.items} <= said
        for table in section.tables:
            grid = grids[f"trace-{table.key}"]
            assert [column["field"] for column in grid.columnDefs] == [column.key for column in table.columns]
            assert [_texts(table.columns, row) for row in grid.rowData] == [
                [cell_text(column.kind, value, NAME_CHARS) for column, value in zip(table.columns, row, strict=True)]
                for row in table.rows
            ]
    assert {report.advice, *report.remarks} <= said
    for part in report.time.parts:
        assert {format_ns(part.ns), format_frac(part.share)} <= said
    for row in report.ranks:
        assert {f"rank {row.rank}", format_ns(row.mean_ns), format_frac(row.share(Bucket.PRODUCTIVE))} <= said
    saves = [row["saving_text"].replace("\u00a0", " ") for row in grids["trace-findings"].rowData]
    assert saves == [saving_words(finding) for finding in result.findings]
    assert {gap_lanes.description_of(gap) for gap in report.one.gaps} <= said


def _texts(columns: Sequence[Column], row: dict[str, Any]) -> list[str]:
    """A grid's row as it is shown."""
    shown = [row.get(f"{column.key}_text", row[column.key]) for column in columns]
    return [text.replace("\u00a0", " ") for text in shown]


def test_names_from_a_trace_are_text_only() -> None:
    whole = analyze_paths([str(RECORDED / "starved.json.gz"), str(RECORDED / "loop.json.gz")], wanted=Wanted(gaps=3))
    hostile: RunAnalysis = _renamed(whole)
    drawn = sections("c", hostile, hostile.ranks[0], {})
    text = json.dumps(drawn, cls=PlotlyJSONEncoder, ensure_ascii=False)
    assert "onerror" in text, "the names are there"
    assert "\u202e" not in text
    figures = [node.figure for part in drawn for node in _tree(part) if hasattr(node, "figure")]
    assert len(figures) >= 3
    assert "<img" not in json.dumps(figures, ensure_ascii=False), "Plotly would read it as markup"


def _renamed(value: Any) -> Any:
    """The record with every name in it hostile."""
    names = ("name", "place", "call", "operator", "module", "where", "title", "fix", "text", "source", "frame")
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {
            name: HOSTILE if name in names and isinstance(old, str) else _renamed(old) for name, old in fields.items()
        }
        return dataclasses.replace(value, **changed)
    return value


def _tree(component: Any) -> list[Any]:
    children = getattr(component, "children", None)
    below = children if isinstance(children, list | tuple) else [children]
    return [component, *(node for child in below if child is not None for node in _tree(child))]


@pytest.mark.parametrize("name", ["starved", "checkpoints", "loop"])
def test_the_steps_sum_to_the_window(name: str) -> None:
    [one] = analyze_paths([str(RECORDED / f"{name}.json.gz")]).ranks
    sums: dict[str, int] = {}
    for step in one.figures.steps:
        buckets = step_buckets(step)
        assert buckets is not None
        assert sum(buckets.values()) == step.duration_ns
        for bucket, ns in buckets.items():
            sums[bucket] = sums.get(bucket, 0) + ns
    assert sums == {bucket: ns for bucket, ns in one.summary.buckets.items() if ns}
    for rows in (trace_charts.step_rows(one), trace_charts.path_rows(one)):
        lengths = [sum(parts.values()) for _, parts in rows]
        assert lengths == [step.duration_ns for step in one.figures.steps]


def test_the_late_rank_is_the_brightest_row() -> None:
    ranks = [_skew(0, [0, 1_000_000]), _skew(1, [9_000_000, 8_000_000])]
    across = RankComparison(collectives=4, left_out=0, steps=2, ranks=ranks[::-1], worst=[])
    figure = trace_charts.late_map(across)
    assert figure is not None
    [heat] = figure["data"]
    assert heat["y"] == ["rank 0", "rank 1"]
    assert heat["z"] == [[0, 1.0], [9.0, 8.0]]
    assert "rank 1, step 0: 9.00 ms late" in heat["customdata"][1][0].replace("\u00a0", " ")
    without = dataclasses.replace(across, steps=None, ranks=[_skew(0, None), _skew(1, None)])
    assert trace_charts.late_map(without) is None


def _skew(rank: int, late: list[int] | None) -> RankSkew:
    zeros = dict.fromkeys((field.name for field in dataclasses.fields(RankSkew)), 0)
    return RankSkew(**zeros | {"rank": rank, "late_by_step_ns": late})  # type: ignore[arg-type]


def test_an_empty_analysis_draws() -> None:
    [one] = analyze_paths([str(RECORDED / "starved.json.gz")]).ranks
    bare = dataclasses.replace(
        one,
        gaps=[],
        summary=dataclasses.replace(one.summary, buckets={}, window_ns=0, steps=0, step_ns=None, unclaimed_ns={}),
        figures=dataclasses.replace(
            one.figures,
            **dict.fromkeys(
                ("temporal", "overlap", "window_idle_causes", "critical_path", "roofline", "launches", "exposed_causes")
            ),
            steps=[],
            kernels=[],
        ),
    )
    result = analyze_paths([str(RECORDED / "starved.json.gz")])
    empty = dataclasses.replace(result, ranks=[bare], findings=[])
    drawn = json.dumps(sections("c", empty, bare, {}), cls=PlotlyJSONEncoder)
    assert "no device events" in drawn
