"""Which module calls of a trace are a model's layers: from nothing but the frames of `nn.Module` calls.

A model is the outermost module that is called again and again; its layers are the repeated blocks that the runtime
finds in it (`are_blocks`), as far as calls show them.

[Note: containers in calls] Python code of a container runs in the call of the module that uses it. The `forward` of
torch's containers is that of a Sequential, whose children are the calls inside. Whatever else runs reads a ModuleList,
which is not called itself: that its children are the like ones that run most operators is as much as can be seen.
A module that runs neither has attributes, not blocks, be they alike.

[Note: operators, not time] How large a part of a model is, its operators say, which are the same in every run. A
machine that other processes use may hold a thread anywhere for longer than a small model takes, and the first call ever
may take a thousand times as long as the next.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from tightship_analyzers.trace.model import Bools, Int64s, Trace
from tightship_analyzers.trace.names import matcher
from tightship_offload.plan.model import are_blocks, no_blocks

LEAST_SHARE_FRAC = 0.3
"""Of the operators of a module's forward, what the children of its ModuleList must run: two norms beside them are no
layers."""
MOST_DEPTH = 60

_MODULE = re.compile(r"nn\.Module: (?P<kind>.+)_(?P<number>\d{1,9})", re.DOTALL)
_CONTAINER = re.compile(r"(.*/)?torch/nn/modules/container\.py\(\d+\): (?P<function>\w+)", re.DOTALL)


@dataclass(slots=True)
class Call:
    """One call of a module's forward, on the thread that trains."""

    name: str
    """`Block_3`: class and the number of the instance."""
    kind: str
    start_ns: int
    end_ns: int
    operators: int
    """That it ran, see [Note: operators, not time]."""
    calls: list[Call] = field(default_factory=list)
    """Calls of modules inside, in order."""
    containers: set[str] = field(default_factory=set)
    """Functions of torch's containers that it runs itself, see [Note: containers in calls]."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of the whole model."""

    start_ns: int
    end_ns: int
    layers: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """The model's layers, and each whole forward that the trace holds."""

    model: str
    block: str
    names: tuple[str, ...]
    forwards: tuple[Forward, ...]
    tid: int
    """Row in `Trace.threads` of the training thread."""


def find_layers(trace: Trace, backward: Int64s, trained_ns: Int64s) -> Layers | str:
    """The layers; where there are none, in words why.

    :param backward: (rows, 2) starts and ends of backward on the training thread: calls inside it recompute.
    :param trained_ns: ascending times at which its operators used parameters that get gradients.
    """
    frames = trace.frames
    modules = trace.names.mask(frames.name, matcher(_MODULE))
    if not modules.any():
        return "the trace holds no module calls; record with stacks (tightship profile --stacks)"
    tids, counts = np.unique(frames.tid[modules], return_counts=True)
    tid = int(tids[counts.argmax()])
    containers = trace.names.mask(frames.name, matcher(_CONTAINER))
    rows = np.flatnonzero((modules | containers) & (frames.tid == tid))
    roots = _tree(trace, rows[~within(backward, frames.start_ns[rows], frames.end_ns[rows])])
    if not roots:
        return "the trace holds no forward of a model; record a longer window"
    models: dict[str, list[Call]] = defaultdict(list)
    for call in roots:
        models[call.name].append(call)
    layers = {name: _layers(calls, trained_ns) for name, calls in models.items()}
    name = max(models, key=lambda one: (_ran(layers[one]), _ran(models[one]), _spent(models[one])))
    model = models[name]
    if not layers[name]:
        children = {child.kind[:80] for call in model for child in call.calls}
        return f"in its calls, {no_blocks(model[0].kind[:80], children)}"
    names = tuple(dict.fromkeys(one.name for one in layers[name]))
    forwards = []
    for call in model:
        whole = tuple(one for one in _flat(call) if one.name in names)
        if tuple(one.name for one in whole) == names:  # a call that recording cut off lacks some
            forwards.append(Forward(call.start_ns, call.end_ns, whole))
    if not forwards:
        return "the trace holds no whole forward of the model; record a longer window"
    return Layers(model[0].kind, layers[name][0].kind, names, tuple(forwards), tid)


