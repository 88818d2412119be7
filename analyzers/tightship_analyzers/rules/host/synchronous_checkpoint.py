"""The loop waits while a checkpoint is written.

## What it finds
Device idle time while the training thread serialises state to a file (`torch.save`, `torch.distributed.checkpoint`,
safetensors, pickle, joblib, numpy), more than 2 % of the mean step.

## Why it costs
A synchronous save copies, serialises and writes in the training loop. Every rank waits for the one that saves.

## Example
```python
if step % 100 == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
```

## Use instead
```python
writer = ThreadPoolExecutor(max_workers=1)
...
if step % 100 == 0:
    snapshot = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    writer.submit(torch.save, snapshot, path)
```
or `torch.distributed.checkpoint.async_save`. Or save less often: as often as the expected loss of work justifies
(Young's formula: interval = √(2 × cost of a save × mean time between failures)).

A window of n steps with k saves could have caught one save too many or missed one, hence low = (k − 1)/k and
high = (k + 1)/k of the value; a single save says nothing about how often it happens, so its low end is 0. A thread that
writes needs the time of the saves too: no step gets shorter than that.

A job that computes on the CPU needs the cores itself, and a thread that copies and writes takes them from it: measured
on two cores, it cost such jobs more than the saves did. There the advice is to save less often, and the saving is what
is left of the saves at the interval of Young's formula with one failure a day.

## Known misses
Needs Python stacks. Beside an accelerator, the copy of the state that an asynchronous save still makes is not
subtracted. Gathering the state before the save (`state_dict()` of a sharded model) is not counted. Custom formats
without a known function.

## Source
16 % of the efficiency issues in a study of 400 deep-learning jobs were synchronous checkpoints (Gao et al., ICSE 2024:
"An Empirical Study on Low GPU Utilization of Deep Learning Jobs"). 2 % of the step is where noise ends.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.program.saves import Saves
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import in_window, moved, portion, time_of, unit_of, within_window
from tightship_analyzers.findings.evidence import change, fact, worst_gap
from tightship_analyzers.findings.model import Finding, Judgement, Saving, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.results.evidence import Evidence
from tightship_platform.units import NS_PER_S, format_frac, format_ns, plural

MIN_STEP_FRAC = 0.02
"""Share of the mean step below which saving is no finding."""
BETWEEN_FAILURES_NS = 86_400 * NS_PER_S
"""One failure a day: what clusters report for jobs of hundreds of devices (Kokolis et al., HPCA 2025: "Revisiting
Reliability in Large-Scale Machine Learning Research Clusters"); smaller jobs fail less often, and need fewer saves."""


class _Advice(NamedTuple):
    """How the saves get cheaper."""

    claims: Intervals
    """Idle time of the device that comes back."""
    high_ns: int
    """Over the window, at most."""
    fix: str
    change: Evidence
    evidence: list[Evidence]
    without: Edits


def judge(facts: Facts) -> Judgement:
    """Device gaps under saves."""
    window, saves = facts[Window], facts[Saves]
    claims = within_window(facts, facts[DeviceGaps].spans & saves.spans)
    if claims.measure_ns < MIN_STEP_FRAC * window.window_ns:
        return []
    advice = (_less_often if facts.trace.device_kind == "cpu" else _beside)(facts, saves, claims)
    return [_finding(facts, saves, claims, advice)]


def _beside(facts: Facts, saves: Saves, claims: Intervals) -> _Advice:
    """A thread writes while the device goes on."""
    tid, count = facts[Window].tid, len(saves.calls)
    back = moved(facts, claims, saves.spans, work_ns=saves.spans.measure_ns, threads=1)
    return _Advice(
        claims=back.claims,
        high_ns=min(back.most_ns, claims.measure_ns * (count + 1) // count),
        fix="Save in the background: snapshot the state and write it from a thread, or use "
        "torch.distributed.checkpoint.async_save; or save less often",
        change=change(
            "torch.save(state, path)",
            "writer = ThreadPoolExecutor(max_workers=1)  # once\nwriter.submit(torch.save, copy.deepcopy(state), path)",
        ),
        evidence=[],
        # Copies of the state to the host are part of the save, and so is the wait for them.
        without=Edits.moved_host(tid, back.spans) | Edits.without_syncs(tid, back.spans),
    )


def _less_often(facts: Facts, saves: Saves, claims: Intervals) -> _Advice:
    """At the interval at which saves and work that is lost cost least together (Young, CACM 1974)."""
    window, count = facts[Window], len(saves.calls)
    each_ns = saves.spans.measure_ns // count
    best_ns = math.isqrt(2 * each_ns * BETWEEN_FAILURES_NS)
    now_ns = window.window_ns // count
    gone_frac = max(0.0, 1.0 - now_ns / best_ns)
    spans = portion(saves.spans, gone_frac)
    every = max(1, round(best_ns / window.mean_ns))
    back = portion(claims, gone_frac)
    return _Advice(
        claims=back,
        high_ns=claims.measure_ns * (count + 1) // count,
        fix=f"Save less often, every {format_ns(best_ns)} for instance; in the background only where a core is idle",
        change=change(
            f"# every {plural(max(1, round(window.count / count)), 'step')}\ntorch.save(state, path)",
            f"# every {plural(every, 'step')}\ntorch.save(state, path)",
        ),
        evidence=[
            fact(
                f"A save of {format_ns(each_ns)} and the work lost at one failure a day cost least together with one "
                f"save every {format_ns(best_ns)}",
                best_ns,
                "ns",
            )
        ],
        without=Edits.without_host(window.tid, spans),
    )


def _finding(facts: Facts, saves: Saves, claims: Intervals, advice: _Advice) -> Finding:
    window, total_ns, count = facts[Window], claims.measure_ns, len(saves.calls)
    back_ns = advice.claims.measure_ns
    evidence = [
        fact(
            f"{plural(count, 'save')} {in_window(facts)}, {format_ns(total_ns // count)} each", total_ns / count, "ns"
        ),
        fact(f"Idle while saving: {time_of(facts, total_ns)}"),
        *advice.evidence,
    ]
    if count == 1:
        evidence.append(fact("One save does not show how often it saves; record for longer"))
    gap = worst_gap(facts, claims, "checkpoint")
    return Finding(
        rule=RULE.id,
        title=f"Saving checkpoints blocks training for {format_frac(total_ns / window.window_ns)} of the time",
        place=_place(facts, saves),
        fix=advice.fix,
        saving=Saving.per_step(
            window.count,
            value_ns=back_ns,
            low_ns=back_ns * (count - 1) // count,
            high_ns=advice.high_ns,
        ),
        unit=unit_of(facts),
        share_frac=back_ns / window.window_ns,
        evidence=[*([gap] if gap else []), *evidence, advice.change],
        claims=advice.claims,
        without=advice.without,
        most_frac=0.5 if advice.without.needs_cores else 1.0,  # a thread that writes needs as long as comes back
    )


def _place(facts: Facts, saves: Saves) -> str:
    """The own function around the saves that cost most."""
    stacks, totals = facts[ThreadFrames], dict[str, int]()
    for start_ns, end_ns in zip(saves.calls.start_ns.tolist(), saves.calls.end_ns.tolist(), strict=True):
        place = stacks.place_at(facts.trace.names, start_ns, end_ns)
        totals[place] = totals.get(place, 0) + end_ns - start_ns
    return max(totals, key=lambda place: totals[place])


RULE = TraceRule(
    id="synchronous-checkpoint",
    needs=(Window, Saves, DeviceGaps),
    title="The loop waits while a checkpoint is written",
    fix="Save in the background, or less often",
    judge=judge,
    page=__doc__ or "",
)
