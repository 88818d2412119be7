"""When the training thread was writing a checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
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


@dataclass(frozen=True, slots=True, eq=False)
class Saves:
    """Calls that serialise state to a file: torch, torch.distributed.checkpoint, safetensors, pickle, joblib, numpy."""

    needs: ClassVar[Needs] = (ThreadFrames, Window)

    calls: Frames
    """Outermost ones, within the window."""
    spans: Intervals
    """Their time, clipped to the window."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Saves leave no trace but their Python frames."""
        stacks, window = facts[ThreadFrames], facts[Window]
        frames = stacks.frames
        calls = frames.take(facts.trace.names.mask(frames.name, matcher(SAVE_FRAMES)))
        latest = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(calls.end_ns)))[: len(calls)]
        calls = calls.take(calls.end_ns > latest).overlapping(window.start_ns, window.end_ns)
        return cls(calls=calls, spans=Intervals.of_table(calls).clip(window.start_ns, window.end_ns))
