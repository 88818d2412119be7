"""Several ranks in one simulation, against the truth: programs that meet in a collective every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from device_program import GAP, RETURN, Command, Kernel, Recorded, Sync, Think
from device_program import run as run_alone
from made_trace import ORIGIN_NS
from reference_data import TRACES

from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.simulation.dependency_graph import MAX_ERROR_FRAC, DependencyGraph
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.graph.ranks import Ranks
from tightship_analyzers.trace import open as open_trace
from tightship_analyzers.trace.model import Trace

US = 1_000
STEPS = 4
TRANSFER = 80 * US
COMM = 20
Step = tuple[tuple[Command, ...], tuple[Command, ...]]
"""What a rank does before and after the step's all-reduce."""


def together(ranks: list[Step], clocks_ns: list[int], *, numbered: bool = True) -> list[Recorded]:
    """All ranks run their steps and meet; each writes times of its own clock."""
    machines = [Recorded() for _ in ranks]
    for machine, clock_ns in zip(machines, clocks_ns, strict=True):
        machine._now = clock_ns
    for number in range(STEPS):
        begins = []
        for machine, (before, _) in zip(machines, ranks, strict=True):
            machine._mark()
            begins.append(machine._now)
            for command in before:
                machine._do(command)
        arrived = [machine._started(COMM) for machine in machines]
        end = max(start - clock_ns for start, clock_ns in zip(arrived, clocks_ns, strict=True)) + TRANSFER
        for place, (machine, (_, after)) in enumerate(zip(machines, ranks, strict=True)):
            done = end + clocks_ns[place]
            args = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": len(ranks)}
            args |= {"Seq": number} if numbered else {}
            link = machine._call("cudaLaunchKernel")
            machine.made.on_device(arrived[place], done, name="ncclDevKernel", link=link, stream=COMM, **args)
            machine._free[COMM] = done
            for command in after:
                machine._do(command)
            machine._now += 1_000
            machine.made.step(number, begins[place], machine._now)
    for machine in machines:
        machine._mark()
        machine.made.step(STEPS, machine._now, machine._now + 1_000)
    return machines


def read(machines: list[Recorded], folder: Path) -> list[Trace]:
    traces = []
    for place, machine in enumerate(machines):
        (folder / str(place)).mkdir(parents=True)
        traces.append(machine.read(folder / str(place)))
    return traces


def joint(traces: list[Trace]) -> Ranks:
    return Ranks.of([(trace, Facts(trace)[DependencyGraph].graph) for trace in traces])


def step(think_us: int, kernel_us: int = 50) -> Step:
    return (Kernel(30 * US), Think(think_us * US, "work"), Kernel(kernel_us * US)), (Kernel(20 * US), Sync())


DLRM = TRACES / "param" / "dlrm_8rank"
CLOCKS = [5 * US, 5 * US + 777_777, 12_345]


def test_unchanged_it_is_what_every_rank_recorded(tmp_path: Path) -> None:
    machines = together([step(100), step(900), step(300)], CLOCKS)
    ranks = joint(read(machines, tmp_path))
    assert (len(ranks.meetings), ranks.apart) == (STEPS, None)
    for run, machine in zip(ranks.simulate(), machines, strict=True):
        begin = machine.bounds[0]
        assert (run.bounds_ns - run.bounds_ns[0]).tolist() == [bound - begin for bound in machine.bounds]
        assert (run.finished_ns - run.bounds_ns[0]).tolist() == [end - begin for end in machine.finished]


def test_clocks_are_aligned_by_the_ends_of_collectives(tmp_path: Path) -> None:
    traces = read(together([step(100), step(900), step(300)], CLOCKS), tmp_path)
    ranks = joint(traces)
    roots = [graph.base_ns - ORIGIN_NS for graph in ranks.graphs]
    on_one_clock = [root - clock for root, clock in zip(roots, CLOCKS, strict=True)]
    assert [int(shift - ranks.shift_ns[0]) for shift in ranks.shift_ns] == [
        one - on_one_clock[0] for one in on_one_clock
    ]


