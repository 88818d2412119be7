"""Re-simulation against the truth: programs whose run without a part of them is known."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from device_program import CALL, GAP, RETURN, Backward, Command, Kernel, Read, Sync, Think, Wait, changed, run
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from made_trace import BACKWARD, MAIN

from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.graph.threads import AUTOGRAD_NODE
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace

US = 1_000
STEPS = 4
CALIBRATION = (Kernel(200 * US), Kernel(50 * US), Sync(), Kernel(20 * US), Sync())
"""Shows the machine's latency, its gap and what a wait costs, so that the medians are the constants."""


def known(trace: Trace) -> DependencyGraph:
    return Facts(trace)[DependencyGraph]


def rows(trace: Trace, tag: str) -> np.ndarray:
    return np.flatnonzero(trace.device_events.name == trace.names.id(tag))


def saved_and_truth(
    step: tuple[Command, ...], tag: str, kind: str, folder: Path, share: float = 0.0, *, reported: bool = False
) -> tuple[int, int]:
    before = run(step, STEPS, reported=reported)
    after = run(changed(step, tag, share), STEPS)
    trace = before.read(folder)
    spans, edits = before.at(tag), Edits()
    for tid, thread in enumerate(trace.threads):
        if thread.tid not in (MAIN, BACKWARD):
            continue
        if kind == "sync":
            edits |= Edits.without_syncs(tid, spans)
        elif kind == "think" or share == 0:
            edits |= Edits.without_host(tid, spans)
    if kind == "kernel":
        edits |= Edits.without_device(rows(trace, tag), share)
    graph = known(trace)
    assert graph.mean_error_frac == 0, "unchanged it is the recording"
    return int(graph.saved_ns(edits).sum()), before.window_ns - after.window_ns


HOST_BOUND = (*CALIBRATION, Think(300 * US, "slow"), Kernel(20 * US), Think(50 * US), Kernel(20 * US), Sync())
DEVICE_BOUND = (*CALIBRATION, *(Kernel(300 * US, "heavy") for _ in range(4)), Think(100 * US, "hidden"), Sync())
SYNCED = (
    *CALIBRATION,
    Kernel(400 * US),
    Think(30 * US),
    Sync(7, "read"),
    Think(150 * US),
    Kernel(300 * US),
    Think(100 * US),
    Sync(),
)


@pytest.mark.parametrize(
    ("step", "tag", "kind", "share"),
    [
        (HOST_BOUND, "slow", "think", 0.0),
        (DEVICE_BOUND, "hidden", "think", 0.0),
        (DEVICE_BOUND, "heavy", "kernel", 0.5),
        (DEVICE_BOUND, "heavy", "kernel", 0.0),
        (SYNCED, "read", "sync", 0.0),
    ],
)
def test_what_goes_is_what_would_have_gone(
    tmp_path: Path, step: tuple[Command, ...], tag: str, kind: str, share: float
) -> None:
    saved, truth = saved_and_truth(step, tag, kind, tmp_path, share)
    assert abs(saved - truth) <= max(0.01 * truth, STEPS * (RETURN + GAP))


def test_host_time_that_the_device_hides_saves_nothing(tmp_path: Path) -> None:
    saved, truth = saved_and_truth(DEVICE_BOUND, "hidden", "think", tmp_path)
    assert saved == truth == 0


def test_a_shorter_kernel_stops_to_matter_where_the_host_becomes_the_limit(tmp_path: Path) -> None:
    step = (*CALIBRATION, Kernel(500 * US, "heavy"), Think(400 * US), Sync())
    saved, truth = saved_and_truth(step, "heavy", "kernel", tmp_path, 0.1)
    assert truth < STEPS * 450 * US, "not all of the kernel's time goes"
    assert saved == pytest.approx(truth, rel=0.02)


def test_two_syncs_inherit_each_others_wait_and_go_together(tmp_path: Path) -> None:
    step = (
        *CALIBRATION,
        Kernel(500 * US),
        Sync(7, "one"),
        Sync(7, "two"),
        Think(200 * US),
        Kernel(300 * US),
        Sync(),
    )
    before = run(step, STEPS)
    trace = before.read(tmp_path)
    tid, graph = Facts(trace)[Window].tid, known(trace)
    one, two = (Edits.without_syncs(tid, before.at(tag)) for tag in ("one", "two"))
    truth = before.window_ns - run(changed(changed(step, "one", 0), "two", 0), STEPS).window_ns
    assert abs(int(graph.saved_ns(one).sum())) <= STEPS * RETURN
    assert int(graph.saved_ns(one | two).sum()) == pytest.approx(truth, rel=0.05)
    assert truth > STEPS * 150 * US


