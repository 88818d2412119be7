"""Fixtures of more than one test file."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_files import Written


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a trace's text to a file."""

    def write(text: bytes) -> Path:
        path = tmp_path / "trace.json"
        path.write_bytes(text)
        return path

    return write
