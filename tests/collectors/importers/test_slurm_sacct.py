"""Slurm's accounting: which rows are runs, what is left out and why."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from made_history import SACCT, TWO, written, zipped

from tightship_collectors.importers import slurm_sacct
from tightship_collectors.importers.hostlist import expand
from tightship_collectors.importers.source import NO_NAME, Options, Source
from tightship_collectors.importers.times import OUTSIDE
from tightship_platform.errors import Invalid
from tightship_platform.results.imported import ImportedRun
from tightship_platform.units import NS_PER_S

HOUR = 3600 * NS_PER_S
SUPERCLOUD = "id_job,id_user,nodelist,state,time_start,time_end,tres_alloc,job_type"


def row(job: str = "7", state: str = "COMPLETED", **more: str) -> str:
    given = {
        "JobID": job, "JobIDRaw": job, "JobName": "train", "User": "ann", "Account": "vision", "State": state,
        "Start": "2025-03-01T10:00:00", "End": "2025-03-01T12:00:00", "ElapsedRaw": "", "ExitCode": "0:0",
        "AllocTRES": TWO, "NodeList": "gpu[01-02]",
    }  # fmt: skip
    return "|".join((given | more).values())


def read(path: Path, **options: object) -> tuple[list[ImportedRun], Source]:
    source = slurm_sacct.open_source(path, Options(**options))  # type: ignore[arg-type]
    return [one for one in source.items if isinstance(one, ImportedRun)], source


def test_a_job_with_gpus_is_a_run(tmp_path: Path) -> None:
    steps = row("7.batch"), row("7.0")
    [run], source = read(written(tmp_path / "jobs.txt", SACCT, row(), *steps, row("8", AllocTRES="cpu=4,node=1")))
    assert (run.workflow, run.team, run.user, run.external_id, run.state) == (
        "vision/ann/train", "vision", "ann", "7", "finished",
    )  # fmt: skip
    assert run.end_ns - run.start_ns == 2 * HOUR
    assert [(one.host, one.spans) for one in run.devices] == [
        (host, [[run.start_ns, run.end_ns]]) for host in ("gpu01", "gpu02")
    ]
    assert (source.rows, source.refused.counts) == (4, {"a step of a job": 2, "a job without GPUs": 1})
    assert not source.names_devices
    assert any("UTC" in text for text in source.assumptions), "nobody said in which zone the times are"


@pytest.mark.parametrize(
    ("state", "expected"),
    {
        "CANCELLED by 1000": "cancelled", "TIMEOUT": "timeout", "FAILED": "failed", "OUT_OF_MEMORY": "out_of_memory",
        "NODE_FAIL": "lost", "PREEMPTED": "cancelled", "DEADLINE": "timeout",
    }.items(),
)  # fmt: skip
def test_its_state_is_one_of_ours(tmp_path: Path, state: str, expected: str) -> None:
    [run], _ = read(written(tmp_path / "jobs.txt", SACCT, row(state=state)))
    assert run.state == expected
    assert run.reason == f"Slurm: {state.split(maxsplit=1)[0]}"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (row(state="EXPLODED"), "a state that Slurm does not have"),
        (row(Start="2025-03-01T13:00:00"), "an end before the start"),
        (row(Start="yesterday"), "not a time"),
        (row(Start="-5"), "not a time"),
        (row(Start="946684799"), OUTSIDE),
        (row(End="9999999999"), OUTSIDE),
        (row(ElapsedRaw="9" * 5000), "ElapsedRaw is not the time from start to end"),
        (row(JobName="a\x1b[31mb"), NO_NAME),
        (row(Account="x" * 201), NO_NAME),
        (row(AllocTRES="gres/gpu=many"), "a number of GPUs that cannot be"),
        (row(AllocTRES="gres/gpu=-1"), "a number of GPUs that cannot be"),
        (row(AllocTRES="gres/gpu=999999999"), "a number of GPUs that cannot be"),
        (row(AllocTRES="gres/gpu=3,gres/gpu:a100=2"), "a number of GPUs that its models do not sum to"),
        (row(ElapsedRaw="60"), "ElapsedRaw is not the time from start to end"),
        (row(NodeList="gpu[01-"), "a list of nodes that cannot be read"),
        (row(NodeList="gpu[0-999999999]"), "a list of nodes that cannot be read"),
        (row(), "a job that stands here already"),
        (row(Start="2025-03-01T11:00:00"), "a job that runs at this time already"),
        ("7|7|half", "not 12 columns, as the first line has"),
        (row(JobName="a\0b"), "a NUL character"),
    ],
)
def test_a_bad_row_is_left_out_and_listed_with_its_line(tmp_path: Path, bad: str, why: str) -> None:
    runs, source = read(written(tmp_path / "jobs.txt", SACCT, row(), bad))
    assert len(runs) == 1
    assert source.refused.counts == {why: 1}
    assert source.refused.listed[0].place == "jobs.txt:3"


def test_jobs_that_wait_or_run_have_no_device_time_yet(tmp_path: Path) -> None:
    runs, source = read(written(tmp_path / "jobs.txt", SACCT, row(state="RUNNING", End="Unknown")))
    assert runs == []
    assert source.refused.counts == {"a job that has not ended": 1}


def test_a_requeued_job_is_a_run_each_time(tmp_path: Path) -> None:
    later = row(Start="2025-03-02T10:00:00", End="2025-03-02T11:00:00")
    runs, _ = read(written(tmp_path / "jobs.txt", SACCT, row(), later))
    assert len({run.id for run in runs}) == 2


def test_times_are_of_the_zone_that_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "jobs.txt", SACCT, row())
    (utc,), _ = read(path)
    (here,), source = read(path, zone=ZoneInfo("Europe/Berlin"))
    assert utc.start_ns - here.start_ns == HOUR
    assert not any("UTC" in text for text in source.assumptions)
    seconds = written(tmp_path / "epoch.txt", SACCT, row(Start="1740823200", End="1740830400"))
    assert read(seconds, zone=ZoneInfo("Europe/Berlin"))[0][0].start_ns == utc.start_ns


def test_a_time_that_comes_twice_is_not_guessed(tmp_path: Path) -> None:
    twice = row(Start="2025-10-26T02:30:00", End="2025-10-26T09:00:00")
    runs, source = read(written(tmp_path / "jobs.txt", SACCT, twice), zone=ZoneInfo("Europe/Berlin"))
    assert runs == []
    assert "twice" in next(iter(source.refused.counts))


@pytest.mark.parametrize(
    ("times", "waited"),
    [
        ({"Submit": "2025-03-01T07:00:00", "Eligible": "2025-03-01T09:30:00"}, HOUR // 2),
        ({"Submit": "2025-03-01T07:00:00", "Eligible": "Unknown"}, 3 * HOUR),
        ({"Submit": "2025-03-01T10:00:00"}, 0),
        ({"Submit": "Unknown", "Eligible": ""}, None),
        ({}, None),
    ],
)
def test_a_job_waits_from_when_it_could_have_started(tmp_path: Path, times: dict[str, str], waited: int | None) -> None:
    [run], _ = read(written(tmp_path / "jobs.txt", "|".join([SACCT, *times]), row(**times)))
    assert (None if run.eligible_ns is None else run.start_ns - run.eligible_ns) == waited


@pytest.mark.parametrize(
    ("eligible", "why"), [("2025-03-01T11:00:00", "a start before it could start"), ("soon", "not a time")]
)
def test_a_wait_that_cannot_be(tmp_path: Path, eligible: str, why: str) -> None:
    runs, source = read(written(tmp_path / "jobs.txt", f"{SACCT}|Eligible", row(Eligible=eligible)))
    assert (runs, source.refused.counts) == ([], {why: 1})


def test_the_supercloud_table_has_numbers_for_states_and_gpus(tmp_path: Path) -> None:
    lines = [
        SUPERCLOUD,
        "1.6e13,4.2e13,['r1-n1'],3,1609459200,1609462800,\"1=4,1002=2\",OTHER",
        "1.6e13,4.2e13,\"['r1-n1', 'r1-n2']\",4,1609459200,1609462800,\"1=4,1002=4\",OTHER",
        "1.6e13,4.2e13,['r1-n1'],3,1609459200,1609462800,1=4,OTHER",
        "1.6e13,4.2e13,['r1-n1'],99,1609459200,1609462800,1002=1,OTHER",
    ]
    runs, source = read(zipped(tmp_path / "log.csv.gz", "\n".join([*lines, ""])))
    assert [(run.state, [one.host for one in run.devices]) for run in runs] == [
        ("finished", ["r1-n1", "r1-n1"]),
        ("cancelled", ["r1-n1", "r1-n1", "r1-n2", "r1-n2"]),
    ]
    assert runs[0].id != runs[1].id, "ids in the file are lossy: two jobs have the same"
    assert source.refused.counts == {"a job without GPUs": 1, "a state that Slurm does not have": 1}


def test_half_a_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(f"{SACCT}\n{row()}\n{row('8')}"[:-3])
    runs, source = read(path)
    assert len(runs) == 1
    assert source.refused.is_cut_off
    whole = zipped(tmp_path / "log.txt.gz", f"{SACCT}\n{row()}\n" + "".join(f"{row(str(n))}\n" for n in range(9, 400)))
    whole.write_bytes(whole.read_bytes()[:-40])
    assert read(whole)[1].refused.is_cut_off


@pytest.mark.parametrize("text", ["", "hello\n", "{}\n", "a,b,c\n1,2,3\n", "\0\0\n"])
def test_another_format_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(Invalid, match="sacct --parsable2") as refused:
        slurm_sacct.open_source(path, Options())
    assert "\n" not in str(refused.value)


def test_lists_of_nodes() -> None:
    assert expand("gpu[01-03,07],cpu1") == ["gpu01", "gpu02", "gpu03", "gpu07", "cpu1"]
    assert expand("None assigned") == []
    assert expand("a,,b") is None
    assert expand("a[1") is None
