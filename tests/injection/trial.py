"""One trial: defects of known cost are put into a recording, and the whole judge is asked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from injection.block import Block
from injection.defects import Defect
from injection.harmless import Harmless
from injection.recording import Recording
from injection.sites import Base

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import Verdict, judge_trace
from tightship_analyzers.hardware import find

MOST_THERE_FRAC = {"launch-bound": 0.15, "exposed-communication": 0.15}
"""Share of the step that may be a rule's already, and is taken off what it says afterwards; 0 for all others."""
UNEVEN = (0.8, 1.2)
"""Stretches of one trial differ in length by these factors."""
FEWER_FROM = 4
"""Steps after which a defect may be put into the later half of them alone."""


@dataclass(frozen=True)
class Outcome:
    """What the judge said."""

    rule: str
    base: str
    found: bool
    injected_ns: int
    """A step."""
    claimed_ns: int
    """A step, beyond what the rule said about the recording as it was."""
    false: frozenset[str]
    """Other rules that say something now and said nothing before."""

    @property
    def error_frac(self) -> float:
        """How much too high or too low the saving is."""
        return self.claimed_ns / self.injected_ns - 1


def fits(defect: Defect, base: Base) -> bool:
    """Can this defect be put into this recording visibly?"""
    if base.step_ns * defect.share[0] / defect.per_step * UNEVEN[0] < defect.least_ns:
        return False
    if not base.has_device:
        return defect.on_cpu
    if _there(defect.rule, base) > MOST_THERE_FRAC.get(defect.rule, 0.0) * base.step_ns:
        return False
    device = find(base.device_name)
    if defect.rule in ("slow-kernel", "small-decode-batch"):
        return device is not None and device.flops("fp16") is not None
    if defect.rule == "pageable-copy":
        return device is not None and "pcie" in device.link_bytes_per_s
    if defect.rule == "fp32-gemm":
        return device is not None and device.vendor == "NVIDIA"
    if defect.rule == "low-bus-bandwidth":
        return device is not None and bool({"nvlink", "xgmi"} & set(device.link_bytes_per_s))
    return base.units > 0 if defect.rule == "low-grid" else True


def company(defects: Sequence[Defect], rng: random.Random) -> list[Defect]:
    """Up to three that can be in one recording at once."""
    chosen: list[Defect] = []
    for defect in rng.sample(defects, len(defects)):
        if len(chosen) < 3 and all(defect.goes_with(other) for other in chosen):
            chosen.append(defect)
    return chosen


def run(defects: Sequence[Defect], base: Base, rng: random.Random, folder: Path) -> list[Outcome]:
    """Opens the recording for each of them, at their own moments, and judges it once."""
    shares = [rng.uniform(*defect.share) for defect in defects]
    recording = Recording(base.text)
    costs = [0] * len(defects)
    # From the last moment to the first, so that those before stay where they are.
    for at_ns, number, length_ns in sorted(_stretches(defects, shares, base, rng), reverse=True):
        costs[number] += defects[number].put(Block(recording, base, at_ns, length_ns, rng), base)
    said = _judged(recording, folder)
    right = {rule for defect in defects for rule in defect.right_too | {defect.rule}}
    false = _rules(said) - _rules(base.verdict) - right
    return [
        Outcome(
            rule=defect.rule,
            base=base.name,
            found=_saving_of(said, defect.rule) > _saving_of(base.verdict, defect.rule),
            injected_ns=cost_ns // base.steps,
            claimed_ns=_saving_of(said, defect.rule) - _there(defect.rule, base),
            false=frozenset(false if number == 0 else ()),
        )
        for number, (defect, cost_ns) in enumerate(zip(defects, costs, strict=True))
    ]


def run_harmless(harmless: Harmless, base: Base, rng: random.Random, folder: Path) -> frozenset[str]:
    """What the judge says wrongly when something is put in that costs nothing."""
    recording = Recording(base.text)
    length_ns = round(rng.uniform(0.1, 0.2) * base.step_ns)
    for at_ns in sorted((rng.choice(sites.tolist()) for sites in base.sites), reverse=True):
        harmless.put(Block(recording, base, at_ns, length_ns, rng), base)
    return frozenset(_rules(_judged(recording, folder)) - _rules(base.verdict))


def _stretches(
    defects: Sequence[Defect], shares: Sequence[float], base: Base, rng: random.Random
) -> list[tuple[int, int, int]]:
    """(when, which defect, how long), each moment once as far as there are enough of them."""
    left = 1 - sum(shares)
    chosen: list[tuple[int, int, int]] = []
    taken: set[int] = set()
    for number, (defect, share) in enumerate(zip(defects, shares, strict=True)):
        fewer = base.steps >= FEWER_FROM and rng.random() < 0.3
        skipped = base.steps // 2 if fewer else 0
        length_ns = share * base.step_ns / left / defect.per_step * base.steps / (base.steps - skipped)
        for sites in base.sites[skipped:]:
            free = [moment for moment in sites.tolist() if moment not in taken]
            free = free if len(free) >= defect.per_step else sites.tolist()
            moments = rng.sample(free, min(defect.per_step, len(free)))
            taken.update(moments)
            chosen += [(moment, number, round(length_ns * rng.uniform(*UNEVEN))) for moment in moments]
    return chosen


def _judged(recording: Recording, folder: Path) -> Verdict:
    path = folder / "injected.json"
    path.write_bytes(recording.text())
    return judge_trace(traces.open(path))


def _rules(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


def _saving_of(verdict: Verdict, rule: str) -> int:
    return sum(finding.saving.value for finding in verdict.findings if finding.rule == rule)


def _there(rule: str, base: Base) -> int:
    """What a rule counts in the recording as it is, ns a step; for some below its threshold too."""
    below = {"launch-bound": base.dispatch_frac, "exposed-communication": base.exposed_frac}
    return max(_saving_of(base.verdict, rule), round(below.get(rule, 0.0) * base.step_ns))
