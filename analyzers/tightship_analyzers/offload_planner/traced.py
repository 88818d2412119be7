"""A profile from a trace of a run that tightship captured: layers from module calls, sizes from shapes.

The backward of an operator carries the sequence number of its forward, so each backward operator belongs to the layer
whose call made it. A gradient that is accumulated right after it belongs to a parameter of that layer, and its shape is
the parameter's. On a GPU the time of a layer is that of the kernels which its operators launched.
"""

from __future__ import annotations

import math
import os
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tightship_analyzers.facts.program.op_shapes import OpShapes
from tightship_analyzers.offload_planner.profile import LayerCost, Origin, Profile, RestCost, levelled
from tightship_analyzers.offload_planner.traced_layers import Layers, find_layers, within
from tightship_analyzers.trace.kineto.reader import open_trace
from tightship_analyzers.trace.model import NO_NAME, Int64s, Trace
from tightship_analyzers.trace.step_marks import OPTIMIZER
from tightship_offload.errors import PlanError
from tightship_offload.plan.model import Dtype, ModelSpec, Precision, Recompute

NODE = "autograd::engine::evaluate_function: "
ACCUMULATE = NODE + "torch::autograd::AccumulateGrad"
_GRADIENT = "torch::autograd::AccumulateGrad"
_BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8, "long int": 8, "int": 4, "bool": 1}
_DTYPES = {"float": Dtype.FP32, "c10::BFloat16": Dtype.BF16, "c10::Half": Dtype.FP16}
_STATE_BYTES = (("adam", 8), ("lion", 4), ("sgd", 4), ("adagrad", 4), ("rmsprop", 4))
TRACE_SPREAD_FRAC = 0.15
"""The recording's own cost, which differs from operator to operator, is in all times."""


def profile_of_trace(source: str | os.PathLike[str]) -> Profile:
    """The profile of the model in a trace.

    :raises TraceError: it is no trace.
    :raises PlanError: it lacks stacks, shapes, a whole step or a model of repeated blocks.
    """
    return profile_of(open_trace(source))


def profile_of(trace: Trace) -> Profile:
    """See `profile_of_trace`."""
    backward = _backward(trace)
    if not len(backward.rows):
        raise PlanError("The trace holds no backward; record a training run")
    tid = _main_tid(trace)
    found = find_layers(trace, backward.intervals_on(tid), backward.trained_ns(tid))
    if isinstance(found, str):
        raise PlanError(f"No layers can be seen: {found}")
    return _Reading(trace, found, backward).profile()


@dataclass(frozen=True, slots=True)
class _Backward:
    """Nodes that autograd evaluated, in order of start."""

    trace: Trace
    rows: Int64s

    def intervals_on(self, tid: int) -> Int64s:
        """(nodes, 2) starts and ends on one thread."""
        ops = self.trace.host_ops
        mine = self.rows[ops.tid[self.rows] == tid]
        return np.stack([ops.start_ns[mine], ops.end_ns[mine]], axis=1)

    def sources(self) -> Iterator[tuple[int, int]]:
        """Every node, and the one that it is of: an accumulation of the node before it on its thread; -1 for none."""
        ops, accumulates = self.trace.host_ops, self.trace.names.id(ACCUMULATE)
        latest: dict[int, int] = {}
        for row in self.rows.tolist():
            tid = int(ops.tid[row])
            if int(ops.name[row]) != accumulates:
                latest[tid] = row
            yield row, latest.get(tid, -1)

    def trained_ns(self, tid: int) -> Int64s:
        """Starts of the operators on one thread whose backward gave gradients to parameters, ascending."""
        ops = self.trace.host_ops
        numbers = [int(ops.seq[source]) for row, source in self.sources() if row != source and source >= 0]
        rows = np.flatnonzero((ops.tid == tid) & (ops.seq >= 0) & np.isin(ops.seq, numbers))
        forward = rows[~within(self.intervals_on(tid), ops.start_ns[rows], ops.end_ns[rows])]
        # An operator that makes no node carries the number of the next node, so the last one with a number made it.
        last = {int(ops.seq[row]): int(ops.start_ns[row]) for row in forward.tolist()}
        return np.array(sorted(last.values()), dtype=np.int64)


def _backward(trace: Trace) -> _Backward:
    return _Backward(trace, np.flatnonzero(trace.names.mask(trace.host_ops.name, lambda name: name.startswith(NODE))))