def within(spans: Int64s, starts: Int64s, ends: Int64s) -> Bools:
    """Which intervals lie in one of the `spans`, (rows, 2) in order of start."""
    if not len(spans):
        return np.zeros(len(starts), dtype=np.bool_)
    at = np.searchsorted(spans[:, 0], starts, side="right") - 1
    inside: Bools = (at >= 0) & (ends <= spans[at, 1])
    return inside


def _tree(trace: Trace, rows: Int64s) -> list[Call]:
    """Outermost calls, with those inside them and what of containers they run."""
    frames = trace.frames
    roots: list[Call] = []
    open_: list[Call] = []
    operators = _operators(trace, rows)
    for row, ran in zip(rows.tolist(), operators.tolist(), strict=True):
        start, end = int(frames.start_ns[row]), int(frames.end_ns[row])
        while open_ and open_[-1].end_ns <= start:
            open_.pop()
        text = trace.names[int(frames.name[row])]
        container = _CONTAINER.fullmatch(text)
        if container is not None and open_:
            open_[-1].containers.add(container["function"])
        matched = _MODULE.fullmatch(text)
        if matched is None or len(open_) >= MOST_DEPTH:
            continue
        name = f"{matched['kind']}_{matched['number']}"
        call = Call(name, matched["kind"], start, end, ran)
        (open_[-1].calls if open_ else roots).append(call)
        open_.append(call)
    return roots


def _operators(trace: Trace, rows: Int64s) -> Int64s:
    """How many operators each of these frames, of one thread, ran."""
    frames, ops = trace.frames, trace.host_ops
    started = ops.start_ns[ops.tid == frames.tid[rows[0]]] if len(rows) else ops.start_ns
    ran: Int64s = np.searchsorted(started, frames.end_ns[rows]) - np.searchsorted(started, frames.start_ns[rows])
    return ran


def _layers(model: list[Call], trained_ns: Int64s) -> list[Call]:
    """Every call of a layer, in order: of the children of the outermost containers of repeated blocks."""
    names: set[str] = set()
    level = model
    while level:
        parents: dict[str, list[Call]] = defaultdict(list)
        for call in level:
            parents[call.name].append(call)
        for calls in parents.values():
            names |= _blocks(calls, trained_ns)
        level = [child for call in level for child in call.calls if child.name not in names]
    return [one for call in model for one in _flat(call) if one.name in names]


def _blocks(calls: list[Call], trained_ns: Int64s) -> set[str]:
    """Names of the repeated blocks that one module, of which these are the calls, has in a container."""
    functions = {function for call in calls for function in call.containers}
    children = [child for call in calls for child in call.calls]
    if "forward" in functions:
        kinds = {child.kind for child in children if _trains(child, trained_ns)}
    else:
        kinds = _most_called(children, LEAST_SHARE_FRAC * _usually_ran(calls)) if functions else set()
    blocks = {child.name: child.kind for child in children if child.kind in kinds}
    return set(blocks) if are_blocks(list(blocks.values())) else set()


def _most_called(children: list[Call], least: float) -> set[str]:
    """The class, if any, whose several instances run most operators, and no fewer than so many."""
    alike: dict[str, list[Call]] = defaultdict(list)
    for child in children:
        alike[child.kind].append(child)
    several = {kind: _usually_ran(calls) for kind, calls in alike.items() if len({call.name for call in calls}) > 1}
    most = max(several, key=lambda kind: several[kind], default=None)
    return set() if most is None or several[most] < least else {most}


def _trains(call: Call, trained_ns: Int64s) -> bool:
    """Whether parameters in it get gradients."""
    first, end = np.searchsorted(trained_ns, [call.start_ns, call.end_ns])
    return bool(first < end)


def _usually_ran(calls: list[Call]) -> float:
    """Operators of one call of each instance, by the median: recording may have cut a call off."""
    ran: dict[str, list[int]] = defaultdict(list)
    for call in calls:
        ran[call.name].append(call.operators)
    return sum(median(one) for one in ran.values())


def _ran(calls: list[Call]) -> int:
    return sum(call.operators for call in calls)


def _spent(calls: list[Call]) -> int:
    return sum(call.end_ns - call.start_ns for call in calls)


def _flat(call: Call) -> Iterator[Call]:
    for one in call.calls:
        yield one
        yield from _flat(one)