def test_a_straggler_that_is_quicker_frees_all_ranks(tmp_path: Path) -> None:
    machines = together([step(100), step(900), step(300)], CLOCKS)
    traces = read(machines, tmp_path)
    tid = Facts(traces[1])[Window].tid
    runs = joint(traces).simulate({1: Edits.without_host(tid, machines[1].at("work"))})
    # Without its work the third rank is the last one.
    truth = together([step(100), step(0), step(300)], CLOCKS)
    for run, machine, before in zip(runs, truth, machines, strict=True):
        length = int(run.finished_ns[-1] - run.finished_ns[0])
        assert length == pytest.approx(machine.window_ns, abs=STEPS * (GAP + RETURN))
        assert length < 0.5 * before.window_ns


def test_a_rank_that_waits_anyway_gains_nothing_alone(tmp_path: Path) -> None:
    machines = together([step(100), step(900)], CLOCKS[:2])
    traces = read(machines, tmp_path)
    ranks, tid = joint(traces), Facts(traces[0])[Window].tid
    edited = ranks.simulate({0: Edits.without_host(tid, machines[0].at("work"))})
    for run, before in zip(edited, ranks.simulate(), strict=True):
        assert abs(int(run.finished_ns[-1] - before.finished_ns[-1])) <= GAP


def test_a_faster_link_shortens_the_transfer_and_not_the_wait(tmp_path: Path) -> None:
    machines = together([step(100, 1), step(900, 1)], CLOCKS[:2])
    traces = read(machines, tmp_path)
    rows = [[row for row, kind in enumerate(trace.device_events.kind.tolist()) if kind == 3] for trace in traces]
    runs = joint(traces).simulate({rank: Edits.without_device(rows[rank], 0.5) for rank in range(2)})
    for run, machine in zip(runs, machines, strict=True):
        saved = machine.window_ns - int(run.finished_ns[-1] - run.finished_ns[0])
        assert saved == pytest.approx(STEPS * TRANSFER // 2, rel=0.05)


def test_collectives_without_numbers_meet_in_their_order(tmp_path: Path) -> None:
    ranks = joint(read(together([step(100), step(900)], CLOCKS[:2], numbered=False), tmp_path))
    assert (len(ranks.meetings), ranks.apart) == (STEPS, None)


def test_ranks_that_do_not_meet_are_simulated_apart(tmp_path: Path) -> None:
    traces = read([run_alone(step(100)[0], STEPS), run_alone(step(900)[0], STEPS)], tmp_path)
    ranks = joint(traces)
    assert ranks.meetings == () and "needs" in (ranks.apart or "")
    for one, trace in zip(ranks.simulate(), traces, strict=True):
        assert one.steps_ns.tolist() == Facts(trace)[DependencyGraph].steps_ns.tolist()


def test_what_each_rank_loses_by_waiting_for_the_others(tmp_path: Path) -> None:
    traces = read(together([step(100), step(900), step(300)], CLOCKS), tmp_path)
    ranks = joint(traces)
    lost = [
        int(Facts(trace)[DependencyGraph].saved_ns(ranks.without_waiting(rank)).sum()) / STEPS
        for rank, trace in enumerate(traces)
    ]
    assert lost == [pytest.approx(800 * US, rel=0.02), 0, pytest.approx(600 * US, rel=0.02)]


@pytest.mark.reference
def test_eight_recorded_ranks_together_are_what_each_recorded() -> None:
    traces = [open_trace(path) for path in sorted(DLRM.glob("*.json.gz"))]
    ranks = joint(traces)
    assert ranks.apart is None
    assert len(ranks.meetings) >= 5
    for one, trace in zip(ranks.simulate(), traces, strict=True):
        known = Facts(trace)[DependencyGraph]
        assert np.abs(one.steps_ns - known.steps_ns).max() <= MAX_ERROR_FRAC * known.steps_ns.min()
        assert (
            np.abs(one.finished_steps_ns - known.recorded.finished_steps_ns).max()
            <= MAX_ERROR_FRAC * known.steps_ns.min()
        )
