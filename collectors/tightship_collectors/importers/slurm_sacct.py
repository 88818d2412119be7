"""Slurm's accounting: `sacct --parsable2`, and the MIT Supercloud CSV, which has the columns of Slurm's database.

[Note: which jobs] Jobs that were allocated GPUs and have ended are runs. Steps are parts of jobs; jobs without GPUs
hold no device; jobs that wait or run have no device time yet, or not all of it: these are counted. Slurm says how many
GPUs of which nodes a job had, not which ones.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tightship_collectors.importers.hostlist import expand
from tightship_collectors.importers.lines import Table
from tightship_collectors.importers.source import NO_NAME, HeldDevices, Options, Refused, Source, unfit_name
from tightship_collectors.importers.times import decimal_of, time_ns
from tightship_platform.results.imported import ImportedDevice, ImportedRun
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import FleetFormat, RunState

SACCT = ("JobID", "State", "Start", "End", "AllocTRES")
SUPERCLOUD = ("id_job", "state", "time_start", "time_end", "tres_alloc", "nodelist")
MAX_GPUS = 100_000
STATES: dict[str, RunState | None] = {
    "COMPLETED": RunState.FINISHED,
    "FAILED": RunState.FAILED,
    "CANCELLED": RunState.CANCELLED,
    "PREEMPTED": RunState.CANCELLED,
    "REVOKED": RunState.CANCELLED,
    "TIMEOUT": RunState.TIMEOUT,
    "DEADLINE": RunState.TIMEOUT,
    "OUT_OF_MEMORY": RunState.OUT_OF_MEMORY,
    "NODE_FAIL": RunState.LOST,
    "BOOT_FAIL": RunState.LOST,
    **dict.fromkeys(("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING"), None),
}
"""Slurm's states; None: it has not ended. PREEMPTED and REVOKED are ends that the scheduler chose."""
_CODES = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED"),
    *("TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
)
"""Numbers of states in Slurm's database (`enum job_states` of slurm.h)."""
_COUNT = re.compile(r"(\d{1,9})$")
_EXIT = re.compile(r"(\d{1,3}):(\d{1,3})$")
_NO_TIME = ("", "0", "None", "Unknown")
"""In place of a time; jobs that were held back when they were submitted have no time at which they were eligible."""
_NOT_YET = "a job that has not ended"
_NO_GPU = "a job without GPUs"
_STEP = "a step of a job"
_NAMELESS = "unnamed"


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A row of either table, as text."""

    id: str
    natural: str
    """What names this execution of it."""
    state: str
    start: str
    end: str
    gpus: dict[str, int]
    nodes: str
    name: str
    user: str
    account: str
    labels: dict[str, str]
    submitted: str = ""
    eligible: str = ""
    elapsed: str = ""
    exit_code: str = ""


def open_source(path: Path, options: Options) -> Source:
    """A table that sacct wrote, or the Supercloud CSV.

    :raises Invalid: it is neither.
    """
    refused = Refused()
    wanted = SUPERCLOUD if _is_supercloud(path) else SACCT
    what = "output of `sacct --parsable2` with a head, or the MIT Supercloud CSV"
    table = Table(path, wanted, refused, what, options.meter)
    is_sacct = wanted is SACCT
    source = Source(
        format=FleetFormat.SLURM_SACCT,
        name="slurm" if is_sacct else "mit-supercloud",
        items=iter(()),
        refused=refused,
        names_devices=False,
        assumptions=["a job holds its GPUs from its start to its end, also while it is suspended"],
    )
    source.assumptions.append(
        "Slurm says how many GPUs of its nodes a job had, not which: devices are not counted, and those of a job on "
        "several nodes are taken to be spread evenly"
    )
    source.assumptions.append(
        "Slurm does not say what a job saved: all that a job did which failed or timed out, or whose node failed, "
        "counts as lost"
    )
    if is_sacct and options.zone is None:
        source.assumptions.append("times without a zone are UTC; --zone says otherwise")
    if not is_sacct:
        source.assumptions.append("ids in the file are lossy floats: each row is another job")
    source.items = _runs(table, source, _sacct_job if is_sacct else _supercloud_job, options)
    return source


def _is_supercloud(path: Path) -> bool:
    probe = Refused()
    table = Table(path, (), probe, "a table")
    return "tres_alloc" in table.columns


def _runs(
    table: Table, source: Source, job_of: Callable[[dict[str, str]], _Job | str], options: Options
) -> Iterator[ImportedRun]:
    seen: set[str] = set()
    held = HeldDevices()
    others: Counter[str] = Counter()
    for row in table:
        source.rows += 1
        job = job_of(row)
        if isinstance(job, str):
            if job == _STEP:
                others[job] += 1
            else:
                source.refused.add(table.place, job, "|".join(row.values())[:200])
            continue
        if job.state not in STATES:
            source.refused.add(table.place, "a state that Slurm does not have", job.state)
        elif STATES[job.state] is None:
            others[_NOT_YET] += 1
        elif not job.gpus:
            others[_NO_GPU] += 1
        elif isinstance(made := _run(job, options), str):
            source.refused.add(table.place, made, f"{job.id} {job.start} – {job.end}")
        elif (unfit := unfit_name(_names_of(made))) is not None:
            source.refused.add(table.place, NO_NAME, unfit)
        elif job.natural in seen:
            source.refused.add(table.place, "a job that stands here already", job.id)
        elif not held.take(job.id, made.start_ns, made.end_ns):
            source.refused.add(table.place, "a job that runs at this time already", job.id)
        else:
            seen.add(job.natural)
            yield made
    source.refused.counts |= others


def _sacct_job(row: dict[str, str]) -> _Job | str:
    job_id = row.get("JobIDRaw") or row["JobID"]
    if "." in row["JobID"] or "." in job_id:
        return _STEP
    if not job_id:
        return "no job id"
    gpus = _gpus(row["AllocTRES"])
    if isinstance(gpus, str):
        return gpus
    states = row["State"].split()
    labels = {name.lower(): row[name] for name in ("Partition", "QOS", "Cluster") if row.get(name)}
    return _Job(
        id=job_id,
        natural=f"{job_id}@{row['Start']}",
        state=states[0].rstrip("+") if states else "",
        start=row["Start"],
        end=row["End"],
        gpus=gpus,
        nodes=row.get("NodeList", ""),
        name=row.get("JobName", ""),
        user=row.get("User", ""),
        account=row.get("Account", ""),
        labels=labels,
        submitted=row.get("Submit", ""),
        eligible=row.get("Eligible", ""),
        elapsed=row.get("ElapsedRaw", ""),
        exit_code=row.get("ExitCode", ""),
    )


def _supercloud_job(row: dict[str, str]) -> _Job | str:
    gpus = _gpus(row["tres_alloc"], numbered=True)
    if isinstance(gpus, str):
        return gpus
    code = row["state"]
    text = "\0".join(row.values())
    natural = hashlib.sha256(text.encode()).hexdigest()[:24]
    labels = {name: row[name] for name in ("partition", "job_type") if row.get(name)}
    return _Job(
        id=natural,
        natural=natural,
        state=_CODES[int(code)] if code.isdecimal() and len(code) <= 2 and int(code) < len(_CODES) else code,
        start=row["time_start"],
        end=row["time_end"],
        gpus=gpus,
        nodes=",".join(re.findall(r"[A-Za-z0-9_.-]+", row["nodelist"])),
        name=row.get("job_type", ""),
        submitted=row.get("time_submit", ""),
        eligible=row.get("time_eligible", ""),
        user=row.get("id_user", ""),
        account="",
        labels=labels,
    )


def _gpus(tres: str, *, numbered: bool = False) -> dict[str, int] | str:
    """GPUs by model, of what was allocated; text: what is wrong with it.

    Slurm counts all as `gres/gpu` and again by model as `gres/gpu:MODEL`; in the Supercloud CSV 1001 and 1002 are
    models.
    """
    models = {"1001": "tesla", "1002": "volta"}
    found: dict[str, int] = {}
    for part in filter(None, tres.split(",")):
        name, _, value = part.partition("=")
        if name not in models if numbered else not (name == "gres/gpu" or name.startswith("gres/gpu:")):
            continue
        match = _COUNT.match(value)
        if match is None or int(value) > MAX_GPUS:
            return "a number of GPUs that cannot be"
        model = models[name] if numbered else name.partition(":")[2]
        if model in found:
            return "a number of GPUs that stands there twice"
        if int(value):
            found[model] = int(value)
    total = found.pop("", 0)
    named = sum(found.values())
    if total and named and total != named:
        return "a number of GPUs that its models do not sum to"
    return found or ({"GPU": total} if total else {})


def _run(job: _Job, options: Options) -> ImportedRun | str:
    start_ns, end_ns = time_ns(job.start, options.zone), time_ns(job.end, options.zone)
    if isinstance(start_ns, str):
        return start_ns
    if isinstance(end_ns, str):
        return end_ns
    if end_ns < start_ns:
        return "an end before the start"
    elapsed_s = decimal_of(job.elapsed)
    if elapsed_s is not None and elapsed_s * NS_PER_S != end_ns - start_ns:
        return "ElapsedRaw is not the time from start to end"
    eligible_ns = _eligible_ns(job, start_ns, options)
    if isinstance(eligible_ns, str):
        return eligible_ns
    nodes = expand(job.nodes)
    if nodes is None:
        return "a list of nodes that cannot be read"
    state = STATES[job.state]
    assert state is not None
    ended = _EXIT.match(job.exit_code)
    exit_code = None if ended is None else int(ended[1]) or (128 + int(ended[2]) if int(ended[2]) else 0)
    whose = [part for part in (job.account, job.user, job.name or _NAMELESS) if part]
    return ImportedRun(
        id=job.natural,
        workflow="/".join(whose)[:180],
        state=state.value,
        start_ns=start_ns,
        end_ns=end_ns,
        devices=_devices(job, nodes, start_ns, end_ns),
        reason=None if state == RunState.FINISHED else f"Slurm: {job.state}",
        team=job.account or None,
        user=job.user or None,
        external_id=None if job.id == job.natural else job.id,
        exit_code=exit_code if exit_code is None or exit_code <= 255 else None,
        labels=job.labels,
        eligible_ns=eligible_ns,
    )


def _names_of(run: ImportedRun) -> Iterator[str | None]:
    yield from (run.id, run.workflow, run.team, run.user, run.external_id, *run.labels.values())
    yield from {text for one in run.devices for text in (one.host, one.name)}


def _eligible_ns(job: _Job, start_ns: int, options: Options) -> int | str | None:
    """When it began to wait: when it was eligible, else submitted. None: neither is known; text: what is wrong."""
    for text in (job.eligible, job.submitted):
        found = None if text in _NO_TIME else time_ns(text, options.zone)
        if isinstance(found, str):
            return found
        if found is not None:
            return found if found <= start_ns else "a start before it could start"
    return None


def _devices(job: _Job, nodes: list[str], start_ns: int, end_ns: int) -> list[ImportedDevice]:
    """Its GPUs, each under a name of the job's own, as nobody knows which they were."""
    models = [model for model, count in sorted(job.gpus.items()) for _ in range(count)]
    share = -(-len(models) // max(len(nodes), 1))
    return [
        ImportedDevice(
            host=nodes[number // share] if nodes else "",
            uuid=f"{job.natural}/{number}"[:200],
            name=model,
            spans=[[start_ns, end_ns]],
        )
        for number, model in enumerate(models)
    ]
