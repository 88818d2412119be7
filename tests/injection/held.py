"""Runs of known samples that hold devices and use them, and for a known time do not."""

from __future__ import annotations

import random

from injection.trial import Outcome

from tightship_analyzers.facts.run.held_idle import MAX_ACTIVITY_FRAC, MINUTE_NS, DeviceMinute, RunHistory
from tightship_analyzers.findings.model import NotApplicable
from tightship_analyzers.rules.runs.device_held_idle import RULE

START_NS = 29_833_333 * MINUTE_NS


def run_held(rng: random.Random, *, idles: bool = True) -> Outcome:
    """Some devices, held for an hour or several; a few of them pause now and then, or end long before they are freed.

    Around it lies what is no idleness: start-up before the first step, minutes that were not sampled or in which a step
    ended, and minutes of little but some activity.

    :param idles: put idle stretches in.
    """
    devices, length = rng.randrange(1, 9), rng.randrange(60, 400)
    first = rng.choice((None, rng.randrange(1, 10)))
    steps = set[int]() if first is None else {n for n in range(first, length) if rng.random() < 0.9}
    # Evaluation: no step ends for some minutes, and the devices work.
    begin = rng.randrange(10, length - 20)
    steps -= set(range(begin, begin + 5))
    pauses = []
    for _ in range(rng.randrange(1, 4) if idles else 0):
        start = rng.randrange(10, length - 2)
        pauses.append(set(range(start, min(length, start + rng.randrange(2, 40)))))
    steps -= set[int]().union(*pauses)
    minutes, cost = [], 0
    for device in range(devices):
        mine = set[int]().union(*(pause for pause in pauses if device == 0 or rng.random() < 0.7))
        for n in range(length):
            if rng.random() < 0.02:
                continue
            if n in mine:
                frac = rng.uniform(0.0, 0.9 * MAX_ACTIVITY_FRAC)
                cost += MINUTE_NS
            elif first is not None and n < first:
                frac = 0.0
            else:
                frac = rng.uniform(1.1 * MAX_ACTIVITY_FRAC, 1.0)
            minutes.append(DeviceMinute(device, START_NS + n * MINUTE_NS, 60, frac))
    history = RunHistory(
        held={device: [(START_NS, START_NS + length * MINUTE_NS)] for device in range(devices)},
        device_names={device: f"h1/GPU-{device}" for device in range(devices)},
        minutes=minutes,
        stepped={START_NS + n * MINUTE_NS for n in steps},
        first_step_ns=None if first is None else START_NS + first * MINUTE_NS,
    )
    judged = RULE.judge(history)
    found = [] if isinstance(judged, NotApplicable) else list(judged)
    return Outcome(
        rule=RULE.id,
        base="samples",
        found=idles and bool(found),
        injected_ns=cost,
        claimed_ns=sum(finding.saving.value for finding in found),
        false=frozenset({RULE.id} if found and not idles else ()),
    )
