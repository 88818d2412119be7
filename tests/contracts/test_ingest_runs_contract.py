"""Runs and hosts on both databases: announced, ended, lost, never announced, forged."""

from __future__ import annotations

from typing import Any

import pytest
from records import CPU, GPU, MIN, T0, S, batch, beat, ended, live, run_samples, samples, started, steps
from sqlalchemy import select
from statements import statements_of

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Allocation, Base, Device, Host, Run, RunSample, StepStat, Workflow
from tightship_platform.errors import Invalid, TooLarge
from tightship_platform.queries import hosts, runs
from tightship_platform.validation import ERROR_MAX, NAME_MAX
from tightship_platform.wire import DeviceRecord, Heartbeat, SourceState

NOW = T0 + MIN


def _rows(database: Database, model: type[Base], *without: str) -> list[dict[str, Any]]:
    with database.session() as session:
        columns = [c for c in model.__table__.columns if c.name not in without]
        return [dict(row) for row in session.execute(select(*columns).order_by(*columns)).mappings()]


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_starts_and_ends(database: Database) -> None:
    with database.session() as session:
        record = started(
            team="vision", owner="ann", user="ann", labels={"seed": "1", "note": ""}, command=["python", "a.py"]
        )
        assert ingest.apply_run(session, record, now=NOW) == "a1"
        first = runs.get_run(session, "a1")
        assert (first.state, first.exit_code, first.end_ns, first.host) == ("running", None, None, "h1")
        ingest.apply_run(session, ended(end_ns=T0 + 5 * S, team="vision", owner="ann"), now=NOW)
        last = runs.get_run(session, "a1")
    assert (last.state, last.exit_code, last.end_ns, last.reason) == ("finished", 0, T0 + 5 * S, None)
    assert (last.workflow, last.team, last.owner) == ("train", "vision", "ann")


def test_no_secret_of_a_run_is_stored(database: Database) -> None:
    """An older launcher, or another client, sends them as they are."""
    record = ended(
        end_ns=T0 + S,
        exit_code=1,
        command=[
            "python",
            "a.py",
            "--wandb_key",
            "hunter2",
            "+hub.token=hunter2",
            "s3://K:hunter2@b",
            "--num_tokens",
            "5",
        ],
        labels={"api_key": "hunter2", "url": "https://me:hunter2@h/x", "seed": "1"},
        error="HTTPError: 401 for https://h/x?sig=hunter2",
    )
    with database.session() as session:
        ingest.apply_run(session, record, now=NOW)
    (row,) = _rows(database, Run)
    assert "hunter2" not in repr(row)
    assert row["command"] == [
        *("python", "a.py", "--wandb_key", "***", "+hub.token=***", "s3://***@b", "--num_tokens", "5")
    ]
    assert row["labels"] == {"api_key": "***", "url": "https://***@h/x", "seed": "1"}
    assert row["error"] == "HTTPError: 401 for https://h/x?sig=***"


def test_what_a_run_was_launched_with_stays_known(database: Database) -> None:
    """It becomes known bit by bit, and the agent repeats the record of the start."""
    known = {
        "git_commit": "5eed" * 10, "git_dirty": False, "image": "r/torch:2",
        "torch_version": "2.8.0", "cuda_version": "12.9", "driver_version": "575.1",
    }  # fmt: skip
    with database.session() as session:
        ingest.apply_run(session, started(git_commit=known["git_commit"]), now=NOW)
        assert runs.list_runs(session)[0].git_dirty is None
        ingest.apply_run(session, started(**known), now=NOW)
        ingest.apply_run(session, started(), now=NOW)
        (run,) = runs.list_runs(session)
        assert {name: getattr(run, name) for name in known} == known
        ingest.apply_run(session, ended(end_ns=T0 + S, git_dirty=True), now=NOW)
        assert runs.get_run(session, "a1").git_dirty is True


