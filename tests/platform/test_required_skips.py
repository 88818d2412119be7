"""A test that needs PostgreSQL, Redis, Chromium or torch may be skipped, but not where everything is required.

One that needs the reference data runs where their folder is given, and never skips. Of sliced ones some cases run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_python import warm_python

TESTS = Path(__file__).parents[1]
SUPPORT = TESTS / "support"
_COUNT = re.compile(r"(\d+) (passed|skipped|failed|errors?|xfailed|deselected)")
MARKS = ("postgres", "redis", "browser", "torch", "prometheus", "reference", "sliced")

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
@pytest.mark.prometheus
def test_prometheus(): pytest.skip("not here")
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
REFERENCE = """
import pytest, reference_data

@pytest.mark.reference
def test_folder(): assert reference_data.TRACES.is_dir()
@pytest.mark.reference
@pytest.mark.parametrize("path", reference_data.trace_paths(), ids=reference_data.trace_id)
def test_file(path): assert path.read_text() == "{}"
@pytest.mark.reference
@pytest.mark.parametrize("name", reference_data.exact_figures())
def test_figures(name): assert name == "a/b.json"
def test_fine(): pass
"""
SLICED = """
import pathlib, pytest

@pytest.mark.sliced(3)
@pytest.mark.parametrize("case", range(20))
def test_case(case):
    with pathlib.Path(__file__).with_name("ran").open("a") as file: file.write(f"{case} ")
def test_fine(): pass
"""
TOGETHER = """
import pathlib, pytest

def ran(case):
    with pathlib.Path(__file__).with_name("ran").open("a") as file: file.write(f"{case} ")
@pytest.mark.sliced(2, of="ends")
@pytest.mark.parametrize("case", ["a", "b"])
def test_both(case): ran(case)
@pytest.mark.sliced(2, of="ends")
def test_third(): ran("c")
@pytest.mark.sliced(2, of="ends")
def test_fourth(): ran("d")
@pytest.mark.sliced(1, of="begins")
def test_begin(): ran("e")
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[tuple[str, ...]]:
    """Stands for `python` in a command, where what our conftest imports is imported already."""
    with warm_python("pytest", "hypothesis", "alembic", "tightship_platform.database.engine") as python:
        yield python


@pytest.fixture
def run_tests(tmp_path: Path, warm: tuple[str, ...]):
    """Runs a test file in its own process, beside a copy of our conftest; returns how many ended how."""
    for file in (
        TESTS / "conftest.py",
        *(SUPPORT / f"{name}.py" for name in ("reference_data", "services", "file_costs", "examples")),
    ):
        shutil.copy(file, tmp_path / file.name)
    config = tmp_path / "pytest.ini"
    marks = "\n".join(f"    {mark}: x" for mark in MARKS)
    config.write_text(f"[pytest]\npythonpath = .\nmarkers =\n{marks}\n")

    (tmp_path / "run.py").write_text("import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))")

    def run(source: str, **environ: str) -> dict[str, int]:
        (tmp_path / "test_it.py").write_text(source)
        command = [
            *warm,
            str(tmp_path / "run.py"),
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
        (tmp_path / "output").write_text(result.stdout)
        counts = {word.rstrip("s"): int(n) for n, word in _COUNT.findall(result.stdout.strip().splitlines()[-1])}
        # A skip in a fixture becomes an error, one in the test itself a failure.
        return {"bad": counts.pop("failed", 0) + counts.pop("error", 0), **counts}

    return run


def test_without_the_flag_a_skip_is_a_skip(run_tests) -> None:
    assert run_tests(SKIPPING) == {"bad": 0, "passed": 1, "skipped": 5, "xfailed": 1}


def test_with_the_flag_a_required_skip_fails(run_tests) -> None:
    counts = run_tests(SKIPPING, TIGHTSHIP_REQUIRE_ALL="1")
    assert counts == {"bad": 4, "passed": 1, "skipped": 1, "xfailed": 1}


def test_a_file_that_skips_itself_fails_with_the_flag(run_tests) -> None:
    assert run_tests(WHOLE_FILE) == {"bad": 0, "skipped": 1}
    assert run_tests(WHOLE_FILE, TIGHTSHIP_REQUIRE_ALL="1") == {"bad": 1}


def test_a_machine_without_servers_skips_visibly(run_tests) -> None:
    hide = "import services\n"
    hide += "def _none(): raise services.Unavailable('no PostgreSQL here')\n"
    hide += "services.find_postgres = _none\nservices.shutil.which = lambda name: None\n"
    assert run_tests(hide + NO_SERVERS) == {"bad": 0, "passed": 2, "skipped": 3}
    assert run_tests(hide + NO_SERVERS, TIGHTSHIP_REQUIRE_ALL="1") == {"bad": 3, "passed": 2}


def test_without_the_folder_reference_tests_are_deselected(run_tests) -> None:
    assert run_tests(REFERENCE) == {"bad": 0, "passed": 1, "deselected": 3}
    assert run_tests(REFERENCE, TIGHTSHIP_REFERENCE="", TIGHTSHIP_REQUIRE_ALL="1")["bad"] == 0


def test_with_a_folder_that_is_not_there_they_fail_in_one_line_each(run_tests, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    assert run_tests(REFERENCE, TIGHTSHIP_REFERENCE=absent) == {"bad": 3, "passed": 1}
    output = (tmp_path / "output").read_text()
    assert output.count(f"\nTIGHTSHIP_REFERENCE is {absent!r}, which is not a folder;") == 3
    assert "Traceback" not in output


def test_with_the_folder_they_run_and_none_skips(run_tests, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "traces" / "a").mkdir(parents=True)
    (folder / "traces" / "a" / "b.json").write_text("{}")
    # Its figures are missing.
    assert run_tests(REFERENCE, TIGHTSHIP_REFERENCE=str(folder)) == {"bad": 1, "passed": 3}
    exact = folder / "traces" / "reference" / "exact"
    exact.mkdir(parents=True)
    (exact / "temporal_overlap_idle.json").write_text('{"a/b.json": {}}')
    assert run_tests(REFERENCE, TIGHTSHIP_REFERENCE=str(folder)) == {"bad": 0, "passed": 4}


def test_of_sliced_tests_a_slice_runs_which_its_number_repeats(run_tests, tmp_path: Path) -> None:
    def ran(**environ: str) -> tuple[set[str], dict[str, int]]:
        counts = run_tests(SLICED, **environ)
        done = set((tmp_path / "ran").read_text().split())
        (tmp_path / "ran").unlink()
        return done, counts

    drawn, counts = ran(TIGHTSHIP_SLICE="7")
    assert counts == {"bad": 0, "passed": 4, "deselected": 17} and len(drawn) == 3
    assert ran(TIGHTSHIP_SLICE="7")[0] == drawn
    assert ran()[1] == counts
    assert ran(TIGHTSHIP_EXPLORE="1")[1] == {"bad": 0, "passed": 21}


def test_tests_of_one_theme_share_a_slice(run_tests, tmp_path: Path) -> None:
    assert run_tests(TOGETHER, TIGHTSHIP_SLICE="7") == {"bad": 0, "passed": 3, "deselected": 2}
    drawn = (tmp_path / "ran").read_text().split()
    assert "e" in drawn and len({"a", "b", "c", "d"} & set(drawn)) == 2
    (tmp_path / "ran").unlink()
    assert run_tests(TOGETHER, TIGHTSHIP_EXPLORE="1") == {"bad": 0, "passed": 5}
