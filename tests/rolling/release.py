"""A release of tightship in a folder: its source at a commit, and the environment in which its commands run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("platform", "collectors", "analyzers", "dashboard", "offload")


@dataclass(frozen=True, kw_only=True)
class Release:
    """Where its packages are."""

    name: str
    folder: Path
    names: Path
    """Has its entry points: pages and tasks are found by these (commands, too, in releases that list none in
    cli.py), and those of what is installed are newer."""

    def environ(self, variables: dict[str, str]) -> dict[str, str]:
        """A whole environment for its processes."""
        path = os.pathsep.join(map(str, (self.names, *(self.folder / source for source in SOURCES))))
        base = {key: value for key, value in os.environ.items() if not key.startswith("TIGHTSHIP_")}
        return base | variables | {"PYTHONPATH": path}

    def command(self, *arguments: str) -> list[str]:
        """One of its commands."""
        return [sys.executable, "-m", "tightship_platform.cli", *arguments]


def of_commit(commit: str, scratch: Path) -> Release:
    """The release as the repository's history has it.

    :raises SystemExit: there is no such commit, as in a clone without history.
    """
    found = subprocess.run(["git", "archive", commit, *SOURCES, "pyproject.toml"], cwd=ROOT, capture_output=True)
    if found.returncode:
        why = found.stderr.decode(errors="replace").strip()
        raise SystemExit(f"The release to upgrade from, {commit!r}, cannot be had ({why}); fetch the whole history")
    folder = scratch / "old"
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return _release(commit, folder, scratch)


def of_today(scratch: Path) -> Release:
    """What stands in the working tree."""
    return _release("new", ROOT, scratch)


def _release(name: str, folder: Path, scratch: Path) -> Release:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    names = scratch / f"names-{name}"
    info = names / f"tightship-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tightship\nVersion: {project['version']}\n")
    groups = [f"[{group}]\n" + _lines(names) for group, names in project["entry-points"].items()]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return Release(name=name, folder=folder, names=names)


def _lines(entries: dict[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in entries.items())
