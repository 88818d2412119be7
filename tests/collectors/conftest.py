"""Commands that start sooner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm_python import warm_python


@pytest.fixture(scope="session")
def warm_tightship(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Stands for `tightship` in a command, where what its commands import is imported already."""
    script = tmp_path_factory.mktemp("warm") / "tightship_command.py"
    script.write_text("from tightship_platform.cli import main\nmain()\n")
    modules = ("tightship_platform.cli", "httpx", "tightship_collectors.commands.profile", "rich.live", "rich.table")
    with warm_python(*modules, "tightship_collectors.doctor.host_checks", "tightship_platform.client") as python:
        yield (*python, str(script))