@pytest.mark.parametrize("node", [f"{AUTOGRAD_NODE}MulBackward0", "MulBackward0", "torch::autograd::AccumulateGrad"])
def test_backward_time_reaches_the_thread_that_waits_for_it(tmp_path: Path, node: str) -> None:
    inner = (Think(80 * US), Kernel(20 * US), Think(200 * US, "hook"), Kernel(20 * US))
    step = (*CALIBRATION, Think(50 * US), Kernel(30 * US), Backward(inner), Think(40 * US), Sync())
    before, after = run(step, STEPS), run(changed(step, "hook", 0), STEPS)
    for event in before.made.events:
        if event["name"].startswith(AUTOGRAD_NODE):
            event["name"] = node
    trace = before.read(tmp_path)
    backward = next(tid for tid, thread in enumerate(trace.threads) if thread.tid == 101)
    graph = known(trace)
    assert graph.graph.counts.hand_overs == STEPS
    saved = int(graph.saved_ns(Edits.without_host(backward, before.at("hook"))).sum())
    assert saved == pytest.approx(before.window_ns - after.window_ns, rel=0.01)


def test_a_copy_to_pageable_memory_holds_the_host(tmp_path: Path) -> None:
    step = (*CALIBRATION, Kernel(400 * US), Read(10 * US, "read"), Think(200 * US), Kernel(100 * US), Sync())
    before = run(step, STEPS)
    trace = before.read(tmp_path)
    edits = Edits.without_syncs(Facts(trace)[Window].tid, before.at("read"))
    # Pinned and asynchronous: the copy stays, the host goes on.
    truth = before.window_ns - run([Kernel(c.ns, c.tag) if isinstance(c, Read) else c for c in step], STEPS).window_ns
    assert int(known(trace).saved_ns(edits).sum()) == pytest.approx(truth, abs=STEPS * (CALL + RETURN))
    assert truth > STEPS * 150 * US


def test_a_side_stream_holds_the_main_one(tmp_path: Path) -> None:
    step = (
        *CALIBRATION,
        Kernel(100 * US),
        Wait(20, 7),
        Kernel(400 * US, "reduce", 20),
        Wait(7, 20),
        Kernel(50 * US),
        Sync(),
    )
    saved, truth = saved_and_truth(step, "reduce", "kernel", tmp_path, 0.25)
    assert saved == pytest.approx(truth, rel=0.02)
    assert truth > STEPS * 250 * US


def test_a_kernel_that_is_gone_leaves_its_wait_and_no_gap(tmp_path: Path) -> None:
    step = (*CALIBRATION, Wait(20, 7), Kernel(50 * US, "reduce", 20), Wait(7, 20), Kernel(US, "add"), Sync(7), Sync())
    saved, truth = saved_and_truth(step, "add", "kernel", tmp_path, reported=True)
    # The stream still waits for the other one, and whoever waits for the stream does, too.
    assert saved == truth == STEPS * (US + GAP)


def test_kernels_that_are_launched_together_need_no_launch_of_their_own(tmp_path: Path) -> None:
    many = tuple(part for _ in range(20) for part in (Kernel(2 * US, "tiny"), Think(8 * US, "dispatch")))
    before = run((*CALIBRATION, *many, Sync()), STEPS)
    trace = before.read(tmp_path)
    tid = Facts(trace)[Window].tid
    later = np.setdiff1d(rows(trace, "tiny"), rows(trace, "tiny")[::20])
    launches = trace.launches.take(trace.device_events.launch[later])
    edits = Edits.launched_together(later) | Edits.without_host(
        tid, before.at("dispatch") | Intervals.of_table(launches)
    )
    fused = run((*CALIBRATION, Kernel(40 * US), Sync()), STEPS)
    assert int(known(trace).saved_ns(edits).sum()) == pytest.approx(before.window_ns - fused.window_ns, rel=0.03)


