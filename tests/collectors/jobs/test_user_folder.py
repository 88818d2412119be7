"""Folders whose owner may put anything under any name, and whom root acts for."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tightship_collectors.jobs.attribution import LocalRun
from tightship_collectors.jobs.control_file import SIZE, arm_capture, open_rank_file, rank_path
from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.ranks import read_ranks
from tightship_collectors.jobs.run_records import read_run_record
from tightship_collectors.jobs.user_folder import acting_as, user_folder

UID = os.getuid()
SOMEBODY = 54321
KEY = "a" * 16
only_root = pytest.mark.skipif(UID != 0, reason="only root can be somebody else")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / KEY
    (path / "ranks").mkdir(parents=True, mode=0o700)
    path.chmod(0o700)
    return path


def test_what_is_opened_is_the_folder_itself(run_dir: Path) -> None:
    with user_folder(run_dir, UID) as folder:
        run_dir.rename(run_dir.with_name("moved"))
        os.close(os.open("here", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    assert (run_dir.with_name("moved") / "here").exists()


def test_no_folder_is_opened_that_another_can_change(run_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(run_dir)
    run_dir.joinpath("led").symlink_to(run_dir / "ranks")
    run_dir.joinpath("open").mkdir()
    run_dir.joinpath("open").chmod(0o777)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path, uid, below in (
        (link, UID, ""),
        (run_dir, UID, "led"),
        (run_dir, UID, "open"),
        (run_dir, UID + 1, ""),
        (run_dir / "gone", UID, ""),
    ):
        with pytest.raises(OSError), user_folder(path, uid, below):
            raise AssertionError("opened")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_nothing_is_read_or_written_through_a_link_in_place_of_a_folder(run_dir: Path, tmp_path: Path) -> None:
    """Such as one to /dev/pts, whose terminals have numbers for names, like control files."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "77").write_bytes(bytes(SIZE))
    (elsewhere / "run.json").write_text(f'{{"run": "{KEY}"}}')
    (run_dir / "ranks").rmdir()
    (run_dir / "ranks").symlink_to(elsewhere)
    path = rank_path(run_dir, 77)
    assert path.exists()
    assert open_rank_file(path, os.O_RDWR, uid=UID) is None
    assert not arm_capture(path, uid=UID, trace=Path("/x"), deadline_ns=9)
    assert (elsewhere / "77").read_bytes() == bytes(SIZE)
    assert read_ranks(run_dir) == ()
    run_dir.rename(tmp_path / "moved")
    run_dir.symlink_to(elsewhere)
    view = HostRun(run=KEY, run_dir=run_dir, uid=UID, pids=(), ranks=(), start_ns=0)
    assert read_run_record(LocalRun(view=view, processes=(), external_id=None), "h1") is None


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file of root's alone in a folder that everybody may enter."""
    place = Path(f"/tmp/tightship-test-{os.getpid()}")
    place.mkdir()
    place.chmod(0o777)
    path = place / "secret"
    path.write_text("s")
    path.chmod(0o600)
    yield path
    shutil.rmtree(place)


@only_root
def test_a_thread_that_acts_for_a_user_may_what_that_user_may(secret: Path) -> None:
    groups = os.getgroups()
    with acting_as(SOMEBODY):
        (secret.parent / "theirs").mkdir(mode=0o700)
    assert (secret.parent / "theirs").stat().st_uid == SOMEBODY
    for mode in (0o600, 0o060):  # neither as root nor as root's group
        secret.chmod(mode)
        with acting_as(SOMEBODY), pytest.raises(PermissionError):
            secret.read_text()
        assert secret.read_text() == "s"
    assert os.getgroups() == groups


@only_root
def test_other_threads_stay_root_meanwhile(secret: Path) -> None:
    acting, read = threading.Event(), list[str]()

    def look() -> None:
        acting.wait()
        read.append(secret.read_text())

    thread = threading.Thread(target=look)
    thread.start()
    with acting_as(SOMEBODY):
        acting.set()
        thread.join()
    assert read == ["s"]


def test_acting_for_oneself_changes_nothing(tmp_path: Path) -> None:
    with acting_as(UID):
        (tmp_path / "mine").touch()
    assert (tmp_path / "mine").stat().st_uid == UID
