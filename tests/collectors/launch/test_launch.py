"""`tightship run`: what the command gets, what it gives back, and what happens when something is missing."""

from __future__ import annotations

import json
import os
import pty
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from launching import TIGHTSHIP, ended, launch, run_dirs, spooled, start, warnings_in
from waiting import wait_for

from tightship_collectors.launch.environment import INJECT_DIR

PYTHON = sys.executable
SHOW = "import os, json; print(json.dumps({k: v for k, v in os.environ.items()}))"


def ends(command: list[str], code: int) -> None:
    done = launch(*command)
    assert done.returncode == code
    assert done.stdout == ""
    assert [record["exit_code"] for record in ended()] == [code]
    assert run_dirs() == []


@pytest.mark.sliced(3)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["false"], 1),
        (["sh", "-c", "exit 255"], 255),
        ([PYTHON, "-c", "import sys; sys.exit(3)"], 3),
        ([PYTHON, "-c", "raise ValueError"], 1),
        ([PYTHON, "-c", "import os; os._exit(9)"], 9),
    ],
)
def test_the_exit_code_is_the_commands(command: list[str], code: int) -> None:
    ends(command, code)


@pytest.mark.sliced(2)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([PYTHON, "-c", "import os; os.abort()"], 128 + 6),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["sh", "-c", "kill -TERM $$"], 128 + 15),
        (["sh", "-c", "kill -SEGV $$"], 128 + 11),
    ],
)
def test_the_exit_code_is_that_of_the_signal_that_ended_the_command(command: list[str], code: int) -> None:
    ends(command, code)


def test_commands_that_cannot_be_started(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo hi\n")
    lost = tmp_path / "lost"
    lost.write_text("#!/nowhere/interpreter\n")
    lost.chmod(0o755)
    cases = [
        ("no-such-command-here", 127, "no-such-command-here: command not found"),
        (tmp_path / "gone", 127, "No such file or directory"),
        (lost, 127, "No such file or directory"),
        (plain / "below", 127, "Not a directory"),
        (plain, 126, "Permission denied"),
        (tmp_path, 126, "Permission denied"),
    ]
    for command, code, why in cases:
        done = launch(command)
        assert (done.returncode, done.stdout) == (code, "")
        assert len(done.stderr.splitlines()) == 1 and why in done.stderr, done.stderr
        assert done.stderr.startswith("tightship: ")
    assert spooled() == {} and run_dirs() == []


def test_a_script_without_an_interpreter_line_runs_in_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$1|$2"; exit 4\n')
    script.chmod(0o755)
    done = launch(script, "a b", "c")
    assert (done.returncode, done.stdout) == (4, "a b|c\n")
    done = launch("script", "x", extra_env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout) == (4, "x|\n")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--workflow", "a\nb"), "--workflow"),
        (("--workflow", ""), "--workflow"),
        (("--workflow", "x" * 201), "--workflow"),
        (("--team", "\x1b[31mred"), "--team"),
        (("--owner", "evil\u202eeman"), "--owner"),
        (("--label", "noequals"), "--label"),
        (("--label", "=v"), "Label"),
        (("--label", "k=a\tb"), "Label k"),
        (tuple(x for n in range(65) for x in ("--label", f"k{n}=v")), "Number of labels"),
    ],
)
def test_names_that_are_none_stop_before_anything_starts(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    done = launch("touch", tmp_path / "started", options=options)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert why in line
    assert not (tmp_path / "started").exists() and run_dirs() == [] and spooled() == {}


def test_options_end_where_the_command_begins() -> None:
    line = [
        *TIGHTSHIP,
        "run",
        "--workflow",
        "w",
        PYTHON,
        "-c",
        "import sys; print(sys.argv[1:])",
        "--workflow",
        "-x",
        "--",
    ]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.stdout == "['--workflow', '-x', '--']\n"
    done = subprocess.run([*TIGHTSHIP, "run"], capture_output=True, text=True)
    assert done.returncode == 2 and "COMMAND" in done.stderr
    done = subprocess.run([*TIGHTSHIP, "run", "--workflw", "w", "true"], capture_output=True, text=True)
    assert done.returncode == 2 and "--workflw" in done.stderr and "command not found" not in done.stderr


def test_the_environment_that_a_job_gets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conf = tmp_path / "own.conf"
    conf.write_text("SOME_SETTING=5")
    monkeypatch.setenv("PYTHONPATH", f"/one{os.pathsep}/two")
    monkeypatch.setenv("KINETO_CONFIG", str(conf))
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    show = f"{SHOW}; d = os.environ['TIGHTSHIP_RUN_DIR']; print(open(d + '/kineto.conf').read()); print(json.dumps("
    show += "{n: oct(os.lstat(d + '/' + n).st_mode) for n in ['.', 'ranks', 'traces', 'run.json', 'kineto.conf']}))"
    done = launch(PYTHON, "-c", show)
    assert done.returncode == 0, done.stderr
    first, *conf_lines, modes = done.stdout.splitlines()
    env = json.loads(first)
    run_dir = Path(os.environ["TIGHTSHIP_RUNTIME_DIR"]) / env["TIGHTSHIP_RUN"]
    changed = {k: v for k, v in env.items() if os.environ.get(k) != v}
    changed.pop("LC_CTYPE", None)
    assert changed == {
        "TIGHTSHIP_RUN": env["TIGHTSHIP_RUN"],
        "TIGHTSHIP_RUN_DIR": str(run_dir),
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(run_dir),
        "KINETO_CONFIG": str(run_dir / "kineto.conf"),
        "KINETO_ONDEMAND_TRACE_DIR": str(run_dir / "traces"),
        "KINETO_LOG_LEVEL": "5",
        "PYTHONPATH": f"{INJECT_DIR}{os.pathsep}/one{os.pathsep}/two",
    }
    assert set(os.environ) <= set(env)
    assert len(env["TIGHTSHIP_RUN"]) == 16 and int(env["TIGHTSHIP_RUN"], 16) >= 0
    assert [line for line in conf_lines if line] == ["SOME_SETTING=5", "ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1"]
    assert {n: stat.S_IMODE(int(m, 8)) for n, m in json.loads(modes).items()} == {
        ".": 0o700,
        "ranks": 0o700,
        "traces": 0o700,
        "run.json": 0o600,
        "kineto.conf": 0o600,
    }
    assert stat.S_IMODE(run_dir.parent.stat().st_mode) == 0o700
    assert [p.name for p in INJECT_DIR.glob("*.py")] == ["sitecustomize.py"]


def test_a_users_own_choices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "2")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    env = json.loads(launch(PYTHON, "-c", SHOW, options=("--no-steps",)).stdout)
    assert (env["KINETO_LOG_LEVEL"], env["TIGHTSHIP_STEPS"]) == ("2", "0")
    assert env["PYTHONPATH"] == str(INJECT_DIR)  # a trailing separator would put the current directory on sys.path


