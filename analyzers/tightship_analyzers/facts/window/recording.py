"""What a trace shows, before anything in it is judged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.window.first_calls import first_calls
from tightship_analyzers.trace.coverage import work_calls
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.step_marks import OPTIMIZER, PROFILER
from tightship_platform.units import format_frac, format_ns, plural

BEGIN_CAPTURE = re.compile(r"(cuda|hip|cu)StreamBeginCapture\w*")
END_CAPTURE = re.compile(r"(cuda|hip|cu)StreamEndCapture\w*")

CAPTURE_FRAC = 0.5
"""Share of the launches within graph captures from which a recording is one of capturing."""

STARTING_FRAC = 0.5
"""Share of the recording in first calls from which it is one of a start."""

LATE_NS = 1_000_000
"""Work that begins so long after its call returned, on a device of which the file shows nothing, waited for other work.
Source: on an empty device work begins within 0.01 ms of its call, or during it, in all reference traces (V100, A100,
H100, B200, MI250, MI300X); where a recording was cut from a longer one it waits for 7.8 and 149 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What kind of recording the trace is, and what of the device's work it cannot show.

    [Note: cut from a longer recording] Tools cut single steps out of a recording, and profilers start while the device
    works. Then the device does, for a while, what the file does not hold, and looks idle. It shows in the first work of
    all: it was launched and queued, and the device, idle as it seems, did not begin it. Until then nothing is known of
    the device, and nothing is judged: neither steps that begin before, nor the recording as a whole.
    """

    needs: ClassVar[Needs] = ()

    captures: int
    """Captures of graphs; what is launched in them does not run."""
    captured_frac: float
    """Share of the launches that were captured."""
    unseen_until_ns: int
    """Until then the device ran work that is not in the file; the start of the trace where it ran none."""
    starting_ns: int
    """Time in calls that start the process up on its device."""
    starting_frac: float
    """Its share of the recording; 0 where steps are marked, which are judged without it."""
    seen_ns: int | None
    """From then to the end of the device's work; None where all of its work is in the file."""

    @property
    def unfit(self) -> str | None:
        """Why no verdict can rest on it; None where one can."""
        if self.captured_frac >= CAPTURE_FRAC:
            return (
                f"it shows {plural(self.captures, 'graph')} being captured, not the job as it runs: "
                f"{format_frac(self.captured_frac)} of its launches ran nothing"
            )
        if self.starting_frac >= STARTING_FRAC:
            return (
                f"{format_ns(self.starting_ns)} of it ({format_frac(self.starting_frac)}) are first calls that create "
                "the device's context and load libraries, once a run: it shows a start, not the job at work"
            )
        if self.seen_ns is not None and self.seen_ns < LATE_NS:
            return (
                f"it holds {format_ns(self.seen_ns)} of the device's work, after earlier work that is not in the file"
            )
        return None

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """From the runtime's calls and the first work of the device."""
        trace = facts.trace
        captured, unseen_until_ns = captured_spans(trace), _unseen_until_ns(trace)
        starting_ns = first_calls(trace).measure_ns
        marks_steps = trace.names.mask(
            trace.annotations.name, lambda name: name.startswith((PROFILER, OPTIMIZER))
        ).any()
        is_cut = unseen_until_ns > trace.start_ns
        return cls(
            captures=len(captured),
            captured_frac=_captured_frac(trace, captured),
            unseen_until_ns=unseen_until_ns,
            starting_ns=starting_ns,
            starting_frac=0.0 if marks_steps else starting_ns / (trace.span_ns or 1),
            seen_ns=int(trace.device_events.end_ns.max()) - unseen_until_ns if is_cut else None,
        )


def captured_spans(trace: Trace) -> Intervals:
    """From each begin of a capture to the next end of one by the same thread; to the end of the trace where none is."""
    calls = trace.launches
    begins = calls.take(trace.names.mask(calls.name, matcher(BEGIN_CAPTURE)))
    if not len(begins):
        return Intervals.none()
    ends = calls.take(trace.names.mask(calls.name, matcher(END_CAPTURE)))
    end_ns = np.full(len(begins), trace.end_ns, dtype=np.int64)
    for tid in np.unique(begins.tid).tolist():
        own = begins.tid == tid
        known = np.append(np.sort(ends.end_ns[ends.tid == tid]), trace.end_ns)
        end_ns[own] = known[np.searchsorted(known[:-1], begins.start_ns[own], side="right")]
    return Intervals.of(begins.start_ns, end_ns)


def _captured_frac(trace: Trace, captured: Intervals) -> float:
    if not len(captured):
        return 0.0
    calls = trace.launches.take(work_calls(trace.names, trace.launches))
    return float(captured.contains(calls.start_ns).mean()) if len(calls) else 0.0


def _unseen_until_ns(trace: Trace) -> int:
    events, calls = trace.device_events, trace.launches
    if not len(events) or events.launch[0] < 0:
        return trace.start_ns
    first_ns, launched_ns = int(events.start_ns[0]), int(calls.end_ns[events.launch[0]])
    return first_ns if first_ns - launched_ns > LATE_NS else trace.start_ns
