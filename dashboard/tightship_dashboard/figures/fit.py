"""What is known of a model in a window: the alternatives, why the plan is so, the machine, and how to use it."""

from __future__ import annotations

import shlex
from urllib.parse import quote
from zoneinfo import ZoneInfo

from dash import html

from tightship_dashboard.figures import chart, grid, window
from tightship_dashboard.figures.elements import (
    Node,
    badge,
    command,
    facts,
    link,
    notice,
    prose,
    section,
    simulated_badge,
    time_of,
)
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import run_href
from tightship_platform.results.plan_answer import PlanAnswer, PlanOption
from tightship_platform.results.run import RunDetail
from tightship_platform.units import format_bytes, plural

PLAN_FILE = "plan.yaml"
TABLE = "fit-options"
_MEANING = {
    "recommended": "the least device memory whose step is within 0.5 % of the shortest",
    "fastest": "the shortest step",
    "smallest": "the least device memory",
    "most headroom": "the most free memory, host or device, at no more than 5 % of the step",
    "changed loop": "what other micro-batches or checkpointing in the script would bring",
}
_WAITS = {
    "h2d": "weights on their way to the device",
    "d2h": "gradients on their way to the host",
    "cpu-update": "updates on the CPU",
    "slot": "a free slot",
    "clipping": "the norm of all gradients",
}


def simulated() -> Node:
    """The badge of everything here that is a time."""
    return badge("simulated", "Step times are simulated, and shown with their interval; none was measured.")


def result(answer: PlanAnswer, run: RunDetail | None, zone: ZoneInfo) -> Node:
    """Everything below the answer's first line.

    :param run: the run of the trace that was planned from, as `queries.runs` has it; None: there is none.
    """
    parts = [_window(answer)]
    if answer.refused is None:
        parts += [_options(answer), html.Div([_why(answer), _use(answer, run)], className="columns")]
    return html.Div([*parts, _machine(answer, run, zone)])


def _window(answer: PlanAnswer) -> Node:
    shape = answer.window
    kept = plural(shape.resident, "resident layer") if shape.resident else "no resident layer"
    caption = [f"With {kept}"]
    if shape.recompute == "layer":
        caption.append(", each layer checkpointed")
    if shape.micro_batches > 1:
        caption.append(f", {shape.micro_batches} micro-batches")
    caption.append("; hollow points do not fit. ")
    caption.append("The larger point is the plan's. " if shape.chosen else "Nothing fits, so nothing was timed. ")
    drawn = "Dashed" if window.is_limit_drawn(answer) else "Far above"
    caption.append(f"{drawn}: what may be used, {format_bytes(answer.limits.device_bytes)}")
    if shape.chosen:
        caption.append(f"; dashed below: a step without offload, {fmt.duration(answer.whole.step.ns)}")
    caption.append(".")
    drawing = chart.draw(
        window.figure(answer), graph_id="fit-window", title="Device memory and step time over the number of slots"
    )
    body = [html.Figure([drawing, html.Figcaption("".join(caption))])]
    return section("Memory and step time over the window", body, anchor="window", aside=simulated())


def _options(answer: PlanAnswer) -> Node:
    rows = [_row(option) for option in answer.options]
    return section(
        "The choice and its alternatives",
        [grid.table(TABLE, _columns(), rows, label="Plans", wrap=True)],
        anchor="options",
        aside=[f"{fmt.count(answer.simulated)} windows simulated", grid.export_button(TABLE, "plans.csv")],
    )


def _columns() -> list[grid.Column]:
    return [
        grid.column("name", "Plan", minWidth=100, flex=2),
        grid.column("step", "A step", "number", unit="ns", minWidth=140, flex=2, why="simulated, low–high"),
        grid.column(
            "share",
            "Of full speed",
            "number",
            unit="0..1",
            width=128,
            wide=True,
            why="of the speed without offload on a device that is large enough",
        ),
        grid.column("slots", "Slots", "number", width=74, wide=True),
        grid.column("resident", "Resident", "number", width=90, wide=True),
        grid.column("recompute", "Recompute", width=104, wide=True),
        grid.column("micro_batches", "Micro-batches", "number", width=120, wide=True),
        grid.column("device", "Device", "number", unit="bytes", minWidth=86, flex=1),
        grid.column("host", "Host", "number", unit="bytes", minWidth=90, flex=1, wide=True),
        grid.column("binds", "What binds", minWidth=110, flex=1, wide=True),
    ]


