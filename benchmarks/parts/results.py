"""What every benchmark does with its figures: it writes them to `benchmarks/out` and prints them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

OUT = Path(__file__).parents[1] / "out"
Results = TypeVar("Results")


def options(page: str | None) -> argparse.ArgumentParser:
    """A parser with what all benchmarks are asked.

    :param page: the program's own docstring.
    """
    parser = argparse.ArgumentParser(description=(page or "").split("\n", 1)[0])
    parser.add_argument("--json-only", action="store_true", help="print the JSON instead of the table")
    return parser


def keep(name: str, results: Results, show: Callable[[Results], None], *, json_only: bool) -> None:
    """Write `benchmarks/out/NAME.json`; print the same, or the table."""
    text = json.dumps(results, indent=2)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.json").write_text(text + "\n")
    if json_only:
        print(text)
    else:
        show(results)
