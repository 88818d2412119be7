from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_for

from tightship_collectors.jobs import attribution as attribution_module
from tightship_collectors.jobs import ranks
from tightship_collectors.jobs.attribution import MAX_REFUSALS_REPORTED, MAX_RUNS, MAX_RUNS_PER_USER, Attribution
from tightship_collectors.jobs.processes import WATCHED_S, ProcessTable
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_S, now_ns

KEY = "0123456789abcdef"
SECOND = NS_PER_S


@pytest.fixture
def runtime_dir() -> Path:
    path = load_settings().runtime_dir
    path.mkdir(mode=0o700)
    return path


def make_run(runtime_dir: Path, key: str = KEY) -> Path:
    run_dir = runtime_dir / key
    run_dir.mkdir(mode=0o700)
    (run_dir / "ranks").mkdir(mode=0o700)
    return run_dir


def claim(run_dir: Path, key: str = KEY) -> dict[str, str]:
    return {"TIGHTSHIP_RUN": key, "TIGHTSHIP_RUN_DIR": str(run_dir)}


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts real processes and waits until they say that they run."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, env: dict[str, str] | None = None, **kwargs: object) -> subprocess.Popen[str]:
        python = f"import os, sys, time\n{code}\nprint('up', flush=True)\ntime.sleep(60)"
        # Another user may not be let into the folder where this Python lives.
        command = ["sh", "-c", "echo up; exec sleep 60"] if "user" in kwargs else [sys.executable, "-S", "-c", python]
        process = subprocess.Popen(  # type: ignore[call-overload]
            command,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            text=True,
            **kwargs,
        )
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("up"), line
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


# ---- real processes --------------------------------------------------------------------------------------------------


