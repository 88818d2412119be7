"""One trial: a defect of known cost is put into a recording, and the whole judge is asked."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from injection.block import Block
from injection.defects import Defect
from injection.recording import Recording
from injection.sites import Base

from tightship_analyzers import trace as traces
from tightship_analyzers.hardware import find
from tightship_analyzers.judge import judge_trace

MOST_THERE_FRAC = 0.01
"""Against 12 % at least that is put in."""


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
    """Can this defect be put into this recording, alone and visibly?"""
    if not base.has_device:
        return defect.on_cpu
    if any(finding.rule == defect.rule for finding in base.verdict.findings):
        return False  # there already; then its saving is that of both together
    # What is there below the threshold would count on top of what is put in.
    if defect.rule == "launch-bound" and base.dispatch_frac > MOST_THERE_FRAC:
        return False
    if defect.rule == "exposed-communication" and base.exposed_frac > MOST_THERE_FRAC:
        return False
    device = find(base.device_name)
    if defect.rule == "pageable-copy":
        return device is not None and "pcie" in device.link_bytes_per_s
    if defect.rule == "fp32-gemm":
        return device is not None and device.vendor == "NVIDIA"
    if defect.rule == "low-bus-bandwidth":
        return device is not None and bool({"nvlink", "xgmi"} & set(device.link_bytes_per_s))
    return base.units > 0 if defect.rule == "low-grid" else True


def run(defect: Defect, base: Base, rng: random.Random, folder: Path) -> Outcome:
    """Opens the recording in every step and judges it."""
    recording = Recording(base.text)
    share = rng.uniform(*defect.share)
    length_ns = round(share * base.step_ns / (1 - share) / defect.per_step)
    moments = sorted(
        moment for sites in base.sites for moment in rng.sample(sites.tolist(), min(defect.per_step, len(sites)))
    )
    cost_ns = 0
    for at_ns in reversed(moments):
        cost_ns += defect.put(Block(recording, base, int(at_ns), length_ns), base)
    path = folder / "injected.json"
    path.write_bytes(recording.text())
    said = judge_trace(traces.open(path))
    mine = [finding for finding in said.findings if finding.rule == defect.rule]
    before = {finding.rule for finding in base.verdict.findings}
    return Outcome(
        rule=defect.rule,
        base=base.name,
        found=bool(mine),
        injected_ns=cost_ns // base.steps,
        claimed_ns=sum(finding.saving.value for finding in mine),
        false=frozenset({finding.rule for finding in said.findings} - before - {defect.rule} - defect.right_too),
    )


def median_error(outcomes: list[Outcome]) -> float:
    """Of the savings of those that were found; not a number where none was."""
    errors = [outcome.error_frac for outcome in outcomes if outcome.found]
    return float(np.median(errors)) if errors else float("nan")
