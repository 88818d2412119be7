"""How much of a fleet's device time became progress: one line of three ratios and their product."""

from __future__ import annotations

from dash import html

from tightship_dashboard.figures.elements import Node, missing
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.fleet import Goodput

GOODPUT = "The product of the three: device time that became progress, over all that there was. See docs/account.md."
UNKNOWN_PRODUCT = "One of the three ratios is not known, so their product is not."
_RATIOS: tuple[tuple[str, str, str, str], ...] = (
    (
        "scheduling",
        "scheduling_frac",
        "Device time that runs held, over that and what no run held.",
        "Not known: no host reported devices that no run held, or this is not the live fleet.",
    ),
    (
        "runtime",
        "runtime_frac",
        "Device time of steps whose work was kept, over what runs held.",
        "Not known: some of it is unexplained in runs that counted no steps.",
    ),
    (
        "program",
        "program_frac",
        "Device time that the FLOPs of these steps need at peak rates, over what they took; at least.",
        "Not known: of some runs no trace tells the FLOPs, or their device has no known peak rate.",
    ),
)


def line(found: Goodput | None) -> list[Node]:
    """Such as 'Goodput 12 % = scheduling 91 % × runtime 40 % × program 33 %', each with its meaning on hover; nothing
    where no ratio is known."""
    if found is None:
        return []
    parts: list[Node] = [html.Span(["Goodput ", _value(found.goodput_frac, UNKNOWN_PRODUCT)], title=GOODPUT)]
    for number, (name, field, meaning, unknown) in enumerate(_RATIOS):
        value = _value(getattr(found, field), unknown)
        parts += [" × " if number else " = ", html.Span([f"{name} ", value], title=meaning)]
    return [html.P(parts, className="goodput")]


def _value(frac: float | None, unknown: str) -> Node:
    return missing(unknown) if frac is None else html.B(fmt.percent(frac))
