"""What is drawn: bars that sum, charts that Plotly accepts, and text that never becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import plotly.graph_objects as go
import pytest
from dash import html
from made_records import make
from plotly.utils import PlotlyJSONEncoder

from tightship_analyzers.report import gap_lanes
from tightship_analyzers.report.palette import BUCKET_COLOUR
from tightship_dashboard.figures import (
    account,
    calibration,
    captures,
    chart,
    elements,
    gap,
    grid,
    metrics,
    over_time,
    phases,
)
from tightship_dashboard.pages import one_run
from tightship_platform.results.action import Action
from tightship_platform.results.capture import Capture
from tightship_platform.results.evidence import Gap
from tightship_platform.results.fleet import FleetAccount
from tightship_platform.results.run import Run
from tightship_platform.results.timeline import Timeline
from tightship_platform.units import NS_PER_MS, NS_PER_S
from tightship_platform.vocabulary import Bucket

UTC = ZoneInfo("UTC")
H = 3600 * NS_PER_S
T0 = 1_790_000_000 * NS_PER_S
HOSTILE = "<img src=x onerror=alert(1)>\n<a href='javascript:alert(2)'>x</a>%{customdata}"


def tree(component: Any) -> list[Any]:
    """A component and everything in it."""
    found = [component]
    children = getattr(component, "children", None)
    for child in children if isinstance(children, list | tuple) else [children]:
        if child is not None:
            found += tree(child)
    return found


def texts(component: Any) -> str:
    return " ".join(str(node) for node in tree(component) if isinstance(node, str | int)).replace("\u00a0", " ")


def plotted(figure: dict[str, Any]) -> go.Figure:
    """The figure as Plotly validates it."""
    layout = {k: v for k, v in figure["layout"].items() if k != "template"}
    return go.Figure(figure | {"layout": layout})


# ---- bars ------------------------------------------------------------------------------------------------------------

BUCKETS = {"productive": 50 * H, "input": 30 * H, "host": 15 * H, "unexplained": 5 * H}


def test_the_waterfall_takes_each_loss_off_what_is_left_and_ends_in_what_worked() -> None:
    table = account.waterfall(BUCKETS, 100 * H)
    bars = [n for n in tree(table) if isinstance(n, html.Div) and "bar" in str(getattr(n, "className", "")).split()]
    spans = [(float(b.style["left"][:-1]), float(b.style["width"][:-1])) for b in bars]
    assert spans == [(0, 100), (70, 30), (55, 15), (50, 5), (0, 50)]
    assert "allocated" in texts(table)
    assert texts(table).index("input") < texts(table).index("unexplained") < texts(table).index("productive")


def test_every_bar_says_what_it_means_with_a_unit() -> None:
    rows = [n for n in tree(account.waterfall(BUCKETS, 100 * H)) if isinstance(n, html.Tr)]
    assert rows[1].title.replace("\u00a0", " ") == ("The device waited for the next batch. 30.0 h, 30 % of all.")


def test_unexplained_time_shows_also_when_there_is_none() -> None:
    assert "unexplained 0 s" in texts(account.waterfall({"productive": H}, H))


def test_what_did_work_is_missing_where_no_trace_tells() -> None:
    without_trace = {"startup": 38 * H, "productive": 0, "unexplained": 62 * H}
    shown = texts(account.waterfall(without_trace, 100 * H))
    assert "unexplained 62.0 h 62 %" in shown
    assert shown.endswith("productive – –")
    assert texts(account.by_group({"a": without_trace}, kind="team")).endswith("100 h –")
    assert texts(account.waterfall({"held_idle": H}, H)).endswith("productive 0 s 0 %"), "samples tell that"


@pytest.mark.parametrize(("is_live", "todo"), [(True, "Capture a trace below."), (False, "a trace of its next run.")])
def test_a_run_that_counted_no_step_says_so_once(is_live: bool, todo: str) -> None:
    run = make(Run, account={"unexplained": H}, device_ns=H, steps=0)
    shown = texts(one_run._account(SimpleNamespace(run=run, is_live=is_live)))
    assert shown.count("No steps were counted") == 1 and shown.endswith(todo)
    for reported in {"steps": 5}, {"account": {"productive": H}}:
        assert "No steps" not in texts(one_run._account(SimpleNamespace(run=replace(run, **reported), is_live=is_live)))


def test_teams_share_one_scale() -> None:
    table = account.by_group({"a": {"productive": 10 * H}, "b": {"productive": 20 * H, "input": 20 * H}}, kind="team")
    widths = [n.style["width"] for n in tree(table) if isinstance(n, html.Div) and n.className == "bar"]
    assert widths == ["50.000%", "50.000%", "25.000%"]
    assert texts(table).index("b") < texts(table).index(" a ")


# ---- charts ----------------------------------------------------------------------------------------------------------


def period(points: list[dict[str, Any]]) -> FleetAccount:
    return make(FleetAccount, since_ns=T0, until_ns=T0 + 3 * H, slice_ns=H, over_time=points)


def test_over_time_stacks_everything_and_names_units() -> None:
    points = [{"time_ns": T0 + i * H, "buckets": {"productive": 2 * H, "input": i * H}} for i in range(3)]
    drawn = plotted(over_time.figure(period(points), UTC))
    by_name = {trace.name: trace for trace in drawn.data}
    assert list(by_name) == ["productive", "input"]
    assert list(by_name["input"].y) == [None, 1, 2]
    assert by_name["productive"].marker.color == BUCKET_COLOUR[Bucket.PRODUCTIVE]
    assert by_name["input"].customdata[2].replace("\u00a0", " ") == "2.00 h"
    assert drawn.layout.yaxis.ticksuffix == " h"
    assert drawn.layout.barmode == "stack"
    assert list(drawn.layout.xaxis.range) == ["2026-09-21T14:13:20", "2026-09-21T17:13:20"], "the whole period"
    plotted(over_time.figure(period([]), UTC))


def test_times_of_a_chart_are_the_viewers() -> None:
    points = [{"time_ns": T0, "buckets": {"productive": H}}]
    here = over_time.figure(period(points), ZoneInfo("America/New_York"))
    there = over_time.figure(period(points), UTC)
    assert here["data"][0]["x"] != there["data"][0]["x"]
    assert here["layout"]["xaxis"]["title"]["text"] == "-04:00"


def timeline(**changes: Any) -> Timeline:
    times = [T0 + i * NS_PER_S for i in range(4)]
    given = {
        "start_ns": T0,
        "end_ns": T0 + 4 * NS_PER_S,
        "devices": [
            {"host": "n", "uuid": "g0", "kind": "gpu", "name": "H100", "time_ns": times, "power_w": [1.0, None, 3, 4]}
        ],
        "run_samples": [
            {"device": "g0", "time_ns": times, "util_frac": [0.1, 0.2, None, 0.4], "cpu_cores": [None] * 4}
        ],
        "steps": [{"rank": 0, "time_ns": times, "steps_per_s": [0, 1.5, 2, 0]}],
        "captures": [
            {"capture": "c1", "state": "analyzed", "requested_ns": T0, "start_ns": T0 + NS_PER_S, "end_ns": None},
            {"capture": "c2", "state": "expired", "requested_ns": T0 + NS_PER_S, "start_ns": None, "end_ns": None},
        ],
    }
    return make(Timeline, given, **changes)


def test_metrics_share_one_time_axis_and_leave_out_what_was_not_recorded() -> None:
    drawn = plotted(metrics.figure(timeline(), UTC))
    titles = [note.text for note in drawn.layout.annotations]
    assert titles == ["steps per second", "activity by this run", "power"]
    assert {trace.xaxis for trace in drawn.data} == {None}  # all on the first one
    power = drawn.data[2]
    assert list(power.y) == [1.0, None, 3, 4]
    assert power.connectgaps is False
    assert power.hovertemplate.startswith("%{y:,.0f} W, %{text}")


@pytest.mark.parametrize("rows", [timeline(), timeline(run_samples=[], steps=[])], ids=["three", "one"])
def test_the_title_of_a_row_lies_above_its_line(rows: dict[str, Any]) -> None:
    drawn = metrics.figure(rows, UTC)["layout"]
    plot_px = drawn["height"] - 2 * 8 - 34  # margins; ticks and zone below
    for number, note in enumerate(drawn["annotations"], start=1):
        gap_px = (note["y"] - drawn[f"yaxis{number}"]["domain"][1]) * plot_px
        assert gap_px >= 17, "12 px letters, with their lead and padding"


def test_captures_are_marked_also_those_that_never_recorded() -> None:
    drawn = plotted(metrics.figure(timeline(), UTC))
    marks = [trace for trace in drawn.data if trace.meta == "capture"]
    assert [point[0] for point in marks[0].customdata] == ["c1", "c2"]
    assert len(drawn.layout.shapes) == 2


def test_a_run_without_any_metric_still_draws() -> None:
    bare = timeline(devices=[{"host": "n", "uuid": "g", "time_ns": []}], run_samples=[], steps=[], captures=[])
    plotted(metrics.figure(bare, UTC))
    assert metrics.is_empty(bare)
    assert not metrics.is_empty(timeline())


def gap_evidence(cause: str = "input", name: str = "aten::mm", frames: list[dict[str, Any]] | None = None) -> Gap:
    def span(start: int, end: int, depth: int = 0) -> dict[str, Any]:
        return {"name": name, "start_ns": T0 + start * NS_PER_MS, "end_ns": T0 + end * NS_PER_MS, "depth": depth}

    evidence = {
        "step": 4,
        "start_ns": T0,
        "end_ns": T0 + 40 * NS_PER_MS,
        "cause": cause,
        "lanes": [
            {"lane": "device", "spans": [span(-10, 0), span(40, 50)]},
            {"lane": "host", "spans": [span(-1, 39), span(0, 20, 1)]},
            {"lane": "frames", "spans": frames or []},
        ],
    }
    return make(Gap, evidence)


def test_the_gap_is_shaded_from_zero_to_its_length_and_its_cause_is_named() -> None:
    drawn = plotted(gap.figure(gap_evidence()))
    shade = drawn.layout.shapes[0]
    assert (shade.x0, shade.x1) == (0, 40)
    notes = [note.text.replace("\u00a0", " ") for note in drawn.layout.annotations]
    assert notes == ["device", "host thread", "Python frames: none recorded"]
    whole = json.dumps(gap.captioned(gap_evidence(), "below it", graph_id="g"), cls=PlotlyJSONEncoder)
    assert '"device idle 40.0\\u00a0ms: waiting for the next batch"' in whole and "below it" in whole
    device, host = drawn.data
    assert list(device.base) == [-10, 40]
    assert list(host.x) == [40, 20]
    assert max(device.y) < min(host.y), "lanes lie one below the other"


def test_frames_that_enclose_everything_give_way_to_those_that_tell_something() -> None:
    at, end = T0 - 5 * NS_PER_MS, T0 + 45 * NS_PER_MS
    whole = [{"name": f"outer {d}", "start_ns": at, "end_ns": end, "depth": d} for d in range(20)]
    inner = {"name": "decode", "start_ns": T0, "end_ns": T0 + 30 * NS_PER_MS, "depth": 20}
    drawn = plotted(gap.figure(gap_evidence(frames=[*whole, inner])))
    assert list(drawn.data[2].text) == ["outer 18", "outer 19", "decode"]
    assert "Python frames (18 outer ones left out)" in [note.text for note in drawn.layout.annotations]
    assert list(plotted(gap.figure(gap_evidence(frames=whole[:3]))).data[2].text) == ["outer 0", "outer 1", "outer 2"]


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("host sync", "device idle 40.0 ms: host blocked in a synchronization"),
        ("host_sync", "device idle 40.0 ms: host blocked in a synchronization"),
        ("checkpoint", "device idle 40.0 ms: saving state (checkpoint)"),
        ("loop", "40.0 ms in this loop"),
        ("", "device idle 40.0 ms: cause unknown"),
        ("something new", "device idle 40.0 ms: something new"),
    ],
)
def test_causes_in_words(cause: str, words: str) -> None:
    assert gap_lanes.description_of(gap_evidence(cause)) == words


def test_charts_escape_what_plotly_would_read_as_markup() -> None:
    drawn = json.dumps(gap.figure(gap_evidence(name=HOSTILE)), cls=PlotlyJSONEncoder)
    assert "<img" not in drawn
    assert "<a " not in drawn
    assert "&lt;img" in drawn
    hostile = timeline(steps=[], run_samples=[])
    hostile = replace(
        hostile,
        devices=[replace(hostile.devices[0], uuid=HOSTILE)],
        captures=[replace(hostile.captures[0], capture=HOSTILE), *hostile.captures[1:]],
    )
    drawn = json.dumps(metrics.figure(hostile, UTC), cls=PlotlyJSONEncoder)
    assert "<img" not in drawn
    # Names stand in customdata only: a template in a name is not filled in.
    assert all("%{customdata}" not in trace["hovertemplate"] for trace in metrics.figure(hostile, UTC)["data"])


def test_a_chart_has_a_name_for_those_who_do_not_see_it() -> None:
    drawn = chart.draw(over_time.figure(period([]), UTC), graph_id="g", title="What it shows")
    assert getattr(drawn, "aria-label") == "What it shows"


# ---- phases and captures ---------------------------------------------------------------------------------------------


def test_phases_are_to_scale_and_end_where_the_steps_end() -> None:
    run = make(Run, start_ns=T0, end_ns=T0 + 4 * NS_PER_S, state="finished")
    strip = phases.strip(run, timeline(), T0, UTC)
    widths = [n.style["width"] for n in tree(strip) if getattr(n, "className", None) == "phase"]
    assert widths == ["25.000%", "25.000%", "50.000%"]
    assert re.search(r"start-up 1.00 s.*steps 1.00 s.*shutdown 2.00 s", texts(strip))


def test_phases_agree_with_the_account_once_there_is_one() -> None:
    run = make(
        Run,
        {"start_ns": T0, "end_ns": T0 + 10 * NS_PER_S, "state": "finished", "steps": 5, "devices": [{}, {}]},
        account={"startup": 4 * NS_PER_S, "shutdown": 2 * NS_PER_S, "productive": 14 * NS_PER_S},
    )
    strip = phases.strip(run, timeline(), T0, UTC)
    assert re.search(r"start-up 2.00 s.*steps 7.00 s.*shutdown 1.00 s", texts(strip))


def test_a_run_without_steps_is_one_phase() -> None:
    run = make(Run, start_ns=T0, end_ns=None, state="running")
    assert "no step counted 1 h 0 min" in texts(phases.strip(run, timeline(steps=[]), T0 + H, UTC))


def capture(state: str = "recording", **changes: Any) -> Capture:
    given = {
        "capture": "c1",
        "state": state,
        "reason": None,
        "requested_ns": T0,
        "requested_by": "cli",
        "stages": {
            "requested": T0,
            "leased": T0 + NS_PER_S,
            "armed": T0 + 2 * NS_PER_S,
            "recording": T0 + 3 * NS_PER_S,
        },
        "params": {"duration_ns": NS_PER_S, "stacks": True, "shapes": False},
        "expected": [{"rank": 0, "pid": 1}, {"rank": 1, "pid": 2}],
        "ranks": [],
        "latency_s": None,
    }
    return make(Capture, given, **changes)


def stages(listing: Any) -> list[tuple[str, str]]:
    """(class, word) of each stage."""
    return [
        (n.className, n.children[0].children) for n in tree(listing) if isinstance(n, html.Li) and n.className in KINDS
    ]


KINDS = ("done", "now", "todo", "never", "bad")


def test_a_capture_shows_how_far_it_is() -> None:
    listing = captures.listing([capture()], UTC)
    assert stages(listing) == [
        ("done", "requested"),
        ("done", "leased"),
        ("done", "armed"),
        ("now", "recording"),
        ("todo", "written"),
        ("todo", "uploaded"),
        ("todo", "analyzed"),
    ]
    assert "+3.00 s" in texts(listing)
    assert "1.00 s with stacks" in texts(listing)
    assert captures.under_way([capture()])


def test_a_capture_that_failed_says_where_and_why() -> None:
    failed = capture("failed", reason="run ended", stages={"requested": T0, "leased": T0, "failed": T0 + NS_PER_S})
    listing = captures.listing([failed], UTC)
    assert stages(listing)[:4] == [("done", "requested"), ("done", "leased"), ("bad", "failed"), ("never", "armed")]
    assert "run ended" in texts(listing)
    assert not captures.under_way([failed])


def test_traces_lead_to_the_api_and_nowhere_else() -> None:
    ranks = [
        {"rank": 0, "pid": 1, "bytes": 2048, "sha256": "a", "url": "/api/v1/traces/5/file"},
        {"rank": 1, "pid": 2, "bytes": 2048, "sha256": "b", "url": "javascript:alert(1)"},
    ]
    listing = captures.listing([capture("uploaded", ranks=ranks, latency_s=3.46)], UTC)
    assert [n.href for n in tree(listing) if isinstance(n, html.A)] == ["/api/v1/traces/5/file", "#captures"]
    assert "rank 0, 2.0 KiB" in texts(listing)
    assert "all traces after 3.46 s" in texts(listing)


def test_a_state_of_a_newer_server_is_shown_as_it_is() -> None:
    assert "polished" in texts(captures.listing([capture("polished", stages={})], UTC))


# ---- small things ----------------------------------------------------------------------------------------------------


def test_backticks_are_code_and_odd_ones_stay() -> None:
    assert [type(n).__name__ for n in elements.prose("use `a` and `b`")] == ["str", "Code", "str", "Code"]
    assert elements.prose("a ` b") == "a ` b"


def test_a_missing_value_says_why() -> None:
    dash = elements.missing("No counter.")
    assert (dash.children, dash.title) == ("–", "No counter.")


def test_table_columns_hold_plain_values_and_show_text() -> None:
    column = grid.column("x", "X", "number", unit="hours", wide=True)
    assert column["valueFormatter"] == {"function": "shownText(params)"}
    assert column["context"] == {"unit": "hours", "wide": True, "exported": ""}
    small = grid.table("g", [column], [{"id": "1", "x": 1}], label="l")
    assert small.children.dashGridOptions["domLayout"] == "autoHeight"
    large = grid.table("g", [column], [{"id": str(i), "x": i} for i in range(grid.VIRTUAL_FROM + 1)], label="l")
    assert large.children.dashGridOptions["domLayout"] == "normal", "a long table keeps only visible rows in the page"


# ---- predicted beside measured ---------------------------------------------------------------------------------------


def test_predicted_beside_measured_holds_both_intervals_and_the_line_of_equality() -> None:
    predicted = {"saving_frac": 0.3, "low_frac": 0.25, "high_frac": 0.4, "method": "simulated"}
    slower = {"saving_frac": -2.0, "low_frac": -2.5, "high_frac": -1.5, "verdict": "refuted"}
    short = {"saving_frac": 0.1, "low_frac": None, "high_frac": None, "verdict": "undecided"}
    rows = [
        make(Action, {"action": 7, "workflow": HOSTILE, "kind": "apply", "predicted": predicted, "verification": found})
        for found in (slower, short)
    ]
    drawn = calibration.figure(rows)
    plotted(drawn)
    equal, points = drawn["data"]
    assert equal["x"] == equal["y"] == pytest.approx([-2.4, 42.4])
    assert (points["x"], points["y"]) == ([30.0], [-200.0]), "what has no interval is no point"
    assert points["error_x"]["array"] == pytest.approx([10.0]) and points["error_y"]["arrayminus"] == [50.0]
    low, high = drawn["layout"]["yaxis"]["range"]
    assert low < -250 and high > 40
    [(number, hover)] = points["customdata"]
    assert number == 7 and "<img" not in hover and "&lt;img" in hover
    assert "refuted" in texts(calibration.key(rows)) and "verified" not in texts(calibration.key(rows))
    for row in rows:
        assert row.verification is not None
        for known in (row.predicted, None):
            plotted(calibration.intervals(known, row.verification))