def _row(option: PlanOption) -> grid.Row:
    return {
        "id": option.name,
        "name": option.name,
        "name_why": _MEANING.get(option.name, option.name),
        "step": option.step_ns,
        "step_text": fmt.span(option.step_ns, option.low_ns, option.high_ns),
        "share": option.share_frac,
        "share_text": fmt.share_span(option.share_frac, option.share_low, option.share_high),
        "slots": option.slots,
        "resident": option.resident,
        "recompute": option.recompute,
        "micro_batches": option.micro_batches,
        "device": option.device_bytes,
        "device_text": format_bytes(option.device_bytes),
        "host": option.host_bytes,
        "host_text": format_bytes(option.host_bytes),
        "binds": option.bottleneck,
    }


def _why(answer: PlanAnswer) -> Node:
    return section(
        "Why",
        [html.Ul([html.Li(prose(line)) for line in answer.why], className="sentences")],
        anchor="why",
    )


def _use(answer: PlanAnswer, run: RunDetail | None) -> Node:
    words = [fmt.code(word) for word in (run.command if run is not None else ())] or ["python", "train.py"]
    named = ["--workflow", run.workflow] if run is not None else []
    start = shlex.join(["tightship", "run", "--offload", PLAN_FILE, *named, "--", *words])
    body: list[Node] = []
    if answer.change:
        body.append(notice(answer.change, kind="status"))
    if answer.whole.fits:
        body.append(html.P("It fits without offloading; a plan helps only with a larger batch or model."))
    body += [
        html.P(
            html.A(
                f"Download {PLAN_FILE}",
                href="data:application/yaml;charset=utf-8," + quote(answer.plan or ""),
                download=PLAN_FILE,
                className="act-link",
            )
        ),
        html.P("Then, on a machine like the one below:", className="quiet"),
        command(start, label="the command"),
        html.P("The script and its losses stay the same; the run's page will show predicted against measured times."),
    ]
    return section("Use it", body, anchor="use")


def _machine(answer: PlanAnswer, run: RunDetail | None, zone: ZoneInfo) -> Node:
    machine, limits = answer.machine, answer.limits
    how = "assumed" if answer.assumed else "measured"
    rows: list[tuple[str, Node]] = [
        ("device", fmt.name(machine.device)),
        ("device memory", format_bytes(machine.device_bytes)),
        ("usable of it", _allowed(limits.device_bytes, limits.device_by)),
        ("host memory", format_bytes(machine.host_bytes)),
        ("usable of it", _allowed(limits.host_bytes, limits.host_by)),
        ("cores", fmt.count(machine.cores)),
        (f"to the device, {how}", _rate(machine.h2d_bytes_per_s)),
        (f"to the host, {how}", _rate(machine.d2h_bytes_per_s)),
        (f"CPU updates, {how}", f"{machine.update_params_per_s / 1e9:.2f} G parameters/s"),
        ("model", f"{answer.layers} layers, {answer.parameters / 1e6:,.1f} M parameters"),
    ]
    if answer.options:
        waits = answer.options[0].waits_ns
        listed = [f"{fmt.duration(ns)} for {_WAITS.get(cause, cause)}" for cause, ns in _largest_first(waits) if ns]
        rows.append(("in a step the device waits", ", ".join(listed) or "for nothing"))
    if run is not None and answer.source is not None:
        trace = [link(fmt.name(run.run), run_href(run.run)), ", asked for "]
        rows.append(("planned from the trace of", html.Span([*trace, time_of(answer.source.requested_ns, zone)])))
    notes = [html.Li(prose(fmt.name(note, limit=500))) for note in answer.notes]
    body = [facts(rows), html.Ul(notes, className="sentences quiet")]
    aside = simulated_badge(run is not None and run.simulated)
    return section("What it rests on", body, anchor="machine", aside=aside)


def _allowed(size: int, by: str) -> Node:
    return html.Span(format_bytes(size), title=by)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"


def _largest_first(waits: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(waits.items(), key=lambda item: -item[1])
