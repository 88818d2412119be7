"""The form of *Will it fit, and how fast?*, and the workflows that can be planned."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html

from tightship_analyzers import hardware
from tightship_analyzers.offload_planner.sources import command_for
from tightship_dashboard.figures import grid
from tightship_dashboard.figures.elements import Node, attrs, empty, notice, section
from tightship_dashboard.pages.fit_request import FormState
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import fit_href
from tightship_platform.errors import TightshipError
from tightship_platform.units import format_bytes

_TABLE = "fit-workflows"


def form(state: FormState) -> Node:
    gpus, trouble = _gpus(state)
    fields = [
        dmc.Select(
            id="fit-workflow",
            label="Workflow",
            data=[{"value": name, "label": fmt.name(name, limit=60)} for name in state.ready_first],
            value=state.workflow if state.workflow in state.lacking else None,
            placeholder="pick one",
            searchable=True,
            clearable=True,
            size="xs",
            w=220,
            nothingFoundMessage="No workflow of that name",
        ),
        dmc.Select(
            id="fit-gpu",
            label="GPU",
            data=gpus,
            value=state.given["gpu"] or None,
            placeholder=f"as recorded: {fmt.name(state.device, limit=40)}" if state.device else "as in the profile",
            searchable=True,
            clearable=True,
            size="xs",
            w=270,
        ),
        _text(state, "memory", "Use at most", "its memory less 5 %"),
        _text(state, "host", "Host memory", _known(state.of_host("host_bytes"))),
        _text(state, "cores", "Cores", fmt.count(state.of_host("cores")) if state.of_host("cores") else "such as 16"),
    ]
    shared = []
    if state.machine is not None and state.machine.devices > 1:
        count = state.machine.devices
        shared = [html.P(f"{count} ranks share the host: a plan of each may take 1/{count} of it.", className="quiet")]
    return html.Div([html.Div(fields, className="filters fit-form"), *trouble, *shared])


def _text(state: FormState, name: str, label: str, placeholder: str) -> Node:
    return dmc.TextInput(
        id=f"fit-{name}",
        label=label,
        value=state.given[name],
        placeholder=placeholder,
        debounce=True,
        size="xs",
        w=150,
    )


def _known(size: int | None) -> str:
    return "such as 256GiB" if size is None else format_bytes(size)


def _gpus(state: FormState) -> tuple[list[dict[str, str]], list[Node]]:
    """The catalogue's devices, and what is wrong with it."""
    try:
        known = hardware.devices()
    except TightshipError as error:
        return [], [notice(f"The list of GPUs cannot be read: {error}.")]
    names = {device.names[0]: f"{device.names[0]}, {format_bytes(device.memory_bytes)}" for device in known}
    for name in (state.device, state.given["gpu"]):
        if name:
            names.setdefault(name, fmt.name(name, limit=60))
    return [{"value": value, "label": label} for value, label in sorted(names.items(), key=lambda item: item[1])], []


def paste() -> Node:
    return html.Details(
        [
            html.Summary("Or paste a profile"),
            html.Div(
                [
                    html.P(
                        [
                            "What ",
                            html.Code("tightship offload measure -o profile.yaml -- python train.py"),
                            " wrote, as YAML or JSON. The fields above say for which machine; left empty, for its own.",
                        ],
                        className="quiet",
                    ),
                    dmc.Textarea(
                        id="fit-profile",
                        minRows=8,
                        maxRows=16,
                        autosize=True,
                        placeholder="version: 1\nmodel: …",
                        **attrs(aria_label="Profile"),
                    ),
                    html.Button("Plan this profile", id="fit-plan-profile", type="button", className="act"),
                ]
            ),
        ],
        className="fit-paste",
    )


def workflows(state: FormState) -> Node:
    if not state.lacking:
        return empty(
            "Nothing has reported yet.",
            "Put `tightship run` before the command of a training job, and request a trace of it.",
            "tightship run --workflow mine -- python train.py",
            command_for("mine"),
        )
    columns = [
        grid.column("workflow", "Workflow", "link", minWidth=130, flex=2),
        grid.column("why", "Has a trace to plan from", minWidth=150, flex=3),
        grid.column("command", "What gets one", minWidth=200, flex=4, wide=True, cellClass="mono"),
    ]
    ordered = [(name, state.lacking[name]) for name in state.ready_first]
    rows = [
        {
            "id": name,
            "workflow": fmt.name(name),
            "workflow_href": fit_href(workflow=name),
            "why": f"no: {fmt.cell(why, limit=200)}" if why else "yes",
            "command": fmt.cell(command_for(name), limit=300) if why else "",
        }
        for name, why in ordered
    ]
    return section("Workflows", [grid.table(_TABLE, columns, rows, label="Workflows", wrap=True)], anchor="workflows")
