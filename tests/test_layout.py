"""The house stands as docs/architecture.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import file_costs
import pytest
from file_schedule import TOGETHER
from source_tree import PACKAGES, ROOT

MAX_LINES = 500


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_platform_is_no_package() -> None:
    """A root `platform/__init__.py` would shadow the standard library's `platform` module."""
    assert not (ROOT / "platform" / "__init__.py").exists()
    out = subprocess.run(
        [sys.executable, "-c", "import platform; print(platform.system())"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "Linux"


@pytest.mark.parametrize(("package", "folder"), PACKAGES.items())
def test_each_source_root_holds_one_typed_package(package: str, folder: Path) -> None:
    packages = [path.name for path in folder.iterdir() if (path / "__init__.py").exists()]
    assert packages == [package]
    assert (folder / package / "py.typed").exists()


def test_no_file_is_over_500_lines() -> None:
    files = tracked("*.py")
    assert len(files) > 50
    too_long = {str(path.relative_to(ROOT)): n for path in files if (n := path.read_text().count("\n")) > MAX_LINES}
    assert too_long == {}


def test_the_schedule_of_the_tests_names_what_there_is() -> None:
    named = {*file_costs.known(), *(beginning for beginnings in TOGETHER.values() for beginning in beginnings)}
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_costly_files_are_drawn_within_the_budget_and_each_of_them_by_some_number() -> None:
    costs = file_costs.known()
    drawn = [costs.keys() - file_costs.left_out(costs, str(number)) for number in range(200)]
    assert set().union(*drawn) == costs.keys()
    for files in drawn:
        costly = [name for name in files if costs[name] >= file_costs.COSTLY_S]
        in_budget = [name for name in costly if not name.startswith(file_costs.NEVER_LEFT_OUT)]
        assert 0 < sum(costs[name] for name in in_budget) <= file_costs.BUDGET_S + 0.01
        assert {name for name in costs if name.startswith(file_costs.NEVER_LEFT_OUT)} <= files


def test_no_init_under_tests() -> None:
    assert [path for path in tracked("tests/**/*.py") if path.name == "__init__.py"] == []


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in ("README.md", "CONTRIBUTING.md", "docs/operations.md"):
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / document).read_text(), re.M):
            assert target in targets, f"{document} names `make {target}`"
