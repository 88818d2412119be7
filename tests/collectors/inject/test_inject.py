"""The injected sitecustomize in processes without torch, and around imports of things called torch."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from tightship_collectors.launch.environment import INJECT_DIR

VERSIONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")

# Just enough to be imported, and to say what the import system left on it.
TORCH = """
import sys
print("executing torch")
"""
ASK = """
import sys, torch
spec = torch.__spec__
marked = "exec_module" in getattr(spec.loader, "__dict__", {})
print(type(spec.loader).__name__, torch.__loader__ is spec.loader, marked)
print([type(f).__name__ for f in sys.meta_path if "Watch" in type(f).__name__])
"""


def find_python(version: str) -> str | None:
    """An interpreter of this version that runs: one on PATH, or one that pyenv keeps."""
    found = shutil.which(f"python{version}")
    candidates = [found] if found else []
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates += [str(p / "bin" / "python") for p in sorted(root.glob(f"versions/{version}.*"))]
    for candidate in candidates:
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def environment(run_dir: Path | None = None, *extra: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TIGHTSHIP", "PYTHON", "RANK", "WORLD_SIZE"))}
    env["PYTHONPATH"] = os.pathsep.join(str(p) for p in (INJECT_DIR, *extra))
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["TIGHTSHIP_DEBUG"] = "1"
    if run_dir is not None:
        env["TIGHTSHIP_RUN_DIR"] = str(run_dir)
    return env


def python(
    *arguments: str | Path, env: dict[str, str], program: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    made = tmp_path / "lib"
    (made / "torch").mkdir(parents=True)
    (made / "torch" / "__init__.py").write_text(TORCH)
    return made


def control_files(run_dir: Path) -> list[Path]:
    return list((run_dir / "ranks").iterdir())


@pytest.mark.parametrize("name", ["inject", "inject_support"])
def test_what_enters_a_job_parses_as_python_3_8(name: str) -> None:
    files = list((INJECT_DIR.parent / name).rglob("*.py"))
    assert files
    for file in files:
        ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=(3, 8))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_python_starts_as_before(version: str, run_dir: Path) -> None:
    program = find_python(version)
    if program is None:
        pytest.skip(f"there is no Python {version} here")
    script = "import sys; sys.stdout.write(repr(sys.path)); sys.exit(7)"
    plain = environment()
    del plain["PYTHONPATH"]
    with_us = python("-c", script, env=environment(run_dir), program=program)
    without = python("-c", script, env=plain, program=program)
    assert (with_us.returncode, with_us.stdout, with_us.stderr) == (7, without.stdout, "")
    assert str(INJECT_DIR) not in with_us.stdout
    assert control_files(run_dir) == []


@pytest.mark.parametrize("version", [v for v in VERSIONS if v != "2.7"])
def test_every_python_3_takes_part(version: str, run_dir: Path, library: Path) -> None:
    program = find_python(version)
    if program is None:
        pytest.skip(f"there is no Python {version} here")
    script = "import os, torch; print(os.listdir(os.environ['TIGHTSHIP_RUN_DIR'] + '/ranks') == [str(os.getpid())])"
    done = python("-c", script, env=environment(run_dir, library), program=program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "executing torch\nTrue\n", "")


@pytest.mark.parametrize("option", ["-S", "-I", "-E", "-s", "-O", "-B"])
def test_options_that_change_the_start(option: str, run_dir: Path) -> None:
    done = python(option, "-c", "import sys; sys.exit(7)", env=environment(run_dir))
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_the_next_sitecustomize_runs_as_if_it_were_the_first(run_dir: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\nMARK = 5\n")
    script = "import sys, sitecustomize; print(sys.theirs, sitecustomize.MARK, sitecustomize.__file__)"
    done = python("-c", script, env=environment(run_dir, theirs))
    place = str(theirs / "sitecustomize.py")
    assert (done.stdout, done.stderr) == (f"{place} 5 {place}\n", "")


@pytest.mark.parametrize("body", ["1/0", "import nothing_of_this_name", "raise SystemExit(4)"])
def test_a_broken_next_sitecustomize_is_reported_as_python_does(run_dir: Path, tmp_path: Path, body: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(f"{body}\n")
    alone = environment()
    alone["PYTHONPATH"] = str(theirs)
    expected = python("-c", "print(1)", env=alone)
    done = python("-c", "print(1)", env=environment(run_dir, theirs))
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr.strip().splitlines()[-1:] == expected.stderr.strip().splitlines()[-1:]


def test_an_import_leaves_no_mark_on_the_module(run_dir: Path, library: Path) -> None:
    done = python("-c", ASK, env=environment(run_dir, library))
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["executing torch", "SourceFileLoader True False", "[]"]
    assert len(control_files(run_dir)) == 1


def test_a_zipped_torch(run_dir: Path, tmp_path: Path) -> None:
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("torch/__init__.py", TORCH)
    done = python("-c", ASK, env=environment(run_dir, archive))
    assert done.stderr == ""
    assert done.stdout.splitlines()[:3] == ["executing torch", "zipimporter True False", "[]"]
    assert len(control_files(run_dir)) == 1


def test_looking_for_torch_is_not_importing_it(run_dir: Path, library: Path) -> None:
    script = "import importlib.util as u; s = u.find_spec('torch'); s = u.find_spec('torch'); print(s.name)\n"
    done = python("-c", script, env=environment(run_dir, library))
    assert (done.stdout, done.stderr) == ("torch\n", "")
    assert control_files(run_dir) == []
    done = python("-c", script + ASK, env=environment(run_dir, library))
    assert (done.stdout.splitlines()[1:4], done.stderr) == (
        ["executing torch", "SourceFileLoader True False", "[]"],
        "",
    )
    assert len(control_files(run_dir)) == 1


def test_no_torch_at_all(run_dir: Path) -> None:
    script = "import torch.nn"
    done = python(
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(INJECT_DIR)!r}); import sitecustomize; {script}",
        env={**environment(run_dir), "PYTHONNOUSERSITE": "1"},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"
    assert control_files(run_dir) == []


def test_an_import_that_fails_fails_as_before_and_may_be_tried_again(run_dir: Path, library: Path) -> None:
    (library / "torch" / "__init__.py").write_text(
        "import sys\nif not hasattr(sys, 'again'):\n    sys.again = 1\n    raise OSError('no libtorch')\n"
    )
    script = """
        import os, sys
        try:
            import torch
        except OSError as error:
            print(error, "torch" in sys.modules, os.listdir(os.environ["TIGHTSHIP_RUN_DIR"] + "/ranks"))
        import torch
        print(len(os.listdir(os.environ["TIGHTSHIP_RUN_DIR"] + "/ranks")))
    """
    done = python("-c", textwrap.dedent(script), env=environment(run_dir, library))
    assert (done.stdout, done.stderr) == ("no libtorch False []\n1\n", "")


def test_another_finder_that_asks_everybody(run_dir: Path, library: Path) -> None:
    script = """
        import importlib.util, sys
        class Curious:
            asking = False
            def find_spec(self, name, path=None, target=None):
                if name != "torch" or self.asking:
                    return None
                self.asking = True
                try:
                    return importlib.util.find_spec(name)
                finally:
                    self.asking = False
        sys.meta_path.insert({position}, Curious())
    """
    for position in (0, 1):
        text = textwrap.dedent(script.format(position=position)) + ASK
        done = python("-c", text, env=environment(run_dir, library))
        assert done.stderr == ""
        assert done.stdout.splitlines()[:2] == ["executing torch", "SourceFileLoader True False"]
    assert len(control_files(run_dir)) == 2


def test_a_run_directory_that_is_gone_is_no_matter(tmp_path: Path, library: Path) -> None:
    done = python("-c", "import torch", env=environment(tmp_path / "gone", library))
    assert (done.returncode, done.stdout, done.stderr) == (0, "executing torch\n", "")


def test_a_full_disk_is_no_matter_and_leaves_nothing(run_dir: Path, library: Path) -> None:
    # A limit of no bytes per file has the effect of a disk without space.
    script = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); import torch; print('on')"
    env = environment(run_dir, library)
    del env["TIGHTSHIP_DEBUG"]
    done = python("-c", script, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "executing torch\non\n", "")
    assert control_files(run_dir) == []
    reported = python("-c", script, env=environment(run_dir, library))
    assert (reported.returncode, reported.stdout) == (0, "executing torch\non\n")
    assert "short write" in reported.stderr  # TIGHTSHIP_DEBUG shows what went wrong


def test_a_file_in_the_way_is_replaced_and_a_link_is_not_followed(run_dir: Path, library: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    script = """
        import os
        place = os.environ["TIGHTSHIP_RUN_DIR"] + "/ranks/%d" % os.getpid()
        os.symlink({target!r}, place + ".new")
        os.symlink({target!r}, place)
        import torch
        print(os.path.islink(place), os.path.getsize(place))
    """
    done = python("-c", textwrap.dedent(script.format(target=str(precious))), env=environment(run_dir, library))
    assert (done.stdout, done.stderr) == ("executing torch\nFalse 4096\n", "")
    assert precious.read_text() == "keep me"
