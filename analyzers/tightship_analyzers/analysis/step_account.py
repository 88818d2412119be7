"""Where the steps of some traces went together: the two sides of a diff."""

from __future__ import annotations

from collections import Counter

from tightship_analyzers.facts.idle.step_split import StepSplit
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.analysis.rank import device_label
from tightship_platform.text import shown


class StepAccount:
    """Sums over traces, which are given one by one and need not be in memory together."""

    def __init__(self) -> None:
        self.devices: list[str] = []
        """Models of devices, each once, in order."""
        self.steps = 0
        """Whole steps of all traces."""
        self.window_ns = 0
        """All those steps; of several ranks their sum."""
        self.parts_ns: Counter[str] = Counter()
        """Bucket of a run's account → ns, summing to `window_ns`."""

    @property
    def step_ns(self) -> int | None:
        """Mean step; None where no trace holds a whole one."""
        return self.window_ns // self.steps if self.steps else None

    def add(self, trace: Trace) -> None:
        """Counts one trace; of one without whole steps only the device."""
        device = device_label(shown(trace.device_name), trace.device_kind, trace.covered_frac)
        if device not in self.devices:
            self.devices.append(device)
        facts = Facts(trace)
        steps, split = facts.find(Steps), facts.find(StepSplit)
        if steps is None or split is None:
            return
        self.steps += steps.count
        self.window_ns += steps.window_ns
        self.parts_ns.update({bucket.value: ns for bucket, ns in split.buckets_ns.items()})