def test_what_is_launched_together_still_comes_after_what_its_thread_waited_for(tmp_path: Path) -> None:
    tiny, late = (
        (Kernel(2 * US, "tiny"), Think(8 * US, "dispatch")),
        (Kernel(2 * US, "late"), Think(8 * US, "dispatch")),
    )
    # The host waits for the other stream, not for its own, and goes on.
    around = (Kernel(600 * US, "reduce", 20), *tiny * 5, Sync(20))
    before = run((*CALIBRATION, *around, *late * 10, Sync()), STEPS)
    trace = before.read(tmp_path)
    tid, joined = Facts(trace)[Window].tid, rows(trace, "late")
    launches = trace.launches.take(trace.device_events.launch[joined])
    edits = Edits.launched_together(joined) | Edits.without_host(
        tid, before.at("dispatch") | Intervals.of_table(launches)
    )
    fused = run((*CALIBRATION, *around, Kernel(20 * US), Sync()), STEPS)
    assert int(known(trace).saved_ns(edits).sum()) == pytest.approx(before.window_ns - fused.window_ns, rel=0.1)


LENGTHS = st.integers(1, 400).map(lambda us: us * US)
LATE = st.integers(0, 3 * US)
THINKS = st.builds(Think, LENGTHS, st.sampled_from(["", "think"]))
KERNELS = st.builds(Kernel, LENGTHS, st.sampled_from(["gemm", "kernel"]))
SYNCS = st.builds(Sync, st.sampled_from([None, 7]), st.sampled_from(["", "sync"]))
READS = st.builds(Read, st.integers(1, 40).map(lambda us: us * US))
SIDE = st.builds(
    lambda side, main: (Wait(20, 7), side, Wait(7, 20), main),
    st.builds(Kernel, LENGTHS, st.sampled_from(["reduce", "kernel"]), st.just(20)),
    KERNELS,
)
PREFETCH = st.builds(lambda side: (Wait(20, 7), side), st.builds(Kernel, LENGTHS, st.just("reduce"), st.just(20)))
BACKWARD_PASS = st.lists(st.one_of(THINKS, KERNELS), min_size=1, max_size=6).map(
    lambda inner: (Backward(tuple(inner)),)
)
BODIES = st.lists(
    st.one_of(
        *(one.map(lambda command: (command,)) for one in (THINKS, KERNELS, SYNCS, READS)), SIDE, PREFETCH, BACKWARD_PASS
    ),
    min_size=1,
    max_size=8,
).map(lambda groups: tuple(command for group in groups for command in group))


KINDS = st.sampled_from(["think", "kernel", "sync"])


def shown(step: tuple[Command, ...], reported: bool) -> tuple[Command, ...]:
    """A program whose trace shows what is waited for: recorded, or as there is one stream, or as calls wait for all.
    Elsewhere it is guessed, and two streams that end at about the same time cannot be distinguished."""
    if reported or not any(isinstance(one, Wait) for one in step):
        return step
    return tuple(replace(one, stream=None) if isinstance(one, Sync) else one for one in step)


@given(BODIES, KINDS, st.booleans())
@examples(100)
def test_any_program_without_any_part_of_it(body: tuple[Command, ...], kind: str, reported: bool) -> None:
    step = shown((*CALIBRATION, *body, Sync()), reported)
    with tempfile.TemporaryDirectory() as folder:
        saved, truth = saved_and_truth(step, kind, kind, Path(folder), reported=reported)
    # Exact, except for the call's own time where it waited and now does not: at most as long as it returned after the
    # wait. A backward pass of no length at all still takes the machine 1 ns.
    waits = sum(isinstance(one, Sync | Read) for one in step) if kind != "think" else 0
    assert abs(saved - truth) <= STEPS * (waits * (RETURN - CALL) + len(body)), (saved, truth)


@given(BODIES, st.lists(LATE, min_size=80, max_size=80), KINDS, st.booleans())
@examples(60)
def test_launches_that_are_not_alike(body: tuple[Command, ...], late: list[int], kind: str, reported: bool) -> None:
    delays = iter(late)

    def delayed(commands: tuple[Command, ...]) -> tuple[Command, ...]:
        return tuple(
            replace(one, late=next(delays))
            if isinstance(one, Kernel)
            else Backward(delayed(one.commands))
            if isinstance(one, Backward)
            else one
            for one in commands
        )

    step = shown(delayed((*CALIBRATION, *body, Sync())), reported)
    with tempfile.TemporaryDirectory() as folder:
        saved, truth = saved_and_truth(step, kind, kind, Path(folder), reported=reported)
    kernels = len(late) - len(list(delays))
    # What did not hold anything up in the recording is known by its median only.
    assert abs(saved - truth) <= STEPS * (RETURN + kernels * 3 * US), (saved, truth)
