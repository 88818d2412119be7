"""Work that moves to other cores takes its time there, and no more moves than these have room for.

[Note: room on other cores] A run keeps B cores busy while it steps, and I more of its host are idle. A step of T then
holds B × T of processor time. Moving work elsewhere (loader workers, a thread that saves) does not lessen it, and the
B + I cores need at least T × B / (B + I) for it. So I / (B + I) of a step comes back at most. A trace does not hold
processor time; the samples of a captured run do.
"""

from __future__ import annotations

from dataclasses import replace

from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding, Saving
from tightship_platform.units import format_frac


def limit_to_idle_cores(finding: Finding, step_ns: int, idle_frac: float | None) -> Finding:
    """The finding with no more saving than idle cores allow; unchanged where it moves no work, or they allow more.

    :param step_ns: mean step that the saving refers to.
    :param idle_frac: I / (B + I) of [Note: room on other cores]; None: not known.
    """
    if idle_frac is None or finding.without is None or not finding.without.needs_cores:
        return finding
    most_ns, saving = int(idle_frac * step_ns), finding.saving
    if saving.high <= most_ns:
        return finding
    value = min(saving.value, most_ns)
    return replace(
        finding,
        saving=Saving(value=value, low=min(saving.low, value), high=most_ns, method=saving.method),
        share_frac=finding.share_frac * value / saving.value if saving.value else 0.0,
        evidence=[
            *finding.evidence,
            fact(
                f"The run keeps {format_frac(1 - idle_frac)} of the cores busy that it could have: at most "
                f"{format_frac(idle_frac)} of a step can move to others",
                idle_frac,
                "frac",
            ),
        ],
    )
