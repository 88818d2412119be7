"""Which torch, CUDA and driver a job finds: read from files, without starting its interpreter or importing torch.

Of a command whose program is a Python, or a script whose first line names one (`torchrun`, `accelerate`). What a shell
script, `uv run` or a container starts is not known here.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tightship_collectors.jobs.small_file import small_text

SMALL_BYTES = 64 * 1024
DRIVER = Path("/sys/module/nvidia/version")

_PYTHON = re.compile(r"python[\d.]*")
_NUMBERED = re.compile(r"python(\d\.\d+)")
_INTERPRETER_LINE = re.compile(r"#!\s*(\S+)(?:[ \t]+(\S+))?")
_LONG_LINE = re.compile(r"'''exec' \"?(/[^\"\n]+?)\"? \"\$0\"")
"""What pip and uv write where an interpreter's path is too long for the kernel, or has spaces."""
_TORCH = re.compile(r"^__version__ = ['\"]([\w.+-]{1,60})['\"]", re.M)
_CUDA = re.compile(r"^cuda(?:: [\w\[\]. |]{1,40})? = ['\"]([\w.+-]{1,60})['\"]", re.M)
_VERSION = re.compile(r"[\w.+-]{1,60}")


@dataclass(frozen=True, kw_only=True)
class Installed:
    """Versions as their packages give them; what is not known is None."""

    torch_version: str | None = None
    cuda_version: str | None = None
    """That torch was built for."""


def torch_of(command: Sequence[str], environ: Mapping[str, str]) -> Installed:
    """The torch that a command's own interpreter would import."""
    interpreter = _interpreter(command[0], environ)
    for folder in _import_folders(interpreter, environ) if interpreter is not None else ():
        text = small_text(folder / "torch" / "version.py", SMALL_BYTES)
        torch = _TORCH.search(text)
        if torch:
            cuda = _CUDA.search(text)
            return Installed(torch_version=torch[1], cuda_version=cuda[1] if cuda else None)
    return Installed()


def driver_version(file: Path = DRIVER) -> str | None:
    """That of the loaded NVIDIA driver; None: none is loaded, or the container does not show it."""
    found = _VERSION.fullmatch(small_text(file, SMALL_BYTES).strip())
    return found[0] if found else None


def _interpreter(program: str, environ: Mapping[str, str]) -> Path | None:
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None or _PYTHON.fullmatch(Path(path).name):
        return None if path is None else Path(path)
    text = small_text(Path(path), SMALL_BYTES, whole=False)
    line = _INTERPRETER_LINE.match(text)
    if line is None:
        return None
    named = Path(line[1])
    long = _LONG_LINE.search(text[:1024])
    if named.name == "env" and line[2]:
        found = shutil.which(line[2], path=environ.get("PATH"))
        named = Path(found) if found else named
    elif named.name == "sh" and long:
        named = Path(long[1])
    return named if _PYTHON.fullmatch(named.name) else None


def _import_folders(interpreter: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Where the interpreter looks for packages, in its order. Source: the documentation of sys.path and of site."""
    for entry in environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry:
            yield Path(entry)
    prefix = interpreter.parent.parent
    real = interpreter.resolve()
    settings = small_text(prefix / "pyvenv.cfg", SMALL_BYTES)
    found = _NUMBERED.fullmatch(real.name)
    version = found[1] if found else "*"
    is_shared = not settings or re.search(r"^include-system-site-packages\s*=\s*true", settings, re.M | re.I)
    if settings:
        yield from _of_prefix(prefix, version)
    if is_shared:
        if not environ.get("PYTHONNOUSERSITE") and environ.get("HOME"):
            yield from _of_prefix(Path(environ["HOME"]) / ".local", version)
        for base in dict.fromkeys((prefix, real.parent.parent)):
            if base == Path("/usr"):  # Debian's layout
                yield from _of_prefix(base / "local", version)
                yield base / "lib" / "python3" / "dist-packages"
            yield from _of_prefix(base, version)


def _of_prefix(prefix: Path, version: str) -> Iterator[Path]:
    for library in ("lib", "lib64"):
        for kind in ("site-packages", "dist-packages"):
            yield from sorted((prefix / library).glob(f"python{version}/{kind}"))
