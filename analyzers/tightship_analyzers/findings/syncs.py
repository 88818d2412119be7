"""What the rules on blocking calls have in common: one finding per place of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.blocking.sync_places import SyncKind, SyncPlace, SyncPlaces
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    ONCE,
    Where,
    claim,
    comes_back,
    in_window,
    is_worth,
    time_of,
    waits_for_workers,
)
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding, Rule
from tightship_analyzers.graph.edits import Edits
from tightship_platform.results.evidence import Evidence
from tightship_platform.units import plural


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
    """Findings on the places whose calls cost the device at least this share of the window.

    Where other blocking calls follow in the same step they may inherit the wait: then the low end is 0. So it is where
    only one of several steps has the call.
    """
    places = facts[SyncPlaces].places
    for place in places:
        if place.kind is not kind or not is_worth(facts, place.cost, min_frac):
            continue
        yield claim(
            facts,
            rule,
            place.cost,
            title=title(place),
            where=Where(place.place),
            fix=fix,
            low_ns=place.cost.measure_ns if len(places) == 1 and comes_back(facts, place.cost) else 0,
            high_ns=min(place.blocked_ns, facts[DeviceGaps].spans.measure_ns),
            gap="host sync",
            evidence=[
                fact(
                    f"The host is blocked for {time_of(facts, place.blocked_ns)}, "
                    f"{plural(len(place.rows), 'blocking call')} {in_window(facts)}",
                    len(place.rows),
                    "calls",
                ),
                fact(
                    f"The device idles for {time_of(facts, place.cost.measure_ns)} because of them",
                    place.cost.measure_ns / facts[Window].count,
                    "ns",
                ),
                None if comes_back(facts, place.cost) else ONCE,
                change,
            ],
            without=None if waits_for_workers(facts) else Edits.without_syncs(place.tid, place.spans),
        )
