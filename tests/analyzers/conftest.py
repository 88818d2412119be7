"""Fixtures of more than one test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hazard_traces import HAZARDS
from trace_files import Written
from warm_python import OPTIMIZERS, warm_python

from tightship_analyzers.findings import track_record
from tightship_analyzers.rules.catalogue import RULES


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a trace's text to a file."""

    def write(text: bytes) -> Path:
        path = tmp_path / "trace.json"
        path.write_bytes(text)
        return path

    return write


@pytest.fixture
def proven(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every rule counts as proven, those that a test makes up too: what is tested does not hang on real cases."""
    names = [rule.id for rule in RULES] + [*"abcdef", "slow", "one", "two", "wide", "sure"]
    file = tmp_path_factory.mktemp("record") / "track_record.toml"
    file.write_text("".join(f'[{name}]\nright = ["reading/x", "reading/y", "reading/z"]\n' for name in names))
    monkeypatch.setattr(track_record, "FILE", file)
    track_record.track_records.cache_clear()
    yield
    track_record.track_records.cache_clear()


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
