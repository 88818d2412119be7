"""The difference of two traces, or of two folders of them, as `tightship diff --json` prints it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DiffSide:
    """One side of the comparison."""

    path: str
    """As given."""
    traces: list[str]
    """What was read: the file itself, or the traces in the folder."""
    steps: int | None
    """Counted in the rows, of all traces together; null where one of them marks none."""
    devices: list[str]
    """Models of the devices, each once."""
    step_ns: int | None
    """Mean step; null where no trace holds a whole one."""
    judged_steps: int
    """Whole steps that `step_ns` and `parts_ns` are of."""
    parts_ns: dict[str, int]
    """Bucket → ns of those steps; buckets of 0 ns are left out."""
    skipped: list[str]
    """Files of a folder that are no traces, one line each."""
    warnings: list[str]
    """What was wrong with traces that were read all the same, one line each."""


@dataclass(frozen=True, kw_only=True)
class DiffTotal:
    """Calls of one name on one side, in exact integers."""

    count: int
    """Calls."""
    host_ns: int
    """On the host, with what they enclose."""
    device_ns: int
    """Of the device events; of an operator or module, of those launched within it."""


@dataclass(frozen=True, kw_only=True)
class DiffChange:
    """One kernel, operator or module on both sides."""

    part: str
    """`kernel`, `operator` or `module`."""
    name: str
    """Whole."""
    change: str
    """`appeared`, `vanished`, `grew`, `shrank` or `same`, by the time per unit."""
    before: DiffTotal
    """On the first side."""
    after: DiffTotal
    """On the second side."""
    before_ns_per_unit: float
    """Time on the first side, of the device for kernels and of the host else."""
    after_ns_per_unit: float
    """The same on the second side."""
    growth_ns_per_unit: float
    """After less before."""
    within: str | None
    """Name of what encloses each of its calls and changed in the same way; null where nothing does."""


@dataclass(frozen=True, kw_only=True)
class DiffReport:
    """Two sides, and how they differ."""

    before: DiffSide
    """The first side."""
    after: DiffSide
    """The second side."""
    unit: str
    """What times are given per."""
    absent: list[str]
    """Parts that neither side holds."""
    rows: list[DiffChange]
    """Every name that either side holds."""
