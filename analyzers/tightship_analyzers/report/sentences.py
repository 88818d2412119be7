"""A verdict in words, the same on every face."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.report.palette import bucket_label, cause_label
from tightship_platform.results.analysis.figures import MOST_PLACES, CausedTime, FusionCandidate, RooflineFamily
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import (
    RankAnalysis,
    TraceSummary,
    device_label,
    is_stretched,
    stretch_words,
)
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.evidence import Gap
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import Bucket, Method, SavingUnit, Standing

LEAST_GRAPH_FRAC = 0.001
"""Share of the window below which captured graphs are not worth a line."""

LEAST_UNCLAIMED_FRAC = 0.1
"""Share of the window above which it is reported that no finding covers it."""

CLAUSE: dict[str, str] = {
    Bucket.INPUT: "idle waiting for the next batch",
    Bucket.CHECKPOINT: "idle while state is saved",
    Bucket.HOST_SYNC: "idle after the host was blocked in a synchronization",
    Bucket.HOST: "idle waiting for the host to launch work",
    Bucket.QUEUED: "idle between kernels that were already queued (dependency or launch latency)",
    Bucket.COMMUNICATION: "exposed communication",
    Bucket.UNEXPLAINED: "idle for a reason that the trace does not show",
}
"""How a sentence goes on after '5.0 %'."""

HOST_CLAUSE = {
    Cause.ALLOCATOR.word: "idle while the host mostly allocates or frees device memory",
    Cause.COMPILATION.word: "idle while the host mostly compiles or loads code",
    Cause.GARBAGE_COLLECTION.word: "idle while the host mostly collects garbage",
}
"""The same for `host` where something else than launching work takes the most of it."""


APART = "Experimental: what these rules say was wrong in more than one of ten real cases"
"""Stands above findings of such rules, which come last."""

NO_CAUSE = (Cause.UNEXPLAINED.word, Cause.UNRECORDED.word, Cause.WINDOW_EDGE.word, Cause.PROFILING.word)
"""What is unexplained, and why."""


def headline(result: RunAnalysis) -> str:
    """One sentence: how much of the step was work, and what took most of the rest; of several ranks for the worst."""
    worst = least_productive(result)
    summary = worst.summary
    total = summary.window_ns
    if summary.recording.unfit is not None:
        return f"{_whom(result, worst)}No verdict on this recording: {summary.recording.unfit}."
    if not total or not summary.buckets:
        return "Nothing in the trace can be judged."
    distrust = summary.recording.distrust
    if distrust is not None:
        return f"{_whom(result, worst)}What bounds the job is not known: {distrust}."
    losses = [row for row in losses_first(worst) if row[0] != Bucket.PRODUCTIVE]
    apart = " without communication" if summary.buckets.get(Bucket.COMMUNICATION) else ""
    text = (
        f"{_whom(result, worst)}{_device(worst)} busy {format_frac(_productive(worst))} of the {whole_of(worst)}{apart}"
    )
    if not losses:
        return f"{text}."
    part, ns = losses[0]
    return f"{text}; {format_frac(ns / total)} {_clause(worst, part)}."


def _whom(result: RunAnalysis, worst: RankAnalysis) -> str:
    count, all_whole = len(whole_ranks(result)), len(whole_ranks(result)) == len(result.ranks)
    if len(result.ranks) == 1:
        return ""
    if count == 1:
        return f"Rank {worst.rank}, the only complete one: "
    return f"Rank {worst.rank}, the least productive of {count}{'' if all_whole else ' complete ones'}: "


def _device(one: RankAnalysis) -> str:
    if one.summary.device_kind != "cpu":
        return "GPU"
    return "Host" if one.summary.covered_frac is None else "CPU"


def _clause(one: RankAnalysis, part: str) -> str:
    rows = one.figures.window_idle_causes or []
    by_cause = {row.cause: 0 for row in rows}
    for row in rows:
        by_cause[row.cause] += row.ns
    unknown = max(NO_CAUSE, key=lambda word: by_cause.get(word, 0))
    if part == Bucket.UNEXPLAINED and unknown == Cause.UNRECORDED.word:
        return "device work that the file does not hold"
    if part == Bucket.UNEXPLAINED and unknown == Cause.PROFILING.word:
        return "idle, mostly because recording Python stacks slows the host"
    if part == Bucket.UNEXPLAINED and unknown == Cause.WINDOW_EDGE.word:
        edges = [row for row in rows if row.cause == Cause.WINDOW_EDGE.word]
        place = max(edges, key=lambda row: row.ns).place
        return "idle before the first or after the last kernel" + (f" (on the CPU: {place})" if place else "")
    if part == Bucket.HOST:
        cause = max((*HOST_CLAUSE, Cause.HOST_DISPATCH.word), key=lambda word: by_cause.get(word, 0))
        return HOST_CLAUSE.get(cause, CLAUSE[Bucket.HOST])
    return CLAUSE.get(part, f"in {bucket_label(part)}")


def devices_differ(result: RunAnalysis) -> str | None:
    """A warning where the ranks ran on different devices; None where they did not."""
    ranks: dict[str, list[str]] = {}
    for one in whole_ranks(result):
        ranks.setdefault(device_of(one.summary), []).append(str(one.rank))
    if len(ranks) < 2:
        return None
    listed = "; ".join(f"{device}: rank {', '.join(numbers)}" for device, numbers in ranks.items())
    return f"The devices differ ({listed}); if these are two runs, compare them with `tightship diff`."


def least_productive(result: RunAnalysis) -> RankAnalysis:
    """The rank of the smallest productive share, the first one of several. A file that was cut off covers another
    stretch of time than the others and does not compete."""
    return min(whole_ranks(result), key=_productive)


def whole_ranks(result: RunAnalysis) -> Sequence[RankAnalysis]:
    """Those whose files hold all device events; all where none does."""
    return [one for one in result.ranks if one.summary.covered_frac == 1.0] or result.ranks


def nothing_found(result: RunAnalysis) -> str:
    """The line shown where there is no finding; a clean bill only for traces whose steps could be judged."""
    judged = result.rules - len(result.not_judged)
    counted = f"{judged} of {plural(result.rules, 'rule')} judged"
    if is_clean(result):
        return f"Nothing above the thresholds; {counted}."
    if not judged:
        return "No advice: no rule applied to this trace; the reasons are below."
    if not any(one.summary.buckets for one in result.ranks):
        return "No advice: nothing that was recorded can be judged."
    return f"No advice: {counted} the recording as a whole and found nothing. With steps more rules apply; see below."


def is_clean(result: RunAnalysis) -> bool:
    """Whether a trace with whole steps was judged by any rule, and nothing was found."""
    judged = len(result.not_judged) < result.rules
    return judged and not result.findings and any(one.summary.steps for one in result.ranks)


def uncovered_words(result: RunAnalysis) -> list[str]:
    """What of the recordings could not be judged, one line for each file; it limits the whole verdict."""
    limited = [one for one in result.ranks if one.summary.covered_frac != 1.0 or one.summary.recording.unfit]
    return [f"{one.source}: {one.summary.warnings[0]}" for one in limited]


def not_judged_words(result: RunAnalysis) -> list[str]:
    """One line for each reason why rules could not judge, with those rules."""
    rules: dict[str, list[str]] = {}
    for rule, reason in result.not_judged.items():
        rules.setdefault(reason, []).append(rule)
    return [f"Not judged: {', '.join(names)} ({reason})" for reason, names in rules.items()]


def losses_first(one: RankAnalysis) -> list[tuple[str, int]]:
    """(part, ns) of a rank's window: what was productive first, then losses by size; empty ones left out."""
    return sorted(
        ((part, ns) for part, ns in one.summary.buckets.items() if ns),
        key=lambda item: (item[0] != Bucket.PRODUCTIVE, -item[1]),
    )