def test_a_run_is_its_process_tree(runtime_dir: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    run_dir = make_run(runtime_dir)
    before_ns = now_ns()
    # A child with the environment, one without any, and one that gave itself a hostile name.
    job = spawn(
        "import subprocess, ctypes\n"
        "ctypes.CDLL(None).prctl(15, b'a) S 1 (\\n\\xff', 0, 0, 0)\n"
        "kids = [subprocess.Popen(['sleep', '60'], env=e) for e in (None, {})]\n"
        "import atexit; atexit.register(lambda: [k.kill() for k in kids])",
        claim(run_dir),
    )
    spawn("", {"TIGHTSHIP_RUN": ""})
    attribution = Attribution(runtime_dir)
    (run,) = attribution.update()
    assert (run.view.run, run.view.run_dir, run.view.uid, run.view.ranks) == (KEY, run_dir, os.getuid(), ())
    assert len(run.view.pids) == 3
    assert run.view.pids[0] == job.pid
    # The kernel counts in ticks of 10 ms.
    assert before_ns - 20_000_000 <= run.view.start_ns <= now_ns()
    assert attribution.state().detail.startswith("1 live run")  # others may run here, too
    for pid in run.view.pids[1:]:
        os.kill(pid, signal.SIGKILL)
    job.kill()
    job.wait()
    wait_for(lambda: attribution.update() == [])
    assert attribution.state().detail.startswith("0 live runs")


def test_a_process_that_becomes_another_program_is_read_again(
    runtime_dir: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    run_dir = make_run(runtime_dir)
    job = spawn(
        "import threading\n"
        "def later():\n"
        "    sys.stdin.readline()\n"
        f"    os.execve('/bin/sleep', ['sleep', '60'], {claim(run_dir)!r})\n"
        "threading.Thread(target=later).start()",
        stdin=subprocess.PIPE,
    )
    table = ProcessTable()
    attribution = Attribution(runtime_dir, table=table)
    assert attribution.update() == []
    # Long known and not young any more: only its turn brings it back.
    table._known[job.pid].seen_s -= 2 * WATCHED_S
    assert job.stdin is not None
    job.stdin.write("\n")
    job.stdin.flush()
    (run,) = wait_for(attribution.update)  # type: ignore[misc]
    assert run.view.pids == (job.pid,)


def test_a_job_outlives_its_run_directory(runtime_dir: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    run_dir = make_run(runtime_dir)
    job = spawn("", claim(run_dir))
    attribution = Attribution(runtime_dir)
    assert len(attribution.update()) == 1
    shutil.rmtree(run_dir)
    (run,) = attribution.update()  # what the launcher left behind still holds its devices
    assert run.view.pids == (job.pid,)
    assert Attribution(runtime_dir).update() == []  # an agent that never saw the directory does not believe it


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda d: d.chmod(0o750), "mode 750"),
        (lambda d: d.chmod(0o1700), "mode 1700"),
        (lambda d: (d.rename(d.with_name("elsewhere")), d.symlink_to(d.with_name("elsewhere"))), "not a directory"),
        (lambda d: (shutil.rmtree(d), d.write_text("")), "not a directory"),
        (shutil.rmtree, "is not there"),
        pytest.param(
            lambda d: os.chown(d, 12345, 12345),
            "belongs to user 12345",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away"),
        ),
    ],
)
def test_a_claim_without_a_proper_directory_is_not_believed(
    spoil: Callable[[Path], object],
    why: str,
    runtime_dir: Path,
    spawn: Callable[..., subprocess.Popen[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_dir = make_run(runtime_dir)
    spoil(run_dir)
    spawn("", claim(run_dir))
    attribution = Attribution(runtime_dir)
    for _ in range(3):
        assert attribution.update() == []
    assert why in attribution.state().detail
    assert len(caplog.records) == 1  # said once


@pytest.mark.parametrize(
    "variables",
    [
        {"TIGHTSHIP_RUN": KEY},
        {"TIGHTSHIP_RUN": KEY, "TIGHTSHIP_RUN_DIR": "relative/" + KEY},
        {"TIGHTSHIP_RUN": KEY, "TIGHTSHIP_RUN_DIR": "/" + "x" * 200},
        {"TIGHTSHIP_RUN": KEY.upper(), "TIGHTSHIP_RUN_DIR": "/tmp/" + KEY.upper()},
        {"TIGHTSHIP_RUN": "../../etc/passwd", "TIGHTSHIP_RUN_DIR": "/etc/passwd"},
        {"TIGHTSHIP_RUN": KEY + "\n", "TIGHTSHIP_RUN_DIR": "/tmp/" + KEY},
    ],
)
def test_a_malformed_claim_is_none(
    variables: dict[str, str], runtime_dir: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    job = spawn("", variables)
    table = ProcessTable()
    assert job.pid not in [p.pid for p in table.scan()]
    assert job.pid in table._known


def test_runs_of_other_installations_are_left_alone(
    runtime_dir: Path, tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    other = tmp_path / "rt"
    other.mkdir(mode=0o700)
    spawn("", claim(make_run(other)))
    attribution = Attribution(runtime_dir)
    assert attribution.update() == []
    assert "of other runtime directories left alone" in attribution.state().detail
    assert len(Attribution(other).update()) == 1


def test_names_that_do_not_fit_the_key_are_not_believed(
    runtime_dir: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    run_dir = make_run(runtime_dir)
    spawn("", claim(run_dir, "f" * 16))
    attribution = Attribution(runtime_dir)
    assert attribution.update() == []
    assert "not named by the run" in attribution.state().detail


@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
def test_nobody_gets_into_the_run_of_somebody_else(
    runtime_dir: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    run_dir = make_run(runtime_dir)
    intruder = spawn("", claim(run_dir), user=12345)
    attribution = Attribution(runtime_dir)

    def refused() -> bool:
        assert attribution.update() == []
        return "belongs to user 0, the process to user 12345" in attribution.state().detail

    wait_for(refused)
    owner = spawn("", claim(run_dir))
    (run,) = wait_for(attribution.update)  # type: ignore[misc]
    assert run.view.pids == (owner.pid,)
    assert intruder.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_root_also_serves_the_default_directories_of_others(
    runtime_dir: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    parent = Path("/tmp/tightship-54321")
    try:
        parent.mkdir(mode=0o700)
        run_dir = make_run(parent)
        for path in (parent, run_dir, run_dir / "ranks"):
            os.chown(path, 54321, 54321)
        job = spawn("", claim(run_dir), user=54321)
        (run,) = Attribution(runtime_dir).update()
        assert (run.view.uid, run.view.pids) == (54321, (job.pid,))
        assert Attribution(runtime_dir, own_uid=12345).update() == []  # only root does
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def test_the_scheduler_id_is_found(runtime_dir: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    run_dir = make_run(runtime_dir)
    spawn("", claim(run_dir) | {"SLURM_JOB_ID": "4711"})
    (run,) = Attribution(runtime_dir).update()
    assert run.external_id == "4711"


# ---- our own /proc ----------------------------------------------------------------------------------------------


class FakeProc:
    """A procfs that can do what the real one does rarely: reuse a pid, lose a process in the middle of a reading."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(
        self,
        pid: int,
        *,
        ticks: int = 100,
        parent: int = 1,
        env: dict[str, str] | None = None,
        environ_at: int = 4096,
        cpu: int = 0,
        name: bytes = b"python",
        state: bytes = b"S",
        uid: int = 1000,
        cgroup: str = "0::/",
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        fields = [b"0"] * 50
        fields[0], fields[1], fields[11], fields[19] = state, b"%d" % parent, b"%d" % cpu, b"%d" % ticks
        fields[47] = b"%d" % environ_at
        (folder / "stat").write_bytes(b"%d (%s) %s\n" % (pid, name, b" ".join(fields)))
        (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "statm").write_text("100 50 20 0 0 0 0\n")
        (folder / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in (env or {}).items()))
        (folder / "cgroup").write_text(cgroup)

    def remove(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    root = tmp_path / "proc"
    root.mkdir()
    return FakeProc(root)


CLAIM = {"TIGHTSHIP_RUN": KEY, "TIGHTSHIP_RUN_DIR": f"/tmp/tightship-1000/{KEY}"}


def test_a_recycled_pid_is_another_process(proc: FakeProc) -> None:
    proc.put(10, env=CLAIM, ticks=100)
    proc.put(11, ticks=100)
    table = ProcessTable(proc.root)
    assert [p.pid for p in table.scan()] == [10]
    proc.put(10, ticks=900)
    proc.put(11, ticks=900, env=CLAIM)
    assert [p.pid for p in table.scan()] == [11]


def test_every_process_has_its_turn(proc: FakeProc) -> None:
    for pid in range(1000, 1300):
        proc.put(pid)
    table = ProcessTable(proc.root)
    table.scan()
    for known in table._known.values():
        known.seen_s -= 2 * WATCHED_S
    proc.put(1299, environ_at=8192, env=CLAIM)  # it became another program
    looks = next(n for n in itertools.count(1) if table.scan())
    assert 1 <= looks <= 7  # 300 processes, 64 in each scan


def test_what_vanishes_or_cannot_be_read_is_no_trouble(proc: FakeProc) -> None:
    proc.put(10, env=CLAIM)
    proc.put(11, env=CLAIM, name=b"evil) R 1 (\n\0\xff")
    proc.put(12, env=CLAIM, state=b"Z")
    proc.put(13, env=CLAIM)
    (proc.root / "13" / "status").unlink()
    proc.put(14, env=CLAIM)
    (proc.root / "14" / "stat").write_bytes(b"14 (cut")
    proc.put(15, env=CLAIM)
    (proc.root / "15" / "stat").unlink()
    (proc.root / "16").mkdir()
    proc.put(17, env=CLAIM)
    (proc.root / "17" / "statm").write_text("")
    table = ProcessTable(proc.root)
    found = {p.pid: p for p in table.scan()}
    assert set(found) == {10, 11, 17}
    assert found[10].private_bytes == 30 * os.sysconf("SC_PAGE_SIZE")
    assert found[17].private_bytes is None
    proc.remove(10)
    assert {p.pid for p in table.scan()} == {11, 17}
    assert 10 not in table._known
    assert ProcessTable(proc.root / "nowhere").scan() == []


def test_descendants_belong_to_the_run_unless_they_are_another_users(proc: FakeProc) -> None:
    proc.put(10, env=CLAIM, ticks=1)
    proc.put(11, parent=10, ticks=2)
    proc.put(12, parent=11, ticks=3, env={"PATH": "/bin"})
    proc.put(13, parent=12, ticks=4, uid=0)
    proc.put(14, parent=12, ticks=5, env={**CLAIM, "TIGHTSHIP_RUN": "f" * 16})
    proc.put(15, parent=15, ticks=6)  # no process is its own parent, but nobody promises
    table = ProcessTable(proc.root)
    claims = {p.pid: p.claim.run for p in table.scan()}
    assert claims == {10: KEY, 11: KEY, 12: KEY, 14: "f" * 16}
    proc.put(20, parent=11, ticks=7)
    proc.remove(10)
    assert {p.pid for p in table.scan()} == {11, 12, 14, 20}  # its elder is gone, its parent is known


def test_the_pod_is_found_in_the_cgroup(proc: FakeProc) -> None:
    uid = "0f7f6c0e-1f6a-4a3e-9d53-4be5c0a7c9d1"
    proc.put(10, env=CLAIM, cgroup=f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-1.scope\n")
    proc.put(11, env=CLAIM | {"SLURM_JOB_ID": "x; rm -rf /"})
    claims = {p.pid: p.claim.external_id for p in ProcessTable(proc.root).scan()}
    assert claims == {10: f"pod/{uid}", 11: None}


def test_a_directory_that_cannot_be_said_is_no_claim(proc: FakeProc) -> None:
    """It would reach the server in the state of a source."""
    for pid, bad in ((10, b"\xff"), (11, b"\x1b[2J"), (12, "\u202e".encode())):
        proc.put(pid)
        (proc.root / str(pid) / "environ").write_bytes(
            b"TIGHTSHIP_RUN=%s\0TIGHTSHIP_RUN_DIR=/tmp/%s/%s\0" % (KEY.encode(), bad, KEY.encode())
        )
    proc.put(13, env=CLAIM | {"TIGHTSHIP_RUN_DIR": f"/tmp/höhe/{KEY}"})
    assert [p.pid for p in ProcessTable(proc.root).scan()] == [13]


def test_forged_claims_do_not_fill_the_log(proc: FakeProc, runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    for pid in range(100, 400):
        key = f"{pid:016x}"
        proc.put(pid, env={"TIGHTSHIP_RUN": key, "TIGHTSHIP_RUN_DIR": str(runtime_dir / key)})
    attribution = Attribution(runtime_dir, table=ProcessTable(proc.root))
    for _ in range(3):
        assert attribution.update() == []
    assert len(caplog.records) == MAX_REFUSALS_REPORTED
    assert len(attribution.state().detail) <= 1000


def test_one_users_many_runs_cost_the_others_nothing(
    proc: FakeProc, runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They come first, with more runs than may be: one with real ones, one with forged ones."""
    uid, forged = os.getuid(), 12345
    for number in range(MAX_RUNS_PER_USER + 10):
        key = f"{number:016x}"
        make_run(runtime_dir, key)
        proc.put(1000 + number, ticks=number, uid=uid, env=claim(runtime_dir / key, key))
        key = f"f{number:015x}"
        proc.put(3000 + number, ticks=number, uid=forged, env=claim(runtime_dir / key, key))
    others = 54321
    proc.put(9000, ticks=5000, uid=others, env=claim(runtime_dir / KEY))
    attribution = Attribution(runtime_dir, table=ProcessTable(proc.root))
    runs = attribution.update()
    assert [run.view.run for run in runs] == [f"{number:016x}" for number in range(MAX_RUNS_PER_USER)]
    detail = attribution.state().detail
    assert f"10 runs of user {uid} are too many to be attributed" in detail
    assert f"more claims of user {forged} refused" in detail
    assert f"{KEY} refused" in detail, "not hidden by the others' claims"
    assert sum(KEY in record.message for record in caplog.records) == 1
    if uid == 0:
        run_dir = make_run(runtime_dir)
        os.chown(run_dir, others, others)
        assert attribution.update()[-1].view.uid == others


@pytest.mark.skipif(os.getuid() != 0, reason="needs other users")
def test_many_users_with_many_runs_share_what_the_server_takes(proc: FakeProc, runtime_dir: Path) -> None:
    pid = 1000
    for uid, number in ((40001, 3), (40002, 400), (40003, 400), (40004, 400), (40005, 400), (40006, 20)):
        for n in range(number):
            key = f"{uid - 40000:x}{n:015x}"
            run_dir = make_run(runtime_dir, key)
            os.chown(run_dir, uid, uid)
            proc.put(pid := pid + 1, ticks=pid, uid=uid, env=claim(run_dir, key))
    attribution = Attribution(runtime_dir, table=ProcessTable(proc.root))
    found = Counter(run.view.uid for run in attribution.update())
    assert (found[40001], found[40006]) == (3, 20)
    assert [found[uid] for uid in range(40002, 40006)] == [244] * 4
    assert found.total() <= MAX_RUNS


def test_one_users_many_control_files_are_not_all_read(
    proc: FakeProc, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution_module, "MAX_FILES", 40)
    for number in range(4):
        key = f"{number:016x}"
        folder = make_run(runtime_dir, key) / "ranks"
        for pid in range(1, 31):
            (folder / str(pid)).touch()
        proc.put(1000 + number, ticks=number, uid=os.getuid(), env=claim(runtime_dir / key, key))
    read: list[Path] = []
    monkeypatch.setattr(ranks, "read_rank_file", lambda path, uid: read.append(path))
    assert len(Attribution(runtime_dir, table=ProcessTable(proc.root)).update()) == 4
    assert Counter(path.parent.parent.name for path in read) == {f"{number:016x}": 10 for number in range(4)}


def test_a_large_environment_is_read_whole(proc: FakeProc) -> None:
    proc.put(10, env={"BIG": "x" * 300_000, **CLAIM, "TIGHTSHIP_RUN_DIR": f"/tmp/{KEY}"})
    (process,) = ProcessTable(proc.root).scan()
    assert process.claim.run_dir == Path(f"/tmp/{KEY}")
