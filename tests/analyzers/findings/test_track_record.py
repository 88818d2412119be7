"""How often each rule was right, and what follows for its findings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rule_jobs import job_of

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.findings import track_record
from tightship_analyzers.findings.track_record import (
    TrackRecord,
    expected,
    led_by_proven,
    record_of,
    standing_of,
    track_records,
    write_outcomes,
)
from tightship_analyzers.fleet import opportunities
from tightship_analyzers.report.html.page import page
from tightship_analyzers.report.sentences import APART
from tightship_analyzers.rules.catalogue import RULES
from tightship_platform.vocabulary import Standing

ROOT = Path(__file__).parents[3]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A record of no cases."""
    monkeypatch.setattr(track_record, "FILE", tmp_path / "track_record.toml")
    track_record.FILE.write_text("")
    track_records.cache_clear()
    yield
    track_records.cache_clear()


@pytest.mark.parametrize(
    ("right", "wrong", "standing"),
    [
        (0, 0, Standing.UNPROVEN),
        (2, 0, Standing.UNPROVEN),
        (1, 1, Standing.UNPROVEN),
        (3, 0, Standing.PROVEN),
        (9, 1, Standing.PROVEN),
        (8, 1, Standing.EXPERIMENTAL),
        (2, 1, Standing.EXPERIMENTAL),
    ],
)
def test_the_standing_follows_from_the_cases(right: int, wrong: int, standing: Standing) -> None:
    known = TrackRecord(right=tuple("r" * right), wrong=tuple("w" * wrong))
    assert known.standing is standing
    assert known.words.startswith(standing.value.capitalize())


@pytest.mark.usefixtures("empty")
def test_outcomes_of_one_kind_replace_those_of_before_and_leave_the_others() -> None:
    write_outcomes("reading", {"launch-bound": {"b": True, "a": True}, "busy-host": {"a": False}})
    write_outcomes("pair", {"launch-bound": {"c": True}})
    assert record_of("launch-bound") == TrackRecord(right=("pair/c", "reading/a", "reading/b"))
    assert record_of("busy-host") == TrackRecord(wrong=("reading/a",))
    write_outcomes("reading", {"launch-bound": {"a": False}})
    assert track_records() == {"launch-bound": TrackRecord(right=("pair/c",), wrong=("reading/a",))}
    assert record_of("busy-host") == TrackRecord()
    assert standing_of(["launch-bound", "busy-host"]) is Standing.UNPROVEN


@pytest.mark.usefixtures("empty")
def test_several_rules_are_as_sure_as_the_least_sure() -> None:
    write_outcomes("pair", {"a": dict.fromkeys("xyz", True), "b": {"x": True, "y": False, "z": True}})
    assert standing_of(["a"]) is Standing.PROVEN
    assert standing_of(["a", "b"]) is Standing.EXPERIMENTAL
    assert standing_of([]) is Standing.PROVEN, "nothing that could be wrong"


@pytest.mark.usefixtures("empty")
def test_what_to_expect_of_a_saving_is_what_its_rule_delivered_before() -> None:
    agreed = dict.fromkeys("xyz", True)
    write_outcomes("pair", {"a": agreed, "b": agreed}, {"a": {"x": 0.1, "y": 0.2, "z": 0.3}, "b": {"x": 0.9}})
    assert record_of("a").delivered_frac == pytest.approx(0.2)
    assert [expected([rule], 100, 200) for rule in ("a", "b", "new")] == [120, 150, 150], "one case is chance"
    assert expected(["a", "new"], 100, 200) == 120 and expected([], 0, 10) == 5 and expected(["a"], None, None) == 0
    write_outcomes("reading", {"a": {"r": True}})
    assert record_of("a").delivered["pair/z"] == 0.3, "readings measure nothing"
    write_outcomes("pair", {"a": agreed})
    assert not record_of("a").delivered


@pytest.mark.usefixtures("empty")
def test_a_proven_rule_leads_and_experimental_ones_come_last() -> None:
    write_outcomes("pair", {"a": dict.fromkeys("xyz", True), "bad": {"x": True, "y": False, "z": True}})

    def led(*rules: str) -> list[str]:
        return led_by_proven(rules, lambda rule: opportunities.standing_of_opportunity([rule]))

    assert led("bad", "new", "newer", "a") == ["a", "new", "newer", "bad"]
    assert led("new", "bad", "device-held-idle", "a") == ["device-held-idle", "new", "a", "bad"], "samples measure"
    assert led("new", "bad") == ["new", "bad"] and led() == []


@pytest.mark.usefixtures("empty")
def test_what_no_real_case_has_proven_is_a_bound_and_stands_apart(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(job_of("launch-bound", bad=True).text())
    [found] = [one for one in analyze_paths([str(path)]).findings if one.rule == "launch-bound"]
    assert (found.standing, found.saving.method) == ("unproven", "bound")
    printed = CliRunner().invoke(analyze, [str(path)], env={"COLUMNS": "200"}).output
    assert "Unproven: no real case shows yet what it brings" in printed
    assert APART not in printed

    write_outcomes("pair", {"launch-bound": dict.fromkeys("xyz", True)})
    [found] = [one for one in analyze_paths([str(path)]).findings if one.rule == "launch-bound"]
    assert (found.standing, found.saving.method) == ("proven", "simulated")
    assert "Unproven" not in CliRunner().invoke(analyze, [str(path)], env={"COLUMNS": "200"}).output

    write_outcomes("pair", {"launch-bound": {"x": True, "y": False, "z": True}})
    assert f"\n{APART}\n" in CliRunner().invoke(analyze, [str(path)], env={"COLUMNS": "200"}).output
    assert APART in page(analyze_paths([str(path)]))


def test_the_cases_in_the_file_exist() -> None:
    ids = {rule.id for rule in RULES}
    for rule, known in track_records().items():
        assert rule in ids
        assert set(known.delivered) <= {*known.right, *known.wrong}
        assert all(0 <= frac <= 1 for frac in known.delivered.values())
        for case in (*known.right, *known.wrong):
            kind, name = re.fullmatch(r"(reading|pair|gpu)/(\w+)", case).groups()  # type: ignore[union-attr]
            places = {
                "reading": [ROOT / f"tests/readings/{name}.json"],
                "pair": [ROOT / f"benchmarks/proof/{folder}/{name}.diff" for folder in ("pairs", "controls")]
                + [ROOT / f"benchmarks/proof/controls/{name}.py"],
                "gpu": [ROOT / "benchmarks/gpu/pair_cases.py"],
            }[kind]
            assert any(place.exists() for place in places), case
