"""A test that needs PostgreSQL, Redis, Chromium or torch may be skipped, but not where everything is required."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
_COUNT = re.compile(r"(\d+) (passed|skipped|failed|errors?|xfailed)")
MARKS = ("postgres", "redis", "browser", "torch")

SKIPPING = """
import pytest

@pytest.mark.postgres
def test_postgres(): pytest.skip("not here")
@pytest.mark.browser
def test_browser(): pytest.skip("not here")
@pytest.mark.skipif(True, reason="not here")
@pytest.mark.torch
def test_torch(): pass
def test_other(): pytest.skip("nothing required")
@pytest.mark.redis
@pytest.mark.xfail(reason="known")
def test_known(): assert False
def test_fine(): pass
"""
NO_SERVERS = """
def test_database(database): assert database.schema_version()
def test_broker(broker_url): assert broker_url
def test_given(postgres_url, redis_url): pass
"""
WHOLE_FILE = """
import pytest
pytest.importorskip("playwright_that_is_not_installed")
def test_page(): pass
"""


@pytest.fixture
def run_tests(tmp_path: Path):
    """Runs a test file in a process of its own, beside a copy of our conftest; returns how many ended how."""
    for name in ("conftest.py", "services.py"):
        shutil.copy(TESTS / name, tmp_path / name)
    config = tmp_path / "pytest.ini"
    marks = "\n".join(f"    {mark}: x" for mark in MARKS)
    config.write_text(f"[pytest]\npythonpath = .\nmarkers =\n{marks}\n")

    def run(source: str, **environ: str) -> dict[str, int]:
        (tmp_path / "test_it.py").write_text(source)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:dash",
            "-c",
            str(config),
            str(tmp_path / "test_it.py"),
        ]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")}
        result = subprocess.run(command, cwd=tmp_path, env=clean | environ, capture_output=True, text=True, timeout=120)
        counts = {word.rstrip("s"): int(n) for n, word in _COUNT.findall(result.stdout.strip().splitlines()[-1])}
        # A skip in a fixture becomes an error, one in the test itself a failure.
        return {"bad": counts.pop("failed", 0) + counts.pop("error", 0), **counts}

    return run


def test_without_the_flag_a_skip_is_a_skip(run_tests) -> None:
    assert run_tests(SKIPPING) == {"bad": 0, "passed": 1, "skipped": 4, "xfailed": 1}


def test_with_the_flag_a_required_skip_fails(run_tests) -> None:
    counts = run_tests(SKIPPING, TIGHTSHIP_REQUIRE_ALL="1")
    assert counts == {"bad": 3, "passed": 1, "skipped": 1, "xfailed": 1}


def test_a_file_that_skips_itself_fails_with_the_flag(run_tests) -> None:
    assert run_tests(WHOLE_FILE) == {"bad": 0, "skipped": 1}
    assert run_tests(WHOLE_FILE, TIGHTSHIP_REQUIRE_ALL="1") == {"bad": 1}


def test_a_machine_without_servers_skips_visibly(run_tests) -> None:
    hide = "import services\n"
    hide += "def _none(): raise services.Unavailable('no PostgreSQL here')\n"
    hide += "services.find_postgres = _none\nservices.shutil.which = lambda name: None\n"
    assert run_tests(hide + NO_SERVERS) == {"bad": 0, "passed": 2, "skipped": 3}
    assert run_tests(hide + NO_SERVERS, TIGHTSHIP_REQUIRE_ALL="1") == {"bad": 3, "passed": 2}
