"""`tightship run` as a user starts it, for tests that watch it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIGHTSHIP = (sys.executable, "-m", "tightship_platform.cli")


def launch(*command: str | Path, options: tuple[str, ...] = (), **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """`tightship run OPTIONS -- COMMAND`, to its end. Further arguments as for subprocess.run."""
    line = [*TIGHTSHIP, "run", *options, "--", *map(str, command)]
    kwargs.setdefault("env", os.environ | kwargs.pop("extra_env", {}))
    return subprocess.run(line, **{"capture_output": True, "text": True, "timeout": 120, **kwargs})


def start(*command: str | Path, options: tuple[str, ...] = (), **kwargs: Any) -> subprocess.Popen[str]:
    """The same, not waited for; its stdout and stderr are pipes."""
    line = [*TIGHTSHIP, "run", *options, "--", *map(str, command)]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **kwargs}
    return subprocess.Popen(line, **given)


def run_dirs(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Directories of runs that are there now."""
    folder = Path(environ["TIGHTSHIP_RUNTIME_DIR"])
    return sorted(p for p in folder.iterdir() if len(p.name) == 16) if folder.is_dir() else []


def spooled(environ: Mapping[str, str] = os.environ) -> dict[str, dict[str, Any]]:
    """Run records that wait for the server, by file name."""
    folder = Path(environ["TIGHTSHIP_HOME"]) / "spool" / "runs"
    whole = sorted(folder.glob("[!.]*")) if folder.is_dir() else []  # what is being written begins with a dot
    return {path.name: json.loads(path.read_text()) for path in whole}


def ended() -> list[dict[str, Any]]:
    """Those of runs that have ended. Whether the start's record waits beside them is a matter of time."""
    return [record for name, record in spooled().items() if not name.endswith(".start.json")]


def warnings_in(stderr: str) -> list[str]:
    """The lines that are ours."""
    return [line for line in stderr.splitlines() if line.startswith("tightship:")]