def test_bytes_pass_as_they_are() -> None:
    odd = b"\xff\xfe \n'\"$"
    script = "import os, sys; sys.stdout.buffer.write(os.fsencode(sys.argv[1]) + sys.stdin.buffer.read())"
    line = [*TIGHTSHIP, "run", "--", PYTHON, "-c", script, odd]
    body = bytes(range(256)) * 1000
    done = subprocess.run(line, input=body, capture_output=True)
    assert done.stdout == odd + body
    assert done.returncode == 0
    (record,) = ended()
    assert record["command"][-1].startswith("\ufffd\ufffd")


def test_inherited_descriptors_and_limits_are_the_commands() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    script = f"import os, signal; os.write({write}, b'here'); print(signal.getsignal(signal.SIGPIPE)); "
    script += "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), sorted(os.listdir('/proc/self/fd'))[:3])"
    done = launch("env", PYTHON, "-S", "-c", script, close_fds=False)
    os.close(write)
    assert os.read(read, 10) == b"here"
    os.close(read)
    assert done.stdout.splitlines()[1].startswith("set()")
    # What a program gets that does not, as Python does, ignore SIGPIPE for itself:
    done = launch("sh", "-c", "grep -E 'SigIgn|SigBlk' /proc/self/status")
    masks = [int(line.split()[1], 16) & (1 << 31) - 1 for line in done.stdout.splitlines()]
    assert masks == [0, 0]


def test_a_terminal_stays_a_terminal() -> None:
    script = "import os; print([os.isatty(n) for n in range(3)], os.tcgetpgrp(0) == os.getpgrp(), "
    script += "os.getsid(0) == os.getppid())"
    pid, master = pty.fork()
    if pid == 0:
        os.execv(TIGHTSHIP[0], [*TIGHTSHIP, "run", "--", PYTHON, "-c", script])
    said = b""
    with suppress(OSError):  # the terminal of a process that has ended
        while part := os.read(master, 1000):
            said += part
    os.waitpid(pid, 0)
    os.close(master)
    assert b"[True, True, True] True True" in said


