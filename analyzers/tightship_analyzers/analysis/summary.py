"""What an analysed trace says at a glance (the JSON kept with it); the merging of findings that claim the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceBusy
from tightship_analyzers.facts.idle.step_split import StepSplit
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import Finding, Saving
from tightship_analyzers.findings.savings import simulated_together
from tightship_analyzers.metrics.kernel_classes import kernel_classes
from tightship_analyzers.trace.coverage import work_calls
from tightship_analyzers.trace.intervals import union_of
from tightship_analyzers.trace.model import EventKind, Trace
from tightship_platform.text import shown
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import Bucket, Method, SavingUnit

BEHIND_FRAC = 0.5
"""Share of the device's work within the steps that was launched before; from then on it is worth saying."""

ON_GPU = "nccl:"
"""How torch names the ranges of that back end's collectives."""

Together = Callable[[Sequence[Finding]], Saving | None]
"""What findings save when they are simulated together; None where they cannot be."""


def summarize(
    facts: Facts, findings: list[Finding], notes: list[str], untraced_ns: int | None = None
) -> dict[str, Any]:
    """The summary of one trace. Times are ns; `buckets` sums to `window_ns` exactly; missing is null.

    - `saving_unit`: `ns/step`, or without steps `ns/recording`: then `step_ns` is null, and the recording is judged as
      one window; null where nothing can be judged;
    - `window_ns`: the whole steps, or the recording;
    - `claims`: groups of findings whose time overlaps, each with the joint saving (per step): never add up findings;
    - `unclaimed_ns`: of each bucket but `productive` what no finding claims;
    - `joint_saving_frac`: share of the window that all findings together would give back at most;
    - `covered_frac`: share of the recording whose device events are in the file; below 1 or null where it was cut off,
      and then the first of the warnings says so;
    - `untraced_step_ns`: mean step by the step counter outside of the capture, where known.
    """
    trace = facts.trace
    window, split, steps, busy = facts.find(Window), facts.find(StepSplit), facts.find(Steps), facts.find(DeviceBusy)
    claims = merge_claims(findings, window, untraced_ns, partial(simulated_together, facts)) if window else []
    joint = simulated_together(facts, findings) if len(claims) > 1 else None
    return {
        "device": shown(trace.device_name),
        "device_kind": trace.device_kind,
        "events": trace.events,
        "covered_frac": trace.covered_frac,
        "saving_unit": (SavingUnit.STEP if window.of_steps else SavingUnit.RECORDING).value if window else None,
        "window_start_ns": window.start_ns if window else None,
        "window_ns": window.window_ns if window else 0,
        "steps": steps.count if steps else 0,
        "step_ns": {
            "mean": steps.mean_ns,
            "min": int(steps.durations_ns.min()),
            "max": int(steps.durations_ns.max()),
        }
        if steps
        else None,
        "untraced_step_ns": untraced_ns,
        "device_busy_ns": busy.spans.measure_ns if busy else None,
        "buckets": {bucket.value: ns for bucket, ns in split.buckets_ns.items()} if split else {},
        "unclaimed_ns": _unclaimed(split, findings) if split else {},
        "claims": claims,
        "joint_saving_frac": joint.value / window.mean_ns
        if joint and window
        else min(1.0, sum(claim["share_frac"] for claim in claims)),
        "warnings": [
            shown(line, 300)
            for line in (*uncovered(trace), *trace.warnings, *_inferred(trace), *_remarks(trace, steps), *notes)
        ],
    }


def _unclaimed(split: StepSplit, findings: Sequence[Finding]) -> dict[str, int]:
    claimed = union_of(finding.claims for finding in findings)
    lost = {bucket: spans for bucket, spans in split.spans.items() if bucket is not Bucket.PRODUCTIVE}
    return {bucket.value: (spans - claimed).measure_ns for bucket, spans in lost.items()}


