"""Chains of memory-bound kernels: elementwise operators, casts, reductions and norms that one stream did in a row.

[Note: what a fused kernel takes] Fused, what one kernel writes and the next one reads again stays in registers. Where
shapes are recorded, these tensors are known (`traffic`), and so are the bytes that are spared. Slowest: the results are
not read again, but all are still written, for somebody else (a residual, a backward) needs them; the bytes count at the
rate of the faster of the two kernels. Fastest: each tensor is moved once, at `REACHED_MEMORY_FRAC` of the memory's
rate. Expected: the middle between the fastest and neither reading nor writing those results. A norm or a softmax that
is one operator is fused already, and keeps its time.
Without shapes nothing shows that the kernels share tensors. Slowest: the chain as it is. Fastest: its longest kernel.
Expected: of the others two thirds go, for an operator on two tensors moves three, one of which remains to be read.
Calls alike in a row are a loop over tensors: none of them feeds the next.
No fused kernel is faster than the shortest one of its chain, which is mostly the fixed cost of a kernel.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.plain_attention import PlainAttention
from tightship_analyzers.facts.kernels.zero_grads import ZERO_GRAD
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.op_shapes import OpShapes
from tightship_analyzers.facts.roofline.slow_kernels import MIN_KERNEL_NS, REACHED_MEMORY_FRAC
from tightship_analyzers.facts.roofline.traffic import Moved, Traffic, moved_by, traffic_of
from tightship_analyzers.facts.window.optimizer_steps import OptimizerSteps
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools, Int64s

MEMORY_BOUND = re.compile(
    r"(?<!index_)elementwise_kernel|\breduce_kernel|CatArrayBatchedCopy|soft_?max|layer_?norm|RowwiseMoments"
    r"|group_?norm|batch_?norm|\bbn_[fb]w_|dropout_kernel",
    re.IGNORECASE,
)
"""Kernels that a compiler makes itself, and so can fuse."""
FUSED_ALREADY = re.compile(r"^triton|multi_tensor_apply|^void vllm::|rmsnorm", re.IGNORECASE)
"""Kernels of compilers, of lists of tensors, and fused ones of serving engines."""
ENGINE = re.compile(
    r"rms_?norm|rotary|rope_|act_and_mul|reshape_and_cache|topk|routing|bitmatrix|scatter|finalize|quantize|align_block",
    re.IGNORECASE,
)
"""Kernels of serving engines around products and attention. In a graph that is replayed, runs of them are chains where
each takes little more than a kernel that does nothing."""
EMPTY_FRAC = 0.05
"""Of a window's kernels, share that is as good as empty: the longest of these shows the fixed cost of a kernel."""
MOST_EMPTY = 2
"""Times that cost: up to it most of a kernel's time is that cost."""
TORCH = ("aten::", "torch::autograd::")
ACCUMULATE = "torch::autograd::AccumulateGrad"
"""The node that adds up gradients of parameters, between the nodes of the backward pass."""
MAX_GAP_NS = 200_000
"""What lies further apart does not belong together."""
MOST_ALIKE = 2
"""A call that comes more often in a chain is the next turn of a loop: one chain for each head, or parameter."""
WORTH_FRAC = 0.1
"""A chain that gets shorter by less is as good as fused."""
SHARED_FRAC = 2 / 3
"""Of a chain without its longest kernel, expected to go where shapes are not recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Those within the window that would get shorter by `WORTH_FRAC`; each has at least two different calls."""

    needs: ClassVar[Needs] = (KernelOps,)

    rows: Int64s
    """(kernels,) in `KernelOps`, chain by chain, each in order of start."""
    first: Int64s
    """(chains + 1,) where in `rows` each begins, and the end of the last."""
    device_ns: Int64s
    """(chains,)"""
    expected_ns: Int64s
    """(chains,) what one fused kernel takes; see [Note: what a fused kernel takes]."""
    fastest_ns: Int64s
    slowest_ns: Int64s
    sized: Bools
    """(chains,) the tensors of most of its time are known."""

    def __len__(self) -> int:
        return len(self.device_ns)

    @property
    def number(self) -> Int64s:
        """(kernels,) of which chain each is."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))

    def longest(self, kernels: KernelOps) -> Int64s:
        """(chains,) the longest kernel of each: row in `KernelOps`."""
        order = np.lexsort((-kernels.events.dur_ns[self.rows], self.number))
        return self.rows[order[self.first[:-1]]]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs an accelerator; shapes and the device's rates make the times sharper."""
        kernels = facts[KernelOps]
        rows, runs = _runs(facts)
        calls = _calls(facts, rows, runs)
        kinds, code = _kinds(facts, rows[calls[:-1]])
        dur_ns = np.append(0, np.cumsum(kernels.events.dur_ns[rows]))
        call_ns = np.diff(dur_ns[calls])
        chains = _chains(code, np.searchsorted(calls, runs))
        times = _times(facts, chains, code, call_ns, kinds)
        now, expected, fastest, slowest, sized = times
        worth = np.where(sized, slowest, expected) <= (1 - WORTH_FRAC) * now
        chains = [chain for chain, is_worth in zip(chains, worth.tolist(), strict=True) if is_worth]
        inside = np.zeros(len(rows), dtype=np.bool_)
        sizes = [0]
        for begin, end in chains:
            inside[calls[begin] : calls[end]] = True
            sizes.append(int(calls[end] - calls[begin]))
        return cls(
            rows=rows[inside],
            first=np.cumsum(sizes, dtype=np.int64),
            device_ns=now[worth],
            expected_ns=expected[worth],
            fastest_ns=fastest[worth],
            slowest_ns=slowest[worth],
            sized=sized[worth],
        )


