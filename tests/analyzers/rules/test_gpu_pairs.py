"""benchmarks/gpu/pairs.py without a GPU: its cases are of rules that exist, and one is timed, recorded and judged."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tightship_analyzers.rules.catalogue import find_rule

pytestmark = pytest.mark.torch

FOLDER = Path(__file__).parents[3] / "benchmarks" / "gpu"
SHORT = """
import pair_cases, pairs

on = pair_cases.on
pair_cases.on = lambda device, rows, *more: on(device, rows // 16, *more)
pairs.WARM_UP, pairs.ROUNDS, pairs.ROUND_S = 2, 3, 0.05
pairs.main()
"""
"""The same with fewer rows in a batch, and fewer and shorter rounds."""


def test_every_pair_is_of_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    from pair_cases import PAIRS  # type: ignore[import-not-found]

    rules = [pair.rule for pair in PAIRS]
    assert len(rules) == len(set(rules)) > 20
    assert all(find_rule(rule) for rule in rules)


def test_a_pair_is_timed_recorded_and_judged(tmp_path: Path, warm: tuple[str, ...]) -> None:
    script = tmp_path / "short.py"
    script.write_text(SHORT)
    command = [*warm, str(script), "--cpu", "--rule", "garbage-collection", "--keep", str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(FOLDER)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "measured.json").read_text())
    [row] = document["pairs"]
    assert document["gpu"] is None
    assert (row["rule"], row["method"] in ("simulated", "bound")) == ("garbage-collection", True)
    assert 0 < row["low_ns"] <= row["predicted_ns"] <= row["high_ns"]
    assert row["measured_ns"] > 0 and row["quiet"]
    assert "garbage-collection" in done.stdout and "median error of the saving" in done.stdout
    for side in ("before", "after"):
        assert (tmp_path / f"garbage-collection.{side}.json.gz").stat().st_size == row["bytes"][side]