def test_what_it_was_launched_with_is_bounded_and_holds_no_secret(database: Database) -> None:
    record = started(
        image="docker://me:hunter2@r/x\n" + "y" * 5000, torch_version="\x1b[31m" + "2" * 500, cuda_version="\n"
    )
    with database.session() as session:
        ingest.apply_run(session, record, now=NOW)
        run = runs.get_run(session, "a1")
    assert run.image is not None and run.image.startswith("docker://***@r/x y") and len(run.image) == NAME_MAX
    assert run.torch_version is not None and len(run.torch_version) == 64 and run.torch_version.isprintable()
    assert run.cuda_version is None
    for forged in ("5eed", "5EED" * 10, "x" * 40, "5eed" * 10 + "\n", "5eed" * 11):
        with pytest.raises(Invalid, match="40 or 64 hexadecimal digits"), database.session() as session:
            ingest.apply_run(session, started("b2", git_commit=forged), now=NOW)
    assert len(_rows(database, Run)) == 1


@pytest.mark.parametrize(
    ("exit_code", "state", "reason"),
    [
        (0, "finished", None),
        (3, "failed", "ended with exit code 3"),
        (137, "failed", "ended by SIGKILL"),
        (255, "failed", "ended with exit code 255"),
        (None, "failed", "ended without an exit code"),
    ],
)
def test_how_a_run_ended_is_said(database: Database, exit_code: int | None, state: str, reason: str | None) -> None:
    with database.session() as session:
        ingest.apply_run(session, ended(end_ns=T0 + S, exit_code=exit_code), now=NOW)
        run = runs.get_run(session, "a1")
    assert (run.state, run.exit_code, run.reason) == (state, exit_code, reason)


@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        ({"error": "torch.OutOfMemoryError: CUDA out of memory."}, "1: torch.OutOfMemoryError: CUDA out of memory."),
        ({"oom_kills": 0}, "1"),
        ({"oom_kills": 2}, "1; the kernel killed 2 processes of its group for lack of memory"),
        ({"error": "a\nb\x00\u202e<b>"}, "1: a b <b>"),
        ({"error": "x" * 5000}, f"1: {'x' * (ERROR_MAX - 1)}…"),
        ({"error": "\n"}, "1"),
    ],
)
def test_what_ended_a_run_is_said(database: Database, reported: dict[str, Any], reason: str) -> None:
    with database.session() as session:
        ingest.apply_run(session, ended(end_ns=T0 + S, exit_code=1, **reported), now=NOW)
        run = runs.get_run(session, "a1")
    assert run.reason == f"ended with exit code {reason}"
    assert run.error == (reason.partition(": ")[2] or None) and run.oom_kills == reported.get("oom_kills")


def test_what_a_run_survived_did_not_end_it(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, ended(end_ns=T0 + S, exit_code=0, error="ValueError: no", oom_kills=1), now=NOW)
        run = runs.get_run(session, "a1")
    assert (run.state, run.reason, run.error, run.oom_kills) == ("finished", None, None, None)


def test_an_end_stays_an_end(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, ended(end_ns=T0 + S, exit_code=3), now=NOW)
        ingest.apply_run(session, started(), now=NOW)
        ingest.apply_heartbeat(session, beat(live(), time_ns=NOW), now=NOW)
        ingest.apply_run(session, ended(end_ns=T0 + 9 * S, exit_code=0), now=NOW)
        run = runs.get_run(session, "a1")
    assert (run.state, run.exit_code, run.end_ns) == ("failed", 3, T0 + S)
    assert run.devices == []


def test_team_and_owner_are_those_of_the_newest_run(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started("new", start_ns=T0 + MIN, team="vision"), now=NOW)
        ingest.apply_run(session, started("old", start_ns=T0, team="speech", owner="bob"), now=NOW)
        run = runs.get_run(session, "old")
        assert (run.team, run.owner) == ("vision", "bob")
        ingest.apply_run(session, started("newest", start_ns=T0 + MIN + S, team="language"), now=NOW)
        assert runs.get_run(session, "old").team == "language"


