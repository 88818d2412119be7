"""The loop waits for the next batch.

## What it finds
Device idle time while the training thread is inside its `DataLoader`, more than 5 % of the step.

## Why it costs
With `num_workers=0` the batch is made by the training process itself: reading, decoding and augmenting happen between
two steps, and the device does nothing meanwhile. With workers it still waits when they are too few or too slow.

## Example
```python
loader = DataLoader(dataset, batch_size=64)
```

## Use instead
```python
loader = DataLoader(dataset, batch_size=64, num_workers=4, persistent_workers=True, pin_memory=True)
```
If that is not enough: decode once and cache the result, use a faster decoder, or move augmentation to the device.

The saving reaches from what one worker would hide (at most as much as the step takes without the loader), less what
receiving batches takes, to all of the wait, where the workers suggested can make the batches in time. Of an accelerator
it reaches to all of the loading that its idle time leaves room for: a host that need not load launches the rest of the
step earlier. With workers already the high end is half of the step, for twice as many make at most twice as many
batches; and the low end is 0: whether they do depends on cores and disks.

Where every epoch starts new workers (`persistent_workers=False`) and that keeps the device waiting, it is a separate
finding: the workers stay. Sure is the time of starting and ending processes; the value adds what the first batch of
an epoch takes beyond the others, the high end all of that batch. Needs Python stacks.

The first batch of an iteration is not counted: no worker makes it ahead, and a loader that is made in each call has
many such batches.

A batch that is made in less time than handing it over takes (1 ms) is no finding: workers would slow the job down.

Batches that workers make take idle cores of the host. A job that computes on the CPU needs these cores itself, and a
trace does not show which of them are idle: there the saving is a bound, and its low end is 0. Workers and the
intra-op threads of torch, one a core, then keep each other from running: fewer threads leave the workers their cores.
A trace shows neither cores nor threads, so this is a hint without a saving. Applied to a job of small convolutions, on
two cores beside other load: 146 ms a step as it was, 89 with two workers, 38 with one intra-op thread as well (108, 97
and 41 ms of processor time).

## Known misses
Programs that load without torch's `DataLoader`. Copies to the device that follow the loader.

## Source
torch annotates each fetch as `enumerate(DataLoader)#<iterator>.__next__`. The 5 % are the threshold of the PyTorch
Profiler TensorBoard plugin: https://github.com/pytorch/kineto/tree/main/tb_plugin
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames, place_of
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.program.loader_starts import LoaderStarts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    in_window,
    moved,
    portion,
    share_of,
    time_of,
    unit_of,
    waiter,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact, worst_gap
from tightship_analyzers.findings.model import Finding, Judgement, NotApplicable, Saving, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.results.evidence import Evidence
from tightship_platform.units import format_frac, plural

MIN_STEP_FRAC = 0.05
"""Share of the step below which waiting for input is no finding; source: the profiler's TensorBoard plugin."""

HAND_OVER_FRAC = 0.05
"""Share of making a batch that is left to the training thread: to receive it from a worker. Source: PyTorch's profiler
tutorial, where of 43 ms of fetching a batch of 19 MB 1.4 ms are left with four workers."""

HAND_OVER_NS = 1_000_000
"""Processor time of handing over a batch, of worker and training process together: to ask for it, to put its tensors
into shared memory and to open them. A batch that is made in less is no work for a worker; where the CPU is the device
this time is not saved. Source: batches of one to four ready tensors of 4 KiB, one worker, torch 2 on a CPU: 0.3 to 0.9
ms in the training process, and a batch every 1.4 to 2.5 ms."""

SHARED_CORES = fact(
    "Workers need cores that torch's intra-op threads hold: torch.set_num_threads(n) leaves them some; what that "
    "brings is not in a trace"
)

MAX_WORKERS = 16
"""More workers than this per rank are not suggested."""


