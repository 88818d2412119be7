"""Scratch folders: whoever is killed over one leaves nothing for long, and nobody's is taken while they work."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tightship_platform.processes.scratch import PREFIX, remove_abandoned, scratch_folder

HOLD = """
import sys
from tightship_platform.processes.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "half").mkdir()
    (folder / "half" / "a-trace.json.gz").write_bytes(b"x" * 100_000)
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def start() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_goes_and_what_others_work_in_stays(temporary: Path) -> None:
    (killed, left), (living, kept) = start(), start()
    killed.kill()
    killed.communicate()
    assert (left / "half" / "a-trace.json.gz").exists(), "nobody could tidy up"
    with scratch_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert sorted(temporary.iterdir()) == sorted([kept, folder])
        assert (kept / "half" / "a-trace.json.gz").exists()
    living.communicate()
    assert living.returncode == 0
    assert list(temporary.iterdir()) == []


def test_what_is_no_scratch_of_ours_stays(temporary: Path) -> None:
    target = temporary / "precious"
    target.mkdir(mode=0o700)
    (temporary / f"{PREFIX}link").symlink_to(target)
    (temporary / f"{PREFIX}file").touch()
    (temporary / f"{PREFIX}shared").mkdir(mode=0o755)
    (temporary / f"{PREFIX}abandoned").mkdir(mode=0o700)
    if os.geteuid() == 0:
        (temporary / f"{PREFIX}theirs").mkdir(mode=0o700)
        os.chown(temporary / f"{PREFIX}theirs", 4242, 4242)
    before = {path.name for path in temporary.iterdir()}
    assert remove_abandoned() == 1
    assert before - {path.name for path in temporary.iterdir()} == {f"{PREFIX}abandoned"}


def test_many_who_begin_at_once_each_have_their_own(temporary: Path) -> None:
    def work(number: int) -> None:
        with scratch_folder() as folder:
            (folder / str(number)).touch()
            assert [path.name for path in folder.iterdir()] == [str(number)]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(200)))
    assert list(temporary.iterdir()) == []
