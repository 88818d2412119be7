"""Step counters of control files become records whose sum is the counter, whatever happens in between."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from tightship_collectors.jobs.control_file import OFF_STEPS, SIZE, rank_path
from tightship_collectors.jobs.live_run import HostRun, RankView
from tightship_collectors.jobs.step_reader import BUCKET_NS, MAX_RANK, MAX_STEPS, RunSteps, StepReader
from tightship_platform.results.codec import decode, fields_of
from tightship_platform.units import NS_PER_S
from tightship_platform.wire import StepRecord

T0 = 1_700_000_000 * NS_PER_S  # the start of a bucket
S = NS_PER_S


def on_disk(reader: StepReader) -> dict[str, RunSteps]:
    """Its counters as a restarted agent reads them: JSON in between."""
    return decode(dict[str, RunSteps], json.loads(json.dumps(reader.snapshot(), default=fields_of)))


class Job:
    """A run directory whose control files the test writes as a job would."""

    def __init__(self, folder: Path, start_ns: int = T0) -> None:
        self.run_dir = folder / "run"
        (self.run_dir / "ranks").mkdir(parents=True)
        self.start_ns = start_ns
        self.state: dict[int, tuple[int, int, int, int]] = {}

    def step(self, pid: int, steps: int, at_ns: int, rank: int = 0) -> None:
        first = self.state[pid][2] if pid in self.state and self.state[pid][2] else (at_ns if steps else 0)
        self.state[pid] = (rank, steps, first, at_ns if steps else 0)
        content = bytearray(SIZE)
        struct.pack_into("<QQQ", content, OFF_STEPS, *self.state[pid][1:])
        if self.run_dir.exists() and not rank_path(self.run_dir, pid).exists():
            rank_path(self.run_dir, pid).write_bytes(bytes(SIZE))
        with rank_path(self.run_dir, pid).open("r+b") as file:
            file.write(content)

    def view(self, *pids: int, counted: bool = True) -> HostRun:
        ranks = tuple(
            RankView(
                rank=rank,
                pid=pid,
                guard=True,
                steps=steps if counted else None,
                first_step_ns=first or None,
                last_step_ns=last or None,
                is_rank=True,
            )
            for pid, (rank, steps, first, last) in self.state.items()
            if pid in pids
        )
        return HostRun(run="r", run_dir=self.run_dir, uid=os.getuid(), pids=pids, ranks=ranks, start_ns=self.start_ns)


def merge(records: Iterable[StepRecord]) -> dict[tuple[int, int], StepRecord]:
    """What the server makes of them: of two records of one bucket the fuller one counts."""
    rows: dict[tuple[int, int], StepRecord] = {}
    for record in records:
        old = rows.get((record.rank, record.time_ns))
        if old is None or record.steps >= old.steps:
            rows[record.rank, record.time_ns] = record
    return rows


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_steps_go_to_the_bucket_in_which_they_were_made(job: Job) -> None:
    reader = StepReader()
    for second, steps in ((1, 3), (5, 10), (9, 18), (11, 20), (12, 22)):
        job.step(1, steps, T0 + second * S)
        reader.update(T0 + second * S, [job.view(1)])
    assert [vars(r) for r in sorted(reader.drain(), key=lambda r: r.time_ns)] == [
        {
            "run": "r",
            "rank": 0,
            "time_ns": T0,
            "width_ns": BUCKET_NS,
            "steps": 18,
            "first_step_ns": T0 + S,
            "last_step_ns": T0 + 9 * S,
        },
        {
            "run": "r",
            "rank": 0,
            "time_ns": T0 + 10 * S,
            "width_ns": BUCKET_NS,
            "steps": 4,
            "first_step_ns": T0 + S,
            "last_step_ns": T0 + 12 * S,
        },
    ]
    assert reader.drain() == []
    job.step(1, 23, T0 + 13 * S)
    reader.update(T0 + 13 * S, [job.view(1)])
    (again,) = reader.drain()  # the running bucket, fuller than before
    assert (again.time_ns, again.steps) == (T0 + 10 * S, 5)


def test_buckets_are_as_wide_as_they_are_set(job: Job) -> None:
    reader = StepReader(2 * S)
    for second, steps in ((1, 3), (2, 5), (3, 9), (5, 10)):
        job.step(1, steps, T0 + second * S)
        reader.update(T0 + second * S, [job.view(1)])
    found = sorted(reader.drain(), key=lambda record: record.time_ns)
    assert [(one.time_ns - T0, one.width_ns, one.steps) for one in found] == [
        (0, 2 * S, 3),
        (2 * S, 2 * S, 6),
        (4 * S, 2 * S, 1),
    ]


def test_a_step_seen_late_stays_in_its_bucket(job: Job) -> None:
    reader = StepReader()
    job.step(1, 1, T0 + 8 * S)
    reader.update(T0 + 8 * S, [job.view(1)])
    job.step(1, 5, T0 + 9 * S)
    reader.update(T0 + 11 * S, [job.view(1)])
    (record,) = reader.drain()
    assert (record.time_ns, record.steps, record.last_step_ns) == (T0, 5, T0 + 9 * S)


def test_the_last_steps_are_read_after_the_run_directory_is_gone(job: Job) -> None:
    reader = StepReader()
    job.step(1, 7, T0 + S)
    job.step(2, 6, T0 + S, rank=1)
    reader.update(T0 + S, [job.view(1, 2)])
    reader.drain()
    job.step(1, 9, T0 + 2 * S)
    job.step(2, 9, T0 + 2 * S, rank=1)
    shutil.rmtree(job.run_dir)
    reader.update(T0 + 3 * S, [])
    assert {(r.rank, r.time_ns): r.steps for r in reader.drain()} == {(0, T0): 9, (1, T0): 9}
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if str(job.run_dir) in str(fd.resolve())]


def test_a_rank_that_is_restarted_goes_on_in_the_same_bucket(job: Job) -> None:
    reader = StepReader()
    job.step(1, 7, T0 + S)
    reader.update(T0 + S, [job.view(1)])
    job.step(1, 8, T0 + 2 * S)
    job.step(2, 2, T0 + 3 * S)
    reader.update(T0 + 3 * S, [job.view(2)])
    (record,) = reader.drain()
    assert record.steps == 10


def test_time_that_nobody_watched_is_one_wide_record(job: Job) -> None:
    """An agent that comes late, or again, knows how many steps were made but not when."""
    job.step(1, 1, T0 + 15 * S)
    job.step(1, 400, T0 + 62 * S)
    late = StepReader()
    late.update(T0 + 62 * S, [job.view(1)])
    (gap,) = late.drain()
    assert (gap.time_ns, gap.width_ns, gap.steps) == (T0 + 10 * S, 50 * S, 400)
    job.step(1, 405, T0 + 63 * S)
    late.update(T0 + 63 * S, [job.view(1)])
    (now,) = late.drain()
    assert (now.time_ns, now.width_ns, now.steps) == (T0 + 60 * S, BUCKET_NS, 5)
    snapshot = on_disk(late)
    job.step(1, 900, T0 + 95 * S)
    again = StepReader()
    again.restore(snapshot, [job.view(1)])
    again.update(T0 + 95 * S, [job.view(1)])
    (gap,) = again.drain()
    assert (gap.time_ns, gap.width_ns, gap.steps) == (T0 + 70 * S, 20 * S, 495)


def test_a_restart_within_a_bucket_loses_and_doubles_nothing(job: Job) -> None:
    first = StepReader()
    job.step(1, 10, T0 + S)
    first.update(T0 + S, [job.view(1)])
    sent = first.drain()
    snapshot = first.snapshot()
    job.step(1, 25, T0 + 6 * S)
    second = StepReader()
    second.restore(snapshot, [job.view(1)])
    second.update(T0 + 6 * S, [job.view(1)])
    sent += second.drain()
    assert {key: r.steps for key, r in merge(sent).items()} == {(0, T0): 25}


@pytest.mark.parametrize("seed", range(20))
def test_the_records_of_a_rank_sum_to_its_counter(job: Job, seed: int) -> None:
    """Any mixture of steps, idle time, stalls, batches and restarts of the agent."""
    chance = random.Random(seed)
    reader, sent, steps, now = StepReader(), [], 0, T0 + chance.randrange(40) * S
    for _ in range(200):
        now += chance.choice([S, S, S, S, 2 * S, 13 * S, 47 * S])
        if chance.random() < 0.7:
            steps += chance.randrange(30)
            job.step(1, steps, now - chance.randrange(2 * S))
        reader.update(now, [job.view(1)])
        if chance.random() < 0.3:
            sent += reader.drain()
        if chance.random() < 0.05:
            sent += reader.drain()
            snapshot = on_disk(reader)
            reader.close()
            reader = StepReader()
            reader.restore(snapshot, [job.view(1)])
    reader.update(now + S, [])
    rows = merge(sent + reader.drain())
    assert sum(row.steps for row in rows.values()) == steps
    ends = sorted((row.time_ns, row.time_ns + row.width_ns) for row in rows.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_what_a_job_invents_is_not_believed(job: Job) -> None:
    reader = StepReader()
    job.step(1, 5, T0 + S)
    job.state[1] = (0, 5, 1, T0 + 10_000 * S)  # first step in 1970, last one tomorrow
    reader.update(T0 + 2 * S, [job.view(1)])
    (record,) = reader.drain()
    assert (record.steps, record.first_step_ns, record.last_step_ns) == (5, None, None)
    job.state[1] = (0, MAX_STEPS + 1, 1, 1)
    reader.update(T0 + 3 * S, [job.view(1)])
    job.state[1] = (0, 2, 0, 0)  # and backwards
    reader.update(T0 + 4 * S, [job.view(1)])
    assert sum(r.steps for r in reader.drain()) == 0
    job.state[1] = (0, 4, 0, T0 + 5 * S)
    reader.update(T0 + 5 * S, [job.view(1)])
    (record,) = reader.drain()
    assert record.steps == 7  # two more than before, counted from where it restarted


def test_a_rank_that_cannot_be_is_left_out(job: Job) -> None:
    reader = StepReader()
    for pid, rank in ((1, -1), (2, MAX_RANK + 1), (3, MAX_RANK)):
        job.step(pid, 1, T0 + S, rank=rank)
    reader.update(T0 + S, [job.view(1, 2, 3)])
    assert [r.rank for r in reader.drain()] == [MAX_RANK]


def test_no_hook_no_record(job: Job) -> None:
    reader = StepReader()
    job.step(1, 0, T0)
    reader.update(T0 + S, [job.view(1, counted=False)])
    reader.update(T0 + 2 * S, [])
    assert reader.drain() == []


def test_a_control_file_that_is_swapped_or_cut_is_left_alone(job: Job, tmp_path: Path) -> None:
    reader = StepReader()
    job.step(1, 3, T0 + S)
    job.step(2, 3, T0 + S, rank=1)
    rank_path(job.run_dir, 2).unlink()
    rank_path(job.run_dir, 2).symlink_to("/etc/passwd")
    reader.update(T0 + S, [job.view(1, 2)])
    os.truncate(rank_path(job.run_dir, 1), 10)
    reader.update(T0 + 2 * S, [])
    assert {r.rank: r.steps for r in reader.drain()} == {0: 3, 1: 3}
