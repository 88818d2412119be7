"""Findings that claim the same time, merged: their savings are never added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import Finding, Saving
from tightship_analyzers.trace.intervals import union_of
from tightship_platform.results.analysis.rank import Claim
from tightship_platform.vocabulary import Method

Together = Callable[[Sequence[Finding]], Saving | None]
"""What findings save when they are simulated together; None where they cannot be."""


def merge_claims(
    findings: list[Finding], window: Window, untraced_ns: int | None = None, together: Together | None = None
) -> list[Claim]:
    """Groups of findings that claim overlapping time, the largest joint saving first.

    The joint value is what they save when they are simulated together, by `together`; where that is not possible it is
    the measure of the union of what they claim. At least the best single low end is sure; at most the high ends
    together, but never more than the step (the recording).
    """
    groups: list[list[Finding]] = []
    for finding in findings:
        overlapping = [finding]
        apart = []
        for group in groups:
            if any(len(finding.claims & other.claims) for other in group):
                overlapping += group
            else:
                apart.append(group)
        groups = [*apart, overlapping]
    is_slower = window.of_steps and untraced_ns and untraced_ns < window.mean_ns
    scale = (untraced_ns or 1, window.mean_ns) if is_slower else (1, 1)
    step_ns = window.mean_ns * scale[0] // scale[1]
    found = (_claim(group, window, step_ns, together) for group in groups)
    return sorted(found, key=lambda claim: -claim.saving_ns)


def _claim(group: list[Finding], window: Window, step_ns: int, together: Together | None) -> Claim:
    simulated = together(group) if together and len(group) > 1 else None
    if simulated:
        value = min(step_ns, simulated.value * step_ns // window.mean_ns)
        share = value / step_ns
    elif len(group) == 1:
        value, share = group[0].saving.value, group[0].share_frac
    else:
        union_ns = union_of(finding.claims for finding in group).measure_ns
        value, share = min(step_ns, union_ns * step_ns // window.window_ns), union_ns / window.window_ns
    most_ns = sum(finding.saving.high for finding in group)
    if not simulated and value > most_ns:  # of what they claim, less can go; together they may save more than each
        value, share = most_ns, most_ns / step_ns
    low = min(value, max(finding.saving.low for finding in group))
    high = max(value, min(step_ns, most_ns))
    order = list(Method)
    return Claim(
        rules=sorted({finding.rule for finding in group}),
        places=sorted({finding.place for finding in group}),
        saving_ns=value,
        low_ns=low,
        high_ns=high,
        low_frac=low / step_ns,
        high_frac=high / step_ns,
        share_frac=share,
        method=max((finding.saving.method for finding in group), key=order.index).value,
    )