def _runs(facts: Facts) -> tuple[Int64s, Int64s]:
    """Rows in `KernelOps` of memory-bound kernels with nothing else between them on their stream, run by run; and where
    each run begins, and the end of the last."""
    kernels, names = facts[KernelOps], facts.trace.names
    events = kernels.events
    member = names.mask(
        events.name, lambda name: MEMORY_BOUND.search(name) is not None and FUSED_ALREADY.search(name) is None
    )
    member = (member & _of_torch(facts) & ~_elsewhere(facts)) | _empty(facts)
    member &= events.kind == EventKind.KERNEL
    attention = facts.find(PlainAttention)
    if attention is not None:
        member[attention.rows] = False
    ops = facts.trace.host_ops
    accumulating = Intervals.of_table(ops.take(names.mask(ops.name, lambda name: ACCUMULATE in name)))
    shown = np.flatnonzero(~_launched_in(facts, accumulating) & (events.kind != EventKind.SET))
    order = shown[np.lexsort((events.start_ns[shown], events.stream[shown], events.device[shown]))]
    same = (np.diff(events.stream[order]) == 0) & (np.diff(events.device[order]) == 0)
    near = same & (events.start_ns[order][1:] - events.end_ns[order][:-1] <= MAX_GAP_NS)
    chosen = np.flatnonzero(member[order])
    rows = order[chosen]
    joined = (np.diff(chosen) == 1) & near[chosen[:-1]] if len(chosen) else np.zeros(0, dtype=np.bool_)
    return rows, np.append(np.flatnonzero(np.append(True, ~joined)), len(rows)) if len(rows) else np.zeros(1, np.int64)


def _of_torch(facts: Facts) -> Bools:
    """(events,) launched by torch's own operators: a compiler cannot look into those of extensions. In a graph that is
    replayed the launch alone is known; where not even that is, it may be the optimizer's."""
    kernels, ops = facts[KernelOps], facts.trace.host_ops
    foreign = facts.trace.names.mask(ops.name, lambda name: "::" in name and not name.startswith(TORCH))
    known = (kernels.op >= 0) | (kernels.events.launch >= 0)
    result: Bools = known & ~np.append(foreign, False)[kernels.op]
    return result


def _empty(facts: Facts) -> Bools:
    """(events,) of a serving engine, replayed, and as good as empty."""
    kernels = facts[KernelOps]
    events = kernels.events
    took_ns = events.dur_ns[events.kind == EventKind.KERNEL]
    replayed = (kernels.op < 0) & (events.launch >= 0)
    result: Bools = replayed & facts.trace.names.mask(events.name, lambda name: ENGINE.search(name) is not None)
    if result.any():
        most_ns = min(MOST_EMPTY * float(np.quantile(took_ns, EMPTY_FRAC)), MIN_KERNEL_NS)
        result &= events.dur_ns <= most_ns
    return result


def _elsewhere(facts: Facts) -> Bools:
    """(events,) launched by the optimizer or by zero_grad, which have their own rules."""
    optimizer = facts.find(OptimizerSteps)
    calls = Intervals.of_table(facts.trace.annotations_named(ZERO_GRAD))
    if optimizer is not None:
        calls = calls | Intervals.of_table(optimizer.calls)
    return _launched_in(facts, calls)


def _launched_in(facts: Facts, calls: Intervals) -> Bools:
    events, launches = facts[KernelOps].events, facts.trace.launches
    launched = events.launch >= 0
    result = np.zeros(len(events), dtype=np.bool_)
    result[launched] = calls.contains(launches.start_ns[events.launch[launched]])
    return result


def _calls(facts: Facts, rows: Int64s, runs: Int64s) -> Int64s:
    """Where in `rows` each call of an operator begins, and the end of the last; a kernel of which the operator is not
    known, as in a graph that is replayed, is its own."""
    op = own_operators(facts, rows)
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = (np.diff(op) != 0) | (op[1:] < 0)
    begins[runs[:-1]] = True
    return np.append(np.flatnonzero(begins), len(rows))