def by_cause_and_place(rows: Sequence[CausedTime]) -> list[tuple[str, str, int]]:
    """(cause in words, place, ns), the largest first."""
    sums: dict[tuple[str, str], int] = {}
    places = Counter(row.cause for row in rows)
    for row in rows:
        nameless = "smaller places together" if places[row.cause] >= MOST_PLACES else "no place is recorded"
        key = cause_label(row.cause), str(row.place or nameless)
        sums[key] = sums.get(key, 0) + int(row.ns)
    return sorted(((*key, ns) for key, ns in sums.items()), key=lambda row: -row[2])


def idle_words(result: RunAnalysis, one: RankAnalysis) -> str | None:
    """How long a rank's device is idle; None where it is not, or where that is not known."""
    long = _long(one, one.figures.window_idle_causes)
    whose = f" of rank {one.rank}" if len(result.ranks) > 1 else ""
    return long and f"The device{whose} is idle for {long}. Each nanosecond has one cause and one place."


def exposed_words(result: RunAnalysis, one: RankAnalysis) -> str | None:
    """How long a rank communicates without computing; None where it does not, or where that is not known."""
    long = _long(one, one.figures.exposed_causes)
    whose = f" of rank {one.rank}" if len(result.ranks) > 1 else ""
    return long and f"Communication{whose} is exposed, with nothing computing beside it, for {long}."


