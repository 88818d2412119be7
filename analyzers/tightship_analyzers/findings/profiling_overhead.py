"""Recording slows a job down; what that means for a saving.

[Note: profiling overhead] A recorded step takes T, an unrecorded one U (from the step counter, outside of the
capture). The difference D = T − U was added by the recording, and for a device that waits for its host nobody knows
where. So a saving V of the recorded step lies between max(0, V − D), if all of D sits in the time that the finding
claims, and min(V, U), if none does; of U only what the fix can give back of any step (`Finding.most_frac`). The value
keeps its share of the step: V × U / T.

Of a job that computes on the CPU more is known: a share of D between s and S lies in the claims, see
[Note: recording costs per event]. There the saving lies between V − S × D and V − s × D.

Where T is more than STRETCHED times U, what recording added sits where there are most calls, and a share of the
recorded step is mostly a share of that. V − D stays sure: the rest of the step, T − V, takes no longer without
recording. So where V − D is more than nothing, as of a step that does little else, the saving is named, as a bound. Of
a job that computes on the CPU it is named even where V − D is nothing: it is no more than V − s × D. What a rule adds
to V at its high end is time between operators or of their memory, which recording lengthens most: of that no more
counts than its share of the step. Otherwise the finding stays, with its place, and names none.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tightship_analyzers.facts.program.recording_cost import RecordingCost
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding, Saving
from tightship_platform.results.analysis.rank import is_stretched, stretch_words
from tightship_platform.units import format_frac, format_ns
from tightship_platform.vocabulary import Method


def correct_for_overhead(
    finding: Finding, traced_ns: int, untraced_ns: int | None, cost: RecordingCost | None = None
) -> Finding:
    """The finding with its saving in terms of unrecorded steps; unchanged where recording did not slow the job.

    :param cost: where recording may have cost time, if known.
    """
    if not untraced_ns or untraced_ns >= traced_ns:
        return finding
    stretched = is_stretched(traced_ns, untraced_ns)
    knows_where = cost is not None and len(finding.claims) > 0
    if stretched and finding.saving.low <= traced_ns - untraced_ns and not knows_where:
        why = f"{stretch_words(traced_ns, untraced_ns)}: what this costs without recording is not known"
        evidence = [*finding.evidence, fact(why, traced_ns / untraced_ns, "ratio")]
        return replace(finding, saving=Saving(value=0, low=0, high=0), share_frac=0.0, without=None, evidence=evidence)
    saving, added_ns = finding.saving, traced_ns - untraced_ns
    value = saving.value * untraced_ns // traced_ns
    least, most = 0.0, 1.0
    if cost is not None and knows_where:
        bounds = (*cost.shares(finding.claims), saving.value / traced_ns)  # a simulated saving is not all in its claims
        least, most = min(bounds), 1.0 if stretched else max(bounds)
    low = min(value, max(0, saving.low - math.ceil(most * added_ns)))
    most_ns = saving.high - int(least * added_ns)
    if stretched and knows_where:
        most_ns = max(saving.value - int(least * added_ns), saving.high * untraced_ns // traced_ns)
    high = max(value, min(most_ns, int(finding.most_frac * untraced_ns)))
    slower = added_ns / untraced_ns
    where = f"of that {format_frac(least)} to {format_frac(most)} may lie here, and " if most - least < 1 else ""
    return replace(
        finding,
        saving=Saving(value=value, low=low, high=high, method=Method.BOUND if stretched else saving.method),
        evidence=[
            *finding.evidence,
            fact(
                f"Recording made a step {format_frac(slower)} longer ({format_ns(untraced_ns)} without it, "
                f"{format_ns(traced_ns)} in the trace); {where}low and high allow for that",
                slower,
                "frac",
            ),
        ],
    )
