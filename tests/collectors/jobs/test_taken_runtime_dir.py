"""Another user may make the directory where one's runs would be: they are kept elsewhere, observed, and it is said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tightship_collectors.doctor.host_checks import _runtime_dir
from tightship_collectors.jobs.attribution import Attribution
from tightship_collectors.jobs.run_directory import RunDir, taken_runtime_dir
from tightship_platform.errors import Invalid
from tightship_platform.settings import load_settings, runtime_dirs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

USER, SQUATTER = 61_235, 61_236
KEY = "0123456789abcdef"
NO_HOME = {"TIGHTSHIP_HOME": "/nowhere"}


@pytest.fixture
def logged_in() -> Iterator[Path]:
    """What the system makes for a user who logs in."""
    folder = Path(f"/run/user/{USER}")
    made = next((path for path in (Path("/run/user"), folder) if not path.exists()), folder)
    folder.mkdir(mode=0o700, parents=True)
    folder.parent.chmod(0o755)
    os.chown(folder, USER, USER)
    yield folder
    shutil.rmtree(made)


@pytest.fixture(params=["folder", "link", "file", "open"])
def taken(request: pytest.FixtureRequest) -> Iterator[Path]:
    path = runtime_dirs(USER)[0]
    if request.param in ("folder", "open"):
        path.mkdir(mode=0o777)
        path.chmod(0o777 if request.param == "open" else 0o755)
    elif request.param == "link":
        path.symlink_to("/tmp")
    else:
        path.touch()
    owner = USER if request.param == "open" else SQUATTER
    os.chown(path, owner, owner, follow_symlinks=False)
    yield path
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def as_user(work: Callable[[], Any]) -> Any:
    """What `work` returns when the user does it."""
    wait, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            os.write(tell, json.dumps(work()).encode())
        except BaseException as error:
            os.write(tell, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with os.fdopen(wait) as answer:
        return json.loads(answer.read())


def launch() -> str:
    settings = load_settings(NO_HOME)
    made = RunDir.create(settings.runtime_dir, KEY)
    assert taken_runtime_dir(settings.runtime_dir) == runtime_dirs(USER)[0]
    check = _runtime_dir(settings.runtime_dir)
    assert (check.state, str(runtime_dirs(USER)[0]) in check.advice) == ("note", True), check
    return str(made.path)


def test_the_runs_of_a_user_whose_folder_is_taken_are_kept_elsewhere_and_observed(taken: Path, logged_in: Path) -> None:
    run_dir = as_user(launch)
    assert run_dir == str(logged_in / "tightship" / KEY)
    environ = {"TIGHTSHIP_RUN": KEY, "TIGHTSHIP_RUN_DIR": run_dir}
    command = ["sh", "-c", "echo up; exec sleep 60"]
    job = subprocess.Popen(command, env=environ | {"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, user=USER)
    try:
        assert job.stdout is not None and job.stdout.readline() == b"up\n"
        (run,) = Attribution(load_settings().runtime_dir).update()
        assert (run.view.run, run.view.uid, run.view.pids) == (KEY, USER, (job.pid,))
        for own, others in ((taken, 1), (Path("/tmp/elsewhere"), 0)):
            seen = Attribution(own, own_uid=USER).update()
            assert len(seen) == others, "an agent of the user serves both, one of another installation neither"
    finally:
        job.kill()
        job.communicate()


def test_with_nowhere_else_to_go_one_line_says_who_has_it(taken: Path) -> None:
    def fail() -> str:
        try:
            RunDir.create(load_settings(NO_HOME).runtime_dir, KEY)
        except Invalid as error:
            return str(error)
        return "made"

    line = as_user(fail)
    assert line.startswith(f"TIGHTSHIP_RUNTIME_DIR is '{taken} (user ")
    assert "have root remove it, or set another" in line


def test_nobody_took_anything() -> None:
    paths = runtime_dirs(USER)
    assert as_user(lambda: str(load_settings(NO_HOME).runtime_dir)) == str(paths[0])
    assert max(len(os.fsencode(path)) for path in runtime_dirs(2**32 - 1)) <= 36