def _long(one: RankAnalysis, causes: Sequence[CausedTime] | None) -> str | None:
    total, steps = sum(row.ns for row in causes or []), one.summary.steps
    if not total:
        return None
    long = f"{format_ns(total // steps)} a step" if steps else format_ns(total)
    return f"{format_frac(total / (one.summary.window_ns or 1))} of the {whole_of(one)}, {long}"


def saving_words(finding: TraceFinding) -> str:
    """What a finding saves: its value between low and high; `up to` where it may be nothing and is at most that."""
    saving, unit = finding.saving, SavingUnit(finding.saving.unit)
    if saving.value is None or saving.high is None:
        return "not known"
    per, whole = (" a step", "it") if unit == SavingUnit.STEP else ("", f"the {unit.whole}")
    share = f"{format_frac(saving.share_frac)} of {whole}"
    if saving.method == Method.BOUND:
        if saving.value == saving.high:
            return f"estimate, upper bound {format_ns(saving.high)}{per}, {share}"
        value, low, high = (format_ns(ns) for ns in (saving.value, saving.low, saving.high))
        return f"estimate {value}{per} ({low} to upper bound {high}), {share}"
    if not saving.value and saving.high:
        return f"nothing alone, up to {format_ns(saving.high)}{per} once the host launches faster ({saving.method})"
    if not saving.low and saving.value == saving.high:
        return f"up to {format_ns(saving.high)}{per} ({saving.method}), {share}"
    between = "" if saving.low == saving.high else f"{format_ns(saving.low)} to {format_ns(saving.high)}, "
    return f"{format_ns(saving.value)}{per} ({between}{saving.method}), {share}"


def apart_words(result: RunAnalysis, number: int) -> str | None:
    """What stands above the finding of that number (from 0) where it is the first experimental one."""
    standings = [finding.standing for finding in result.findings[: number + 1]]
    first = standings[-1] == Standing.EXPERIMENTAL and standings.count(Standing.EXPERIMENTAL) == 1
    return APART if first else None


def whole_of(one: RankAnalysis) -> str:
    """What a share is a share of: the `step`, or where the trace marks none the `recording`."""
    return (SavingUnit.STEP if one.summary.steps else SavingUnit.RECORDING).whole


def together_words(result: RunAnalysis) -> str | None:
    """What all findings give back together, on the rank where that is most; None for a single one."""
    if sum(finding.saving.value is not None for finding in result.findings) < 2:
        return None
    worst = max(result.ranks, key=lambda one: float(one.summary.joint_saving_frac))
    share = format_frac(worst.summary.joint_saving_frac)
    return f"All of them together: {share} of the {whole_of(worst)} (what overlaps counts once)."


def unclaimed_words(result: RunAnalysis) -> str | None:
    """What took much of the time and no finding covers, on the least productive rank; None where that is little."""
    one = least_productive(result)
    across = {finding.rule for finding in result.findings if finding.of_ranks}
    lost = {
        part: ns
        for part, ns in one.summary.unclaimed_ns.items()
        if not (across and part == Bucket.COMMUNICATION)  # what a rank comparison shows claims no time
    }
    part = max(lost, key=lambda part: lost[part], default="")
    share = lost.get(part, 0) / (one.summary.window_ns or 1)
    if share < LEAST_UNCLAIMED_FRAC:
        return None
    whose = f" of rank {one.rank}" if len(result.ranks) > 1 else ""
    return f"{format_frac(share)} of the {whole_of(one)}{whose} is not covered by any finding: {_clause(one, part)}."


