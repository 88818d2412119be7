"""The answers about an imported fleet and its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, Link, Part, fleet_href, runs_href
from tightship_platform.results.fleet import ImportedFleet
from tightship_platform.results.run import Run
from tightship_platform.units import plural


def imported(fleet: ImportedFleet) -> Answer:
    """How much of an imported fleet's device time was busy, by its own samples; where nothing measured it, that."""
    name = fmt.name(fleet.fleet)
    if not fleet.runs:
        return [f"Nothing of {name} is imported yet."]
    parts: list[Part] = [f"In the imported history of {name}, "]
    runs = Link(plural(fleet.runs, "run"), runs_href(fleet=fleet.fleet))
    held = Link(fmt.device_time(fleet.device_ns), "#account")
    if fleet.busy_ns is None or fleet.idle_ns is None:
        parts += [runs, " held devices for ", held, "; nothing measured how much of it was busy"]
    else:
        busy, idle = Link(fmt.duration(fleet.busy_ns), "#activity"), Link(fmt.duration(fleet.idle_ns), "#activity")
        parts += ["devices were busy for ", busy, " (", fmt.share(fleet.busy_ns, fleet.device_ns), ") of the ", held]
        parts += [" that ", runs, " held, and idle for ", idle]
        if fleet.long_idle_ns:
            parts += [", ", Link(fmt.duration(fleet.long_idle_ns), "#activity")]
            parts += [" of it in stretches of ten minutes or more below 5 %"]
    parts += ["."]
    if fleet.unaccounted_runs:
        parts += [f" {plural(fleet.unaccounted_runs, 'run')} still to be accounted for."]
    if fleet.imported_ns is None:
        parts += [" The import was ended before the end of its source: import it again, it goes on."]
    return parts


def runs_of(fleet: str, rows: Sequence[Run], *, most: int) -> Answer:
    """How the runs of an imported fleet ended, as far as its source says.

    :param most: as many as are looked for.
    """
    states = Counter(row.state for row in rows)
    counted = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in states.most_common())
    newest = "The newest " if len(rows) >= most else ""
    name = Link(fmt.name(fleet), fleet_href(fleet))
    return [f"{newest}{plural(len(rows), 'run')} of the imported history of ", name, f": {counted}." if rows else "."]
