"""Signals reach the command once, whoever sends them and to whom."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import TIGHTSHIP, run_dirs, start
from waiting import PATIENCE_S, wait_for

from tightship_collectors.launch.group_watch import WITNESS_S

COUNT = """
import os, signal, sys, time
place = sys.argv[1]
seen = []
record = os.open(place, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
def note(number, frame):
    seen.append(number)
    os.write(record, b"%d " % number)  # in one piece: the next signal may come while this one is handled
for number in (1, 2, 3, 10, 12, 15, 18):
    signal.signal(number, note)
with open(place + ".pid", "w") as file:
    file.write(str(os.getpid()))
os.rename(place + ".pid", place + ".up")
until = time.monotonic() + 60
while not os.path.exists(place + ".end") and time.monotonic() < until:
    time.sleep(0.02)
sys.exit(40 + len(seen))
"""
SETTLE_S = 0.4
"""Long enough for a second, wrong delivery to show."""
BETWEEN_S = 3 * WITNESS_S
"""Between two signals of a row: a second delivery that comes later still shows, in the row."""


class Job:
    """A command that counts its signals, below a launcher in its own process group."""

    def __init__(self, folder: Path, *, prefix: tuple[str, ...] = ()) -> None:
        self.place = folder / "seen"
        command = [*prefix, *TIGHTSHIP, "run", "--", sys.executable, "-S", "-c", COUNT, str(self.place)]
        # In its own session the group would be an orphan, which the kernel does not stop.
        self.process = subprocess.Popen(command, process_group=0, stderr=subprocess.DEVNULL)
        self.pid = int(wait_for(lambda: (p := Path(f"{self.place}.up")).exists() and p.read_text()))

    @property
    def seen(self) -> list[int]:
        return [int(word) for word in self.place.read_text().split()]

    def settle(self, count: int, settle_s: float = SETTLE_S) -> list[int]:
        wait_for(lambda: len(self.seen) >= count)
        time.sleep(settle_s)
        return self.seen

    def end(self) -> int:
        Path(f"{self.place}.end").touch()
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for pid in (made.process.pid, made.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    made.process.wait()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_witness(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == "tightship-watch\n"


FORWARDED = [1, 2, 3, 10, 12, 15]


def test_a_signal_to_the_launcher_alone_is_passed_on(job: Job) -> None:
    for count, number in enumerate(FORWARDED, start=1):
        job.process.send_signal(number)
        assert job.settle(count, BETWEEN_S) == FORWARDED[:count]
    assert job.settle(len(FORWARDED)) == FORWARDED
    assert job.end() == 40 + len(FORWARDED)
    assert run_dirs() == []


def test_a_signal_to_the_group_comes_once(job: Job) -> None:
    for count, number in enumerate(FORWARDED, start=1):
        os.killpg(job.process.pid, number)
        assert job.settle(count, BETWEEN_S) == FORWARDED[:count]
    assert job.settle(len(FORWARDED)) == FORWARDED
    # and after all this, one to the launcher alone is still distinguished from them
    job.process.send_signal(signal.SIGUSR1)
    assert job.settle(len(FORWARDED) + 1)[-1] == signal.SIGUSR1
    assert job.end() == 40 + len(FORWARDED) + 1


def test_a_signal_to_the_job_alone_comes_once(job: Job) -> None:
    os.kill(job.pid, signal.SIGTERM)
    assert job.settle(1) == [signal.SIGTERM]
    assert job.end() == 41


def test_timeout_ends_a_job_with_one_signal(tmp_path: Path) -> None:
    job = Job(tmp_path, prefix=("timeout", "--signal=USR1", "600"))
    job.process.send_signal(signal.SIGALRM)  # its time is up
    # It signals its child, the launcher, and then its own group, which is that of all of them; and continues both.
    assert [number for number in job.settle(1) if number != signal.SIGCONT] == [signal.SIGUSR1]
    assert job.end() == 124


SLOW_TIMEOUT = f"""
import os, signal, subprocess, sys, time
launcher = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.sigwait({{signal.SIGALRM}})
launcher.send_signal(signal.SIGUSR1)
until = time.monotonic() + {4 * WITNESS_S}
while time.monotonic() < until:
    pass
os.kill(0, signal.SIGUSR1)
sys.exit(launcher.wait())
"""


def test_a_timeout_that_gets_no_processor_signals_once_too(tmp_path: Path) -> None:
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})"
    job = Job(tmp_path, prefix=(sys.executable, "-S", "-c", block + SLOW_TIMEOUT))
    job.process.send_signal(signal.SIGALRM)
    assert job.settle(1) == [signal.SIGUSR1]
    assert job.end() == 41


def test_a_witness_that_gets_no_processor_is_waited_for(job: Job) -> None:
    (witness,) = filter(is_witness, children_of(job.process.pid))
    os.kill(witness, signal.SIGSTOP)
    wait_for(lambda: state_of(witness) == "T")
    os.killpg(job.process.pid, signal.SIGUSR1)
    assert job.settle(1) == [signal.SIGUSR1]
    os.kill(witness, signal.SIGCONT)
    # What it had to say then is not taken for the next signal.
    assert job.settle(1) == [signal.SIGUSR1]
    job.process.send_signal(signal.SIGUSR1)
    assert job.settle(2) == [signal.SIGUSR1] * 2
    assert job.end() == 42


def test_a_job_that_signals_its_parent_or_group_gets_nothing_back(tmp_path: Path) -> None:
    script = """
        import os, signal, sys, time
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.5)
        assert seen == [], seen
        os.kill(0, signal.SIGUSR1)
        time.sleep(0.5)
        sys.exit(50 + len(seen))
    """
    lines = "\n".join(line.strip() for line in script.strip().splitlines())
    process = start(sys.executable, "-S", "-c", lines, start_new_session=True)
    assert process.wait(PATIENCE_S) == 51, process.communicate()


def test_what_ends_the_job_is_its_exit_code(tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    script = "ulimit -c 0; echo up > {}; exec sleep 60"
    jobs = {number: start("sh", "-c", script.format(tmp_path / str(int(number)))) for number in numbers}
    for number, process in jobs.items():
        wait_for(lambda: (p := tmp_path / str(int(number))).exists() and p.read_text())  # noqa: B023
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
        process.communicate()


def test_the_terminals_ctrl_c_comes_once(tmp_path: Path) -> None:
    place = tmp_path / "seen"
    pid, master = pty.fork()
    if pid == 0:
        os.execv(TIGHTSHIP[0], [*TIGHTSHIP, "run", "--", sys.executable, "-S", "-c", COUNT, str(place)])
    try:
        wait_for(lambda: Path(f"{place}.up").exists())
        for count, (key, number) in enumerate([(b"\x03", 2), (b"\x1c", 3), (b"\x03", 2)], start=1):
            os.write(master, key)
            wait_for(lambda: place.exists() and len(place.read_text().split()) >= count)  # noqa: B023
            time.sleep(SETTLE_S)
            assert place.read_text().split() == ["2", "3", "2"][:count]
            assert int(place.read_text().split()[-1]) == number
        Path(f"{place}.end").touch()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 43
    finally:
        os.close(master)


def test_a_stopped_job_stops_the_launcher_and_both_go_on(job: Job) -> None:
    job.process.send_signal(signal.SIGTSTP)
    wait_for(lambda: state_of(job.pid) == "T" and state_of(job.process.pid) == "T")
    job.process.send_signal(signal.SIGCONT)
    wait_for(lambda: state_of(job.pid) != "T" and state_of(job.process.pid) != "T")
    assert job.settle(1) == [signal.SIGCONT]
    job.process.send_signal(signal.SIGTERM)
    assert job.settle(2) == [signal.SIGCONT, signal.SIGTERM]
    assert job.end() == 42


def test_ctrl_z_and_fg_in_a_shell(tmp_path: Path) -> None:
    place = tmp_path / "seen"
    pid, master = pty.fork()
    if pid == 0:
        os.environ["PS1"] = "$ "
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        line = " ".join(f"'{word}'" for word in [*TIGHTSHIP, "run", "--", sys.executable, "-S", "-u", "-c"])
        script = tmp_path / "count.py"
        script.write_text(COUNT)
        os.write(master, f"{line} 'exec(open(\"{script}\").read())' {place}\n".encode())
        job = int(wait_for(lambda: (p := Path(f"{place}.up")).exists() and p.read_text()))
        launcher = int(Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[1])
        os.write(master, b"\x1a")
        wait_for(lambda: state_of(job) == "T" and state_of(launcher) == "T")
        os.write(master, f"echo stopped > {tmp_path}/stopped\n".encode())
        wait_for((tmp_path / "stopped").exists)  # the shell has its terminal back
        os.write(master, b"fg\n")
        wait_for(lambda: state_of(job) != "T" and state_of(launcher) != "T")
        time.sleep(SETTLE_S)
        Path(f"{place}.end").touch()
        os.write(master, f"echo $? > {tmp_path}/code\n".encode())
        code = int(wait_for(lambda: (p := tmp_path / "code").exists() and p.read_text()))
        assert [int(word) for word in place.read_text().split()] == [signal.SIGCONT]
        assert code == 41
        os.write(master, b"exit\n")
        os.waitpid(pid, 0)
    finally:
        os.close(master)


def test_a_launcher_that_is_killed_leaves_the_job_alone(job: Job, tmp_path: Path) -> None:
    (witness,) = set(children_of(job.process.pid)) - {job.pid}
    job.process.kill()
    job.process.wait()
    wait_for(lambda: not Path(f"/proc/{witness}").exists() or state_of(witness) == "Z")
    time.sleep(SETTLE_S)
    assert state_of(job.pid) in "SR"
    assert job.seen == []
    (run_dir,) = run_dirs()
    assert (run_dir / "run.json").exists()
    Path(f"{job.place}.end").touch()
    wait_for(lambda: not Path(f"/proc/{job.pid}").exists() or state_of(job.pid) == "Z")


def test_the_witness_holds_nothing_open(tmp_path: Path) -> None:
    """Somebody who reads the job's output to its end must not wait for a helper of ours."""
    process = start("sh", "-c", "echo out; exec 1>&- 2>&-; sleep 60", stderr=None)
    try:
        assert process.stdout is not None
        witness = wait_for(lambda: next(iter(p for p in children_of(process.pid) if is_witness(p)), None))
        targets = [str(p.readlink()) for p in Path(f"/proc/{witness}/fd").iterdir()]
        assert len(targets) == 2 and all(t.startswith("pipe:") for t in targets)
        assert f"pipe:[{os.fstat(process.stdout.fileno()).st_ino}]" not in targets
    finally:
        process.terminate()
        process.communicate()


def test_a_parent_that_ignores_its_children_changes_nothing() -> None:
    script = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    line = [sys.executable, "-c", script, *TIGHTSHIP, "run", "--", "sh", "-c", "exit 6"]
    assert subprocess.run(line, capture_output=True).returncode == 6
