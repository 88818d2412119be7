"""What `tightship analyze` says of the traces that were read by hand: `make readings`, or
`python tests/readings/score.py [--record] [NAME...]`. See README.md beside it; TIGHTSHIP_REFERENCE names the folder of
the traces. `--record` keeps the outcomes in the rules' track record.
"""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from readings.reading import Item, Reading, read_all

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.findings.track_record import write_outcomes
from tightship_analyzers.report.sentences import headline
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.evidence import Fact


@dataclass(frozen=True, kw_only=True)
class Said:
    """A finding against the reading."""

    rule: str
    verdict: str
    """`right`, `partly`, `wrong`, or `forbidden`: the reading says by name that it is false."""
    line: str
    item: str | None = None
    """Kind of the item that it is right on."""


@dataclass(kw_only=True)
class Score:
    """One reading against our report."""

    name: str
    headline: str
    said: list[Said] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """Large items that no finding is right on."""
    contradictions: list[str] = field(default_factory=list)
    """Patterns that the headline must not match, and does."""

    def count(self, verdict: str) -> int:
        """How many findings have that verdict."""
        return sum(one.verdict == verdict for one in self.said)


def score(reading: Reading, folder: Path) -> Score:
    """Compare our report with the reading."""
    result = analyze_paths([str(folder / trace) for trace in reading.traces])
    said = headline(result)
    made = Score(name=reading.name, headline=said)
    right_on: set[str] = set()
    for finding in result.findings:
        one = judge(reading, finding)
        made.said.append(one)
        if one.item is not None:
            right_on.add(one.item)
    for item in reading.items:
        if item.is_large(reading.unit_ns):
            (made.found if item.kind in right_on else made.missed).append(item.kind)
    made.contradictions = [known for known in reading.headline_not if re.search(known, said, re.IGNORECASE)]
    return made


def judge(reading: Reading, finding: TraceFinding) -> Said:
    """Right, partly right or wrong."""
    text = " ".join([finding.where, finding.title, *(one.text for one in finding.evidence if isinstance(one, Fact))])
    saving = finding.saving
    line = f"{finding.title} [{finding.where}] {saving.low}-{saving.high} {saving.unit} {saving.method}"
    for never in reading.not_said:
        if never.rule == finding.rule and never.place.lower() in text.lower():
            return Said(rule=finding.rule, verdict="forbidden", line=f"{line}: {never.why}")
    named = [item for item in reading.items if item.rule == finding.rule and item.names(text)]
    for item in named:
        if _overlaps(item, finding):
            return Said(rule=finding.rule, verdict="right", line=line, item=item.kind)
    return Said(rule=finding.rule, verdict="partly" if named else "wrong", line=line)


def _overlaps(item: Item, finding: TraceFinding) -> bool:
    low, high = finding.saving.low, finding.saving.high
    return low is not None and high is not None and low <= item.high_ns and item.low_ns <= high


def main() -> int:
    """Print the table; 1 where the aims are missed."""
    given = os.environ.get("TIGHTSHIP_REFERENCE", "")
    folder = Path(given) / "traces"
    if not given or not folder.is_dir():
        sys.stderr.write(f"TIGHTSHIP_REFERENCE is {given!r}: name the folder of the reference data\n")
        return 2
    names = [word for word in sys.argv[1:] if word != "--record"]
    readings = [one for one in read_all() if not names or one.name in names]
    with ProcessPoolExecutor() as pool:
        scores = list(pool.map(score, readings, [folder] * len(readings)))
    console = Console()
    table = Table("reading", "right", "partly", "wrong", "forbidden", "large found", "missed", "headline")
    for one in scores:
        counts = [str(one.count(verdict)) for verdict in ("right", "partly", "wrong", "forbidden")]
        of_large = f"{len(one.found)}/{len(one.found) + len(one.missed)}"
        table.add_row(one.name, *counts, of_large, ", ".join(one.missed), "contradicts" if one.contradictions else "")
    console.print(table)
    for one in scores:
        for finding in one.said:
            if finding.verdict != "right":
                console.print(f"{one.name}: {finding.rule} {finding.verdict}: {finding.line}", markup=False)
        for pattern in one.contradictions:
            console.print(f"{one.name}: headline matches {pattern!r}: {one.headline}", markup=False)
    findings = [finding for one in scores for finding in one.said]
    right = sum(finding.verdict == "right" for finding in findings)
    large = sum(len(one.found) + len(one.missed) for one in scores)
    found = sum(len(one.found) for one in scores)
    console.print(f"precision {right} of {len(findings)}, recall {found} of {large} items of 5 % or more")
    if "--record" in sys.argv[1:] and len(scores) == len(read_all()):
        outcomes: dict[str, dict[str, bool]] = {}
        for one in scores:
            for finding in one.said:
                cases = outcomes.setdefault(finding.rule, {})
                cases[one.name] = cases.get(one.name, True) and finding.verdict == "right"
        write_outcomes("reading", outcomes)
    fine = right >= 0.95 * len(findings) and found >= 0.9 * large and not any(one.contradictions for one in scores)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
