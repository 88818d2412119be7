"""Runs whose steps come to the database as they do from a host: through a control file, the agent's reader and ingest.

The clock is the test's: nothing waits, and nothing depends on how busy the machine is.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from records import CPU, HOUR, T0, batch, beat, ended, held, started
from sqlalchemy import select

from tightship_analyzers.fleet import accounting, ranking
from tightship_collectors.jobs.control_file import OFF_STEPS, SIZE, rank_path
from tightship_collectors.jobs.live_run import HostRun, RankView
from tightship_collectors.jobs.step_reader import StepReader
from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Finding, Run, Trace
from tightship_platform.queries.opportunities import list_opportunities
from tightship_platform.units import NS_PER_MS, NS_PER_S
from tightship_platform.wire import DeviceRecord, StepRecord

STARTUP_NS = 7 * NS_PER_S
TICK_NS = NS_PER_S
RANKED = T0 + HOUR // 2
CLAIM = {"rules": ["starved-input"], "share_frac": 0.3, "low_frac": 0.25, "high_frac": 0.4, "method": "measured"}
OVERLAY = {
    "kind": "environment",
    "variables": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
    "numerics": "Products round to TF32",
}
PLAN = {"kind": "plan", "workflow": "train", "command": "tightship offload plan --workflow=train"}
TEXT = {"title": "The loader starves the device", "place": "train.py:7", "fix": "Give the loader workers"}
CODE = {"kind": "change", "before": "DataLoader(data)", "after": "DataLoader(data, num_workers=8)"}


def record(
    database: Database,
    folder: Path,
    key: str,
    *,
    start_ns: int,
    step_ms: float,
    seconds: int = 240,
    ranks: int = 1,
    device: DeviceRecord = CPU,
    spread: float = 0.05,
    seed: int = 1,
    is_ended: bool = True,
    workflow: str = "train",
    **more: object,
) -> None:
    """A run of that many seconds after its start-up, ended and accounted for."""
    steps = list(stepped(folder / key, key, start_ns, step_ms, seconds, range(ranks), random.Random(seed), spread))
    end_ns = start_ns + STARTUP_NS + seconds * NS_PER_S
    with database.session() as session:
        ingest.apply_heartbeat(session, beat(time_ns=start_ns, devices=[CPU, device]), now=start_ns)
        ingest.apply_run(session, started(key, workflow, start_ns, **more), now=start_ns)
        allocation = held(key, start_ns, end_ns, device=device.uuid)
        ingest.apply_batch(session, batch(allocations=[allocation], steps=steps), now=end_ns)
        if is_ended:
            ingest.apply_run(session, ended(key, workflow, end_ns=end_ns, start_ns=start_ns, **more), now=end_ns)
    if is_ended:
        with database.session() as session:
            run = session.scalars(select(Run).where(Run.key == key)).one()
            accounting.account_run(session, run, now=end_ns + NS_PER_S)


def stepped(
    folder: Path,
    key: str,
    start_ns: int,
    step_ms: float,
    seconds: int,
    ranks: Iterable[int],
    rng: random.Random,
    spread: float,
) -> list[StepRecord]:
    """What the agent's reader makes of control files that ranks of this pace write, read once a second."""
    (folder / "ranks").mkdir(parents=True)
    first_ns = start_ns + STARTUP_NS
    ends, at_ns, pace = [], first_ns, 0.0
    while at_ns < first_ns + seconds * NS_PER_S:
        ends.append(at_ns)
        if len(ends) % 50 == 1:  # a busy neighbour comes and goes
            pace = 0.5 * pace + rng.gauss(0, spread)
        at_ns += round(step_ms * max(0.1, 1 + pace) * NS_PER_MS)
    if not ends:
        return []
    reader, found, made = StepReader(), [], 0
    for tick_ns in range(first_ns, ends[-1] + 15 * NS_PER_S, TICK_NS):
        while made < len(ends) and ends[made] <= tick_ns:
            made += 1
        last_ns = ends[made - 1]
        for rank in ranks:
            content = bytearray(SIZE)
            struct.pack_into("<QQQ", content, OFF_STEPS, made, first_ns, last_ns)
            rank_path(folder, 100 + rank).write_bytes(content)
        views = tuple(
            RankView(
                rank=rank,
                pid=100 + rank,
                guard=True,
                steps=made,
                first_step_ns=first_ns,
                last_step_ns=last_ns,
                is_rank=True,
            )
            for rank in ranks
        )
        pids = tuple(view.pid for view in views)
        run = HostRun(run=key, run_dir=folder, uid=os.getuid(), pids=pids, ranks=views, start_ns=start_ns)
        reader.update(tick_ns, [run])
        found += reader.drain()
    reader.close()
    return found


def opportunity(
    database: Database,
    folder: Path,
    *,
    unit: str = "ns/step",
    evidence: Iterable[dict[str, Any]] = (CODE,),
    key: str = "before",
    workflow: str = "train",
    seconds: int = 900,
    claim: dict[str, Any] = CLAIM,
    text: dict[str, str] = TEXT,
    **more: object,
) -> int:
    """A run of 20 ms steps, of which a trace says that 30 % could go: the opportunity that is ranked from it."""
    record(database, folder, key, start_ns=T0, step_ms=20, seconds=seconds, spread=0.004, workflow=workflow, **more)
    with database.session() as session:
        run = session.scalars(select(Run).where(Run.key == key)).one()
        stored = {"url": "u", "sha256": "0" * 64, "bytes": 1, "created_ns": T0, "analyzed_ns": T0}
        summary = {"steps": 5, "buckets": {"productive": 1}, "claims": [claim]}
        trace = Trace(run_id=run.id, rank=0, summary=summary, **stored)
        session.add(trace)
        session.flush()
        saving = {"value": 6, "low": 5, "high": 8, "method": "measured", "unit": unit, "share_frac": 0.3}
        about = {"rule": "starved-input", "evidence": list(evidence), "created_ns": T0}
        session.add(Finding(run_id=run.id, trace_id=trace.id, **text, **saving, **about))
    ranking.rank_changed(database, now=RANKED)
    with database.session() as session:
        [found] = [one for one in list_opportunities(session) if one.workflow == workflow]
        return found.opportunity
