"""The answers about what was done about opportunities: how it stands, what was predicted, what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, Link, Part, actions_href, runs_href
from tightship_platform.results.action import Action, Prediction, Verification
from tightship_platform.units import format_frac, plural, unbroken
from tightship_platform.vocabulary import ActionKind, ActionState, Verdict

DONE: dict[str, str] = {
    ActionKind.APPLY: "applied",
    ActionKind.DISMISS: "dismissed",
    ActionKind.REOPEN: "reopened",
}
"""What somebody did, as it stands where nothing more is known of it."""
NOTHING_PREDICTED = "None of its saving lies within the step, which is all that runs are compared by."
AGREEMENT = ("as predicted", "more than predicted", "less than predicted")


@dataclass(frozen=True)
class Calibration:
    """How measured savings compare with what was predicted of them."""

    pairs: Sequence[tuple[Prediction, Verification]]
    """Those that have both, with the interval of what was measured."""

    @property
    def inside(self) -> int:
        """Measured savings that lie in the predicted interval."""
        return sum(one.low_frac <= found.saving_frac <= one.high_frac for one, found in self.pairs)

    def agreeing(self, words: str) -> int:
        """Those of which the two intervals say this; see `Verification.agreement`."""
        return sum(found.agreement == words for _, found in self.pairs)


def calibration(rows: Sequence[Action]) -> Calibration:
    """Of all applications among them."""
    both = [(row.predicted, row.verification) for row in rows]
    return Calibration([(one, found) for one, found in both if one and found and found.low_frac is not None])


def state_words(action: Action) -> str:
    """How it stands, in one or two words."""
    return action.state or DONE.get(action.kind, action.kind)


def what_was_done(action: Action) -> str:
    """The change of an application; of all else, what was wrong."""
    return action.title if action.change is None else action.change.fix


def predicted_text(predicted: Prediction | None) -> str:
    """Such as '30.0 % (25.0–40.0), simulated', of the step."""
    if predicted is None:
        return fmt.MISSING
    return f"{_span(predicted.saving_frac, predicted.low_frac, predicted.high_frac)}, {predicted.method}"


def measured_text(found: Verification | None) -> str:
    """Such as '29.4 % (27.1–31.8)', of the step; without an interval where there were too few steps for one."""
    return fmt.MISSING if found is None else _span(found.saving_frac, found.low_frac, found.high_frac)


def did_it_work(rows: Sequence[Action], *, most: int, **filters: str | None) -> Answer:
    """How many changes were applied and what came of them, and whether the predictions hold. Savings of two changes may
    be of the same time, so they are counted and never added.

    :param most: as many as are looked for.
    :param filters: those in the address, which the links keep.
    """
    applied = [row for row in rows if row.kind == ActionKind.APPLY]
    of: list[Part] = []
    if workflow := filters.get("workflow"):
        of += [" of ", Link(fmt.name(workflow), runs_href(workflow=workflow))]
    if team := filters.get("team"):
        of += [f" of team {fmt.name(team)}"]
    if number := filters.get("opportunity"):
        of += [f" for opportunity {number}"]
    if not applied:
        state = filters.get("state")
        return ["0 changes", *of, f" are {state}." if state else " were applied."]
    states = Counter(row.state or "" for row in applied)
    newest = "Of the newest " if len(rows) >= most else "Of "
    parts: list[Part] = [newest, plural(len(applied), "applied change"), *of, ", "]
    kinds = [
        (states[ActionState.VERIFIED], "is verified", "are verified", ActionState.VERIFIED),
        (states[ActionState.REFUTED], "is refuted", "are refuted", ActionState.REFUTED),
        (states[ActionState.APPLIED], "waits for a run that tells", "wait for runs that tell", ActionState.APPLIED),
        (states[ActionState.WITHDRAWN], "was withdrawn", "were withdrawn", ActionState.WITHDRAWN),
    ]
    counted = [(count, one if count == 1 else many, state) for count, one, many, state in kinds if count]
    for index, (count, words, state) in enumerate(counted):
        parts += [", " if 0 < index < len(counted) - 1 else " and " if index else ""]
        parts += [Link(f"{count} {words}", actions_href(**{**filters, "state": state}))]
    return [*parts, ".", *_agreement(calibration(applied))]


def _agreement(found: Calibration) -> list[Part]:
    if not found.pairs:
        return [" No saving has been measured yet."]
    if len(found.pairs) == 1:
        [(predicted, measured)] = found.pairs
        link = Link(f"measured saving is {measured_text(measured)}", "#calibration")
        return [" Its ", link, f" of the step; {_prediction(predicted)}."]
    of = len(found.pairs)
    overlap = found.agreeing("as predicted")
    return [
        " ",
        Link(f"{found.inside} of {of} measured savings", "#calibration"),
        f" {'lies' if found.inside == 1 else 'lie'} in the predicted interval; the two intervals overlap in {overlap}.",
    ]


def one_action(action: Action) -> Answer:
    """Whether it worked."""
    workflow = Link(fmt.name(action.workflow), runs_href(workflow=action.workflow))
    if action.kind != ActionKind.APPLY:
        why = f": {_without_stop(fmt.name(action.reason, limit=300))}" if action.reason else ""
        return [f"{fmt.name(action.by)} {_did(action.kind)} an opportunity of ", workflow, f"{why}."]
    if action.state == ActionState.WITHDRAWN:
        return ["Nobody knows: this change of ", workflow, " was withdrawn before a run could tell."]
    found = action.verification
    if action.state == ActionState.APPLIED or found is None:
        why = fmt.name(action.waits_for, limit=400) if action.waits_for else "no run tells"
        return ["Not known yet for ", workflow, f". {_without_stop(why)}."]
    predicted = f"; {_prediction(action.predicted)}." if action.predicted else "."
    step: list[Part] = [
        "a step of ",
        workflow,
        " takes ",
        Link(_less(found), "#measured"),
        " device time than before",
        predicted,
    ]
    return ["Yes: " if found.verdict == Verdict.VERIFIED else "No: ", *step]


def _prediction(predicted: Prediction) -> str:
    span = _span(predicted.saving_frac, predicted.low_frac, predicted.high_frac)
    return f"the prediction ({predicted.method}) was {span}"


def _less(found: Verification) -> str:
    """'29.4 % (27.1–31.8) less', or how much more."""
    if found.saving_frac >= 0:
        return f"{measured_text(found)} less"
    low, high = found.low_frac, found.high_frac
    return f"{_span(-found.saving_frac, None if high is None else -high, None if low is None else -low)} more"


def _span(frac: float, low: float | None, high: float | None) -> str:
    """'29.4 % (27.1–31.8)'; '−2.1 % (−4.3 to 0.2)' where it reaches below 0."""
    text = unbroken(format_frac(frac))
    if low is not None and high is not None:
        text += f" ({100 * low:.1f}{'–' if low >= 0 else ' to '}{100 * high:.1f})"
    return text.replace("-", "\N{MINUS SIGN}")


def _did(kind: str) -> str:
    words: dict[str, str] = {ActionKind.DISMISS: "dismissed", ActionKind.REOPEN: "reopened"}
    return words.get(kind, "did something about")


def _without_stop(text: str) -> str:
    return text.rstrip(". ")
