"""Where time can be put into a recording so that its cost is known: the device is idle, and waits for the host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from injection.recording import Recording

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import Verdict, judge_facts
from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.blocking.copies import BlockingCopies
from tightship_analyzers.facts.blocking.host_syncs import HostSyncs
from tightship_analyzers.facts.idle.dispatch_gaps import DispatchGaps
from tightship_analyzers.facts.kernels.collective_calls import CollectiveCalls
from tightship_analyzers.facts.kernels.zero_grads import ZERO_GRAD
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.facts.program.saves import Saves
from tightship_analyzers.facts.window.optimizer_steps import OptimizerSteps
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Int64s, Trace

MAIN_FRAME = "train.py(3): main"
SETTLED_NS = 2_000
"""The device is idle for this long already, so that rounding of clocks does not matter."""


@dataclass(frozen=True)
class Base:
    """A recording as it is, judged, and the moments at which it can be opened."""

    name: str
    text: bytes
    verdict: Verdict
    steps: int
    step_ns: int
    sites: list[Int64s]
    """One array per step: times as the file gives them, ns."""
    thread: tuple[int | str, int | str]
    """pid and tid of the training thread."""
    stream: int
    device: int
    device_name: str
    units: int
    has_device: bool
    dispatch_frac: float
    """Share of the steps that the device waits for launches already, found or not."""
    exposed_frac: float
    """Share of the steps in which communication is exposed already."""


def base_of(path: Path, folder: Path) -> Base | None:
    """The base made of a trace file; None where it has no steps or no such moment."""
    recording = Recording.open(path)
    _with_frame(recording)
    text = recording.text()
    (folder / "base.json").write_bytes(text)
    trace = traces.open(folder / "base.json")
    facts = Facts(trace)
    steps = facts.find(Steps)
    if steps is None:
        return None
    verdict = judge_facts(facts)
    moments = _moments(facts, trace)
    sites = [
        moments[(moments >= low) & (moments < high)] - trace.base_ns
        for low, high in zip(steps.bounds_ns[:-1].tolist(), steps.bounds_ns[1:].tolist(), strict=True)
    ]
    if not all(len(one) for one in sites):
        return None
    thread = trace.threads[steps.tid]
    kernels = trace.device_events
    first = int(np.bincount(np.maximum(kernels.stream, 0)).argmax()) if len(kernels) else 7
    properties = trace.properties.get("deviceProperties") or [{}]
    return Base(
        name=path.name.split(".")[0],
        text=text,
        verdict=verdict,
        steps=steps.count,
        step_ns=steps.mean_ns,
        sites=sites,
        thread=(thread.pid, thread.tid),
        stream=first,
        device=int(kernels.device[0]) if len(kernels) else 0,
        device_name=trace.device_name,
        units=int(properties[0].get("numSms") or 0),
        has_device=trace.device_kind == "gpu",
        dispatch_frac=dispatch.spans.measure_ns / steps.window_ns if (dispatch := facts.find(DispatchGaps)) else 0.0,
        exposed_frac=calls.exposed.measure_ns / steps.window_ns if (calls := facts.find(CollectiveCalls)) else 0.0,
    )


def _with_frame(recording: Recording) -> None:
    """A recording without stacks gets the frame of its main function, so that calls can be put under it."""
    if any(event.get("cat") == "python_function" for event in recording.events):
        return
    marks = [
        event
        for event in recording.events
        if event.get("cat") == "user_annotation" and str(event.get("name")).startswith(("ProfilerStep#", "Optimizer."))
    ]
    if marks:
        args = {"Python id": 1, "Python parent id": None}
        where = {"pid": marks[0]["pid"], "tid": marks[0]["tid"]}
        start, end = int(recording.start_ns.min()) - 1000, int(recording.end_ns.max()) + 1000
        recording.add(start, end, cat="python_function", name=MAIN_FRAME, **where, args=args)


def _moments(facts: Facts, trace: Trace) -> Int64s:
    """Starts of outermost operators of the training thread that launch what ends a gap, within the gap."""
    tree, gaps, steps = facts[OpTree], facts[DeviceGaps].spans, facts[Steps]
    top = tree.top
    top = top.take(top.tid == steps.tid)
    taken = Intervals.of_table(trace.annotations_named(ZERO_GRAD))
    optimizer, loader, saves = facts.find(OptimizerSteps), facts.find(LoaderRanges), facts.find(Saves)
    taken = taken | (Intervals.of_table(optimizer.calls) if optimizer else Intervals.none())
    taken = taken | (loader.spans if loader else Intervals.none()) | (saves.spans if saves else Intervals.none())
    # Not at the edge of a range either: what begins with it would move, and what ends with it would grow.
    taken = Intervals.of(taken.start_ns - 1000, taken.end_ns + 1000)
    if trace.device_kind == "cpu":
        begins = top.start_ns[gaps.contains(top.start_ns - 1)]
        return np.unique(begins[~taken.contains(begins)])
    events, launches = trace.device_events, trace.launches
    first = np.searchsorted(events.start_ns, gaps.end_ns)
    known = first < len(events)
    first, begun = first[known], gaps.start_ns[known]
    linked = events.launch[first] >= 0
    first, begun = first[linked], begun[linked]
    call = events.launch[first]
    mine = launches.tid[call] == steps.tid
    called, begun = launches.start_ns[call[mine]], begun[mine]
    at = np.searchsorted(top.start_ns, called, side="right") - 1
    inside = (at >= 0) & (top.end_ns[at] > called)
    begins, begun = top.start_ns[at[inside]], begun[inside]
    settled = begins >= begun + SETTLED_NS
    # After a wait for the device what is put in would be that wait's fault as well: without it the host would be ahead.
    for kind in (HostSyncs, BlockingCopies):
        waits = facts.find(kind)
        if waits is not None:
            calls = waits.calls if isinstance(waits, HostSyncs) else waits
            settled &= Intervals.of(calls.start_ns, calls.end_ns).overlap_ns(begun - SETTLED_NS, begins) == 0
    begins = begins[settled]
    return np.unique(begins[~taken.contains(begins)])
