"""What jobs left whose launcher was killed goes by itself, of every user that the agent serves; nothing else does."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tightship_collectors.agent.tidying import Tidying, served
from tightship_collectors.jobs.run_directory import IDLE_S, STALE_S, RunDir
from tightship_platform.settings import load_settings, runtime_dirs

USER = 61_234
"""Somebody who has nothing on this machine."""
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def runtime_dir() -> Path:
    return load_settings().runtime_dir


@pytest.fixture
def of_user() -> Iterator[Path]:
    """The default directory of another user."""
    path = runtime_dirs(USER)[0]
    path.mkdir(mode=0o700)
    os.chown(path, USER, USER)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def left(runtime_dir: Path, number: int, *, age_s: float, trace: bool = False, uid: int | None = None) -> Path:
    """A run whose launcher was killed."""
    path = RunDir.create(runtime_dir, f"{number:016x}") if uid is None else None
    made = path.path if path is not None else runtime_dir / f"{number:016x}"
    if path is not None:
        os.close(path._lock)
    else:
        for folder in (made, made / "ranks", made / "traces"):
            folder.mkdir(mode=0o700)
    (made / "dynoconfigclient-0").touch()
    if trace:
        (made / "traces" / "c_1.json").touch()
    for entry in (made, *made.rglob("*")) if uid is not None else ():
        os.chown(entry, uid or 0, uid or 0)
    then = time.time() - age_s
    os.utime(made, (then, then))
    return made


def test_what_nobody_needs_goes_after_an_hour_and_a_trace_that_waits_after_a_day(runtime_dir: Path) -> None:
    gone = left(runtime_dir, 1, age_s=IDLE_S + 60)
    young = left(runtime_dir, 2, age_s=IDLE_S - 600)
    waits = left(runtime_dir, 3, age_s=STALE_S - 600, trace=True)
    stale = left(runtime_dir, 4, age_s=STALE_S + 60, trace=True)
    assert (runtime_dir, os.geteuid()) in served(runtime_dir)
    assert Tidying(runtime_dir).tidy() >= 2
    assert [path.exists() for path in (gone, young, waits, stale)] == [False, True, True, False]


@ROOT
def test_an_agent_that_is_root_tidies_up_for_everybody_with_their_rights(
    runtime_dir: Path, of_user: Path, tmp_path: Path
) -> None:
    gone = left(of_user, 1, age_s=STALE_S + 60, trace=True, uid=USER)
    lives = left(of_user, 2, age_s=STALE_S + 60, uid=USER)
    of_root = left(of_user, 3, age_s=STALE_S + 60, uid=0)
    trap = left(of_user, 4, age_s=STALE_S + 60, uid=USER)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    shutil.rmtree(trap / "traces")
    (trap / "traces").symlink_to(precious)
    os.utime(trap, (time.time() - STALE_S - 60,) * 2)
    (of_user / ("a" * 16)).symlink_to(precious)
    environ = {"TIGHTSHIP_RUN_DIR": str(lives), "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sh", "-c", "echo up; exec sleep 60"], env=environ, stdout=subprocess.PIPE) as job:
        try:
            assert job.stdout is not None and job.stdout.readline() == b"up\n"
            Tidying(runtime_dir).tidy()
        finally:
            job.kill()
    assert [path.exists() for path in (gone, lives, of_root, trap)] == [False, True, True, False]
    assert (precious / "file").exists()
    assert os.geteuid() == 0 and (tmp_path / "mine").mkdir() is None, "the agent is itself again"


@ROOT
def test_a_folder_that_a_stranger_made_under_a_users_name_is_not_looked_at(runtime_dir: Path, of_user: Path) -> None:
    theirs = left(of_user, 1, age_s=STALE_S + 60, uid=USER)
    os.chown(of_user, USER + 1, USER + 1)
    assert of_user not in dict(served(runtime_dir))
    Tidying(runtime_dir).tidy()
    assert theirs.exists()
