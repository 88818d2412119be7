"""How often each rule's advice was right where the truth is known: traces that were read by hand, and fixes that were
applied and measured.

[Note: standing] A rule of fewer than LEAST_CASES cases is unproven: its savings are bounds, and it leads no ranking.
One that is right in less than LEAST_PRECISION of them is experimental, and shown apart from the others. A case is a job
or a trace, however many findings it has; it is wrong where one of them is.

[Note: delivered] Measured savings do not lie in the middle of the interval that was predicted: of a bound that may be
nothing least of all. Where fixes of a rule were applied, the record keeps how far from low (0) to high (1) what they
brought lay. The mean says what to expect of the rule, which sets the order in which findings of a fleet are shown.

`track_record.toml` is written by the programs that find out: `make readings ARGS=--record` and `make proof`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from tightship_platform.units import plural
from tightship_platform.vocabulary import Standing

Shown = TypeVar("Shown")

LEAST_CASES = 3
"""Fewer are chance."""
LEAST_PRECISION = 0.9
"""Of a rule that is proven: one piece of advice in ten may miss, as of an interval of 90 %."""
UNKNOWN_FRAC = 0.5
"""Where in its interval a saving is expected of a rule of which fewer than LEAST_CASES fixes were applied."""
FILE = Path(__file__).with_name("track_record.toml")


@dataclass(frozen=True, kw_only=True)
class TrackRecord:
    """The cases of one rule, by name: `reading/<name>`, `pair/<name>`, `gpu/<name>`."""

    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    delivered: Mapping[str, float] = field(default_factory=dict)
    """Case → where in the predicted interval the measured saving lay; see [Note: delivered]."""

    @property
    def delivered_frac(self) -> float:
        """Where in the interval to expect a saving; see [Note: delivered]."""
        return UNKNOWN_FRAC if len(self.delivered) < LEAST_CASES else fmean(self.delivered.values())

    @property
    def standing(self) -> Standing:
        """See [Note: standing]."""
        cases = len(self.right) + len(self.wrong)
        if cases < LEAST_CASES:
            return Standing.UNPROVEN
        return Standing.PROVEN if len(self.right) >= LEAST_PRECISION * cases else Standing.EXPERIMENTAL

    @property
    def words(self) -> str:
        """One sentence for a report or a page."""
        cases = len(self.right) + len(self.wrong)
        if not cases:
            return "Unproven: no real case shows yet what it brings"
        right = f"right in {len(self.right)} of {plural(cases, 'real case')}"
        return f"{self.standing.value.capitalize()}: {right}"


@cache
def track_records() -> Mapping[str, TrackRecord]:
    """Rule → its record."""
    with FILE.open("rb") as file:
        known = tomllib.load(file)
    return {
        rule: TrackRecord(
            right=tuple(of.get("right", ())), wrong=tuple(of.get("wrong", ())), delivered=of.get("delivered", {})
        )
        for rule, of in known.items()
    }


def record_of(rule: str) -> TrackRecord:
    """The record of a rule; an empty one where no case is known."""
    return track_records().get(rule, TrackRecord())


def standing_of(rules: Iterable[str]) -> Standing:
    """The least sure of several rules."""
    order = list(Standing)
    return max((record_of(rule).standing for rule in rules), key=order.index, default=Standing.PROVEN)


def expected(rules: Iterable[str], low: int | None, high: int | None) -> int:
    """What to expect of a saving, in its unit: of several rules, by the one that delivers least of its interval."""
    frac = min((record_of(rule).delivered_frac for rule in rules), default=UNKNOWN_FRAC)
    least = low or 0
    return least + int(frac * ((high or 0) - least))


def led_by_proven(ordered: Iterable[Shown], standing: Callable[[Shown], Standing]) -> list[Shown]:
    """The same order, but what is proven leads, and what is experimental comes last."""
    listed = sorted(ordered, key=lambda one: standing(one) is Standing.EXPERIMENTAL)
    lead = next((row for row, one in enumerate(listed) if standing(one) is Standing.PROVEN), 0)
    return [*listed[lead : lead + 1], *listed[:lead], *listed[lead + 1 :]]


def write_outcomes(
    kind: str, outcomes: Mapping[str, Mapping[str, bool]], delivered: Mapping[str, Mapping[str, float]] | None = None
) -> None:
    """Replace all cases of one kind in the file.

    :param kind: `reading`, `pair` or `gpu`.
    :param outcomes: rule → name of the case → whether the advice was right.
    :param delivered: rule → name of the case → where in the predicted interval the measured saving lay.
    """
    kept = {
        rule: {
            side: [case for case in getattr(of, side) if not case.startswith(f"{kind}/")] for side in ("right", "wrong")
        }
        for rule, of in track_records().items()
    }
    lay = {
        rule: {case: frac for case, frac in of.delivered.items() if not case.startswith(f"{kind}/")}
        for rule, of in track_records().items()
    }
    for rule, fracs in (delivered or {}).items():
        lay.setdefault(rule, {}).update({f"{kind}/{name}": frac for name, frac in fracs.items()})
    for rule, cases in outcomes.items():
        known = kept.setdefault(rule, {"right": [], "wrong": []})
        for name, is_right in cases.items():
            known["right" if is_right else "wrong"].append(f"{kind}/{name}")
    lines = ["# Written by `make readings ARGS=--record` and `make proof`; see track_record.py."]
    for rule, known in sorted(kept.items()):
        if any(known.values()):
            lines += ["", f"[{rule}]"]
            lines += [f"{side} = [{_listed(known[side])}]" for side in ("right", "wrong") if known[side]]
            if of := lay.get(rule):
                entries = ", ".join(f'"{case}" = {of[case]:.2f}' for case in sorted(of))
                lines.append(f"delivered = {{ {entries} }}")
    FILE.write_text("\n".join(lines) + "\n")
    track_records.cache_clear()


def _listed(cases: Iterable[str]) -> str:
    return ", ".join(f'"{case}"' for case in sorted(cases))
