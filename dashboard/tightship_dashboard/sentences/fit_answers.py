"""The first line of *Will it fit, and how fast?*: as those of `answers`, made of the planner's answer."""

from __future__ import annotations

from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, Link, Part
from tightship_platform.results.plan_answer import PlanAnswer
from tightship_platform.units import format_bytes, plural


def plannable(workflows: int, of_them: int) -> Answer:
    """How many workflows have a trace that a window of layers can be planned from."""
    if not workflows:
        return ["0 workflows are known yet: paste a profile below, or run something."]
    verb = "has" if of_them == 1 else "have"
    counted = Link(f"{of_them} of {plural(workflows, 'workflow')}", "#workflows")
    return [counted, f" {verb} a trace to plan from. Pick one, or paste a profile."]


def whether_it_fits(answer: PlanAnswer) -> Answer:
    """Whether a model fits, and how fast it trains."""
    whole, device = answer.whole, fmt.name(answer.machine.device, limit=60)
    where = "in the host's memory" if device == "cpu" else f"on {device}"
    if answer.limits.is_budget:
        where = "in the budget given"
    needs = Link(format_bytes(whole.device_bytes), "#window")
    allowed = format_bytes(answer.limits.device_bytes)
    parts: list[Part] = [f"{fmt.name(answer.model, limit=60)} "]
    if answer.refused is not None:
        why = answer.refused.rstrip(". ")
        return [*parts, f"does not fit {where}, not even in a window: {why[:1].lower()}{why[1:]}."]
    chosen = answer.options[0]
    step = Link(fmt.span(chosen.step_ns, chosen.low_ns, chosen.high_ns), "#window")
    memory = Link(format_bytes(chosen.device_bytes), "#options")
    share = fmt.share_span(chosen.share_frac, chosen.share_low, chosen.share_high)
    if whole.fits:
        alone = Link(fmt.span(whole.step.ns, whole.step.low_ns, whole.step.high_ns), "#window")
        parts += [f"fits {where} without offload: it takes ", needs, f" of {allowed}, and a step ", alone]
        parts += [", simulated. In a window it would take ", memory, f" at {share} of that speed."]
    else:
        parts += [f"does not fit {where} as it is (", needs, f" of {allowed}), but trains in a window of ", memory]
        parts += [": a step of ", step, f", simulated, {share} of the speed of a device that is large enough."]
    return [*parts, f" {answer.change}"] if answer.change else parts
