"""The distinct names of a trace by what bears them: what a rule looks at before it derives anything."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Names


@dataclass(frozen=True, slots=True, eq=False)
class SeenNames:
    """Frames apart: a trace with stacks has far more names of functions than of anything else."""

    needs: ClassVar[Needs] = ()

    events: tuple[str, ...]
    """Of operators, annotations, runtime calls and device events."""
    frames: tuple[str, ...]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs nothing."""
        trace = facts.trace
        columns = (trace.host_ops.name, trace.annotations.name, trace.launches.name, trace.device_events.name)
        numbers = numbers_in(np.concatenate([numbers_in(column) for column in columns]))
        return cls(_texts(trace.names, numbers.tolist()), _texts(trace.names, numbers_in(trace.frames.name).tolist()))

    def show(self, sign: re.Pattern[str], *, in_frames: bool) -> bool:
        """Does any name match?"""
        return any(map(sign.search, self.events)) or (in_frames and any(map(sign.search, self.frames)))


def _texts(names: Names, numbers: list[int]) -> tuple[str, ...]:
    return tuple(names[number] for number in numbers if number >= 0)
