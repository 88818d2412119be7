"""When a run held a device and nothing at all happened: neither device activity nor steps.

The raw material is one row per device and minute, made by the database from samples, so that a run of a week at one
sample a second is ten thousand rows, not six hundred thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tightship_analyzers.facts.run.memory import DeviceMemory, RunEnd

MINUTE_NS = 60_000_000_000

MAX_ACTIVITY_FRAC = 0.05
"""A minute whose busiest sample stays below this is idle: the cut that studies of real fleets use for "does nothing"
(below 5 % duty cycle; Alibaba's cluster-trace-v2026-GenAI shows 67 % of its samples at exactly zero)."""

MIN_WINDOW_NS = MINUTE_NS
"""Shorter pauses (evaluation, a restart of the loader) are not worth giving a device back."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DeviceMinute:
    """The samples of one held device within one minute of UTC."""

    device: int
    start_ns: int
    """A multiple of MINUTE_NS."""
    samples: int
    """Samples with a known activity."""
    max_activity_frac: float
    """Highest activity among them: the device's utilisation by the run; on a `cpu` device, cores in use (1.0 = one)."""


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """What samples and steps tell of one run."""

    held: dict[int, list[Span]]
    """Device → when it was held."""
    device_names: dict[int, str]
    """Device → `host/uuid`."""
    minutes: list[DeviceMinute] = field(default_factory=list)
    stepped: set[int] = field(default_factory=set)
    """Starts of the minutes in which any rank completed a step."""
    first_step_ns: int | None = None
    active_ns: Mapping[int, int] = field(default_factory=dict)
    """Device → its first sample with activity; those that were never active are missing."""
    workflow: str = ""
    memory: Mapping[int, DeviceMemory] = field(default_factory=dict)
    """Accelerator → how full it was; those without samples of memory are missing."""
    end: RunEnd | None = None
    """Only of a run that failed."""
    account: Mapping[str, int] = field(default_factory=dict)
    """Bucket → device-ns, as last accounted."""

    @property
    def device_ns(self) -> int:
        """Device time that the run held altogether."""
        return sum(max(0, end - start) for spans in self.held.values() for start, end in spans)


def active_from(held: Span, active_ns: int | None) -> int:
    """End of the start-up of a run without steps on a device that it held; where it was never active, there was none.

    :param active_ns: when the device was first active; None: never.
    """
    begun, ended = held
    return active_ns if active_ns is not None and begun <= active_ns < ended else begun


def held_idle(history: RunHistory) -> dict[int, list[Span]]:
    """Device → when it was held idle: disjoint, ascending, each at least MIN_WINDOW_NS long.

    A minute without samples is not idle but unknown. Time before the first step is start-up, not idleness; so is, in a
    run that makes no steps, time before the device was first active. One that never was is held idle from the start.
    """
    idle: dict[int, list[Span]] = {}
    for device, spans in history.held.items():
        starts = sorted(m.start_ns for m in history.minutes if m.device == device and _is_idle(m, history.stepped))
        windows = []
        for held_start, held_end in spans:
            if history.first_step_ns is None:
                begin = active_from((held_start, held_end), history.active_ns.get(device))
            else:
                begin = max(held_start, history.first_step_ns)
            for start, end in _join(starts):
                clipped = max(start, begin), min(end, held_end)
                if clipped[1] - clipped[0] >= MIN_WINDOW_NS:
                    windows.append(clipped)
        if windows:
            idle[device] = sorted(windows)
    return idle


def sampled_spans(history: RunHistory) -> dict[int, list[Span]]:
    """Device → the minutes for which there are samples of its activity: disjoint, ascending."""
    devices = {minute.device for minute in history.minutes if minute.samples}
    return {
        device: list(_join(sorted(m.start_ns for m in history.minutes if m.device == device and m.samples)))
        for device in devices
    }


def _is_idle(minute: DeviceMinute, stepped: set[int]) -> bool:
    return minute.samples > 0 and minute.max_activity_frac < MAX_ACTIVITY_FRAC and minute.start_ns not in stepped


def _join(starts: Iterable[int]) -> list[Span]:
    windows: list[Span] = []
    for start in starts:
        if windows and windows[-1][1] == start:
            windows[-1] = (windows[-1][0], start + MINUTE_NS)
        else:
            windows.append((start, start + MINUTE_NS))
    return windows
