"""A slice of the injection harness; `make injection` runs all of it and writes docs/injection.md."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from injection.bases import SMALL, own, reference
from injection.defects import DEFECTS
from injection.harmless import HARMLESS
from injection.held import run_held
from injection.ranks import run_ranks
from injection.recording import Recording
from injection.sites import Base, base_of
from injection.trial import Outcome, company, fits, run, run_harmless
from rule_jobs import job_of

from tightship_analyzers import trace as traces
from tightship_analyzers.rules.catalogue import TRACE_RULES

EXPLORE = os.environ.get("TIGHTSHIP_EXPLORE") == "1"
SEED = int(os.environ.get("TIGHTSHIP_INJECTION_SEED") or (random.SystemRandom().randrange(10**6) if EXPLORE else 9))
SLICE, SLICE_TOGETHER, SLICE_HARMLESS = 10, 3, 4
MOST_ERROR_FRAC = 0.25
"""Of a single trial; the median of all of them is far below, see docs/injection.md."""
MOST_LEFT_OUT_FRAC = 0.6
"""A defect that is put to several places is left out where it costs less than the rule's threshold."""


@pytest.fixture(scope="module")
def own_bases(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    folder = tmp_path_factory.mktemp("bases")
    found = [base_of(path, folder) for path in own(folder, random.Random(SEED))]
    return [base for base in found if base is not None]


@pytest.fixture(scope="module")
def reference_bases(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    folder = tmp_path_factory.mktemp("bases")
    found = [base_of(path, folder) for path in reference(SMALL)]
    return [base for base in found if base is not None]


@pytest.fixture(params=["own_bases", pytest.param("reference_bases", marks=pytest.mark.reference)])
def bases(request: pytest.FixtureRequest) -> list[Base]:
    found: list[Base] = request.getfixturevalue(request.param)
    return found


def test_a_random_slice_is_found_and_priced(bases: list[Base], tmp_path: Path) -> None:
    sys.stdout.write(f"TIGHTSHIP_INJECTION_SEED={SEED}\n")
    rng = random.Random(SEED)
    pairs = [(defect, base) for defect in DEFECTS for base in bases if fits(defect, base)]
    trials = [([defect], base) for defect, base in rng.sample(pairs, SLICE)]
    on_devices = [base for base in bases if base.has_device]
    for base in rng.choices(on_devices, k=SLICE_TOGETHER):
        trials.append((company([defect for defect in DEFECTS if fits(defect, base)], rng), base))
    for defects, base in trials:
        for outcome in run(defects, base, rng, tmp_path):
            assert outcome.found, outcome
            # Without one defect another one may cost more or less than it did.
            assert len(defects) > 1 or -MOST_LEFT_OUT_FRAC <= outcome.error_frac <= MOST_ERROR_FRAC, outcome
            assert not outcome.false, outcome


def test_what_costs_nothing_is_no_finding(bases: list[Base], tmp_path: Path) -> None:
    sys.stdout.write(f"TIGHTSHIP_INJECTION_SEED={SEED}\n")
    rng = random.Random(SEED)
    on_devices = [base for base in bases if base.has_device]
    for harmless in rng.sample(HARMLESS, SLICE_HARMLESS):
        assert not run_harmless(harmless, rng.choice(on_devices), rng, tmp_path), harmless.name


def test_a_late_rank_is_found_and_ranks_late_in_turn_are_not(own_bases: list[Base], tmp_path: Path) -> None:
    sys.stdout.write(f"TIGHTSHIP_INJECTION_SEED={SEED}\n")
    rng = random.Random(SEED)
    base = rng.choice([base for base in own_bases if base.name.startswith("made")])
    outcome = run_ranks(base, rng, tmp_path)
    assert outcome.found and not outcome.false, outcome
    assert abs(outcome.error_frac) <= MOST_ERROR_FRAC, outcome
    assert not run_ranks(base, rng, tmp_path, straggles=False).false


def test_idle_devices_are_found_in_samples() -> None:
    sys.stdout.write(f"TIGHTSHIP_INJECTION_SEED={SEED}\n")
    rng = random.Random(SEED)
    outcome = run_held(rng)
    assert outcome.found, outcome
    assert abs(outcome.error_frac) <= MOST_ERROR_FRAC, outcome
    assert not run_held(rng, idles=False).false


def test_every_rule_on_traces_is_put_to_the_test() -> None:
    assert {defect.rule for defect in DEFECTS} == {rule.id for rule in TRACE_RULES}


def test_each_defect_fits_a_recording_that_every_checkout_holds(own_bases: list[Base]) -> None:
    assert [defect.rule for defect in DEFECTS if not any(fits(defect, base) for base in own_bases)] == []


def test_opening_time_moves_everything_after_it_and_nothing_before(tmp_path: Path) -> None:
    text = job_of("fp32-gemm", bad=False).text()
    recording = Recording(text)
    at_ns = int(sorted(recording.start_ns.tolist())[len(recording.start_ns) // 2])
    recording.open_time(at_ns, 12_345)
    for name, content in (("before", text), ("after", recording.text())):
        (tmp_path / f"{name}.json").write_bytes(content)
    before, after = (traces.open(tmp_path / f"{name}.json") for name in ("before", "after"))
    at_ns += before.base_ns
    for old, new in ((before.device_events, after.device_events), (before.host_ops, after.host_ops)):
        assert ((new.start_ns - old.start_ns) == 12_345 * (old.start_ns >= at_ns)).all()
    assert (after.device_events.dur_ns == before.device_events.dur_ns).all()
    longer = (before.host_ops.start_ns < at_ns) & (before.host_ops.end_ns > at_ns)
    assert ((after.host_ops.dur_ns - before.host_ops.dur_ns) == 12_345 * longer).all()


def test_the_error_is_that_of_the_saving() -> None:
    outcome = Outcome(rule="r", base="b", found=True, injected_ns=200, claimed_ns=210, false=frozenset())
    assert outcome.error_frac == pytest.approx(0.05)


def test_the_report_is_a_program() -> None:
    """`make injection` starts it by its path, without the paths that pytest sets."""
    program = f"import runpy; runpy.run_path({str(Path(__file__).with_name('report.py'))!r}, run_name='report')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
