"""When the training thread was inside its data loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals

LOADER = "enumerate(DataLoader)#"
_MULTI_PROCESS = "_MultiProcessing"


@dataclass(frozen=True, slots=True, eq=False)
class LoaderRanges:
    """Calls of `next` on a DataLoader, as torch annotates them (`enumerate(DataLoader)#<iterator>.__next__`)."""

    needs: ClassVar[Needs] = (Window,)

    spans: Intervals
    """Within the window; empty when the program loads its data otherwise or no call fell into the window."""
    calls: int
    """Batches fetched within the window."""
    in_process: bool
    """The batches are made in the training process itself (`num_workers=0`)."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs no stacks."""
        window = facts[Window]
        ranges = facts.trace.annotations_named(LOADER)
        ranges = ranges.take(ranges.tid == window.tid).overlapping(window.start_ns, window.end_ns)
        names = {facts.trace.names[number] for number in set(ranges.name.tolist())}
        return cls(
            spans=Intervals.of_table(ranges).clip(window.start_ns, window.end_ns),
            calls=len(ranges),
            in_process=bool(names) and not any(_MULTI_PROCESS in name for name in names),
        )
