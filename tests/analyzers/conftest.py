"""Fixtures of more than one test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hazard_traces import HAZARDS
from trace_files import Written
from warm_python import OPTIMIZERS, warm_python


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a trace's text to a file."""

    def write(text: bytes) -> Path:
        path = tmp_path / "trace.json"
        path.write_bytes(text)
        return path

    return write


@pytest.fixture(scope="session")
def made_recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The traces of hazard_traces.py by name, as files."""
    folder = tmp_path_factory.mktemp("made")
    paths = {name: folder / f"{name}.json" for name in HAZARDS}
    for name, path in paths.items():
        path.write_bytes(HAZARDS[name]())
    return paths


@pytest.fixture
def recording(request: pytest.FixtureRequest, made_recordings: dict[str, Path]) -> Path:
    """The file of one entry of `recordings.ANY`."""
    given: Path | str = request.param
    return given if isinstance(given, Path) else made_recordings[given]


@pytest.fixture(scope="session")
def warm() -> Iterator[tuple[str, ...]]:
    """Stands for `python` in a command, where torch is imported already."""
    with warm_python(*OPTIMIZERS) as python:
        yield python