def test_without_a_server_the_record_waits_and_one_line_says_so() -> None:
    announced = f"until ls {os.environ['TIGHTSHIP_HOME']}/spool/runs/*.start.json; do sleep 0.1; done >/dev/null 2>&1"
    script = f"{announced}; echo out; echo err >&2; exit 6"
    done = launch("sh", "-c", script, options=("--team", "t", "--label", "a=b=c"))
    assert (done.returncode, done.stdout) == (6, "out\n")
    (line,) = warnings_in(done.stderr)
    assert "No tightship server answers" in line and "sent later" in line
    assert sorted(set(done.stderr.splitlines()) - {line}) == ["err"]
    first, second = spooled().items()
    key = second[1]["run"]
    assert [first[0], second[0]] == sorted([f"{key}.json", f"{key}.start.json"])
    end, begin = spooled()[f"{key}.json"], spooled()[f"{key}.start.json"]
    assert (begin["end_ns"], begin["exit_code"], end["exit_code"]) == (None, None, 6)
    assert end["end_ns"] > end["start_ns"]
    assert begin | {k: end[k] for k in ("end_ns", "exit_code", "oom_kills", "git_dirty")} == end
    assert (end["workflow"], end["team"], end["labels"]) == ("sh", "t", {"a": "b=c"})
    assert run_dirs() == []


def test_a_clock_that_is_set_back_leaves_the_run_its_length(tmp_path: Path) -> None:
    mark = tmp_path / "set-back"
    driver = f"""
        import os, sys, time
        from tightship_platform.cli import main

        real = time.time_ns
        time.time_ns = lambda: real() - (3_600_000_000_000 if os.path.exists({str(mark)!r}) else 0)
        sys.argv = ["tightship", "run", "--", "sh", "-c", "touch {mark}; sleep 0.3"]
        main()
    """
    done = subprocess.run([PYTHON, "-c", textwrap.dedent(driver)], timeout=120, check=False)
    assert (done.returncode, mark.exists()) == (0, True)
    (record,) = ended()
    assert 300_000_000 <= record["end_ns"] - record["start_ns"] < 100_000_000_000


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Takes connections and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("TIGHTSHIP_SERVER", f"http://127.0.0.1:{listener.getsockname()[1]}")
    return listener


