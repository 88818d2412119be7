"""Tables of documented columns: runs, their devices, samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_history import written

from tightship_collectors.importers import csv_tables
from tightship_collectors.importers.source import NO_NAME, Options, Source
from tightship_collectors.importers.times import OUTSIDE
from tightship_platform.errors import Invalid
from tightship_platform.results.imported import ImportedRun, ImportedSamples
from tightship_platform.units import NS_PER_S

HEAD = "run,start,end,host,device,workflow,team,state,label.lr"
FIRST = "a,2025-03-01T10:00:00Z,2025-03-01T11:00:00Z,h1,g0,train,vision,finished,3e-4"
MINUTE = 60 * NS_PER_S


def read(path: Path) -> tuple[list[ImportedRun], list[ImportedSamples], Source]:
    source = csv_tables.open_source(path, Options())
    items = list(source.items)
    runs = [one for one in items if isinstance(one, ImportedRun)]
    return runs, [one for one in items if isinstance(one, ImportedSamples)], source


def test_a_row_is_a_device_of_a_run(tmp_path: Path) -> None:
    second = FIRST.replace("g0", "g1").replace("10:00", "09:00").replace("11:00", "10:00")
    again = FIRST.replace("10:00", "12:00").replace("11:00", "13:00")
    [run], _, source = read(written(tmp_path / "runs.csv", HEAD, FIRST, second, again))
    assert [(one.uuid, len(one.spans)) for one in run.devices] == [("g0", 2), ("g1", 1)]
    assert run.end_ns - run.start_ns == 4 * 60 * MINUTE
    assert (run.workflow, run.team, run.state, run.labels) == ("train", "vision", "finished", {"lr": "3e-4"})
    assert source.names_devices


def test_without_devices_they_are_counted(tmp_path: Path) -> None:
    lines = "run,start,end,devices", "a,1740823200,1740826800,4", "b,1740823200,1740826800,"
    runs, _, source = read(written(tmp_path / "runs.csv", *lines))
    assert [len(run.devices) for run in runs] == [4, 1]
    assert runs[0].state == "unknown"
    assert not source.names_devices


def test_a_run_waits_from_when_it_could_have_started(tmp_path: Path) -> None:
    lines = "run,start,end,eligible", "a,1740823200,1740826800,1740823140", "b,1740823200,1740826800,"
    late = "c,1740823200,1740826800,1740823201"
    runs, _, source = read(written(tmp_path / "runs.csv", *lines, late))
    assert [None if run.eligible_ns is None else run.start_ns - run.eligible_ns for run in runs] == [MINUTE, None]
    assert source.refused.counts == {"a start before it could start": 1}


def test_samples_say_what_the_devices_did(tmp_path: Path) -> None:
    written(tmp_path / "runs.csv", HEAD, FIRST)
    times = [f"h1,g0,{1740823200 + 300 * step},0.5,{step}" for step in range(4)]
    bad = "h1,g9,1740823200,0.5,1", "h1,g0,1740823201,1.5,1", "h1,g0,1740823200,0.1,1"
    written(tmp_path / "samples.csv", "host,device,time,util_frac,memory_used_bytes", *times, *bad)
    _, [samples], source = read(tmp_path)
    assert samples.util_frac == [0.5] * 4
    assert source.interval_ns == 5 * MINUTE
    assert source.refused.counts == {
        "a device that no run held": 1,
        "a utilisation below 0 or above 1": 1,
        "a second sample of one device and time": 1,
    }


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (FIRST.replace("a,", "b,", 1), "a device that another row holds at this time"),
        (FIRST.replace("a,", "b,", 1).replace("11:00", "09:00"), "an end before the start"),
        (FIRST.replace("10:00", "25:00"), "not a time"),
        (FIRST.replace("2025", "1999"), OUTSIDE),
        (FIRST.replace("finished", "running"), "a state that is none of"),
        (FIRST.replace("vision", "\x1b[31m"), NO_NAME),
        (FIRST.replace("3e-4", "3" * 201), NO_NAME),
        (FIRST.replace("g0", ""), "no device"),
        (FIRST.replace("a,", " ,", 1), "no run"),
    ],
)
def test_a_bad_row_is_left_out_and_listed_with_its_line(tmp_path: Path, bad: str, why: str) -> None:
    runs, _, source = read(written(tmp_path / "runs.csv", HEAD, FIRST, bad))
    assert len(runs) == 1
    [(said, count)] = source.refused.counts.items()
    assert said.startswith(why)
    assert (count, source.refused.listed[0].place) == (1, "runs.csv:3")


def test_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="run, start, end"):
        csv_tables.open_source(written(tmp_path / "x.csv", "a,b", "1,2"), Options())
