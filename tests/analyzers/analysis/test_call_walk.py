"""docs/architecture.md follows a trace through `analyze` as it really goes."""

from __future__ import annotations

import re
import subprocess
import sys

from source_tree import ROOT

MOST_STEPS = 30
PROGRAM = """
import sys
from call_walk import walk
from click.testing import CliRunner
import tightship_analyzers.analysis.from_files
import tightship_analyzers.report.terminal
from tightship_analyzers.commands.analyze import analyze

done = []
found = walk(lambda: done.append(CliRunner().invoke(analyze, [sys.argv[1], "--jobs", "1"])))
assert done[0].exit_code == 0, done[0].output
print("\\n".join(found))
"""


def documented() -> list[str]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("## A trace through `analyze`, call by call")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([\w.]+)`: ", section, re.MULTILINE)


def test_the_document_follows_the_calls() -> None:
    trace = ROOT / "tests" / "data" / "traces" / "starved.json.gz"
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'tests' / 'support')!r}){PROGRAM}"
    # In its own process: what other tests imported and derived would change the order.
    done = subprocess.run([sys.executable, "-c", program, str(trace)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert documented() == done.stdout.split()
    assert 10 < len(documented()) <= MOST_STEPS
