"""What was done about opportunities: what was predicted, what was applied, what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightship_platform.units import format_frac


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The saving that an opportunity named when it was applied, as a share of the step."""

    saving_frac: float
    """The estimate."""
    low_frac: float
    """Low end of it."""
    high_frac: float
    """High end of it."""
    method: str
    """`measured`, `simulated` or `bound`."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run whose steps were compared."""

    run: str
    """Its id."""
    steps: int
    """Steps that were compared: without start-up, and without those that a capture slowed."""
    periods: int
    """Periods of the step counter that hold them."""
    block: int | None
    """Periods that were resampled together; null: there were too few."""
    step_ns: int
    """Time of a step, the mean."""
    step_device_ns: int
    """Device time of a step: its time on every device that the run held."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Two runs of one workflow, like with like: what a step takes less in the later one."""

    workflow: str
    """Name of the workflow."""
    before: ComparedRun
    """The earlier run."""
    after: ComparedRun
    """The later run."""
    verdict: str
    """`verified`, `refuted` or `undecided`."""
    saving_frac: float
    """Share of the step before that a step after takes less; negative: it takes longer."""
    low_frac: float | None
    """Low end of its interval; null: there were too few steps for one."""
    high_frac: float | None
    """High end of its interval; null: there were too few steps for one."""
    level: float
    """Level of the interval."""
    margin_frac: float
    """A saving counts from here on."""
    predicted: Prediction | None
    """What was predicted; null: nothing was applied between the two."""
    agreement: str | None
    """`as predicted`, `more than predicted` or `less than predicted`; null: nothing to compare."""
    reason: str
    """Why this is the verdict, in one sentence."""
    remarks: list[str] = field(default_factory=list)
    """What is not known of the two runs, a sentence each."""


@dataclass(frozen=True, kw_only=True)
class ToChange:
    """The concrete change that an opportunity asks for."""

    fix: str
    """What to change."""
    places: list[str]
    """Where: file and line, operator or device; empty: unknown."""
    before: str
    """Code as it is; empty: none is known."""
    after: str
    """Code as it should be; empty: none is known."""
    command: str
    """The command that computes an offload plan for it, quoted for a shell; empty: none is needed."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """What somebody did about an opportunity, and what came of it."""

    action: int
    """Its id."""
    opportunity: int | None
    """Id of the opportunity; null: it is gone."""
    workflow: str
    """The workflow that it is about."""
    team: str | None
    """Team of the workflow; null: none was given."""
    title: str
    """What was wrong, in one sentence, as of then."""
    kind: str
    """`apply`, `dismiss` or `reopen`."""
    by: str
    """Who did it."""
    time_ns: int
    """When."""
    reason: str | None
    """Why, as it was said; null: nothing was."""
    change: ToChange | None
    """What was to be changed; null of what is no application."""
    predicted: Prediction | None
    """The saving that was predicted then; null: none of the step was."""
    before: str | None
    """Id of the last run before it; null: there was none, or it was removed."""
    simulated: bool
    """That run was made up by a simulator."""
    state: str | None
    """`applied`, `verified` or `refuted`; `withdrawn` when it was dismissed or opened again before that; null of what
    is no application."""
    waits_for: str | None
    """Why it is neither verified nor refuted yet; null: it is."""
    verification: Verification | None
    """What was measured; null: nothing yet."""
    verified_ns: int | None
    """When that was last compared; null: not yet."""


def predicted_words(predicted: Prediction | None) -> str:
    """Such as '31.0 % (28.0 % – 33.0 %), simulated', of the step; '–': nothing was predicted."""
    if predicted is None:
        return "–"
    return f"{_with_interval(predicted.saving_frac, predicted.low_frac, predicted.high_frac)}, {predicted.method}"


def measured_words(found: Verification) -> str:
    """Such as '29.4 % (27.1 % – 31.8 %)', of the step."""
    return _with_interval(found.saving_frac, found.low_frac, found.high_frac)


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    interval = "no interval" if low is None or high is None else f"{format_frac(low)} – {format_frac(high)}"
    return f"{format_frac(value)} ({interval})"
