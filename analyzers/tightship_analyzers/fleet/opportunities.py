"""From the findings of a workflow's recent runs to a ranked list of what to do. Pure functions.

[Note: joint savings] Two findings that claim the same time cannot both give it back. The analysis of a trace therefore
merges overlapping findings into one *claim* whose saving is the measure of the union (see findings/overlap.py). Here
rules that shared a claim in any recent run of the workflow become one opportunity; claims of one trace do not overlap,
so within a trace they may be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tightship_analyzers.findings.track_record import expected, led_by_proven, standing_of
from tightship_analyzers.rules.catalogue import RUN_RULES
from tightship_platform.vocabulary import Method, Standing

_OF_SAMPLES = frozenset(rule.id for rule in RUN_RULES)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one or more findings of one trace would give back together, as shares of the mean step or the recording."""

    rules: tuple[str, ...]
    share_frac: float
    low_frac: float
    high_frac: float
    method: str


@dataclass(frozen=True, kw_only=True)
class FindingText:
    """What an opportunity shows of a finding."""

    id: int
    rule: str
    title: str
    fix: str
    share_frac: float


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """One recent run of a workflow."""

    stepping_device_ns: int
    device_ns: int
    captures: Sequence[Sequence[Sequence[Claim]]] = ()
    """Per analysed capture, per rank, the claims of that rank's trace. Empty: this run was never traced."""
    findings: Sequence[FindingText] = ()
    from_samples: Sequence[SampleSaving] = ()


@dataclass(frozen=True, kw_only=True)
class SampleSaving:
    """The saving of a finding from samples, in ns of device time; None where it is not known, as of a risk."""

    rule: str
    value_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """An opportunity before it gets its position."""

    rules: tuple[str, ...]
    title: str
    fix: str
    findings: tuple[int, ...]
    value_ns: int | None
    """None, as low and high: not known, as of a risk."""
    low_ns: int | None
    high_ns: int | None
    method: str
    """Empty where there is no saving."""
    device_ns: int
    """Device time of the recent runs that the saving refers to."""

    @property
    def key(self) -> str:
        """Names the opportunity within its workflow."""
        return "+".join(self.rules)[:200]


def standing_of_opportunity(rules: Iterable[str]) -> Standing:
    """The standing of the least sure rule behind it. Rules on samples measure, and stand for themselves."""
    return standing_of(rule for rule in rules if rule not in _OF_SAMPLES)


@dataclass
class _Share:
    value: Fraction = field(default_factory=Fraction)
    low: Fraction = field(default_factory=Fraction)
    high: Fraction = field(default_factory=Fraction)


def rank_workflow(runs: Sequence[RunEvidence]) -> list[Ranked]:
    """The opportunities of one workflow: a proven one leads; then by what the rules' track record lets expect.

    The share (of the step, of the recording) is the mean over the traced runs, weighted by their stepping time, and is
    applied to the stepping time of all recent runs. The low end counts only the runs that were traced.
    """
    traced = [run for run in runs if run.captures]
    traced_ns = sum(run.stepping_device_ns for run in traced)
    all_ns = sum(run.stepping_device_ns for run in runs)
    ranked = []
    for rules in _groups(claim.rules for run in traced for ranks in run.captures for rank in ranks for claim in rank):
        weighted = _Share()
        for run in traced:
            share = _run_share(run, frozenset(rules))
            weighted.value += share.value * run.stepping_device_ns
            weighted.low += share.low * run.stepping_device_ns
            weighted.high += share.high * run.stepping_device_ns
        if not traced_ns or not weighted.value:
            continue
        value_ns = int(weighted.value * all_ns / traced_ns)
        if value_ns:
            low_ns = min(value_ns, int(weighted.low))
            high_ns = max(value_ns, int(weighted.high * all_ns / traced_ns))
            method = _worst_method(traced, frozenset(rules))
            ranked.append(_ranked(runs, rules, (value_ns, low_ns, high_ns), method, all_ns))
    ranked.extend(_from_samples(runs))
    ranked.sort(key=lambda one: (-expected(one.rules, one.low_ns, one.high_ns), one.key))
    return led_by_proven(ranked, lambda one: standing_of_opportunity(one.rules))


def _groups(claims: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rules that share a claim anywhere belong together, transitively."""
    groups: list[set[str]] = []
    for rules in claims:
        merged = set(rules)
        apart = []
        for group in groups:
            if group & merged:
                merged |= group
            else:
                apart.append(group)
        groups = [*apart, merged]
    return sorted(tuple(sorted(group)) for group in groups)


def _run_share(run: RunEvidence, rules: frozenset[str]) -> _Share:
    """Mean over the run's captures. Ranks of one capture wait for each other, so the slowest one sets the pace:
    the worst rank is the estimate, the mean of the ranks its low end."""
    total = _Share()
    for ranks in run.captures:
        shares = []
        for claims in ranks:
            share = _Share()
            for claim in claims:
                if rules & set(claim.rules):
                    share.value += Fraction(claim.share_frac)
                    share.low += Fraction(claim.low_frac)
                    share.high += Fraction(claim.high_frac)
            shares.append(share)
        total.value += max(share.value for share in shares)
        total.low += sum((share.low for share in shares), Fraction()) / len(shares)
        total.high += max(share.high for share in shares)
    count = len(run.captures)
    return _Share(
        *(min(Fraction(1), part / count) for part in (total.value, total.low, total.high)),
    )


def _worst_method(runs: Iterable[RunEvidence], rules: frozenset[str]) -> str:
    """A sum is only as sure as its least sure part, and a bound where no real cases have proven a rule."""
    if standing_of(rules) is not Standing.PROVEN:
        return Method.BOUND
    order = list(Method)
    used = [
        Method(claim.method)
        for run in runs
        for ranks in run.captures
        for rank in ranks
        for claim in rank
        if rules & set(claim.rules)
    ]
    return max(used, key=order.index, default=Method.BOUND)


def _ranked(
    runs: Sequence[RunEvidence],
    rules: tuple[str, ...],
    saving: tuple[int | None, int | None, int | None],
    method: str,
    device_ns: int,
) -> Ranked:
    mine = [text for run in runs for text in run.findings if text.rule in rules]
    best: dict[str, FindingText] = {}
    for text in sorted(mine, key=lambda text: -text.share_frac):
        best.setdefault(text.rule, text)
    leaders = list(best.values())
    title = leaders[0].title if leaders else ", ".join(rules)
    if len(leaders) > 1:
        title += f" (claims the same time as: {', '.join(text.rule for text in leaders[1:])})"
    return Ranked(
        rules=rules,
        title=title,
        fix="; or ".join(dict.fromkeys(text.fix for text in leaders)),
        findings=tuple(text.id for text in mine),
        value_ns=saving[0],
        low_ns=saving[1],
        high_ns=saving[2],
        method=method,
        device_ns=device_ns,
    )


def _from_samples(runs: Sequence[RunEvidence]) -> Iterator[Ranked]:
    """One for each rule on samples: they claim different time of a run, and none that a trace's findings claim."""
    device_ns = sum(run.device_ns for run in runs)
    for rule in sorted({saving.rule for run in runs for saving in run.from_samples}):
        mine = [saving for run in runs for saving in run.from_samples if saving.rule == rule]
        if all(saving.value_ns is None for saving in mine):
            yield _ranked(runs, (rule,), (None, None, None), "", device_ns)
        else:
            value, low, high = (sum(getattr(s, name) or 0 for s in mine) for name in ("value_ns", "low_ns", "high_ns"))
            yield _ranked(runs, (rule,), (value, low, high), Method.BOUND, device_ns)