def steps_words(result: RunAnalysis) -> str:
    """Which steps savings refer to."""
    if not any(one.summary.steps for one in result.ranks):
        return "Savings are of the whole recording, which marks no steps; profiling makes programs slower."
    one = least_productive(result).summary
    untraced_ns = one.untraced_step_ns
    if untraced_ns and one.step_ns and is_stretched(one.step_ns.mean, untraced_ns):
        named = any(finding.saving.value is not None for finding in result.findings)
        outcome = "savings are bounds" if named else "no saving is named"
        return f"{stretch_words(one.step_ns.mean, untraced_ns)}, so {outcome}; shares are of recorded steps."
    if untraced_ns is None:
        return "Savings are per step as recorded: profiling makes steps longer, most of all with stacks."
    return f"Savings are per step without profiling ({format_ns(untraced_ns)}); other figures are as recorded."


def graph_words(one: RankAnalysis) -> str | None:
    """How much of the idle time is up to captured graphs; None where it is next to nothing."""
    ns, window = one.figures.graph_idle_ns, one.summary.window_ns
    if not ns or ns < LEAST_GRAPH_FRAC * window:
        return None
    steps = one.summary.steps
    long = f"{format_ns(ns // steps)} a step" if steps else format_ns(ns)
    return (
        f"{long} of it ({format_frac(ns / window)}) is inside captured graphs that were already launched, or before "
        "their first kernel."
    )


def rates_of(family: RooflineFamily) -> tuple[str, str]:
    """What the kernels of a family achieved and could attain: bytes a second where memory sets the roof, else FLOPs."""
    if 2 * family.memory_bound_ns > family.device_ns:
        moved = family.achieved_bytes_per_s
        return f"{moved / 1e9:,.0f} GB/s", f"{moved / (family.roof_frac or 1) / 1e9:,.0f} GB/s"
    rates = family.achieved_flops_per_s, family.attainable_flops_per_s
    return f"{rates[0] / 1e12:,.2f} TFLOP/s", f"{rates[1] / 1e12:,.2f} TFLOP/s"


def chain_words(chain: FusionCandidate) -> str:
    """A chain of kernels that could be one, and what that saves at most."""
    ops = " → ".join(str(op).removeprefix("aten::") for op in chain.ops) + (
        " …" if chain.length > len(chain.ops) else ""
    )
    return (
        f"{f'{chain.module} ({ops})' if chain.module else ops}, {plural(chain.chains, 'time')}: "
        f"up to {format_ns(chain.saving_ns)} of {format_ns(chain.device_ns)}"
    )


def device_of(summary: TraceSummary) -> str:
    """The model of the device."""
    return device_label(summary.device, summary.device_kind, summary.covered_frac)


def ranks_on(ranks: Sequence[RankAnalysis]) -> str:
    """How many ranks on which devices."""
    devices = dict.fromkeys(device_of(one.summary) for one in ranks)
    return f"{plural(len(ranks), 'rank')} on {', '.join(devices)}"


def step_words(one: RankAnalysis, gap: Gap) -> str:
    """The step that a stretch of time falls into, by the name that the program gave it."""
    number = gap.step
    names = {row.step: str(row.name) for row in one.figures.steps}
    if not names:
        return "of the recording"
    return "outside of any step" if number is None else names.get(number, f"step {number}")


def steps_of(summary: TraceSummary) -> str:
    """How many steps of what length."""
    step = summary.step_ns
    if step is None:
        return f"{format_ns(summary.window_ns)} recorded, no whole step"
    if summary.steps == 1:
        return f"1 step of {format_ns(step.mean)}"
    return f"{summary.steps} steps of {format_ns(step.mean)} ({format_ns(step.min)} to {format_ns(step.max)})"


def _productive(one: RankAnalysis) -> float:
    summary = one.summary
    return int(summary.buckets.get(Bucket.PRODUCTIVE, 0)) / (summary.window_ns or 1)