def judge(facts: Facts) -> Judgement:
    """Device gaps under the loader, and in starting its workers."""
    window, loader = facts[Window], facts[LoaderRanges]
    if not loader.calls:
        return NotApplicable("needs a torch DataLoader; no fetch fell into the window")
    if loader.in_process and loader.spans.measure_ns <= loader.calls * HAND_OVER_NS:
        return []
    findings, waits = [], facts[DeviceGaps].spans & loader.spans
    starts = facts.find(LoaderStarts)
    if starts is not None and starts.count:
        new = within_window(facts, facts[DeviceGaps].spans & (starts.spans | starts.late))
        if new.measure_ns >= MIN_STEP_FRAC * window.window_ns:
            findings.append(_new_workers(facts, window, loader, starts, new))
            waits = waits - new
    loading = loader.spans
    if starts is not None and loader.in_process:
        loading = loading - starts.unhidden
    claims = within_window(facts, waits & loading)
    if claims.measure_ns >= MIN_STEP_FRAC * window.window_ns:
        findings.append(_finding(facts, window, loader, loading, claims))
    # One place, one finding: the larger.
    findings.sort(key=lambda one: one.saving.value)
    return list({one.place: one for one in findings}.values())


def _new_workers(
    facts: Facts, window: Window, loader: LoaderRanges, starts: LoaderStarts, claims: Intervals
) -> Finding:
    gaps = facts[DeviceGaps].spans
    sure_ns = within_window(facts, gaps & starts.spans).measure_ns
    high_ns = within_window(facts, gaps & (starts.spans | starts.first_fetches)).measure_ns
    share = claims.measure_ns / window.window_ns
    gap = worst_gap(facts, claims, "input")
    return Finding(
        rule=RULE.id,
        title=f"{waiter(facts).capitalize()} waits {share_of(facts, claims)} "
        "for a loader that starts new workers every epoch",
        place=_loop_place(facts, loader),
        fix="Keep the workers from one epoch to the next: construct the DataLoader once, with persistent_workers=True",
        saving=Saving.per_step(window.count, value_ns=claims.measure_ns, low_ns=sure_ns, high_ns=high_ns),
        unit=unit_of(facts),
        share_frac=share,
        evidence=[
            *([gap] if gap else []),
            fact(
                f"{plural(starts.count, 'iteration')} {in_window(facts)} started processes",
                starts.count,
                "iterations",
            ),
            fact(f"Starting and ending them: {time_of(facts, sure_ns)}", sure_ns / window.count, "ns"),
            change(
                "DataLoader(dataset, batch_size=…, num_workers=n)",
                "DataLoader(dataset, batch_size=…, num_workers=n, persistent_workers=True)",
            ),
        ],
        claims=claims,
        without=Edits.without_host(window.tid, starts.spans | starts.late),
    )


