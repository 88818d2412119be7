"""Builds the sdist and the wheel, and tries every command where only the wheel is installed: `make wheel`.

One environment per set of extras. Every command shows its help; called without arguments it works, or says in one line
what it lacks. None ends in a traceback. What runs until it is stopped is stopped after a few seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("", "analyze", "server")
MOST_MB = {"analyze": 150}
"""Of an environment without pip: what a laptop gets."""
STOPPED_S = 10
FEWEST_COMMANDS = 40


def main() -> None:
    """Exit code 1 where a command fails otherwise than with one line."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = _built(Path(folder) / "dist")
        with ThreadPoolExecutor() as pool:
            tried = pool.map(lambda extra: list(_tried(Path(folder) / (extra or "base"), wheel, extra)), EXTRAS)
            wrong = [line for lines in tried for line in lines]
    print("\n".join(wrong) or "every command works or names its extra")
    sys.exit(1 if wrong else 0)


def _built(folder: Path) -> Path:
    """The wheel, made from the sdist."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    assert len(list(folder.glob("*.tar.gz"))) == 1
    return wheel


def _tried(folder: Path, wheel: Path, extra: str) -> Iterator[str]:
    name = f"tightship[{extra}]" if extra else "tightship"
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-c", constraints, wanted], check=True)
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools"], check=True)
    size_mb = sum(file.lstat().st_size for file in (folder / "env").rglob("*")) / 1e6
    print(f"{name}: {size_mb:.0f} MB")
    if size_mb > MOST_MB.get(extra, size_mb):
        yield f"{name} takes {size_mb:.0f} MB, more than {MOST_MB[extra]}"
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("TIGHTSHIP", "PYTHON"))}
    environ |= {"TIGHTSHIP_HOME": str(folder / "home"), "TIGHTSHIP_SERVER": "http://127.0.0.1:9", "HOME": str(folder)}
    tightship = [python, "-m", "tightship_platform"]
    paths: list[tuple[str, ...]] = [()]
    for path in paths:  # what a help lists is added
        shown = _run([*tightship, *path, "--help"], environ, folder)
        if shown.returncode or not shown.stdout:
            yield f"{name}: `tightship {' '.join(path)} --help` ends with {shown.returncode}: {shown.stderr[-500:]}"
        _, _, listed = shown.stdout.partition("\nCommands:\n")
        paths += [(*path, line.split()[0]) for line in listed.splitlines() if line[:2] == "  " and line[2:3].strip()]
        ended = _run([*tightship, *path], environ, folder)
        lines = ended.stderr.splitlines()
        one_line = len(lines) == 1 or "Usage:" in ended.stderr  # a group alone shows its help
        if "Traceback" in ended.stderr or (ended.returncode == 2 and not one_line):
            yield f"{name}: `tightship {' '.join(path)}` ends with {ended.returncode}: {ended.stderr[-500:]}"
        print(f"{name}: tightship {' '.join(path)}: {ended.returncode} {(lines or [''])[-1][:120]}", flush=True)
    if len(paths) < FEWEST_COMMANDS:
        yield f"{name}: only {len(paths)} commands were found in the helps"


def _run(command: list[object], environ: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    with subprocess.Popen(
        list(map(str, command)),
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=STOPPED_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


if __name__ == "__main__":
    main()
