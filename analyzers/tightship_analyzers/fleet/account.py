"""A run's device time, split into buckets that sum to it exactly. Pure functions over integers.

[Note: account] docs/account.md has the definitions. Every allocation (a device held from one instant to another) is cut
by time:

- before the first step: startup;
- after the last step, once the run has ended: shutdown;
- stretches in which the device was held idle (see facts/run/held_idle.py), never between the start and a first step;
- the rest is the stepping phase. What of it a failed run did after its last checkpoint is lost. What remains is split
  as the run's traces say, in proportion to what they saw in each bucket. Without a trace nobody knows what happened in
  it: unexplained.

A run that makes no steps (what serves, or trains without an optimizer of torch) has a start-up, too: until its device
was first active. Nothing tells its shutdown. All that is neither start-up nor held idle is split as its recordings say,
if one of them was judged as a whole; else it is unexplained.

A run that is over and has never started is not cut: what its samples speak for is never_started, the rest unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tightship_analyzers.facts.run.held_idle import active_from
from tightship_platform.results.run_account import OF_NO_WORK
from tightship_platform.vocabulary import Bucket

Span = tuple[int, int]
"""Half-open interval of UTC ns."""

NOT_STEPPING = OF_NO_WORK - {Bucket.LOST}


@dataclass(frozen=True, kw_only=True)
class Held:
    """One device held by the run for an interval."""

    device: int
    start_ns: int
    end_ns: int
    idle: Sequence[Span] = field(default=())
    """When the device was held idle: disjoint, ascending."""
    sampled: Sequence[Span] = field(default=())
    """When samples speak of the device's activity: disjoint, ascending. Empty: nobody knows whether it was active."""
    active_ns: int | None = None
    """The first sample with activity; null: none is known."""

    @property
    def device_ns(self) -> int:
        """Length of the interval; 0 for one that ends before it starts."""
        return max(0, self.end_ns - self.start_ns)


@dataclass(frozen=True, kw_only=True)
class Phases:
    """What the step counter and the end say about the run."""

    first_step_ns: int | None = None
    """End of the first step of any rank."""
    last_step_ns: int | None = None
    """End of the last step of any rank."""
    ended: bool = False
    """The run is over: what follows the last step is shutdown, not the next step."""
    loses_work: bool = False
    """It failed: what it did after its last checkpoint is lost."""
    saved_ns: int | None = None
    """End of its last checkpoint; null: none was seen."""


def account(held: Iterable[Held], phases: Phases, traced_ns: Mapping[str, int]) -> dict[Bucket, int]:
    """Device-ns per bucket; the values sum to the `device_ns` of `held` exactly, buckets without time are left out.

    `traced_ns`: ns per bucket as the run's traces saw them, together.
    """
    weights = {Bucket(name): ns for name, ns in traced_ns.items() if ns > 0}
    held = [one for one in held if one.device_ns]
    totals: dict[Bucket, int] = {}
    if _has_never_started(held, phases, weights):
        for one in held:
            sampled = _measure(_clip(one.sampled, one.start_ns, one.end_ns))
            _add(totals, Bucket.NEVER_STARTED, sampled)
            _add(totals, Bucket.UNEXPLAINED, one.device_ns - sampled)
        return totals
    stepping = 0
    for one in held:
        if phases.first_step_ns is None:
            working_from = active_from((one.start_ns, one.end_ns), one.active_ns)
        else:
            working_from = max(one.start_ns, phases.first_step_ns)
        idle = _clip(one.idle, working_from, one.end_ns)
        _add(totals, Bucket.HELD_IDLE, _measure(idle))
        rest = _complement(idle, one.start_ns, one.end_ns)
        if phases.first_step_ns is None:
            _add(totals, Bucket.STARTUP, working_from - one.start_ns)
            works = _clip(rest, working_from, one.end_ns)
        else:
            last = one.end_ns if phases.last_step_ns is None or not phases.ended else phases.last_step_ns
            last = max(last, phases.first_step_ns)
            _add(totals, Bucket.STARTUP, _measure(_clip(rest, one.start_ns, phases.first_step_ns)))
            _add(totals, Bucket.SHUTDOWN, _measure(_clip(rest, last, one.end_ns)))
            works = _clip(rest, phases.first_step_ns, last)
        lost = _lost(works, phases)
        _add(totals, Bucket.LOST, lost)
        stepping += _measure(works) - lost
    for bucket, ns in apportion(stepping, weights or {Bucket.UNEXPLAINED: 1}).items():
        _add(totals, bucket, ns)
    return totals


def apportion(total: int, weights: Mapping[Bucket, int]) -> dict[Bucket, int]:
    """Split an integer in proportion to integer weights; the parts sum to it exactly.

    Largest-remainder method (Hamilton): each part is the floor of its share, and the ns that are left over go to the
    largest remainders, ties by the order of the weights. No part is off by a whole ns.
    """
    whole = sum(weights.values())
    if whole <= 0 or min(weights.values()) < 0:
        raise ValueError(f"weights must be non-negative with a positive sum, not {dict(weights)}")
    parts = {bucket: total * weight // whole for bucket, weight in weights.items()}
    left = total - sum(parts.values())
    by_remainder = sorted(weights, key=lambda bucket: -(total * weights[bucket] % whole))
    for bucket in by_remainder[:left]:
        parts[bucket] += 1
    return parts


def stepping_ns(buckets: Mapping[str, int]) -> int:
    """The part of an account in which the run worked: what savings can be taken from. Lost work was work, too."""
    return sum(ns for bucket, ns in buckets.items() if bucket not in NOT_STEPPING)


def _has_never_started(held: Sequence[Held], phases: Phases, weights: Mapping[Bucket, int]) -> bool:
    """It is over without a step, and samples of every device that it held show no activity, nor does a trace."""
    if not phases.ended or phases.first_step_ns is not None or weights or not held:
        return False
    devices: dict[int, bool] = {}
    for one in held:
        if one.active_ns is not None:
            return False
        devices[one.device] = devices.get(one.device, False) or bool(_clip(one.sampled, one.start_ns, one.end_ns))
    return all(devices.values())


def _lost(works: Sequence[Span], phases: Phases) -> int:
    """What of a failed run's work came after its last checkpoint; where none was seen, that is all of it."""
    if not phases.loses_work:
        return 0
    return _measure(works) if phases.saved_ns is None else _measure((max(a, phases.saved_ns), b) for a, b in works)


def _add(totals: dict[Bucket, int], bucket: Bucket, ns: int) -> None:
    if ns:
        totals[bucket] = totals.get(bucket, 0) + ns


def _measure(spans: Iterable[Span]) -> int:
    return sum(max(0, end - start) for start, end in spans)


def _clip(spans: Iterable[Span], start_ns: int, end_ns: int) -> list[Span]:
    clipped = ((max(start, start_ns), min(end, end_ns)) for start, end in spans)
    return [(start, end) for start, end in clipped if end > start]


def _complement(spans: Iterable[Span], start_ns: int, end_ns: int) -> list[Span]:
    gaps, at = [], start_ns
    for start, end in spans:
        if start > at:
            gaps.append((at, start))
        at = max(at, end)
    if end_ns > at:
        gaps.append((at, end_ns))
    return gaps