def _finding(facts: Facts, window: Window, loader: LoaderRanges, loading: Intervals, claims: Intervals) -> Finding:
    """:param loading: fetches that workers can hide."""
    wait_ns = claims.measure_ns // window.count
    rest_ns = max(1, window.mean_ns - wait_ns)
    loading_ns, most_ns = loading.measure_ns, 0
    workers = max(2, min(MAX_WORKERS, math.ceil(loading_ns / window.count / rest_ns)))
    if loader.in_process:
        back = moved(facts, claims, loading, work_ns=loading_ns, threads=workers)
        sure_ns = moved(facts, claims, loading, work_ns=loading_ns, threads=1).claims.measure_ns
        # What comes back is loading, of which the workers need their share: s <= 1 - s / n.
        most_frac = workers / (workers + 1)
        sure_ns = max(0, sure_ns - int(HAND_OVER_FRAC * loading_ns))
        if facts.trace.device_kind == "cpu":
            left_frac = 1 - loader.calls * HAND_OVER_NS / loading_ns
            back = back._replace(claims=portion(back.claims, left_frac), spans=portion(back.spans, left_frac))
        if facts.trace.device_kind == "gpu" and back.claims.measure_ns == claims.measure_ns:
            most_ns = min(loading_ns, facts[DeviceGaps].spans.measure_ns)
    else:
        # The workers keep the device waiting, so a batch takes them a whole step.
        back = moved(facts, claims, loading, work_ns=window.window_ns, threads=2)
        sure_ns, most_frac = 0, 0.5
    hot, hot_frac = _hot_function(facts, claims)
    loop = _loop_place(facts, loader)
    share = claims.measure_ns / window.window_ns
    if loader.in_process:
        title = f"{waiter(facts).capitalize()} waits {share_of(facts, claims)} for a loader without workers"
        fix = f"Give the DataLoader workers: num_workers={workers}, persistent_workers=True"
        before = "DataLoader(dataset, batch_size=…)"
        after = f"DataLoader(dataset, batch_size=…, num_workers={workers}, persistent_workers=True)"
    else:
        title = f"{waiter(facts).capitalize()} waits {share_of(facts, claims)} for its loader's workers"
        fix = "Double the DataLoader's num_workers, or make a batch cheaper (cache decoded data, faster decoder)"
        before = "DataLoader(dataset, batch_size=…, num_workers=n)"
        after = "DataLoader(dataset, batch_size=…, num_workers=2 * n, prefetch_factor=4)"
    if facts.trace.device_kind == "gpu":
        after = after[:-1] + ", pin_memory=True)"
    evidence: list[Evidence] = [
        fact(f"Idle under the loader: {time_of(facts, claims.measure_ns)}", share, "frac"),
        fact(f"{plural(loader.calls, 'batch', 'batches')} fetched {in_window(facts)}", loader.calls, "batches"),
    ]
    if back.claims.measure_ns < claims.measure_ns:
        times = f"{workers} times as many as one" if loader.in_process else "twice as many batches"
        evidence.append(fact(f"At most {share_of(facts, back.claims)} is recoverable: the workers then make {times}"))
    if facts.trace.device_kind == "cpu":
        evidence.append(SHARED_CORES)
    if hot:
        evidence.append(fact(f"{format_frac(hot_frac)} of the wait is spent in {hot}", hot_frac, "frac"))
    if loop:
        evidence.append(fact(f"The loader is iterated in {loop}"))
    gap = worst_gap(facts, claims, "input")
    return Finding(
        rule=RULE.id,
        title=title,
        place=hot or loop,
        fix=fix,
        saving=Saving.per_step(
            window.count,
            value_ns=back.claims.measure_ns,
            low_ns=sure_ns,
            high_ns=max(most_ns, back.claims.measure_ns),
        ),
        unit=unit_of(facts),
        share_frac=back.claims.measure_ns / window.window_ns,
        evidence=[*([gap] if gap else []), *evidence, change(before, after)],
        claims=back.claims,
        without=Edits.moved_host(window.tid, back.spans),
        most_frac=most_frac,
    )


def _loop_place(facts: Facts, loader: LoaderRanges) -> str:
    """The own function that asks for the batches."""
    stacks = facts.find(ThreadFrames)
    if stacks is None:
        return ""
    start_ns, end_ns = next(iter(loader.spans))
    return stacks.place_at(facts.trace.names, start_ns, end_ns)


def _hot_function(facts: Facts, claims: Intervals) -> tuple[str, float]:
    """The own function in which most of the wait is spent, callees that are not own included, and its share of it."""
    stacks = facts.find(ThreadFrames)
    if stacks is None:
        return "", 0.0
    user = stacks.user
    inside = user.take(claims.overlap_ns(user.start_ns, user.end_ns) == user.dur_ns)
    if not len(inside):
        return "", 0.0
    own_ns = inside.dur_ns.copy()
    for row, parent in _parents(inside.start_ns.tolist(), inside.end_ns.tolist()):
        own_ns[parent] -= inside.dur_ns[row]
    totals = np.bincount(inside.name, weights=own_ns)
    name = int(totals.argmax())
    return place_of(facts.trace.names[name]), float(totals[name]) / claims.measure_ns


def _parents(starts: list[int], ends: list[int]) -> Iterator[tuple[int, int]]:
    """(row, row of the innermost enclosing one), for rows by start that have one."""
    open_rows: list[int] = []
    for row, start in enumerate(starts):
        while open_rows and ends[open_rows[-1]] <= start:
            open_rows.pop()
        if open_rows:
            yield row, open_rows[-1]
        open_rows.append(row)


RULE = TraceRule(
    id="starved-input",
    needs=(Window, LoaderRanges, DeviceGaps),
    title="The loop waits for the next batch",
    fix="Give the DataLoader more workers, or make a batch cheaper",
    judge=judge,
    page=__doc__ or "",
)
