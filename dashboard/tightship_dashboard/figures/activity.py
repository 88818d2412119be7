"""What samples measured of an imported fleet, as bars, and what its figures take for granted, as lists."""

from __future__ import annotations

from dash import html

from tightship_dashboard.figures.bars import bar, waterfall
from tightship_dashboard.figures.elements import Node, attrs, badge, link
from tightship_dashboard.figures.palette import BUSY, IDLE, LONG_IDLE, UNMEASURED
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import fleet_href
from tightship_platform.results.fleet import ImportedFleet
from tightship_platform.units import plural
from tightship_platform.vocabulary import LIVE


def measured(fleet: ImportedFleet) -> Node:
    """Held, busy, idle, of which in long stretches, and unmeasured time, all to one scale."""
    total = fleet.device_ns
    busy, idle = fleet.busy_ns or 0, fleet.idle_ns or 0
    rows = [
        ("held", "Time in which a run held a device.", "var(--ink-2)", 0, total),
        ("busy", "Utilisation × time, by the samples.", BUSY, 0, busy),
        ("idle", "The rest of the time for which there are samples.", IDLE, busy, idle),
        (
            "idle for ≥ 10 min",
            "Stretches of ten minutes or more in which every sample was below 5 %; a hole ends a stretch.",
            LONG_IDLE,
            busy,
            fleet.long_idle_ns or 0,
        ),
        ("unmeasured", "Held, and no sample says what happened.", UNMEASURED, busy + idle, fleet.unmeasured_ns),
    ]
    return waterfall(
        "Device time that was held, and how much of it was busy and idle",
        [
            bar(label, start, value, total, colour=colour, title=meaning)
            for label, meaning, colour, start, value in rows
        ],
    )


def assumptions(fleet: ImportedFleet) -> Node:
    """What the figures take for granted, and which rows were left out."""
    taken = [html.Li(fmt.name(text, limit=400)) for text in fleet.assumptions]
    left = [html.Li(f"{plural(count, 'row')}: {fmt.name(why, limit=300)}") for why, count in fleet.refused.items()]
    parts: list[Node] = [html.Ul(taken)] if taken else [html.P("Nothing.", className="quiet")]
    if left:
        parts += [html.P(f"Of {plural(fleet.rows, 'row')} that were read, these were left out:"), html.Ul(left)]
    return html.Div(parts, className="assumptions")


def imported_badge(fleet: str) -> Node:
    """What is imported says so."""
    return badge(f"imported: {fmt.name(fleet, limit=60)}", "The history of another fleet, as it was recorded there.")


def choice(names: list[str], chosen: str | None) -> list[Node]:
    """The live fleet and the imported ones, where there are any."""
    if not names and chosen is None:
        return []
    links = [
        link(
            fmt.name(name, limit=40),
            fleet_href(name),
            className="here" if name == (chosen or LIVE) else None,
            title="What agents and launchers report" if name == LIVE else "An imported history",
        )
        for name in [LIVE, *names]
    ]
    return [html.Nav(links, className="choice", **attrs(aria_label="Fleet"))]
