"""Ranks of one run of which one comes late to a collective, by a known time."""

from __future__ import annotations

import random
from pathlib import Path

from injection.block import US, Block
from injection.communication_defects import late
from injection.recording import Recording
from injection.sites import Base
from injection.trial import Outcome

from tightship_analyzers.analysis.from_files import analyze_paths

RULE = "straggling-rank"
JITTER_FRAC = 0.05
"""Ranks that nothing is wrong with come as unevenly, as a share of the lateness."""


def run_ranks(base: Base, rng: random.Random, folder: Path, *, straggles: bool = True) -> Outcome:
    """Copies of a recording meet at collectives put into them, and all wait for the last one.

    :param straggles: one rank is late in every step; else another one in each.
    """
    ranks, each = rng.randrange(2, 7), rng.randrange(2, 5)
    slow = rng.randrange(ranks)
    moments = sorted(at for sites in base.sites for at in rng.sample(sites.tolist(), min(each, len(sites))))
    late_ns = round(rng.uniform(0.1, 0.25) * base.step_ns * base.steps / len(moments))
    takes_ns = rng.randrange(30, 200) * US
    arrivals, cost_ns = [], 0
    for number, _ in enumerate(moments):
        last = slow if straggles else number % ranks
        at_ns = [rng.randrange(round(JITTER_FRAC * late_ns)) for _ in range(ranks)]
        at_ns[last] += round(late_ns * rng.uniform(0.8, 1.2))
        arrivals.append(at_ns)
        cost_ns += max(at_ns) - sorted(at_ns)[-2]
    paths = [_rank_of(base, rng, folder, rank, moments, arrivals, takes_ns) for rank in range(ranks)]
    said = analyze_paths([str(path) for path in paths]).findings
    for path in paths:
        path.unlink()
    found = [finding for finding in said if finding.rule == RULE]
    mine = [finding for finding in found if finding.rank == slow and straggles]
    return Outcome(
        rule=RULE,
        base=base.name,
        found=bool(mine),
        injected_ns=cost_ns // base.steps,
        claimed_ns=sum(finding.saving.value or 0 for finding in mine),
        false=frozenset({RULE} if len(found) > len(mine) else ()),
    )


def _rank_of(
    base: Base,
    rng: random.Random,
    folder: Path,
    rank: int,
    moments: list[int],
    arrivals: list[list[int]],
    takes_ns: int,
) -> Path:
    recording = Recording(base.text)
    recording.rest["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": len(arrivals[0])}
    for at_ns, arrived in reversed(list(zip(moments, arrivals, strict=True))):
        end_ns = max(arrived) + takes_ns
        late(Block(recording, base, at_ns, end_ns, rng), base, arrived[rank], end_ns - arrived[rank])
    path = folder / f"rank{rank}.json"
    path.write_bytes(recording.text())
    return path
