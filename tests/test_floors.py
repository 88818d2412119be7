"""Each folder is a stage on one floor of its package; see the contracts in pyproject.toml.

import-linter sees packages only. What it cannot see stands here: what lies at a package's top, circles between folders,
and the code that every Python of a job compiles, whose folders are no packages.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import PACKAGES, ROOT, source_files

NOT_COUNTED = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}
MOST_AT_TOP = {"tightship_platform": 24}
GROUND = {
    "tightship_platform": {
        *("cli", "client", "errors", "extras", "logs", "redaction", "settings", "text"),
        *("token_file", "units", "validation", "vocabulary", "wire"),
    },
    "tightship_offload": {"compat", "errors"},
}
"""Package → modules that may lie at its top, for all its stages stand on them."""
INTO_A_JOB = ROOT / "collectors" / "tightship_collectors"


def top_of(package: str) -> set[str]:
    return {path.name for path in (PACKAGES[package] / package).iterdir()} - NOT_COUNTED


def imports_of(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module


def folder_of(module: str, path: Path) -> str:
    """A package's `__init__` is its front door: it re-exports what the folder holds; nobody inside imports it."""
    return f"{module} (front door)" if path.name == "__init__.py" else module.rpartition(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_top_of_a_package_can_be_taken_in_at_a_glance(package: str) -> None:
    assert len(top_of(package)) <= MOST_AT_TOP.get(package, 16)


@pytest.mark.parametrize("package", PACKAGES)
def test_only_ground_lies_at_the_top_of_a_package(package: str) -> None:
    files = {Path(name).stem for name in top_of(package) if (PACKAGES[package] / package / name).is_file()}
    assert files <= GROUND.get(package, set())


def test_no_circle_between_folders() -> None:
    known = source_files()
    leads_to: dict[str, set[str]] = defaultdict(set)
    for module, path in known.items():
        here = folder_of(module, path)
        leads_to[here] |= {folder_of(target, known[target]) for target in imports_of(path, known)} - {here}
    assert sum(map(len, leads_to.values())) > 200
    # What leads nowhere but to folders that are gone from the list goes from it; what stays at the end is a circle.
    left = set(leads_to) | {target for targets in leads_to.values() for target in targets}
    while free := {folder for folder in left if not leads_to[folder] & left}:
        left -= free
    assert {folder: sorted(leads_to[folder] & left) for folder in sorted(left)} == {}


def test_what_enters_a_job_imports_nothing_of_the_platform() -> None:
    """Standard library only. Decision 12 states the one exception: a job with a plan loads offload's bootstrap."""
    allowed = {"inject_support/offload_plan.py": {"tightship_offload"}}
    files = [*(INTO_A_JOB / "inject").glob("*.py"), *(INTO_A_JOB / "inject_support").glob("*.py")]
    assert len(files) >= 3
    for path in files:
        assert not (path.parent / "__init__.py").exists()
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
        name = str(path.relative_to(INTO_A_JOB))
        assert {module for module in found if module.startswith("tightship")} == allowed.get(name, set()), name
