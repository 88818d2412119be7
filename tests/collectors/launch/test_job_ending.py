"""What a run's record says of its end: the job's uncaught exception, and what the kernel killed for lack of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from guard_player import load_injected, load_later
from launching import TIGHTSHIP, ended, launch, run_dirs, warnings_in
from memory_group import memory_group

from tightship_collectors.jobs.control_file import (
    ERROR_BYTES,
    OFF_ERROR,
    OFF_ERROR_NS,
    SIZE,
    Flag,
    rank_path,
    read_error,
)
from tightship_collectors.launch.ending import SAME_END_NS, OomKills, memory_limit, read_job_error
from tightship_collectors.launch.memory_advice import measure_command, memory_advice
from tightship_platform.results.memory_lack import Lack

PYTHON = sys.executable
OOM = 'torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\\nsecond line")'
SAID = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."


def the_end() -> dict[str, Any]:
    """The record of the one run's end."""
    [record] = ended()
    return record


# ---- real jobs -------------------------------------------------------------------------------------------------------


ENDS = {
    "own hook and a cause": (
        f"import sys, torch\nsys.excepthook = lambda *_: print('mine', file=sys.stderr)\ntry:\n    raise {OOM}\n"
        "except RuntimeError:\n    raise ValueError('no batch fits')",
        1,
        f"ValueError: no batch fits (after {SAID})",
    ),
    "a message with side effects": (
        "import torch\nclass Loud(Exception):\n    def __str__(self):\n        print('asked')\n        return ''\n"
        "raise Loud(7)",
        1,
        "Loud",
    ),
    "exit": ("import sys, torch\nsys.exit('bye')", 1, None),
    "ctrl-c": ("import os, signal, torch\nos.kill(os.getpid(), signal.SIGINT)", 130, None),
    "caught": (f"import torch\ntry:\n    raise {OOM}\nexcept RuntimeError:\n    pass", 0, None),
}


def ends_as_alone(folder: Path, script: str, code: int, error: str | None) -> None:
    """Whether a job ends with us as it does without us, and is reported so."""
    # Alone it needs torch only where it names something of it.
    (folder / "job.py").write_text(script if OOM in script else script.replace("torch", "string"))
    alone = subprocess.run([PYTHON, "job.py"], cwd=folder, capture_output=True, text=True, timeout=120)
    (folder / "job.py").write_text(script)
    done = launch(PYTHON, "job.py", cwd=folder)
    ours = set(warnings_in(done.stderr))
    assert done.returncode == code and alone.returncode in (code, 128 - code), "a shell gives 128 + n for signal n"
    assert done.stdout == alone.stdout
    assert [line for line in done.stderr.splitlines() if line not in ours] == alone.stderr.splitlines()
    assert (the_end()["exit_code"], the_end()["error"]) == (code, error)
    assert run_dirs() == []


@pytest.mark.torch
def test_a_job_that_runs_out_of_memory_ends_as_it_would_without_us(tmp_path: Path) -> None:
    ends_as_alone(tmp_path, f"import torch\nraise {OOM}", 1, SAID)


@pytest.mark.sliced(2)
@pytest.mark.torch
@pytest.mark.parametrize("end", ENDS)
def test_a_job_ends_as_it_would_without_us(tmp_path: Path, end: str) -> None:
    ends_as_alone(tmp_path, *ENDS[end])


@pytest.mark.torch
def test_of_ranks_the_one_that_failed_is_reported_and_not_its_starter(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        f"import os, time\nif os.environ['RANK'] == '1':\n    import torch\n    raise {OOM}\ntime.sleep(600)"
    )
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "job.py"]
    assert launch(*torchrun, cwd=tmp_path).returncode == 1
    assert the_end()["error"] == SAID


HOG = "data = []\nwhile True:\n    data.append(bytearray(1 << 24))"


def test_what_the_kernel_killed_for_lack_of_memory_is_counted_and_said() -> None:
    with memory_group(200 << 20) as group:
        line = group.inside(*TIGHTSHIP, "run", "--", PYTHON, "-c", HOG)
        done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 137, done.stderr
    assert (the_end()["exit_code"], the_end()["oom_kills"], the_end()["error"]) == (137, 1, None)
    said = "tightship: the kernel killed the job for lack of memory: its control group allows 200.0 MiB in all"
    assert done.stderr.splitlines()[-1] == said  # nothing leads on: it trains nothing with torch


# ---- what the job wrote ----------------------------------------------------------------------------------------------


def raised(error: BaseException) -> Any:
    """The module that reads what Python keeps of an uncaught exception, for a process that ended of this one."""
    error_message = load_later("error_message")
    error_message.sys = type("FakeSys", (), {"last_value": error})
    return error_message


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (KeyError("k"), "KeyError: k"),
        (OSError(12, "Cannot allocate memory"), "OSError: Cannot allocate memory"),
        (RuntimeError("\n====\n  train.py   FAILED\nmore"), "RuntimeError: train.py FAILED"),
        (
            RuntimeError('one\nTraceback (most recent call last):\n  File "a.py"\nMemoryError: two\n'),
            "RuntimeError: one … MemoryError: two",
        ),
        (RuntimeError("x" * 10_000), f"RuntimeError: {'x' * 499}…"),
        (KeyboardInterrupt(), ""),
    ],
)
def test_one_line_is_made_of_an_exception(error: BaseException, said: str) -> None:
    assert raised(error).uncaught(ERROR_BYTES - 1).decode() == said


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert raised(first).uncaught(ERROR_BYTES - 1) == b"ValueError: first (after ValueError: second)"


