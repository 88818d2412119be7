"""The summary of one analyzed trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tightship_analyzers.facts.activity.device_busy import DeviceBusy
from tightship_analyzers.facts.activity.profiler_pauses import ProfilerPauses
from tightship_analyzers.facts.idle.step_split import StepSplit
from tightship_analyzers.facts.idle.unrecorded import Unrecorded
from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.program.frames import place_of
from tightship_analyzers.facts.program.saves import Saves
from tightship_analyzers.facts.roofline.measured import Roofline
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.recording import Recording
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import NOISE_FRAC, Finding
from tightship_analyzers.findings.overlap import merge_claims
from tightship_analyzers.findings.savings import distrust, simulated_together
from tightship_analyzers.metrics.kernel_classes import kernel_classes
from tightship_analyzers.trace.coverage import work_calls
from tightship_analyzers.trace.intervals import union_of
from tightship_analyzers.trace.model import EventKind, Trace
from tightship_platform.results.analysis import rank as public
from tightship_platform.results.analysis.rank import StepLength, TraceSummary
from tightship_platform.text import shown
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import Bucket, SavingUnit

WORTH_FRAC = 0.05
"""Share of the recording below which its start is not worth a line."""

HOW_TO_RECORD = "record some seconds of the job at work: `tightship profile RUN --duration 5s`"

ON_GPU = "nccl:"
"""How torch names the ranges of that back end's collectives."""


def summarize(facts: Facts, findings: list[Finding], notes: list[str], untraced_ns: int | None = None) -> TraceSummary:
    """Sum up one trace: what was judged, where its time went, and what the findings claim of it."""
    trace, recording = facts.trace, facts[Recording]
    window, split, steps, busy = facts.find(Window), facts.find(StepSplit), facts.find(Steps), facts.find(DeviceBusy)
    roofline = facts.find(Roofline)
    priced = [finding for finding in findings if finding.saving.high]
    claims = merge_claims(priced, window, untraced_ns, partial(simulated_together, facts)) if window else []
    joint = simulated_together(facts, priced) if len(claims) > 1 else None
    unrecorded = facts.find(Unrecorded)
    if recording.unfit is not None:
        split = unrecorded = None
    of_kind = (*_of_kind(trace, recording, steps), *_incomplete(unrecorded), *_of_stacks(facts))
    remarks = (*_inferred(trace), *_of_device(facts), *_remarks(trace, steps))
    warnings = (*uncovered(trace), *of_kind, *trace.warnings, *remarks, *notes)
    return TraceSummary(
        device=shown(trace.device_name),
        device_kind=trace.device_kind,
        events=trace.events,
        covered_frac=trace.covered_frac,
        recording=public.Recording(
            graph_captures=recording.captures,
            captured_frac=recording.captured_frac,
            unseen_ns=recording.unseen_until_ns - trace.start_ns,
            starting_ns=recording.starting_ns,
            unrecorded_ns=unrecorded.ns if unrecorded else None,
            distrust=distrust(facts) if split else None,
            unfit=recording.unfit,
            profiling_ns=sum(spans.measure_ns for spans in facts[ProfilerPauses].by_thread.values()),
        ),
        saving_unit=_unit(window, recording),
        window_start_ns=window.start_ns if window else None,
        window_ns=window.window_ns if window else 0,
        steps=steps.count if steps else 0,
        step_ns=_lengths(steps) if steps else None,
        untraced_step_ns=untraced_ns,
        device_busy_ns=busy.spans.measure_ns if busy else None,
        buckets={bucket.value: ns for bucket, ns in split.buckets_ns.items()} if split else {},
        unclaimed_ns=_unclaimed(split, findings) if split else {},
        claims=claims,
        joint_saving_frac=joint.value / window.mean_ns
        if joint and window
        else min(1.0, sum(claim.share_frac for claim in claims)),
        warnings=[shown(line, 300) for line in warnings],
        recorded_ns=trace.span_ns,
        saved_ns=_saved(facts, window),
        mfu_frac=roofline.mfu_frac if roofline is not None and split else None,
    )


def _unit(window: Window | None, recording: Recording) -> str | None:
    if window is None or recording.unfit is not None:
        return None
    return (SavingUnit.STEP if window.of_steps else SavingUnit.RECORDING).value


