"""One rank arrives late at collectives, and the others wait for it.

## What it finds
A rank that arrives last at more collectives than its share (more than twice as many as if each rank were last equally
often, or more than three quarters), or that has as much more than its share of all lateness and is late in half of the
steps or more; and whose lateness costs more than 2 % of the step. Needs the traces of at least two ranks over the same
window, of two steps or more: in a single step a rank may be the last one only because it began to record last.

## Why it costs
A collective begins when the last rank has arrived. If one device, one host or one shard of the data is slower, the
whole job is slower: a late millisecond of one rank of 1,024 is a second of device time.

## Example
```python
sampler = DistributedSampler(dataset)              # documents of any length: one rank gets the long ones
```

## Use instead
```python
sampler = LengthGroupedSampler(dataset, batch_size)   # equal work for all ranks in each step
```
The same rank in every capture: compare its device's clocks, temperature and errors with the others (`tightship doctor`,
`nvidia-smi -q -d PERFORMANCE`) and replace it. A rank that also writes logs or checkpoints: move that off it.

The value is the time by which collectives would begin sooner had the rank arrived with the last but one, as far as the
waiting rank in the middle computed nothing meanwhile. The high end counts what it computed as well. The low end is 0:
another rank may be late for the same reason.

## Known misses
Ranks whose traces are not given. Windows that do not overlap. A rank that is late now and then: what counts is more
than its share.

## Source
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (2025), on how common they are and
why. 2 % of the step is where noise ends.
"""

from __future__ import annotations

from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Finding, Judgement, NotApplicable, RankRule, Saving
from tightship_analyzers.ranks.compared_ranks import ComparedRanks
from tightship_analyzers.ranks.skew import ArrivalSkew
from tightship_platform.results.analysis.skew import RankSkew
from tightship_platform.text import shown
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import Method

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""
SHARES = 2.0
"""How many times as often as its fair share the rank must be last."""
TOO_OFTEN_FRAC = 0.75
"""Share of the collectives above which a rank is last too often among however few ranks."""
MIN_STEPS = 2
"""Of a single step the first arrival may be no more than a later start of the recording."""
MIN_COLLECTIVES = 4
"""Fewer do not tell a habit from an accident."""


def judge(ranks: ComparedRanks) -> Judgement:
    """One finding per rank."""
    if ranks.skew.steps is None or not ranks.step_ns:
        return NotApplicable("needs whole training steps; the ranks' traces hold none")
    if ranks.skew.steps < MIN_STEPS:
        return NotApplicable("needs two steps or more of every rank; a trace holds one, record for longer")
    return [
        finding
        for row in ranks.skew.ranks
        if _is_habit(row, ranks.skew) and (finding := _finding(ranks, row)) is not None
    ]


def _is_habit(row: RankSkew, skew: ArrivalSkew) -> bool:
    """By number, or by time: late at one collective in each step, it arrives at the others with the rest."""
    share = min(SHARES / len(skew.ranks), TOO_OFTEN_FRAC)
    often = row.last > share * row.collectives
    most = row.late_ns > share * sum(one.late_ns for one in skew.ranks)
    again = skew.late_at[row.rank] >= max(MIN_STEPS, (skew.steps or 0) // 2)
    return row.collectives >= MIN_COLLECTIVES and (often or (most and again))


def _finding(ranks: ComparedRanks, row: RankSkew) -> Finding | None:
    skew, step_ns = ranks.skew, ranks.step_ns[row.rank]
    steps = skew.steps or 1
    value, high = row.late_exposed_ns // steps, row.late_ns // steps
    share = value / step_ns
    if share < MIN_STEP_FRAC:
        return None
    worst = max((one for one in skew.collectives if one.last_rank == row.rank), key=lambda one: one.skew_ns)
    return Finding(
        rule=RULE.id,
        title=f"Rank {row.rank} is late; the others wait for it for {format_frac(share)} of the step",
        place=f"rank {row.rank}",
        fix="Balance the work across ranks in each step; if it is always the same rank, check and replace its device",
        saving=Saving(value=value, low=0, high=max(value, min(high, step_ns)), method=Method.BOUND),
        unit=RULE.scope.unit,
        share_frac=share,
        rank=row.rank,
        evidence=[
            fact(
                f"It arrives last at {row.last} of {plural(row.collectives, 'collective')} and keeps "
                f"{plural(len(skew.ranks) - 1, 'other rank')} waiting for "
                f"{format_ns(row.kept_waiting_ns // steps)} a step, in total",
                row.last / row.collectives,
                "frac",
            ),
            fact(
                f"The greatest skew: {format_ns(worst.skew_ns)} at {shown(worst.name, 80)}, "
                f"{format_ns(worst.last_ns - worst.first_ns)} after rank {worst.first_rank}",
                worst.skew_ns,
                "ns",
            ),
            change(
                "sampler = DistributedSampler(dataset)",
                "sampler = LengthGroupedSampler(dataset, batch_size)  # equal work for all ranks",
            ),
        ],
    )


RULE = RankRule(
    id="straggling-rank",
    title="One rank arrives late at collectives, and the others wait for it",
    fix="Balance the work across ranks, or replace the slow device",
    judge=judge,
    page=__doc__ or "",
)
