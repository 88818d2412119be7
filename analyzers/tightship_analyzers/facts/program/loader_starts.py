"""When the training thread started and ended the workers of its data loader."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.program.loader_ranges import LOADER
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Frames, Int64s
from tightship_analyzers.trace.names import matcher

ITERATION = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __iter__")
RESET = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): _reset")
ENDING = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): _shutdown_workers")
PROCESS = re.compile(r"multiprocessing/process\.py\(\d+\): start")


@dataclass(frozen=True, slots=True, eq=False)
class LoaderStarts:
    """A loader whose workers end with each iteration (`persistent_workers=False`), within the window.

    [Note: new workers] Such a loader starts a process per worker when an iteration begins, gives them their first
    batches to make (`_reset`), and waits for the processes when the iteration ends. Workers that stay need neither the
    starts nor the ends. The first batch is made after `_reset` in any case; what its fetch takes beyond an ordinary one
    is the workers' own start, and making a batch with nobody ahead.
    """

    needs: ClassVar[Needs] = (ThreadFrames, Window)

    count: int
    """Iterations that began by starting processes; 0 where none ended: it may be the only one."""
    spans: Intervals
    """Starting processes, up to `_reset`, and waiting for their end."""
    first_fetches: Intervals
    """Of each iteration that started processes."""
    unhidden: Intervals
    """The first fetch of every iteration, with processes started or without: nobody makes that batch ahead."""
    late: Intervals
    """What those of `first_fetches` take beyond the median of the other fetches."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """From the frames of torch's loader on the training thread."""
        window, names = facts[Window], facts.trace.names
        frames = facts[ThreadFrames].frames
        frames = frames.take(frames.tid == window.tid).overlapping(window.start_ns, window.end_ns)

        def calls(pattern: re.Pattern[str]) -> Frames:
            return frames.take(names.mask(frames.name, matcher(pattern)))

        iterated, started, ended = calls(ITERATION), calls(PROCESS), calls(ENDING)
        begun = iterated.take(Intervals.of_table(started).meets(iterated.start_ns, iterated.end_ns))
        fetches = facts.trace.annotations_named(LOADER)
        fetches = fetches.take(fetches.tid == window.tid).overlapping(window.start_ns, window.end_ns)
        # Samplers iterate within a fetch.
        iterated = iterated.take(~Intervals.of_table(fetches).contains(iterated.start_ns))
        first, first_of_any = (_first_after(fetches.start_ns, ends_ns) for ends_ns in (begun.end_ns, iterated.end_ns))
        others = np.delete(np.arange(len(fetches)), first)
        ordinary_ns = int(np.median(fetches.dur_ns[others])) if len(others) else 0
        start_ns, end_ns = fetches.start_ns[first], fetches.end_ns[first]
        starting = Intervals.of(begun.start_ns, _first_within(begun, calls(RESET)))
        return cls(
            count=len(begun) if len(ended) else 0,
            spans=(starting | Intervals.of_table(ended)).clip(window.start_ns, window.end_ns),
            first_fetches=Intervals.of(start_ns, end_ns).clip(window.start_ns, window.end_ns),
            unhidden=Intervals.of_table(fetches.take(first_of_any)).clip(window.start_ns, window.end_ns),
            late=Intervals.of(start_ns, end_ns - ordinary_ns).clip(window.start_ns, window.end_ns),
        )


def _first_within(outer: Frames, inner: Frames) -> Int64s:
    """For each call when the first of the other calls in it begins, else its end."""
    starts = np.append(np.sort(inner.start_ns), np.iinfo(np.int64).max)
    found: Int64s = np.minimum(starts[np.searchsorted(starts, outer.start_ns)], outer.end_ns)
    return found


def _first_after(starts_ns: Int64s, ends_ns: Int64s) -> Int64s:
    """Rows of the first that starts after each end."""
    rows = np.unique(np.searchsorted(starts_ns, ends_ns))
    kept: Int64s = rows[rows < len(starts_ns)]
    return kept