def test_what_does_not_fit_is_cut_at_a_character() -> None:
    text = raised(RuntimeError("ä" * 499)).uncaught(100)
    assert len(text) == 100 or len(text) == 99
    assert text.decode().startswith("RuntimeError: ää")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    return tmp_path


def failed(run_dir: Path, pid: int, text: bytes, *, time_ns: int = 1, flags: int = 0) -> None:
    """The control file of a process that has ended."""
    injected = load_injected()
    injected.os = type("FakeOs", (), {**vars(os), "getpid": staticmethod(lambda: pid)})
    file = injected.ControlFile(str(run_dir), flags)
    file.map[OFF_ERROR : OFF_ERROR + len(text)] = text
    file.u64[OFF_ERROR_NS // 8] = time_ns


def test_the_first_of_those_that_end_together_is_reported(run_dir: Path) -> None:
    late = 10 * SAME_END_NS
    failed(run_dir, 11, b"survived", time_ns=late - SAME_END_NS - 1)
    failed(run_dir, 12, b"because of 13", time_ns=late)
    failed(run_dir, 13, b"the cause", time_ns=late - SAME_END_NS)
    failed(run_dir, 14, b"a rank failed", time_ns=late - SAME_END_NS, flags=Flag.LAUNCHER)
    assert read_job_error(run_dir) == "the cause"


def test_a_starter_of_ranks_is_reported_where_no_rank_said_anything(run_dir: Path) -> None:
    failed(run_dir, 14, b"a rank failed", flags=Flag.LAUNCHER)
    assert read_job_error(run_dir) == "a rank failed"


def test_nothing_hostile_is_believed(run_dir: Path, tmp_path: Path) -> None:
    assert read_job_error(run_dir) is None and read_job_error(tmp_path / "gone") is None
    failed(run_dir, 11, b"")
    (run_dir / "ranks" / "12").write_bytes(b"x" * (SIZE - 1))
    (run_dir / "ranks" / "13").symlink_to(run_dir / "ranks" / "11")
    os.mkfifo(run_dir / "ranks" / "14")
    (run_dir / "ranks" / "nonsense").write_text("")
    assert read_job_error(run_dir) is None
    failed(run_dir, 15, b"one\ntwo\x1b[31m\xff" + "\u202e".encode() + b"x" * 900)
    said = read_job_error(run_dir)
    assert said is not None and said.startswith("one two [31m\ufffd x") and said.isprintable()
    assert read_error(rank_path(run_dir, 15), uid=os.getuid() + 1) is None


# ---- the kernel's counters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("0::/job/one", "sys/fs/cgroup/job/one/memory.events"),
        ("0::/../outside", "sys/fs/cgroup/memory.events"),
        ("0::/not/seen", "sys/fs/cgroup/memory.events"),
        ("4:memory:/job\n0::/", "sys/fs/cgroup/memory/job/memory.oom_control"),
    ],
)
def test_kills_are_counted_from_the_start(tmp_path: Path, group: str, file: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    counter = tmp_path / file
    counter.parent.mkdir(parents=True)
    counter.write_text("oom 5\noom_kill 3\noom_group_kill 9\n")
    kills = OomKills(tmp_path)
    assert kills.count() == 0
    counter.write_text("oom 6\noom_kill 5\noom_group_kill 9\n")
    assert kills.count() == 2
    counter.write_text("oom_kill many\n")
    assert kills.count() is None


def test_without_counters_nothing_is_known(tmp_path: Path) -> None:
    assert OomKills(tmp_path).count() is None
    assert memory_limit(tmp_path) is None


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/pod/job\n0::/pod/job\n")
    for file, text in (
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ("sys/fs/cgroup/memory/pod/job/memory.limit_in_bytes", "300"),
        ("sys/fs/cgroup/pod/memory.max", "200"),
        ("sys/fs/cgroup/pod/job/memory.max", "max"),
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert memory_limit(tmp_path) == 200


# ---- the line that a job's user reads --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lack", "oom_kills", "limit_bytes", "plan", "said"),
    [
        (Lack.HOST, 2, 3 << 30, None, "the kernel killed the job for lack of memory: its control group allows 3.0 GiB"),
        (Lack.HOST, 1, None, None, "the kernel killed the job for lack of memory. Next: CMD"),
        (Lack.HOST, 0, 3 << 30, None, "the job was out of host memory. Next: CMD"),
        (Lack.DEVICE, 0, None, None, "the job was out of device memory. Next: CMD"),
        (
            Lack.DEVICE,
            None,
            None,
            Path("p.yaml"),
            "it took more than p.yaml predicts: plan again with a smaller --device",
        ),
        (
            Lack.HOST,
            1,
            None,
            Path("p.yaml"),
            "it took more than p.yaml predicts: plan again with a smaller --host-memory",
        ),
    ],
)
def test_the_line_names_what_was_short(
    lack: Lack, oom_kills: int | None, limit_bytes: int | None, plan: Path | None, said: str
) -> None:
    line = memory_advice(lack, oom_kills=oom_kills, limit_bytes=limit_bytes, next_command="CMD", plan=plan)
    assert said in line and ("Next: CMD" in line) == (plan is None)


def test_a_command_is_copied_whole_or_not_at_all() -> None:
    assert measure_command(["python", "a b.py"]) == "tightship offload measure -o profile.yaml -- python 'a b.py'"
    for command in (["python", "t.py", "--password", "hunter22"], ["python", "x" * 5000], ["python", "a\nb"]):
        assert measure_command(command) == "tightship offload measure -o profile.yaml -- python train.py"
