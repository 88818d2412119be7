"""Every rule on accelerators, on a job with its defect and on the same job put right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rule_jobs import EXPECTED_NS, JOBS, job_of

from tightship_analyzers.catalogue import find_rule
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.judge import judge_trace
from tightship_analyzers.rule import Failed, Finding
from tightship_platform.vocabulary import Method

TOLERANCE = 0.1


def findings(folder: Path, rule: str, *, bad: bool) -> list[Finding]:
    """As the rule itself gives them, before they are simulated."""
    trace = job_of(rule, bad=bad).read(folder)
    assert trace.warnings == []
    facts = Facts(trace)
    found = find_rule(rule)
    for need in found.needs:
        facts[need]
    outcome = found.judge(facts)
    return [] if not hasattr(outcome, "__iter__") else list(outcome)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", JOBS)
def test_the_defect_is_found(rule: str, tmp_path: Path) -> None:
    found = findings(tmp_path, rule, bad=True)
    assert [finding.rule for finding in found] == [rule]
    [finding] = found
    assert finding.place == "train.py:12 (train_step)"
    assert finding.saving.method is Method.BOUND
    assert finding.title and finding.fix and "\n" not in finding.title + finding.fix
    change = [entry for entry in finding.evidence if entry["kind"] == "change"]
    assert len(change) == 1 and change[0]["before"] != change[0]["after"]
    assert json.loads(json.dumps(finding.evidence)) == finding.evidence


@pytest.mark.parametrize("rule", EXPECTED_NS)
def test_its_cost_is_right(rule: str, tmp_path: Path) -> None:
    [finding] = findings(tmp_path, rule, bad=True)
    assert finding.saving.value == pytest.approx(EXPECTED_NS[rule], rel=TOLERANCE)
    assert finding.saving.low <= EXPECTED_NS[rule] * (1 + TOLERANCE)


@pytest.mark.parametrize("rule", JOBS)
def test_the_job_put_right_is_clean(rule: str, tmp_path: Path) -> None:
    assert findings(tmp_path, rule, bad=False) == []


@pytest.mark.parametrize("rule", JOBS)
def test_no_other_rule_cries_wolf(rule: str, tmp_path: Path) -> None:
    said = judge_trace(job_of(rule, bad=False).read(tmp_path))
    assert not [why for why in said.not_judged.values() if isinstance(why, Failed)]
    assert [finding.rule for finding in said.findings if finding.share_frac > 0.05] == []


@pytest.mark.parametrize("rule", ["fp32-gemm", "low-bus-bandwidth", "low-grid"])
def test_an_unknown_device_disables_only_what_needs_its_rates(rule: str, tmp_path: Path) -> None:
    job = job_of(rule, bad=True)
    job.device = "Some Other Device"
    said = judge_trace(job.read(tmp_path))
    assert "needs the rates of 'Some Other Device'" in said.not_judged[rule].reason
    assert not {name for name, why in said.not_judged.items() if isinstance(why, Failed)}


def test_without_a_sign_nothing_is_derived(tmp_path: Path) -> None:
    rule = replace(find_rule("pageable-copy"))
    trace = job_of("pageable-copy", bad=False).read(tmp_path)
    facts = Facts(trace)
    from tightship_analyzers.judge import judge_facts

    said = judge_facts(facts, rules=(rule,))
    assert said.findings == [] and said.not_judged == {}
    assert "BlockingCopies" not in facts.costs