def own_operators(facts: Facts, rows: Int64s) -> Int64s:
    """(rows,) row in `Trace.host_ops` of the operator that launched each kernel, a row of `KernelOps`; -1: not known,
    or a graph that launched many."""
    op, ops = facts[KernelOps].op[rows], facts.trace.host_ops
    own = facts.trace.names.mask(ops.name, lambda name: name.startswith(TORCH[0]))
    return np.where(np.append(own, False)[op], op, -1)


def _kinds(facts: Facts, rows: Int64s) -> tuple[list[Traffic | None], Int64s]:
    """What each kind of call moves, and the kind of each call: operator, shapes and first kernel."""
    kernels, ops = facts[KernelOps], facts.trace.host_ops
    op = own_operators(facts, rows)
    name, shapes = np.append(ops.name, -1)[op], np.append(ops.shapes, -1)[op]
    _, example, code = np.unique(
        np.stack((name, shapes, kernels.events.name[rows])), axis=1, return_index=True, return_inverse=True
    )
    recorded = facts.find(OpShapes)
    traffic = [
        traffic_of(facts.trace.names[int(ops.name[row])], recorded.of(ops, row)) if recorded and row >= 0 else None
        for row in op[example].tolist()
    ]
    return traffic, np.asarray(code, dtype=np.int64).reshape(-1)


def _chains(code: Int64s, runs: Int64s) -> list[tuple[int, int]]:
    """First and last call (exclusive) of each chain."""
    chains: list[tuple[int, int]] = []
    known: dict[bytes, list[tuple[int, int]]] = {}
    for begin, end in itertools.pairwise(runs.tolist()):
        if end - begin < 2:
            continue
        key = code[begin:end].tobytes()
        if key not in known:
            known[key] = _split(code[begin:end].tolist())
        chains += [(begin + first, begin + last) for first, last in known[key]]
    return chains


def _split(code: list[int]) -> list[tuple[int, int]]:
    """The same of one run."""
    chains, begin = [], 0
    times: Counter[int] = Counter()
    for at, kind in enumerate(code):
        if at > begin and kind == code[at - 1]:
            continue
        if times[kind] == MOST_ALIKE:
            chains.append((begin, at))
            begin, times = at, Counter()
        times[kind] += 1
    chains.append((begin, len(code)))
    return [(first, last) for first, last in chains if len(set(code[first:last])) > 1]


def _times(
    facts: Facts, chains: list[tuple[int, int]], code: Int64s, call_ns: Int64s, kinds: list[Traffic | None]
) -> tuple[Int64s, Int64s, Int64s, Int64s, Bools]:
    """(chains,) now, expected, fastest and slowest, and whether by tensors; see [Note: what a fused kernel takes]."""
    model = facts.find(DeviceModel)
    rate = model.device.memory_bytes_per_s * REACHED_MEMORY_FRAC if model is not None else None
    moved: dict[bytes, Moved] = {}
    table = np.zeros((5, len(chains)), dtype=np.int64)
    for number, (begin, end) in enumerate(chains):
        each, codes = call_ns[begin:end], code[begin:end]
        key = codes.tobytes()
        if key not in moved:
            alike = codes.tolist()
            moved[key] = moved_by([kinds[kind] for kind in alike], alike)
        table[:, number] = _times_of(each.tolist(), codes.tolist(), moved[key], rate)
    now, expected, fastest, slowest, sized = table
    return now, expected, fastest, slowest, sized > 0


def _times_of(each_ns: list[int], code: list[int], moved: Moved, rate: float | None) -> tuple[int, int, int, int, bool]:
    total, shortest = sum(each_ns), min(each_ns)
    sized_ns = sum(ns for ns, size in zip(each_ns, moved.call_bytes, strict=True) if size)
    if 2 * sized_ns < total:
        alike = itertools.groupby(zip(code, each_ns, strict=True), _kind)
        longest = max(sum(ns for _, ns in calls) for _, calls in alike)
        return total, round(total - SHARED_FRAC * (total - longest)), longest, total, False
    pace = [ns / size if size else 0.0 for ns, size in zip(each_ns, moved.call_bytes, strict=True)]
    spared = sum(link.bytes * min(pace[link.maker], pace[link.reader]) for link in moved.links)
    least = moved.least / rate * 1e9 if rate else sized_ns * moved.least / sum(moved.call_bytes)
    fused = sum(each_ns[number] for number in moved.fused)
    careful = max(shortest, fused, total - 2 * spared)
    fastest = min(careful, max(shortest, fused, least))
    return total, round((careful + fastest) / 2), round(fastest), max(round(careful), round(total - spared)), True


def _kind(call: tuple[int, int]) -> int:
    return call[0]