def _main_tid(trace: Trace) -> int:
    tids, counts = np.unique(trace.frames.tid, return_counts=True)
    return int(tids[counts.argmax()]) if len(tids) else -1


class _Reading:
    """One trace and its layers."""

    def __init__(self, trace: Trace, layers: Layers, backward: _Backward) -> None:
        self.trace, self.layers, self.ops = trace, layers, trace.host_ops
        self.count, self.forwards = len(layers.names), layers.forwards
        self.shapes = OpShapes(trace.shapes)
        self.backward = backward
        # Every layer call of every forward, in order of time: where an operator started tells whose it is.
        self.calls = [(f, i, call) for f, one in enumerate(self.forwards) for i, call in enumerate(one.layers)]
        self.call_starts = np.array([call.start_ns for _, _, call in self.calls], dtype=np.int64)
        self.call_ends = np.array([call.end_ns for _, _, call in self.calls], dtype=np.int64)
        self.owner = self._owners()
        self.kernels = self._kernel_starts()

    def profile(self) -> Profile:
        """The costs."""
        forward = [
            [self._spent(call.start_ns, call.end_ns, self.layers.tid) for call in one.layers] for one in self.forwards
        ]
        backward = self._backward_ns()
        parameters, rest_parameters, dtype = self._parameters()
        recomputes = self._recomputes()
        whole = [f for f in range(len(self.forwards)) if all(backward[f])]
        if not whole:
            raise PlanError("The trace holds no whole backward of the model; record a longer window")
        layers = []
        for i in range(self.count):
            forward_ns = round(median(one[i] for one in forward))
            backward_ns = round(median(backward[f][i] for f in whole))
            inputs = self._input_bytes(i)
            layers.append(
                LayerCost(
                    forward_ns=forward_ns,
                    backward_ns=max(0, backward_ns - forward_ns) if recomputes else backward_ns,
                    parameters=parameters[i],
                    trainable=parameters[i],
                    activation_bytes=max(inputs, self._kept_bytes(i)),
                    input_bytes=inputs,
                )
            )
        totals = [sum(forward[f]) + sum(backward[f]) for f in whole]
        spread = (max(totals) - min(totals)) / 2 / max(1, median(totals))
        batch, tokens = self._batch()
        steps = len(self.trace.annotations_named(OPTIMIZER))
        return Profile(
            model=ModelSpec(
                name=self.layers.model[:200],
                block=self.layers.block[:200],
                layer_parameters=tuple(parameters),
                rest_parameters=rest_parameters,
            ),
            layers=levelled(layers),
            rest=self._rest(rest_parameters),
            precision=Precision(weights=dtype, master=dtype, gradients=dtype),
            micro_batches=max(1, round(len(self.forwards) / steps)) if steps else 1,
            recompute=Recompute.LAYER if recomputes else Recompute.NONE,
            batch=batch,
            tokens=tokens,
            origin=Origin.TRACE,
            device=None if self.trace.device_name == NO_NAME else self.trace.device_name[:200],
            steps=steps,
            spread_frac=min(1.0, max(TRACE_SPREAD_FRAC, spread)),
            state_bytes_per_parameter=self._state_bytes(),
            clips=bool(self.trace.names.ids(lambda name: "): clip_grad_norm_" in name).size),
            notes=(
                "Times are those of a recorded run: recording makes small operators slower.",
                "Activations are estimated from operators' inputs; frozen parameters are not seen.",
            ),
        )

    # ---- whose is what ---------------------------------------------------------------------------------------------

    def _owners(self) -> dict[int, tuple[int, int]]:
        """Row of a backward node → (forward, layer) that it belongs to."""
        ops, tid = self.ops, self.layers.tid
        by_seq: dict[int, tuple[int, int]] = {}
        forward_rows = np.flatnonzero((ops.seq >= 0) & (ops.tid == tid))
        at = np.searchsorted(self.call_starts, ops.start_ns[forward_rows], side="right") - 1
        inside = (at >= 0) & (ops.start_ns[forward_rows] < self.call_ends[at])
        for row, number in zip(forward_rows[inside].tolist(), at[inside].tolist(), strict=True):
            forward, layer, _ = self.calls[number]
            by_seq[int(ops.seq[row])] = (forward, layer)
        return {row: by_seq[int(ops.seq[row])] for row in self.backward.rows.tolist() if int(ops.seq[row]) in by_seq}

    def _backward_ns(self) -> list[list[int]]:
        """(forwards, layers): time of the nodes, with the accumulations that follow them."""
        spent = [[0] * self.count for _ in self.forwards]
        for row, owner in self._attributed():
            if owner is not None:
                forward, layer = owner
                spent[forward][layer] += self._spent(
                    int(self.ops.start_ns[row]), int(self.ops.end_ns[row]), int(self.ops.tid[row])
                )
        return spent

    def _attributed(self) -> list[tuple[int, tuple[int, int] | None]]:
        """Every backward node with its owner."""
        return [(row, self.owner.get(source)) for row, source in self.backward.sources()]

    def _parameters(self) -> tuple[list[int], int, Dtype]:
        """Parameters by layer, those of the rest, and their format: from the gradients of one backward."""
        accumulates = self.trace.names.id(ACCUMULATE)
        inner = self.trace.names.id(_GRADIENT)
        sizes: dict[int, Counter[tuple[int, int]]] = {}
        rest: Counter[int] = Counter()
        types: Counter[str] = Counter()
        begins = [one.start_ns for one in self.forwards]
        for row, owner in self._attributed():
            # Outside of the layers, a gradient is of the forward before it.
            number = bisect(begins, int(self.ops.start_ns[row])) - 1 if owner is None else owner[0]
            if int(self.ops.name[row]) != accumulates or number < 0:
                continue
            size, kind = self._gradient(row, inner)
            types[kind] += size
            if owner is None:
                rest[number] += size
            else:
                sizes.setdefault(number, Counter())[owner] += size
        if not sizes or not types:
            raise PlanError("The trace shows no parameters' sizes; record with shapes (tightship profile --shapes)")
        # The most that a backward shows: the recording may have begun or ended within one.
        counts = [max(by_owner[(forward, i)] for forward, by_owner in sizes.items()) for i in range(self.count)]
        if not all(counts):
            empty = self.layers.names[counts.index(0)]
            raise PlanError(f"No parameter of layer {empty} was seen in the trace; its weights may be frozen")
        kind = types.most_common(1)[0][0]
        if kind not in _DTYPES:
            raise PlanError(f"The model's gradients are {kind!r}; plans know float, c10::BFloat16 and c10::Half")
        return counts, max(rest.values(), default=0), _DTYPES[kind]

    def _gradient(self, row: int, inner: int) -> tuple[int, str]:
        """Numbers and element type of the gradient that a node accumulates; the shape is on the node or just inside."""
        for at in (row, row + 1):
            if at < len(self.ops) and (at == row or int(self.ops.name[at]) == inner):
                inputs = self.shapes.of(self.ops, at)
                if inputs.dims and inputs.types:
                    return math.prod(inputs.dims[0]), inputs.types[0]
        return 0, ""

    # ---- time ------------------------------------------------------------------------------------------------------

    def _kernel_starts(self) -> tuple[Int64s, Int64s, Int64s] | None:
        """(launch times, threads, running sums of durations) of device events, by launch time; None on a CPU."""
        events, launches = self.trace.device_events, self.trace.launches
        launched = np.flatnonzero(events.launch >= 0)
        if not len(launched):
            return None
        at = events.launch[launched]
        order = np.argsort(launches.start_ns[at], kind="stable")
        return launches.start_ns[at][order], launches.tid[at][order].astype(np.int64), events.dur_ns[launched][order]

    def _spent(self, start_ns: int, end_ns: int, tid: int) -> int:
        """Time of what one thread did: of the kernels that it launched, or, on a CPU, its own."""
        if self.kernels is None:
            return end_ns - start_ns
        starts, tids, took = self.kernels
        part = slice(*np.searchsorted(starts, [start_ns, end_ns]).tolist())
        return int(took[part][tids[part] == tid].sum())

    def _rest(self, parameters: int) -> RestCost:
        """What lies before, between and after the layers."""
        first_nodes: dict[int, int] = {}
        last_nodes: dict[int, int] = {}
        for row, owner in self._attributed():
            if owner is not None:
                start, end = int(self.ops.start_ns[row]), int(self.ops.end_ns[row])
                first_nodes.setdefault(owner[0], start)
                last_nodes[owner[0]] = max(end, last_nodes.get(owner[0], 0))
        before, head, after = [], [], []
        steps = self.trace.annotations_named(OPTIMIZER).start_ns
        for number, one in enumerate(self.forwards):
            before.append(self._any(one.start_ns, one.layers[0].start_ns))
            if number in first_nodes:
                head.append(self._any(one.layers[-1].end_ns, first_nodes[number]))
                following = [int(step) for step in steps if step >= last_nodes[number]]
                begins = [f.start_ns for f in self.forwards if f.start_ns >= last_nodes[number]]
                ends = min([*following[:1], *begins[:1]], default=0)
                if ends:
                    after.append(self._any(last_nodes[number], ends))
        return RestCost(
            before_forward_ns=round(median(before)) if before else 0,
            after_forward_ns=round(median(head)) if head else 0,
            after_backward_ns=round(median(after)) if after else 0,
            parameters=parameters,
            trainable=parameters,
            activation_bytes=self._head_bytes(),
        )

    def _any(self, start_ns: int, end_ns: int) -> int:
        """Time of what any thread did."""
        if end_ns <= start_ns:
            return 0
        if self.kernels is None:
            return end_ns - start_ns
        starts, _, took = self.kernels
        return int(took[slice(*np.searchsorted(starts, [start_ns, end_ns]).tolist())].sum())

    # ---- sizes -----------------------------------------------------------------------------------------------------

    def _rows(self, start_ns: int, end_ns: int) -> Sequence[int]:
        ops = self.ops
        first, end = np.searchsorted(ops.start_ns, [start_ns, end_ns]).tolist()
        return [row for row in range(first, end) if int(ops.tid[row]) == self.layers.tid]

    def _input_bytes(self, layer: int) -> int:
        """Of the first tensor that a layer's first operator gets."""
        call = self.forwards[0].layers[layer]
        for row in self._rows(call.start_ns, call.end_ns):
            sizes = self._tensor_bytes(row)
            if sizes:
                return sizes[0]
        return 0

    def _kept_bytes(self, layer: int) -> int:
        """First inputs of the operators that autograd follows, each shape as often as it comes: an upper estimate."""
        call = self.forwards[0].layers[layer]
        return self._followed_bytes(call.start_ns, call.end_ns)

    def _head_bytes(self) -> int:
        one = self.forwards[0]
        end = min((int(self.ops.start_ns[row]) for row in self.owner if self.owner[row][0] == 0), default=one.end_ns)
        return self._followed_bytes(one.layers[-1].end_ns, end)

    def _followed_bytes(self, start_ns: int, end_ns: int) -> int:
        kept, seen = 0, set[int]()
        for row in self._rows(start_ns, end_ns):
            seq = int(self.ops.seq[row])
            if seq < 0 or seq in seen:
                continue
            seen.add(seq)
            name = self.trace.names[int(self.ops.name[row])]
            if name not in _KEEPS_NOTHING:
                kept += next(iter(self._tensor_bytes(row)), 0)
        return kept

    def _tensor_bytes(self, row: int) -> list[int]:
        inputs = self.shapes.of(self.ops, row)
        return [
            math.prod(dims) * _BYTES[kind]
            for dims, kind in zip(inputs.dims, inputs.types, strict=False)
            if dims and kind in _BYTES
        ]

    def _batch(self) -> tuple[int | None, int | None]:
        """(samples, tokens) from the indices of the model's first embedding."""
        embedding = self.trace.names.id("aten::embedding")
        one = self.forwards[0]
        for row in self._rows(one.start_ns, one.end_ns):
            if int(self.ops.name[row]) == embedding:
                dims = self.shapes.of(self.ops, row).dims
                if len(dims) > 1 and len(dims[1]) > 1:
                    return dims[1][0], math.prod(dims[1])
        return None, None

    def _recomputes(self) -> bool:
        return bool(self.trace.names.ids(lambda name: "checkpoint.py(" in name and "recompute" in name).size) or bool(
            self.trace.names.ids(lambda name: name == NODE + "CheckpointFunctionBackward").size
        )

    def _state_bytes(self) -> int:
        marks: Any = self.trace.annotations_named(OPTIMIZER)
        text = self.trace.names[int(marks.name[0])].lower() if len(marks) else ""
        return next((size for word, size in _STATE_BYTES if word in text), 8)


_KEEPS_NOTHING = frozenset(
    f"aten::{name}"
    # views; sums, whose backward needs nothing; functions that keep their result, which the next operator gets
    for name in (
        *(
            "t",
            "transpose",
            "view",
            "reshape",
            "permute",
            "unbind",
            "select",
            "slice",
            "expand",
            "unsqueeze",
            "flatten",
        ),
        *("add", "add_", "sub", "cat", "clone", "contiguous", "to", "_to_copy", "sum", "mean"),
        *("relu", "relu_", "clamp_min", "sigmoid", "tanh"),
    )
)
