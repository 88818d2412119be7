"""What the rules on blocking calls have in common: one finding per place of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tightship_analyzers.claiming import a_step, claim, is_worth, waits_for_workers
from tightship_analyzers.evidence import Evidence, fact
from tightship_analyzers.facts.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.steps import Steps
from tightship_analyzers.facts.sync_places import SyncKind, SyncPlace, SyncPlaces
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.rule import Finding, Rule


def claim_syncs(
    facts: Facts,
    rule: Rule,
    kind: SyncKind,
    *,
    min_frac: float,
    title: Callable[[SyncPlace], str],
    fix: str,
    change: Evidence,
) -> Iterator[Finding]:
    """Findings on the places whose calls cost the device at least this share of the step.

    Where other blocking calls follow in the same step they may inherit the wait: then the low end is 0.
    """
    places = facts[SyncPlaces].places
    for place in places:
        if place.kind is not kind or not is_worth(facts, place.cost, min_frac):
            continue
        steps = facts[Steps]
        yield claim(
            facts,
            rule,
            place.cost,
            title=title(place),
            place=place.place,
            fix=fix,
            low_ns=place.cost.measure_ns if len(places) == 1 else 0,
            high_ns=min(place.blocked_ns, facts[DeviceGaps].spans.measure_ns),
            gap="host sync",
            evidence=[
                fact(
                    f"{len(place.rows)} blocking calls in {steps.count} steps hold the host for "
                    f"{a_step(facts, place.blocked_ns)}",
                    len(place.rows),
                    "calls",
                ),
                fact(
                    f"The device idles for {a_step(facts, place.cost.measure_ns)} because of them",
                    place.cost.measure_ns / steps.count,
                    "ns",
                ),
                change,
            ],
            without=None if waits_for_workers(facts) else Edits.without_syncs(place.tid, place.spans),
        )
