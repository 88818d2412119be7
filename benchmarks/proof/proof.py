"""Does advice deliver what it says? Each fix is applied as its finding asks for it, and measured beside the prediction.

    make proof                                        # everything: the table, benchmarks/out/proof.json, docs/proof.md
    make proof ARGS="recurrent_loop tiny_gpt"         # only these
    make proof ARGS="--alternations 10"
    make proof ARGS="--drawn 2 --alternations 2"      # two cases by chance: what CI runs
    make proof ARGS=--judge                           # analyze again what was recorded and measured before
    make proof ARGS=--record                          # also keep the outcomes in the rules' track record

Each job is recorded as it is, in a process that nothing else watches, and the recording is analyzed by the installed
analyzers; then the job and its copy with the fix run in turns. Recordings and measurements are kept below
benchmarks/out/proof. On a GPU the pairs under benchmarks/gpu run as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from advice import advice_on
from agreement import Row, agreement, delivered, median_interval, outcomes
from cases import CONTROLS, HERE, PAIRS, Case
from document import document, show
from job_runs import JobFailed, fixed, recorded, timed
from watched_job import Timed

from tightship_analyzers.findings.track_record import write_outcomes
from tightship_platform.errors import TightshipError

OUT = HERE.parent / "out"
KEPT = OUT / "proof"
DOCUMENT = HERE.parents[1] / "docs" / "proof.md"
ALTERNATIONS = 6
"""Fewer give no interval of 90 % that is not the extremes of chance; see agreement.median_interval."""


def record(case: Case, kept: Path, folder: Path) -> None:
    """Keep a recording of the job as it is, and its mean step before."""
    kept.mkdir(parents=True, exist_ok=True)
    before = recorded(case, folder / "recorded", _traces(case, kept))
    (kept / "recorded.json").write_text(json.dumps(asdict(before)))


def measure(case: Case, kept: Path, folder: Path, alternations: int) -> None:
    """Keep what steps take with and without the fix, in turns; which side begins changes each time."""
    changed = folder / "fixed"
    changed.mkdir()
    scripts = {"before": case.script, "after": fixed(case, changed)}
    runs: list[dict[str, object]] = []
    for number in range(alternations):
        order = list(scripts) if number % 2 == 0 else list(reversed(scripts))
        runs.append({side: asdict(timed(case, scripts[side], folder / side)) for side in order})
    (kept / "measured.json").write_text(json.dumps(runs))


def judge(case: Case, kept: Path) -> Row:
    """The case's row, from what is kept.

    :raises TightshipError: the recording cannot be read.
    :raises OSError: nothing is kept.
    """
    before = Timed(**json.loads((kept / "recorded.json").read_text()))
    step_ns = before.wall_ns // before.steps
    idle_frac = max(0.0, 1 - before.cpu_ns / before.wall_ns / (os.cpu_count() or 1))
    advice = advice_on(case, _traces(case, kept), step_ns, idle_frac)
    common = {"job": case.job, "rule": case.rule, "is_control": case.is_control, "predicted": advice.predicted}
    common |= {"as_asked": advice.as_asked, "not_judged": advice.not_judged, "certain": advice.certain}
    if case.diff is None:
        return Row(**common, step_ns=step_ns, cpu_ns=before.cpu_ns // before.steps)
    runs = json.loads((kept / "measured.json").read_text())
    sides = {side: [Timed(**run[side]) for run in runs] for side in ("before", "after")}
    wall = {side: [one.wall_ns / one.steps for one in timings] for side, timings in sides.items()}
    cpu = {side: [one.cpu_ns / one.steps for one in timings] for side, timings in sides.items()}
    return Row(
        **common,
        step_ns=round(statistics.median(wall["before"])),
        fixed_ns=round(statistics.median(wall["after"])),
        cpu_ns=round(statistics.median(cpu["before"])),
        fixed_cpu_ns=round(statistics.median(cpu["after"])),
        measured=median_interval([1 - after / b for b, after in zip(wall["before"], wall["after"], strict=True)]),
    )


def proved(case: Case, *, alternations: int, afresh: bool) -> Row:
    """One case, or the reason why it has no figures: one that fails does not cost the others theirs.

    :param afresh: record and measure; else what was kept is analyzed again.
    """
    kept = KEPT / case.job
    try:
        if afresh:
            with tempfile.TemporaryDirectory(prefix="tightship-proof-") as made:
                record(case, kept, Path(made))
                if case.diff is not None:
                    measure(case, kept, Path(made), alternations)
        return judge(case, kept)
    except (JobFailed, TightshipError, OSError) as error:
        return Row(job=case.job, rule=case.rule, is_control=case.is_control, step_ns=0, failed=str(error))


def drawn(count: int) -> list[str]:
    """So many cases by chance; TIGHTSHIP_SLICE repeats a draw."""
    dice = random.Random(os.environ.get("TIGHTSHIP_SLICE"))
    return [case.job for case in dice.sample((*PAIRS, *CONTROLS), count)]


def _traces(case: Case, kept: Path) -> list[tuple[Path, Path]]:
    return [(kept / f"rank{rank}.json.gz", kept / f"rank{rank}.second.json.gz") for rank in range(case.ranks)]


def main() -> int:
    """Runs, prints and writes; 1 where a case has no figures, or a defect is missed that is found on any machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="only these cases")
    parser.add_argument("--alternations", type=int, default=ALTERNATIONS)
    parser.add_argument("--drawn", type=int, metavar="N", help="only N cases, by chance")
    parser.add_argument("--judge", action="store_true", help="analyze again what was recorded and measured before")
    parser.add_argument("--record", action="store_true", help="keep the outcomes of all cases in the track record")
    given = parser.parse_args()
    jobs = given.jobs or (drawn(given.drawn) if given.drawn else [])
    if given.record and jobs:
        parser.error("--record keeps the outcomes of all cases, not of some")
    cases = {case.job: case for case in (*PAIRS, *CONTROLS)}
    if unknown := [job for job in jobs if job not in cases]:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(cases)}")
    rows = []
    for job in jobs or cases:
        sys.stderr.write(f"{job}\n")
        rows.append(proved(cases[job], alternations=given.alternations, afresh=not given.judge))
    result = agreement(rows)
    OUT.mkdir(exist_ok=True)
    summed = {"torch": torch.__version__, "agreement": result.as_json(), "rows": [asdict(row) for row in rows]}
    (OUT / "proof.json").write_text(json.dumps(summed, indent=1) + "\n")
    show(rows, result)
    if not jobs:
        if given.record:
            write_outcomes("pair", outcomes(rows), delivered(rows))
        DOCUMENT.write_text(document(rows, result, given.alternations), encoding="utf-8")
        if torch.cuda.is_available() and not given.judge:
            subprocess.run([sys.executable, str(HERE.parent / "gpu" / "pairs.py")], check=True)
    missed = [row.job for row in rows if cases[row.job].is_found and row.predicted is None and not row.failed]
    for job in missed:
        sys.stderr.write(f"{job}: {cases[job].rule} does not find its defect\n")
    return int(bool(missed) or any(row.failed for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
