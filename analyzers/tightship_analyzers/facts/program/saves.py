"""When the training thread was writing a checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_analyzers.trace.model import Frames
from tightship_analyzers.trace.names import matcher

SAVE_FRAMES = re.compile(
    r"""torch/serialization\.py\(\d+\):\ (save|_save|_legacy_save)
    |torch/distributed/checkpoint/.*\(\d+\):\ (save|save_state_dict|async_save)
    |torch/distributed/_shard/checkpoint/.*\(\d+\):\ save_state_dict
    |safetensors/torch\.py\(\d+\):\ (save_file|save_model)
    |<built-in\ function\ (serialize_file|dump)>        # safetensors; pickle.dump
    |pickle\.py\(\d+\):\ _?dump
    |joblib/numpy_pickle\.py\(\d+\):\ dump
    |numpy/lib/[\w/]+\.py\(\d+\):\ (save|savez|savez_compressed)""",
    re.VERBOSE,
)
OPENING = re.compile(r"<built-in function open>")
"""Of a file that is there already it frees what that holds."""
CLOSING = re.compile(
    r"<built-in function (fsync|fdatasync|replace|rename)>|<built-in method (__exit__|close|flush) of _io\."
)


@dataclass(frozen=True, slots=True, eq=False)
class Saves:
    """Calls that serialise state to a file: torch, torch.distributed.checkpoint, safetensors, pickle, joblib, numpy.

    What opens the file before such a call, and what flushes, closes and renames it after, is part of the save, where
    no more than the call's own time lies between.
    """

    needs: ClassVar[Needs] = (ThreadFrames, Window)

    calls: Frames
    """Outermost ones, within the window."""
    spans: Intervals
    """Their time and that of opening and closing the files, clipped to the window."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Saves leave no trace but their Python frames."""
        stacks, window = facts[ThreadFrames], facts[Window]
        frames = stacks.frames
        calls = frames.take(facts.trace.names.mask(frames.name, matcher(SAVE_FRAMES)))
        latest = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(calls.end_ns)))[: len(calls)]
        calls = calls.take(calls.end_ns > latest).overlapping(window.start_ns, window.end_ns)
        opened, closed = (frames.take(facts.trace.names.mask(frames.name, matcher(of))) for of in (OPENING, CLOSING))
        long_ns = calls.end_ns - calls.start_ns
        ready = Intervals.of(calls.start_ns - long_ns, calls.start_ns + 1).contains(opened.end_ns)
        done = Intervals.of(calls.end_ns, calls.end_ns + long_ns).contains(closed.start_ns)
        files = (Intervals.of_table(opened.take(ready)), Intervals.of_table(closed.take(done)))
        spans = union_of((Intervals.of_table(calls), *files))
        return cls(calls=calls, spans=spans.clip(window.start_ns, window.end_ns))
