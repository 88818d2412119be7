"""Counts read as English, whatever they count: one step, two steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_job import GpuJob
from rule_jobs import JOBS, job_of

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.judge import judge_facts
from tightship_analyzers.analysis.picked_steps import pick_step
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.report.html.page import page

RECORDED = Path(__file__).parents[2] / "data" / "traces"
SLIP = re.compile(r"(?<![\w.,×#:/+-])1 (?!(?:ms|ns|µs|s|is|was|has|loses)\b)(?:\w+ )?\w+s\b(?!\()")
NAMES = re.compile(r"rank 1\b|step 1\b|rule 1\b|1 of \d+")


def slips(text: str) -> list[str]:
    return SLIP.findall(NAMES.sub("", text))


def reported(findings: list[Finding]) -> Iterator[str]:
    for finding in findings:
        yield finding.title
        yield from (str(row.text) for row in finding.evidence if row.kind == "fact")


def test_a_slip_is_seen() -> None:
    assert slips("1 blocking calls in 1 steps") and slips("12 calls in 1 steps")
    assert not slips("1 call in 1 step, 1 ms of 1 s, 1.1 times, rank 1 waits, 1 of 3 ranks")


@pytest.mark.parametrize("rule", JOBS)
def test_findings_on_one_step_count_right(rule: str, tmp_path: Path) -> None:
    facts = Facts(job_of(rule, bad=True).read(tmp_path))
    pick_step(facts, "0")
    for text in reported(judge_facts(facts).findings):
        assert not slips(text), text


@pytest.mark.parametrize("fixture", sorted(path.name for path in RECORDED.glob("*.json.gz")))
def test_findings_on_one_recorded_step_count_right(fixture: str) -> None:
    facts = Facts(traces.open(RECORDED / fixture))
    pick_step(facts, "0")
    for text in reported(judge_facts(facts).findings):
        assert not slips(text), text


def test_the_page_of_one_step_counts_right(tmp_path: Path) -> None:
    job: GpuJob = job_of("synchronous-scalar-read", bad=True)
    (tmp_path / "job.json").write_bytes(job.text())
    drawn = page(analyze_paths([str(tmp_path / "job.json")], wanted=Wanted(step="0")))
    text = re.sub(r"<style>.*?</style>|<[^>]*>", " | ", drawn, flags=re.DOTALL).replace("\xa0", " ")
    assert not slips(text), slips(text)
