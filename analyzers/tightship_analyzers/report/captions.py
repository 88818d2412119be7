"""Sentences above the tables and figures of a report, and the rows that need more than a column of a record."""

from __future__ import annotations

from collections.abc import Sequence

from tightship_analyzers.report.palette import cause_bucket
from tightship_platform.results.analysis.figures import Roofline, StepFigures
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.skew import RankComparison
from tightship_platform.results.evidence import Gap
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import Bucket


def one_of_each_cause(rows: Sequence[tuple[RankAnalysis, Gap]]) -> list[tuple[RankAnalysis, Gap]]:
    """The longest gap of each cause, then the others by length: five drawings of one cause show little more than
    one."""
    rows = sorted(rows, key=lambda row: row[1].start_ns - row[1].end_ns)
    firsts: dict[str, int] = {}
    for number, (_, gap) in enumerate(rows):
        firsts.setdefault(gap.cause, number)
    order = [*firsts.values(), *(number for number in range(len(rows)) if number not in firsts.values())]
    return [rows[number] for number in order]


def step_buckets(step: StepFigures) -> dict[Bucket, int] | None:
    """Bucket → ns of one step; they sum to it exactly. None where the device's activity is not recorded."""
    if step.idle_causes is None:
        return None
    exposed = sum((step.exposed_causes or {}).values())
    # Not from the busy time of device events: on the CPU there are none, and the CPU is the device.
    productive = step.duration_ns - sum(step.idle_causes.values()) - exposed
    sums = {Bucket.PRODUCTIVE: productive, Bucket.COMMUNICATION: exposed}
    for cause, ns in step.idle_causes.items():
        bucket = cause_bucket(cause)
        sums[bucket] = sums.get(bucket, 0) + ns
    return {bucket: ns for bucket, ns in sums.items() if ns}


def across_words(across: RankComparison) -> str:
    """What the comparison of the ranks rests on."""
    left = f"; {across.left_out} without a partner left out" if across.left_out else ""
    return (
        f"From {plural(across.collectives, 'collective')} that the ranks share{left}; times are "
        f"{'per step' if across.steps else 'totals'}. The time that others waited is summed over them."
    )


def device_words(one: RankAnalysis) -> str | None:
    """How the device's time divides from its first event to its last; None without device events."""
    time, shared = one.figures.temporal, one.figures.overlap
    if time is None:
        return None
    span = time.kernel_span_ns or 1
    parts = ", ".join(
        f"{format_frac(ns / span)} {word}"
        for ns, word in (
            (time.compute_ns, "computing"),
            (time.non_compute_ns, "communicating or copying"),
            (time.idle_ns, "idle"),
        )
    )
    text = f"From the first to the last device event, {format_ns(time.kernel_span_ns)}: {parts}."
    if shared is not None and shared.comm_ns:
        text += f" Communication ran {format_ns(shared.comm_ns)}, {format_frac(shared.frac)} of it under compute."
    return text


def path_words(one: RankAnalysis) -> str:
    """What the critical path is, and how well its simulation meets what was measured."""
    text = (
        "The chain of causes behind the end of each step, without a gap. Only what lies on it can make the step "
        "shorter; its parts sum to the step."
    )
    error = one.figures.simulation_error_frac
    return text if error is None else f"{text} The simulated step misses the measured one by {format_frac(error)}."


def roofline_title(roof: Roofline) -> str:
    """The heading, with the model of the device."""
    return f"Roofline ({roof.device.replace('-', ' ').upper().replace(' OR ', ' or ')})"


def roofline_words(one: RankAnalysis, roof: Roofline) -> str:
    """How much of the device's peak was used, and how far that is known."""
    known = format_frac(roof.known_ns / roof.kernel_ns) if roof.kernel_ns else "–"
    mfu = "MFU unknown: no peak rate" if roof.mfu_frac is None else f"MFU ≥ {format_frac(roof.mfu_frac)}"
    text = f"{mfu} (FLOPs known for {known} of kernel time). Attainable is what memory and arithmetic rates allow."
    if (steps := one.summary.steps) > 1:
        text += f" Times are of all {steps} steps together."
    return text