def test_a_server_that_says_nothing_does_not_keep_the_job(silent_server: socket.socket) -> None:
    with silent_server:
        done = launch("sh", "-c", "echo out; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert len(warnings_in(done.stderr)) == 1
    assert [record["exit_code"] for record in ended()] == [3]


def test_an_answer_that_is_nonsense_is_no_matter(silent_server: socket.socket) -> None:
    def answer() -> None:
        for body in (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{{{", b"\xff" * 500):
            connection, _ = silent_server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(body)

    threading.Thread(target=answer, daemon=True).start()
    with silent_server:
        for code in (3, 4):
            done = launch("sh", "-c", f"exit {code}")
            assert done.returncode == code
            assert len(done.stderr.splitlines()) == 1


def _link(place: Path) -> None:
    place.symlink_to("/tmp")


def _open(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def _group(place: Path) -> None:
    place.mkdir()
    place.chmod(0o770)


def _theirs(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 12345)


@pytest.mark.parametrize("spoil", [_link, _open, _group, _theirs, Path.touch])
def test_a_runtime_directory_that_is_not_private_is_not_used(spoil: Callable[[Path], None]) -> None:
    if spoil is _theirs and os.getuid() != 0:
        pytest.skip("only root can give directories away")
    place = Path(os.environ["TIGHTSHIP_RUNTIME_DIR"])
    spoil(place)
    try:
        done = launch(PYTHON, "-c", SHOW)
        assert done.returncode == 0
        (line,) = warnings_in(done.stderr)
        assert "TIGHTSHIP_RUNTIME_DIR" in line and "nobody else can write" in line
        env = json.loads(done.stdout)
        assert not {"TIGHTSHIP_RUN", "TIGHTSHIP_RUN_DIR", "KINETO_USE_DAEMON"} & set(env)
        assert str(INJECT_DIR) not in env.get("PYTHONPATH", "")
        assert [record["exit_code"] for record in ended()] == [0]  # it is a run all the same
    finally:
        place.unlink() if not place.is_dir() or place.is_symlink() else place.rmdir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIGHTSHIP_SERVER", "ftp://x"),
        ("TIGHTSHIP_RUNTIME_DIR", "/tmp/" + "x" * 60),
        ("TIGHTSHIP_UPLOAD_MAX_BYTES", "many"),
        ("TIGHTSHIP_CONFIG", "/dev/null/x"),
    ],
)
def test_settings_that_are_wrong_cost_one_line(name: str, value: str) -> None:
    done = launch("sh", "-c", "echo out; exit 5", extra_env={name: value})
    assert (done.returncode, done.stdout) == (5, "out\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tightship: ") and value[:20] in line and "without tightship" in line


def test_a_settings_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "tightship.toml").write_bytes(b"\xff = [")
    done = launch("sh", "-c", "exit 5", extra_env={"TIGHTSHIP_HOME": str(tmp_path)})
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert "tightship.toml" in line


def test_a_home_that_cannot_be_written_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = launch("sh", "-c", "exit 5", extra_env={"TIGHTSHIP_HOME": str(tmp_path / "file")})
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert "Not a directory" in line
    done = launch("sh", "-c", "exit 5", extra_env={"TIGHTSHIP_HOME": str(tmp_path / "file" / "below")})
    assert (done.returncode, len(done.stderr.splitlines())) == (5, 1)


def test_a_full_disk_costs_one_line() -> None:
    # A limit of no bytes per file has the effect of a disk without space.
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *TIGHTSHIP, "run", "--"]
    done = subprocess.run([*limited, "sh", "-c", "echo out; exit 5"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "out\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tightship: ")
    assert run_dirs() == [] and spooled() == {}


def test_stderr_that_nobody_reads_is_no_matter() -> None:
    read, write = os.pipe()
    os.close(read)
    done = launch("sh", "-c", "exit 5", capture_output=False, stderr=write, stdout=subprocess.DEVNULL)
    os.close(write)
    assert done.returncode == 5
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *TIGHTSHIP, "run", "--", "sh", "-c", "exit 5"]
    )
    assert closed.returncode == 5


def test_a_launcher_without_a_thread_to_spare_keeps_the_exit_code() -> None:
    script = """
        import sys, threading
        def refuse(self):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = refuse
        from tightship_collectors.launch.run import Names, run_command
        sys.exit(run_command(["sh", "-c", "exit 5"], Names()))
    """
    done = subprocess.run([PYTHON, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert line.startswith("tightship: ") and "can't start new thread" in line
    assert run_dirs() == []


def test_a_run_within_a_run_is_part_of_the_outer_one() -> None:
    inner = [*TIGHTSHIP, "run", "--workflow", "inner", "--", PYTHON, "-c", f"{SHOW}; raise SystemExit(6)"]
    done = launch(PYTHON, "-c", f"{SHOW}; import subprocess; raise SystemExit(subprocess.call({inner!r}) + 1)")
    assert done.returncode == 7
    outer, within = map(json.loads, done.stdout.splitlines())
    assert outer["TIGHTSHIP_RUN"] == within["TIGHTSHIP_RUN"]
    assert outer["PYTHONPATH"] == within["PYTHONPATH"]
    assert [(r["run"], r["exit_code"]) for r in ended()] == [(outer["TIGHTSHIP_RUN"], 7)]
    assert any("already inside run" in line for line in warnings_in(done.stderr))


def test_what_is_left_of_a_run_that_has_ended_is_no_outer_run() -> None:
    first = json.loads(launch(PYTHON, "-c", SHOW).stdout)
    left = {k: first[k] for k in ("TIGHTSHIP_RUN", "TIGHTSHIP_RUN_DIR")}
    done = launch(PYTHON, "-c", SHOW, extra_env=left)
    assert json.loads(done.stdout)["TIGHTSHIP_RUN"] != first["TIGHTSHIP_RUN"]
    assert not any("already inside" in line for line in warnings_in(done.stderr))


def test_the_record_in_the_run_directory_is_there_from_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    job = start("sh", "-c", f"cp $TIGHTSHIP_RUN_DIR/run.json {tmp_path}/seen; cat {tmp_path}/fifo")
    seen = json.loads(wait_for(lambda: (p := tmp_path / "seen").exists() and p.read_text()))
    (run_dir,) = run_dirs()
    assert json.loads((run_dir / "run.json").read_text()) == seen
    assert seen["run"] == run_dir.name and seen["end_ns"] is None
    (tmp_path / "fifo").write_text("")  # lets the command end; killing the launcher would leave it behind
    assert job.wait() == 0