def _of_kind(trace: Trace, recording: Recording, steps: Steps | None) -> Iterator[str]:
    """What kind of recording it is, where that limits what can be said."""
    if recording.unfit is not None:
        yield f"nothing is judged; {HOW_TO_RECORD}"
    elif recording.starting_ns >= WORTH_FRAC * trace.span_ns:
        yield (
            f"{format_ns(recording.starting_ns)} of {format_ns(trace.span_ns)} are first calls that create the "
            "device's context and load libraries, once a run; for steady figures record after a warm-up"
        )
    unseen_ns = recording.unseen_until_ns - trace.start_ns
    if unseen_ns:
        judged = "judged are the steps that begin after that" if steps else "judged is what follows"
        yield (
            f"for its first {format_ns(unseen_ns)} the device ran earlier work that is not in the file, as of a window "
            f"cut out of a longer recording; {judged}"
        )


def _incomplete(unrecorded: Unrecorded | None) -> Iterator[str]:
    """What the file lacks of the device's work, where that is much."""
    if unrecorded is not None and unrecorded.distrust is not None:
        yield (
            f"{unrecorded.distrust} (nodes of captured graphs without a record, events that were taken out, another "
            "process): busy time is a lower end; record again, whole and with a current PyTorch"
        )


def _of_stacks(facts: Facts) -> Iterator[str]:
    """How far recording Python stacks made the recording another one."""
    profiler = facts[ProfilerPauses]
    added_ns = sum(spans.measure_ns for spans in profiler.by_thread.values())
    if added_ns < NOISE_FRAC * facts.trace.span_ns:
        return
    worst = max(profiler.slowed, key=lambda frame: frame.added.measure_ns)
    calls = sum(frame.name == worst.name for frame in profiler.slowed)
    place = place_of(facts.trace.names[worst.name]) if worst.name >= 0 else ""
    yield (
        f"recording Python stacks took {format_ns(added_ns)} of the host by itself; no saving counts it"
        f"{_unprofiled(facts)}; record again without stacks. In {plural(calls, 'call')} of {place or 'a function'} "
        f"the pauses between calls grow from {format_ns(worst.first_ns)} to {format_ns(worst.last_ns)}"
    )


def _unprofiled(facts: Facts) -> str:
    """How long the judged time would be without that."""
    graph, window = facts.find(DependencyGraph), facts.find(Window)
    if graph is None or window is None or graph.distrust is not None:
        return ""
    whole = "step" if window.of_steps else "recording"
    return (
        f", and without it a {whole} would take about {format_ns(window.mean_ns - graph.profiling_ns // window.count)}"
    )


def _saved(facts: Facts, window: Window | None) -> int | None:
    """End of the last save that was complete."""
    saves = facts.find(Saves)
    if saves is None or window is None:
        return None
    done = saves.calls.end_ns[saves.calls.end_ns <= window.end_ns]
    return int(done.max()) if done.size else None


def _lengths(steps: Steps) -> StepLength:
    return StepLength(mean=steps.mean_ns, min=int(steps.durations_ns.min()), max=int(steps.durations_ns.max()))


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


def _of_device(facts: Facts) -> Iterator[str]:
    """For which device it is taken, where its name is none that is listed."""
    model = facts.find(DeviceModel)
    if model is not None and model.inferred is not None:
        yield f"the device is taken for {model.device.id} {model.inferred}"


def _remarks(trace: Trace, steps: Steps | None) -> Iterator[str]:
    """What makes the figures mean something else than they seem to."""
    if trace.device_kind == "cpu" and trace.names.ids(lambda text: text.startswith(ON_GPU)).size:
        yield (
            "judged as a job on the CPU, for the file holds no device events; but it used NCCL, which runs on GPUs: "
            "record them too (ProfilerActivity.CUDA)"
        )
    if steps is not None and steps.lag_ns:
        yield (
            f"steps are counted on the device, which finishes them up to {format_ns(steps.lag_ns)} after the host "
            "has launched them"
        )


def why_without_steps(facts: Facts) -> str | None:
    """The reason why a trace has no steps; None where it has."""
    steps = facts.get(Steps)
    return steps.reason if isinstance(steps, NotApplicable) else None
