"""What a job is launched with: the commit of its folder, whether its tree has changes, and the torch that it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from launching import ended, launch

from tightship_collectors.launch import code_state
from tightship_collectors.launch.code_state import has_changes, read_commit, tree_of
from tightship_collectors.launch.installed import driver_version, torch_of

NEVER = lambda: False  # noqa: E731
WHO = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def git(folder: Path, *arguments: str) -> str:
    name = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *name, *arguments], cwd=folder, env=os.environ | WHO, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit."""
    made = tmp_path / "tree"
    (made / "src" / "deep").mkdir(parents=True)
    (made / "src" / "train.py").write_text("print(1)\n")
    git(made, "init", "-q")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "one")
    return made


def commit_of(folder: Path) -> str | None:
    found = tree_of(folder)
    return None if found is None else read_commit(found)


def test_the_commit_is_gits_wherever_it_is_kept(tree: Path, tmp_path: Path) -> None:
    head = git(tree, "rev-parse", "HEAD")
    assert commit_of(tree) == commit_of(tree / "src" / "deep") == head
    git(tree, "pack-refs", "--all")
    assert not (tree / ".git/refs/heads/main").exists()
    assert commit_of(tree) == head
    git(tree, "checkout", "-q", "-b", "feature/a.b-c_d")
    git(tree, "commit", "-q", "--allow-empty", "-m", "two")
    assert commit_of(tree) == git(tree, "rev-parse", "HEAD") != head
    git(tree, "worktree", "add", "-q", "../other", head)
    assert commit_of(tmp_path / "other") == head
    git(tree, "worktree", "add", "-q", "-b", "third", "../third")
    assert commit_of(tmp_path / "third") == git(tmp_path / "third", "rev-parse", "HEAD") != head
    git(tree, "checkout", "-q", head)
    assert commit_of(tree) == head


def test_a_folder_without_a_commit_has_none(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) is None


@pytest.mark.parametrize(
    "head",
    [
        *(
            "ref: refs/heads/../../../secret",
            "ref: /etc/passwd",
            "ref: refs/heads/loop",
            "x" * 10_000,
            "",
            "\0",
            "g" * 40,
        ),
        "ref: refs/heads/" + "a" * 5000,
    ],
)
def test_a_forged_repository_names_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / "secret").write_text("5" * 40)
    folder = tmp_path / "tree" / ".git"
    (folder / "refs" / "heads").mkdir(parents=True)
    (folder / "refs" / "heads" / "loop").write_text("ref: refs/heads/loop")
    (folder / "HEAD").write_text(head)
    (folder / "packed-refs").write_text("not a commit refs/heads/loop\n")
    assert commit_of(tmp_path / "tree") is None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    assert commit_of(tmp_path) is None
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / ".git").symlink_to("/dev/zero")
    assert commit_of(tmp_path / "below") is None


def test_changes_are_those_of_files_that_git_tracks(tree: Path) -> None:
    assert has_changes(tree, os.environ | WHO, NEVER) is False
    (tree / "checkpoint.pt").write_text("made by the job")
    assert has_changes(tree, os.environ | WHO, NEVER) is False
    (tree / "src" / "train.py").write_text("print(2)\n")
    assert has_changes(tree, os.environ | WHO, NEVER) is True


def test_nothing_of_the_repository_is_run_or_written(tree: Path, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    for name in ("post-index-change", "query-watchman", "post-checkout"):
        (tree / ".git" / "hooks").mkdir(exist_ok=True)
        (tree / ".git" / "hooks" / name).write_text(hook.read_text())
        (tree / ".git" / "hooks" / name).chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "pager.status", "core.editor", "diff.external"):
        git(tree, "config", key, str(hook))
    os.utime(tree / "src" / "train.py", (1, 1))  # git looks at it again, and would like to write that down
    index = (tree / ".git" / "index").read_bytes()
    assert has_changes(tree, os.environ | WHO | {"GIT_PAGER": str(hook)}, NEVER) is False
    assert not (tmp_path / "ran").exists()
    assert (tree / ".git" / "index").read_bytes() == index


