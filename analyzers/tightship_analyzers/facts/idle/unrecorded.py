"""What the device did that the file does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers.facts.idle.causes import Cause, IdleCauses
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.window.window import Window
from tightship_platform.units import format_frac
from tightship_platform.vocabulary import SavingUnit

MAX_FRAC = 0.02
"""Share of the window up to which the figures stand as they are; as far may a simulation be off (MAX_ERROR_FRAC)."""


@dataclass(frozen=True, slots=True, eq=False)
class Unrecorded:
    """Time within the window in which the device looks idle and was not.

    [Note: missing device work] A device that has work queued begins it within microseconds. Where it looks idle for a
    millisecond and more instead, it did what the file does not hold: nodes of a captured graph that left no record,
    events that a tool took out, the work of another process. So the recorded busy time is a lower end.
    Source: the complete ones of the reference traces have no such gap beyond 0.1 ms; in the three that lack events they
    are 16 to 57 % of the time.
    """

    needs: ClassVar[Needs] = (IdleCauses, Window)

    ns: int
    frac: float
    """Of the window."""
    unit: SavingUnit

    @property
    def distrust(self) -> str | None:
        """Why no saving is sure; None where the file holds all, or nearly."""
        if self.frac <= MAX_FRAC:
            return None
        return f"for {format_frac(self.frac)} of the {self.unit.whole} the device did what the file does not hold"

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """From the causes of idle time."""
        window = facts[Window]
        ns = facts[IdleCauses].window.spans(Cause.UNRECORDED).measure_ns
        return cls(ns, ns / window.window_ns, SavingUnit.STEP if window.of_steps else SavingUnit.RECORDING)