def test_markup_is_text_and_arguments_may_hold_lines(database: Database) -> None:
    name = '<img src=x onerror="alert(1)"> & "quotes" — ü 模型 👩‍🚀'
    command = ["python", "-c", "import os\nprint(1)", "nul\0byte", "bad\udcff", "x" * 9000]
    with database.session() as session:
        ingest.apply_run(session, started(workflow=name, command=command, labels={"<b>": "</b>"}), now=NOW)
    with database.session() as session:
        run = runs.get_run(session, "a1")
    assert run.workflow == name
    assert run.labels == {"<b>": "</b>"}
    assert run.command[:5] == ["python", "-c", "import os\nprint(1)", "nul�byte", "bad�"]
    assert len(run.command[5]) == 4096


def test_a_command_is_cut_to_a_sane_size(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(command=["word" * 1000] * 5000), now=NOW)
        command = runs.get_run(session, "a1").command
    assert sum(map(len, command)) <= 70_000
    assert command[-1] == "…"


@pytest.mark.parametrize(
    "change",
    [
        {"run": "../../etc"},
        {"run": ""},
        {"run": "x" * 41},
        {"workflow": "two\nlines"},
        {"workflow": " "},
        {"workflow": "x" * 201},
        {"workflow": "bell\a"},
        {"workflow": "next\u2028line"},
        {"workflow": "backwards \u202e txt"},
        {"workflow": "half a \ud83d"},
        {"workflow": 7},
        {"host": "h\0"},
        {"team": "a\rb"},
        {"user": "\x1b[31m"},
        {"labels": {"a\nb": "c"}},
        {"labels": {"a": "c\nd"}},
        {"labels": {str(i): "" for i in range(65)}},
        {"start_ns": NOW + 2 * 86_400 * S},
        {"start_ns": 0},
        {"start_ns": -1},
        {"start_ns": 10**30},
        {"start_ns": True},
        {"start_ns": float("nan")},
        {"end_ns": T0 - 1},
        {"end_ns": 10**30},
        {"exit_code": 1},
        {"end_ns": T0 + S, "exit_code": 256},
        {"end_ns": T0 + S, "exit_code": -9},
        {"end_ns": T0 + S, "exit_code": 1, "oom_kills": -1},
        {"end_ns": T0 + S, "exit_code": 1, "oom_kills": 2**40},
    ],
)
def test_a_run_that_cannot_be_is_refused(database: Database, change: dict[str, Any]) -> None:
    record = started()
    for name, value in change.items():
        setattr(record, name, value)
    with pytest.raises(Invalid) as caught, database.session() as session:
        ingest.apply_run(session, record, now=NOW)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert _rows(database, Run) == _rows(database, Workflow) == []


# ---- runs that fall silent, or were never announced ------------------------------------------------------------------