@pytest.mark.parametrize("script", ["exec sleep 100", "sleep 100 & wait", "while :; do echo; done", "exit 3"])
def test_a_git_that_is_slow_or_fails_is_given_up(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """Of one that prints, the first byte is enough."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setattr(code_state, "LIMIT_S", 0.3)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert has_changes(tree, os.environ, NEVER) is (True if "echo" in script else None)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_git_nothing_is_known(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert has_changes(tree, os.environ, NEVER) is None
    assert commit_of(tree) is not None


# ---- what is installed -----------------------------------------------------------------------------------------------


def put_torch(folder: Path, version: str, cuda: str | None) -> None:
    (folder / "torch").mkdir(parents=True)
    text = f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
    (folder / "torch" / "version.py").write_text(text)


def versions(*command: str, **environ: str) -> tuple[str | None, str | None]:
    given: Mapping[str, str] = {"PATH": os.environ["PATH"], **environ}
    found = torch_of(command, given)
    return found.torch_version, found.cuda_version


def test_torch_is_that_of_the_jobs_own_interpreter(tmp_path: Path) -> None:
    """Of a virtual environment, whose Python is a link to another one, and of the scripts that it holds."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    python = str(env / "bin" / "python")
    assert versions(python, "train.py") == (None, None)
    (site,) = env.glob("lib/python3.*/site-packages")
    put_torch(site, "2.6.0+cu124", "12.4")
    for program, first in (
        ("torchrun", f"#!{python}\n"),
        ("long", f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n"),
    ):
        (env / "bin" / program).write_text(f"{first}import sys\n")
        (env / "bin" / program).chmod(0o755)
        assert versions(program, "train.py", PATH=f"{env}/bin") == ("2.6.0+cu124", "12.4")
    script = tmp_path / "train.py"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o755)
    assert versions(str(script), PATH=f"{env}/bin") == ("2.6.0+cu124", "12.4")
    put_torch(tmp_path / "first", "2.9.0", None)
    assert versions("python", "train.py", PATH=f"{env}/bin", PYTHONPATH=f":{tmp_path}/first") == ("2.9.0", None)


def test_ours_is_what_import_finds() -> None:
    metadata = pytest.importorskip("torch.version")
    assert versions(sys.executable, "train.py") == (metadata.__version__, metadata.cuda)


@pytest.mark.parametrize("program", ["sh", "no-such-program-here", "/", "true"])
def test_of_other_programs_nothing_is_known(program: str) -> None:
    assert versions(program, "train.py") == (None, None)


@pytest.mark.parametrize("version", ["<script>'", "2.0\n__version__", "x" * 100, "", "\x1b[31m"])
def test_a_forged_version_is_none(tmp_path: Path, version: str) -> None:
    put_torch(tmp_path, version, version)
    assert versions(sys.executable, PYTHONPATH=str(tmp_path))[0] in (None, versions(sys.executable)[0])


def test_the_driver_is_that_of_the_kernels_module(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert driver_version(file) is None
    file.write_text("550.54.15\n")
    assert driver_version(file) == "550.54.15"
    file.write_text("550 <b>\n")
    assert driver_version(file) is None


# ---- a launch --------------------------------------------------------------------------------------------------------


def test_the_end_of_a_short_run_says_what_it_was_launched_with(tree: Path) -> None:
    environ = {"SLURM_JOB_ID": "4711", "APPTAINER_CONTAINER": "docker://me:hunter2@r/torch:2"}
    assert launch("true", cwd=tree / "src", extra_env=environ).returncode == 0
    (record,) = ended()
    assert record["git_commit"] == git(tree, "rev-parse", "HEAD")
    assert (record["external_id"], record["image"]) == ("4711", "docker://***@r/torch:2")
    assert "hunter2" not in json.dumps(record)


def test_a_folder_that_is_gone_is_in_no_repository(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = launch("sh", "-c", "exit 3", preexec_fn=gone.rmdir, cwd=gone)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert ended()[0]["git_commit"] is None
