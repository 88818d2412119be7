"""`tightship import`, `fleets` and `account` against a real server: what is printed, what is left, what goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from api_calls import Served, ok, serving
from captured import analyze_capture, recorded
from click.testing import CliRunner, Result
from made_history import SACCT, TWO, account_all, archive, duty, memory, written

from tightship_collectors.commands.import_history import import_history
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.commands.account import account
from tightship_platform.commands.lists import fleets, runs
from tightship_platform.errors import Invalid, TightshipError

Call = Callable[..., Result]


@pytest.fixture
def served(platform_env: Any) -> Iterator[Served]:
    with serving(platform_env.settings) as made:
        yield made


@pytest.fixture
def call(served: Served, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command against `served`; an expected error is raised."""
    monkeypatch.setenv("TIGHTSHIP_SERVER", served.url)

    def run(command: Any, *arguments: object) -> Result:
        result = CliRunner().invoke(command, [str(one) for one in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def settle(served: Served) -> None:
    with served.database.session() as session:
        account_all(session)


def jobs(path: Path, *more: str) -> Path:
    rows = (
        f"{number}|{number}|train|ann|vision|{state}|2025-03-01T10:00:00|2025-03-01T1{number}:00:00||0:0|{TWO}|n[1-2]"
        for number, state in ((1, "COMPLETED"), (2, "TIMEOUT"))
    )
    return written(path, SACCT, *rows, *more)


def test_a_history_is_imported_shown_by_itself_and_accounted_for(served: Served, call: Call, tmp_path: Path) -> None:
    path = jobs(tmp_path / "jobs.txt", "half a row", *[f"9|9|x||||{n}|||||" for n in range(7)])
    refused = tmp_path / "refused.tsv"
    said = call(import_history, "slurm-sacct", path, "--name", "old", "--refused", refused)
    assert "old: 2 runs" in said.stdout
    assert "assumes: times without a zone are UTC" in said.stdout
    assert "left out: 1 row: not 12 columns" in said.stderr
    assert "jobs.txt:4: half a row" in said.stderr
    assert "--refused FILE lists them all" in said.stderr, "five of a reason are enough for a terminal"
    assert len(refused.read_text().splitlines()) == 8
    settle(served)
    assert json.loads(call(runs, "--json").stdout) == []
    listed = json.loads(call(runs, "--fleet", "old", "--json").stdout)
    assert {run["state"] for run in listed} == {"finished", "timeout"}
    hour = 3600_000_000_000
    groups = json.loads(call(account, "--by", "state", "--fleet", "old", "--json").stdout)
    assert {group["key"]: group["device_ns"] / hour for group in groups} == {"timeout": 4, "finished": 2}
    [group] = json.loads(call(account, "--by", "fleet", "--json").stdout)
    assert (group["key"], group["runs"], group["device_ns"]) == ("old", 2, 6 * hour), "the live fleet has no runs"
    assert json.loads(call(account, "--by", "fleet", "--fleet", "live", "--json").stdout) == []
    assert json.loads(call(account, "--by", "fleet", "--search", "fleet:old", "--json").stdout) == [group]
    both = call(account, "--by", "fleet").stdout.splitlines()
    assert [line.split(",")[0] for line in both[:2]] == ["live", "old"]
    assert "2 runs held 6.00 h of device time" in both[1]
    [listed] = call(fleets).stdout.splitlines()[2:]
    assert listed.startswith("old   ") and "times without a zone are UTC" in listed
    table = call(account, "--fleet", "old").stdout
    assert "\nold: imported from slurm-sacct\n" in table
    assert "assumes: " in table, "what is assumed stands beside the figures"
    assert "left out: 1 row: not 12 columns" in table
    assert "assumes: " not in call(account, "--fleet", "live").stdout
    again = call(import_history, "slurm-sacct", path, "--name", "old")
    assert "all of it was there already" in again.stdout
    with served.http() as http:
        [fleet] = ok(http.get("/fleets"))
        assert (fleet["fleet"], fleet["runs"], fleet["unaccounted_runs"]) == ("old", 2, 0)
        assert http.get("/runs", params={"fleet": "none"}).status_code == 404


def test_pods_and_their_assumption(served: Served, call: Call, tmp_path: Path) -> None:
    archive(tmp_path / "pod_gpu_duty_cycle_anon.tar.gz", duty({"aa": [(step, 1.0) for step in range(30)]}))
    archive(tmp_path / "pod_gpu_memory_used_bytes_anon.tar.gz", memory({"aa": [(0, 5.0)]}))
    made = json.loads(call(import_history, "alibaba-genai", tmp_path, "--json").stdout)
    assert made["runs"] == 1
    settle(served)
    with served.http() as http:
        [fleet] = ok(http.get("/fleets"))
    assert fleet["long_idle_ns"] == fleet["device_ns"] == 30 * 57 * 10**9
    assert fleet["assumptions"][0].startswith("one device per pod")
    assert "one device per pod" in call(fleets).stdout


def test_of_half_a_file_what_is_whole_is_imported(served: Served, call: Call, tmp_path: Path) -> None:
    path = jobs(tmp_path / "jobs.txt")
    path.write_text(path.read_text()[:-20])
    with pytest.raises(TightshipError, match="ends in the middle") as error:
        call(import_history, "slurm-sacct", path, "--name", "old")
    assert error.value.exit_code == 2
    with served.http() as http:
        assert len(ok(http.get("/runs", params={"fleet": "old"}))) == 1
        assert ok(http.get("/fleets"))[0]["imported_ns"] is None
        call(import_history, "slurm-sacct", jobs(path), "--name", "old")
        assert len(ok(http.get("/runs", params={"fleet": "old"}))) == 2


def test_traces_become_captures_that_are_analyzed(served: Served, call: Call, tmp_path: Path) -> None:
    """Of real recordings; what was sent once is not sent again, and a part that is missing is."""
    folder = tmp_path / "old-job"
    for rank, name in enumerate(("starved", "healthy")):
        (folder / "run1").mkdir(parents=True, exist_ok=True)
        (folder / "run1" / f"rank_{rank}.json.gz").write_bytes(recorded(name))
    (folder / "settings.json").write_text("{}")
    said = call(import_history, "kineto", folder)
    assert "old-job: 1 run and 2 traces in" in said.stdout
    assert "tightship findings --fleet old-job" in said.stdout
    assert "settings.json" in said.stderr
    with served.http() as http:
        [run] = ok(http.get("/runs", params={"fleet": "old-job"}))
        assert (run["workflow"], run["state"]) == ("old-job/run1", "unknown")
        [capture] = ok(http.get("/captures", params={"fleet": "old-job"}))
        assert ok(http.get("/captures")) == []
        assert (capture["state"], capture["latency_s"]) == ("uploaded", None)
        assert [(one["rank"], one["pid"]) for one in capture["ranks"]] == [(0, None), (1, None)]
        store = open_artifacts(served.settings)
        assert analyze_capture(served.database, store, capture["capture"])
        settle(served)
        assert "all of it was there already" in call(import_history, "kineto", folder).stdout
        [capture] = ok(http.get("/captures", params={"fleet": "old-job"}))
        assert capture["state"] == "analyzed"
        found = ok(http.get("/findings", params={"fleet": "old-job"}))
        assert "starved-input" in {one["rule"] for one in found}
        [group] = ok(http.get("/account", params={"by": "run", "fleet": "old-job"}))["groups"]
        assert sum(group["buckets"].values()) == group["device_ns"] > 0
        assert group["buckets"]["input"] > group["device_ns"] // 4, "the split is that of the traces"
        assert group["buckets"].get("unexplained", 0) == 0
        # A rank that comes later joins the capture, which is analyzed again.
        (folder / "run1" / "rank_2.json.gz").write_bytes(recorded("fed"))
        call(import_history, "kineto", folder)
        captures = ok(http.get("/captures", params={"fleet": "old-job"}))
        assert sum(len(one["ranks"]) for one in captures) == 3
        wrong = http.put(
            f"/fleets/old-job/captures/{capture['capture']}/traces/0", content=b"x", headers={"x-sha256": "0" * 64}
        )
        assert (wrong.status_code, "does not await this file" in wrong.text) == (409, True)
        strange = http.put("/fleets/none/captures/x/traces/0", content=b"x", headers={"x-sha256": "0" * 64})
        assert strange.status_code == 404


def test_a_trace_that_is_too_large_for_the_server_is_left_out(
    platform_env: Any, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(replace(platform_env.settings, upload_max_bytes=80_000)) as small:
        monkeypatch.setenv("TIGHTSHIP_SERVER", small.url)
        _leaves_out_what_is_too_large(call, tmp_path)


def _leaves_out_what_is_too_large(call: Call, tmp_path: Path) -> None:
    for name in ("starved", "checkpoints"):
        (tmp_path / f"{name}.json.gz").write_bytes(recorded(name))
    said = call(import_history, "kineto", tmp_path, "--name", "old")
    assert "2 runs and 1 trace" in said.stdout
    assert "TIGHTSHIP_UPLOAD_MAX_BYTES" in said.stderr
    assert "checkpoints.json.gz: 144.1 KiB" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("slurm-sacct", "nowhere.txt"), "exists"),
        (("slurm-sacct", "other.txt"), "sacct --parsable2"),
        (("alibaba-genai", "."), "duty_cycle"),
        (("csv", "other.txt"), "run, start, end"),
        (("csv", "jobs.txt", "--zone", "Mars/Base"), "time zone"),
        (("slurm-sacct", "jobs.txt", "--name", "live"), "other than 'live'"),
        (("slurm-sacct", "empty.txt"), "none of them a run"),
        (("slurm-sacct", "."), "one that can be read"),
        (("csv", "."), "one that can be read"),
        (("kineto", "jobs.txt"), "none of them a run"),
        (("kineto", "."), "traces of PyTorch's profiler"),
        (("slurm-sacct", "jobs.txt", "--name", "a/b"), "Fleet is 'a/b'"),
        (("slurm-sacct", "jobs.txt", "--refused", "no/such/folder"), "a file that can be written"),
    ],
)
def test_what_cannot_be_is_one_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs(tmp_path / "jobs.txt")
    written(tmp_path / "other.txt", "hello")
    written(tmp_path / "empty.txt", SACCT)
    with pytest.raises((Invalid, TightshipError), match=why) as error:
        call(import_history, *arguments)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2
