"""The readings of traces have their form, and come from scripts that know nothing of ours."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
import reference_data
from readings.reading import FOLDER, read_all, read_reading
from readings.score import score

from tightship_analyzers.rules.catalogue import RULES

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
SCRIPTS = FOLDER / "scripts"


def test_there_are_enough() -> None:
    assert len(NAMES) >= 20
    assert [one.name for one in read_all()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_reading_names_rules_that_exist_and_says_why(name: str) -> None:
    reading, known = read_reading(FOLDER / f"{name}.json"), {rule.id for rule in RULES}
    assert {item.rule for item in reading.items if item.rule} | {never.rule for never in reading.not_said} <= known
    kinds = [item.kind for item in reading.items]
    assert len(kinds) == len(set(kinds)), "an item is found by its kind"
    assert all(item.true_of and item.gives for item in reading.items)
    assert all(never.why for never in reading.not_said)
    assert all(reading.answers.values())


@pytest.mark.parametrize("name", NAMES)
def test_its_script_imports_nothing_of_ours(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= set(sys.stdlib_module_names) | {"raw_trace", *NAMES}


@pytest.mark.reference
@pytest.mark.parametrize("name", NAMES)
def test_its_traces_are_there(name: str) -> None:
    assert all((reference_data.TRACES / trace).is_file() for trace in read_reading(FOLDER / f"{name}.json").traces)


@pytest.mark.reference
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_said_of_it_that_the_reading_forbids(name: str) -> None:
    scored = score(read_reading(FOLDER / f"{name}.json"), reference_data.TRACES)
    assert [one.line for one in scored.said if one.verdict == "forbidden"] == []
    assert scored.contradictions == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unit": "hour"}, "unit is 'hour'"),
        ({"unit_ns": 0}, "no positive integer"),
        ({"bound_by": "luck"}, "bound_by is 'luck'"),
        ({"answers": {}}, "answers are not"),
        ({"colour": 1}, "colour"),
    ],
)
def test_one_without_the_form_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    given = json.loads((FOLDER / f"{NAMES[0]}.json").read_text(encoding="utf-8"))
    path = tmp_path / "made.json"
    path.write_text(json.dumps(given | change))
    with pytest.raises(ValueError, match=words):
        read_reading(path)
