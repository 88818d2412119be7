"""Savings by re-simulation: a finding that says what the program would do without its defect is priced by running the
trace's dependency graph again.

[Note: simulated savings] The value is how much shorter the window gets, per step, from the unchanged simulation to the
edited one; both have the same flaws. A recording without steps is one window and counts as one step; edits before the
device's first work and after its last do not count there, as claims do not. What the rule does not know (how often a
thing happens, how much of it can be hidden) stays: its low and high keep their proportion to its value, and the error
of the unchanged simulation is added on both sides. Where the rule's own low end, from what was measured, is below that,
it stands. Findings are simulated one by one, and together where they are shown together: two calls that wait for the
same kernel save nothing alone, for the other one inherits the wait.

[Note: the host's pace] A device far behind its host has work queued, which hides the host. With less work it catches
up, and from then on the host sets the pace, which the few recorded steps do not show. So the low end is no more than
what is left between the device's step and the host's.

[Note: a slow host hides the device] Where the host needs about the whole step, less work of the device makes longer
gaps, no shorter steps: a finding on device work saves little alone. But profiling slows the host and never the device,
and what makes the host faster (fewer launches, graphs) is advice of its own. So the high end stays that of the device
work, the evidence says what the host leaves, and the finding is shown even where nothing of it comes back alone.

[Note: a recording that is not understood] Where the unchanged simulation misses the recording, or the device did what
the file does not hold, nothing is simulated, and the low end is 0.

[Note: work that moves to other cores] A simulation takes the cores that the edited program needs for idle. The cores of
a host that feeds an accelerator are not the device, and there that stands. On a CPU they are the device: loader workers
or a thread that writes compete with the computation, and a trace does not hold the processor time that would show idle
cores. So nothing is simulated there: the saving is a bound, and its low end is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

from tightship_analyzers.facts.blocking.host_pace import HostPace
from tightship_analyzers.facts.idle.unrecorded import Unrecorded
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import NOISE_FRAC, Finding, Saving
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.units import format_ns
from tightship_platform.vocabulary import Method


def saving_without(facts: Facts, edits: Edits, *, asker: str | None = None) -> Saving | NotApplicable:
    """What the mean step would lose with these edits, or why that cannot be simulated (then savings are bounds)."""
    if _competes(facts, edits):
        return NotApplicable("needs idle cores, which the trace does not show")
    known, window = facts.get(DependencyGraph, asker=asker), facts.get(Window, asker=asker)
    reason = distrust(facts, asker=asker)
    if reason is not None:
        return NotApplicable(reason)
    if isinstance(window, NotApplicable):
        return window
    if isinstance(known, NotApplicable):
        return known
    if known.distrust is not None:
        return NotApplicable(known.distrust)
    edits = edits.within(window.claim_start_ns, window.claim_end_ns) if not window.of_steps else edits
    value = min(max(0, int(known.saved_ns(edits).sum())) // window.count, window.mean_ns)
    error = math.ceil(known.mean_error_frac * window.mean_ns)
    return Saving(
        value=value,
        low=min(max(0, value - error), _room_ns(facts, window, edits)),
        high=min(value + error, max(window.mean_ns, value)),
        method=Method.SIMULATED,
    )


def _room_ns(facts: Facts, window: Window, edits: Edits) -> int:
    """By how much a step can get shorter before the host sets the pace; see [Note: the host's pace]."""
    if not window.lag_ns:
        return window.mean_ns
    gone = edits.host.get(window.tid, Intervals.none()).clip(window.host_start_ns, window.host_end_ns)
    return max(0, window.mean_ns - facts[HostPace].step_ns + gone.measure_ns // window.count)


def simulated(facts: Facts, finding: Finding) -> Finding:
    """The finding with its saving by simulation; as it is, with the reason, where that is not possible."""
    if finding.without is None:
        return finding
    window = facts[Window]
    found, bound = saving_without(facts, finding.without, asker=finding.rule), finding.saving
    if isinstance(found, NotApplicable):
        why = fact(f"A bound, not simulated: {found.reason}")
        least = 0 if _competes(facts, finding.without) or distrust(facts) is not None else bound.low
        return replace(finding, saving=replace(bound, low=least), evidence=[*finding.evidence, why])
    low, high = found.low, found.high
    if bound.value:
        low = min(found.low * bound.low // bound.value, bound.low)
        high = max(found.high, min(found.high * bound.high // bound.value, window.mean_ns))
    evidence = list(finding.evidence)
    room_ns = _behind_the_host(facts, finding, window)
    if room_ns is not None:
        high = max(high, min(bound.high, window.mean_ns))
        evidence.append(
            fact(
                f"The host, as recorded, leaves {format_ns(room_ns)} of the step: more comes back only once it "
                "launches faster",
                room_ns,
                "ns",
            )
        )
    saving = Saving(value=found.value, low=low, high=high, method=Method.SIMULATED)
    if found.value > bound.value * (1 + NOISE_FRAC) and found.value - bound.value > NOISE_FRAC * window.mean_ns:
        more = found.value - bound.value
        evidence.append(
            fact(f"{format_ns(more)} of it is what can begin earlier as well once this is gone", more, "ns")
        )
    return replace(
        finding,
        saving=saving,
        share_frac=saving.value / window.mean_ns,
        evidence=evidence,
        is_hidden=room_ns is not None and saving.value < NOISE_FRAC * window.mean_ns,
    )


def _behind_the_host(facts: Facts, finding: Finding, window: Window) -> int | None:
    """By how much the step gets shorter at most before the host sets the pace, where device work that goes is more."""
    edits = finding.without
    if edits is None or not edits.device or edits.host or edits.syncs or edits.joined or not window.of_steps:
        return None
    room_ns = max(0, window.mean_ns - facts[HostPace].step_ns)
    return room_ns if room_ns < finding.saving.value else None


def simulated_together(facts: Facts, findings: Sequence[Finding]) -> Saving | None:
    """What findings save together; None where any of them is not simulated."""
    edits = [finding.without for finding in findings if finding.without is not None]
    if len(edits) < len(findings) or not edits:
        return None
    if any(finding.saving.method is not Method.SIMULATED for finding in findings):
        return None
    found = saving_without(facts, reduce(or_, edits))
    return None if isinstance(found, NotApplicable) else found


def distrust(facts: Facts, *, asker: str | None = None) -> str | None:
    """Why the recording does not say what bounds the job; None where it does.
    See [Note: a recording that is not understood]."""
    unrecorded, known = facts.get(Unrecorded, asker=asker), facts.get(DependencyGraph, asker=asker)
    if not isinstance(unrecorded, NotApplicable) and unrecorded.distrust is not None:
        return unrecorded.distrust
    return known.distrust if not isinstance(known, NotApplicable) and known.is_unlike else None


def _competes(facts: Facts, edits: Edits) -> bool:
    """Does work move to cores that are themselves the device?"""
    return edits.needs_cores and facts.trace.device_kind == "cpu"
