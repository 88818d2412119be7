"""The device waits while a checkpoint is written.

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

Saving in the background takes an idle core of the host. A job that computes on the CPU needs the cores itself, and a
trace does not show which of them are idle: there the saving is a bound, and its low end is 0.

## Known misses
Needs Python stacks. The copy of the state that an asynchronous save still makes is not subtracted. Gathering the state
before the save (`state_dict()` of a sharded model) is not counted. Custom formats without a known function.

## Source
16 % of the efficiency issues in a study of 400 deep-learning jobs were synchronous checkpoints (Gao et al., ICSE 2024:
"An Empirical Study on Low GPU Utilization of Deep Learning Jobs"). 2 % of the step is where noise ends.
"""

from __future__ import annotations

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.program.saves import Saves
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import in_window, moved, time_of, unit_of, within_window
from tightship_analyzers.findings.evidence import change, fact, worst_gap
from tightship_analyzers.findings.model import Finding, Judgement, Saving, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.units import format_frac, format_ns, plural

MIN_STEP_FRAC = 0.02
"""Share of the mean step below which saving is no finding."""


def judge(facts: Facts) -> Judgement:
    """Device gaps under saves."""
    window, saves = facts[Window], facts[Saves]
    claims = within_window(facts, facts[DeviceGaps].spans & saves.spans)
    if claims.measure_ns < MIN_STEP_FRAC * window.window_ns:
        return []
    return [_finding(facts, window, saves, claims)]


def _finding(facts: Facts, window: Window, saves: Saves, claims: Intervals) -> Finding:
    total_ns, count = claims.measure_ns, len(saves.calls)
    back = moved(facts, claims, saves.spans, work_ns=saves.spans.measure_ns, threads=1)
    back_ns = back.claims.measure_ns
    share = total_ns / window.window_ns
    evidence = [
        fact(
            f"{plural(count, 'save')} {in_window(facts)}, {format_ns(total_ns // count)} each", total_ns / count, "ns"
        ),
        fact(f"Idle while saving: {time_of(facts, total_ns)}"),
    ]
    if count == 1:
        evidence.append(fact("One save does not show how often it saves; record for longer"))
    gap = worst_gap(facts, claims, "checkpoint")
    return Finding(
        rule=RULE.id,
        title=f"Saving checkpoints blocks training for {format_frac(share)} of the time",
        place=_place(facts, saves),
        fix="Save in the background: snapshot the state and write it from a thread, or use "
        "torch.distributed.checkpoint.async_save; or save less often",
        saving=Saving.per_step(
            window.count,
            value_ns=back_ns,
            low_ns=back_ns * (count - 1) // count,
            high_ns=min(back.most_ns, total_ns * (count + 1) // count),
        ),
        unit=unit_of(facts),
        share_frac=back_ns / window.window_ns,
        evidence=[
            *([gap] if gap else []),
            *evidence,
            change(
                "torch.save(state, path)",
                "writer = ThreadPoolExecutor(max_workers=1)  # once\n"
                "writer.submit(torch.save, copy.deepcopy(state), path)",
            ),
        ],
        claims=back.claims,
        # Copies of the state to the host are part of the save, and so is the wait for them.
        without=Edits.moved_host(window.tid, back.spans) | Edits.without_syncs(window.tid, back.spans),
        most_frac=0.5,  # what comes back is saving, for which the thread that writes needs as long
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
    title="The device waits while a checkpoint is written",
    fix="Save in the background, or less often",
    judge=judge,
    page=__doc__ or "",
)