def test_a_silent_run_is_lost_and_comes_back(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        ingest.apply_heartbeat(session, beat(live(), time_ns=NOW), now=NOW)
        assert ingest.close_lost_runs(session, now=NOW + ingest.LOST_AFTER_NS) == []
        later = NOW + ingest.LOST_AFTER_NS + 1
        assert ingest.close_lost_runs(session, now=later) == ["a1"]
        assert ingest.close_lost_runs(session, now=later) == []
        assert runs.get_run(session, "a1").state == "lost"
        assert "no sign of life for 120 s" in runs.get_run(session, "a1").reason
        # An old batch from the spool is no sign of life now.
        ingest.apply_batch(session, batch(devices=[CPU], run_samples=run_samples([T0 + S])), now=later)
        assert runs.get_run(session, "a1").state == "lost"
        ingest.apply_heartbeat(session, beat(live(), time_ns=later), now=later)
        back = runs.get_run(session, "a1")
        assert (back.state, back.reason, back.last_seen_ns) == ("running", None, later)


def test_an_end_record_corrects_a_lost_run(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        assert ingest.close_lost_runs(session, now=NOW + 10 * MIN) == ["a1"]
        ingest.apply_run(session, ended(end_ns=T0 + 30 * S), now=NOW + 20 * MIN)
        run = runs.get_run(session, "a1")
        assert (run.state, run.end_ns, run.reason) == ("finished", T0 + 30 * S, None)
        assert ingest.close_lost_runs(session, now=NOW + 60 * MIN) == []


def test_a_run_that_nobody_announced_keeps_its_rows(database: Database) -> None:
    parts: dict[str, Any] = {"devices": [CPU], "run_samples": run_samples([T0 + 5 * S]), "steps": steps([T0 + 4 * S])}
    with database.session() as session:
        answer = ingest.apply_batch(session, batch(**parts), now=NOW)
        assert (answer.rows, answer.refused, answer.unknown_runs) == (2, 0, ["a1"])
        placeholder = runs.get_run(session, "a1")
        assert (placeholder.workflow, placeholder.start_ns) == (ingest.UNKNOWN_WORKFLOW, T0 + 4 * S)
        assert placeholder.reason == "seen by the agent on h1; its launcher has not reported yet"
        assert ingest.apply_heartbeat(session, beat(live(), time_ns=NOW), now=NOW) == ["a1"]
        ingest.apply_run(session, started(), now=NOW)
        run = runs.get_run(session, "a1")
        assert (run.workflow, run.start_ns, run.reason, run.source) == ("train", T0, None, "launch")
        assert ingest.apply_batch(session, batch(**parts), now=NOW).unknown_runs == []
    assert len(_rows(database, RunSample)) == len(_rows(database, StepStat)) == 1


# ---- heartbeats ------------------------------------------------------------------------------------------------------


def test_a_heartbeat_says_who_is_there(database: Database) -> None:
    sources = [
        SourceState(name="nvml", state="absent", detail="no driver\nfound"),
        SourceState(name="host", state="ok"),
    ]
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        info: dict[str, Any] = {"cpus": 2, "kernel": "6.1\n", "load": 0.5}
        ingest.apply_heartbeat(
            session, beat(live(steps=7), time_ns=NOW, devices=[CPU, GPU], info=info, sources=sources), now=NOW
        )
        (host,) = hosts.list_hosts(session, now=NOW)
        run = runs.get_run(session, "a1")
        assert hosts.list_hosts(session, now=NOW + MIN)[0].alive is False
    assert (host.host, host.alive, host.agent_version) == ("h1", True, "0.1.0")
    assert host.info == {"cpus": 2, "kernel": "6.1", "load": 0.5}
    assert vars(host.sources[0]) == {"name": "nvml", "state": "absent", "detail": "no driver found"}
    assert [device.uuid for device in host.devices] == ["GPU-1", "cpu"]
    assert [vars(rank) for rank in run.ranks] == [{"rank": 0, "pid": 100, "host": "h1", "guard": True}]
    assert (run.steps, run.last_seen_ns) == (7, NOW)
    assert [vars(device) for device in run.devices] == [
        {"host": "h1", "uuid": "cpu", "kind": "cpu", "name": "Test processor"}
    ]
    assert run.device_ns == NOW - T0


def test_a_heartbeat_of_another_host_changes_nothing_of_a_run(database: Database) -> None:
    refused = ingest.RefusedRows()
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        ingest.apply_heartbeat(session, beat(live(ranks=[0, 1], steps=5), time_ns=NOW), now=NOW)
        other = beat(live(ranks=[2, 3], steps=9), live("b2"), time_ns=NOW + S, host="h2")
        ingest.apply_heartbeat(session, other, refused=refused, now=NOW + S)
        run = runs.get_run(session, "a1")
        assert runs.get_run(session, "b2").host == "h2"  # what is its own is stored
    assert [(entry.rank, entry.host) for entry in run.ranks] == [(0, "h1"), (1, "h1")]
    assert (run.steps, run.last_seen_ns, [device.host for device in run.devices]) == (5, NOW, ["h1"])
    assert (refused.count, refused.reason) == (1, "Run a1 is of 'h1', so 'h2' cannot report on it")


def test_a_device_changes_its_name_in_place(database: Database) -> None:
    with database.session() as session:
        ingest.apply_batch(session, batch(samples=samples([T0], "GPU-1")), now=NOW)
        assert hosts.list_hosts(session)[0].devices[0].name == "GPU-1"
        ingest.apply_heartbeat(session, beat(time_ns=NOW, devices=[GPU]), now=NOW)
        ingest.apply_batch(session, batch(samples=samples([T0 + S], "GPU-1")), now=NOW)
        (device,) = hosts.list_hosts(session)[0].devices
    assert (device.name, device.memory_bytes) == ("Test accelerator", 80 << 30)


def _statements(database: Database, beat: Heartbeat) -> int:
    """How many it takes to apply a heartbeat."""
    with statements_of(database) as sent, database.session() as session:
        ingest.apply_heartbeat(session, beat, now=NOW)
    return len(sent)


def test_a_heartbeat_of_many_runs_takes_no_more_statements_than_one_of_few(database: Database) -> None:
    """The locks that it takes hold up other hosts for as long as it lasts."""
    few = [live(f"few-{number}") for number in range(5)]
    many = [live(f"many-{number}", devices=["cpu", "GPU-1"]) for number in range(500)]
    for _again in range(2):
        few_statements = _statements(database, beat(*few, time_ns=NOW))
        assert _statements(database, beat(*many, time_ns=NOW, devices=[CPU, GPU])) <= few_statements + 4
    assert len(_rows(database, Run)) == 505
    assert len(_rows(database, Allocation)) == 1005


def test_more_runs_than_a_host_has_are_refused(database: Database) -> None:
    with database.session() as session:
        ingest.apply_heartbeat(session, beat(*(live(f"r{n}") for n in range(1000)), time_ns=NOW), now=NOW)
    with (
        pytest.raises(Invalid, match="heartbeat is 1001; expected at most 1000; send several"),
        database.session() as session,
    ):
        ingest.apply_heartbeat(session, beat(*(live(f"x{n}") for n in range(1001)), time_ns=NOW), now=NOW)
    forged = batch(run_samples=[row for n in range(5001) for row in run_samples([T0], f"x{n}")])
    with pytest.raises(TooLarge, match="5001 runs"), database.session() as session:
        ingest.apply_batch(session, forged, now=NOW)
    assert len(_rows(database, Run)) == 1000


@pytest.mark.parametrize(
    "forged",
    [
        beat(time_ns=NOW, host="a\nb"),
        beat(time_ns=10**40),
        beat(live("../x"), time_ns=NOW),
        beat(live(since_ns=-5), time_ns=NOW),
        beat(live(devices=["x" * 300]), time_ns=NOW),
        beat(live(ranks=[10**12]), time_ns=NOW),
        beat(live(ranks=[-200]), time_ns=NOW),
        beat(live(steps=-1), time_ns=NOW),
        beat(live(steps=2**70), time_ns=NOW),
        beat(live(steps=2**53 + 1), time_ns=NOW),
        beat(time_ns=NOW, devices=[DeviceRecord(uuid="x", kind="toaster", name="x")]),
        beat(time_ns=NOW, devices=[DeviceRecord(uuid="x", kind="gpu", name="x", memory_bytes=-1)]),
        beat(time_ns=NOW, devices=[DeviceRecord(uuid=str(i), kind="gpu", name="x") for i in range(1025)]),
        beat(time_ns=NOW, info={"x": float("inf")}),
        beat(time_ns=NOW, info={"x": 1e300}),
        beat(time_ns=NOW, info={"x": 2**80}),
        beat(time_ns=NOW, info={str(i): 1 for i in range(65)}),
        beat(time_ns=NOW, sources=[SourceState(name="x", state="perhaps")]),
    ],
)
def test_a_forged_heartbeat_changes_nothing(database: Database, forged: Any) -> None:
    with pytest.raises(Invalid), database.session() as session:
        ingest.apply_heartbeat(session, forged, now=NOW)
    assert _rows(database, Host) == _rows(database, Device) == _rows(database, Run) == []