def uncovered(trace: Trace) -> Iterator[str]:
    """What of the recording cannot be judged because the device's events are missing; first, since it limits the rest.

    See [Note: cut-off files] in trace/coverage.py.
    """
    if trace.covered_frac == 1.0:
        return
    if len(trace.device_events):
        judged_ns = (trace.covered_end_ns or trace.end_ns) - trace.start_ns
        yield (
            f"judged are the first {format_ns(judged_ns)} of {format_ns(trace.span_ns)} recorded "
            f"({format_frac(trace.covered_frac)}): the file is cut off, and of the rest device events are missing"
        )
    elif trace.device_kind == "gpu":
        calls = int(work_calls(trace.names, trace.launches).sum())
        given = f"{plural(calls, 'call')} that gave a device work" if calls else "a header that names a device"
        why = "it is cut off before them" if trace.cut_off else "its profiler recorded none"
        yield f"nothing is judged: the file holds {given}, but no device events; {why}"
    else:
        yield "the file is cut off: what is written last is missing, and whether the job used a device is not known"


def _inferred(trace: Trace) -> Iterator[str]:
    """What is taken for communication though the trace does not say so."""
    if not (trace.device_events.kind == EventKind.COLLECTIVE).any():
        return
    count = kernel_classes(trace).inferred
    if count:
        yield (
            f"{plural(count, 'device event')} counted as communication by name alone; the trace says nothing more of it"
        )


def _remarks(trace: Trace, steps: Steps | None) -> Iterator[str]:
    """What makes the figures mean something else than they seem to."""
    events = trace.device_events
    if trace.device_kind == "cpu" and trace.names.ids(lambda text: text.startswith(ON_GPU)).size:
        yield (
            "judged as a job on the CPU, for the file holds no device events; but it used NCCL, which runs on GPUs: "
            "record them too (ProfilerActivity.CUDA)"
        )
    if steps is None or not (events.launch >= 0).any():
        return
    inside = events.take((events.start_ns >= steps.start_ns) & (events.start_ns < steps.end_ns))
    began_ns = steps.bounds_ns[np.searchsorted(steps.bounds_ns, inside.start_ns, side="right") - 1]
    earlier = (inside.launch < 0) | (trace.launches.start_ns[inside.launch] < began_ns)
    share = int(inside.dur_ns[earlier].sum()) / max(1, int(inside.dur_ns.sum()))
    if share > BEHIND_FRAC:
        yield (
            f"{format_frac(share)} of the device's work within the steps was launched before its step began, or its "
            "launch is not in the file: the device is so far behind the host that it does the work of earlier steps"
        )


def merge_claims(
    findings: list[Finding], window: Window, untraced_ns: int | None = None, together: Together | None = None
) -> list[dict[str, Any]]:
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
    return sorted(found, key=lambda claim: -int(claim["saving_ns"]))


def _claim(group: list[Finding], window: Window, step_ns: int, together: Together | None) -> dict[str, Any]:
    simulated = together(group) if together and len(group) > 1 else None
    if simulated:
        value = min(step_ns, simulated.value * step_ns // window.mean_ns)
        share = value / step_ns
    elif len(group) == 1 and group[0].saving.method is Method.SIMULATED:
        value, share = group[0].saving.value, group[0].share_frac
    else:
        # One finding keeps its own figures to the ns; several are the measure of their union.
        union = union_of(finding.claims for finding in group)
        share = union.measure_ns / window.window_ns
        value = (
            group[0].saving.value if len(group) == 1 else min(step_ns, union.measure_ns * step_ns // window.window_ns)
        )
    low = min(value, max(finding.saving.low for finding in group))
    high = max(value, min(step_ns, sum(finding.saving.high for finding in group)))
    order = list(Method)
    return {
        "rules": sorted({finding.rule for finding in group}),
        "places": sorted({finding.place for finding in group}),
        "saving_ns": value,
        "low_ns": low,
        "high_ns": high,
        "low_frac": low / step_ns,
        "high_frac": high / step_ns,
        "share_frac": share,
        "method": max((finding.saving.method for finding in group), key=order.index).value,
    }


def why_without_steps(facts: Facts) -> str | None:
    """The reason why a trace has no steps; None where it has."""
    steps = facts.get(Steps)
    return steps.reason if isinstance(steps, NotApplicable) else None
